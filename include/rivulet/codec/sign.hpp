#pragma once

/// \file
/// The sign of each value, 1 bit, with the mean magnitude per block; meant for error feedback
/// (EF-signSGD, arXiv 1901.09847).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <rivulet/codec/block_scale.hpp>
#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

/// Bits 0 and 1 in a block of scale S stand for S and -S; the bit of a value is its sign, of zeros
/// too. S is the mean magnitude of the block, the scale of least squares, rounded to bfloat16.
///
/// Error of a value x: S - |x|, of either sign. S is 0 for a block whose mean magnitude is below
/// 2^-100, which has all bits 0, and at most 2^126. A block with NaN or infinity decodes to NaN as
/// a whole. Bytes: 2 + Block / 8 per block of Block values, 1.0625 bits per value by default. Bit
/// i % 8 of byte i / 8 is that of value i.
template <std::size_t Block = 256>
struct sign : detail::bf16_scale {
  static_assert(Block % 32 == 0 && cut_elements % Block == 0,
                "rivulet: a block of sign is a multiple of 32 values that divides 4096");

  static constexpr std::string_view name = "sign";
  static constexpr std::uint16_t id = 9;
  static constexpr std::size_t block_size = Block;
  static constexpr std::size_t code_bytes = Block / 8;

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
    for (std::size_t i = 0; i < Block; ++i) {
      unsigned const negative = rivulet::detail::bits_of(values[i]) >> 31;
      codes[i / 8] |= static_cast<std::byte>(negative << (i % 8));
    }
  }

  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    float const factor = scale_at(scale) * weight;
    for (std::size_t i = 0; i < Block; ++i) {
      bool const negative = (static_cast<unsigned>(codes[i / 8]) >> (i % 8) & 1u) != 0;
      sums[i] = rivulet::detail::fma(negative ? -1.0f : 1.0f, factor, sums[i]);
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
    RIVULET_AVX2_PART static std::uint32_t encode(float const* values, __m256 scale) {
      __m256 const used = _mm256_cmp_ps(scale, _mm256_setzero_ps(), _CMP_NEQ_UQ);
      std::uint32_t const low = signs(values, used) | signs(values + 8, used) << 8;
      std::uint32_t const high = signs(values + 16, used) | signs(values + 24, used) << 8;
      return low | high << 16;
    }
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, codes, 4);
      __m256i const all = _mm256_set1_epi32(static_cast<int>(bits));
      __m256i const from = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
      RIVULET_UNROLL
      for (int j = 0; j < 4; ++j) {
        __m256i const shift = _mm256_sub_epi32(from, _mm256_set1_epi32(8 * j));
        __m256i const sign =
            _mm256_and_si256(_mm256_sllv_epi32(all, shift), _mm256_set1_epi32(INT32_MIN));
        values[j] = _mm256_or_ps(_mm256_castsi256_ps(sign), _mm256_set1_ps(1.0f));
      }
    }

   private:
    RIVULET_AVX2_PART static std::uint32_t signs(float const* values, __m256 used) {
      return static_cast<std::uint32_t>(
          _mm256_movemask_ps(_mm256_and_ps(_mm256_loadu_ps(values), used)));
    }
  };
#endif

 private:
  static constexpr float weight_of_each = 1.0f / static_cast<float>(Block);
};

static_assert(BlockCodec<sign<>>);

}  // namespace rivulet::codec
