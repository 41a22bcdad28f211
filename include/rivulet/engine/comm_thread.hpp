#pragma once

/// \file
/// The one thread that talks to the communicator. Its queue is first in, first out, so the order of
/// collectives is equal on all ranks by construction.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include <rivulet/comm/communicator.hpp>

namespace rivulet {

/// Runs jobs in order on a thread of its own. A job must end by itself within a deadline. No
/// allocation after construction.
class comm_thread {
 public:
  /// Names a submitted job; 0 is a job that was done before all others.
  using ticket = std::uint64_t;

  /// At most `capacity` jobs wait or run at once.
  explicit comm_thread(std::size_t capacity) : jobs_(capacity), thread_([this] { loop(); }) {}

  comm_thread(comm_thread const&) = delete;
  comm_thread& operator=(comm_thread const&) = delete;

  /// Runs what is queued, then joins.
  ~comm_thread() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// Queues run(context); `context` must live until the job is done.
  ticket submit(void (*run)(void*) noexcept, void* context) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return submitted_ - done_ < jobs_.size(); });
    jobs_[submitted_ % jobs_.size()] = {run, context};
    ++submitted_;
    changed_.notify_all();
    return submitted_;
  }

  /// Runs f() after what is queued and waits for its end.
  template <class F>
  void call(F&& f) {
    static_assert(noexcept(f()), "rivulet: a job on the communication thread must be noexcept");
    wait(submit(
        [](void* context) noexcept { (*static_cast<std::remove_reference_t<F>*>(context))(); },
        &f));
  }

  /// Whether a job is done.
  [[nodiscard]] bool test(ticket job) {
    std::lock_guard lock(mutex_);
    return done_ >= job;
  }

  /// Waits until a job is done, or until the deadline; returns whether it is done.
  [[nodiscard]] bool wait_until(ticket job, deadline until) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, until, [&] { return done_ >= job; });
  }

  /// Waits until a job is done; bounded by the job's own deadline.
  void wait(ticket job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= job; });
  }

  /// Waits until all jobs are done.
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ == submitted_; });
  }

 private:
  struct entry {
    void (*run)(void*) noexcept = nullptr;
    void* context = nullptr;
  };

  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return done_ < submitted_ || stopping_; });
      if (done_ == submitted_) return;
      entry const next = jobs_[done_ % jobs_.size()];
      lock.unlock();
      next.run(next.context);
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<entry> jobs_;  // a ring
  ticket submitted_ = 0;
  ticket done_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses what stands above
};

}  // namespace rivulet
