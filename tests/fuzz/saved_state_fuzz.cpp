/// Arbitrary bytes as a saved state: refused, or a state that lies within them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <rivulet/engine/saved_state.hpp>

#include "fuzz/input.hpp"

namespace {

using rivulet::detail::operation_header;
using rivulet::detail::saved_state;
using rivulet::detail::state_header;
using rivulet_test::expect;
using rivulet_test::fuzz_input;

/// A state with a right checksum, which no fuzzer would guess, but with any header and parts of any
/// size; as an engine writes it if the header's sizes are small.
std::vector<std::byte> sealed(fuzz_input input) {
  std::vector<std::byte> result;
  auto sink = [&](std::span<std::byte const> part) {
    result.insert(result.end(), part.begin(), part.end());
  };
  rivulet::detail::state_writer writer(sink);
  auto header = input.take<state_header>();
  header.magic = state_header::expected_magic;
  bool const plausible = header.settings % 4 != 0;
  if (plausible) {
    header.values %= 16;
    header.fragments %= 8;
    header.slots %= 4;
    header.residual_values %= 16;
    header.in_flight %= 4;
  }
  writer.put_value(header);
  auto const put = [&](std::uint64_t count) {
    std::vector<std::byte> part(static_cast<std::size_t>(count % 256));
    for (std::byte& b : part) b = input.take<std::byte>();
    writer.put(part);
  };
  for (std::uint32_t i = 0; i < header.fragments % 16; ++i) put(8);
  put(header.values * 4);
  put(header.values * 4 * header.slots);
  put(header.residual_values * 4);
  for (std::uint64_t i = 0; i < header.in_flight % 16; ++i) {
    auto operation = input.take<operation_header>();
    if (plausible) operation.bytes %= 64;
    writer.put_value(operation);
    put(operation.bytes);
    put(std::min(operation.residual_values, header.values) * 4);
  }
  writer.finish();
  expect(!plausible || saved_state::read(result).header.step == header.step,
         "what was written is not read");
  return result;
}

std::size_t size(std::span<std::byte const> part) {
  std::uint64_t sum = 0;  // reads every byte, so that the address sanitizer sees where they lie
  for (std::byte const b : part) sum += static_cast<std::uint64_t>(b);
  expect(sum <= 255 * part.size(), "a part that cannot be read");
  return part.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t count);

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t count) {
  fuzz_input input(std::as_bytes(std::span(data, count)));
  auto const mode = input.take<std::uint8_t>();
  std::span<std::byte const> const rest = input.rest();
  std::vector<std::byte> bytes =
      mode % 2 == 0 ? std::vector<std::byte>(rest.begin(), rest.end()) : sealed(input);
  if (mode % 8 == 7) bytes[input.take<std::uint32_t>() % bytes.size()] ^= std::byte{1};
  bytes.shrink_to_fit();
  try {
    saved_state const state = saved_state::read(bytes);
    std::size_t total = sizeof(state_header) + 8 * state.versions.size() + size(state.theta) +
                        size(state.slots) + size(state.residuals) + sizeof(std::uint64_t);
    for (saved_state::operation const& operation : state.in_flight) {
      total += sizeof operation.header + size(operation.messages) + size(operation.residual);
    }
    expect(total == bytes.size(), "parts do not fill the bytes");
    expect(mode % 8 != 7, "a flipped bit is not seen");
    expect(state.theta.size() == state.header.values * 4 &&
               state.slots.size() == state.theta.size() * state.header.slots &&
               state.residuals.size() == state.header.residual_values * 4 &&
               state.versions.size() == state.header.fragments &&
               state.in_flight.size() == state.header.in_flight,
           "sizes are not those of the header");
  } catch (rivulet::state_error const&) {
  }
  return 0;
}
