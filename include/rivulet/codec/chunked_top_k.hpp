#pragma once

/// \file
/// The values of largest magnitude of each tile, with their places (SparseLoCo, arXiv 2508.15706).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include <rivulet/codec/top_k.hpp>

namespace rivulet::codec {

/// Of each tile of n values the k = ceil(n * kept / 4096) of largest magnitude, coded by the block
/// codec V; the others decode to 0. Ties, NaN and infinity as in top_k. The paper keeps 64 values
/// of 2 bits.
///
/// Bytes of a tile: ceil(1.5 k) for the places, ascending, 12 bits each, two to three bytes, from
/// the low bits on; then the k values as a tile of V. Decoded values are those of V,
/// fl(value * scale).
template <BlockCodec V>
struct chunked_top_k {
  [[no_unique_address]] V values{};
  std::size_t kept = 64;  ///< of 4096 values; from 1 to 4096

  static constexpr std::string_view name = "chunked_top_k";
  static constexpr std::uint16_t id = 17;

  /// How many of a tile of `count` values are kept.
  [[nodiscard]] constexpr std::size_t kept_of(std::size_t count) const {
    if (kept >= tile_values) return count;
    std::size_t const k = (count * kept + tile_values - 1) / tile_values;
    return k == 0 && count > 0 ? 1 : k;
  }
  [[nodiscard]] constexpr std::size_t tile_bytes(std::size_t count) const {
    return place_bytes(kept_of(count)) + codec::tile_bytes(values, kept_of(count));
  }
  void encode_tile(float const* tile, std::size_t count, std::byte* out, std::uint64_t key) const {
    float largest[tile_values];
    std::uint32_t places[tile_values];
    std::size_t const k = kept_of(count);
    std::int32_t low = detail::find_cut(tile, count, k, 2 * k + 64, -1).low;
    std::size_t const found = detail::keep_above(tile, nullptr, 0, count, low, largest, places);
    detail::keep_largest(largest, places, found, k, 0, low);
    for (std::size_t j = 0; j < k; j += 2) {
      bool const pair = j + 1 < k;
      std::uint32_t const bits = places[j] | (pair ? places[j + 1] << 12 : 0u);
      std::memcpy(out + place_bytes(j), &bits, pair ? 3 : 2);
    }
    codec::encode(values, std::span<float const>(largest, k),
                  std::span(out + place_bytes(k), codec::tile_bytes(values, k)), key);
  }
  /// sums[place] <- fma(value, weight, sums[place]); any bytes decode to something.
  void accumulate_tile(std::byte const* in, std::size_t count, float weight, float* sums) const {
    float decoded[tile_values];
    std::size_t const k = kept_of(count);
    codec::decode(values, std::span(in + place_bytes(k), codec::tile_bytes(values, k)),
                  std::span(decoded, k));
    for (std::size_t j = 0; j < k; ++j) {
      std::uint16_t bits;
      std::memcpy(&bits, in + 3 * j / 2, 2);
      std::size_t const place = j % 2 == 0 ? bits & 0xfffu : bits >> 4;
      if (place < count) sums[place] = rivulet::detail::fma(decoded[j], weight, sums[place]);
    }
  }
  [[nodiscard]] std::uint64_t fingerprint() const {
    return rivulet::detail::hash{}.add(std::uint64_t{kept}).add(codec::fingerprint(values)).value();
  }
  /// Throws precondition_error unless `kept` is from 1 to 4096.
  void check() const {
    rivulet::detail::require(kept >= 1 && kept <= tile_values, "chunked_top_k: kept = ", kept,
                             " must be from 1 to ", tile_values);
    codec::check(values);
  }

 private:
  static constexpr std::size_t place_bytes(std::size_t k) { return (3 * k + 1) / 2; }
};

}  // namespace rivulet::codec
