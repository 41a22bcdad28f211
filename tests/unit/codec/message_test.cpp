#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/message.hpp>
#include <rivulet/exec/host.hpp>

#include "contract/codec_contract.hpp"
#include "unit/codec/own_codecs.hpp"
#include "unit/codec/scattered_model.hpp"

namespace {

using rivulet::encode_options;
using rivulet::fragment_layout;
using rivulet::header_bytes;
using rivulet::nonfinite_policy;
using rivulet::tile_range;
using rivulet::wire_check;
using rivulet::wire_header;
using rivulet_test::backwards;
using rivulet_test::guarded;
using rivulet_test::own_global;
using rivulet_test::own_int8;
using rivulet_test::own_keyed;
using rivulet_test::scattered_model;
namespace pass = rivulet::pass;
using e3m0 = rivulet::codec::e3m0<64>;
using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

TEST_CASE("message: bytes are a header and the codes of the range") {
  scattered_model const m;
  fragment_layout const blocks = m.layout(e3m0{});
  CHECK(rivulet::payload_bytes(e3m0{}, blocks, blocks.all()) == 293 * 34);
  CHECK(rivulet::message_bytes(e3m0{}, blocks, blocks.all()) == 80 + 293 * 34);
  CHECK(rivulet::payload_bytes(e3m0{}, blocks, {1, 2}) == 93 * 34);
  CHECK(rivulet::payload_bytes(e3m0{}, blocks, {5, 3}) == (1 + 6 + 64) * 34);
  CHECK(rivulet::message_bytes(e3m0{}, blocks, {3, 0}) == 80);
  CHECK(rivulet::message_bytes(e3m0{}, blocks, {8, 0}) == 80);
  fragment_layout const tiles = m.layout(own_keyed{});
  CHECK(rivulet::payload_bytes(own_keyed{}, tiles, tiles.all()) == 8 * 8 + 2 * 18528);
  CHECK(rivulet::payload_bytes(own_keyed{}, tiles, {1, 2}) == 2 * 8 + 2 * 5905);
  fragment_layout const whole = m.layout(own_global{});
  CHECK(rivulet::payload_bytes(own_global{}, whole, whole.all()) == 18528 + 4);
  CHECK(rivulet::payload_bytes(own_global{}, whole, {1, 2}) == 5905 + 4);
  CHECK(rivulet::message_bytes(own_global{}, whole, {3, 0}) == 84);
}

TEST_CASE("message: the checksum of a payload notices what moves") {
  scattered_model const m;
  fragment_layout const layout = m.layout(e3m0{});
  bytes const payload = rivulet_test::payload_of(m.fragment, rivulet_test::values_of(m), e3m0{});
  auto const sum = [&](bytes const& of, tile_range range) {
    return rivulet::payload_sum(e3m0{}, layout, range, of.data() + layout.byte_of(range.first));
  };
  std::uint64_t const all = sum(payload, layout.all());
  CHECK(sum(payload, {3, 0}) == 0);
  CHECK(sum(payload, {1, 2}) != 0);
  auto const changed = [&](auto const& change) {
    bytes other = payload;
    change(other.data());
    return sum(other, layout.all()) != all;
  };
  // Two codes, two words of codes, two scales, or two tiles that change places.
  std::size_t const tile = layout.byte_of(1);
  CHECK(changed([&](std::byte* p) { std::swap_ranges(p + tile, p + tile + 32, p + tile + 32); }));
  CHECK(changed([&](std::byte* p) { std::swap_ranges(p + tile, p + tile + 8, p + tile + 8); }));
  CHECK(changed([&](std::byte* p) {
    std::byte* const scales = p + tile + 64 * 32;
    std::swap_ranges(scales, scales + 2, scales + 2);
  }));
  CHECK(changed([&](std::byte* p) {
    std::byte* const third = p + layout.byte_of(3);
    std::swap_ranges(third, third + 2176, p + layout.byte_of(4));
  }));
  CHECK_FALSE(changed([](std::byte*) {}));
}

/// What a message of own_global decodes to.
floats round_trip(own_global const& codec, floats const& values) {
  bytes message(codec.message_bytes(values.size()));
  rivulet::codec::encode(codec, values, message);
  floats back(values.size());
  rivulet::codec::decode(codec, message, back);
  return back;
}

/// A message of `range` as a sender would make it, and what it left over.
struct sent {
  bytes message;
  wire_header header;
  int parameter;  // what encode_message returned
  floats left_over;

