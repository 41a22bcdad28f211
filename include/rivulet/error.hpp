#pragma once

/// \file
/// The three kinds of error: misuse, a saved state that cannot be used, a world that fails.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include <rivulet/config.hpp>

namespace rivulet {

/// The caller broke a rule. The text names the parameter, its value and the rule; nothing was
/// changed.
class precondition_error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A saved state is damaged or belongs to other settings; nothing was changed.
class state_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Outcome of a collective. All but `done` are final: the communicator serves no more.
enum class comm_status : std::uint8_t {
  done,     ///< completed on this rank
  timeout,  ///< a peer did not arrive before the deadline
  failed,   ///< the transport failed, or the ranks did not agree on the operation
  aborted   ///< abort() was called here or on a peer
};

/// Name of a status for messages.
[[nodiscard]] constexpr std::string_view to_string(comm_status status) {
  switch (status) {
    case comm_status::done: return "done";
    case comm_status::timeout: return "timeout";
    case comm_status::failed: return "failed";
    case comm_status::aborted: return "aborted";
  }
  return "unknown";
}

/// The world failed: a peer is late, gone, or sent what cannot be trusted.
class comm_error : public std::runtime_error {
 public:
  /// `peer` and `fragment` are -1 where unknown; `step` is the step of the send, 0 outside
  /// a sync.
  comm_error(std::string const& what, comm_status status, int peer, int fragment, std::int64_t step)
      : std::runtime_error(what), status_(status), peer_(peer), fragment_(fragment), step_(step) {}

  [[nodiscard]] comm_status status() const noexcept { return status_; }
  [[nodiscard]] int peer() const noexcept { return peer_; }
  [[nodiscard]] int fragment() const noexcept { return fragment_; }
  [[nodiscard]] std::int64_t step() const noexcept { return step_; }

 private:
  comm_status status_;
  int peer_;
  int fragment_;
  std::int64_t step_;
};

namespace detail {

/// Joins texts and numbers to one message.
template <class... Parts>
[[nodiscard]] std::string concat(Parts const&... parts) {
  std::string text;
  auto append = [&text](auto const& part) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (append(parts), ...);
  return text;
}

/// Throws precondition_error with the joined message unless `holds`.
template <class... Parts>
void require(bool holds, Parts const&... parts) {
  if (!holds) throw precondition_error("rivulet: " + concat(parts...));
}

}  // namespace detail
}  // namespace rivulet
