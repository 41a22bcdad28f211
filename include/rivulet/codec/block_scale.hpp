#pragma once

/// \file
/// The scale of a block as bfloat16: 0 for a block too small to keep, NaN for one with NaN or
/// infinity, else of a magnitude in 2^-100 .. 2^126, so that neither it nor its reciprocal is
/// subnormal or infinite.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <rivulet/detail/avx2.hpp>
#include <rivulet/element.hpp>

namespace rivulet::codec::detail {

inline constexpr std::uint32_t smallest_scale = 27u << 23;  // bits of 2^-100
inline constexpr std::uint32_t largest_scale = 253u << 23;  // bits of 2^126
inline constexpr std::uint32_t infinity_bits = 255u << 23;
inline constexpr float nan_scale = to_float(rivulet::bf16{0x7fc0});

/// The smallest scale that is not below the magnitude with these bits; 2^126 beyond it.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float scale_above(std::uint32_t magnitude) {
  if (magnitude >= infinity_bits) return nan_scale;
  if (magnitude < smallest_scale) return 0;
  std::uint32_t const capped = magnitude < largest_scale ? magnitude : largest_scale;
  return rivulet::detail::float_of((capped + 0xffffu) & 0xffff0000u);
}

/// The scale nearest to `value`, ties to even, with its sign; NaN for NaN.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float scale_nearest(float value) {
  auto const bits = rivulet::detail::bits_of(value);
  std::uint32_t const magnitude = bits & 0x7fffffffu;
  if (magnitude > infinity_bits) return nan_scale;
  if (magnitude < smallest_scale) return 0;
  std::uint32_t const capped = magnitude < largest_scale ? magnitude : largest_scale;
  return to_float(to_bf16(rivulet::detail::float_of(capped | (bits & 0x80000000u))));
}

/// Whether a block of this scale has codes of its own: it is neither 0 nor NaN.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr bool is_used(float scale) {
  std::uint32_t const magnitude = rivulet::detail::bits_of(scale) & 0x7fffffffu;
  return magnitude != 0 && magnitude <= infinity_bits;
}

/// What the values of a block are multiplied by: numerator / scale, or 0.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float factor_for(float scale, float numerator) {
  return is_used(scale) ? numerator / scale : 0.0f;
}

/// Bits of the largest magnitude, which order as integers; NaN and infinity come last.
[[nodiscard]] inline std::uint32_t largest_bits(float const* values, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t const magnitude = rivulet::detail::bits_of(values[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// Sum of weight * |value|, each term added with one rounding: in 8 lanes (i mod 8), and these in
/// the order of reduce8.
[[nodiscard]] inline float sum_of_magnitudes(float const* values, std::size_t count, float weight) {
  float lane[8] = {};
  for (std::size_t i = 0; i < count; ++i) {
    auto const magnitude = rivulet::detail::bits_of(values[i]) & 0x7fffffffu;
    lane[i % 8] = rivulet::detail::fma(rivulet::detail::float_of(magnitude), weight, lane[i % 8]);
  }
  float const low = (lane[0] + lane[2]) + (lane[1] + lane[3]);
  float const high = (lane[4] + lane[6]) + (lane[5] + lane[7]);
  return low + high;
}

/// The scale nearest to sum_of_magnitudes, 2^126 if that overflows; NaN for NaN and infinity.
[[nodiscard]] inline float scale_of_sum(float const* values, std::size_t count, float weight) {
  float const sum = sum_of_magnitudes(values, count, weight);
  bool const bad = !rivulet::detail::is_finite(sum) && largest_bits(values, count) >= infinity_bits;
  return bad ? nan_scale : scale_nearest(sum);
}

/// Base of the codecs with such a scale.
struct bf16_scale {
  static constexpr std::size_t scale_bytes = 2;

  static float scale_at(std::byte const* scale) {
    rivulet::bf16 s{};
    std::memcpy(&s.bits, scale, 2);
    return to_float(s);
  }
  static void store_scale(float scale, std::byte* out) {
    rivulet::bf16 const s = to_bf16(scale_nearest(scale));
    std::memcpy(out, &s.bits, 2);
  }
#if defined(RIVULET_AVX2)
  /// 8 stored scales.
  RIVULET_AVX2_PART static __m256 scales_at(std::byte const* scales) {
    return rivulet::detail::avx2::load8(reinterpret_cast<rivulet::bf16 const*>(scales));
  }
#endif
};

#if defined(RIVULET_AVX2)

/// scale_above for finite magnitudes, as bits of float.
RIVULET_AVX2_PART __m256i scales_above(__m256i magnitudes) {
  __m256i const keep = _mm256_cmpgt_epi32(magnitudes, _mm256_set1_epi32(smallest_scale - 1));
  __m256i const capped = _mm256_min_epi32(magnitudes, _mm256_set1_epi32(largest_scale));
  __m256i const above = _mm256_add_epi32(capped, _mm256_set1_epi32(0xffff));
  return _mm256_and_si256(_mm256_and_si256(above, _mm256_slli_epi32(keep, 16)), keep);
}

/// scale_nearest for finite magnitudes, as bits of float.
RIVULET_AVX2_PART __m256i scales_nearest(__m256i magnitudes) {
  __m256i const keep = _mm256_cmpgt_epi32(magnitudes, _mm256_set1_epi32(smallest_scale - 1));
  __m256i const capped = _mm256_min_epi32(magnitudes, _mm256_set1_epi32(largest_scale));
  __m256i const rounded = rivulet::detail::avx2::bf16_bits(_mm256_castsi256_ps(capped));
  return _mm256_and_si256(_mm256_slli_epi32(rounded, 16), keep);
}

/// Stores scales given by their bits.
RIVULET_AVX2_PART void store_scales(__m256i scales, std::byte* out) {
  rivulet::detail::avx2::store_low16(out, _mm256_srli_epi32(scales, 16));
}

/// factor_for, for scales other than NaN.
RIVULET_AVX2_PART __m256 factors_for(__m256i scales, float numerator) {
  __m256 const s = _mm256_castsi256_ps(scales);
  __m256 const none = _mm256_cmp_ps(s, _mm256_setzero_ps(), _CMP_EQ_OQ);
  __m256 const divisor = _mm256_blendv_ps(s, _mm256_set1_ps(1.0f), none);  // raises no exception
  return _mm256_andnot_ps(none, _mm256_div_ps(_mm256_set1_ps(numerator), divisor));
}

/// sum_of_magnitudes of each of eight blocks, as bits of float.
template <std::size_t Block>
RIVULET_AVX2_PART __m256i sums_of_magnitudes(float const* values, float weight) {
  namespace avx2 = rivulet::detail::avx2;
  __m256 const w = _mm256_set1_ps(weight);
  __m256i sums[8];
  RIVULET_UNROLL
  for (std::size_t b = 0; b < 8; ++b, values += Block) {
    __m256 sum = _mm256_setzero_ps();
    for (std::size_t i = 0; i < Block; i += 8) {
      __m256i const v = avx2::magnitude(avx2::load_bits(values + i));
      sum = _mm256_fmadd_ps(_mm256_castsi256_ps(v), w, sum);
    }
    sums[b] = _mm256_castps_si256(sum);
  }
  return avx2::reduce8<avx2::add_floats>(sums);
}

#endif

}  // namespace rivulet::codec::detail
