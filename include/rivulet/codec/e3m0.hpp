#pragma once

/// \file
/// E3M0: sign and 3 exponent bits per value, the codec of Streaming DiLoCo (arXiv 2501.18512,
/// section 2.4), with a scale per block.

#include <cstring>

#include <rivulet/codec/block_scale.hpp>
#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

namespace detail {

/// The code of `value` for 1 / S = `reciprocal`: magnitude k in bits 0-2, sign in bit 3. With
/// t = |value| / S, k is 0 below 2^-7, else the nearest of 2^(k - 7) for k = 1 .. 7, ties away from
/// zero: half a mantissa added to the bits of t carries into the exponent from 1.5 * 2^e on.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr std::uint32_t e3m0_code(float value, float reciprocal) {
  auto const bits = rivulet::detail::bits_of(value);
  float const magnitude = rivulet::detail::float_of(bits & 0x7fffffffu);
  auto const t = rivulet::detail::bits_of(magnitude * reciprocal);
  constexpr std::uint32_t smallest = 120u << 23;  // 2^-7
  if (t < smallest) return 0;
  std::uint32_t const rounded = (t + 0x400000u) >> 23;  // biased exponent of the nearest power
  std::uint32_t const k = rounded < 121 ? 1 : rounded > 127 ? 7 : rounded - 120;
  return k | ((bits >> 31) << 3);
}

/// The same rounded at random, for noise uniform in 0 .. 65535: to one of the two powers of two
/// around t, to 2^-6 with probability 64 t below it (LUQ, arXiv 2112.10769); the mean is t to 2^-16
/// of their distance. A part of the distance, which is the lower of the two powers, is added to t:
/// if that reaches the upper one, the exponent shows it.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr std::uint32_t e3m0_code(float value, float reciprocal,
                                                                    std::uint16_t noise) {
  auto const bits = rivulet::detail::bits_of(value);
  float const t = rivulet::detail::float_of(bits & 0x7fffffffu) * reciprocal;
  std::uint32_t const power = rivulet::detail::bits_of(t > 0x1p-6f ? t : 0x1p-6f) & 0x7f800000u;
  float const step = rivulet::detail::float_of(power - (16u << 23));  // times noise: exact
  std::uint32_t const sum = rivulet::detail::bits_of(t + static_cast<float>(noise) * step) >> 23;
  std::uint32_t const k = sum < 121 ? 0 : sum > 127 ? 7 : sum - 120;
  return k == 0 ? 0 : k | ((bits >> 31) << 3);
}

/// The value of a code for S = 1.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float e3m0_value(std::uint32_t code) {
  std::uint32_t const k = code & 7u;
  return rivulet::detail::float_of((k == 0 ? 0u : (k + 120u) << 23) | ((code & 8u) << 28));
}

}  // namespace detail

/// Code k with sign s in a block of scale S stands for 0 if k = 0, else (-1)^s * S * 2^(k - 7):
/// 15 values over a range of 64 : 1. S is the block's largest magnitude, rounded up to bfloat16.
///
/// Error of a value x: at most |x| / 3 for |x| >= 2^-6 S, at most 2^-7 S below. S is 0 for a block
/// below 2^-100, and values beyond 2^126 saturate to it. A block with NaN or infinity decodes to
/// NaN as a whole. Bytes: 2 + Block / 2 per block of Block values, 4.25 bits per value by default.
/// Groups of 32 codes take 16 bytes; byte j holds code j in its low and code j + 16 in its high
/// half.
template <std::size_t Block = 64>
struct e3m0 : detail::bf16_scale {
  static_assert(Block % 32 == 0 && cut_elements % Block == 0,
                "rivulet: a block of e3m0 is a multiple of 32 values that divides 4096");

  static constexpr std::string_view name = "e3m0";
  static constexpr std::uint16_t id = 3;
  static constexpr std::size_t block_size = Block;
  static constexpr std::size_t code_bytes = Block / 2;

