#pragma once

/// \file
/// Values rounded to IEEE binary16.

#include <cstring>

#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

/// 2 bytes per value, round to nearest even: an error of at most 2^-11 of a value from 2^-14 on, of
/// at most 2^-25 below. A finite value beyond the largest binary16, 65504, saturates to it.
struct fp16 {
  static constexpr std::string_view name = "fp16";
  static constexpr std::uint16_t id = 14;
  static constexpr std::size_t block_size = 1;
  static constexpr std::size_t code_bytes = 2;
  static constexpr std::size_t scale_bytes = 0;

  void encode_block(float const* values, std::byte* codes, std::byte*) const {
    rivulet::fp16 code = to_fp16(*values);
    bool const overflowed = (code.bits & 0x7fffu) == 0x7c00u && rivulet::detail::is_finite(*values);
    if (overflowed) --code.bits;  // the largest finite value of that sign
    std::memcpy(codes, &code.bits, 2);
  }
  void accumulate_block(std::byte const* codes, std::byte const*, float weight, float* sums) const {
    rivulet::fp16 code;
    std::memcpy(&code.bits, codes, 2);
    *sums = rivulet::detail::fma(to_float(code), weight, *sums);
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static bool regular(float const* values) {
      return rivulet::detail::avx2::none_above<16>(values, 0x477fefff);  // which round to 65504
    }
    RIVULET_AVX2_PART static __m256i encode(float const* values) {
      constexpr int nearest = _MM_FROUND_TO_NEAREST_INT;
      return _mm256_set_m128i(_mm256_cvtps_ph(_mm256_loadu_ps(values + 8), nearest),
                              _mm256_cvtps_ph(_mm256_loadu_ps(values), nearest));
    }
    RIVULET_AVX2_PART static __m256 decode(std::byte const* codes) {
      return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(codes)));
    }
  };
#endif
};

static_assert(BlockCodec<fp16>);

}  // namespace rivulet::codec
