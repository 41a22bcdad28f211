#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/tile.hpp>

#include "contract/codec_contract.hpp"
#include "unit/codec/own_codecs.hpp"

namespace {

using rivulet::codec::bf16;
using rivulet::codec::chunk;
using rivulet::codec::chunk_values;
using rivulet::codec::e3m0;
using rivulet::codec::float32;
using rivulet::codec::memory;
using rivulet::codec::tile_bytes;
using rivulet::codec::weighted_codes;
using rivulet_test::guarded;
using rivulet_test::own_int8;
using rivulet_test::own_keyed;
using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

constexpr std::size_t counts[] = {1,   2,   15,  16,   17,   63,   64,   65,  511,
                                  512, 513, 640, 1000, 2047, 2500, 4095, 4096};

/// Calls f(chunk) for a tile of `count` in pieces of `size`.
template <class F>
void for_each_chunk(std::size_t count, std::size_t size, F const& f) {
  for (std::size_t first = 0; first < count; first += size) {
    f(chunk(first, std::min(size, count - first), count));
  }
}

template <class C>
bytes encoded_tile(C const& codec, floats const& values, std::uint64_t key = 0) {
  bytes out(tile_bytes(codec, values.size()), std::byte{0xee});
  rivulet::codec::encode_chunk(codec, values.data(), chunk(values.size()), out.data(), key);
  return out;
}

TEST_CASE("tile: bytes are those of its blocks, or what a tile codec says") {
  CHECK(tile_bytes(float32{}, 0) == 0);
  CHECK(tile_bytes(float32{}, 4096) == 16384);
  CHECK(tile_bytes(bf16{}, 333) == 666);
  CHECK(tile_bytes(e3m0<64>{}, 0) == 0);
  CHECK(tile_bytes(e3m0<64>{}, 1) == 34);
  CHECK(tile_bytes(e3m0<64>{}, 64) == 34);
  CHECK(tile_bytes(e3m0<64>{}, 65) == 68);
  CHECK(tile_bytes(e3m0<64>{}, 4096) == 64 * 34);
  CHECK(tile_bytes(own_int8{}, 40) == 60);
  CHECK(tile_bytes(own_keyed{}, 0) == 0);  // though it would say 8
  CHECK(tile_bytes(own_keyed{}, 1) == 10);
  CHECK(tile_bytes(own_keyed{}, 4096) == 8200);
  CHECK(rivulet::codec::block_bytes<own_int8> == 20);
}

TEST_CASE("tile: chunks hold whole blocks and fill a tile") {
  CHECK(chunk_values<float32> == 512);
  CHECK(chunk_values<own_int8> == 512);
  CHECK(chunk_values<e3m0<64>> == 512);
  CHECK(chunk_values<e3m0<256>> == 2048);  // 8 blocks
  CHECK(chunk_values<e3m0<1024>> == 4096);
  CHECK(chunk_values<e3m0<4096>> == 4096);
  CHECK(chunk_values<own_keyed> == 4096);
  chunk const whole(700);
  CHECK(whole.first == 0);
  CHECK(whole.size == 700);
  CHECK(whole.count == 700);
}

TEST_CASE("tile: codes of all blocks come first, then their scales") {
  floats values(40);
  values[0] = 127.001f;    // scale 1
  values[16] = -254.002f;  // scale 2
  values[39] = 63.5005f;   // scale .5, at place 7 of a tail
  bytes const codes = encoded_tile(own_int8{}, values);
  REQUIRE(codes.size() == 3 * 20);
  CHECK(codes[0] == std::byte{127});
  CHECK(codes[16] == std::byte{256 - 127});
  CHECK(codes[32 + 7] == std::byte{127});
  float scales[3];
  std::memcpy(scales, codes.data() + 48, 12);
  CHECK(scales[0] == 1.0f);
  CHECK(scales[1] == 2.0f);
  CHECK(scales[2] == 0.5f);
}

TEST_CASE("tile: a tile codec gets the tile, its count and its key") {
  floats const values = {1.0f, -2.0f, 3.0f};
  bytes const out = encoded_tile(own_keyed{}, values, 0x0123456789abcdefu);
  REQUIRE(out.size() == 14);
  std::uint64_t key = 0;
  std::memcpy(&key, out.data(), 8);
  CHECK(key == 0x0123456789abcdefu);
  floats back(3, 7.0f);
  rivulet::codec::decode_tile(own_keyed{}, out.data(), 3, back.data());
  CHECK(back == values);
  floats sums = {1, 1, 1};
  weighted_codes const senders[] = {{out, 0.5f}, {out, 2.0f}};
  rivulet::codec::accumulate_chunk(own_keyed{}, std::span(senders), 0, chunk(3), sums.data());
  CHECK(sums == floats{3.5f, -4.0f, 8.5f});
}

TEST_CASE_TEMPLATE("tile: chunk by chunk or past the caches it is the same", C, float32, bf16,
                   own_int8, e3m0<32>, e3m0<64>, e3m0<256>, e3m0<1024>) {
  C const codec;
  for (std::size_t const n : counts) {
    CAPTURE(n);
    floats const values = rivulet_test::normal_values(n, n);
    bytes const expected = encoded_tile(codec, values);
    for (memory const where : {memory::cached, memory::uncached}) {
      // On the alignment of streaming stores, and off it.
      for (std::size_t const shift : {0u, 1u, 16u}) {
        CAPTURE(shift);
        guarded<std::byte> out(expected.size(), std::byte{0x55}, shift);
        for_each_chunk(n, chunk_values<C>, [&](chunk part) {
          floats const exact(values.begin() + static_cast<int>(part.first),
                             values.begin() + static_cast<int>(part.first + part.size));
          rivulet::codec::encode_chunk(codec, exact.data(), part, out.values().data(), 0, where);
        });
        rivulet::detail::finish_stores(where == memory::uncached);
        REQUIRE(out.intact());
        REQUIRE(std::ranges::equal(out.values(), expected));
        guarded<float> back(n, -1.0f, shift);
        rivulet::codec::decode_tile(codec, expected.data(), n, back.values().data(), where);
        rivulet::detail::finish_stores(where == memory::uncached);
        REQUIRE(back.intact());
        REQUIRE(rivulet_test::contract::same_values(back.values(),
                                                    rivulet_test::decoded(codec, expected, n)));
      }
    }
  }
}

TEST_CASE_TEMPLATE("tile: several senders add up in order, wherever the tile begins", C, float32,
                   bf16, own_int8, own_keyed, e3m0<32>, e3m0<64>, e3m0<256>) {
  C const codec;
  constexpr std::size_t offset = 37;
  constexpr float weights[] = {0.5f, 0.3f, -2.0f, 0.0f};
  for (std::size_t const n : counts) {
    CAPTURE(n);
    std::vector<bytes> messages;
    std::vector<weighted_codes> senders;
    for (std::uint64_t s = 0; s < 4; ++s) {
      bytes message = encoded_tile(codec, rivulet_test::normal_values(n, 10 * n + s));
      message.insert(message.begin(), offset, std::byte{0xff});
      messages.push_back(message);
    }
    for (std::size_t s = 0; s < 4; ++s) senders.push_back({messages[s], weights[s]});
    floats const before = rivulet_test::normal_values(n, 99);
    floats one_by_one = before;
    for (std::size_t s = 0; s < 4; ++s) {
      floats const values = rivulet_test::decoded(codec, std::span(messages[s]).subspan(offset), n);
      floats const last = one_by_one;
      rivulet::codec::accumulate_chunk(codec, std::span(senders).subspan(s, 1), offset, chunk(n),
                                       one_by_one.data());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < n; ++i) {
        double const added = double{weights[s]} * double{values[i]};
        double const exact = double{last[i]} + added;
        wrong += std::fabs(double{one_by_one[i]} - exact) >
                 (std::fabs(exact) + std::fabs(added)) * 0x1p-23;
      }
      REQUIRE(wrong == 0);
    }
    guarded<float> sums(n, 0, n % 7);
    std::ranges::copy(before, sums.values().begin());
    for_each_chunk(n, chunk_values<C>, [&](chunk part) {
      rivulet::codec::accumulate_chunk(codec, std::span<weighted_codes const>(senders), offset,
                                       part, sums.values().data() + part.first);
    });
    REQUIRE(sums.intact());
    REQUIRE(rivulet_test::contract::same_values(sums.values(), one_by_one));
  }
}

