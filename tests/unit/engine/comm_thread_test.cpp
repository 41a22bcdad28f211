#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <latch>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/engine/comm_thread.hpp>

namespace {

using rivulet::comm_thread;

rivulet::deadline now() { return std::chrono::steady_clock::now(); }

/// A job that appends its number to a list.
struct job {
  std::vector<int>* list;
  int number;
  std::atomic<int>* done = nullptr;

  static void run(void* context) noexcept {
    job const& self = *static_cast<job*>(context);
    self.list->push_back(self.number);
    if (self.done != nullptr) ++*self.done;
  }
};

/// A job that waits for the test.
struct gate {
  std::latch open{1};
  static void run(void* context) noexcept { static_cast<gate*>(context)->open.wait(); }
};

TEST_CASE("comm_thread: jobs run in order, each once, with any capacity") {
  for (std::size_t const capacity : {1u, 2u, 3u, 7u}) {
    CAPTURE(capacity);
    std::vector<int> list;
    std::vector<job> jobs;
    std::vector<int> expected;
    std::atomic<int> done{0};
    for (int i = 0; i < 500; ++i) {
      jobs.push_back({&list, i, &done});
      expected.push_back(i);
    }
    int most = 0;  // jobs that were submitted and had not ended
    {
      comm_thread thread(capacity);
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        CHECK(thread.submit(job::run, &jobs[i]) == i + 1);
        most = std::max(most, static_cast<int>(i) + 1 - done);
      }
      thread.drain();
      CHECK(list == expected);
    }
    CHECK(most <= static_cast<int>(capacity));
  }
}

TEST_CASE("comm_thread: a ticket is done when its job is") {
  std::vector<int> list;
  job after{&list, 1};
  gate g;
  comm_thread thread(2);
  CHECK(thread.test(0));
  comm_thread::ticket const first = thread.submit(gate::run, &g);
  comm_thread::ticket const second = thread.submit(job::run, &after);
  CHECK_FALSE(thread.test(first));
  CHECK_FALSE(thread.test(second));
  CHECK_FALSE(thread.wait_until(second, now()));
  CHECK_FALSE(thread.wait_until(first, now() + std::chrono::milliseconds(1)));
  g.open.count_down();
  thread.wait(first);
  CHECK(thread.test(first));
  CHECK(thread.wait_until(second, now() + std::chrono::hours(1)));
  CHECK(list == std::vector<int>{1});
  CHECK(thread.wait_until(second, now() - std::chrono::hours(1)));  // late, but done
}

TEST_CASE("comm_thread: a full queue makes submit wait for room") {
  std::vector<int> list;
  job next{&list, 1};
  gate g;
  comm_thread thread(1);
  thread.submit(gate::run, &g);
  std::atomic<bool> opened{false};
  std::thread opener([&] {
    opened = true;
    g.open.count_down();
  });
  thread.submit(job::run, &next);
  CHECK(opened);  // it could not return before
  opener.join();
  thread.drain();
  CHECK(list == std::vector<int>{1});
}

TEST_CASE("comm_thread: call runs on the other thread after what is queued") {
  std::vector<int> list;
  std::array<job, 3> jobs{job{&list, 0}, job{&list, 1}, job{&list, 2}};
  comm_thread thread(4);
  for (job& j : jobs) thread.submit(job::run, &j);
  std::thread::id where;
  std::size_t seen = 0;
  thread.call([&]() noexcept {
    where = std::this_thread::get_id();
    seen = list.size();
  });
  CHECK(seen == 3);
  CHECK(where != std::this_thread::get_id());
  std::thread::id again;
  thread.call([&]() noexcept { again = std::this_thread::get_id(); });
  CHECK(again == where);
}

TEST_CASE("comm_thread: the destructor runs what is queued") {
  std::vector<int> list;
  std::vector<job> jobs(8, {&list, 0});
  gate g;
  {
    comm_thread thread(9);
    thread.submit(gate::run, &g);
    for (job& j : jobs) thread.submit(job::run, &j);
    g.open.count_down();
  }
  CHECK(list.size() == 8);
}

}  // namespace
