#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <rivulet/element.hpp>

using rivulet::bf16;
using rivulet::fp16;

namespace {

/// Every float in optimized builds, a part of them in debug and sanitizer builds.
#if defined(NDEBUG)
constexpr std::uint32_t stride = 1;
#else
constexpr std::uint32_t stride = 4099;
#endif

constexpr std::uint32_t sign = 0x80000000u;
constexpr std::uint32_t infinity = 0x7f800000u;

/// Adds up job(0) .. job(jobs - 1), run on all processors.
template <class Job>
std::uint64_t sum_of(std::uint32_t jobs, Job const& job) {
  std::atomic<std::uint32_t> next{0};
  std::atomic<std::uint64_t> sum{0};
  std::vector<std::thread> team(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
  for (std::thread& thread : team) {
    thread = std::thread([&] {
      for (std::uint32_t i = next++; i < jobs; i = next++) sum += job(i);
    });
  }
  for (std::thread& thread : team) thread.join();
  return sum;
}

/// How many floats with bits first .. last - 1, of either sign, do not round to `expected`.
template <class T>
std::uint64_t errors(std::uint32_t first, std::uint32_t last, std::uint32_t expected) {
  std::uint64_t wrong = 0;
  for (std::uint32_t bits = first; bits < last; bits += stride) {
    wrong += rivulet::from_float<T>(std::bit_cast<float>(bits)).bits != expected;
    wrong += rivulet::from_float<T>(std::bit_cast<float>(bits | sign)).bits != (expected | 0x8000u);
  }
  return wrong;
}

std::uint32_t bits_of(double exact) { return std::bit_cast<std::uint32_t>(float(exact)); }

/// How many floats that are not NaN are not rounded to the nearest T, ties to even: between each
/// two neighbours of T those below the middle must go down, those above it up. `t_infinity` are the
/// bits of T's infinity, which rounding takes for the next power of two.
template <class T>
std::uint64_t rounding_errors(std::uint32_t t_infinity) {
  auto const value = [](std::uint32_t bits) {
    return double{rivulet::to_float(T{static_cast<std::uint16_t>(bits)})};
  };
  double const next_power = 2 * value(t_infinity - 1) - value(t_infinity - 2);
  return sum_of(t_infinity, [&](std::uint32_t low) {
    std::uint32_t const high = low + 1;
    double const upper = high == t_infinity ? next_power : value(high);
    std::uint32_t const middle = bits_of((value(low) + upper) / 2);
    std::uint32_t const end = high == t_infinity ? infinity + 1 : bits_of(upper);
    return errors<T>(bits_of(value(low)), middle, low) +
           errors<T>(middle, middle + 1, low % 2 == 0 ? low : high) +
           errors<T>(middle + 1, end, high);
  });
}

/// How many NaNs are not made quiet, with their sign and the upper bits of their payload kept.
/// `quiet` is the smallest positive quiet NaN of T, `shift` the bits that T's mantissa lacks.
template <class T>
std::uint64_t nan_errors(std::uint32_t quiet, std::uint32_t shift) {
  return sum_of(0x7fffffu, [&](std::uint32_t i) -> std::uint64_t {
    std::uint32_t const payload = i + 1;
    if (payload % stride != 0) return 0;
    return errors<T>(infinity + payload, infinity + payload + 1, quiet | payload >> shift);
  });
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) std::uint64_t differences_to_processor(std::uint32_t high) {
  std::uint64_t wrong = 0;
  for (std::uint32_t low = 0; low < 0x10000u; low += stride) {
    auto const value = std::bit_cast<float>(high << 16 | low);
    __m128i const half = _mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT);
    wrong += rivulet::to_fp16(value).bits != (_mm_cvtsi128_si32(half) & 0xffff);
  }
  return wrong;
}
#endif

TEST_CASE("element: every float goes to the nearest bf16 with ties to even") {
  CHECK(rounding_errors<bf16>(0x7f80) == 0);
  CHECK(nan_errors<bf16>(0x7fc0, 16) == 0);
}

TEST_CASE("element: every float goes to the nearest fp16 with ties to even") {
  CHECK(rounding_errors<fp16>(0x7c00) == 0);
  CHECK(nan_errors<fp16>(0x7e00, 13) == 0);
}

#if defined(__x86_64__)
TEST_CASE("element: float to fp16 gives the bits of the processor's own conversion") {
  if (!__builtin_cpu_supports("avx2")) {
    MESSAGE("skipped: this processor has no F16C");
    return;
  }
  CHECK(sum_of(0x10000u, differences_to_processor) == 0);
}
#endif

TEST_CASE("element: the narrow types convert to float exactly and back unchanged") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    bf16 const b{static_cast<std::uint16_t>(bits)};
    fp16 const h{static_cast<std::uint16_t>(bits)};
    auto const b_float = std::bit_cast<std::uint32_t>(rivulet::to_float(b));
    auto const h_float = std::bit_cast<std::uint32_t>(rivulet::to_float(h));

