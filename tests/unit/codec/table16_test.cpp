#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/table16.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::int4;
using rivulet::codec::lloyd_max4;
using rivulet::codec::nf4;
using rivulet_test::decoded;
using rivulet_test::encoded;
using rivulet_test::normal_values;
using rivulet_test::random_values;
using rivulet_test::round_trip;
using rivulet_test::signal_to_noise;

using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

/// What papers say of the levels, rounded to bfloat16, in ascending order.
using levels = std::array<double, 16>;

levels rounded(levels table) {
  for (double& level : table) {
    level = double{rivulet::to_float(rivulet::to_bf16(static_cast<float>(level)))};
  }
  return table;
}

levels symmetric(std::array<double, 8> const& magnitudes) {
  levels result{};
  for (std::size_t k = 0; k < 8; ++k) {
    result[8 + k] = magnitudes[k];
    result[7 - k] = -magnitudes[k];
  }
  return rounded(result);
}

template <std::size_t Block>
levels levels_of(lloyd_max4<Block>) {
  if (Block == 32) return symmetric({.0282, .1002, .1888, .2934, .4166, .5617, .7422, .9826});
  return symmetric({.0250, .0879, .1675, .2655, .3844, .5289, .7140, .9740});
}
template <std::size_t Block>
levels levels_of(nf4<Block>) {
  return rounded({-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
                  -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
                  0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
                  0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                  1.0});
}
template <std::size_t Block>
levels levels_of(int4<Block>) {
  levels result{};
  for (std::size_t r = 0; r < 16; ++r) result[r] = (static_cast<double>(r) - 8) / 8;
  return result;
}

template <class C>
inline constexpr bool is_signed = C::id == int4<>::id;
template <class C>
inline constexpr bool is_symmetric = C::id == lloyd_max4<>::id;

/// Codes by rank.
template <class C>
unsigned code_of(std::size_t rank) {
  if (!is_symmetric<C>) return static_cast<unsigned>(rank);
  return static_cast<unsigned>(rank < 8 ? 15 - rank : rank - 8);
}
template <class C>
unsigned zero_code() {
  return C::id == lloyd_max4<>::id ? 0 : C::id == nf4<>::id ? 7 : 8;
}

/// The rank of t: the borders are the 128ths nearest to the middles and belong to what lies
/// outside. A zero has a sign.
std::size_t rank_of(levels const& table, double t) {
  std::size_t rank = std::signbit(t) ? 15 : 0;
  for (std::size_t r = 1; r < 16; ++r) {
    double const middle = (table[r - 1] + table[r]) / 2;
    double const border = std::copysign(std::floor(std::fabs(middle) * 128 + 0.5) / 128, middle);
    if (std::signbit(t)) {
      bool const below = table[r] <= 0 ? t <= border : true;
      if (below) rank = std::min(rank, r - 1);
    } else {
      bool const above = table[r - 1] >= 0 ? t >= border : true;
      if (above) rank = r;
    }
  }
  return rank;
}

/// S of a block by the definition.
template <class C>
double scale_of(float const* block) {
  double most = 0;
  for (std::size_t i = 0; i < C::block_size; ++i) {
    double const x = block[i];
    if (std::fabs(x) > std::fabs(most) || (std::fabs(x) == std::fabs(most) && x > 0)) most = x;
  }
  if (std::fabs(most) < 0x1p-100) return 0;
  int exponent = 0;
  double const mantissa = std::frexp(std::min(std::fabs(most), 0x1p126), &exponent);
  double const scale = std::ldexp(std::ceil(mantissa * 256) / 256, exponent);
  return is_signed<C> && most > 0 ? -scale : scale;
}