TEST_CASE("tile: senders of no tile and no senders change nothing") {
  floats sums = {1, 2, 3};
  rivulet::codec::accumulate_chunk(e3m0<64>{}, {}, 0, chunk(3), sums.data());
  CHECK(sums == floats{1, 2, 3});
  rivulet::codec::encode_chunk(e3m0<64>{}, nullptr, chunk(0), nullptr, 0);
  rivulet::codec::decode_tile(e3m0<64>{}, nullptr, 0, nullptr);
}

/// A codec with options.
struct tuned : own_int8 {
  std::uint64_t option = 1;
  [[nodiscard]] std::uint64_t fingerprint() const { return option; }
  void check() const { rivulet::detail::require(option < 9, "tuned: option = ", option, " of 9"); }
};
struct other_name : own_int8 {
  static constexpr std::string_view name = "other";
};
struct other_id : own_int8 {
  static constexpr std::uint16_t id = 0x8009;
};

TEST_CASE("tile: the fingerprint tells name, id, block size and options apart") {
  using rivulet::codec::fingerprint;
  std::set<std::uint64_t> const seen = {fingerprint(own_int8{}),
                                        fingerprint(other_name{}),
                                        fingerprint(other_id{}),
                                        fingerprint(tuned{}),
                                        fingerprint(tuned{{}, 2}),
                                        fingerprint(e3m0<32>{}),
                                        fingerprint(e3m0<64>{}),
                                        fingerprint(float32{}),
                                        fingerprint(bf16{}),
                                        fingerprint(own_keyed{}),
                                        fingerprint(rivulet_test::own_global{})};
  CHECK(seen.size() == 11);
  CHECK(fingerprint(tuned{{}, 2}) == fingerprint(tuned{{}, 2}));
}

/// A codec whose id in headers is known at run time only.
struct chosen : own_int8 {
  std::uint16_t chosen_id = 7;
  [[nodiscard]] std::uint16_t wire_id() const { return chosen_id; }
};

TEST_CASE("tile: the id in headers is that of the codec, or of what it stands for") {
  CHECK(rivulet::codec::wire_id(e3m0<64>{}) == 3);
  CHECK(rivulet::codec::wire_id(own_int8{}) == 0x8001);
  CHECK(rivulet::codec::wire_id(chosen{}) == 7);
  CHECK(rivulet::codec::wire_id(chosen{{}, 9}) == 9);
}

TEST_CASE("tile: check asks a codec that has options") {
  CHECK_NOTHROW(rivulet::codec::check(own_int8{}));
  CHECK_NOTHROW(rivulet::codec::check(tuned{}));
  CHECK_THROWS_WITH_AS(rivulet::codec::check(tuned{{}, 9}), "rivulet: tuned: option = 9 of 9",
                       rivulet::precondition_error);
}

}  // namespace