  [[nodiscard]] std::span<std::byte const> payload() const {
    return std::span(message).subspan(header_bytes);
  }
  friend bool operator==(sent const& a, sent const& b) {
    return a.message == b.message && a.parameter == b.parameter &&
           rivulet_test::contract::same_values(a.left_over, b.left_over);
  }
};

wire_header some_header() {
  wire_header header;
  header.fragment = 5;
  header.step = 110;
  header.version = 4;
  header.weight = 2.5;
  header.learning_rate = 0.4f;
  header.part = 7;
  return header;
}

template <class C, class E, class Source>
sent encode(C const& codec, E const& executor, Source const& source, fragment_layout const& layout,
            tile_range range, nonfinite_policy policy = nonfinite_policy::reject,
            bool feeds_back = false) {
  rivulet::message_encoder<C> encoder;
  encoder.reserve(codec, layout.values());
  guarded<std::byte> message(rivulet::message_bytes(codec, layout, range), std::byte{0x77}, 3);
  guarded<float> left_over(feeds_back ? layout.values() : 0, -1.0f, 1);
  encode_options const options{policy, 1234, {feeds_back ? left_over.values().data() : nullptr}};
  sent result;
  // Twice, so that an encoder that keeps something shows it.
  for (int i = 0; i < 2; ++i) {
    result.parameter = rivulet::encode_message(codec, encoder, executor, source, layout, range,
                                               options, some_header(), message.values());
  }
  CHECK(message.intact());
  CHECK(left_over.intact());
  result.message.assign(message.values().begin(), message.values().end());
  result.header = wire_header::read(result.message.data());
  result.left_over.assign(left_over.values().begin(), left_over.values().end());
  return result;
}

TEST_CASE_TEMPLATE("message: the header is completed, the payload is that of the range", C,
                   rivulet::codec::float32, own_int8, e3m0) {
  C const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  floats const theta = rivulet_test::normal_values(layout.values(), 10);
  pass::outer_gradient const source{theta.data()};
  bytes const payload =
      rivulet_test::payload_of(m.fragment, rivulet_test::outer_gradient_of(m, theta), codec);
  for (tile_range const range :
       {layout.all(), tile_range{2, 3}, tile_range{7, 1}, tile_range{4, 0}}) {
    CAPTURE(range.first);
    sent const s = encode(codec, rivulet::exec::host{}, source, layout, range);
    CHECK(encode(codec, backwards{}, source, layout, range) == s);
    CHECK(s.parameter == -1);
    CHECK(std::ranges::equal(
        s.payload(), std::span(payload).subspan(layout.byte_of(range.first), s.payload().size())));
    wire_header expected = some_header();
    expected.codec = C::id;
    expected.payload_bytes = s.payload().size();
    expected.payload_sum = rivulet::payload_sum(codec, layout, range, s.payload().data());
    for (std::size_t t = range.first; t < range.end(); ++t) {
      rivulet::tile_part const part = layout.tile(t);
      expected.outer_state +=
          pass::outer_gradient::checksum(theta.data() + part.first(), part.count, part.first());
    }
    expected.header_sum = expected.compute_sum();
    CHECK(std::memcmp(&s.header, &expected, sizeof expected) == 0);
    CHECK(rivulet::check_message(codec, layout, range, s.message, s.header) == wire_check::good);
  }
}

TEST_CASE("message: a source without a checksum leaves that of the header") {
  scattered_model const m;
  fragment_layout const layout = m.layout(e3m0{});
  rivulet::message_encoder<e3m0> encoder;
  bytes message(rivulet::message_bytes(e3m0{}, layout, layout.all()));
  wire_header header;
  header.outer_state = 77;
  rivulet::encode_message(e3m0{}, encoder, rivulet::exec::host{}, pass::local_values{}, layout,
                          layout.all(), {}, header, message);
  CHECK(wire_header::read(message.data()).outer_state == 77);
}

TEST_CASE("message: a codec of messages is offered the values of the range, in order") {
  own_global const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  floats const all = rivulet_test::values_of(m);
  for (tile_range const range : {layout.all(), tile_range{2, 3}, tile_range{4, 0}}) {
    CAPTURE(range.first);
    std::size_t const first = layout.value_of(range.first);
    floats const values(all.begin() + static_cast<int>(first),
                        all.begin() + static_cast<int>(layout.value_of(range.end())));
    sent const s = encode(codec, rivulet::exec::host{}, pass::local_values{}, layout, range,
                          nonfinite_policy::reject, true);
    CHECK(s.parameter == -1);
    CHECK(s.header.codec == own_global::id);
    CHECK(s.header.payload_bytes == values.size() + 4);
    CHECK(s.header.payload_sum ==
          rivulet::detail::mixed_sum(s.payload().data(), s.payload().size()));
    CHECK(rivulet::payload_sum(codec, layout, range, s.payload().data()) == s.header.payload_sum);
    CHECK(rivulet::check_message(codec, layout, range, s.message, s.header) == wire_check::good);

    floats const back = round_trip(codec, values);
    floats decoded(values.size());
    codec.accumulate(s.payload().data(), values.size(), 0, values.size(), 1.0f, decoded.data());
    CHECK(decoded == back);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < layout.values(); ++i) {
      bool const inside = i >= first && i < first + values.size();
      double const lost = inside ? double{all[i]} - double{back[i - first]} : -1.0;
      wrong += std::fabs(double{s.left_over[i]} - lost) >
               std::fabs(lost) * 0x1p-24 + (inside ? std::fabs(back[i - first]) * 0x1p-24f : 0.0f);
    }
    CHECK(wrong == 0);

    // The sum of two such messages, tile by tile.
    rivulet::codec::weighted_codes const senders[] = {{s.payload(), 0.5f}, {s.payload(), 0.25f}};
    pass::sum_of<own_global> const sum{codec, &layout, range, senders};
    for (std::size_t t = range.first; t < range.end(); ++t) {
      rivulet::tile_part const part = layout.tile(t);
      floats found(part.count, 9.0f);
      sum.load(part, t, found.data());
      floats expected(part.count);
      for (rivulet::codec::weighted_codes const& sender : senders) {
        codec.accumulate(sender.bytes.data(), values.size(), part.first() - first, part.count,
                         sender.weight, expected.data());
      }
      CHECK(found == expected);
    }
  }
}