TEST_CASE_TEMPLATE("table16: each value is what the definition says in double precision", C,
                   lloyd_max4<32>, lloyd_max4<64>, nf4<32>, nf4<64>, nf4<256>, int4<32>, int4<64>,
                   int4<256>) {
  levels const table = levels_of(C{});
  int wrong = 0;
  for (float const scale : {1.0f, 1e-3f, 1e30f}) {
    floats const values = normal_values(100 * C::block_size, 3, scale);
    floats const back = round_trip(C{}, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      double const s = scale_of<C>(values.data() + i / C::block_size * C::block_size);
      double const t = double{values[i]} / s;
      // t is rounded, so that a value within 2^-22 of a border may go either way.
      bool found = false;
      for (double const near : {t, t * (1 + 0x1p-22), t * (1 - 0x1p-22)}) {
        auto const level = static_cast<float>(table[rank_of(table, near)]);
        found = found || back[i] == std::fma(level, static_cast<float>(s), 0.0f);
      }
      wrong += !found;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("table16: the codes and their levels", C, lloyd_max4<32>, lloyd_max4<64>,
                   nf4<64>, int4<32>) {
  levels const table = levels_of(C{});
  for (std::size_t rank = 0; rank < 16; ++rank) {
    CAPTURE(rank);
    unsigned const code = code_of<C>(rank);
    bytes block(C::code_bytes + 2, static_cast<std::byte>(code | (15 - code) << 4));
    block[C::code_bytes] = std::byte{0x00};
    block[C::code_bytes + 1] = std::byte{0xbf};  // S = -1/2
    floats const back = decoded(C{}, block, C::block_size);
    for (std::size_t i = 0; i < C::block_size; ++i) {
      std::size_t other = 0;
      while (code_of<C>(other) != 15 - code) ++other;
      CHECK(back[i] == -static_cast<float>(table[i % 32 < 16 ? rank : other]) / 2);
    }
  }
}

TEST_CASE_TEMPLATE("table16: borders are 128ths and belong to the larger magnitude", C,
                   lloyd_max4<32>, lloyd_max4<64>, nf4<64>, int4<64>) {
  levels const table = levels_of(C{});
  floats values;
  std::vector<std::size_t> ranks;
  auto const add = [&](double x) {
    if (values.size() % C::block_size == 0) {  // S = 1
      values.push_back(is_signed<C> ? -1.0f : 1.0f);
      ranks.push_back(is_signed<C> ? 0 : 15);
    }
    values.push_back(static_cast<float>(x));
    ranks.push_back(rank_of(table, x));
  };
  for (int m = 0; m < 128; ++m) {
    float const t = static_cast<float>(m) / 128;
    for (float const x : {t, std::nextafter(t, 2.0f), std::nextafter(t, -1.0f)}) {
      if (x < 0) continue;
      add(double{x});
      add(-double{x});
    }
  }
  values.resize((values.size() + C::block_size - 1) / C::block_size * C::block_size);
  // Every middle is within 1 / 256 of a border: the reference has one between all levels.
  for (std::size_t r = 0; r < 16; ++r) CHECK(std::ranges::count(ranks, r) > 0);
  floats const back = round_trip(C{}, values);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    CAPTURE(values[i]);
    CHECK(back[i] == static_cast<float>(table[ranks[i]]));
  }
}

TEST_CASE("table16: lloyd_max4 of the opposite is the opposite down to zero") {
  floats values = normal_values(64, 9);
  values[3] = 0.0f;
  values[5] = FLT_TRUE_MIN;
  values[7] = 1e-30f;
  values[9] = -1e-10f;
  floats negated = values;
  for (float& value : negated) value = -value;
  floats const back = round_trip(lloyd_max4<64>{}, values);
  floats const negated_back = round_trip(lloyd_max4<64>{}, negated);
  for (std::size_t i = 0; i < 64; ++i) CHECK(back[i] == -negated_back[i]);
  for (std::size_t const i : {3u, 5u, 7u}) CHECK(back[i] > 0);
  CHECK(back[9] < 0);
}

TEST_CASE("table16: nf4 and int4 keep zeros and code them alike") {
  floats values = normal_values(64, 9);
  for (std::size_t i = 1; i < 64; i += 3) values[i] = i % 2 == 0 ? 0.0f : -1e-30f;
  floats const of_nf4 = round_trip(nf4<64>{}, values);
  floats const of_int4 = round_trip(int4<64>{}, values);
  for (std::size_t i = 1; i < 64; i += 3) {
    CHECK(of_nf4[i] == 0.0f);
    CHECK(of_int4[i] == 0.0f);
  }
}

TEST_CASE("table16: the layout of a block by hand") {
  floats values(64);
  values[0] = 3.0f;     // S = 3 = bf16 0x4040; code 7
  values[16] = -1.5f;   // t = .5, nearest .5289: code 5 + 8, the high half of byte 0
  values[1] = -0.001f;  // code 0 + 8
  values[32] = 0.75f;   // t = .25, nearest .2655: code 3, in the second group of 32
  values[63] = 0.3f;    // t = .1, nearest .0879: code 1, the high half of byte 31
  bytes expected(34);
  expected[0] = std::byte{0xd7};
  expected[1] = std::byte{0x08};
  expected[16] = std::byte{0x03};
  expected[31] = std::byte{0x10};
  expected[32] = expected[33] = std::byte{0x40};
  CHECK(encoded(lloyd_max4<64>{}, values) == expected);

  values.resize(32);
  std::fill_n(expected.begin(), 16, std::byte{0x88});
  expected.resize(18);
  expected[0] = std::byte{0xc0};  // 3 = -8 / 8 * S, -1.5 = 4 / 8 * S
  expected[16] = std::byte{0x40};
  expected[17] = std::byte{0xc0};  // S = -3
  CHECK(encoded(int4<32>{}, values) == expected);

  values.resize(64);
  values[63] = -3.0f;
  expected.assign(34, std::byte{0x77});
  expected[0] = std::byte{0x2f};  // -.5 is nearest to level 2, -.525
  expected[31] = std::byte{0x07};
  expected[32] = expected[33] = std::byte{0x40};
  CHECK(encoded(nf4<64>{}, values) == expected);
}

TEST_CASE("table16: int4 maps the value of largest magnitude to -8 and its opposite to 7") {
  for (float const most : {2.0f, -2.0f}) {
    CAPTURE(most);
    floats values(32, 0.25f);
    values[20] = most;
    values[21] = -most * 0.9375f;  // as near to 8 as to 7
    values[22] = -most * 0.99f;
    floats const back = round_trip(int4<32>{}, values);
    CHECK(back[20] == most);
    CHECK(back[21] == -most * 0.875f);
    CHECK(back[22] == -most * 0.875f);
    CHECK(back[0] == 0.25f);
  }
  floats both(32);
  both[4] = -2.0f;
  both[9] = 2.0f;  // the positive one of two
  floats const back = round_trip(int4<32>{}, both);
  CHECK(back[4] == -1.75f);
  CHECK(back[9] == 2.0f);
}

TEST_CASE("table16: int4 makes the codes of q4_0 where its scale is exact") {
  floats values = normal_values(32 * 200, 12);
  for (std::size_t b = 0; b < values.size(); b += 32) values[b] = b % 64 == 0 ? 8.0f : -8.0f;
  bytes const codes = encoded(int4<32>{}, values);
  int wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    float const d = values[i / 32 * 32] / -8;
    int const q = std::min(15, static_cast<int>(values[i] * (1 / d) + 8.5f));
    std::size_t const tile = i / 4096;  // 128 blocks: codes, then scales
    std::size_t const group = i / 32 - tile * 128;
    auto const two = std::to_integer<int>(codes[tile * 128 * 18 + group * 16 + i % 16]);
    int const code = i % 32 < 16 ? two & 15 : two >> 4;
    // Ties: q4_0 rounds them up, int4 away from zero.
    bool const tie = values[i] / d * 2 == std::floor(values[i] / d * 2);
    wrong += code != q && !tie;
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("table16: scales are rounded up and limited", C, lloyd_max4<64>, nf4<64>,
                   int4<64>) {
  struct {
    float largest;
    unsigned scale;
  } const cases[] = {{1.0f, 0x3f80},
                     {0x1.000002p0f, 0x3f81},
                     {0x1.02p0f, 0x3f81},
                     {0x1p-100f, 0x0d80},
                     {0x1.fffffep-101f, 0},
                     {FLT_TRUE_MIN, 0},
                     {0x1p126f, 0x7e80},
                     {FLT_MAX, 0x7e80},
                     {INFINITY, 0x7fc0},
                     {NAN, 0x7fc0},
                     {0.0f, 0}};
  for (auto const& c : cases) {
    for (float const sign : {1.0f, -1.0f}) {
      CAPTURE(c.largest);
      CAPTURE(sign);
      floats values(C::block_size * 8);  // so that vector kernels meet them too
      for (std::size_t i = 5; i < values.size(); i += C::block_size) values[i] = sign * c.largest;
      bytes const codes = encoded(C{}, values);
      bool const minus = is_signed<C> && sign > 0 && c.scale != 0 && c.scale != 0x7fc0;
      for (std::size_t b = 0; b < 8; ++b) {
        std::byte const* const scale = codes.data() + 8 * C::code_bytes + 2 * b;
        CHECK((std::to_integer<unsigned>(scale[0]) | std::to_integer<unsigned>(scale[1]) << 8) ==
              (c.scale | (minus ? 0x8000u : 0u)));
      }
      floats const back = decoded(C{}, codes, values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        CHECK(std::isfinite(back[i]) == std::isfinite(c.largest));
      }
      if (c.scale != 0 && std::isfinite(c.largest)) CHECK(back[5] * sign > 0.97f * 0x1p-100f);
      if (c.scale != 0) continue;
      unsigned const zero = zero_code<C>();
      for (std::size_t i = 0; i < 8 * C::code_bytes; ++i) {
        CHECK(codes[i] == static_cast<std::byte>(zero | zero << 4));
      }
    }
  }
}

TEST_CASE_TEMPLATE("table16: codes for other scales", C, lloyd_max4<64>, nf4<64>, int4<64>) {
  levels const table = levels_of(C{});
  floats values = normal_values(C::block_size, 8);
  values[0] = 1e30f;
  values[1] = -1e30f;
  bytes codes(C::code_bytes);
  for (float const scale : {0.5f, 0x1p-99f, -2.0f, 0x1p126f}) {
    CAPTURE(scale);
    C{}.quantize(values.data(), scale, codes.data());
    for (std::size_t i = 0; i < C::block_size; ++i) {
      auto const two = std::to_integer<unsigned>(codes[i / 32 * 16 + i % 16]);
      double const t = double{values[i]} / double{scale};
      CHECK((i % 32 < 16 ? two & 15u : two >> 4) == code_of<C>(rank_of(table, t)));
    }
  }
  unsigned const zero = zero_code<C>();
  std::vector<std::uint16_t> const noise(C::block_size, 65535);
  for (float const scale : {0.0f, NAN}) {
    C{}.quantize(values.data(), scale, codes.data());
    for (std::byte const two : codes) CHECK(two == static_cast<std::byte>(zero | zero << 4));
    codes.assign(codes.size(), std::byte{0x5a});
    C{}.quantize(values.data(), scale, codes.data(), noise.data());
    for (std::byte const two : codes) CHECK(two == static_cast<std::byte>(zero | zero << 4));
  }
  std::byte stored[2];
  for (float const scale : {0.0f, 1.0f, -1.0f, 0x1p-100f, 0x1p126f, 0x1.02p5f}) {
    C::store_scale(scale, stored);
    CHECK(C::scale_at(stored) == scale);
  }
  C::store_scale(0x1.01p0f, stored);  // ties to even
  CHECK(C::scale_at(stored) == 1.0f);
  C::store_scale(-0x1.010002p0f, stored);
  CHECK(C::scale_at(stored) == -0x1.02p0f);
  C::store_scale(0x1.fffffep-101f, stored);
  CHECK(C::scale_at(stored) == 0.0f);
  C::store_scale(-INFINITY, stored);
  CHECK(C::scale_at(stored) == -0x1p126f);
  C::store_scale(-NAN, stored);
  CHECK(std::isnan(C::scale_at(stored)));
}

TEST_CASE_TEMPLATE("table16: rounding at random is right on average and goes to a neighbour", C,
                   lloyd_max4<64>, nf4<32>, int4<32>) {
  levels const table = levels_of(C{});
  floats values(C::block_size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 3.0f * (static_cast<float>(i) * 2.02f / static_cast<float>(C::block_size) - 1.01f);
  }
  values[7] = 0.0f;
  values[9] = 3.0f * static_cast<float>(table[12]);  // a level
  float const scale = 3.0f;
  std::vector<double> sum(values.size());
  std::vector<std::uint16_t> noise(values.size());
  bytes codes(C::code_bytes);
  bytes stored(2);
  C::store_scale(scale, stored.data());
  int far = 0;
  for (unsigned n = 0; n < 65536; ++n) {
    // Each value meets each number once.
    for (std::size_t i = 0; i < noise.size(); ++i) {
      noise[i] = static_cast<std::uint16_t>(n + 1009 * i);
    }
    C{}.quantize(values.data(), scale, codes.data(), noise.data());
    floats back(values.size());
    C{}.accumulate_block(codes.data(), stored.data(), 1.0f, back.data());
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += double{back[i]};
    if (n % 4096 != 0) continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      // A level between value and result means that it is no neighbour.
      for (double const level : table) {
        double const between = level * 3;
        far += std::min(double{values[i]}, double{back[i]}) + 1e-5 < between &&
               between < std::max(double{values[i]}, double{back[i]}) - 1e-5;
      }
    }
  }
  CHECK(far == 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(values[i]);
    double const t = std::clamp(double{values[i]} / 3, table.front(), table.back());
    auto const above = std::ranges::upper_bound(table, t);
    double const step = above == table.end() ? table[15] - table[14] : *above - above[-1];
    CHECK(std::fabs(sum[i] / 65536 - 3 * t) <= 3 * step * 0x1p-16);
  }
}

/// How good C is, which should be `expected`, and how far from levels chosen by search in double
/// precision for a scale that is not rounded.
template <class C>
void check_accuracy(floats const& values, double expected, double tolerance) {
  double const found = signal_to_noise(C{}, values);
  levels const table = levels_of(C{});
  floats best(values.size());
  for (std::size_t b = 0; b < values.size(); b += C::block_size) {
    double most = 0;
    for (std::size_t i = b; i < b + C::block_size; ++i) {
      if (std::fabs(double{values[i]}) > std::fabs(most)) most = double{values[i]};
    }
    double const s = is_signed<C> ? -most : std::fabs(most);
    for (std::size_t i = b; i < b + C::block_size; ++i) {
      double const t = double{values[i]} / s;
      double const level = *std::ranges::min_element(
          table, {}, [&](double candidate) { return std::fabs(candidate - t); });
      best[i] = static_cast<float>(s * level);
    }
  }
  CAPTURE(C::block_size);
  CHECK(std::fabs(found - expected) < tolerance);
  CHECK(std::fabs(found - signal_to_noise(values, best)) < 0.05);
}

TEST_CASE("table16: signal to noise is that of the formats") {
  floats const normal = normal_values(1 << 20, 4);
  check_accuracy<lloyd_max4<32>>(normal, 21.4, 0.1);
  check_accuracy<lloyd_max4<64>>(normal, 20.6, 0.1);
  check_accuracy<nf4<32>>(normal, 21.2, 0.1);
  check_accuracy<nf4<64>>(normal, 20.7, 0.1);
  check_accuracy<nf4<256>>(normal, 20.1, 0.1);
  check_accuracy<int4<32>>(normal, 21.3, 0.1);
  check_accuracy<int4<64>>(normal, 20.5, 0.1);
  check_accuracy<int4<256>>(normal, 19.1, 0.1);
  // The fourth moment is infinite: results on other samples differ by 0.2 dB.
  floats const heavy = random_values(std::student_t_distribution<float>(3), 1 << 20, 2);
  check_accuracy<lloyd_max4<32>>(heavy, 20.4, 0.1);
  check_accuracy<lloyd_max4<64>>(heavy, 19.2, 0.1);
  check_accuracy<nf4<32>>(heavy, 19.9, 0.1);
  check_accuracy<nf4<64>>(heavy, 18.2, 0.1);
  check_accuracy<nf4<256>>(heavy, 14.9, 0.1);
  check_accuracy<int4<32>>(heavy, 17.9, 0.1);
  check_accuracy<int4<64>>(heavy, 15.9, 0.1);
  check_accuracy<int4<256>>(heavy, 12.3, 0.1);
}

#if defined(RIVULET_AVX2)

TEST_CASE_TEMPLATE("table16: kernels give the bits of the scalar code for all block sizes", C,
                   nf4<32>, nf4<128>, nf4<256>, int4<64>, int4<256>, int4<4096>, lloyd_max4<32>) {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    floats values =
        normal_values(8192, static_cast<std::uint64_t>(round), std::ldexp(1.0f, round * 5 - 120));
    for (float& value : values) {  // ties, grid points, zeros, largest values of both signs
      if (random() % 4 == 0)
        value = std::ldexp(std::round(std::ldexp(value, 123 - round * 5)), round * 5 - 123);
      if (random() % 16 == 0) value = -0.0f;
      if (random() % 64 == 0) value = std::ldexp(random() % 2 == 0 ? 4.0f : -4.0f, round * 5 - 120);
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
