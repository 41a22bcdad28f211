#pragma once

/// \file
/// The values of largest magnitude of an array, with their places. Which ones is exact: of equal
/// magnitudes those come first that have lower indices; NaN and infinity, which an engine refuses
/// before, rank by their bits, above all numbers. chunked_top_k.hpp does the same in each tile.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <rivulet/codec/array.hpp>

namespace rivulet::codec {

namespace detail {

/// Bits of |value|, which order as magnitudes do.
[[nodiscard]] inline std::int32_t magnitude(float value) {
  return static_cast<std::int32_t>(rivulet::detail::bits_of(value) & 0x7fffffffu);
}

#if defined(RIVULET_AVX2)

/// For each mask of 8 lanes those that are set, a byte each, from the lowest on.
struct lanes_of_masks {
  std::uint64_t lanes[256] = {};

  constexpr lanes_of_masks() {
    for (std::size_t mask = 0; mask < 256; ++mask) {
      int at = 0;
      for (unsigned lane = 0; lane < 8; ++lane) {
        if ((mask >> lane & 1) != 0) lanes[mask] |= std::uint64_t{lane} << 8 * at++;
      }
    }
  }
};
inline constexpr lanes_of_masks lanes_of;

/// The functions of these names below, for multiples of 8 values.
struct largest_avx2 {
  RIVULET_AVX2_PART static __m256i above(__m256i bits, std::int32_t low) {
    return _mm256_cmpgt_epi32(avx2::magnitude(bits), _mm256_set1_epi32(low));
  }
  RIVULET_AVX2 static std::size_t count_above(float const* values, std::size_t n,
                                              std::int32_t low) {
    __m256i sums = _mm256_setzero_si256();
    for (std::size_t i = 0; i < n; i += 8) {
      sums = _mm256_sub_epi32(sums, above(avx2::load_bits(values + i), low));
    }
    std::uint32_t lanes[8];
    std::memcpy(lanes, &sums, sizeof(lanes));
    std::size_t count = 0;
    for (std::uint32_t const lane : lanes) count += lane;
    return count;
  }
  RIVULET_AVX2 static std::size_t keep_above(float const* values, std::uint32_t const* places,
                                             std::uint32_t first, std::size_t n, std::int32_t low,
                                             float* out, std::uint32_t* out_places) {
    __m256i place = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)),
                                     _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    std::size_t kept = 0;
    for (std::size_t i = 0; i < n; i += 8) {
      if (places != nullptr) {
        place = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(places + i));
      }
      __m256 const value = _mm256_loadu_ps(values + i);
      __m256 const hits = _mm256_castsi256_ps(above(_mm256_castps_si256(value), low));
      auto const mask = static_cast<unsigned>(_mm256_movemask_ps(hits));
      __m256i const lanes = _mm256_cvtepu8_epi32(
          _mm_loadl_epi64(reinterpret_cast<__m128i const*>(&lanes_of.lanes[mask])));
      _mm256_storeu_ps(out + kept, _mm256_permutevar8x32_ps(value, lanes));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out_places + kept),
                          _mm256_permutevar8x32_epi32(place, lanes));
      kept += static_cast<std::size_t>(__builtin_popcount(mask));
      place = _mm256_add_epi32(place, _mm256_set1_epi32(8));
    }
    return kept;
  }
};

#endif

/// How many of `n` values have a magnitude above `low`.
[[nodiscard]] inline std::size_t count_above(float const* values, std::size_t n, std::int32_t low) {
  std::size_t done = 0;
  std::size_t count = 0;
#if defined(RIVULET_AVX2)
  if (rivulet::detail::use_vectors()) {
    done = n / 8 * 8;
    count = largest_avx2::count_above(values, done, low);
  }
#endif
  for (; done < n; ++done) count += magnitude(values[done]) > low ? 1u : 0u;
  return count;
}

/// Copies the values with a magnitude above `low` and their places, which are first, first + 1, ...
/// if `places` is null, in order; returns how many. The outputs may begin where the inputs do, and
/// may be written up to n. No branch hangs on the data.
inline std::size_t keep_above(float const* values, std::uint32_t const* places, std::uint32_t first,
                              std::size_t n, std::int32_t low, float* out,
                              std::uint32_t* out_places) {
  std::size_t done = 0;
  std::size_t kept = 0;
#if defined(RIVULET_AVX2)
  if (rivulet::detail::use_vectors()) {
    done = n / 8 * 8;
    kept = largest_avx2::keep_above(values, places, first, done, low, out, out_places);
  }
#endif
  for (; done < n; ++done) {
    float const value = values[done];
    out_places[kept] = places != nullptr ? places[done] : first + static_cast<std::uint32_t>(done);
    out[kept] = value;
    kept += magnitude(value) > low ? 1u : 0u;
  }
  return kept;
}

