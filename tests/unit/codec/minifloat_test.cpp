#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <span>

#include <doctest/doctest.h>

#include <rivulet/codec/minifloat.hpp>

namespace {

using rivulet::codec::detail::e2m1;
using rivulet::codec::detail::e4m3;
using rivulet::detail::bits_of;
using rivulet::detail::float_of;

/// The values of the codes from 0 on, from the tables of the specification.
constexpr double e2m1_values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
constexpr double e4m3_values[] = {
    // clang-format off
    0, 0.001953125, 0.00390625, 0.005859375, 0.0078125, 0.009765625, 0.01171875, 0.013671875,
    0.015625, 0.017578125, 0.01953125, 0.021484375, 0.0234375, 0.025390625, 0.02734375, 0.029296875,
    0.03125, 0.03515625, 0.0390625, 0.04296875, 0.046875, 0.05078125, 0.0546875, 0.05859375,
    0.0625, 0.0703125, 0.078125, 0.0859375, 0.09375, 0.1015625, 0.109375, 0.1171875,
    0.125, 0.140625, 0.15625, 0.171875, 0.1875, 0.203125, 0.21875, 0.234375,
    0.25, 0.28125, 0.3125, 0.34375, 0.375, 0.40625, 0.4375, 0.46875,
    0.5, 0.5625, 0.625, 0.6875, 0.75, 0.8125, 0.875, 0.9375,
    1, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875,
    2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75,
    4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5,
    8, 9, 10, 11, 12, 13, 14, 15,
    16, 18, 20, 22, 24, 26, 28, 30,
    32, 36, 40, 44, 48, 52, 56, 60,
    64, 72, 80, 88, 96, 104, 112, 120,
    128, 144, 160, 176, 192, 208, 224, 240,
    256, 288, 320, 352, 384, 416, 448,
    // clang-format on
};

template <class Element>
std::span<double const> values_of() {
  if constexpr (Element::bits == 4) {
    return e2m1_values;
  } else {
    return e4m3_values;
  }
}

/// Rounds by search: the nearest value, of two the one with the even code.
template <class Element>
std::uint32_t nearest(float t) {
  std::span<double const> const values = values_of<Element>();
  double const x = std::fmin(std::fabs(double{t}), values.back());
  std::uint32_t best = 0;
  for (std::uint32_t code = 1; code < values.size(); ++code) {
    double const closer = std::fabs(x - values[best]) - std::fabs(x - values[code]);
    if (closer > 0 || (closer == 0 && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(t) ? 1u << (Element::bits - 1) : 0u);
}

TEST_CASE("minifloat: the tables have the largest values of the formats") {
  static_assert(std::size(e2m1_values) == 8);
  static_assert(std::size(e4m3_values) == 127);
  CHECK(e2m1_values[7] == double{e2m1::largest});
  CHECK(e4m3_values[126] == double{e4m3::largest});
}

TEST_CASE_TEMPLATE("minifloat: every code decodes to the value of the table", E, e2m1, e4m3) {
  std::span<double const> const values = values_of<E>();
  constexpr std::uint32_t sign = 1u << (E::bits - 1);
  for (std::uint32_t code = 0; code < sign; ++code) {
    CAPTURE(code);
    if (code < values.size()) {
      CHECK(double{E::decode(code)} == values[code]);
      CHECK(bits_of(E::decode(code | sign)) == (bits_of(E::decode(code)) | 0x80000000u));
      CHECK(E::encode(E::decode(code)) == code);
      CHECK(E::encode(E::decode(code | sign)) == (code | sign));
    } else {
      CHECK(std::isnan(E::decode(code)));
      CHECK(std::isnan(E::decode(code | sign)));
    }
    CHECK(bits_of(E::decode(code | 2 * sign)) == bits_of(E::decode(code)));
  }
}

TEST_CASE_TEMPLATE("minifloat: ties go to the even code, their neighbours to the nearest", E, e2m1,
                   e4m3) {
  std::span<double const> const values = values_of<E>();
  constexpr std::uint32_t sign = 1u << (E::bits - 1);
  for (std::uint32_t code = 0; code + 1 < values.size(); ++code) {
    CAPTURE(code);
    auto const middle = static_cast<float>((values[code] + values[code + 1]) / 2);
    std::uint32_t const even = code % 2 == 0 ? code : code + 1;
    CHECK(E::encode(std::nextafter(middle, 0.0f)) == code);
    CHECK(E::encode(middle) == even);
    CHECK(E::encode(std::nextafter(middle, FLT_MAX)) == code + 1);
    CHECK(E::encode(-std::nextafter(middle, 0.0f)) == (sign | code));
    CHECK(E::encode(-middle) == (sign | even));
    CHECK(E::encode(-std::nextafter(middle, FLT_MAX)) == (sign | (code + 1)));
  }
}

TEST_CASE_TEMPLATE("minifloat: what is beyond the largest value saturates", E, e2m1, e4m3) {
  auto const last = static_cast<std::uint32_t>(values_of<E>().size() - 1);
  constexpr std::uint32_t sign = 1u << (E::bits - 1);
  for (float const t :
       {std::nextafter(E::largest, FLT_MAX), E::largest * 2, 1e30f, FLT_MAX, INFINITY, NAN}) {
    CHECK(E::encode(t) == last);
    CHECK(E::encode(-t) == (last | sign));
  }
}

TEST_CASE_TEMPLATE("minifloat: rounding is that of a search through the table", E, e2m1, e4m3) {
  // Every sign, exponent and upper mantissa, with lower halves around their middle and ends.
  int wrong = 0;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    if ((upper & 0x7f80u) == 0x7f80u) continue;  // NaN and infinity
    for (std::uint32_t const lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      float const t = float_of(upper << 16 | lower);
      wrong += E::encode(t) != nearest<E>(t);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("minifloat: usable at compile time") {
  static_assert(e2m1::encode(2.5f) == 4 && e2m1::encode(-3.5f) == 14);
  static_assert(e4m3::encode(0x1p-10f) == 0 && e4m3::encode(0x1.8p-9f) == 2);
  static_assert(e4m3::decode(0x08) == 0x1p-6f && e2m1::decode(0x0f) == -6.0f);
}

TEST_CASE_TEMPLATE("minifloat: the codes of zeros and for factor 0 are 0", E, e2m1, e4m3) {
  float const values[] = {0.0f, -0.0f, -1.0f, 1.0f, -1e-30f, -0x1p-149f};
  std::byte codes[6];
  E::encode(values, 6, 0.0f, codes);
  for (std::size_t i = 0; i < E::bytes(6); ++i) CHECK(codes[i] == std::byte{0});
  E::encode(values, 6, 1.0f, codes);
  if constexpr (E::bits == 4) {
    CHECK(codes[0] == std::byte{0x00});
    CHECK(codes[1] == std::byte{0x2a});
    CHECK(codes[2] == std::byte{0x88});
  } else {
    constexpr std::uint8_t expected[] = {0x00, 0x00, 0xb8, 0x38, 0x80, 0x80};
    CHECK(std::memcmp(codes, expected, 6) == 0);
  }
}

#if defined(RIVULET_AVX2)

template <class E>
RIVULET_AVX2 void encode_32(float const* values, float low, float high, std::byte* codes) {
  auto const packed = E::avx2::encode(values, _mm256_set1_ps(low), _mm256_set1_ps(high));
  std::memcpy(codes, &packed, sizeof(packed));
}

template <class E>
RIVULET_AVX2 void decode_32(std::byte const* codes, float* values) {
  __m256 v[4];
  E::avx2::decode(codes, v);
  std::memcpy(values, v, sizeof(v));
}

TEST_CASE_TEMPLATE("minifloat: the kernels have the bits of the scalar code", E, e2m1, e4m3) {
  if (!rivulet::detail::use_vectors()) return;
  std::mt19937 random(5);
  int wrong = 0;
  for (int round = 0; round < 200000; ++round) {
    float values[32];
    for (float& x : values) {
      auto const bits = static_cast<std::uint32_t>(random());
      switch (round % 4) {
        case 0: x = float_of((bits & 0x83ffffffu) + 0x3c000000u); break;  // 2^-7 .. 2
        case 1: x = float_of((bits & 0x83ff0000u) + 0x40000000u); break;  // ties among them
        case 2: x = float_of(bits & 0xd7ffffffu); break;                  // below 2^49
        default:
          x = bits % 3 == 0   ? -0.0f
              : bits % 7 == 0 ? -0x1p-149f
                              : static_cast<float>(static_cast<int>(bits) >> 28);
      }
    }
    float const factors[] = {1.0f, 0.7f, 3.0f, 0.0f, 0x1p-20f, 0x1p-6f, 0.013f};
    float const low = factors[random() % 7];
    float const high = factors[random() % 7];
    std::byte expected[E::bytes(32)];
    std::byte codes[E::bytes(32)];
    E::encode(values, 16, low, expected);
    E::encode(values + 16, 16, high, expected + E::bytes(16));
    encode_32<E>(values, low, high, codes);
    wrong += std::memcmp(codes, expected, sizeof(codes)) != 0;
  }
  CHECK(wrong == 0);

  for (unsigned first = 0; first < 256; ++first) {  // all codes, at all places
    std::byte codes[E::bytes(32)];
    for (std::size_t i = 0; i < sizeof(codes); ++i) codes[i] = static_cast<std::byte>(first + i);
    float values[32];
    decode_32<E>(codes, values);
    for (std::size_t i = 0; i < 32; ++i) {
      auto const byte = static_cast<std::uint32_t>(codes[E::bytes(i)]);
      float const expected = E::decode(E::bits == 4 && i % 2 == 1 ? byte >> 4 : byte);
      bool const nan = std::isnan(expected) && std::isnan(values[i]);
      wrong += !nan && bits_of(expected) != bits_of(values[i]);
    }
  }
  CHECK(wrong == 0);
}

#endif

}  // namespace
