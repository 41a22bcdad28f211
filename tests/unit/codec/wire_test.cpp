#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/wire.hpp>

#include "contract/block_codec_contract.hpp"

namespace {

using codec = rivulet::codec::e3m0<32>;
using rivulet::header_bytes;
using rivulet::wire_check;
using rivulet::wire_header;

constexpr std::size_t blocks = 3;
constexpr std::size_t payload_bytes = blocks * rivulet::codec::block_bytes<codec>;
using bytes = std::vector<std::byte>;

wire_header good_header() {
  wire_header header;
  header.codec = codec::id;
  header.fragment = 5;
  header.step = 110;
  header.version = 4;
  header.weight = 2.5;
  header.payload_bytes = payload_bytes;
  header.outer_state = 0x0123456789abcdefu;
  header.learning_rate = 0.4f;
  return header;
}

/// A message as a sender would make it, after `change` of its header.
bytes message(std::function<void(wire_header&)> const& change = {}) {
  bytes result(header_bytes + payload_bytes);
  rivulet::codec::encode(codec{}, rivulet_test::normal_values(blocks * 32, 1),
                         std::span(result).subspan(header_bytes));
  wire_header header = good_header();
  header.payload_sum =
      rivulet::codec::detail::payload_sum<codec>(result.data() + header_bytes, blocks);
  if (change) change(header);
  header.write(result.data());
  return result;
}

wire_check check(std::span<std::byte const> received) {
  return rivulet::check_message<codec>(received, good_header(), blocks);
}

TEST_CASE("wire: the header has its fields at fixed places") {
  bytes const m = message();
  auto const at = [&]<class T>(std::size_t offset, T) {
    T value;
    std::memcpy(&value, m.data() + offset, sizeof value);
    return value;
  };
  CHECK(std::memcmp(m.data(), "RVLT", 4) == 0);
  CHECK(at(4, std::uint16_t{}) == 1);    // format
  CHECK(at(6, std::uint16_t{}) == 3);    // codec
  CHECK(at(8, std::uint32_t{}) == 5);    // fragment
  CHECK(at(12, std::uint32_t{}) == 0);   // flags
  CHECK(at(16, std::int64_t{}) == 110);  // step
  CHECK(at(24, std::uint64_t{}) == 4);   // version
  CHECK(at(32, double{}) == 2.5);        // weight
  CHECK(at(40, std::uint64_t{}) == payload_bytes);
  CHECK(at(48, std::uint64_t{}) == 0x0123456789abcdefu);  // outer state
  CHECK(at(56, float{}) == 0.4f);                         // learning rate
  CHECK(at(60, std::uint32_t{}) == 0);                    // reserved
  CHECK(at(64, std::uint64_t{}) == wire_header::read(m.data()).payload_sum);
  CHECK(at(72, std::uint64_t{}) == rivulet::detail::mixed_sum(m.data(), 72));
  CHECK(header_bytes == 80);
}

TEST_CASE("wire: a good message is good at every address") {
  bytes const m = message();
  for (std::size_t shift = 0; shift < 16; ++shift) {
    bytes moved(m.size() + shift);
    std::memcpy(moved.data() + shift, m.data(), m.size());
    CHECK(check(std::span(moved).subspan(shift)) == wire_check::good);
  }
}

TEST_CASE("wire: every field that is wrong is named, though the header is sealed") {
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
                        h.flags = 2;
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
  for (auto const& c : cases) {
    CAPTURE(rivulet::to_string(c.expected));
    CHECK(check(message(c.change)) == c.expected);
  }
}

TEST_CASE("wire: every single flipped bit is noticed") {
  bytes m = message();
  for (std::size_t i = 0; i < m.size(); ++i) {
    wire_check const expected = i < 4              ? wire_check::magic
                                : i < 6            ? wire_check::format
                                : i < header_bytes ? wire_check::header_sum
                                                   : wire_check::payload_sum;
    for (unsigned bit = 0; bit < 8; ++bit) {
      m[i] ^= std::byte(1u << bit);
      CHECK_MESSAGE(check(m) == expected, "byte " << i << " bit " << bit);
      m[i] ^= std::byte(1u << bit);
    }
  }
  CHECK(check(m) == wire_check::good);
}

TEST_CASE("wire: truncated and longer messages are refused") {
  bytes const m = message();
  for (std::size_t size = 0; size < m.size(); ++size) {
    bytes const exact(m.begin(), m.begin() + static_cast<std::ptrdiff_t>(size));
    REQUIRE(check(exact) == wire_check::length);
  }
  bytes longer = m;
  longer.push_back(std::byte{0});
  CHECK(check(longer) == wire_check::length);
}

TEST_CASE("wire: arbitrary bytes are refused") {
  std::mt19937_64 random(1);
  bytes m(header_bytes + payload_bytes);
  for (int round = 0; round < 2000; ++round) {
    for (std::byte& b : m) b = static_cast<std::byte>(random());
    REQUIRE(check(m) == wire_check::magic);
    wire_header header = wire_header::read(m.data());  // arbitrary, but sealed
    header.magic = wire_header::expected_magic;
    header.format = wire_header::expected_format;
    header.write(m.data());
    REQUIRE(check(m) == wire_check::length);
    header.payload_bytes = payload_bytes;
    header.codec = codec::id;
    header.write(m.data());
    REQUIRE(check(m) == wire_check::fragment);
  }
}

TEST_CASE("wire: every check has a text") {
  struct {
    wire_check check;
    char const* text;
  } const texts[] = {
      {wire_check::good, "good"},
      {wire_check::length, "length"},
      {wire_check::magic, "magic"},
      {wire_check::format, "format"},
      {wire_check::header_sum, "header checksum"},
      {wire_check::codec, "codec"},
      {wire_check::fragment, "fragment"},
      {wire_check::step, "step"},
      {wire_check::version, "version"},
      {wire_check::weight, "weight"},
      {wire_check::learning_rate, "outer learning rate"},
      {wire_check::outer_state, "checksum of the outer parameters (the replicas have diverged)"},
      {wire_check::payload_sum, "payload checksum"}};
  for (auto const& t : texts) CHECK(rivulet::to_string(t.check) == t.text);
}

}  // namespace
