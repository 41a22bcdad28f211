#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/sign.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::sign;
using rivulet_test::decoded;
using rivulet_test::encoded;
using rivulet_test::normal_values;

using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

template <class C>
double exact_scale(float const* block) {
  double sum = 0;
  for (std::size_t i = 0; i < C::block_size; ++i) sum += std::fabs(double{block[i]});
  return sum / double{C::block_size};
}

TEST_CASE_TEMPLATE("sign: signs are exact and scales those of the definition in double precision",
                   C, sign<32>, sign<64>, sign<256>, sign<4096>) {
  CHECK(rivulet::codec::block_bytes<C> == C::block_size / 8 + 2);
  int wrong = 0;
  int nearest = 0;
  for (float const scale : {1.0f, 1e-3f, 1e-28f, 1e37f}) {
    floats const values = normal_values(32768, 3, scale);
    floats const back = decoded(C{}, encoded(C{}, values), values.size());
    for (std::size_t b = 0; b < values.size(); b += C::block_size) {
      double const exact = exact_scale<C>(values.data() + b);
      float const s = std::fabs(back[b]);
      wrong += (rivulet::detail::bits_of(s) & 0xffffu) != 0;
      wrong += !(std::fabs(double{s} - exact) <= exact * (0x1p-8 + 0x1p-20));
      nearest += s == to_float(rivulet::to_bf16(static_cast<float>(exact)));
      for (std::size_t i = b; i < b + C::block_size; ++i) {
        wrong += back[i] != std::copysign(s, values[i]);
      }
    }
  }
  CHECK(wrong == 0);
  // The sum is rounded, so that a scale in 10^4 may be the neighbour of the nearest.
  auto const blocks = static_cast<int>(4 * 32768 / C::block_size);
  CHECK(nearest >= blocks - 1 - blocks / 1000);
}

TEST_CASE("sign: the layout of a block by hand") {
  floats values(256, 3.0f);
  for (std::size_t const i : {0u, 9u, 31u, 32u, 255u}) values[i] = -3.0f;
  values[64] = -0.0f;  // negative
  values[65] = 0.0f;
  values[66] = 9.0f;
  bytes expected(34);
  expected[0] = std::byte{0x01};
  expected[1] = std::byte{0x02};
  expected[3] = std::byte{0x80};
  expected[4] = std::byte{0x01};
  expected[8] = std::byte{0x01};
  expected[31] = std::byte{0x80};
  expected[32] = expected[33] = std::byte{0x40};  // S = 3
  CHECK(encoded(sign<256>{}, values) == expected);
  floats const back = decoded(sign<256>{}, expected, 256);
  for (std::size_t i = 0; i < 256; ++i) CHECK(back[i] == std::copysign(3.0f, values[i]));
}

TEST_CASE("sign: the sum of magnitudes has one order") {
  // In lane 0 the small values vanish beside the large one only if they come after it.
  floats values(256);
  values[0] = 0x1p24f;
  for (std::size_t i = 1; i < 256; ++i) values[i] = i % 8 == 0 ? 1.0f : 0.0f;
  CHECK(sign<256>::natural_scale(values.data()) == 0x1p16f);
  // Lanes in the order ((0 2)(1 3))((4 6)(5 7)), here of 2^24, 1, -, 1: as (0 1)(2 3), or from the
  // first to the last, the sum would be 2^24 or 2^24 + 4. Rounded to bfloat16 only the middle of
  // two scales shows it.
  floats lanes(32);
  lanes[0] = 0x1.01p24f;  // half way, ties to even
  lanes[1] = 1.0f;
  lanes[3] = 1.0f;  // (1 3) = 2, which 0x1.01p24 + 2 keeps
  CHECK(sign<32>::natural_scale(lanes.data()) == 0x1.02p19f);
  lanes[3] = 0.0f;
  lanes[2] = 1.0f;  // (0 2) = 0x1.01p24, + 1 the same
  CHECK(sign<32>::natural_scale(lanes.data()) == 0x1p19f);
}

TEST_CASE("sign: large values saturate and small blocks vanish") {
  struct {
    float value;
    float scale;
  } const cases[] = {{0x1p125f, 0x1p125f},   {0x1p126f, 0x1p126f},  {FLT_MAX, 0x1p126f},
                     {0x1p-100f, 0x1p-100f}, {0x1.fffffep-101f, 0}, {FLT_TRUE_MIN, 0}};
  for (auto const& c : cases) {
    CAPTURE(c.value);
    floats values(256 * 8);  // so that vector kernels meet them too
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? c.value : -c.value;
    bytes const codes = encoded(sign<256>{}, values);
    floats const back = decoded(sign<256>{}, codes, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(back[i] == (i % 2 == 0 ? c.scale : -c.scale));
    }
    if (c.scale == 0) CHECK(codes == bytes(codes.size()));
  }
  floats values(256);
  values[9] = -FLT_MAX;
  floats const back = decoded(sign<256>{}, encoded(sign<256>{}, values), 256);
  CHECK(double{back[9]} == doctest::Approx(-double{FLT_MAX} / 256).epsilon(0.01));
  for (float const bad : {INFINITY, -INFINITY, NAN}) {
    values[8] = bad;
    for (float const value : decoded(sign<256>{}, encoded(sign<256>{}, values), 256)) {
      CHECK(std::isnan(value));
    }
  }
}

TEST_CASE("sign: codes for other scales") {
  floats const values = normal_values(256, 8);
  bytes codes(32);
  sign<256>{}.quantize(values.data(), 17.0f, codes.data());
  for (std::size_t i = 0; i < 256; ++i) {
    CHECK((std::to_integer<unsigned>(codes[i / 8]) >> (i % 8) & 1u) == (values[i] < 0 ? 1u : 0u));
  }
  for (float const scale : {0.0f, NAN}) {
    codes.assign(32, std::byte{0x5a});
    sign<256>{}.quantize(values.data(), scale, codes.data());
    CHECK(codes == bytes(32));
  }
}

TEST_CASE("sign: the scale is that of least squares and the accuracy that of the format") {
  floats const values = normal_values(1 << 20, 4);
  floats const back = decoded(sign<256>{}, encoded(sign<256>{}, values), values.size());
  double signal = 0;
  double noise = 0;
  double product = 0;
  double decoded_signal = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    double const x = values[i];
    double const q = back[i];
    signal += x * x;
    noise += (x - q) * (x - q);
    product += x * q;
    decoded_signal += q * q;
  }
  CHECK(std::fabs(product / decoded_signal - 1) < 0.001);
  // The error is 1 - 2 / pi of the signal.
  CHECK(std::fabs(10 * std::log10(signal / noise) - 4.40) < 0.05);
}

#if defined(RIVULET_AVX2)

TEST_CASE_TEMPLATE("sign: kernels give the bits of the scalar code for all block sizes", C,
                   sign<32>, sign<64>, sign<4096>) {
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
