#pragma once

/// \file
/// What a step did, and the options and errors that engines share.

#include <cstdint>
#include <string>
#include <vector>

#include <rivulet/reduce/mean.hpp>

namespace rivulet {

/// A fragment whose operation changed nothing, on any rank.
struct skipped_fragment {
  int fragment = 0;
  std::int64_t sent_at = 0;
  reduce::verdict why;
  int parameter = -1;  ///< where this rank found NaN or infinity; -1 if it did not
};

/// What one call of after_step or finish did. The lists keep their memory from step to step.
struct step_report {
  std::int64_t step = 0;
  std::vector<int> sent;                  ///< fragments, in order
  std::vector<int> applied;               ///< fragments whose outer step was taken
  std::vector<skipped_fragment> skipped;  ///< alike on all ranks
  std::vector<std::size_t> written;  ///< parameters (indices in the set) that changed, each once
  std::uint64_t bytes_sent = 0;      ///< by this worker, headers included
  double wire_seconds = 0;     ///< collectives of what was received, on the communication thread
  double hidden_seconds = 0;   ///< the part of it that ran behind computation
  double stalled_seconds = 0;  ///< the caller waited for the wire
  double encode_seconds = 0;   ///< on the caller's thread, never hidden on a CPU
  double decode_seconds = 0;   ///< decoding, outer step and mixing, on the caller's thread

  /// Makes room for what any step can report, so that none allocates.
  void reserve(std::size_t fragments, std::size_t parameters) {
    sent.reserve(fragments);
    applied.reserve(2 * fragments);  // with tau = 0 after a state with operations in flight
    skipped.reserve(2 * fragments);
    written.reserve(parameters);
    is_written_.resize(parameters);
  }

  /// Empties the report, without giving up memory.
  void restart(std::int64_t at) {
    step = at;
    sent.clear();
    applied.clear();
    skipped.clear();
    is_written_.assign(is_written_.size(), false);
    written.clear();
    bytes_sent = 0;
    wire_seconds = hidden_seconds = stalled_seconds = encode_seconds = decode_seconds = 0;
  }

  /// The caller waited `stalled` seconds for a collective that took `wire` seconds.
  void add_wait(double wire, double stalled) {
    wire_seconds += wire;
    hidden_seconds += wire > stalled ? wire - stalled : 0;
    stalled_seconds += stalled;
  }

  /// Adds the parameters of a fragment to `written`; after reserve().
  void note_written(fragment_layout const& layout) {
    for (bound_slice const& s : layout.slices()) {
      if (!is_written_[s.parameter]) written.push_back(s.parameter);
      is_written_[s.parameter] = true;
    }
  }

 private:
  std::vector<bool> is_written_;  // whether a parameter is in the list
};

namespace detail {

/// Seconds since `start`.
[[nodiscard]] inline double seconds_since(deadline start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The deadline of something that starts now.
[[nodiscard]] inline deadline within(int timeout_ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
}

/// The error for an exchange that failed.
[[nodiscard]] inline comm_error exchange_error(reduce::exchange_result const& result,
                                               std::string const& what, int fragment,
                                               std::int64_t step) {
  std::string text = concat("rivulet: ", what, ": ");
  if (result.status != comm_status::done) {
    text += concat("the communicator reports '", to_string(result.status), "'");
  } else {
    text += concat("the message of rank ", result.peer, " has the wrong ", to_string(result.check));
  }
  comm_status const status =
      result.status == comm_status::done ? comm_status::failed : result.status;
  return comm_error(text, status, result.peer, fragment, step);
}

}  // namespace detail
}  // namespace rivulet
