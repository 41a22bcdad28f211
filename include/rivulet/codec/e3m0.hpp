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

/// The same rounded at random (LUQ, arXiv 2112.10769): to one of the two powers of two around t, to
/// 2^-6 with probability 64 t below it. 2^-8 t as binary16 has the powers' numbers as its
/// exponents, and below 2^-6 it is subnormal, linear in t: 10 random bits added to the mantissa
/// carry into k. The mean is t to 2^-11 of it, or of 2^-6 below that.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr std::uint32_t e3m0_code(float value, float reciprocal,
                                                                    std::uint16_t noise) {
  auto const half = std::uint32_t{rivulet::to_fp16(value * reciprocal * 0x1p-8f).bits};
  std::uint32_t const k = ((half & 0x7fffu) + (noise >> 6)) >> 10;
  return k == 0 ? 0 : (k < 7 ? k : 7) | ((half >> 15) << 3);
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
                                            __m256i const (&noise)[2]) {
      // Bytes of sign and exponent, of values 0-7 16-23 8-15 24-31.
      __m256i const e = _mm256_packus_epi16(exponents(values, reciprocal, noise[0]),
                                            exponents(values + 16, reciprocal, noise[1]));
      static constexpr std::uint8_t at_most_7[16] = {0, 1, 2, 3, 4, 5, 6, 7,
                                                     7, 7, 7, 7, 7, 7, 7, 7};
      __m256i const k = rivulet::detail::avx2::look_up(at_most_7, e);
      __m256i const with_sign = _mm256_sign_epi8(k, _mm256_slli_epi16(e, 2));
      __m256i const sign = _mm256_and_si256(_mm256_srli_epi16(with_sign, 4), _mm256_set1_epi8(8));
      __m256i const code = _mm256_or_si256(k, sign);
      __m256i const high = _mm256_slli_epi16(_mm256_bsrli_epi128(code, 8), 4);
      __m256i const two = _mm256_or_si256(code, high);
      return _mm_unpacklo_epi64(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
    }
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      static constexpr auto table = [] {
        rivulet::detail::avx2::value_table result{};
        for (std::uint32_t c = 0; c < 16; ++c) result.set(c, to_bf16(detail::e3m0_value(c)));
        return result;
      }();
      table.unpack_halves(codes, values);
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
    /// Sign and exponent of 16 values as binary16, with noise: k and, 2 bits above it, the sign.
    RIVULET_AVX2_PART static __m256i exponents(float const* values, __m256 reciprocal,
                                               __m256i noise) {
      __m128i const low = small_halves(values, reciprocal);
      __m128i const high = small_halves(values + 8, reciprocal);
      __m256i const half = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
      return _mm256_srli_epi16(_mm256_add_epi16(half, _mm256_srli_epi16(noise, 6)), 10);
    }
    /// 2^-8 t as binary16. The reciprocal itself times 2^-8 could be subnormal, and then the bits
    /// would hang on the mode of the processor.
    RIVULET_AVX2_PART static __m128i small_halves(float const* values, __m256 reciprocal) {
      __m256 const t = _mm256_mul_ps(_mm256_loadu_ps(values), reciprocal);
      return _mm256_cvtps_ph(_mm256_mul_ps(t, _mm256_set1_ps(0x1p-8f)), 0);
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
