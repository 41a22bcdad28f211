#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/mx.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::mxfp4;
using rivulet::codec::mxfp8;
using rivulet::detail::bits_of;
using rivulet::detail::float_of;
using rivulet_test::decoded;
using rivulet_test::encoded;
using rivulet_test::normal_values;
using rivulet_test::random_values;
using rivulet_test::signal_to_noise;
using rivulet_test::with_both_kernels;

/// The nearest element, ties to even, saturating, in double precision.
double element(mxfp4, double t) {
  constexpr double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  double const x = std::fmin(std::fabs(t), 6);
  double best = 0;
  for (int code = 1; code < 8; ++code) {
    double const closer = std::fabs(x - best) - std::fabs(x - values[code]);
    if (closer > 0 || (closer == 0 && code % 2 == 0)) best = values[code];
  }
  return std::copysign(best, t);
}
double element(mxfp8, double t) {
  int const exponent = t == 0 ? -6 : std::max(std::ilogb(t), -6);
  double const step = std::ldexp(1.0, exponent - 3);
  return std::clamp(std::nearbyint(t / step) * step, -448.0, 448.0);
}

constexpr int emax(mxfp4) { return 2; }
constexpr int emax(mxfp8) { return 8; }

TEST_CASE("mxfp4: the bytes of two blocks by hand") {
  std::vector<float> values(64);
  values[0] = 7;           // S = 1; saturates at 6
  values[1] = -5;          // a tie between 4 and 6, to 4
  values[3] = 0.75f;       // between 0.5 and 1, to 1
  values[4] = -0.25f;      // between -0 and -0.5, to -0
  values[5] = 2.5f;        // between 2 and 3, to 2
  values[30] = 3.5f;       // between 3 and 4, to 4
  values[31] = -1.25f;     // between -1 and -1.5, to -1
  values[32 + 7] = 0.1f;   // S = 2^-6; 6.4, saturates
  values[32 + 8] = 0.02f;  // 1.28, to 1.5
  std::vector<std::byte> bytes(34);
  bytes[0] = std::byte{0xe7};
  bytes[1] = std::byte{0x20};
  bytes[2] = std::byte{0x48};
  bytes[15] = std::byte{0xa6};
  bytes[16 + 3] = std::byte{0x70};
  bytes[16 + 4] = std::byte{0x03};
  bytes[32] = std::byte{127};
  bytes[33] = std::byte{121};
  with_both_kernels([&] { CHECK(encoded(mxfp4{}, values) == bytes); });
}

TEST_CASE("mxfp8: the bytes of a block by hand") {
  std::vector<float> values(32);
  values[0] = 500;        // S = 1; saturates at 448
  values[1] = -300;       // to -288 = -1.125 * 2^8
  values[2] = 1;          // exponent 7, mantissa 0
  values[3] = -0.001f;    // to -2^-9, the smallest
  values[4] = 0x1p-10f;   // a tie between 0 and 2^-9, to 0
  values[31] = 0x1.9p0f;  // a tie between 1.5 and 1.625, to 1.5
  std::vector<std::byte> bytes(33);
  bytes[0] = std::byte{0x7e};
  bytes[1] = std::byte{0xf9};
  bytes[2] = std::byte{0x38};
  bytes[3] = std::byte{0x81};
  bytes[31] = std::byte{0x3c};
  bytes[32] = std::byte{127};
  with_both_kernels([&] { CHECK(encoded(mxfp8{}, values) == bytes); });
}

