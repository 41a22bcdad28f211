#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/array.hpp>
#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>

#include "contract/codec_contract.hpp"
#include "unit/codec/own_codecs.hpp"

namespace {

using rivulet::codec::encoded_bytes;
using rivulet::codec::weighted_codes;
using rivulet_test::own_int8;
using rivulet_test::own_keyed;
using codec = rivulet::codec::e3m0<64>;
using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

TEST_CASE("array: codecs of a program's own meet the contract") {
  using rivulet_test::magnitudes;
  rivulet_test::codec_promises blocks;
  blocks.error = [](double x, magnitudes const& around) {
    return around.largest < 0x1p-100 ? std::fabs(x) : around.largest / 253;
  };
  blocks.block = blocks.scope = own_int8::block_size;
  blocks.again = rivulet_test::repeat::differs;
  rivulet_test::codec_contract(own_int8{}, blocks);
  rivulet_test::codec_promises tiles;
  tiles.error = [](double x, magnitudes const&) {
    bool const overflows = std::fabs(x) > 0x1.fep127;
    return overflows ? HUGE_VAL : std::max(std::fabs(x) * 0x1p-8, 0x1p-134);
  };
  tiles.again = rivulet_test::repeat::same_values;
  rivulet_test::codec_contract(own_keyed{}, tiles);
}

TEST_CASE("array: the size is that of its tiles") {
  CHECK(encoded_bytes(codec{}, 0) == 0);
  CHECK(encoded_bytes(codec{}, 1) == 34);
  CHECK(encoded_bytes(codec{}, 4096) == 64 * 34);
  CHECK(encoded_bytes(codec{}, 3 * 4096 + 65) == (3 * 64 + 2) * 34);
  CHECK(encoded_bytes(own_keyed{}, 4096) == 8200);
  CHECK(encoded_bytes(own_keyed{}, 2 * 4096) == 16400);
  CHECK(encoded_bytes(own_keyed{}, 2 * 4096 + 1) == 16410);
  static_assert(encoded_bytes(codec{}, 4097) == 65 * 34);
}

TEST_CASE_TEMPLATE("array: it is its tiles, one after the other", C, codec, own_int8,
                   rivulet::codec::bf16) {
  constexpr std::size_t n = 2 * 4096 + 777;
  floats const values = rivulet_test::normal_values(n, 1);
  bytes const all = rivulet_test::encoded(C{}, values);
  bytes joined;
  for (std::size_t first = 0; first < n; first += 4096) {
    std::size_t const count = std::min<std::size_t>(4096, n - first);
    bytes const tile = rivulet_test::encoded(C{}, std::span(values).subspan(first, count));
    joined.insert(joined.end(), tile.begin(), tile.end());
  }
  CHECK(all == joined);
}

TEST_CASE("array: the random numbers of a tile hang on the seed and its place") {
  constexpr std::size_t n = 2 * 4096 + 5;
  floats const values = rivulet_test::normal_values(n, 1);
  auto const key = [&](bytes const& all, std::size_t tile) {
    std::uint64_t result = 0;
    std::memcpy(&result, all.data() + tile * 8200, 8);
    return result;
  };
  bytes const one = rivulet_test::encoded(own_keyed{}, values, 1);
  bytes const two = rivulet_test::encoded(own_keyed{}, values, 2);
  CHECK(one == rivulet_test::encoded(own_keyed{}, values, 1));
  for (std::size_t t = 0; t < 3; ++t) {
    CHECK(key(one, t) ==
          rivulet::detail::hash{}.add(std::uint64_t{1}).add(std::uint64_t{t * 4096}).value());
    CHECK(key(one, t) != key(two, t));
  }
  CHECK(rivulet_test::decoded(own_keyed{}, one, n) == rivulet_test::decoded(own_keyed{}, two, n));
}

TEST_CASE_TEMPLATE("array: the sum over senders is that of one after the other", C, codec, own_int8,
                   own_keyed, rivulet::codec::float32) {
  constexpr std::size_t n = 4096 + 333;
  constexpr float weights[] = {0.25f, 0.3f, -1.0f};
  std::vector<bytes> messages;
  std::vector<weighted_codes> senders;
  for (std::uint64_t s = 0; s < 3; ++s) {
    messages.push_back(rivulet_test::encoded(C{}, rivulet_test::normal_values(n, s)));
  }
  for (std::size_t s = 0; s < 3; ++s) senders.push_back({messages[s], weights[s]});
  floats together = rivulet_test::normal_values(n, 9);
  floats one_by_one = together;
  rivulet::codec::accumulate(C{}, std::span<weighted_codes const>(senders), together);
  for (std::size_t s = 0; s < 3; ++s) {
    rivulet::codec::accumulate(C{}, messages[s], weights[s], one_by_one);
  }
  CHECK(together == one_by_one);
}

TEST_CASE("array: a codec of messages codes it as one") {
  rivulet_test::own_global const global;
  constexpr std::size_t n = 4096 + 333;
  floats const values = rivulet_test::normal_values(n, 1);
  bytes message(encoded_bytes(global, n), std::byte{0xee});
  CHECK(message.size() == n + 4);
  rivulet::codec::encode(global, values, message);
  float scale = 0;
  std::memcpy(&scale, message.data() + n, 4);
  CHECK(scale == rivulet_test::largest(values) / 127);
  floats back(n, 5.0f);
  rivulet::codec::decode(global, message, back);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    wrong += std::fabs(back[i] - values[i]) > 0.501f * scale;
  }
  CHECK(wrong == 0);
  weighted_codes const senders[] = {{message, 0.5f}, {message, -2.0f}};
  floats sums(n, 1.0f);
  rivulet::codec::accumulate(global, std::span<weighted_codes const>(senders), sums);
  floats one_by_one(n, 1.0f);
  rivulet::codec::accumulate(global, message, 0.5f, one_by_one);
  rivulet::codec::accumulate(global, message, -2.0f, one_by_one);
  CHECK(sums == one_by_one);
  message.pop_back();
  CHECK_THROWS_AS(rivulet::codec::encode(global, values, message), rivulet::precondition_error);
  CHECK_THROWS_AS(rivulet::codec::decode(global, message, back), rivulet::precondition_error);
  CHECK_THROWS_AS(rivulet::codec::accumulate(global, message, 1.0f, sums),
                  rivulet::precondition_error);
}

