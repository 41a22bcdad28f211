#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/int8.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::int8;
using rivulet_test::decoded;
using rivulet_test::encoded;
using rivulet_test::normal_values;
using rivulet_test::random_values;
using rivulet_test::signal_to_noise;

using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

/// S of a block by the definition.
double scale_of(float const* block, std::size_t size) {
  float most = 0;
  for (std::size_t i = 0; i < size; ++i) most = std::max(most, std::fabs(block[i]));
  float const exact = most / 127;
  if (exact < 0x1p-100f) return 0;
  int exponent = 0;
  double const mantissa = std::frexp(double{exact}, &exponent);
  return std::min(std::ldexp(std::ceil(mantissa * 256) / 256, exponent), 0x1.02p121);
}

/// The code that byte `at` of a block holds.
int code_at(bytes const& codes, std::size_t at) {
  return static_cast<std::int8_t>(std::to_integer<std::uint8_t>(codes[at]));
}

TEST_CASE_TEMPLATE("int8: each code is the nearest integer in double precision", C, int8<32>,
                   int8<64>, int8<128>, int8<4096>) {
  CHECK(rivulet::codec::block_bytes<C> == C::block_size + 2);
  int wrong = 0;
  for (float const scale : {1.0f, 1e-3f, 1e-28f, 1e37f}) {
    floats const values = normal_values(8192, 3, scale);
    floats const back = decoded(C{}, encoded(C{}, values), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      double const s = scale_of(values.data() + i / C::block_size * C::block_size, C::block_size);
      double const t = s == 0 ? 0 : double{values[i]} / s;
      // t is rounded, so that a value near a middle may go either way.
      bool const found = double{back[i]} == std::nearbyint(t) * s ||
                         double{back[i]} == std::nearbyint(t * (1 + 0x1p-22)) * s ||
                         double{back[i]} == std::nearbyint(t * (1 - 0x1p-22)) * s;
      wrong += !found;
      wrong += !(std::fabs(double{values[i]} - double{back[i]}) <= s / 2 * (1 + 0x1p-15));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("int8: ties go to even and their neighbours to the nearest") {
  floats values;
  std::vector<int> expected;
  for (int q = 0; q < 127; ++q) {
    float const tie = static_cast<float>(q) + 0.5f;
    for (float const sign : {1.0f, -1.0f}) {
      if (values.size() % 64 == 0) {  // S = 1
        values.push_back(127);
        expected.push_back(127);
      }
      values.insert(values.end(), {sign * std::nextafter(tie, 0.0f), sign * tie,
                                   sign * std::nextafter(tie, 200.0f)});
      int const minus = sign < 0 ? -1 : 1;
      expected.insert(expected.end(),
                      {minus * q, minus * (q % 2 == 0 ? q : q + 1), minus * (q + 1)});
    }
  }
  REQUIRE(values.size() > 64 * 11);
  values.resize(64 * 12);
  for (std::size_t b = 0; b < values.size(); b += 64) {
    bytes codes(64);
    int8<64>{}.quantize(values.data() + b, 1.0f, codes.data());
    for (std::size_t i = b; i < std::min(b + 64, expected.size()); ++i) {
      CAPTURE(values[i]);
      CHECK(code_at(codes, i - b) == expected[i]);
    }
  }
  floats const back = decoded(int8<64>{}, encoded(int8<64>{}, values), values.size());
  for (std::size_t i = 0; i < expected.size() - expected.size() % 64; ++i) {
    CHECK(back[i] == static_cast<float>(expected[i]));
  }
}

TEST_CASE("int8: the layout of a block by hand and any code") {
  floats values(64);
  values[0] = 254;  // S = 2
  values[1] = -2;
  values[40] = 6;
  values[63] = -254;
  bytes codes = encoded(int8<64>{}, values);
  bytes expected(66);
  expected[0] = std::byte{0x7f};
  expected[1] = std::byte{0xff};
  expected[40] = std::byte{0x03};
  expected[63] = std::byte{0x81};
  expected[65] = std::byte{0x40};
  CHECK(codes == expected);
  for (std::size_t i = 0; i < 256; ++i) {
    codes[i % 64] = static_cast<std::byte>(i);
    int const q = i < 128 ? static_cast<int>(i) : static_cast<int>(i) - 256;  // -128 too
    CHECK(decoded(int8<64>{}, codes, 64)[i % 64] == static_cast<float>(2 * q));
  }
}

TEST_CASE("int8: scales are rounded up and limited") {
  struct {
    float largest;
    unsigned scale;
  } const cases[] = {{127.0f, 0x3f80},        {0x1.fc0002p6f, 0x3f81}, {127 * 0x1p-100f, 0x0d80},
                     {126.9f * 0x1p-100f, 0}, {FLT_TRUE_MIN, 0},       {127 * 0x1p120f, 0x7b80},
                     {FLT_MAX, 0x7c01},       {INFINITY, 0x7fc0},      {NAN, 0x7fc0}};
  for (auto const& c : cases) {
    CAPTURE(c.largest);
    floats values(64 * 8);  // so that vector kernels meet them too
    for (std::size_t i = 5; i < values.size(); i += 64) values[i] = -c.largest;
    bytes const codes = encoded(int8<64>{}, values);
    floats const back = decoded(int8<64>{}, codes, values.size());
    for (std::size_t b = 0; b < 8; ++b) {
      std::byte const* const scale = codes.data() + 64 * 8 + 2 * b;
      CHECK((std::to_integer<unsigned>(scale[0]) | std::to_integer<unsigned>(scale[1]) << 8) ==
            c.scale);
      CHECK(std::isfinite(back[64 * b + 5]) == std::isfinite(c.largest));
      CHECK(std::isfinite(back[64 * b + 63]) == std::isfinite(c.largest));
    }
  }
}

TEST_CASE("int8: codes for other scales are clamped") {
  floats values = normal_values(64, 8);
  values[0] = 1e30f;
  values[1] = -1e30f;
  values[2] = 127.4f * 0x1p-8f;
  values[3] = -200 * 0x1p-8f;
  bytes codes(64);
  std::vector<std::uint16_t> noise(64);
  for (std::size_t i = 0; i < 64; ++i) noise[i] = static_cast<std::uint16_t>(i * 1021);
  for (float const scale : {0x1p-8f, 0x1p-99f, 0x1p121f}) {
    for (bool const at_random : {false, true}) {
      CAPTURE(scale);
      at_random ? int8<64>{}.quantize(values.data(), scale, codes.data(), noise.data())
                : int8<64>{}.quantize(values.data(), scale, codes.data());
      for (std::size_t i = 0; i < 64; ++i) {
        double const t = std::clamp(double{values[i]} / double{scale}, -127.0, 127.0);
        CHECK(std::fabs(t - code_at(codes, i)) <= (at_random ? 1 : 0.5));
      }
    }
  }
  for (float const scale : {0.0f, NAN}) {
    codes.assign(64, std::byte{0x5a});
    int8<64>{}.quantize(values.data(), scale, codes.data());
    CHECK(codes == bytes(64));
    codes.assign(64, std::byte{0x5a});
    int8<64>{}.quantize(values.data(), scale, codes.data(), noise.data());
    CHECK(codes == bytes(64));
  }
  std::byte stored[2];
  int8<64>::store_scale(0x1p122f, stored);
  CHECK(int8<64>::scale_at(stored) == 0x1.02p121f);
  int8<64>::store_scale(NAN, stored);
  CHECK(std::isnan(int8<64>::scale_at(stored)));
}

TEST_CASE("int8: rounding at random is right on average") {
  floats values(64);
  for (std::size_t i = 0; i < 64; ++i) values[i] = 3 * (static_cast<float>(i) * 4.01f - 126.3f);
  values[7] = 0.0f;
  values[9] = 3 * -17.0f;
  values[11] = 3 * 0x1p-20f;
  std::vector<long> sum(64);
  std::vector<std::uint16_t> noise(64);
  bytes codes(64);
  int far = 0;
  for (unsigned n = 0; n < 65536; ++n) {
    // Each value meets each number once.
    for (std::size_t i = 0; i < 64; ++i) noise[i] = static_cast<std::uint16_t>(n + 1009 * i);
    int8<64>{}.quantize(values.data(), 3.0f, codes.data(), noise.data());
    for (std::size_t i = 0; i < 64; ++i) {
      sum[i] += code_at(codes, i);
      far += !(std::fabs(double{values[i]} / 3 - code_at(codes, i)) < 1 + 0x1p-15);
    }
  }
  CHECK(far == 0);
  for (std::size_t i = 0; i < 64; ++i) {
    CAPTURE(values[i]);
    double const t = double{values[i]} / 3;
    double const error = static_cast<double>(sum[i]) / 65536 - t;
    CHECK(std::fabs(error) <= (std::fabs(t) < 64 ? 0x1p-16 : 0x1p-15));
  }
  CHECK(sum[7] == 0);
  CHECK(sum[9] == -17 * 65536);
}

TEST_CASE("int8: signal to noise is that of the format") {
  CHECK(std::fabs(signal_to_noise(int8<64>{}, normal_values(1 << 20, 4)) - 44.5) < 0.1);
  // The fourth moment is infinite: results on other samples differ by 0.3 dB.
  floats const heavy = random_values(std::student_t_distribution<float>(3), 1 << 20, 9);
  CHECK(std::fabs(signal_to_noise(int8<64>{}, heavy) - 39.4) < 0.1);
}

#if defined(RIVULET_AVX2)

template <class C>
[[gnu::target("avx2,fma,f16c")]] void encode_by_kernel(float const* values, float scale,
                                                       std::uint16_t const* noise,
                                                       std::byte* codes) {
  __m256 const factor = _mm256_set1_ps(1 / scale);
  for (std::size_t i = 0; i < C::block_size; i += 32) {
    __m256i random[2];
    std::memcpy(random, noise + i, sizeof random);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i),
                        C::avx2::encode(values + i, factor, random));
  }
}

TEST_CASE("int8: the kernel that rounds at random gives the bits of the scalar code") {
  if (!rivulet::detail::use_vectors()) return;
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    floats values = normal_values(64, static_cast<std::uint64_t>(round), 40.0f);
    std::vector<std::uint16_t> noise(64);
    for (std::size_t i = 0; i < 64; ++i) {
      if (random() % 4 == 0) values[i] = std::round(values[i] * 4) / 4;
      noise[i] = static_cast<std::uint16_t>(random() % 8 == 0 ? 65535 : random());
    }
    values[random() % 64] = -0.0f;
    values[random() % 64] = random() % 2 == 0 ? 1e30f : -1e30f;
    values[random() % 64] = 127;
    values[random() % 64] = -127;
    float const scale = round % 2 == 0 ? 1.0f : 3.0f;
    bytes scalar(64);
    bytes vector(64);
    int8<64>{}.quantize(values.data(), scale, scalar.data(), noise.data());
    encode_by_kernel<int8<64>>(values.data(), scale, noise.data(), vector.data());
    REQUIRE(scalar == vector);
  }
}

#endif

}  // namespace
