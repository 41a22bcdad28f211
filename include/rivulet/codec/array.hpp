#pragma once

/// \file
/// Whole arrays through a codec: for most a sequence of tiles of 4096 values, the last one shorter.

#include <cstddef>
#include <cstdint>
#include <span>

#include <rivulet/codec/tile.hpp>
#include <rivulet/detail/hash.hpp>
#include <rivulet/error.hpp>

namespace rivulet::codec {

/// Exact encoded size of `values` contiguous values. For a block codec
/// ceil(values / block_size) * block_bytes.
template <FragmentCodec C>
[[nodiscard]] constexpr std::size_t encoded_bytes(C const& codec, std::size_t values) {
  if constexpr (Codec<C>) {
    return values / tile_values * tile_bytes(codec, tile_values) +
           tile_bytes(codec, values % tile_values);
  } else {
    return codec.message_bytes(values);
  }
}

namespace detail {

/// Outputs from this size on are written past the caches: well beyond a cache of the last level
/// that a core may have for itself.
inline constexpr std::size_t uncached_bytes = std::size_t{32} << 20;

template <FragmentCodec C>
void check_size(C const& codec, char const* what, std::size_t values, std::size_t bytes) {
  rivulet::detail::require(bytes == encoded_bytes(codec, values), what, ": ", values,
                           " values take ", encoded_bytes(codec, values), " bytes, not ", bytes);
}

/// Calls f(first value, count, first byte) for every tile of an array.
template <Codec C, class F>
void for_each_tile(C const& codec, std::size_t values, F const& f) {
  std::size_t const bytes = tile_bytes(codec, tile_values);
  std::size_t at = 0;
  for (std::size_t first = 0; first < values; first += tile_values, at += bytes) {
    f(first, values - first < tile_values ? values - first : tile_values, at);
  }
}

}  // namespace detail

/// Encodes `values` into `out`; `seed` is that of random rounding. Allocates only for a codec that
/// looks at the whole array before it writes a byte.
/// Throws precondition_error unless out.size() is encoded_bytes(codec, values.size()).
template <FragmentCodec C>
void encode(C const& codec, std::span<float const> values, std::span<std::byte> out,
            std::uint64_t seed = 0) {
  detail::check_size(codec, "encode", values.size(), out.size());
  if constexpr (Codec<C>) {
    memory const where =
        values.size_bytes() < detail::uncached_bytes ? memory::cached : memory::uncached;
    detail::for_each_tile(
        codec, values.size(), [&](std::size_t first, std::size_t n, std::size_t at) {
          std::uint64_t const key =
              rivulet::detail::hash{}.add(seed).add(std::uint64_t{first}).value();
          float const* const tile = values.data() + first;
          encode_chunk(codec, tile, chunk(n), out.data() + at, key, where, {{tile, 4, 1024}});
        });
    rivulet::detail::finish_stores(where == memory::uncached);
  } else {
    typename C::encoder encoder;
    encoder.begin(codec, values.size());
    encoder.offer(values.data(), values.size());
    encoder.finish(codec, out.data());
  }
}

/// Decodes to `values`.
/// Throws precondition_error unless in.size() is encoded_bytes(codec, values.size()).
template <FragmentCodec C>
void decode(C const& codec, std::span<std::byte const> in, std::span<float> values) {
  detail::check_size(codec, "decode", values.size(), in.size());
  if constexpr (Codec<C>) {
    memory const where =
        values.size_bytes() < detail::uncached_bytes ? memory::cached : memory::uncached;
    detail::for_each_tile(codec, values.size(),
                          [&](std::size_t first, std::size_t n, std::size_t at) {
                            decode_tile(codec, in.data() + at, n, values.data() + first, where);
                          });
    rivulet::detail::finish_stores(where == memory::uncached);
  } else {
    for (float& value : values) value = 0.0f;
    codec.accumulate(in.data(), values.size(), 0, values.size(), 1.0f, values.data());
  }
}

/// sums[i] <- fma(value_i, scale * weight, sums[i]) for the decoded values of each sender in order,
/// in one pass over `sums`.
/// Throws precondition_error unless each has encoded_bytes(codec, sums.size()) bytes.
template <FragmentCodec C>
void accumulate(C const& codec, std::span<weighted_codes const> senders, std::span<float> sums) {
  for (weighted_codes const& sender : senders) {
    detail::check_size(codec, "accumulate", sums.size(), sender.bytes.size());
  }
  if constexpr (Codec<C>) {
    detail::for_each_tile(codec, sums.size(),
                          [&](std::size_t first, std::size_t n, std::size_t at) {
                            accumulate_chunk(codec, senders, at, chunk(n), sums.data() + first);
                          });
  } else {
    for (weighted_codes const& sender : senders) {
      codec.accumulate(sender.bytes.data(), sums.size(), 0, sums.size(), sender.weight,
                       sums.data());
    }
  }
}

/// The same for one sender.
template <FragmentCodec C>
void accumulate(C const& codec, std::span<std::byte const> in, float weight,
                std::span<float> sums) {
  weighted_codes const sender{in, weight};
  accumulate(codec, std::span(&sender, 1), sums);
}

}  // namespace rivulet::codec
