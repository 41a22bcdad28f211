#pragma once

/// \file
/// Floating-point numbers of 4 and 8 bits, the elements of fp8, mx and nvfp4: E2M1 and E4M3 of the
/// OCP Microscaling Formats (MX) Specification v1.0, section 5.3.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <rivulet/detail/avx2.hpp>
#include <rivulet/element.hpp>

namespace rivulet::codec::detail {

/// Codes of a sign, an exponent and a mantissa as in IEEE 754, subnormals included, but without
/// infinity; magnitudes above `Largest` are NaN.
template <unsigned ExponentBits, unsigned MantissaBits, unsigned Largest>
struct minifloat {
  static constexpr unsigned bits = 1 + ExponentBits + MantissaBits;
  static constexpr float largest = Largest;

  /// Rounds to nearest, ties to even; beyond `largest` it saturates. A power of two, 2^(23 -
  /// MantissaBits) times that of the value or of the smallest normal one, has steps as large as
  /// those of the code: adding it rounds.
  [[nodiscard]] RIVULET_HOST_DEVICE static constexpr std::uint32_t encode(float t) {
    constexpr std::uint32_t most = rivulet::detail::bits_of(largest);
    auto const in = rivulet::detail::bits_of(t);
    std::uint32_t const magnitude = (in & 0x7fffffffu) < most ? in & 0x7fffffffu : most;
    std::uint32_t const power = magnitude & 0x7f800000u;
    std::uint32_t const exponent = power > smallest ? power : smallest;
    std::uint32_t const grid = exponent + to_grid;
    float const sum = rivulet::detail::float_of(magnitude) + rivulet::detail::float_of(grid);
    std::uint32_t const rounded = rivulet::detail::bits_of(sum) - grid;
    return (rounded + ((exponent - smallest) >> to_code)) | in >> 31 << (bits - 1);
  }

  /// Exact; bits above the code's are ignored.
  [[nodiscard]] RIVULET_HOST_DEVICE static constexpr float decode(std::uint32_t code) {
    constexpr std::uint32_t last = encode(largest);
    constexpr std::uint32_t normal = 1u << MantissaBits;
    constexpr float step = rivulet::detail::float_of(smallest - (MantissaBits << 23));
    std::uint32_t const sign = code >> (bits - 1) << 31;
    std::uint32_t const magnitude = code & ((1u << (bits - 1)) - 1);
    if (magnitude > last) return rivulet::detail::float_of(0x7fc00000u);
    std::uint32_t const value = magnitude < normal
                                    ? rivulet::detail::bits_of(static_cast<float>(magnitude) * step)
                                    : ((magnitude - normal) << to_code) + smallest;
    return rivulet::detail::float_of(sign | value);
  }

  /// Bytes of `count` codes: one each, or two in a byte, the first in its low half.
  [[nodiscard]] static constexpr std::size_t bytes(std::size_t count) { return count * bits / 8; }

  /// Codes of values[i] * factor; zeros and factor 0 give code 0, whatever the signs.
  static void encode(float const* values, std::size_t count, float factor, std::byte* codes) {
    std::memset(codes, 0, bytes(count + 8 / bits - 1));
    for (std::size_t i = 0; i < count; ++i) {
      if (values[i] == 0 || factor == 0) continue;
      std::uint32_t const code = encode(values[i] * factor);
      codes[bytes(i)] |= static_cast<std::byte>(bits == 4 && i % 2 == 1 ? code << 4 : code);
    }
  }

