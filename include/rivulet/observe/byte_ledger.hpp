#pragma once

/// \file
/// Adds up what the reports of an engine say about bytes and seconds.

#include <algorithm>
#include <cstdint>

#include <rivulet/engine/report.hpp>

namespace rivulet::observe {

/// Totals over the steps of a run, for one worker.
struct byte_ledger {
  std::uint64_t steps = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t peak_bytes_per_step = 0;  ///< the largest number of bytes sent after any one step
  std::uint64_t syncs_sent = 0;
  std::uint64_t syncs_applied = 0;
  std::uint64_t syncs_skipped = 0;
  double wire_seconds = 0;
  double hidden_seconds = 0;
  double stalled_seconds = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;

  /// Adds a step's report.
  void add(step_report const& report) {
    ++steps;
    bytes_sent += report.bytes_sent;
    peak_bytes_per_step = (std::max)(peak_bytes_per_step, report.bytes_sent);
    syncs_sent += report.sent.size();
    syncs_applied += report.applied.size();
    syncs_skipped += report.skipped.size();
    wire_seconds += report.wire_seconds;
    hidden_seconds += report.hidden_seconds;
    stalled_seconds += report.stalled_seconds;
    encode_seconds += report.encode_seconds;
    decode_seconds += report.decode_seconds;
  }
};

}  // namespace rivulet::observe
