#pragma once

/// \file
/// The saved state of an engine as bytes: a header, versions, outer parameters, optimizer slots,
/// the residuals of error feedback, the operations in flight with their gathered messages, and a
/// checksum over all of it.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <rivulet/detail/hash.hpp>
#include <rivulet/error.hpp>

namespace rivulet::detail {

/// First bytes of a saved state.
struct state_header {
  static constexpr std::uint64_t expected_magic = 0x3145544154535652u;  // "RVSTATE1"

  std::uint64_t magic = expected_magic;
  std::uint64_t settings = 0;  ///< hash of what the outer state's bits depend on
  std::int64_t step = 0;
  std::uint64_t values = 0;
  std::uint32_t fragments = 0;
  std::uint32_t slots = 0;
  std::uint64_t residual_values = 0;  ///< of error feedback: `values`, or none
  float learning_rate = 0;
  std::int32_t world = 0;
  std::uint64_t in_flight = 0;
};

/// What stands before the messages of an operation in flight.
struct operation_header {
  std::int32_t fragment = 0;
  std::int32_t rejected_parameter = -1;
  std::int64_t sent_at = 0;
  std::uint64_t bytes = 0;
  std::uint64_t residual_values = 0;  ///< of error feedback, if the sender's weight was not 0
};

/// Passes what it is given to sink(std::span<std::byte const>), and sums it up.
template <class Sink>
class state_writer {
 public:
  explicit state_writer(Sink& sink) : sink_(&sink) {}

  void put(std::span<std::byte const> bytes) {
    sum_.add(mixed_sum(bytes.data(), bytes.size()));
    (*sink_)(bytes);
  }
  template <class T>
  void put_value(T const& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(std::as_bytes(std::span(&value, 1)));
  }
  void finish() { put_value(sum_.value()); }

 private:
  Sink* sink_;
  hash sum_;
};

/// A saved state, read: spans into its bytes.
struct saved_state {
  struct operation {
    operation_header header;
    std::span<std::byte const> messages;
    std::span<std::byte const> residual;
  };

  state_header header;
  std::vector<std::uint64_t> versions;
  std::span<std::byte const> theta;
  std::span<std::byte const> slots;
  std::span<std::byte const> residuals;
  std::vector<operation> in_flight;

  /// Throws state_error if the bytes are no saved state, truncated or damaged.
  [[nodiscard]] static saved_state read(std::span<std::byte const> bytes) {
    hash sum;
    auto const take = [&](std::uint64_t count) {
      if (count > bytes.size()) {
        throw state_error(concat("rivulet: the saved state is truncated: ", count,
                                 " bytes expected, ", bytes.size(), " left"));
      }
      auto const taken = bytes.first(static_cast<std::size_t>(count));
      bytes = bytes.subspan(taken.size());
      sum.add(mixed_sum(taken.data(), taken.size()));
      return taken;
    };
    auto const take_value = [&](auto& value) {
      std::memcpy(&value, take(sizeof value).data(), sizeof value);
    };
    saved_state state;
    state_header& header = state.header;
    take_value(header);
    if (header.magic != state_header::expected_magic) {
      throw state_error("rivulet: these bytes are no saved state (wrong magic)");
    }
    std::uint64_t const arrays = std::uint64_t{1} + header.slots;
    if (header.values > bytes.size() / 4 / arrays || header.residual_values > bytes.size() / 4 ||
        header.fragments > bytes.size() || header.in_flight > bytes.size()) {
      throw state_error("rivulet: the saved state is damaged: a size in its header is too large");
    }
    for (std::uint32_t p = 0; p < header.fragments; ++p) {
      take_value(state.versions.emplace_back());
    }
    state.theta = take(header.values * 4);
    state.slots = take(header.values * 4 * header.slots);
    state.residuals = take(header.residual_values * 4);
    for (std::uint64_t i = 0; i < header.in_flight; ++i) {
      operation& op = state.in_flight.emplace_back();
      take_value(op.header);
      op.messages = take(op.header.bytes);
      op.residual = take((std::min)(op.header.residual_values, header.values) * 4);
    }
    std::uint64_t const expected = sum.value();
    std::uint64_t found = 0;
    take_value(found);
    if (found != expected || !bytes.empty()) {
      throw state_error("rivulet: the saved state is damaged: its checksum is wrong");
    }
    return state;
  }
};

}  // namespace rivulet::detail