/// At least k magnitudes lie above `low`, fewer above `high`.
struct cut {
  std::int32_t low;
  std::int32_t high = INT32_MAX;
  std::size_t above_low;
  std::size_t above_high = 0;
};

/// A cut of n >= k values, all above `low`, with at most k + slack above it, or, where equal
/// magnitudes do not let it, with high = low + 1. By bisection, from the cut of a sample on.
[[nodiscard]] inline cut find_cut(float const* values, std::size_t n, std::size_t k,
                                  std::size_t slack, std::int32_t low) {
  cut c{.low = low, .above_low = n};
  auto const move_to = [&](std::int32_t middle) {
    if (middle <= c.low || middle >= c.high) return;
    std::size_t const count = count_above(values, n, middle);
    (count >= k ? c.low : c.high) = middle;
    (count >= k ? c.above_low : c.above_high) = count;
  };
  constexpr std::size_t samples = 256;
  if (n >= 4 * samples) {
    float sample[samples];
    for (std::size_t i = 0; i < samples; ++i) sample[i] = values[n / samples * i];
    std::size_t const rank = k * samples / n;
    std::size_t doubt = 2;
    while (doubt * doubt < 4 * rank) doubt *= 2;
    if (rank + doubt <= samples) move_to(find_cut(sample, samples, rank + doubt, 1, low).low);
    if (c.above_low > k + slack) {
      move_to(find_cut(sample, samples, rank > doubt ? rank - doubt : 1, 1, low).low + 1);
    }
  }
  while (c.above_low > k + slack && c.high - 1 > c.low) {
    move_to(static_cast<std::int32_t>((std::int64_t{c.low} + c.high) >> 1));
  }
  return c;
}

/// Leaves the k largest of n >= k values, all above `low`, and up to `slack` more, in order.
/// Returns how many; all are above the new `low`.
inline std::size_t keep_largest(float* values, std::uint32_t* places, std::size_t n, std::size_t k,
                                std::size_t slack, std::int32_t& low) {
  cut const c = find_cut(values, n, k, slack, low);
  std::size_t ties_end = n;
  if (c.above_low > k + slack) {  // too many have the magnitude `high`: the first of them stay
    ties_end = 0;
    for (std::size_t left = k - c.above_high; left > 0; ++ties_end) {
      left -= magnitude(values[ties_end]) == c.high ? 1u : 0u;
    }
  }
  low = c.low;
  std::size_t const kept = keep_above(values, places, 0, ties_end, c.low, values, places);
  return kept + keep_above(values + ties_end, places + ties_end, 0, n - ties_end, c.high,
                           values + kept, places + kept);
}

}  // namespace detail

/// Of an array of n < 2^32 values the k = ceil(fraction * n), in double precision, of largest
/// magnitude, at least 1, coded by the block codec V; the others decode to 0. What is kept shows
/// only at the end of the array, so this is no tile codec.
///
/// Bytes: 4 k for the places, ascending, then the k values as an array of V. Decoded values are
/// those of V, fl(value * scale). Encoding reads the values once and allocates nothing more once
/// there is memory for 4 k + 4096 candidates of 8 bytes.
template <BlockCodec V>
struct top_k {
  double fraction = 0.01;  ///< above 0, at most 1
  [[no_unique_address]] V values{};

  static constexpr std::string_view name = "top_k";
  static constexpr std::uint16_t id = 16;

  /// How many of n values are kept.
  [[nodiscard]] constexpr std::size_t kept_of(std::size_t n) const {
    double const product = fraction * static_cast<double>(n);
    if (!(product < static_cast<double>(n))) return n;
    if (!(product > 1)) return 1;
    auto const floor = static_cast<std::size_t>(product);
    return static_cast<double>(floor) < product ? floor + 1 : floor;
  }
  [[nodiscard]] constexpr std::size_t message_bytes(std::size_t n) const {
    return 4 * kept_of(n) + encoded_bytes(values, kept_of(n));
  }

