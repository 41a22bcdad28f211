#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/engine/report.hpp>

namespace {

using rivulet::comm_status;
using rivulet::step_report;
using rivulet::wire_check;

TEST_CASE("report: restart empties everything and keeps the memory") {
  step_report report;
  report.reserve(3, 5);
  CHECK(report.sent.capacity() >= 3);
  CHECK(report.applied.capacity() >= 6);
  CHECK(report.skipped.capacity() >= 6);
  CHECK(report.written.capacity() >= 5);
  report.sent = {1};
  report.applied = {2};
  report.skipped = {{1, 2, {}, 3}};
  report.written = {4};
  report.bytes_sent = 5;
  report.encode_seconds = report.decode_seconds = 1;
  report.add_wait(2, 1);
  auto const* const memory = report.written.data();
  report.restart(17);
  CHECK(report.step == 17);
  CHECK(report.sent.empty());
  CHECK(report.applied.empty());
  CHECK(report.skipped.empty());
  CHECK(report.written.empty());
  CHECK(report.bytes_sent == 0);
  CHECK(report.wire_seconds == 0);
  CHECK(report.hidden_seconds == 0);
  CHECK(report.stalled_seconds == 0);
  CHECK(report.encode_seconds == 0);
  CHECK(report.decode_seconds == 0);
  report.written.push_back(1);
  CHECK(report.written.data() == memory);
}

TEST_CASE("report: what the caller did not wait for was hidden") {
  step_report report;
  report.add_wait(2.0, 0.5);
  CHECK(report.hidden_seconds == 1.5);
  report.add_wait(1.0, 3.0);  // waited for others too
  CHECK(report.wire_seconds == 3.0);
  CHECK(report.hidden_seconds == 1.5);
  CHECK(report.stalled_seconds == 3.5);
}

TEST_CASE("report: each written parameter is listed once") {
  std::vector<float> a(8192);
  std::vector<float> b(5);
  rivulet::parameter_set params;
  params.add("a", rivulet::layer(0), a);
  params.add("b", rivulet::layer(0), b);
  rivulet::fragment_layout const x({"x", {{1, 0, 5}, {0, 4096, 4096}}}, params,
                                   rivulet::codec::e3m0<64>{});
  rivulet::fragment_layout const y({"y", {{0, 0, 4096}}}, params, rivulet::codec::e3m0<64>{});
  step_report report;
  report.reserve(2, params.size());
  report.note_written(x);
  report.note_written(y);
  CHECK(report.written == std::vector<std::size_t>{1, 0});
  report.restart(2);
  report.note_written(y);
  CHECK(report.written == std::vector<std::size_t>{0});
}

TEST_CASE("report: the error of an exchange tells what, who, where and when") {
  struct {
    rivulet::reduce::exchange_result result;
    char const* text;
    comm_status status;
    int peer;
  } const cases[] = {{{comm_status::timeout, wire_check::good, -1},
                      "rivulet: fragment 2: the communicator reports 'timeout'",
                      comm_status::timeout,
                      -1},
                     {{comm_status::aborted, wire_check::good, -1},
                      "rivulet: fragment 2: the communicator reports 'aborted'",
                      comm_status::aborted,
                      -1},
                     {{comm_status::done, wire_check::version, 3},
                      "rivulet: fragment 2: the message of rank 3 has the wrong version",
                      comm_status::failed,
                      3},
                     {{comm_status::done, wire_check::payload_sum, 0},
                      "rivulet: fragment 2: the message of rank 0 has the wrong payload checksum",
                      comm_status::failed,
                      0}};
  for (auto const& c : cases) {
    rivulet::comm_error const error =
        rivulet::detail::exchange_error(c.result, "fragment 2", 2, 110);
    CHECK(error.what() == std::string(c.text));
    CHECK(error.status() == c.status);
    CHECK(error.peer() == c.peer);
    CHECK(error.fragment() == 2);
    CHECK(error.step() == 110);
  }
}

}  // namespace
