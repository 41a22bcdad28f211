#pragma once

/// \file
/// E3M0: sign and 3 exponent bits per value, the codec of Streaming DiLoCo (arXiv 2501.18512,
/// section 2.4), with a scale per block.

#include <cstring>

#include <rivulet/codec/block_codec.hpp>

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

/// The value of a code for S = 1.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float e3m0_value(std::uint32_t code) {
  std::uint32_t const k = code & 7u;
  return rivulet::detail::float_of(k == 0 ? 0u : ((k + 120u) << 23) | ((code & 8u) << 28));
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
struct e3m0 {
  static_assert(Block % 32 == 0 && cut_elements % Block == 0,
                "rivulet: a block of e3m0 is a multiple of 32 values that divides 4096");

  static constexpr std::string_view name = "e3m0";
  static constexpr std::uint16_t id = 3;
  static constexpr std::size_t block_size = Block;
  static constexpr std::size_t code_bytes = Block / 2;
  static constexpr std::size_t scale_bytes = 2;  // S as bfloat16

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    std::uint32_t largest = 0;  // magnitudes order as integers; NaN and infinity come last
    for (std::size_t i = 0; i < Block; ++i) {
      std::uint32_t const magnitude = rivulet::detail::bits_of(values[i]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
    rivulet::bf16 s{scale_of(largest)};
    std::memcpy(scale, &s.bits, 2);
    if (s.bits == 0 || s.bits == nan_scale) {
      std::memset(codes, 0, code_bytes);
      return;
    }
    float const reciprocal = 1.0f / to_float(s);
    for (std::size_t group = 0; group < Block; group += 32) {
      std::uint32_t code[32];
      for (std::size_t j = 0; j < 32; ++j)
        code[j] = detail::e3m0_code(values[group + j], reciprocal);
      for (std::size_t j = 0; j < 16; ++j) {
        codes[group / 2 + j] = static_cast<std::byte>(code[j] | (code[j + 16] << 4));
      }
    }
  }

  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    rivulet::bf16 s;
    std::memcpy(&s.bits, scale, 2);
    float const factor = to_float(s) * weight;
    for (std::size_t group = 0; group < Block; group += 32) {
      std::byte const* const in = codes + group / 2;
      float* const low = sums + group;
      float* const high = low + 16;
      for (std::size_t j = 0; j < 16; ++j) {
        auto const code = static_cast<std::uint32_t>(in[j]) & 15u;
        low[j] = rivulet::detail::fma(detail::e3m0_value(code), factor, low[j]);
      }
      for (std::size_t j = 0; j < 16; ++j) {
        auto const code = static_cast<std::uint32_t>(in[j]) >> 4;
        high[j] = rivulet::detail::fma(detail::e3m0_value(code), factor, high[j]);
      }
    }
  }

 private:
  static constexpr std::uint16_t nan_scale = 0x7fc0;

  /// bfloat16 bits of S for the bits of the largest magnitude.
  static constexpr std::uint16_t scale_of(std::uint32_t largest) {
    constexpr std::uint32_t infinity = 0x7f800000u;
    constexpr auto lower = rivulet::detail::bits_of(rivulet::detail::smallest_kept);
    constexpr auto upper = rivulet::detail::bits_of(0x1p126f);  // 1 / S stays normal
    if (largest >= infinity) return nan_scale;
    if (largest < lower) return 0;
    std::uint32_t const capped = largest < upper ? largest : upper;
    return static_cast<std::uint16_t>((capped + 0xffffu) >> 16);
  }
};

static_assert(BlockCodec<e3m0<>>);

}  // namespace rivulet::codec