TEST_CASE("message: shards of a codec of messages are put together from their owners") {
  own_global const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  floats const all = rivulet_test::values_of(m);
  for (int const shards : {1, 3, 11}) {
    std::vector<sent> messages;
    std::vector<rivulet::codec::weighted_codes> senders;
    floats expected;
    for (int r = 0; r < shards; ++r) {
      tile_range const range = layout.shard(r, shards);
      messages.push_back(encode(codec, rivulet::exec::host{}, pass::local_values{}, layout, range));
      floats const values(all.begin() + static_cast<int>(layout.value_of(range.first)),
                          all.begin() + static_cast<int>(layout.value_of(range.end())));
      floats const back = round_trip(codec, values);
      expected.insert(expected.end(), back.begin(), back.end());
    }
    for (sent const& s : messages) senders.push_back({s.payload(), 1.0f});
    pass::shards_of<own_global> const source{codec, &layout, senders};
    floats found(layout.values());
    for (std::size_t t = 0; t < layout.tiles(); ++t) {
      rivulet::tile_part const part = layout.tile(t);
      source.load(part, t, found.data() + part.first());
    }
    CHECK(found == expected);
  }
}

TEST_CASE_TEMPLATE("message: reject flags it and names the first parameter with NaN or infinity", C,
                   e3m0, own_keyed, own_global) {
  C const codec;
  constexpr auto none = static_cast<std::size_t>(-1);
  // Values of the fragment that are made bad, and the parameter of the earliest.
  struct {
    std::size_t first, second;
    int parameter;
  } const cases[] = {{0, none, 4},     {5905, none, 0},   {5906, 1, 0},      {14098, 9000, 2},
                     {14098, none, 1}, {14099, 14098, 1}, {14431, 14432, 5}, {18527, none, 2}};
  for (auto const& c : cases) {
    CAPTURE(c.first);
    scattered_model const m;
    m.for_each_value([&](rivulet::parameter const& p, std::size_t i, std::size_t at) {
      if (at == c.first || at == c.second) rivulet_test::store(p, i, -NAN);
    });
    fragment_layout const layout = m.layout(codec);
    sent const s = encode(codec, rivulet::exec::host{}, pass::local_values{}, layout, layout.all());
    CHECK(s.parameter == c.parameter);
    CHECK(s.header.flags == wire_header::rejected);
    CHECK(s.header.header_sum == s.header.compute_sum());
    CHECK(encode(codec, backwards{}, pass::local_values{}, layout, layout.all()).parameter ==
          c.parameter);
  }
}

