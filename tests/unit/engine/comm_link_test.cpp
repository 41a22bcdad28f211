#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <latch>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/comm/local.hpp>
#include <rivulet/engine/comm_link.hpp>

namespace {

using rivulet::comm_status;

/// Rank 1 of 3: the others send the same as this one; or it fails.
struct echo {
  static constexpr rivulet::memory_space payload_space = rivulet::memory_space::host;
  comm_status status = comm_status::done;
  bool throws = false;
  int aborts = 0;
  std::thread::id caller = {};
  std::chrono::steady_clock::duration given = {};

  [[nodiscard]] int rank() const { return 1; }
  [[nodiscard]] int size() const { return 3; }
  comm_status all_gather(std::span<std::byte const> mine, std::span<std::byte> all,
                         rivulet::deadline until) {
    caller = std::this_thread::get_id();
    given = until - std::chrono::steady_clock::now();
    if (throws) throw std::runtime_error("lost");
    for (std::size_t r = 0; r < 3; ++r) {
      std::ranges::copy(mine, all.subspan(r * mine.size()).begin());
    }
    return status;
  }
  comm_status all_to_all(std::span<std::byte const>, std::span<std::byte>, rivulet::deadline) {
    return comm_status::failed;
  }
  comm_status broadcast(std::span<std::byte> data, int root, rivulet::deadline) {
    if (root != 1) std::ranges::fill(data, std::byte{0});
    return status;
  }
  void abort() noexcept { ++aborts; }
};

constexpr int timeout_ms = 600'000;

TEST_CASE("comm_link: gather and broadcast run on the other thread and count their bytes") {
  echo comm;
  rivulet::comm_link<echo> link(comm, 2, timeout_ms);
  CHECK(link.rank() == 1);
  CHECK(link.size() == 3);
  std::vector<int> const mine = {7, 8};
  CHECK(link.gather<int>("steps", mine) == std::vector<int>{7, 8, 7, 8, 7, 8});
  CHECK(comm.caller != std::this_thread::get_id());
  CHECK(comm.given <= std::chrono::milliseconds(timeout_ms));
  CHECK(comm.given > std::chrono::milliseconds(timeout_ms / 2));
  CHECK(link.bytes_sent() == 2 * 8);
  std::vector<float> values = {1, 2, 3};
  link.broadcast("values", values, 1);
  CHECK(values == std::vector<float>{1, 2, 3});
  CHECK(link.bytes_sent() == 2 * 8 + 2 * 12);
  link.broadcast("values", values, 0);
  CHECK(values == std::vector<float>{0, 0, 0});
  CHECK(link.bytes_sent() == 2 * 8 + 2 * 12);  // a receiver sends nothing
  CHECK(comm.aborts == 0);
}

TEST_CASE("comm_link: a collective that fails aborts the communicator and throws") {
  struct {
    comm_status status;
    bool throws;
    comm_status expected;
    char const* text;
  } const cases[] = {{comm_status::timeout, false, comm_status::timeout,
                      "rivulet: steps: the communicator reports 'timeout'"},
                     {comm_status::aborted, false, comm_status::aborted,
                      "rivulet: steps: the communicator reports 'aborted'"},
                     {comm_status::done, true, comm_status::failed,
                      "rivulet: steps: the communicator reports 'failed'"}};
  for (auto const& c : cases) {
    echo comm{c.status, c.throws};
    rivulet::comm_link<echo> link(comm, 2, timeout_ms);
    std::vector<int> const mine = {7};
    try {
      (void)link.gather<int>("steps", mine);
      FAIL_CHECK("nothing was thrown");
    } catch (rivulet::comm_error const& error) {
      CHECK(error.what() == std::string(c.text));
      CHECK(error.status() == c.expected);
    }
    CHECK(comm.aborts == 1);
    CHECK(link.bytes_sent() == 0);
  }
}

TEST_CASE("comm_link: run turns an exception into the status failed") {
  echo comm;
  rivulet::comm_link<echo> link(comm, 1, timeout_ms);
  auto const good = link.run([](echo&, rivulet::deadline) {
    return rivulet::reduce::exchange_result{comm_status::done, rivulet::wire_check::step, 2};
  });
  CHECK(good.check == rivulet::wire_check::step);
  CHECK(good.peer == 2);
  auto const bad = link.run([](echo&, rivulet::deadline) -> rivulet::reduce::exchange_result {
    throw std::runtime_error("lost");
  });
  CHECK(bad.status == comm_status::failed);
}

TEST_CASE("comm_link: wait is bound by the timeout") {
  echo comm;
  std::latch gate(1);
  rivulet::comm_link<echo> link(comm, 1, 1);
  auto const ticket = link.thread().submit(
      [](void* context) noexcept { static_cast<std::latch*>(context)->wait(); }, &gate);
  CHECK_FALSE(link.wait(ticket));
  gate.count_down();
  link.thread().drain();
  CHECK(link.wait(ticket));
}

TEST_CASE("comm_link: reset goes on with another communicator") {
  rivulet::comm::local_group const first(1);
  rivulet::comm::local_group const second(1);
  rivulet::comm::local one = first.communicator(0);
  rivulet::comm::local two = second.communicator(0);
  rivulet::comm_link<rivulet::comm::local> link(one, 1, timeout_ms);
  std::vector<int> const mine = {5};
  CHECK(link.gather<int>("steps", mine) == mine);
  link.abort();
  CHECK_THROWS_AS((void)link.gather<int>("steps", mine), rivulet::comm_error);
  link.reset(two);
  CHECK(link.gather<int>("steps", mine) == mine);
  CHECK(link.bytes_sent() == 0);  // alone in the world
}

}  // namespace
