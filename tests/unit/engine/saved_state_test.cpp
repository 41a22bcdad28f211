#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/engine/saved_state.hpp>

namespace {

using rivulet::state_error;
using rivulet::detail::operation_header;
using rivulet::detail::saved_state;
using rivulet::detail::state_header;
using bytes = std::vector<std::byte>;

constexpr std::size_t values = 5;
constexpr std::uint64_t versions[] = {4, 3};

bytes pattern(std::size_t count, unsigned first) {
  bytes result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = std::byte((first + 7 * i) & 0xffu);
  return result;
}

/// A state as an engine writes it, with two fragments and `slots` slots per value.
bytes small_state(std::uint32_t slots, std::size_t in_flight) {
  bytes result;
  auto sink = [&](std::span<std::byte const> part) {
    std::ranges::copy(part, std::back_inserter(result));
  };
  rivulet::detail::state_writer writer(sink);
  state_header header;
  header.settings = 0x1122334455667788u;
  header.step = 123;
  header.values = values;
  header.fragments = 2;
  header.slots = slots;
  header.learning_rate = 0.4f;
  header.world = 3;
  header.in_flight = in_flight;
  writer.put_value(header);
  for (std::uint64_t const version : versions) writer.put_value(version);
  writer.put(pattern(values * 4, 1));
  writer.put(pattern(values * 4 * slots, 2));
  for (std::size_t i = 0; i < in_flight; ++i) {
    bytes const messages = pattern(11 + i, 3);
    writer.put_value(
        operation_header{static_cast<std::int32_t>(i), -1, 120 + std::int64_t(i), messages.size()});
    writer.put(messages);
  }
  writer.finish();
  return result;
}

/// Whether `state` is refused as it should be, from memory of exactly its size.
bool refused(bytes const& state) {
  bytes const exact(state);
  try {
    (void)saved_state::read(exact);
    return false;
  } catch (state_error const&) {
    return true;
  }
}

TEST_CASE("saved_state: what was written is read") {
  for (std::uint32_t const slots : {0u, 1u, 2u, 3u}) {
    for (std::size_t const in_flight : {0u, 1u, 2u}) {
      CAPTURE(slots);
      CAPTURE(in_flight);
      bytes const state = small_state(slots, in_flight);
      saved_state const read = saved_state::read(state);
      CHECK(read.header.settings == 0x1122334455667788u);
      CHECK(read.header.step == 123);
      CHECK(read.header.values == values);
      CHECK(read.header.fragments == 2);
      CHECK(read.header.slots == slots);
      CHECK(read.header.learning_rate == 0.4f);
      CHECK(read.header.world == 3);
      CHECK(std::ranges::equal(read.versions, versions));
      CHECK(std::ranges::equal(read.theta, pattern(values * 4, 1)));
      CHECK(std::ranges::equal(read.slots, pattern(values * 4 * slots, 2)));
      REQUIRE(read.in_flight.size() == in_flight);
      for (std::size_t i = 0; i < in_flight; ++i) {
        CHECK(read.in_flight[i].header.fragment == static_cast<int>(i));
        CHECK(read.in_flight[i].header.sent_at == 120 + static_cast<std::int64_t>(i));
        CHECK(std::ranges::equal(read.in_flight[i].messages, pattern(11 + i, 3)));
      }
    }
  }
}

TEST_CASE("saved_state: every truncation and every extension is refused") {
  for (std::uint32_t const slots : {0u, 1u, 2u}) {
    bytes const state = small_state(slots, 2);
    for (std::size_t size = 0; size < state.size(); ++size) {
      CAPTURE(size);
      REQUIRE(refused(bytes(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(size))));
    }
    for (std::size_t const more : {1u, 8u, 64u}) {
      bytes longer = state;
      longer.insert(longer.end(), more, std::byte{0});
      CHECK(refused(longer));
    }
  }
}

TEST_CASE("saved_state: every flipped bit is refused") {
  for (std::uint32_t const slots : {0u, 1u, 2u}) {
    bytes state = small_state(slots, 2);
    for (std::size_t bit = 0; bit < 8 * state.size(); ++bit) {
      CAPTURE(bit);
      state[bit / 8] ^= std::byte(1u << (bit % 8));
      REQUIRE(refused(state));
      state[bit / 8] ^= std::byte(1u << (bit % 8));
    }
    CHECK_FALSE(refused(state));
  }
}

TEST_CASE("saved_state: parts that change places are refused") {
  bytes state = small_state(1, 2);
  std::size_t const theta = sizeof(state_header) + sizeof versions;
  auto const first = state.begin() + static_cast<std::ptrdiff_t>(theta);
  std::swap_ranges(first, first + 4 * values, first + 4 * values);  // theta and the slots
  CHECK(refused(state));
}

TEST_CASE("saved_state: arbitrary bytes and sizes are refused") {
  std::mt19937_64 random(1);
  constexpr std::uint64_t sizes[] = {
      0, 1, 2, 1000, 1u << 31, ~0u, 1ull << 61, (1ull << 62) + 1, 1ull << 63, ~0ull};
  for (int round = 0; round < 20000; ++round) {
    bytes state(random() % 400);
    for (std::byte& b : state) b = static_cast<std::byte>(random());
    REQUIRE(refused(state));
    if (state.size() < sizeof(state_header)) continue;
    auto const any = [&] { return sizes[random() % std::size(sizes)]; };
    state_header header;
    header.values = any();
    header.fragments = static_cast<std::uint32_t>(any());
    header.slots = static_cast<std::uint32_t>(any());
    header.in_flight = any();
    std::memcpy(state.data(), &header, sizeof header);
    REQUIRE(refused(state));
  }
}

TEST_CASE("saved_state: the texts of refusals") {
  bytes const state = small_state(1, 0);
  CHECK_THROWS_WITH_AS((void)saved_state::read({state.data(), 10}),
                       "rivulet: the saved state is truncated: 56 bytes expected, 10 left",
                       state_error);
  CHECK_THROWS_WITH_AS((void)saved_state::read({state.data(), state.size() - 1}),
                       "rivulet: the saved state is truncated: 8 bytes expected, 7 left",
                       state_error);
  bytes other = state;
  other[0] ^= std::byte{1};
  CHECK_THROWS_WITH_AS((void)saved_state::read(other),
                       "rivulet: these bytes are no saved state (wrong magic)", state_error);
  other = state;
  other[60] ^= std::byte{1};
  CHECK_THROWS_WITH_AS((void)saved_state::read(other),
                       "rivulet: the saved state is damaged: its checksum is wrong", state_error);
  other = state;
  other[31] = std::byte{0xff};  // of the number of values
  CHECK_THROWS_WITH_AS((void)saved_state::read(other),
                       "rivulet: the saved state is damaged: a size in its header is too large",
                       state_error);
}

}  // namespace