  static float natural_scale(float const* values) {
    return detail::scale_above(detail::largest_bits(values, Block));
  }

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float const s = natural_scale(values);
    store_scale(s, scale);
    quantize(values, s, codes);
  }

  /// The codes for a stored scale; 0 if it is 0 or NaN.
  void quantize(float const* values, float scale, std::byte* codes) const {
    float const reciprocal = detail::factor_for(scale, 1.0f);
    std::memset(codes, 0, code_bytes);
    for (std::size_t i = 0; i < Block && reciprocal != 0; ++i) {
      put(codes, i, detail::e3m0_code(values[i], reciprocal));
    }
  }

  /// The same, rounding at random: noise[i] is uniform in 0 .. 65535.
  void quantize(float const* values, float scale, std::byte* codes,
                std::uint16_t const* noise) const {
    float const reciprocal = detail::factor_for(scale, 1.0f);
    std::memset(codes, 0, code_bytes);
    for (std::size_t i = 0; i < Block && reciprocal != 0; ++i) {
      put(codes, i, detail::e3m0_code(values[i], reciprocal, noise[i]));
    }
  }

  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    float const factor = scale_at(scale) * weight;
    for (std::size_t i = 0; i < Block; ++i) {
      auto const both = static_cast<std::uint32_t>(codes[i / 32 * 16 + i % 16]);
      float const value = detail::e3m0_value(i % 32 < 16 ? both : both >> 4);
      sums[i] = rivulet::detail::fma(value, factor, sums[i]);
    }
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static __m256i measure(float const* values) {
      return rivulet::detail::avx2::largest<Block>(values);
    }
    RIVULET_AVX2_PART static __m256 scales(__m256i largest, std::byte* scales) {
      __m256i const s = detail::scales_above(largest);
      detail::store_scales(s, scales);
      return detail::factors_for(s, 1.0f);
    }
    RIVULET_AVX2_PART static __m128i encode(float const* values, __m256 reciprocal) {
      __m256i const low = codes(upper_half(values, reciprocal), upper_half(values + 8, reciprocal));
      __m256i const high =
          codes(upper_half(values + 16, reciprocal), upper_half(values + 24, reciprocal));
      return rivulet::detail::avx2::pack_halves(low, high);
    }
    RIVULET_AVX2_PART static __m128i encode(float const* values, __m256 reciprocal,
                                            __m256i const (&noise)[4]) {
      __m256i const low = random_codes(values, reciprocal, noise[0], noise[1]);
      __m256i const high = random_codes(values + 16, reciprocal, noise[2], noise[3]);
      return rivulet::detail::avx2::pack_halves(low, high);
    }
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      constexpr auto upper_half = [](std::uint32_t code) {
        return to_bf16(detail::e3m0_value(code)).bits;
      };
      static constexpr std::uint16_t bits[16] = {
          upper_half(0),  upper_half(1),  upper_half(2),  upper_half(3),
          upper_half(4),  upper_half(5),  upper_half(6),  upper_half(7),
          upper_half(8),  upper_half(9),  upper_half(10), upper_half(11),
          upper_half(12), upper_half(13), upper_half(14), upper_half(15)};
      rivulet::detail::avx2::value_table::from(bits).unpack_halves(codes, values);
    }

   private:
    /// Sign, exponent and upper mantissa of t, which decide on the code.
    RIVULET_AVX2_PART static __m256i upper_half(float const* values, __m256 reciprocal) {
      __m256 const t = _mm256_mul_ps(_mm256_loadu_ps(values), reciprocal);
      return _mm256_srli_epi32(_mm256_castps_si256(t), 16);
    }
    /// e3m0_code for 16 values at once.
    RIVULET_AVX2_PART static __m256i codes(__m256i a, __m256i b) {
      __m256i const t = _mm256_packus_epi32(a, b);
      __m256i const magnitude = _mm256_and_si256(t, _mm256_set1_epi16(0x7fff));
      __m256i const kept = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16((120 << 7) - 1));
      __m256i const rounded =
          _mm256_srli_epi16(_mm256_add_epi16(magnitude, _mm256_set1_epi16(0x40)), 7);
      __m256i const from_1 =
          _mm256_max_epi16(_mm256_sub_epi16(rounded, _mm256_set1_epi16(120)), _mm256_set1_epi16(1));
      __m256i const k = _mm256_min_epi16(from_1, _mm256_set1_epi16(7));
      return _mm256_and_si256(_mm256_or_si256(k, sign_bit(t)), kept);
    }
    /// The upper half of the sum in e3m0_code.
    RIVULET_AVX2_PART static __m256i upper_half(__m256i x, __m256 reciprocal, __m256i noise) {
      __m256i const magnitude = rivulet::detail::avx2::magnitude(x);
      __m256 const t = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), reciprocal);
      __m256 const power = _mm256_and_ps(_mm256_max_ps(t, _mm256_set1_ps(0x1p-6f)),
                                         _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000)));
      __m256i const step =
          _mm256_sub_epi32(_mm256_castps_si256(power), _mm256_set1_epi32(16 << 23));
      __m256 const sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(noise), _mm256_castsi256_ps(step), t);
      return _mm256_srli_epi32(_mm256_castps_si256(sum), 16);
    }
    RIVULET_AVX2_PART static __m256i random_codes(float const* values, __m256 reciprocal,
                                                  __m256i noise_0, __m256i noise_1) {
      __m256i const x = rivulet::detail::avx2::load_bits(values);
      __m256i const y = rivulet::detail::avx2::load_bits(values + 8);
      __m256i const sum = _mm256_packus_epi32(upper_half(x, reciprocal, noise_0),
                                              upper_half(y, reciprocal, noise_1));
      __m256i const from_0 = _mm256_subs_epu16(_mm256_srli_epi16(sum, 7), _mm256_set1_epi16(120));
      __m256i const k = _mm256_min_epi16(from_0, _mm256_set1_epi16(7));
      __m256i const kept = _mm256_cmpgt_epi16(k, _mm256_setzero_si256());
      // Of the bits of a float, saturation leaves the sign.
      __m256i const sign = _mm256_and_si256(sign_bit(_mm256_packs_epi32(x, y)), kept);
      return _mm256_or_si256(k, sign);
    }
    RIVULET_AVX2_PART static __m256i sign_bit(__m256i t) {
      return _mm256_and_si256(_mm256_srli_epi16(t, 12), _mm256_set1_epi16(8));
    }
  };
#endif

 private:
  static void put(std::byte* codes, std::size_t i, std::uint32_t code) {
    codes[i / 32 * 16 + i % 16] |= static_cast<std::byte>(code << (i % 32 < 16 ? 0 : 4));
  }
};

static_assert(BlockCodec<e3m0<>>);

}  // namespace rivulet::codec
