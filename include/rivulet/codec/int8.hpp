#pragma once

/// \file
/// Integers of 8 bits with a scale per block.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <rivulet/codec/block_scale.hpp>
#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

namespace detail {

/// The nearest integer, ties to even, of a magnitude below 2^23: what the processor's conversion
/// gives, by integers, so that no flag changes it.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr std::int32_t nearest_integer(float value) {
  auto const bits = rivulet::detail::bits_of(value);
  std::uint32_t const exponent = (bits >> 23) & 0xffu;
  if (exponent < 126) return 0;  // below 1/2
  std::uint32_t const mantissa = (bits & 0x7fffffu) | 0x800000u;
  std::uint32_t const shift = 150 - exponent;
  std::uint32_t const odd = (mantissa >> shift) & 1u;
  std::uint32_t const rounded = (mantissa + (1u << (shift - 1)) - 1u + odd) >> shift;
  auto const magnitude = static_cast<std::int32_t>(rounded);
  return bits >> 31 != 0 ? -magnitude : magnitude;
}

}  // namespace detail

/// Code q, an integer in -127 .. 127, in a block of scale S stands for q * S. S is the block's
/// largest magnitude / 127, rounded up to bfloat16; x goes to the nearest integer to x / S, ties to
/// even.
///
/// Error: at most S / 2 (1 + 2^-15). Rounding at random, x / S goes to the integer below or above,
/// on average to x / S within 2^-16, or 2^-15 beyond 64. S is 0 for a block below 127 * 2^-100. A
/// block with NaN or infinity decodes to NaN as a whole. Bytes: 2 + Block per block of Block
/// values, 8.25 bits per value by default. Byte i is the code of value i, in two's complement;
/// -128, which no encoder makes, decodes to -128 S.
template <std::size_t Block = 64>
struct int8 : detail::bf16_scale {
  static_assert(Block % 32 == 0 && cut_elements % Block == 0,
                "rivulet: a block of int8 is a multiple of 32 values that divides 4096");

  static constexpr std::string_view name = "int8";
  static constexpr std::uint16_t id = 7;
  static constexpr std::size_t block_size = Block;
  static constexpr std::size_t code_bytes = Block;

  static float natural_scale(float const* values) {
    float const largest = rivulet::detail::float_of(detail::largest_bits(values, Block));
    return capped(detail::scale_above(rivulet::detail::bits_of(largest / 127)));
  }

  static void store_scale(float scale, std::byte* out) {
    detail::bf16_scale::store_scale(capped(scale), out);
  }

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float const s = natural_scale(values);
    store_scale(s, scale);
    quantize(values, s, codes);
  }

  /// The codes for a stored scale, clamped to -127 .. 127; all 0 if it is 0 or NaN.
  void quantize(float const* values, float scale, std::byte* codes) const {
    float const factor = detail::factor_for(scale, 1.0f);
    for (std::size_t i = 0; i < Block; ++i) {
      float const t = factor == 0 ? 0.0f : clamped(values[i] * factor, 127);
      codes[i] = static_cast<std::byte>(detail::nearest_integer(t));
    }
  }

  /// The same, rounding at random: noise[i] is uniform in 0 .. 65535.
  void quantize(float const* values, float scale, std::byte* codes,
                std::uint16_t const* noise) const {
    float const factor = detail::factor_for(scale, 65536.0f);
    for (std::size_t i = 0; i < Block; ++i) {
      float const t = factor == 0 ? 0.0f : clamped(values[i] * factor, 127 * 65536);
      codes[i] = static_cast<std::byte>((detail::nearest_integer(t) + noise[i]) >> 16);
    }
  }

  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    float const factor = scale_at(scale) * weight;
    for (std::size_t i = 0; i < Block; ++i) {
      auto const q = static_cast<float>(static_cast<std::int8_t>(codes[i]));
      sums[i] = rivulet::detail::fma(q, factor, sums[i]);
    }
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static __m256i measure(float const* values) {
      return rivulet::detail::avx2::largest<Block>(values);
    }
    RIVULET_AVX2_PART static __m256 scales(__m256i largest, std::byte* scales) {
      __m256 const exact = _mm256_div_ps(_mm256_castsi256_ps(largest), _mm256_set1_ps(127.0f));
      __m256i const cap = _mm256_set1_epi32(static_cast<int>(rivulet::detail::bits_of(most)));
      __m256i const s = _mm256_min_epi32(detail::scales_above(_mm256_castps_si256(exact)), cap);
      detail::store_scales(s, scales);
      return detail::factors_for(s, 1.0f);
    }
    RIVULET_AVX2_PART static __m256i encode(float const* values, __m256 factor) {
      return pack(integers(values, factor, 127.0f), integers(values + 8, factor, 127.0f),
                  integers(values + 16, factor, 127.0f), integers(values + 24, factor, 127.0f));
    }
    RIVULET_AVX2_PART static __m256i encode(float const* values, __m256 factor,
                                            __m256i const (&noise)[2]) {
      __m256i wide[4];
      rivulet::detail::avx2::widen(noise, wide);
      __m256 const f = _mm256_mul_ps(factor, _mm256_set1_ps(65536.0f));
      return pack(rounded(values, f, wide[0]), rounded(values + 8, f, wide[1]),
                  rounded(values + 16, f, wide[2]), rounded(values + 24, f, wide[3]));
    }
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      RIVULET_UNROLL
      for (int j = 0; j < 4; ++j) {
        __m128i const q = _mm_loadl_epi64(reinterpret_cast<__m128i const*>(codes + 8 * j));
        values[j] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
      }
    }

   private:
    /// The nearest integers to the products. They may be below -limit, which pack mends; those
    /// beyond the range of integers are the lowest integer, hence the clamp above.
    RIVULET_AVX2_PART static __m256i integers(float const* values, __m256 factor, float limit) {
      __m256 const t = _mm256_mul_ps(_mm256_loadu_ps(values), factor);
      return _mm256_cvtps_epi32(_mm256_min_ps(t, _mm256_set1_ps(limit)));
    }
    RIVULET_AVX2_PART static __m256i rounded(float const* values, __m256 factor, __m256i noise) {
      __m256i const t = integers(values, factor, 127 * 65536.0f);
      return _mm256_srai_epi32(_mm256_add_epi32(t, noise), 16);
    }
    RIVULET_AVX2_PART static __m256i pack(__m256i a, __m256i b, __m256i c, __m256i d) {
      __m256i const mixed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
      __m256i const q = _mm256_max_epi8(mixed, _mm256_set1_epi8(-127));
      return _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
  };
#endif

 private:
  static constexpr float most = 0x1.02p121f;  // the last bfloat16 of which 127 times is finite

  static constexpr float capped(float scale) { return scale > most ? most : scale; }

  /// NaN gives `limit`.
  static constexpr float clamped(float t, float limit) {
    float const below = t < limit ? t : limit;
    return below > -limit ? below : -limit;
  }
};

static_assert(BlockCodec<int8<>>);

}  // namespace rivulet::codec