TEST_CASE_TEMPLATE("message: saturated values are what is sent and kept", C, e3m0, own_global) {
  C const codec;
  scattered_model const m;
  m.for_each_value([&](rivulet::parameter const& p, std::size_t i, std::size_t at) {
    if (at == 100) rivulet_test::store(p, i, NAN);
    if (at == 14432) rivulet_test::store(p, i, -INFINITY);
  });
  fragment_layout const layout = m.layout(codec);
  sent const s = encode(codec, rivulet::exec::host{}, pass::local_values{}, layout, layout.all(),
                        nonfinite_policy::saturate, true);
  CHECK(s.parameter == -1);
  CHECK(s.header.flags == 0);
  for (float const value : s.left_over) REQUIRE(std::isfinite(value));
  CHECK(s.left_over[100] == 0.0f);
}

// --- checking ---

constexpr tile_range part_of_it{1, 2};

/// A good message of e3m0, and the layout that it belongs to.
struct checked {
  scattered_model m;
  fragment_layout layout = m.layout(e3m0{});
  bytes message =
      encode(e3m0{}, rivulet::exec::host{}, pass::local_values{}, layout, part_of_it).message;

  /// The message after a change of its header, sealed again.
  [[nodiscard]] bytes changed(std::function<void(wire_header&)> const& change) const {
    bytes result = message;
    wire_header header = wire_header::read(result.data());
    change(header);
    header.write(result.data());
    return result;
  }
  [[nodiscard]] wire_check check(std::span<std::byte const> received,
                                 tile_range range = part_of_it) const {
    return rivulet::check_message(e3m0{}, layout, range, received,
                                  wire_header::read(message.data()));
  }
};

TEST_CASE("message: a good one is good at every address") {
  checked const c;
  for (std::size_t shift = 0; shift < 16; ++shift) {
    bytes moved(c.message.size() + shift);
    std::memcpy(moved.data() + shift, c.message.data(), c.message.size());
    CHECK(c.check(std::span(moved).subspan(shift)) == wire_check::good);
  }
}

TEST_CASE("message: every field that is wrong is named, though the header is sealed") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  struct {
    wire_check expected;
    std::function<void(wire_header&)> change;
  } const cases[] = {{wire_check::magic, [](auto& h) { h.magic ^= 1; }},
                     {wire_check::magic, [](auto& h) { h.magic = 0; }},
                     {wire_check::format, [](auto& h) { h.format = 2; }},
                     {wire_check::codec, [](auto& h) { h.codec = 1; }},
                     {wire_check::fragment, [](auto& h) { h.fragment = 4; }},
                     {wire_check::fragment, [](auto& h) { h.fragment = ~0u; }},
                     {wire_check::part, [](auto& h) { h.part = 0; }},
                     {wire_check::part, [](auto& h) { h.part |= 0x80000000u; }},
                     {wire_check::step, [](auto& h) { h.step = 111; }},
                     {wire_check::step, [](auto& h) { h.step = -110; }},
                     {wire_check::version, [](auto& h) { h.version = 5; }},
                     {wire_check::weight, [](auto& h) { h.weight = -1; }},
                     {wire_check::weight, [](auto& h) { h.weight = nan; }},
                     {wire_check::weight, [](auto& h) { h.weight = infinity; }},
                     {wire_check::weight, [](auto& h) { h.weight = -infinity; }},
                     {wire_check::length, [](auto& h) { h.payload_bytes += 1; }},
                     {wire_check::length, [](auto& h) { h.payload_bytes = 0; }},
                     {wire_check::outer_state, [](auto& h) { h.outer_state ^= 1; }},
                     {wire_check::learning_rate, [](auto& h) { h.learning_rate = 0.7f; }},
                     {wire_check::learning_rate, [](auto& h) { h.learning_rate = NAN; }},
                     {wire_check::payload_sum, [](auto& h) { h.payload_sum += 1; }},
                     {wire_check::payload_sum,
                      [](auto& h) {
                        h.flags = wire_header::no_weight;
                        h.payload_sum += 1;
                      }},
                     // What a receiver does not have to agree on.
                     {wire_check::good, [](auto& h) { h.weight = 7; }},
                     {wire_check::good, [](auto& h) { h.weight = 0; }},
                     {wire_check::good, [](auto& h) { h.flags = wire_header::rejected; }},
                     // What is not decoded is not read.
                     {wire_check::good,
                      [](auto& h) {
                        h.weight = 0;
                        h.payload_sum = 0;
                      }},
                     {wire_check::good, [](auto& h) {
                        h.flags = wire_header::rejected;
                        h.payload_sum = 0;
                      }}};
  checked const good;
  for (auto const& c : cases) {
    CAPTURE(rivulet::to_string(c.expected));
    CHECK(good.check(good.changed(c.change)) == c.expected);
  }
}

