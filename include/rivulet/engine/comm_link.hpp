#pragma once

/// \file
/// The communicator as an engine uses it: only on its communication thread, only with deadlines.

#include <span>
#include <vector>

#include <rivulet/engine/comm_thread.hpp>
#include <rivulet/engine/report.hpp>

namespace rivulet {

/// Collectives on the communication thread, and what they cost.
template <Communicator Comm>
class comm_link {
 public:
  /// At most `jobs` jobs in the queue; every collective and every wait ends within `timeout_ms`.
  comm_link(Comm& comm, std::size_t jobs, int timeout_ms)
      : comm_(&comm), timeout_ms_(timeout_ms), thread_(jobs) {}

  [[nodiscard]] int rank() const { return comm_->rank(); }
  [[nodiscard]] int size() const { return comm_->size(); }
  [[nodiscard]] comm_thread& thread() { return thread_; }
  [[nodiscard]] bool uses(Comm const& comm) const { return comm_ == &comm; }
  void abort() noexcept { comm_->abort(); }

  /// Continues with another communicator once the queue is empty.
  void reset(Comm& comm) {
    thread_.drain();
    comm_ = &comm;
  }

  /// Waits for a job; false if it is not done within the timeout.
  [[nodiscard]] bool wait(comm_thread::ticket job) {
    return thread_.wait_until(job, detail::within(timeout_ms_));
  }

  /// Runs f(communicator, deadline) -> result here and now, on the thread that calls. A result has
  /// a `status`; an exception makes it `failed`.
  template <class F>
  [[nodiscard]] auto run(F const& f) noexcept {
    try {
      return f(*comm_, detail::within(timeout_ms_));
    } catch (...) {
      decltype(f(*comm_, deadline{})) result{};
      result.status = comm_status::failed;
      return result;
    }
  }

  /// What every rank passed as `mine`, rank after rank. Throws comm_error.
  template <class T>
  [[nodiscard]] std::vector<T> gather(char const* what, std::span<T const> mine) {
    std::vector<T> all(mine.size() * static_cast<std::size_t>(size()));
    collective(what, [&](Comm& comm, deadline until) {
      return comm.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), until);
    });
    bytes_sent_ += to_others(mine.size_bytes());
    return all;
  }

  /// The values of rank `source` on every rank. Throws comm_error.
  void broadcast(char const* what, std::span<float> values, int source) {
    collective(what, [&](Comm& comm, deadline until) {
      return comm.broadcast(std::as_writable_bytes(values), source, until);
    });
    if (rank() != source) return;
    bytes_sent_ += to_others(values.size_bytes());
  }

  /// Bytes that this rank sent by gather and broadcast.
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  [[nodiscard]] std::uint64_t to_others(std::size_t bytes) const {
    return std::uint64_t{bytes} * static_cast<std::uint64_t>(size() - 1);
  }

  template <class F>
  void collective(char const* what, F const& f) {
    reduce::exchange_result result;
    thread_.call([&]() noexcept {
      result = run([&](Comm& comm, deadline until) {
        return reduce::exchange_result{f(comm, until), wire_check::good, -1};
      });
    });
    if (result.good()) return;
    comm_->abort();
    throw detail::exchange_error(result, what, -1, 0);
  }

  Comm* comm_;
  int timeout_ms_;
  std::uint64_t bytes_sent_ = 0;
  comm_thread thread_;
};

}  // namespace rivulet
