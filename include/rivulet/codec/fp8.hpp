#pragma once

/// \file
/// 8-bit floating point with a scale per block.

#include <cstring>

#include <rivulet/codec/block_scale.hpp>
#include <rivulet/codec/minifloat.hpp>
#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

/// Codes E4M3 (sign, 4 exponent and 3 mantissa bits; OCP 8-bit Floating Point Specification v1.0)
/// of x / S, rounded to nearest even. S is the block's largest magnitude / 448, rounded up to
/// bfloat16, so that |x| / S is at most 448, the largest code.
///
/// Error of a value x: at most |x| / 16, or S / 1000 if that is more. Rounding at random, the code
/// is one of the two beside x / S, on average x / S within 2^-16 of their distance. S is 0 for a
/// block below 448 * 2^-100, and values beyond 0x1.ffp127 saturate to it. A block with NaN or
/// infinity decodes to NaN as a whole, a code 0x7f or 0xff, which is never sent, to NaN alone.
/// Bytes: 2 + Block per block of Block values.
template <std::size_t Block = 128>
struct fp8 : detail::bf16_scale {
  static_assert(Block % 32 == 0 && cut_elements % Block == 0,
                "rivulet: a block of fp8 is a multiple of 32 values that divides 4096");

  static constexpr std::string_view name = "fp8";
  static constexpr std::uint16_t id = 12;
  static constexpr std::size_t block_size = Block;
  static constexpr std::size_t code_bytes = Block;

  static float natural_scale(float const* values) {
    std::uint32_t const largest = detail::largest_bits(values, Block);
    if (largest >= detail::infinity_bits) return detail::nan_scale;
    float const capped = rivulet::detail::float_of(largest < most ? largest : most);
    return detail::scale_above(rivulet::detail::bits_of(capped / 448.0f));
  }
  static void store_scale(float scale, std::byte* out) {
    constexpr float largest = 0x1.24p119f;  // 448 times it is still finite
    bf16_scale::store_scale(scale > largest ? largest : scale, out);
  }

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float const s = natural_scale(values);
    store_scale(s, scale);
    quantize(values, s, codes);
  }
  /// The codes for a stored scale; those of 0 if it is 0 or NaN.
  void quantize(float const* values, float scale, std::byte* codes) const {
    detail::e4m3::encode(values, Block, detail::factor_for(scale, 1.0f), codes);
  }
  /// The same, rounding at random: noise[i] is uniform in 0 .. 65535.
  void quantize(float const* values, float scale, std::byte* codes,
                std::uint16_t const* noise) const {
    float const factor = detail::factor_for(scale, 1.0f);
    for (std::size_t i = 0; i < Block; ++i) {
      bool const zero = values[i] == 0 || factor == 0;
      codes[i] = zero ? std::byte{0} : random_code(values[i] * factor, noise[i]);
    }
  }
  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    detail::e4m3::accumulate(codes, Block, scale_at(scale) * weight, sums);
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static __m256i measure(float const* values) {
      return rivulet::detail::avx2::largest<Block>(values);
    }
    RIVULET_AVX2_PART static __m256 scales(__m256i largest, std::byte* scales) {
      __m256i const capped = _mm256_min_epi32(largest, _mm256_set1_epi32(int{most}));
      __m256 const exact = _mm256_div_ps(_mm256_castsi256_ps(capped), _mm256_set1_ps(448.0f));
      __m256i const s = detail::scales_above(_mm256_castps_si256(exact));
      detail::store_scales(s, scales);
      return detail::factors_for(s, 1.0f);
    }
    RIVULET_AVX2_PART static __m256i encode(float const* values, __m256 factor) {
      return detail::e4m3::avx2::encode(values, factor, factor);
    }
    RIVULET_AVX2_PART static __m256i encode(float const* values, __m256 factor,
                                            __m256i const (&noise)[2]) {
      __m256i wide[4];
      rivulet::detail::avx2::widen(noise, wide);
      __m256i code[4];
      RIVULET_UNROLL
      for (std::size_t j = 0; j < 4; ++j) code[j] = random_codes(values + 8 * j, factor, wide[j]);
      __m256i const a = _mm256_packus_epi32(code[0], code[1]);
      __m256i const b = _mm256_packus_epi32(code[2], code[3]);
      return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b),
                                         _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      detail::e4m3::avx2::decode(codes, values);
    }

   private:
    /// random_code for 8 values; the zero turns -0 into 0.
    RIVULET_AVX2_PART static __m256i random_codes(float const* values, __m256 factor,
                                                  __m256i noise) {
      __m256 const t = _mm256_fmadd_ps(_mm256_loadu_ps(values), factor, _mm256_setzero_ps());
      __m256 const magnitude = _mm256_min_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), t),
                                             _mm256_set1_ps(detail::e4m3::largest));
      __m256 const normal = _mm256_set1_ps(smallest_normal);
      __m256 const below = _mm256_cmp_ps(magnitude, normal, _CMP_LT_OQ);
      __m256 const u = _mm256_add_ps(magnitude, _mm256_and_ps(below, normal));
      __m256i const low = _mm256_add_epi32(_mm256_slli_epi32(noise, 4), _mm256_set1_epi32(8));
      __m256i const up = _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(u), low), 20);
      __m256i const one = _mm256_and_si256(_mm256_castps_si256(below), _mm256_set1_epi32(8));
      __m256i const code = _mm256_sub_epi32(_mm256_sub_epi32(up, _mm256_set1_epi32(960)), one);
      __m256i const sign = _mm256_srli_epi32(_mm256_castps_si256(t), 31);
      return _mm256_or_si256(code, _mm256_slli_epi32(sign, 7));
    }
  };
#endif

 private:
  static constexpr std::uint32_t most = 0x7f7f8000;  // bits of 448 times the largest scale
  static constexpr float smallest_normal = 0x1p-6f;

  /// Adds the noise to the 20 bits that a normal code leaves off, so that they carry at random. A
  /// subnormal gets the same 3 bits of mantissa by the addition of the smallest normal number.
  static constexpr std::byte random_code(float t, std::uint16_t noise) {
    auto const bits = rivulet::detail::bits_of(t);
    float const magnitude = rivulet::detail::float_of(bits & 0x7fffffffu);
    float const capped = magnitude < detail::e4m3::largest ? magnitude : detail::e4m3::largest;
    bool const below = capped < smallest_normal;
    float const u = below ? capped + smallest_normal : capped;
    std::uint32_t const up = (rivulet::detail::bits_of(u) + noise * 16u + 8u) >> 20;
    return static_cast<std::byte>((up - (below ? 968u : 960u)) | bits >> 31 << 7);
  }
};

static_assert(BlockCodec<fp8<>>);

}  // namespace rivulet::codec
