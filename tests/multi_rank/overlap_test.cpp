/// \file
/// Overlap is measured: on a slow link, what a report calls hidden and stalled is so. Bounds are
/// wide, because threads may be late; they are never early.

#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/faulty.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

constexpr int delay_ms = 30;
constexpr int syncs = 6;

/// Totals of a run of two ranks with a sync in every second step, whose link takes delay_ms, and
/// whose steps take `compute_ms`.
rivulet::observe::byte_ledger measured(int overlap_steps, int compute_ms) {
  rivulet::observe::byte_ledger total;
  run_ranks(2, [&](local& plain) {
    faulty comm(plain, delayed(delay_ms));
    std::vector<float> x(50'000, 1.0f);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), x);
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   settings(2, overlap_steps),
                                   rivulet::partition::whole_model{},
                                   rivulet::codec::e3m0{},
                                   rivulet::outer::nesterov{}};
    rivulet::observe::byte_ledger ledger;
    auto const add = [&](rivulet::step_report const& report) {
      CHECK(report.hidden_seconds >= 0);
      CHECK(report.stalled_seconds >= 0);
      CHECK(report.hidden_seconds <= report.wire_seconds);
      CHECK(report.hidden_seconds + report.stalled_seconds >= 0.999 * report.wire_seconds);
      CHECK((report.encode_seconds > 0) == !report.sent.empty());
      CHECK((report.decode_seconds > 0) == !report.applied.empty());
      CHECK((report.wire_seconds > 0) == !report.applied.empty());
      ledger.add(report);
    };
    for (int step = 1; step <= 2 * syncs; ++step) {
      std::this_thread::sleep_for(std::chrono::milliseconds(compute_ms));
      x[0] += 1.0f;
      add(sync.after_step());
    }
    add(sync.finish());
    if (comm.rank() == 0) total = ledger;
  });
  CHECK(total.syncs_applied == syncs);
  CHECK(total.wire_seconds >= syncs * delay_ms * 1e-3);
  return total;
}

TEST_CASE("with enough computation the wire is hidden") {
  rivulet::observe::byte_ledger const total = measured(1, 4 * delay_ms);
  CHECK(total.hidden_seconds > 0.5 * total.wire_seconds);
  CHECK(total.stalled_seconds < 0.5 * total.wire_seconds);
}

TEST_CASE("without overlap the wire is a stall") {
  rivulet::observe::byte_ledger const total = measured(0, 2);
  CHECK(total.stalled_seconds >= syncs * delay_ms * 1e-3);
  CHECK(total.hidden_seconds < 0.5 * total.wire_seconds);
}

}  // namespace