  /// Takes the values piece by piece, in order. Serves one array after the other, one thread at a
  /// time.
  class encoder {
   public:
    /// Allocates for arrays of up to `n` values.
    void reserve(top_k const& codec, std::size_t n) {
      std::size_t const size = capacity(n, codec.kept_of(n));
      if (values_.size() >= size) return;
      values_.resize(size);
      places_.resize(size);
    }
    /// Starts an array of `n` values. Throws precondition_error unless n < 2^32.
    void begin(top_k const& codec, std::size_t n) {
      rivulet::detail::require(n <= UINT32_MAX, "top_k: ", n, " values; must be below 2^32");
      reserve(codec, n);
      n_ = n;
      kept_ = codec.kept_of(n);
      size_ = next_ = 0;
      low_ = -2;
    }
    /// Takes the next `count` values. Throws precondition_error if they are more than n in all.
    void offer(float const* next, std::size_t count) {
      rivulet::detail::require(count <= n_ - next_, "top_k: ", next_ + count, " values offered of ",
                               n_);
      while (count > 0) {
        std::size_t const now = count < piece ? count : piece;
        if (size_ + now > capacity(n_, kept_)) {
          size_ =
              detail::keep_largest(values_.data(), places_.data(), size_, kept_, kept_ / 8, low_);
        }
        // k candidates are above low_ and come first, so the next ones must be larger than low_ + 1
        size_ += detail::keep_above(next, nullptr, static_cast<std::uint32_t>(next_), now, low_ + 1,
                                    values_.data() + size_, places_.data() + size_);
        next_ += now;
        next += now;
        count -= now;
      }
    }
    /// Writes message_bytes(n) bytes. Throws precondition_error unless n values were offered.
    void finish(top_k const& codec, std::byte* out) {
      rivulet::detail::require(next_ == n_, "top_k: ", next_, " values offered of ", n_);
      if (n_ == 0) return;
      size_ = detail::keep_largest(values_.data(), places_.data(), size_, kept_, 0, low_);
      std::memcpy(out, places_.data(), 4 * kept_);
      encode(codec.values, std::span<float const>(values_.data(), kept_),
             std::span(out + 4 * kept_, encoded_bytes(codec.values, kept_)));
    }

   private:
    static constexpr std::size_t piece = 4096;

    static constexpr std::size_t capacity(std::size_t n, std::size_t kept) {
      return n < 4 * kept + piece ? n : 4 * kept + piece;
    }

    std::vector<float> values_;          // candidates, in order,
    std::vector<std::uint32_t> places_;  // and their places
    std::size_t size_ = 0;               // how many
    std::size_t n_ = 0;
    std::size_t kept_ = 0;
    std::size_t next_ = 0;   // place of the next value
    std::int32_t low_ = -2;  // below the magnitudes of all candidates
  };

  /// sums[i] <- fma(value, weight, sums[i]) for the values at first + i, i < count, of an array of
  /// n. Any bytes decode to something; places out of order may be missed.
  void accumulate(std::byte const* in, std::size_t n, std::size_t first, std::size_t count,
                  float weight, float* sums) const {
    std::size_t const k = kept_of(n);
    std::size_t const end = find(in, k, first + count);
    float decoded[tile_values];
    for (std::size_t j = find(in, k, first); j < end;) {
      // In one tile of V, from the block of j on.
      std::size_t const tile = j / tile_values * tile_values;
      std::size_t const size = k - tile < tile_values ? k - tile : tile_values;
      std::size_t const stop = end - tile < size ? end : tile + size;
      std::size_t const block = (j - tile) / V::block_size;
      std::size_t const begin = tile + block * V::block_size;
      std::byte const* const codes = in + 4 * k + encoded_bytes(values, tile);
      std::byte const* const scales =
          codes + (size + V::block_size - 1) / V::block_size * V::code_bytes;
      detail::decode_blocks(values, codes + block * V::code_bytes, scales + block * V::scale_bytes,
                            (stop - begin + V::block_size - 1) / V::block_size, decoded, false);
      for (; j < stop; ++j) {
        std::size_t const i = place(in, j) - first;
        if (i < count) sums[i] = rivulet::detail::fma(decoded[j - begin], weight, sums[i]);
      }
    }
  }
  [[nodiscard]] std::uint64_t fingerprint() const {
    return rivulet::detail::hash{}
        .add(__builtin_bit_cast(std::uint64_t, fraction))
        .add(codec::fingerprint(values))
        .value();
  }
  /// Throws precondition_error unless `fraction` is above 0 and at most 1.
  void check() const {
    rivulet::detail::require(fraction > 0 && fraction <= 1, "top_k: fraction = ", fraction,
                             " must be above 0 and at most 1");
    codec::check(values);
  }

 private:
  static std::size_t place(std::byte const* in, std::size_t j) {
    std::uint32_t result;
    std::memcpy(&result, in + 4 * j, 4);
    return result;
  }
  /// The first of k places that is not below `least`.
  static std::size_t find(std::byte const* in, std::size_t k, std::size_t least) {
    std::size_t low = 0;
    for (std::size_t high = k; low < high;) {
      std::size_t const middle = (low + high) / 2;
      place(in, middle) < least ? low = middle + 1 : high = middle;
    }
    return low;
  }
};

}  // namespace rivulet::codec