    wrong += b_float != bits << 16;
    std::uint32_t const exponent = (bits >> 10) & 0x1fu;
    std::uint32_t const mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) {
      wrong += h_float != ((bits & 0x8000u) << 16 | 0x7f800000u | mantissa << 13);
    } else {
      int const units = static_cast<int>(exponent == 0 ? mantissa : mantissa + 1024);
      float const magnitude = std::ldexp(static_cast<float>(units),
                                         exponent == 0 ? -24 : static_cast<int>(exponent) - 25);
      float const value = std::copysign(magnitude, (bits & 0x8000u) != 0 ? -1.0f : 1.0f);
      wrong += h_float != std::bit_cast<std::uint32_t>(value);
    }
    // NaN comes back quiet.
    bool const b_nan = (bits & 0x7fffu) > 0x7f80u;
    bool const h_nan = (bits & 0x7fffu) > 0x7c00u;
    wrong += rivulet::to_bf16(rivulet::to_float(b)).bits != (b_nan ? bits | 0x40u : bits);
    wrong += rivulet::to_fp16(rivulet::to_float(h)).bits != (h_nan ? bits | 0x200u : bits);
  }
  CHECK(wrong == 0);
}

TEST_CASE("element: from_float picks the conversion by type") {
  CHECK(rivulet::from_float<float>(1.1f) == 1.1f);
  CHECK(rivulet::from_float<bf16>(1.1f).bits == 0x3f8d);
  CHECK(rivulet::from_float<fp16>(1.1f).bits == 0x3c66);
}

TEST_CASE("element: sizes and types") {
  using rivulet::element_type;
  CHECK(rivulet::size_of(element_type::float32) == sizeof(float));
  CHECK(rivulet::size_of(element_type::bfloat16) == sizeof(bf16));
  CHECK(rivulet::size_of(element_type::float16) == sizeof(fp16));
  CHECK(rivulet::element_traits<float>::value == element_type::float32);
  CHECK(rivulet::element_traits<bf16>::value == element_type::bfloat16);
  CHECK(rivulet::element_traits<fp16>::value == element_type::float16);
}

template <class T>
bool visits(rivulet::element_type element) {
  int calls = 0;
  bool same = false;
  rivulet::detail::visit_element(element, [&](auto* type) {
    ++calls;
    same = std::is_same_v<decltype(type), T*>;
  });
  return calls == 1 && same;
}

TEST_CASE("element: visit_element calls with the C++ type") {
  CHECK(visits<float>(rivulet::element_type::float32));
  CHECK(visits<bf16>(rivulet::element_type::bfloat16));
  CHECK(visits<fp16>(rivulet::element_type::float16));
}

TEST_CASE_TEMPLATE("element: is_finite knows NaN and infinity by their bits", T, float, double) {
  using limits = std::numeric_limits<T>;
  for (T const value : {T{0}, limits::denorm_min(), limits::min(), T{1}, limits::max()}) {
    CHECK(rivulet::detail::is_finite(value));
    CHECK(rivulet::detail::is_finite(-value));
  }
  for (T const value : {limits::infinity(), limits::quiet_NaN(), limits::signaling_NaN()}) {
    CHECK_FALSE(rivulet::detail::is_finite(value));
    CHECK_FALSE(rivulet::detail::is_finite(-value));
  }
}

TEST_CASE("element: fma rounds once") {
  float const x = 1.0f + 0x1p-12f;  // x * x = 1 + 2^-11 + 2^-24
  CHECK(rivulet::detail::fma(x, x, -(1.0f + 0x1p-11f)) == 0x1p-24f);
}

}  // namespace
