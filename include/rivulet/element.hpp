#pragma once

/// \file
/// Element types of tensors and of the wire, with conversions in integer code of our own: the same
/// bits on every compiler, under every flag, on host and device.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <rivulet/config.hpp>

namespace rivulet {

namespace detail {

/// The bits of a float. (std::bit_cast is no device function.)
[[nodiscard]] RIVULET_HOST_DEVICE constexpr std::uint32_t bits_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

/// The float of these bits.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

}  // namespace detail

/// Element type of a tensor.
enum class element_type : std::uint8_t { float32, bfloat16, float16 };

/// Name of an element type for messages.
[[nodiscard]] constexpr std::string_view to_string(element_type element) {
  constexpr std::string_view names[] = {"float32", "bfloat16", "float16"};
  return names[static_cast<std::size_t>(element)];
}

/// Where a tensor's memory lies.
enum class memory_space : std::uint8_t { host, cuda };

/// bfloat16 by its bits: 1 sign, 8 exponent, 7 mantissa.
struct bf16 {
  std::uint16_t bits;
};

/// IEEE binary16 by its bits: 1 sign, 5 exponent, 10 mantissa.
struct fp16 {
  std::uint16_t bits;
};

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(element_type element) {
  return element == element_type::float32 ? 4 : 2;
}

/// Exact.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float to_float(float value) { return value; }

/// Exact; NaN payloads are kept.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float to_float(bf16 value) {
  return detail::float_of(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Exact, subnormals included; NaN payloads are kept.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float to_float(fp16 value) {
  std::uint32_t const sign = (value.bits & 0x8000u) << 16;
  std::uint32_t const exponent = (value.bits >> 10) & 0x1fu;
  std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return detail::float_of(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return detail::float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  if (mantissa == 0) return detail::float_of(sign);
  std::uint32_t shifted = 113;  // a subnormal is mantissa * 2^-24: normalize it
  while ((mantissa & 0x400u) == 0) {
    mantissa <<= 1;
    --shifted;
  }
  return detail::float_of(sign | (shifted << 23) | ((mantissa & 0x3ffu) << 13));
}

/// Round to nearest, ties to even; overflow gives infinity; NaN stays a (quiet) NaN.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr bf16 to_bf16(float value) {
  auto const bits = detail::bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

/// Round to nearest, ties to even; overflow gives infinity; NaN stays a (quiet) NaN.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr fp16 to_fp16(float value) {
  auto const bits = detail::bits_of(value);
  std::uint32_t const sign = (bits >> 16) & 0x8000u;
  std::uint32_t const magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14 and more: a normal half
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  } else if (magnitude > 0x33000000u) {  // more than 2^-25: a subnormal half
    std::uint32_t const shift = 126 - (magnitude >> 23);
    std::uint32_t const mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    std::uint32_t const rest = mantissa & ((1u << shift) - 1u);
    std::uint32_t const middle = 1u << (shift - 1);
    half = mantissa >> shift;
    if (rest > middle || (rest == middle && (half & 1u) != 0)) ++half;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

/// Rounds to element type `T` (float, bf16 or fp16).
template <class T>
[[nodiscard]] RIVULET_HOST_DEVICE constexpr T from_float(float value);
template <>
[[nodiscard]] RIVULET_HOST_DEVICE constexpr float from_float<float>(float value) {
  return value;
}
template <>
[[nodiscard]] RIVULET_HOST_DEVICE constexpr bf16 from_float<bf16>(float value) {
  return to_bf16(value);
}
template <>
[[nodiscard]] RIVULET_HOST_DEVICE constexpr fp16 from_float<fp16>(float value) {
  return to_fp16(value);
}

/// Maps a C++ type to its element type. Specialize it for a framework's own 16-bit types.
template <class T>
struct element_traits;
template <>
struct element_traits<float> {
  static constexpr element_type value = element_type::float32;
};
template <>
struct element_traits<bf16> {
  static constexpr element_type value = element_type::bfloat16;
};
template <>
struct element_traits<fp16> {
  static constexpr element_type value = element_type::float16;
};

namespace detail {

/// Not NaN and not infinite, by bit pattern, so that -ffinite-math-only cannot remove it.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr bool is_finite(float value) {
  return (bits_of(value) & 0x7f800000u) != 0x7f800000u;
}

/// Not NaN and not infinite, by bit pattern.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr bool is_finite(double value) {
  constexpr std::uint64_t exponent = 0x7ff0000000000000u;
  return (__builtin_bit_cast(std::uint64_t, value) & exponent) != exponent;
}

/// a * b + c with one rounding, whatever the flags.
[[nodiscard]] RIVULET_HOST_DEVICE inline float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

/// Values below this magnitude become 0 in scales and momenta, so that no result hangs on whether
/// a processor flushes subnormals: 2^-100.
inline constexpr float smallest_kept = 0x1p-100f;

/// Calls `f` with a null pointer of the C++ type that `element` names.
template <class F>
void visit_element(element_type element, F const& f) {
  switch (element) {
    case element_type::float32: f(static_cast<float*>(nullptr)); break;
    case element_type::bfloat16: f(static_cast<bf16*>(nullptr)); break;
    case element_type::float16: f(static_cast<fp16*>(nullptr)); break;
  }
}

}  // namespace detail
}  // namespace rivulet
