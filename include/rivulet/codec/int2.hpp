#pragma once

/// \file
/// Four levels, 2 bits per value, with a scale per block; meant for error feedback.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <rivulet/codec/block_scale.hpp>
#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

/// Codes 0, 1, 2, 3 in a block of scale S stand for S / 2, 3 S / 2, -S / 2, -3 S / 2: bit 0 is set
/// from |x| = S on, bit 1 is the sign of x, of zeros too. S is 5 / 4 of the mean magnitude of the
/// block, rounded to bfloat16: near the best for normal values, whose signal-to-noise is 9.2 dB.
///
/// Error of a value x: at most S / 2 for |x| <= 2 S, |x| - 3 S / 2 beyond. S is 0 for a block whose
/// S would be below 2^-100, and at most 2^126. A block with NaN or infinity decodes to NaN as a
/// whole. Bytes: 2 + Block / 4 per block of Block values, 2.25 bits per value by default. Groups of
/// 32 codes take 8 bytes; byte j holds the codes j, j + 8, j + 16, j + 24 from its lowest bits on.
template <std::size_t Block = 64>
struct int2 : detail::bf16_scale {
  static_assert(Block % 32 == 0 && cut_elements % Block == 0,
                "rivulet: a block of int2 is a multiple of 32 values that divides 4096");

  static constexpr std::string_view name = "int2";
  static constexpr std::uint16_t id = 8;
  static constexpr std::size_t block_size = Block;
  static constexpr std::size_t code_bytes = Block / 4;

  static float natural_scale(float const* values) {
    return detail::scale_of_sum(values, Block, weight_of_each);
  }

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float const s = natural_scale(values);
    store_scale(s, scale);
    quantize(values, s, codes);
  }

  /// The codes for a stored scale; all 0 if it is 0 or NaN.
  void quantize(float const* values, float scale, std::byte* codes) const {
    std::memset(codes, 0, code_bytes);
    if (!detail::is_used(scale)) return;
    auto const border = rivulet::detail::bits_of(scale);
    for (std::size_t i = 0; i < Block; ++i) {
      auto const bits = rivulet::detail::bits_of(values[i]);
      unsigned const code = ((bits & 0x7fffffffu) >= border ? 1u : 0u) | (bits >> 31 << 1);
      codes[i / 32 * 8 + i % 8] |= static_cast<std::byte>(code << (i % 32 / 8 * 2));
    }
  }

  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    float const factor = scale_at(scale) * weight;
    for (std::size_t i = 0; i < Block; ++i) {
      auto const four = static_cast<unsigned>(codes[i / 32 * 8 + i % 8]);
      float const level = levels[(four >> (i % 32 / 8 * 2)) & 3u];
      sums[i] = rivulet::detail::fma(level, factor, sums[i]);
    }
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static __m256i measure(float const* values) {
      return detail::sums_of_magnitudes<Block>(values, weight_of_each);
    }
    RIVULET_AVX2_PART static __m256 scales(__m256i sums, std::byte* scales) {
      __m256i const s = detail::scales_nearest(sums);
      detail::store_scales(s, scales);
      return _mm256_castsi256_ps(s);
    }
    RIVULET_AVX2_PART static std::uint64_t encode(float const* values, __m256 scale) {
      __m256i const a = codes(values, scale);
      __m256i const b = _mm256_slli_epi32(codes(values + 8, scale), 2);
      __m256i const c = _mm256_slli_epi32(codes(values + 16, scale), 4);
      __m256i const d = _mm256_slli_epi32(codes(values + 24, scale), 6);
      __m256i const all = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
      __m256 const used = _mm256_cmp_ps(scale, _mm256_setzero_ps(), _CMP_NEQ_UQ);
      __m256i const kept = _mm256_and_si256(all, _mm256_castps_si256(used));
      __m128i const half =
          _mm_packus_epi32(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1));
      return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_packus_epi16(half, half)));
    }
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      __m256 const table = _mm256_setr_ps(levels[0], levels[1], levels[2], levels[3],  //
                                          levels[0], levels[1], levels[2], levels[3]);
      __m256i const four = rivulet::detail::avx2::widen(codes);
      values[0] = _mm256_permutevar8x32_ps(table, four);
      values[1] = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(four, 2));
      values[2] = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(four, 4));
      values[3] = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(four, 6));
    }

   private:
    RIVULET_AVX2_PART static __m256i codes(float const* values, __m256 scale) {
      __m256i const bits = rivulet::detail::avx2::load_bits(values);
      __m256i const below = _mm256_sub_epi32(_mm256_castps_si256(scale), _mm256_set1_epi32(1));
      __m256i const large = _mm256_cmpgt_epi32(rivulet::detail::avx2::magnitude(bits), below);
      __m256i const sign = _mm256_and_si256(_mm256_srli_epi32(bits, 30), _mm256_set1_epi32(2));
      return _mm256_sub_epi32(sign, large);
    }
  };
#endif

 private:
  static constexpr float levels[4] = {0.5f, 1.5f, -0.5f, -1.5f};
  static constexpr float weight_of_each = 1.25f / static_cast<float>(Block);
};

static_assert(BlockCodec<int2<>>);

}  // namespace rivulet::codec
