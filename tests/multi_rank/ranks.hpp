#pragma once

/// \file
/// Ranks as threads, for tests: none can hang, and none fails in silence.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <rivulet/comm/local.hpp>

namespace rivulet_test {

/// A deadline for one collective: far longer than it takes, so that a miss is a hang.
[[nodiscard]] inline rivulet::deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

/// Runs body(rank) for each rank of `world` on a thread of its own, and calls abort() when one
/// throws or when they take longer than two minutes. Rethrows the exception that was thrown first.
template <class Body, class Abort>
void run_threads(int world, Body const& body, Abort const& abort) {
  std::mutex mutex;
  std::condition_variable changed;
  std::exception_ptr first;
  int running = world;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      std::exception_ptr error;
      try {
        body(rank);
      } catch (...) {
        error = std::current_exception();
        abort();
      }
      std::lock_guard lock(mutex);
      if (error && !first) first = error;
      --running;
      changed.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, std::chrono::minutes(2), [&] { return running == 0; })) {
      abort();
      if (!changed.wait_for(lock, std::chrono::seconds(10), [&] { return running == 0; })) {
        std::fputs("a rank hangs\n", stderr);
        std::abort();
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

/// Runs body(comm) on `world` ranks of a fresh local group.
template <class Body>
void run_ranks(int world, Body const& body) {
  rivulet::comm::local_group const group(world);
  run_threads(
      world,
      [&](int rank) {
        rivulet::comm::local comm = group.communicator(rank);
        body(comm);
      },
      [&] { group.communicator(0).abort(); });
}

/// Waits until `count` ranks have come.
class meeting_point {
 public:
  explicit meeting_point(int count) : count_(count) {}
  void arrive() {
    std::unique_lock lock(mutex_);
    --count_;
    changed_.notify_all();
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return count_ <= 0; })) {
      throw std::runtime_error("a rank did not come");
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_;
};

/// The exception of type `Error` that f() throws. Any other outcome is an error of the test.
template <class Error, class F>
[[nodiscard]] Error thrown_by(F const& f) {
  try {
    f();
  } catch (Error const& error) {
    return error;
  }
  throw std::logic_error("the expected exception was not thrown");
}

/// Whether `text` contains `part`.
[[nodiscard]] inline bool mentions(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace rivulet_test