TEST_CASE("message: a learning rate is compared by its bits") {
  checked const c;
  wire_header expected = wire_header::read(c.message.data());
  expected.learning_rate = NAN;
  bytes const message = c.changed([](auto& h) { h.learning_rate = NAN; });
  CHECK(rivulet::check_message(e3m0{}, c.layout, part_of_it, message, expected) ==
        wire_check::good);
  expected.learning_rate = 0.0f;
  CHECK(rivulet::check_message(e3m0{}, c.layout, part_of_it,
                               c.changed([](auto& h) { h.learning_rate = -0.0f; }),
                               expected) == wire_check::learning_rate);
}

TEST_CASE("message: another range or another codec of the same size is refused") {
  checked const c;
  CHECK(c.check(c.message, {0, 2}) == wire_check::length);
  CHECK(c.check(c.message, {1, 1}) == wire_check::length);
  // Tiles 3 and 7 are of equal size; only `part` tells them apart.
  sent const third =
      encode(e3m0{}, rivulet::exec::host{}, pass::local_values{}, c.layout, tile_range{3, 1});
  CHECK(rivulet::check_message(e3m0{}, c.layout, {7, 1}, third.message, third.header) ==
        wire_check::good);
  wire_header other = third.header;
  other.part = 8;
  CHECK(rivulet::check_message(e3m0{}, c.layout, {7, 1}, third.message, other) == wire_check::part);
}

TEST_CASE("message: every single flipped bit is noticed") {
  checked const c;
  bytes m = c.message;
  for (std::size_t i = 0; i < m.size(); i += i < header_bytes + 20 ? 1 : 13) {
    wire_check const expected = i < 4              ? wire_check::magic
                                : i < 6            ? wire_check::format
                                : i < header_bytes ? wire_check::header_sum
                                                   : wire_check::payload_sum;
    for (unsigned bit = 0; bit < 8; ++bit) {
      m[i] ^= std::byte(1u << bit);
      CHECK_MESSAGE(c.check(m) == expected, "byte " << i << " bit " << bit);
      m[i] ^= std::byte(1u << bit);
    }
  }
  CHECK(c.check(m) == wire_check::good);
}

TEST_CASE("message: truncated and longer ones are refused") {
  checked const c;
  for (std::size_t size = 0; size < c.message.size(); size += size < 100 ? 1 : 37) {
    bytes const exact(c.message.begin(), c.message.begin() + static_cast<std::ptrdiff_t>(size));
    REQUIRE(c.check(exact) == wire_check::length);
  }
  bytes longer = c.message;
  longer.push_back(std::byte{0});
  CHECK(c.check(longer) == wire_check::length);
}

TEST_CASE("message: arbitrary bytes are refused") {
  checked const c;
  std::mt19937_64 random(1);
  bytes m(c.message.size());
  for (int round = 0; round < 200; ++round) {
    for (std::byte& b : m) b = static_cast<std::byte>(random());
    REQUIRE(c.check(m) == wire_check::magic);
    wire_header header = wire_header::read(m.data());  // arbitrary, but sealed
    header.magic = wire_header::expected_magic;
    header.format = wire_header::expected_format;
    header.write(m.data());
    REQUIRE(c.check(m) == wire_check::length);
    header.payload_bytes = m.size() - header_bytes;
    header.codec = e3m0::id;
    header.write(m.data());
    REQUIRE(c.check(m) == wire_check::fragment);
  }
}

}  // namespace
