#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/int2.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::int2;
using rivulet_test::decoded;
using rivulet_test::encoded;
using rivulet_test::normal_values;
using rivulet_test::signal_to_noise;

using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

/// 5 / 4 of the mean magnitude.
template <class C>
double exact_scale(float const* block) {
  double sum = 0;
  for (std::size_t i = 0; i < C::block_size; ++i) sum += std::fabs(double{block[i]});
  return 1.25 * sum / double{C::block_size};
}

TEST_CASE_TEMPLATE("int2: scales and values are those of the definition in double precision", C,
                   int2<32>, int2<64>, int2<256>, int2<4096>) {
  CHECK(rivulet::codec::block_bytes<C> == C::block_size / 4 + 2);
  int wrong = 0;
  int nearest = 0;
  for (float const scale : {1.0f, 1e-3f, 1e-28f, 1e36f}) {
    floats const values = normal_values(32768, 3, scale);
    floats const back = decoded(C{}, encoded(C{}, values), values.size());
    for (std::size_t b = 0; b < values.size(); b += C::block_size) {
      double const exact = exact_scale<C>(values.data() + b);
      double const s = std::fabs(double{back[b]}) * (std::fabs(back[b]) > exact ? 2 / 3.0 : 2.0);
      auto const of_bf16 = static_cast<float>(s);
      wrong += (rivulet::detail::bits_of(of_bf16) & 0xffffu) != 0;
      wrong += !(std::fabs(s - exact) <= exact * (0x1p-8 + 0x1p-20));
      float const rounded = to_float(rivulet::to_bf16(static_cast<float>(exact)));
      nearest += of_bf16 == rounded;
      for (std::size_t i = b; i < b + C::block_size; ++i) {
        double const level = std::fabs(double{values[i]}) < s ? 0.5 * s : 1.5 * s;
        wrong += double{back[i]} != std::copysign(level, double{values[i]});
      }
    }
  }
  CHECK(wrong == 0);
  // The sum is rounded, so that a scale in 10^4 may be the neighbour of the nearest.
  auto const blocks = static_cast<int>(4 * 32768 / C::block_size);
  CHECK(nearest >= blocks - 1 - blocks / 1000);
}

TEST_CASE("int2: the layout of a block by hand") {
  // Mean magnitude 0.8, S = 1.
  floats values(64, 0.25f);
  values[0] = 1.0f;                          // code 1
  values[8] = -1.0f;                         // 3
  values[16] = -std::nextafter(1.0f, 0.0f);  // 2
  values[24] = 2.0f;                         // 1
  values[33] = -0.0f;                        // 2
  values[41] = 0.0f;                         // 0
  values[63] = -3.0f;                        // 3
  float rest = 0.8f * 64;
  for (float const value : values) rest -= std::fabs(value);
  values[62] = 0.25f + rest;  // 1
  REQUIRE(values[62] > 1);
  bytes expected(18);
  expected[0] = std::byte{1 | 3 << 2 | 2 << 4 | 1 << 6};
  expected[8 + 1] = std::byte{2};
  expected[8 + 6] = std::byte{1 << 6};
  expected[8 + 7] = std::byte{3 << 6};
  expected[16] = std::byte{0x80};
  expected[17] = std::byte{0x3f};
  CHECK(encoded(int2<64>{}, values) == expected);
}

TEST_CASE("int2: the levels of the codes") {
  bytes block(18, std::byte{0 | 1 << 2 | 2 << 4 | 3 << 6});
  block[16] = std::byte{0x00};
  block[17] = std::byte{0xc0};  // S = -2
  floats const back = decoded(int2<64>{}, block, 64);
  float const expected[] = {-1, -3, 1, 3};
  for (std::size_t i = 0; i < 64; ++i) CHECK(back[i] == expected[i % 32 / 8]);
}

