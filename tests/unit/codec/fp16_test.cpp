#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <doctest/doctest.h>

#include <rivulet/codec/array.hpp>
#include <rivulet/codec/fp16.hpp>

namespace {

using codec_fp16 = rivulet::codec::fp16;

std::uint16_t code_of(float value) {
  std::byte bytes[2];
  rivulet::codec::encode(codec_fp16{}, std::span(&value, 1), bytes);
  std::uint16_t code = 0;
  std::memcpy(&code, bytes, 2);
  return code;
}

float value_of(std::uint16_t code) {
  std::byte bytes[2];
  std::memcpy(bytes, &code, 2);
  float value = -1;
  rivulet::codec::decode(codec_fp16{}, bytes, std::span(&value, 1));
  return value;
}

TEST_CASE("codec fp16: bytes and values by hand") {
  struct {
    float value;
    std::uint16_t code;
    float decoded;
  } const cases[] = {{1.0f, 0x3c00, 1.0f},
                     {-2.5f, 0xc100, -2.5f},
                     {0x1.002p0f, 0x3c00, 1.0f},        // a tie, to even
                     {0x1.006p0f, 0x3c02, 0x1.008p0f},  // a tie, to even
                     {0x1p-24f, 0x0001, 0x1p-24f},      // the smallest
                     {0x1p-25f, 0x0000, 0.0f},          // a tie, to 0
                     {0x1.8p-24f, 0x0002, 0x1p-23f},    // a tie, to even
                     {65504.0f, 0x7bff, 65504.0f},      // the largest
                     {65519.0f, 0x7bff, 65504.0f},
                     {65520.0f, 0x7bff, 65504.0f},  // saturates
                     {-FLT_MAX, 0xfbff, -65504.0f},
                     {INFINITY, 0x7c00, INFINITY},
                     {-INFINITY, 0xfc00, -INFINITY}};
  for (auto const& c : cases) {
    CAPTURE(c.value);
    CHECK(code_of(c.value) == c.code);
    CHECK(value_of(c.code) == c.decoded);
  }
  CHECK(std::isnan(value_of(code_of(NAN))));
  CHECK(rivulet::codec::encoded_bytes(codec_fp16{}, 5) == 10);
}

TEST_CASE("codec fp16: every code but those of NaN and -0 comes back") {
  int wrong = 0;
  for (unsigned code = 0; code < 0x10000; ++code) {
    float const value = value_of(static_cast<std::uint16_t>(code));
    bool const nan = (code & 0x7c00u) == 0x7c00u && (code & 0x3ffu) != 0;
    wrong += std::isnan(value) != nan;
    wrong += !nan && code != 0x8000 && code_of(value) != code;
  }
  CHECK(wrong == 0);
}

TEST_CASE("codec fp16: the error is at most 2^-11 of a value, or 2^-25") {
  int wrong = 0;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (std::uint32_t const lower : {0u, 0x123u, 0x8000u, 0xfffu, 0xffffu}) {
      float const x = rivulet::detail::float_of(upper << 16 | lower);
      if (!(std::fabs(x) <= 65504)) continue;
      double const error = std::fabs(double{value_of(code_of(x))} - double{x});
      wrong += !(error <= std::fmax(std::fabs(double{x}) * 0x1p-11, 0x1p-25));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("codec fp16: accumulate is one fma of the value with the weight") {
  float const values[] = {0.1f, -3.0f, 1000.3f};
  std::byte bytes[6];
  rivulet::codec::encode(codec_fp16{}, values, bytes);
  float sums[] = {1.0f, 0.3f, -7.0f};
  rivulet::codec::accumulate(codec_fp16{}, bytes, 0.3f, sums);
  CHECK(sums[0] == std::fma(value_of(code_of(0.1f)), 0.3f, 1.0f));
  CHECK(sums[1] == std::fma(-3.0f, 0.3f, 0.3f));
  CHECK(sums[2] == std::fma(value_of(code_of(1000.3f)), 0.3f, -7.0f));
}

}  // namespace