TEST_CASE_TEMPLATE(
    "mx: the scale is the power of two of the largest magnitude over that of the "
    "largest element",
    C, mxfp4, mxfp8) {
  constexpr int e = emax(C{});
  struct {
    float largest;
    int scale;
  } const cases[] = {{1, 127 - e},
                     {0x1.fffffep0f, 127 - e},
                     {2, 128 - e},
                     {std::ldexp(1.0f, e), 127},
                     {std::ldexp(1.0f, e - 100), 27},
                     {std::ldexp(0x1.fffffep-1f, e - 100), 0},
                     {0x1p-149f, 0},
                     {0, 0},
                     {FLT_MAX, 254 - e},
                     {INFINITY, 255},
                     {NAN, 255}};
  for (auto const& c : cases) {
    CAPTURE(c.largest);
    std::vector<float> values(8 * 32, -c.largest / 4);
    for (std::size_t b = 0; b < 8; ++b) values[32 * b + 3 * b] = -c.largest;
    with_both_kernels([&] {
      std::vector<std::byte> const bytes = encoded(C{}, values);
      for (std::size_t b = 0; b < 8; ++b) {
        CHECK(static_cast<int>(bytes[8 * C::code_bytes + b]) == c.scale);
      }
      if (c.scale == 0 || c.scale == 255) {
        bool const none = std::all_of(bytes.begin(), bytes.end() - 8,
                                      [](std::byte code) { return code == std::byte{0}; });
        CHECK(none);
      }
      for (float const value : decoded(C{}, bytes, values.size())) {
        CHECK(std::isnan(value) == (c.scale == 255));
        CHECK(!std::isinf(value));
      }
    });
  }
}