  /// sums[i] <- fma(code's value, factor, sums[i])
  static void accumulate(std::byte const* codes, std::size_t count, float factor, float* sums) {
    for (std::size_t i = 0; i < count; ++i) {
      auto const code = static_cast<std::uint32_t>(codes[bytes(i)]);
      float const value = decode(bits == 4 && i % 2 == 1 ? code >> 4 : code);
      sums[i] = rivulet::detail::fma(value, factor, sums[i]);
    }
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    /// 32 codes: the first 16 values times `low`, the others times `high`, all below 2^60.
    RIVULET_AVX2_PART static auto encode(float const* values, __m256 low, __m256 high) {
      __m256i const a = _mm256_packs_epi32(scaled(values, low), scaled(values + 8, low));
      __m256i const b = _mm256_packs_epi32(scaled(values + 16, high), scaled(values + 24, high));
      // Values 0-3, 8-11, 16-19, 24-27, and in the upper half 4-7, 12-15, 20-23, 28-31.
      __m256i const codes = _mm256_packs_epi16(_mm256_srai_epi16(a, 7 - MantissaBits),
                                               _mm256_srai_epi16(b, 7 - MantissaBits));
      if constexpr (bits == 8) {
        return _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
      } else {
        // The positive ones are from 120 on and saturated at 127, the negative ones from 128 on.
        __m256i const capped = _mm256_min_epu8(codes, _mm256_set1_epi8(-128 + 7));
        __m256i const nibbles = _mm256_sub_epi8(capped, _mm256_set1_epi8(120));
        __m256i const pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
        __m128i const upper = _mm256_extracti128_si256(pairs, 1);
        __m128i const packed = _mm_packus_epi16(_mm256_castsi256_si128(pairs), upper);
        __m128i const order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
        return _mm_shuffle_epi8(packed, order);
      }
    }

    /// 32 values. Of 4-bit codes, the upper bytes of the floats come from tables. Those of 8 bits,
    /// times 2^-8, are numbers of binary16, whose conversion heeds subnormals in every mode.
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      __m256i const zero = _mm256_setzero_si256();
      if constexpr (bits == 8) {
        __m256i const in = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(codes));
        __m256i const wide[2] = {_mm256_unpacklo_epi8(zero, in), _mm256_unpackhi_epi8(zero, in)};
        RIVULET_UNROLL
        for (std::size_t j = 0; j < 2; ++j) {
          __m256i h = _mm256_and_si256(_mm256_srai_epi16(wide[j], 1), _mm256_set1_epi16(-0x4001));
          // Only NaN, all ones, carries into the bit that makes it NaN here.
          __m256i const carry = _mm256_add_epi16(h, _mm256_set1_epi16(0x80));
          h = _mm256_or_si256(h, _mm256_and_si256(carry, _mm256_set1_epi16(0x4000)));
          __m256 const low = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
          __m256 const high = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
          values[j] = _mm256_mul_ps(low, _mm256_set1_ps(0x1p8f));
          values[j + 2] = _mm256_mul_ps(high, _mm256_set1_ps(0x1p8f));
        }
      } else {
        __m128i const in = _mm_loadu_si128(reinterpret_cast<__m128i const*>(codes));
        __m256i const order =  // that of the packed codes in encode
            _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1,  //
                             2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1);
        __m256i const spread = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(in), order);
        __m256i const both = _mm256_or_si256(spread, _mm256_slli_epi16(spread, 4));
        __m256i const nibbles = _mm256_and_si256(both, _mm256_set1_epi8(15));
        auto const third_bytes = static_cast<long long>(0xc0804000c0800000);  // of codes 0-7
        auto const plus = static_cast<long long>(0x404040403f3f3f00);         // their fourth bytes
        auto const minus = static_cast<long long>(0xc0c0c0c0bfbfbf80);
        __m256i const fourth_bytes = _mm256_setr_epi64x(plus, minus, plus, minus);
        __m256i const low = _mm256_shuffle_epi8(_mm256_set1_epi64x(third_bytes), nibbles);
        __m256i const high = _mm256_shuffle_epi8(fourth_bytes, nibbles);
        __m256i const a = _mm256_unpacklo_epi8(low, high);
        __m256i const b = _mm256_unpackhi_epi8(low, high);
        values[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a));
        values[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a));
        values[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b));
        values[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b));
      }
    }

   private:
    /// 2^(7 - MantissaBits) times the codes of 8 values. As in the scalar encode, but the grid has
    /// the sign, too, and is shifted by whole steps, so that one multiply-add of the sum's 16-bit
    /// halves, exponent and mantissa, gives the code free of biases and with the sign.
    RIVULET_AVX2_PART static __m256i scaled(float const* values, __m256 factor) {
      constexpr int bias = static_cast<int>((smallest + to_grid) >> to_code);
      constexpr int zero = static_cast<int>(to_grid) - bias;
      __m256i const positive = _mm256_set1_epi32(zero + 0x10000 + (bits == 4 ? 120 : 0));
      __m256i const negative = _mm256_set1_epi32(zero + INT32_MIN + (256 << MantissaBits) - 128);
      // The zero turns -0 into 0.
      __m256 t = _mm256_fmadd_ps(_mm256_loadu_ps(values), factor, _mm256_setzero_ps());
      if constexpr (bits == 8) {
        t = _mm256_min_ps(_mm256_max_ps(t, _mm256_set1_ps(-largest)), _mm256_set1_ps(largest));
      }
      __m256i const power = _mm256_and_si256(_mm256_castps_si256(t), _mm256_set1_epi32(255 << 23));
      __m256i const exponent = _mm256_max_epi32(power, _mm256_set1_epi32(int{smallest}));
      __m256 const shift =
          _mm256_blendv_ps(_mm256_castsi256_ps(positive), _mm256_castsi256_ps(negative), t);
      __m256i const grid = _mm256_add_epi32(exponent, _mm256_castps_si256(shift));
      __m256 const sum = _mm256_add_ps(t, _mm256_castsi256_ps(grid));
      __m256i const weights = _mm256_set1_epi32(0x10000 | (128 >> MantissaBits));
      return _mm256_madd_epi16(_mm256_castps_si256(sum), weights);
    }
  };
#endif

 private:
  static constexpr std::uint32_t smallest = (129u - (1u << (ExponentBits - 1))) << 23;  // normal
  static constexpr unsigned to_code = 23 - MantissaBits;
  static constexpr std::uint32_t to_grid = to_code << 23;
};

using e2m1 = minifloat<2, 1, 6>;
using e4m3 = minifloat<4, 3, 448>;

}  // namespace rivulet::codec::detail