TEST_CASE("int2: large values saturate and small blocks vanish") {
  struct {
    float value;
    float scale;
  } const cases[] = {{0x1p125f, 0x1.4p125f},        {0x1p126f, 0x1p126f}, {FLT_MAX, 0x1p126f},
                     {0x1.99999ap-101f, 0x1p-100f}, {0x1.99p-101f, 0},    {FLT_TRUE_MIN, 0}};
  for (auto const& c : cases) {
    CAPTURE(c.value);
    floats values(64 * 8);  // so that vector kernels meet them too
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? c.value : -c.value;
    bytes const codes = encoded(int2<64>{}, values);
    floats const back = decoded(int2<64>{}, codes, values.size());
    for (std::size_t b = 0; b < 8; ++b) {
      CHECK(int2<64>::scale_at(codes.data() + 16 * 8 + 2 * b) == c.scale);
      // Below S or from S on.
      float const level = std::fabs(c.value) < c.scale ? 0.5f : 1.5f;
      CHECK(back[64 * b] == level * c.scale);
      CHECK(back[64 * b + 1] == -level * c.scale);
    }
    if (c.scale == 0) CHECK(codes == bytes(codes.size()));
  }
  // One huge value among zeros.
  floats values(64);
  values[9] = -FLT_MAX;
  floats const back = decoded(int2<64>{}, encoded(int2<64>{}, values), 64);
  CHECK(double{back[9]} == doctest::Approx(-1.5 * 1.25 / 64 * double{FLT_MAX}).epsilon(0.01));
  for (float const bad : {INFINITY, -INFINITY, NAN}) {
    values[8] = bad;
    for (float const value : decoded(int2<64>{}, encoded(int2<64>{}, values), 64)) {
      CHECK(std::isnan(value));
    }
  }
}

TEST_CASE("int2: codes for other scales") {
  floats const values = normal_values(64, 8);
  bytes codes(16);
  for (float const scale : {0.5f, 0x1p-100f, 0x1p126f}) {
    int2<64>{}.quantize(values.data(), scale, codes.data());
    for (std::size_t i = 0; i < 64; ++i) {
      unsigned const code =
          std::to_integer<unsigned>(codes[i / 32 * 8 + i % 8]) >> (i % 32 / 8 * 2) & 3u;
      CHECK(code == (std::fabs(values[i]) >= scale ? 1u : 0u) + (values[i] < 0 ? 2u : 0u));
    }
  }
  for (float const scale : {0.0f, NAN}) {
    codes.assign(16, std::byte{0x5a});
    int2<64>{}.quantize(values.data(), scale, codes.data());
    CHECK(codes == bytes(16));
  }
}

TEST_CASE("int2: signal to noise is near the best of four levels") {
  floats const values = normal_values(1 << 20, 4);
  // Four uniform levels reach 9.25 for a known deviation (Max, doi:10.1109/TIT.1960.1057548).
  CHECK(std::fabs(signal_to_noise(int2<64>{}, values) - 9.3) < 0.1);
}

#if defined(RIVULET_AVX2)

TEST_CASE_TEMPLATE("int2: kernels give the bits of the scalar code for all block sizes", C,
                   int2<32>, int2<128>, int2<256>, int2<4096>) {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    floats values =
        normal_values(32768, static_cast<std::uint64_t>(round), std::ldexp(1.0f, round * 6 - 115));
    for (float& value : values) {
      if (random() % 16 == 0) value = -0.0f;
      if (random() % 1024 == 0) value = std::ldexp(1.0f, static_cast<int>(random() % 254) - 126);
    }
    bool const before = rivulet::detail::vector_kernels().exchange(false);
    bytes const scalar = encoded(C{}, values);
    floats const back = decoded(C{}, scalar, values.size());
    rivulet::detail::vector_kernels() = before;
    REQUIRE(encoded(C{}, values) == scalar);
    REQUIRE(decoded(C{}, scalar, values.size()) == back);
  }
}

#endif

}  // namespace
