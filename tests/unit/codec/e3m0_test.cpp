#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/stochastic.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::e3m0;
using rivulet_test::signal_to_noise;

/// S of a block of that largest magnitude: the next number of 8 binary digits.
double scale_of(double largest) {
  if (largest < 0x1p-100) return 0;
  int exponent = 0;
  double const mantissa = std::frexp(std::min(largest, 0x1p126), &exponent);
  return std::ldexp(std::ceil(mantissa * 256) / 256, exponent);
}

/// The nearest of 0 and +-S * 2^-6 .. 2^0 by search, ties away from zero.
double nearest_level(double x, double s) {
  double best = 0;
  for (int k = 1; k <= 7; ++k) {
    double const level = s * std::ldexp(1.0, k - 7);
    if (std::fabs(std::fabs(x) - level) <= std::fabs(std::fabs(x) - best)) best = level;
  }
  return std::copysign(best, x);
}

TEST_CASE_TEMPLATE("e3m0: 4 bits per value and 2 bytes per block", C, e3m0<32>, e3m0<64>, e3m0<128>,
                   e3m0<4096>) {
  CHECK(rivulet::codec::block_bytes<C> == C::block_size / 2 + 2);
}

TEST_CASE_TEMPLATE("e3m0: each value is the nearest level in double precision", C, e3m0<32>,
                   e3m0<64>, e3m0<128>, e3m0<256>) {
  std::vector<float> const values = rivulet_test::normal_values(400 * C::block_size, 3, 1e-3f);
  std::vector<float> const back = rivulet_test::round_trip(C{}, values);
  int wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::size_t const first = i / C::block_size * C::block_size;
    double const s =
        scale_of(rivulet_test::largest(std::span(values).subspan(first, C::block_size)));
    double const x = values[i];
    // |x| / S is rounded, so that a value within 2^-22 of a middle may go either way.
    bool const nearest = double{back[i]} == nearest_level(x, s) ||
                         double{back[i]} == nearest_level(x * (1 + 0x1p-22), s) ||
                         double{back[i]} == nearest_level(x * (1 - 0x1p-22), s);
    wrong += !nearest;
  }
  CHECK(wrong == 0);
}

TEST_CASE("e3m0: ties go away from zero and their neighbours to the nearest") {
  // S = 1 by the first value; the middles of the levels and the floats beside them.
  std::vector<float> values(64);
  std::vector<double> expected(64);
  values[0] = 1;
  expected[0] = 1;
  std::size_t i = 1;
  auto const add = [&](float x, double level) {
    for (float const sign : {1.0f, -1.0f}) {
      values[i] = sign * x;
      expected[i++] = double{sign} * level;
    }
  };
  for (int k = 0; k <= 6; ++k) {
    double const low = k == 0 ? 0 : std::ldexp(1.0, k - 7);
    double const high = std::ldexp(1.0, k - 6);
    auto const middle = static_cast<float>((low + high) / 2);
    add(std::nextafter(middle, 0.0f), low);
    add(middle, high);
    add(std::nextafter(middle, 1.0f), high);
    for (std::size_t j = i - 6; j < i; ++j) CHECK(nearest_level(values[j], 1) == expected[j]);
  }
  std::vector<float> const back = rivulet_test::round_trip(e3m0<64>{}, values);
  for (std::size_t j = 0; j < i; ++j) {
    CAPTURE(values[j]);
    CHECK(double{back[j]} == expected[j]);
  }
}

TEST_CASE("e3m0: the layout of a block by hand") {
  std::vector<float> values(64);
  values[0] = 3.0f;        // S = 3 = bf16 0x4040; k = 7
  values[16] = -1.5f;      // k = 6, the high half of byte 0
  values[1] = -0.046875f;  // S * 2^-6: k = 1
  values[32] = 0.75f;      // k = 5, in the second group of 32
  values[63] = 0.02f;      // below S * 2^-7: 0
  std::vector<std::byte> bytes = rivulet_test::encoded(e3m0<64>{}, values);
  REQUIRE(bytes.size() == 34);
  CHECK(bytes[0] == std::byte{0xe7});
  CHECK(bytes[1] == std::byte{0x09});
  CHECK(bytes[16] == std::byte{0x05});
  CHECK(bytes[32] == std::byte{0x40});
  CHECK(bytes[33] == std::byte{0x40});
  for (std::size_t const i : {0u, 1u, 16u, 32u, 33u}) bytes[i] = std::byte{0};
  CHECK(bytes == std::vector<std::byte>(34));
}

