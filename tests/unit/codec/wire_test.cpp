#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/wire.hpp>

namespace {

using rivulet::header_bytes;
using rivulet::wire_check;
using rivulet::wire_header;

wire_header sample() {
  wire_header header;
  header.codec = 3;
  header.fragment = 5;
  header.flags = wire_header::no_weight;
  header.step = 110;
  header.version = 4;
  header.weight = 2.5;
  header.payload_bytes = 102;
  header.outer_state = 0x0123456789abcdefu;
  header.learning_rate = 0.4f;
  header.part = 0x80000002u;
  header.payload_sum = 0xfedcba9876543210u;
  return header;
}

TEST_CASE("wire: the header has its fields at fixed places") {
  std::byte m[header_bytes + 8];
  std::memset(m, 0x77, sizeof m);
  wire_header header = sample();
  header.write(m + 3);  // at any address
  auto const at = [&]<class T>(std::size_t offset, T) {
    T value;
    std::memcpy(&value, m + 3 + offset, sizeof value);
    return value;
  };
  CHECK(std::memcmp(m + 3, "RVLT", 4) == 0);
  CHECK(at(4, std::uint16_t{}) == 1);    // format
  CHECK(at(6, std::uint16_t{}) == 3);    // codec
  CHECK(at(8, std::uint32_t{}) == 5);    // fragment
  CHECK(at(12, std::uint32_t{}) == 2);   // flags
  CHECK(at(16, std::int64_t{}) == 110);  // step
  CHECK(at(24, std::uint64_t{}) == 4);   // version
  CHECK(at(32, double{}) == 2.5);        // weight
  CHECK(at(40, std::uint64_t{}) == 102);
  CHECK(at(48, std::uint64_t{}) == 0x0123456789abcdefu);  // outer state
  CHECK(at(56, float{}) == 0.4f);                         // learning rate
  CHECK(at(60, std::uint32_t{}) == 0x80000002u);          // part
  CHECK(at(64, std::uint64_t{}) == 0xfedcba9876543210u);
  CHECK(at(72, std::uint64_t{}) == rivulet::detail::mixed_sum(m + 3, 72));
  CHECK(header_bytes == 80);
  CHECK(m[2] == std::byte{0x77});
  CHECK(m[83] == std::byte{0x77});
}

TEST_CASE("wire: flags and defaults") {
  CHECK(wire_header::rejected == 1);
  CHECK(wire_header::no_weight == 2);
  wire_header const header;
  CHECK(header.magic == wire_header::expected_magic);
  CHECK(header.format == wire_header::expected_format);
  CHECK(header.flags == 0);
  CHECK(header.weight == 1);
  CHECK(header.part == 0);
}

TEST_CASE("wire: what is written is read, and sealed") {
  std::byte m[header_bytes];
  wire_header header = sample();
  header.write(m);
  wire_header const read = wire_header::read(m);
  CHECK(std::memcmp(&read, &header, sizeof read) == 0);
  CHECK(read.header_sum == read.compute_sum());
}

TEST_CASE("wire: every flipped bit of a header breaks the seal") {
  std::byte m[header_bytes];
  wire_header header = sample();
  header.write(m);
  for (std::size_t bit = 0; bit < 8 * header_bytes; ++bit) {
    m[bit / 8] ^= std::byte(1u << (bit % 8));
    wire_header const read = wire_header::read(m);
    REQUIRE(read.header_sum != read.compute_sum());
    m[bit / 8] ^= std::byte(1u << (bit % 8));
  }
}

TEST_CASE("wire: any bytes are a header to read") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    std::byte m[header_bytes];
    for (std::byte& b : m) b = static_cast<std::byte>(random());
    wire_header const read = wire_header::read(m);
    CHECK(read.header_sum != read.compute_sum());
    CHECK(std::memcmp(&read, m, header_bytes) == 0);
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
      {wire_check::part, "part of the fragment"},
      {wire_check::step, "step"},
      {wire_check::version, "version"},
      {wire_check::weight, "weight"},
      {wire_check::learning_rate, "outer learning rate"},
      {wire_check::outer_state, "checksum of the outer parameters (the replicas have diverged)"},
      {wire_check::payload_sum, "payload checksum"}};
  for (auto const& t : texts) CHECK(rivulet::to_string(t.check) == t.text);
}

}  // namespace
