#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/chunked_top_k.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/top_k.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::bf16;
using rivulet::codec::chunked_top_k;
using rivulet::codec::e3m0;
using rivulet::codec::encoded_bytes;
using rivulet::codec::float32;
using rivulet::codec::top_k;
using rivulet_test::kernels;
using rivulet_test::normal_values;

using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

static_assert(rivulet::TileCodec<chunked_top_k<e3m0<32>>>);
static_assert(rivulet::MessageCodec<top_k<float32>> && !rivulet::Codec<top_k<float32>>);

/// The places of the k largest magnitudes, ascending, by a stable sort.
std::vector<std::uint32_t> largest_places(std::span<float const> values, std::size_t k) {
  std::vector<std::uint32_t> places(values.size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::uint32_t>(i);
  std::ranges::stable_sort(places, std::ranges::greater{}, [&](std::uint32_t i) {
    return rivulet::detail::bits_of(values[i]) & 0x7fffffffu;
  });
  places.resize(k);
  std::ranges::sort(places);
  return places;
}

/// Kinds of values that strain a selection in different ways.
constexpr int kinds = 10;
floats values_of(int kind, std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  floats values = normal_values(n, seed);
  for (std::size_t i = 0; i < n; ++i) {
    auto const x = static_cast<float>(i);
    switch (kind) {
      case 0: break;
      case 1: values[i] = x + 1; break;                                    // every value is a hit
      case 2: values[i] = 1e6f - x; break;                                 // none after the first k
      case 3: values[i] = 0; break;                                        // all are equal
      case 4: values[i] = float(int(random() % 7) - 3); break;             // many ties
      case 5: values[i] = random() % 500 == 0 ? values[i] : -0.0f; break;  // fewer than k are not 0
      case 6: values[i] = 1 + std::ldexp(float(random() % 64), -23); break;  // neighbouring floats
      case 7: values[i] = i % 16 == 0 ? 1e30f : values[i]; break;  // a sample by strides misleads
      case 8: values[i] *= std::ldexp(1.0f, int(random() % 250) - 140); break;
      default: values[i] = rivulet::detail::float_of(static_cast<std::uint32_t>(random()));
    }
  }
  return values;
}

/// The bits of what is kept, and 0 elsewhere.
floats kept_only(std::span<float const> values, std::size_t k) {
  floats result(values.size());
  for (std::uint32_t const i : largest_places(values, k)) result[i] = values[i];
  return result;
}

bool same_values(std::span<float const> a, std::span<float const> b) {
  // Adding to 0 turns -0 to 0.
  return std::ranges::equal(
      a, b, [](float x, float y) { return x == y || rivulet_test::same_value(x, y); });
}

template <class C>
bytes encoded(C const& codec, std::size_t size, std::span<float const> values) {
  bytes result(size, std::byte{0xff});
  rivulet::codec::encode(codec, values, result);
  return result;
}
template <rivulet::BlockCodec V>
bytes encoded(top_k<V> const& codec, std::span<float const> values) {
  return encoded(codec, codec.message_bytes(values.size()), values);
}
template <rivulet::BlockCodec V>
bytes encoded(chunked_top_k<V> const& codec, std::span<float const> values) {
  return encoded(codec, encoded_bytes(codec, values.size()), values);
}

template <class C>
floats decoded(C const& codec, bytes const& in, std::size_t n) {
  floats values(n, -1.0f);
  rivulet::codec::decode(codec, in, values);
  return values;
}

TEST_CASE("chunked_top_k: the bytes of a tile by hand") {
  chunked_top_k<float32> const codec{.kept = 4096 / 8 * 3};
  floats values(8);
  values[7] = -0.5f;
  values[2] = 0.25f;
  values[5] = 4.0f;
  values[0] = -0.125f;
  bytes expected(5 + 12);
  expected[0] = std::byte{0x02};  // 2 | 5 << 12
  expected[1] = std::byte{0x50};
  expected[2] = std::byte{0x00};
  expected[3] = std::byte{0x07};  // 7, and nothing
  expected[4] = std::byte{0x00};
  float const kept[] = {0.25f, 4.0f, -0.5f};
  std::memcpy(expected.data() + 5, kept, sizeof(kept));
  CHECK(encoded(codec, values) == expected);

  floats long_tile(4096);
  long_tile[0xabc] = 1.0f;
  long_tile[0xfed] = 2.0f;
  bytes const two = encoded(chunked_top_k<bf16>{.kept = 2}, long_tile);
  bytes const expected_two{std::byte{0xbc}, std::byte{0xda}, std::byte{0xfe}, std::byte{0x80},
                           std::byte{0x3f}, std::byte{0x00}, std::byte{0x40}};
  CHECK(two == expected_two);
}

TEST_CASE("chunked_top_k: how many of a tile are kept, and their bytes") {
  struct {
    std::size_t kept, count, k;
  } const cases[] = {{64, 4096, 64},     {64, 64, 1},  {64, 65, 2},      {64, 1, 1},
                     {64, 0, 0},         {1, 4096, 1}, {1, 1, 1},        {3, 2731, 3},
                     {4096, 4096, 4096}, {4095, 1, 1}, {4096, 777, 777}, {64, 4033, 64},
                     {64, 4032, 63}};
  for (auto const& c : cases) {
    CAPTURE(c.kept);
    CAPTURE(c.count);
    CHECK(chunked_top_k<float32>{.kept = c.kept}.kept_of(c.count) == c.k);
    std::size_t const places = c.k / 2 * 3 + c.k % 2 * 2;
    CHECK(chunked_top_k<float32>{.kept = c.kept}.tile_bytes(c.count) == places + 4 * c.k);
    CHECK(chunked_top_k<e3m0<32>>{.kept = c.kept}.tile_bytes(c.count) ==
          places + (c.k + 31) / 32 * 18);
  }
  CHECK(encoded_bytes(chunked_top_k<e3m0<32>>{}, 4096) == 96 + 36);
  CHECK(encoded_bytes(chunked_top_k<e3m0<32>>{}, 3 * 4096 + 64) == 3 * 132 + 2 + 18);
}

TEST_CASE("chunked_top_k: keeps what a sort finds, by all kernels") {
  for (int kind = 0; kind < kinds; ++kind) {
    CAPTURE(kind);
    for (std::size_t const kept : {1u, 7u, 64u, 410u, 2048u, 4095u, 4096u}) {
      chunked_top_k<float32> const codec{.kept = kept};
      for (std::size_t const n : {1u, 5u, 8u, 63u, 64u, 700u, 1024u, 2049u, 4095u, 4096u}) {
        CAPTURE(kept);
        CAPTURE(n);
        floats const values = values_of(kind, n, static_cast<std::uint32_t>(n + kept));
        floats const expected = kept_only(values, codec.kept_of(n));
        bytes const by_vectors = encoded(codec, values);
        REQUIRE(same_values(decoded(codec, by_vectors, n), expected));
        kernels const scalar(false);
        REQUIRE(encoded(codec, values) == by_vectors);
      }
    }
  }
}

TEST_CASE("chunked_top_k: places beyond the tile are ignored, repeated ones count twice") {
  chunked_top_k<float32> const codec{.kept = 4096 / 2};
  constexpr std::size_t n = 8;
  bytes in(codec.tile_bytes(n));
  REQUIRE(in.size() == 6 + 16);
  in[0] = std::byte{0x03};  // places 3, 8, 3, 4095
  in[1] = std::byte{0x80};
  in[2] = std::byte{0x00};
  in[3] = std::byte{0x03};
  in[4] = std::byte{0xf0};
  in[5] = std::byte{0xff};
  float const values[] = {1.0f, 10.0f, 2.0f, 20.0f};
  std::memcpy(in.data() + 6, values, sizeof(values));
  rivulet_test::guarded<float> sums(n, 0.5f);
  rivulet::codec::accumulate(codec, in, 2.0f, sums.values());
  CHECK(sums.intact());
  for (std::size_t i = 0; i < n; ++i) CHECK(sums.values()[i] == (i == 3 ? 6.5f : 0.5f));
}

TEST_CASE("chunked_top_k: options are checked and counted") {
  for (std::size_t const kept : {1u, 64u, 4096u}) {
    CHECK_NOTHROW(chunked_top_k<float32>{.kept = kept}.check());
  }
  CHECK_THROWS_WITH_AS((chunked_top_k<float32>{.kept = 0}.check()),
                       "rivulet: chunked_top_k: kept = 0 must be from 1 to 4096",
                       rivulet::precondition_error);
  CHECK_THROWS_WITH_AS((chunked_top_k<float32>{.kept = 4097}.check()),
                       "rivulet: chunked_top_k: kept = 4097 must be from 1 to 4096",
                       rivulet::precondition_error);
  std::uint64_t const hash = chunked_top_k<e3m0<32>>{}.fingerprint();
  CHECK(hash == chunked_top_k<e3m0<32>>{}.fingerprint());
  CHECK(hash != chunked_top_k<e3m0<32>>{.kept = 65}.fingerprint());
  CHECK(hash != chunked_top_k<e3m0<64>>{}.fingerprint());
  CHECK(hash != chunked_top_k<float32>{}.fingerprint());
}

TEST_CASE("top_k: the bytes of an array by hand") {
  floats values(10);
  values[9] = -0.5f;
  values[4] = 0.25f;
  values[1] = -0.25f;
  values[6] = 0.25f;  // as large as two before it
  top_k<bf16> const codec{.fraction = 0.3};
  REQUIRE(codec.message_bytes(10) == 3 * (4 + 2));
  bytes expected(18);
  std::uint32_t const places[] = {1, 4, 9};
  std::uint16_t const codes[] = {0xbe80, 0x3e80, 0xbf00};
  std::memcpy(expected.data(), places, 12);
  std::memcpy(expected.data() + 12, codes, 6);
  CHECK(encoded(codec, values) == expected);
}

TEST_CASE("top_k: how many are kept") {
  struct {
    double fraction;
    std::size_t n, k;
  } const cases[] = {{0.01, 0, 0},
                     {0.01, 1, 1},
                     {0.01, 100, 1},
                     {0.01, 101, 2},
                     {0.01, 12800, 128},
                     {1e-9, 50, 1},
                     {1.0, 50, 50},
                     {0.5, 3, 2},
                     {0.999, 50, 50},
                     {-1.0, 50, 1},
                     {2.0, 50, 50},
                     {NAN, 50, 50},
                     {0.25, 0xffffffffu, 0x40000000u}};
  for (auto const& c : cases) {
    CAPTURE(c.fraction);
    CAPTURE(c.n);
    CHECK(top_k<float32>{.fraction = c.fraction}.kept_of(c.n) == c.k);
    CHECK(top_k<e3m0<32>>{.fraction = c.fraction}.message_bytes(c.n) ==
          4 * c.k + (c.k + 31) / 32 * 18);
  }
}

TEST_CASE("top_k: keeps what a sort finds, by all kernels and in pieces of any size") {
  for (int kind = 0; kind < kinds; ++kind) {
    CAPTURE(kind);
    for (std::size_t const n : {1u, 5u, 9u, 1000u, 4097u, 20000u, 60001u}) {
      CAPTURE(n);
      floats const values = values_of(kind, n, static_cast<std::uint32_t>(n));
      for (double const fraction : {1e-9, 0.01, 0.1, 0.7, 1.0}) {
        CAPTURE(fraction);
        top_k<float32> const codec{.fraction = fraction};
        bytes const whole = encoded(codec, values);
        REQUIRE(same_values(decoded(codec, whole, n), kept_only(values, codec.kept_of(n))));
        {
          kernels const scalar(false);
          REQUIRE(encoded(codec, values) == whole);
        }
        std::mt19937 random(3);
        bytes pieces(whole.size());
        top_k<float32>::encoder encoder;
        encoder.begin(codec, n);
        for (std::size_t i = 0; i < n;) {
          std::size_t const now = std::min<std::size_t>(random() % 6000, n - i);
          encoder.offer(values.data() + i, now);
          i += now;
        }
        encoder.finish(codec, pieces.data());
        REQUIRE(pieces == whole);
      }
    }
  }
}

TEST_CASE("top_k: an encoder serves array after array") {
  top_k<e3m0<32>> const codec{.fraction = 0.05};
  top_k<e3m0<32>>::encoder encoder;
  encoder.reserve(codec, 30000);
  for (std::size_t const n : {30000u, 0u, 1u, 29999u, 40000u, 12345u}) {
    CAPTURE(n);
    floats const values = normal_values(n, n);
    bytes out(codec.message_bytes(n));
    encoder.begin(codec, n);
    encoder.offer(values.data(), n);
    encoder.finish(codec, out.data());
    CHECK(out == encoded(codec, values));
  }
}

TEST_CASE_TEMPLATE("top_k: the values are an array of the other codec", V, float32, bf16, e3m0<32>,
                   e3m0<256>) {
  top_k<V> const codec{.fraction = 0.1};
  constexpr std::size_t n = 123457;  // so that what is kept takes several tiles of V
  floats const values = normal_values(n, 5);
  std::vector<std::uint32_t> const places = largest_places(values, codec.kept_of(n));
  floats kept;
  for (std::uint32_t const i : places) kept.push_back(values[i]);
  bytes codes(encoded_bytes(V{}, kept.size()));
  rivulet::codec::encode(V{}, kept, codes);
  rivulet::codec::decode(V{}, codes, kept);
  bytes const in = encoded(codec, values);
  REQUIRE(std::memcmp(in.data(), places.data(), 4 * places.size()) == 0);
  REQUIRE(std::equal(codes.begin(), codes.end(), in.end() - static_cast<int>(codes.size())));

  floats expected = normal_values(n, 6);
  floats const before = expected;
  for (std::size_t j = 0; j < kept.size(); ++j) {
    expected[places[j]] = std::fma(kept[j], 0.3f, expected[places[j]]);
  }
  floats sums = before;
  rivulet::codec::accumulate(codec, in, 0.3f, sums);
  CHECK(sums == expected);
  // Any range by itself: ranges of a tile, and shorter and longer ones.
  for (std::size_t const step : {4096u, 17u, 1u << 16}) {
    sums = before;
    for (std::size_t first = 0; first < n; first += step) {
      std::size_t const count = std::min(step, n - first);
      rivulet_test::guarded<float> part(count, 0.0f);
      std::copy_n(sums.data() + first, count, part.values().data());
      codec.accumulate(in.data(), n, first, count, 0.3f, part.values().data());
      REQUIRE(part.intact());
      std::copy_n(part.values().data(), count, sums.data() + first);
    }
    CHECK(sums == expected);
  }
}

TEST_CASE("top_k: senders are added in order") {
  top_k<float32> const codec{.fraction = 0.5};
  floats const a{1e8f, 0.0f};
  floats const b{-1e8f, 0.0f};
  floats const c{1.0f, 0.5f};
  bytes const codes[] = {encoded(codec, a), encoded(codec, b), encoded(codec, c)};
  rivulet::codec::weighted_codes const senders[] = {
      {codes[0], 1.0f}, {codes[1], 1.0f}, {codes[2], 0.5f}};
  floats sums{0.0f, 7.0f};
  rivulet::codec::accumulate(codec, senders, sums);
  CHECK(sums == floats{0.5f, 7.0f});
}

TEST_CASE("top_k: any bytes decode to something") {
  std::mt19937 random(9);
  top_k<e3m0<32>> const codec{.fraction = 0.2};
  for (std::size_t const n : {1u, 31u, 500u, 30000u}) {
    bytes in(codec.message_bytes(n));
    for (int round = 0; round < 40; ++round) {
      for (std::byte& b : in) b = static_cast<std::byte>(random());
      for (std::size_t j = 0; j < codec.kept_of(n); ++j) {  // places near the array, in any order
        auto const place = static_cast<std::uint32_t>(random() % (n + n / 4 + 1));
        if (round % 4 != 0) std::memcpy(in.data() + 4 * j, &place, 4);
      }
      rivulet_test::guarded<float> values(n, 1.0f);
      rivulet::codec::decode(codec, in, values.values());
      REQUIRE(values.intact());
      rivulet_test::guarded<float> part(n / 3, 1.0f);
      codec.accumulate(in.data(), n, n / 2, n / 3, 1.0f, part.values().data());
      REQUIRE(part.intact());
    }
  }
  // Places out of range are ignored, repeated ones count twice.
  top_k<float32> const half{.fraction = 0.5};
  std::uint32_t const places[] = {1, 1, 4, 0xffffffffu};
  float const kept[] = {1.0f, 2.0f, 4.0f, 8.0f};
  bytes in(32);
  std::memcpy(in.data(), places, 16);
  std::memcpy(in.data() + 16, kept, 16);
  CHECK(decoded(half, in, 8) == floats{0, 3, 0, 0, 4, 0, 0, 0});
}

TEST_CASE("top_k: sizes are checked") {
  top_k<float32> const codec{.fraction = 0.25};
  floats values(64);
  bytes wrong(129);
  CHECK_THROWS_WITH_AS(rivulet::codec::encode(codec, values, wrong),
                       "rivulet: encode: 64 values take 128 bytes, not 129",
                       rivulet::precondition_error);
  CHECK_THROWS_WITH_AS(rivulet::codec::decode(codec, wrong, values),
                       "rivulet: decode: 64 values take 128 bytes, not 129",
                       rivulet::precondition_error);
  CHECK_THROWS_WITH_AS(rivulet::codec::accumulate(codec, wrong, 1.0f, values),
                       "rivulet: accumulate: 64 values take 128 bytes, not 129",
                       rivulet::precondition_error);
  top_k<float32>::encoder encoder;
  CHECK_THROWS_WITH_AS(encoder.begin(codec, std::size_t{1} << 32),
                       "rivulet: top_k: 4294967296 values; must be below 2^32",
                       rivulet::precondition_error);
  encoder.begin(codec, 10);
  encoder.offer(values.data(), 8);
  CHECK_THROWS_WITH_AS(encoder.finish(codec, wrong.data()),
                       "rivulet: top_k: 8 values offered of 10", rivulet::precondition_error);
  CHECK_THROWS_WITH_AS(encoder.offer(values.data(), 3), "rivulet: top_k: 11 values offered of 10",
                       rivulet::precondition_error);
}

TEST_CASE("top_k: options are checked and counted") {
  for (double const fraction : {1e-9, 0.01, 1.0}) {
    CHECK_NOTHROW(top_k<float32>{.fraction = fraction}.check());
  }
  struct {
    double fraction;
    char const* text;
  } const refused[] = {{0.0, "rivulet: top_k: fraction = 0.000000 must be above 0 and at most 1"},
                       {-0.5, "rivulet: top_k: fraction = -0.500000 must be above 0 and at most 1"},
                       {1.5, "rivulet: top_k: fraction = 1.500000 must be above 0 and at most 1"},
                       {NAN, "rivulet: top_k: fraction = nan must be above 0 and at most 1"}};
  for (auto const& c : refused) {
    CHECK_THROWS_WITH_AS((top_k<float32>{.fraction = c.fraction}.check()), c.text,
                         rivulet::precondition_error);
  }
  std::uint64_t const hash = top_k<e3m0<32>>{}.fingerprint();
  CHECK(hash == top_k<e3m0<32>>{}.fingerprint());
  CHECK(hash != top_k<e3m0<32>>{.fraction = 0.02}.fingerprint());
  CHECK(hash != top_k<e3m0<64>>{}.fingerprint());
  CHECK(hash != top_k<float32>{}.fingerprint());
}

}  // namespace