TEST_CASE("e3m0: the scale is the largest magnitude rounded up to bf16") {
  struct {
    float largest;
    std::uint16_t scale;
  } const cases[] = {{1.0f, 0x3f80},      {0x1.000002p0f, 0x3f81},
                     {0x1.02p0f, 0x3f81}, {0x1.fffffep0f, 0x4000},
                     {0x1p-100f, 0x0d80}, {0x1.fffffep-101f, 0},
                     {0x1p126f, 0x7e80},  {0x1p127f, 0x7e80},
                     {INFINITY, 0x7fc0},  {NAN, 0x7fc0}};
  for (auto const& c : cases) {
    CAPTURE(c.largest);
    std::vector<float> values(32);
    values[5] = -c.largest;
    std::vector<std::byte> const bytes = rivulet_test::encoded(e3m0<32>{}, values);
    CHECK((static_cast<unsigned>(bytes[16]) | static_cast<unsigned>(bytes[17]) << 8) == c.scale);
  }
}

TEST_CASE("e3m0: a block with one NaN decodes to NaN as a whole") {
  std::vector<float> values = rivulet_test::normal_values(64, 5);
  values[40] = NAN;
  for (float const value : rivulet_test::round_trip(e3m0<64>{}, values)) CHECK(std::isnan(value));
}

TEST_CASE("e3m0: accumulate is one fma of the level with scale times weight") {
  std::vector<float> const values = rivulet_test::normal_values(256, 6);
  std::vector<std::byte> const bytes = rivulet_test::encoded(e3m0<64>{}, values);
  std::vector<float> const back = rivulet_test::decoded(e3m0<64>{}, bytes, 256);
  std::vector<float> sums = rivulet_test::normal_values(256, 7);
  std::vector<float> const before = sums;
  rivulet::codec::accumulate(e3m0<64>{}, bytes, 0.3f, sums);
  for (std::size_t i = 0; i < 256; ++i) {
    std::size_t const first = i / 64 * 64;
    auto const s =
        static_cast<float>(scale_of(rivulet_test::largest(std::span(values).subspan(first, 64))));
    CHECK(sums[i] == std::fma(back[i] / s, s * 0.3f, before[i]));
  }
}

TEST_CASE("e3m0: signal to noise on normal values is that of the format") {
  std::vector<float> const values = rivulet_test::normal_values(1 << 20, 4);
  CHECK(std::fabs(signal_to_noise(e3m0<32>{}, values) - 14.9) < 0.1);
  CHECK(std::fabs(signal_to_noise(e3m0<64>{}, values) - 14.5) < 0.1);
  CHECK(std::fabs(signal_to_noise(e3m0<256>{}, values) - 14.2) < 0.1);
}

#if defined(RIVULET_AVX2)
TEST_CASE("e3m0: a processor that flushes subnormal numbers rounds at random to the same bits") {
  rivulet::codec::stochastic const codec{e3m0<64>{}, 3};
  for (int const exponent : {-110, -99, 0, 117, 118, 126}) {
    CAPTURE(exponent);
    std::vector<float> const values =
        rivulet_test::normal_values(512, 5, std::ldexp(1.0f, exponent - 2));
    rivulet_test::with_both_kernels([&] {
      std::vector<std::byte> const expected = rivulet_test::encoded(codec, values);
      unsigned const mode = _mm_getcsr();
      _mm_setcsr(mode | 0x8040u);
      std::vector<std::byte> const found = rivulet_test::encoded(codec, values);
      _mm_setcsr(mode);
      CHECK(found == expected);
    });
  }
}
#endif

}  // namespace
