#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/fp8.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::fp8;
using rivulet::detail::bits_of;
using rivulet::detail::float_of;
using rivulet_test::decoded;
using rivulet_test::encoded;
using rivulet_test::normal_values;
using rivulet_test::random_values;
using rivulet_test::signal_to_noise;
using rivulet_test::with_both_kernels;

/// The nearest E4M3, ties to even, saturating.
float element(float t) {
  int const exponent = t == 0 ? -6 : std::max(std::ilogb(t), -6);
  float const step = std::ldexp(1.0f, exponent - 3);
  return std::clamp(std::nearbyint(t / step) * step, -448.0f, 448.0f);
}

/// The scale for that largest magnitude: largest / 448 to the next number of 8 binary digits.
float scale_for(float largest) {
  float const exact = std::min(largest, 0x1.ffp127f) / 448;
  if (exact < 0x1p-100f) return 0;
  int exponent = 0;
  float const mantissa = std::frexp(exact, &exponent);
  return std::ldexp(std::ceil(mantissa * 256) / 256, exponent);
}

TEST_CASE("fp8: the bytes of two blocks by hand") {
  std::vector<float> values(256);
  values[0] = 448;         // S = 1 = bf16 0x3f80
  values[1] = -300;        // to -288 = -1.125 * 2^8
  values[2] = 1;           // exponent 7, mantissa 0
  values[3] = -0.001f;     // to -2^-9, the smallest
  values[4] = 0x1p-10f;    // a tie between 0 and 2^-9, to 0
  values[127] = 0x1.9p0f;  // a tie between 1.5 and 1.625, to 1.5
  values[128] = -449;      // S = 1.0078125 = bf16 0x3f81; 445.5, to 448
  values[129] = 1.007f;    // to 1
  std::vector<std::byte> bytes(260);
  bytes[0] = std::byte{0x7e};
  bytes[1] = std::byte{0xf9};
  bytes[2] = std::byte{0x38};
  bytes[3] = std::byte{0x81};
  bytes[127] = std::byte{0x3c};
  bytes[128] = std::byte{0xfe};
  bytes[129] = std::byte{0x38};
  bytes[256] = std::byte{0x80};
  bytes[257] = std::byte{0x3f};
  bytes[258] = std::byte{0x81};
  bytes[259] = std::byte{0x3f};
  with_both_kernels([&] { CHECK(encoded(fp8<>{}, values) == bytes); });
}

TEST_CASE("fp8: the scale is the largest magnitude over 448, rounded up to bf16") {
  struct {
    float largest;
    std::uint16_t scale;
  } const cases[] = {{448, 0x3f80},
                     {0x1.c00002p8f, 0x3f81},  // next after 448
                     {451.5f, 0x3f81},
                     {452, 0x3f82},
                     {0x1.cp-92f, 0x0d80},  // 448 * 2^-100
                     {0x1.bffffep-92f, 0},
                     {1e-38f, 0},
                     {0, 0},
                     {0x1.ffp127f, 0x7b12},
                     {FLT_MAX, 0x7b12},
                     {INFINITY, 0x7fc0},
                     {NAN, 0x7fc0}};
  for (auto const& c : cases) {
    CAPTURE(c.largest);
    std::vector<float> values(8 * 64, c.largest / 3);
    for (std::size_t b = 0; b < 8; ++b) values[64 * b + 9 * b] = -c.largest;
    with_both_kernels([&] {
      std::vector<std::byte> const bytes = encoded(fp8<64>{}, values);
      for (std::size_t b = 0; b < 8; ++b) {
        std::uint16_t scale = 0;
        std::memcpy(&scale, bytes.data() + 512 + 2 * b, 2);
        CHECK(scale == c.scale);
      }
      for (float const value : decoded(fp8<64>{}, bytes, values.size())) {
        CHECK(std::isnan(value) == (c.scale == 0x7fc0));
        CHECK(!std::isinf(value));
        CHECK((c.scale != 0 || bits_of(value) == 0));
      }
    });
  }
}

