#pragma once

/// \file
/// Values rounded to bfloat16.

#include <cstring>

#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

/// 2 bytes per value, round to nearest even: relative error at most 2^-8 (normal values). A finite
/// value beyond the largest bfloat16, 3.39e38, saturates to it.
struct bf16 {
  static constexpr std::string_view name = "bf16";
  static constexpr std::uint16_t id = 2;
  static constexpr std::size_t block_size = 1;
  static constexpr std::size_t code_bytes = 2;
  static constexpr std::size_t scale_bytes = 0;

  void encode_block(float const* values, std::byte* codes, std::byte*) const {
    rivulet::bf16 code = to_bf16(*values);
    bool const overflowed = (code.bits & 0x7fffu) == 0x7f80u && rivulet::detail::is_finite(*values);
    if (overflowed) --code.bits;  // the largest finite value of that sign
    std::memcpy(codes, &code.bits, 2);
  }
  void accumulate_block(std::byte const* codes, std::byte const*, float weight, float* sums) const {
    rivulet::bf16 code;
    std::memcpy(&code.bits, codes, 2);
    *sums = rivulet::detail::fma(to_float(code), weight, *sums);
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static bool regular(float const* values) {
      return rivulet::detail::avx2::none_above<16>(values, 0x7f7f7fff);  // else rounding overflows
    }
    RIVULET_AVX2_PART static __m256i encode(float const* values) {
      __m256i const packed = _mm256_packus_epi32(round(values), round(values + 8));
      return _mm256_permute4x64_epi64(packed, 0xd8);
    }
    RIVULET_AVX2_PART static __m256 decode(std::byte const* codes) {
      __m128i const bits = _mm_loadu_si128(reinterpret_cast<__m128i const*>(codes));
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }

   private:
    RIVULET_AVX2_PART static __m256i round(float const* values) {
      __m256i const bits = rivulet::detail::avx2::load_bits(values);
      __m256i const odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      __m256i const half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
      return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    }
  };
#endif
};

static_assert(BlockCodec<bf16>);

}  // namespace rivulet::codec
