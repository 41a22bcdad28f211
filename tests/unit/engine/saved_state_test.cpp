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

/// A state as an engine writes it, with two fragments and `slots` slots per value. With feedback,
/// the first operation in flight has a residual, the second none, as if its weight had been 0.
bytes small_state(std::uint32_t slots, std::size_t in_flight, bool feeds_back = false) {
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
  header.residual_values = feeds_back ? values : 0;
  header.learning_rate = 0.4f;
  header.world = 3;
  header.in_flight = in_flight;
  writer.put_value(header);
  for (std::uint64_t const version : versions) writer.put_value(version);
  writer.put(pattern(values * 4, 1));
  writer.put(pattern(values * 4 * slots, 2));
  writer.put(pattern(feeds_back ? values * 4 : 0, 4));
  for (std::size_t i = 0; i < in_flight; ++i) {
    bytes const messages = pattern(11 + i, 3);
    bytes const residual = pattern(feeds_back && i == 0 ? 3 * 4 : 0, 5);
    writer.put_value(operation_header{static_cast<std::int32_t>(i), -1, 120 + std::int64_t(i),
                                      messages.size(), residual.size() / 4});
    writer.put(messages);
    writer.put(residual);
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
      for (bool const feeds_back : {false, true}) {
        CAPTURE(slots);
        CAPTURE(in_flight);
        CAPTURE(feeds_back);
        bytes const state = small_state(slots, in_flight, feeds_back);
        saved_state const read = saved_state::read(state);
        CHECK(read.header.settings == 0x1122334455667788u);
        CHECK(read.header.step == 123);
        CHECK(read.header.values == values);
        CHECK(read.header.fragments == 2);
        CHECK(read.header.slots == slots);
        CHECK(read.header.residual_values == (feeds_back ? values : 0));
        CHECK(read.header.learning_rate == 0.4f);
        CHECK(read.header.world == 3);
        CHECK(std::ranges::equal(read.versions, versions));
        CHECK(std::ranges::equal(read.theta, pattern(values * 4, 1)));
        CHECK(std::ranges::equal(read.slots, pattern(values * 4 * slots, 2)));
        CHECK(std::ranges::equal(read.residuals, pattern(feeds_back ? values * 4 : 0, 4)));
        REQUIRE(read.in_flight.size() == in_flight);
        for (std::size_t i = 0; i < in_flight; ++i) {
          saved_state::operation const& op = read.in_flight[i];
          CHECK(op.header.fragment == static_cast<int>(i));
          CHECK(op.header.sent_at == 120 + static_cast<std::int64_t>(i));
          CHECK(std::ranges::equal(op.messages, pattern(11 + i, 3)));
          CHECK(std::ranges::equal(op.residual, pattern(feeds_back && i == 0 ? 12 : 0, 5)));
        }
      }
    }
  }
}

TEST_CASE("saved_state: every truncation and every extension is refused") {
  for (std::uint32_t const slots : {0u, 1u, 2u}) {
    bytes const state = small_state(slots, 2, slots > 0);
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
    bytes state = small_state(slots, 2, slots > 0);
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
  std::size_t const theta = sizeof(state_header) + sizeof versions;
  for (std::size_t const part : {0u, 1u}) {  // theta and the slots, the slots and the residuals
    bytes state = small_state(1, 2, true);
    auto const first = state.begin() + static_cast<std::ptrdiff_t>(theta + part * 4 * values);
    std::swap_ranges(first, first + 4 * values, first + 4 * values);
    CHECK(refused(state));
  }
}

/// The state with other 8 bytes at a place.
bytes with(bytes state, std::size_t at, std::uint64_t value) {
  std::memcpy(state.data() + at, &value, 8);
  return state;
}

TEST_CASE("saved_state: an operation whose sizes do not fit is refused") {
  std::size_t const op = sizeof(state_header) + sizeof versions + values * 4 * 3;
  bytes const state = small_state(1, 1, true);
  for (std::uint64_t const size :
       {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{4}, std::uint64_t{values + 1},
        std::uint64_t{1} << 62, (std::uint64_t{1} << 62) + 1, ~std::uint64_t{0}}) {
    CAPTURE(size);
    CHECK(refused(with(state, op + offsetof(operation_header, residual_values), size)));
    CHECK(refused(with(state, op + offsetof(operation_header, bytes), size)));
  }
  CHECK_FALSE(refused(with(state, op + offsetof(operation_header, residual_values), 3)));
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
    header.residual_values = any();
    header.in_flight = any();
    std::memcpy(state.data(), &header, sizeof header);
    REQUIRE(refused(state));
  }
}

TEST_CASE("saved_state: the texts of refusals") {
  bytes const state = small_state(1, 0);
  CHECK_THROWS_WITH_AS((void)saved_state::read({state.data(), 10}),
                       "rivulet: the saved state is truncated: 64 bytes expected, 10 left",
                       state_error);
  CHECK_THROWS_WITH_AS((void)saved_state::read({state.data(), state.size() - 1}),
                       "rivulet: the saved state is truncated: 8 bytes expected, 7 left",
                       state_error);
  bytes other = state;
  other[0] ^= std::byte{1};
  CHECK_THROWS_WITH_AS((void)saved_state::read(other),
                       "rivulet: these bytes are no saved state (wrong magic)", state_error);
  other = state;
  other[8] ^= std::byte{1};  // of the settings
  CHECK_THROWS_WITH_AS((void)saved_state::read(other),
                       "rivulet: the saved state is damaged: its checksum is wrong", state_error);
  other = state;
  other[31] = std::byte{0xff};  // of the number of values
  CHECK_THROWS_WITH_AS((void)saved_state::read(other),
                       "rivulet: the saved state is damaged: a size in its header is too large",
                       state_error);
}

}  // namespace