TEST_CASE_TEMPLATE("fp8: each value is the nearest element times the scale", C, fp8<32>, fp8<128>,
                   fp8<512>) {
  std::mt19937_64 random(1);
  std::student_t_distribution<float> student(3);
  std::vector<float> values(4096 + 1000);
  for (float& x : values) x = student(random) * 1e-3f;
  with_both_kernels([&] {
    std::vector<float> const back = decoded(C{}, encoded(C{}, values), values.size());
    int wrong = 0;
    for (std::size_t first = 0; first < values.size(); first += C::block_size) {
      std::size_t const last = std::min(first + C::block_size, values.size());
      float largest = 0;
      for (std::size_t i = first; i < last; ++i) largest = std::fmax(largest, std::fabs(values[i]));
      float const scale = scale_for(largest);
      for (std::size_t i = first; i < last; ++i) {
        wrong += back[i] != scale * element(values[i] * (1 / scale));
        double const x = std::fabs(double{values[i]});
        wrong += !(std::fabs(double{back[i]} - double{values[i]}) <=
                   std::fmax(x / 16, double{scale} / 1000));
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("fp8: the kernels have the bits of the scalar code") {
#if defined(RIVULET_AVX2)
  std::mt19937_64 random(3);
  int wrong = 0;
  for (std::size_t round = 0; round < 300; ++round) {
    std::size_t const count = 1024 + round * 7;
    std::vector<float> values(count);
    for (float& x : values) {
      auto const bits = static_cast<std::uint32_t>(random());
      x = float_of(round % 3 == 0   ? bits
                   : round % 3 == 1 ? (bits & 0x83ff8000u) + 0x3e000000u
                                    : (bits & 0x83ffffffu) + 0x0d000000u);
    }
    std::vector<std::byte> const bytes = encoded(fp8<>{}, values);
    std::vector<std::byte> noise(bytes.size());
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    std::vector<float> const back = decoded(fp8<>{}, noise, count);
    bool const before = rivulet::detail::vector_kernels();
    rivulet::detail::vector_kernels() = false;
    wrong += encoded(fp8<>{}, values) != bytes;
    std::vector<float> const scalar_back = decoded(fp8<>{}, noise, count);
    rivulet::detail::vector_kernels() = before;
    for (std::size_t i = 0; i < count; ++i) {
      bool const nan = std::isnan(back[i]) && std::isnan(scalar_back[i]);
      wrong += !nan && bits_of(back[i]) != bits_of(scalar_back[i]);
    }
  }
  CHECK(wrong == 0);
#endif
}

TEST_CASE("fp8: any scale is stored as the nearest bf16 whose largest value is finite") {
  struct {
    float scale;
    float stored;
  } const cases[] = {{1, 1},
                     {1.003f, 1},
                     {1.005f, 1.0078125f},
                     {0x1p-100f, 0x1p-100f},
                     {0x1.fffffep-101f, 0},
                     {0x1.26p119f, 0x1.24p119f},
                     {FLT_MAX, 0x1.24p119f},
                     {INFINITY, 0x1.24p119f}};
  std::byte stored[2];
  for (auto const& c : cases) {
    CAPTURE(c.scale);
    fp8<>::store_scale(c.scale, stored);
    CHECK(fp8<>::scale_at(stored) == c.stored);
  }
  fp8<>::store_scale(NAN, stored);
  CHECK(std::isnan(fp8<>::scale_at(stored)));
}

TEST_CASE("fp8: codes can be made for any stored scale") {
  float values[32] = {1, -1, 100, -1000, 1e30f, -0.01f};
  std::byte codes[32];
  for (float const scale : {0.25f, 1.0f, 32.0f}) {
    fp8<32>{}.quantize(values, scale, codes);
    std::byte stored[2];
    fp8<32>::store_scale(scale, stored);
    float back[32] = {};
    fp8<32>{}.accumulate_block(codes, stored, 1.0f, back);
    for (std::size_t i = 0; i < 6; ++i) CHECK(back[i] == scale * element(values[i] / scale));
  }
  std::uint16_t const noise[32] = {1, 65535, 3, 4, 5, 65535};
  for (float const scale : {0.0f, NAN}) {
    fp8<32>{}.quantize(values, scale, codes);
    for (std::byte const code : codes) CHECK(code == std::byte{0});
    fp8<32>{}.quantize(values, scale, codes, noise);
    for (std::byte const code : codes) CHECK(code == std::byte{0});
  }
}

TEST_CASE("fp8: rounding at random is right on average, to either neighbour") {
  float const cases[] = {0x1p-9f,  0x1.8p-10f, 0x1.1p-12f, 0.0117f, 0x1.fp-7f,     0x1.ffp-7f,
                         0x1p-6f,  0.9f,       1.0f,       1.01f,   1.12f,         15.9f,
                         100.123f, 447.9f,     448.0f,     1e-8f,   0x1.fffffep-1f};
  for (float const t : cases) {
    CAPTURE(t);
    float const step = std::ldexp(1.0f, std::max(std::ilogb(t), -6) - 3);
    double const low = std::floor(double{t} / double{step}) * double{step};
    std::vector<float> values(32, t);
    values[1] = -t;
    double sum = 0;
    int wrong = 0;
    for (unsigned n = 0; n < 65536; ++n) {
      std::vector<std::uint16_t> const noise(32, static_cast<std::uint16_t>(n));
      std::byte codes[32];
      fp8<32>{}.quantize(values.data(), 1.0f, codes, noise.data());
      float back[32] = {};
      rivulet::codec::detail::e4m3::accumulate(codes, 2, 1.0f, back);
      wrong += double{back[0]} != low && double{back[0]} != low + double{step};
      wrong += back[1] != -back[0];
      sum += double{back[0]};
    }
    CHECK(wrong == 0);
    CHECK(std::fabs(sum / 65536 - double{t}) <= double{step} * 0x1p-16);
  }
}

#if defined(RIVULET_AVX2)

RIVULET_AVX2 void encode_32(float const* values, float factor, std::uint16_t const* noise,
                            std::byte* codes) {
  __m256i random[2];
  std::memcpy(random, noise, sizeof random);
  __m256i const packed = fp8<32>::avx2::encode(values, _mm256_set1_ps(factor), random);
  std::memcpy(codes, &packed, 32);
}

TEST_CASE("fp8: the random kernel has the bits of the scalar code") {
  if (!rivulet::detail::use_vectors()) return;
  std::mt19937_64 random(6);
  int wrong = 0;
  for (int round = 0; round < 20000; ++round) {
    float values[32];
    std::uint16_t noise[32];
    for (std::size_t i = 0; i < 32; ++i) {
      auto const bits = static_cast<std::uint32_t>(random());
      noise[i] = static_cast<std::uint16_t>(random());
      values[i] = i == 7           ? -0.0f
                  : round % 2 == 0 ? float_of((bits & 0x87ffffffu) + 0x3a000000u)
                                   : float_of(bits & 0xbfff0000u);
    }
    float const scales[] = {1, 0.0234375f, 3, 0x1p20f, 0x1p-100f, 0, NAN};
    float const scale = scales[round % 7];
    std::byte expected[32];
    std::byte codes[32];
    fp8<32>{}.quantize(values, scale, expected, noise);
    encode_32(values, rivulet::codec::detail::factor_for(scale, 1.0f), noise, codes);
    wrong += std::memcmp(codes, expected, 32) != 0;
  }
  CHECK(wrong == 0);
}

#endif

TEST_CASE("fp8: signal to noise is that of the format") {
  std::vector<float> const normal = normal_values(1 << 20, 2);
  std::vector<float> const student =
      random_values(std::student_t_distribution<float>{3}, 1 << 20, 2);
  CHECK(std::fabs(signal_to_noise(fp8<>{}, normal) - 31.8) < 0.1);
  CHECK(std::fabs(signal_to_noise(fp8<>{}, student) - 33.0) < 0.3);
}

}  // namespace
