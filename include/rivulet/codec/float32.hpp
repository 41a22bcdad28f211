#pragma once

/// \file
/// Values as they are.

#include <cstring>

#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

/// 4 bytes per value, exact.
struct float32 {
  static constexpr std::string_view name = "float32";
  static constexpr std::uint16_t id = 1;
  static constexpr std::size_t block_size = 1;
  static constexpr std::size_t code_bytes = 4;
  static constexpr std::size_t scale_bytes = 0;

  void encode_block(float const* values, std::byte* codes, std::byte*) const {
    std::memcpy(codes, values, 4);
  }
  void accumulate_block(std::byte const* codes, std::byte const*, float weight, float* sums) const {
    float value;
    std::memcpy(&value, codes, 4);
    *sums = rivulet::detail::fma(value, weight, *sums);
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static bool regular(float const*) { return true; }
    RIVULET_AVX2_PART static __m256i encode(float const* values) {
      return rivulet::detail::avx2::load_bits(values);
    }
    RIVULET_AVX2_PART static __m256 decode(std::byte const* codes) {
      return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<__m256i const*>(codes)));
    }
  };
#endif
};

static_assert(BlockCodec<float32>);

}  // namespace rivulet::codec