TEST_CASE_TEMPLATE("array: one beyond the caches has the same bytes and values", C, codec,
                   rivulet::codec::bf16) {
  // Streaming stores begin at 32 MiB of values; every tile is one of two.
  constexpr std::size_t n = (std::size_t{8} << 20) + 4096 + 100;
  static_assert(n * 4 >= rivulet::codec::detail::uncached_bytes);
  floats const pattern = rivulet_test::normal_values(4096, 1);
  floats values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = pattern[i % 4096];
  bytes const all = rivulet_test::encoded(C{}, values);
  bytes const tile = rivulet_test::encoded(C{}, pattern);
  bytes const last = rivulet_test::encoded(C{}, std::span(pattern).first(100));
  floats const back = rivulet_test::decoded(C{}, all, n);
  floats const tile_back = rivulet_test::decoded(C{}, tile, 4096);
  std::size_t wrong = 0;
  for (std::size_t t = 0; t < n / 4096; ++t) {
    wrong += std::memcmp(all.data() + t * tile.size(), tile.data(), tile.size()) != 0;
    wrong += std::memcmp(back.data() + t * 4096, tile_back.data(), 4096 * 4) != 0;
  }
  CHECK(wrong == 0);
  CHECK(std::ranges::equal(std::span(all).last(last.size()), last));
  CHECK(std::ranges::equal(std::span(back).last(100), rivulet_test::decoded(C{}, last, 100)));
}

TEST_CASE("array: spans of the wrong size are refused and nothing is written") {
  floats values(100, 3.0f);
  for (std::size_t const size : {67u, 69u, 0u}) {
    bytes wrong(size, std::byte{1});
    bytes const right(68);
    std::string const text = ": 100 values take 68 bytes, not " + std::to_string(size);
    CHECK_THROWS_WITH_AS(rivulet::codec::encode(codec{}, values, wrong),
                         ("rivulet: encode" + text).c_str(), rivulet::precondition_error);
    CHECK_THROWS_WITH_AS(rivulet::codec::decode(codec{}, wrong, values),
                         ("rivulet: decode" + text).c_str(), rivulet::precondition_error);
    CHECK_THROWS_WITH_AS(rivulet::codec::accumulate(codec{}, wrong, 1.0f, values),
                         ("rivulet: accumulate" + text).c_str(), rivulet::precondition_error);
    weighted_codes const senders[] = {{right, 1.0f}, {wrong, 1.0f}};  // the second of two
    CHECK_THROWS_WITH_AS(
        rivulet::codec::accumulate(codec{}, std::span<weighted_codes const>(senders), values),
        ("rivulet: accumulate" + text).c_str(), rivulet::precondition_error);
    CHECK(wrong == bytes(size, std::byte{1}));
    CHECK(values == floats(100, 3.0f));
  }
}

}  // namespace