TEST_CASE_TEMPLATE("mx: each value is the nearest element times the scale", C, mxfp4, mxfp8) {
  std::mt19937_64 random(1);
  std::student_t_distribution<float> student(3);
  std::vector<float> values(4096 + 1000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    float const x = student(random);
    values[i] = i / 512 % 2 == 0 ? x : std::nearbyint(16 * x) / 64;  // ties, too
  }
  with_both_kernels([&] {
    std::vector<float> const back = decoded(C{}, encoded(C{}, values), values.size());
    int wrong = 0;
    for (std::size_t first = 0; first < values.size(); first += 32) {
      std::size_t const last = std::min(first + 32, values.size());
      double largest = 0;
      for (std::size_t i = first; i < last; ++i) {
        largest = std::fmax(largest, std::fabs(double{values[i]}));
      }
      double const scale = std::ldexp(1.0, std::ilogb(largest) - emax(C{}));
      for (std::size_t i = first; i < last; ++i) {
        wrong += double{back[i]} != scale * element(C{}, double{values[i]} / scale);
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE_TEMPLATE("mx: every scale byte decodes to its power of two", C, mxfp4, mxfp8) {
  for (unsigned b = 0; b < 256; ++b) {
    CAPTURE(b);
    std::vector<std::byte> bytes(C::code_bytes + 1);
    bytes[0] = std::byte{1};
    bytes.back() = static_cast<std::byte>(b);
    double const smallest = C::code_bytes == 16 ? 0.5 : 0x1p-9;
    with_both_kernels([&] {
      std::vector<float> const values = decoded(C{}, bytes, 32);
      if (b == 255) {
        CHECK(std::isnan(values[0]));
        CHECK(std::isnan(values[31]));
      } else {
        double const scale = b < 27 ? 0 : std::ldexp(1.0, static_cast<int>(b) - 127);
        CHECK(double{values[0]} == smallest * scale);
        CHECK(values[31] == 0.0f);
      }
    });
  }
}

TEST_CASE("mxfp8: a NaN code spoils just its value") {
  std::vector<std::byte> bytes(33);
  bytes[5] = std::byte{0x7f};
  bytes[20] = std::byte{0xff};
  bytes[32] = std::byte{127};
  with_both_kernels([&] {
    std::vector<float> const values = decoded(mxfp8{}, bytes, 32);
    for (std::size_t i = 0; i < 32; ++i) CHECK(std::isnan(values[i]) == (i == 5 || i == 20));
  });
}

TEST_CASE_TEMPLATE("mx: the kernels have the bits of the scalar code", C, mxfp4, mxfp8) {
#if defined(RIVULET_AVX2)
  std::mt19937_64 random(3);
  int wrong = 0;
  for (std::size_t round = 0; round < 300; ++round) {
    std::size_t const count = 256 + round * 7;
    std::vector<float> values(count);
    for (float& x : values) {
      auto const bits = static_cast<std::uint32_t>(random());
      x = float_of(round % 3 == 0   ? bits
                   : round % 3 == 1 ? (bits & 0x83ff8000u) + 0x3e000000u
                                    : (bits & 0x83ffffffu) + 0x0b000000u);
    }
    std::vector<std::byte> const bytes = encoded(C{}, values);
    std::vector<std::byte> noise(bytes.size());
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    std::vector<float> const back = decoded(C{}, noise, count);
    bool const before = rivulet::detail::vector_kernels();
    rivulet::detail::vector_kernels() = false;
    wrong += encoded(C{}, values) != bytes;
    std::vector<float> const scalar_back = decoded(C{}, noise, count);
    rivulet::detail::vector_kernels() = before;
    for (std::size_t i = 0; i < count; ++i) {
      bool const nan = std::isnan(back[i]) && std::isnan(scalar_back[i]);
      wrong += !nan && bits_of(back[i]) != bits_of(scalar_back[i]);
    }
  }
  CHECK(wrong == 0);
#endif
}

TEST_CASE_TEMPLATE("mx: any scale is stored as the nearest power of two", C, mxfp4, mxfp8) {
  struct {
    float scale;
    int byte;
  } const cases[] = {{1, 127},
                     {1.49f, 127},
                     {1.5f, 128},
                     {0.76f, 127},
                     {0.74f, 126},
                     {0x1p-100f, 27},
                     {0x1p-101f, 0},
                     {0x1.fffffep-101f, 0},
                     {0, 0},
                     {-1, 0},
                     {FLT_MAX, 254 - emax(C{})},
                     {INFINITY, 254 - emax(C{})},
                     {NAN, 255},
                     {-NAN, 255}};
  for (auto const& c : cases) {
    CAPTURE(c.scale);
    std::byte stored{};
    C::store_scale(c.scale, &stored);
    CHECK(static_cast<int>(stored) == c.byte);
  }
}

TEST_CASE_TEMPLATE("mx: codes can be made for any stored scale", C, mxfp4, mxfp8) {
  float values[32] = {1, -1, 100, -1000, 1e30f};
  std::byte codes[C::code_bytes];
  for (float const scale : {0.25f, 1.0f, 32.0f}) {
    C{}.quantize(values, scale, codes);
    std::byte stored{};
    C::store_scale(scale, &stored);
    float back[32] = {};
    C{}.accumulate_block(codes, &stored, 1.0f, back);
    for (std::size_t i = 0; i < 5; ++i) {
      double const s = double{scale};
      CHECK(double{back[i]} == s * element(C{}, double{values[i]} / s));
    }
  }
  for (float const scale : {0.0f, NAN}) {
    C{}.quantize(values, scale, codes);
    for (std::byte const code : codes) CHECK(code == std::byte{0});
  }
  CHECK(C::natural_scale(values) == std::ldexp(1.0f, std::ilogb(1e30f) - emax(C{})));
}

TEST_CASE_TEMPLATE("mx: accumulate is one fma of the element with scale times weight", C, mxfp4,
                   mxfp8) {
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(96);
  std::vector<float> before(96);
  for (float& x : values) x = normal(random);
  for (float& x : before) x = normal(random);
  std::vector<std::byte> const bytes = encoded(C{}, values);
  std::vector<float> const back = decoded(C{}, bytes, 96);
  with_both_kernels([&] {
    std::vector<float> sums = before;
    rivulet::codec::accumulate(C{}, bytes, 0.3f, sums);
    for (std::size_t i = 0; i < 96; ++i) {
      float const scale = C::scale_at(bytes.data() + 3 * C::code_bytes + i / 32);
      CHECK(sums[i] == std::fma(back[i] / scale, scale * 0.3f, before[i]));
    }
  });
}

TEST_CASE("mx: signal to noise is that of the formats") {
  std::vector<float> const normal = normal_values(1 << 20, 2);
  std::vector<float> const student =
      random_values(std::student_t_distribution<float>{3}, 1 << 20, 2);
  CHECK(std::fabs(signal_to_noise(mxfp4{}, normal) - 18.8) < 0.1);
  CHECK(std::fabs(signal_to_noise(mxfp4{}, student) - 17.0) < 0.2);
  CHECK(std::fabs(signal_to_noise(mxfp8{}, normal) - 30.6) < 0.1);
  CHECK(std::fabs(signal_to_noise(mxfp8{}, student) - 29.5) < 0.2);
}

}  // namespace
