#pragma once

/// \file
/// The 4- and 8-bit types of the OCP Microscaling Formats (MX) Specification v1.0.

#include <cstring>

#include <rivulet/codec/block_scale.hpp>
#include <rivulet/codec/minifloat.hpp>
#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

namespace detail {

/// Blocks of 32 elements with a scale E8M0: a byte b that stands for 2^(b - 127), 255 for NaN.
template <class Element>
struct mx {
  static constexpr std::size_t block_size = 32;
  static constexpr std::size_t code_bytes = Element::bytes(32);
  static constexpr std::size_t scale_bytes = 1;

  /// Bytes below 27 count as scale 0.
  static float scale_at(std::byte const* scale) {
    auto const b = static_cast<std::uint32_t>(*scale);
    if (b == 255) return nan_scale;
    return rivulet::detail::float_of(b < zero_below ? 0 : b << 23);
  }
#if defined(RIVULET_AVX2)
  /// 8 stored scales.
  RIVULET_AVX2_PART static __m256 scales_at(std::byte const* scales) {
    __m256i const b = rivulet::detail::avx2::widen(scales);
    __m256i const used = _mm256_cmpgt_epi32(b, _mm256_set1_epi32(int{zero_below} - 1));
    __m256i const nan = _mm256_cmpeq_epi32(b, _mm256_set1_epi32(255));
    __m256i const power = _mm256_and_si256(_mm256_slli_epi32(b, 23), used);
    __m256i const quiet = _mm256_and_si256(nan, _mm256_set1_epi32(1 << 22));
    return _mm256_castsi256_ps(_mm256_or_si256(power, quiet));
  }
#endif
  static float natural_scale(float const* values) {
    std::uint32_t const largest = largest_bits(values, 32);
    if (largest >= infinity_bits) return nan_scale;
    if (largest >> 23 < zero_below + emax) return 0;
    return rivulet::detail::float_of(((largest >> 23) - emax) << 23);
  }
  /// The nearest power of two, of two the larger one; 0 for negative scales.
  static void store_scale(float scale, std::byte* out) {
    constexpr std::uint32_t most = 254 - emax;  // beyond it the largest element is infinite
    auto const bits = rivulet::detail::bits_of(scale);
    std::uint32_t b = (bits + 0x400000u) >> 23;
    if (b > most) b = most;
    if (bits < smallest_scale || bits >> 31 != 0) b = 0;
    if ((bits & 0x7fffffffu) > infinity_bits) b = 255;
    *out = static_cast<std::byte>(b);
  }

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float const s = natural_scale(values);
    store_scale(s, scale);
    quantize(values, s, codes);
  }
  /// The codes for a stored scale; those of 0 if it is 0 or NaN.
  void quantize(float const* values, float scale, std::byte* codes) const {
    Element::encode(values, 32, factor_for(scale, 1.0f), codes);
  }
  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    Element::accumulate(codes, 32, scale_at(scale) * weight, sums);
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static __m256i measure(float const* values) {
      return rivulet::detail::avx2::largest<32>(values);
    }
    RIVULET_AVX2_PART static __m256 scales(__m256i largest, std::byte* scales) {
      __m256i const power = _mm256_and_si256(largest, _mm256_set1_epi32(255 << 23));
      __m256i const keep =
          _mm256_cmpgt_epi32(power, _mm256_set1_epi32((int{zero_below + emax} << 23) - 1));
      __m256i const above = _mm256_sub_epi32(power, _mm256_set1_epi32(int{emax} << 23));
      __m256i const b = _mm256_and_si256(_mm256_srli_epi32(above, 23), keep);
      __m128i const words =
          _mm_packs_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(scales), _mm_packus_epi16(words, words));
      __m256i const reciprocal = _mm256_sub_epi32(_mm256_set1_epi32(254 << 23), above);
      return _mm256_castsi256_ps(_mm256_and_si256(reciprocal, keep));
    }
    RIVULET_AVX2_PART static auto encode(float const* values, __m256 factor) {
      return Element::avx2::encode(values, factor, factor);
    }
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      Element::avx2::decode(codes, values);
    }
  };
#endif

 private:
  static constexpr std::uint32_t zero_below = smallest_scale >> 23;
  /// Exponent of the largest element.
  static constexpr std::uint32_t emax = (rivulet::detail::bits_of(Element::largest) >> 23) - 127;
};

}  // namespace detail

/// MXFP4: codes E2M1 of x / S, rounded to nearest even, which stand for S times 0, 0.5, 1, 1.5, 2,
/// 3, 4 or 6, with a sign. S is the power of two with 4 S <= the block's largest magnitude < 8 S.
///
/// Error of a value x: at most S / 4, or |x| / 5 if that is more, or |x| / 4 beyond 6 S. S is 0 for
/// a block below 2^-98. A block with NaN or infinity decodes to NaN as a whole. Bytes: 17 per block
/// of 32 values; byte j of its codes holds code 2 j in its low and code 2 j + 1 in its high half.
struct mxfp4 : detail::mx<detail::e2m1> {
  static constexpr std::string_view name = "mxfp4";
  static constexpr std::uint16_t id = 10;
};

/// MXFP8 with codes E4M3, a byte each, of x / S, rounded to nearest even, up to 448. S is the power
/// of two with 256 S <= the block's largest magnitude < 512 S.
///
/// Error of a value x: at most S / 1024, or |x| / 17 if that is more, or |x| / 8 beyond 448 S. S is
/// 0 for a block below 2^-92. A block with NaN or infinity decodes to NaN as a whole, a code 0x7f
/// or 0xff, which is never sent, to NaN alone. Bytes: 33 per block of 32 values.
struct mxfp8 : detail::mx<detail::e4m3> {
  static constexpr std::string_view name = "mxfp8";
  static constexpr std::uint16_t id = 11;
};

static_assert(BlockCodec<mxfp4> && BlockCodec<mxfp8>);

}  // namespace rivulet::codec
