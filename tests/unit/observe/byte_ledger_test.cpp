#include <doctest/doctest.h>

#include <rivulet/observe/byte_ledger.hpp>

namespace {

TEST_CASE("byte_ledger: adds up reports and keeps the peak") {
  rivulet::step_report first;
  first.sent = {0, 1};
  first.applied = {2};
  first.skipped = {{3, 1, {}, -1}, {4, 1, {}, -1}, {5, 1, {}, -1}};
  first.bytes_sent = 100;
  first.wire_seconds = 1;
  first.hidden_seconds = 2;
  first.stalled_seconds = 4;
  first.encode_seconds = 8;
  first.decode_seconds = 16;
  rivulet::step_report second;
  second.sent = {2};
  second.applied = {0, 1};
  second.bytes_sent = 30;
  second.wire_seconds = 0.5;
  second.hidden_seconds = 0.25;
  second.stalled_seconds = 0.125;
  second.encode_seconds = 0.0625;
  second.decode_seconds = 0.03125;

  rivulet::observe::byte_ledger ledger;
  ledger.add(first);
  ledger.add(second);
  ledger.add({});
  CHECK(ledger.steps == 3);
  CHECK(ledger.bytes_sent == 130);
  CHECK(ledger.peak_bytes_per_step == 100);
  CHECK(ledger.syncs_sent == 3);
  CHECK(ledger.syncs_applied == 3);
  CHECK(ledger.syncs_skipped == 3);
  CHECK(ledger.wire_seconds == 1.5);
  CHECK(ledger.hidden_seconds == 2.25);
  CHECK(ledger.stalled_seconds == 4.125);
  CHECK(ledger.encode_seconds == 8.0625);
  CHECK(ledger.decode_seconds == 16.03125);
}

}  // namespace
