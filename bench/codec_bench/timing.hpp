#pragma once

/// \file
/// Paired timing: contestants run in turns, so that whatever else goes on in the machine slows all
/// of them alike, and only medians of many rounds are compared.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace codec_bench {

/// `size` zeros on a cache line boundary. They are written at once, so that no page is new when
/// timing begins.
template <class T>
class buffer {
 public:
  explicit buffer(std::size_t size)
      : data_{static_cast<T*>(::operator new(size * sizeof(T), alignment))}, size_{size} {
    std::uninitialized_value_construct_n(data_.get(), size);
  }
  [[nodiscard]] std::span<T> all() const { return {data_.get(), size_}; }
  [[nodiscard]] T* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t alignment{64};
  struct release {
    void operator()(T* data) const { ::operator delete(data, alignment); }
  };
  std::unique_ptr<T, release> data_;
  std::size_t size_;
};

/// One of those that are timed. `run(first, count)` works on that range of `values` values.
struct contestant {
  std::string name;
  std::size_t values = 0;
  std::function<void(std::size_t first, std::size_t count)> run;
  int threads = 1;  ///< each on its own part of the values
  std::vector<double> seconds = {};
};

/// Seconds that the processor has worked for this thread, so that other programs' share of it does
/// not count; where there is no such clock, seconds.
inline double thread_seconds() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
#else
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
#endif
}

/// A run of a team of threads: how long it took, and whether each had a core for itself.
struct team_time {
  double seconds;
  bool undisturbed;
};

inline team_time time_team(contestant const& c, int repetitions) {
  using clock = std::chrono::steady_clock;
  auto const team = static_cast<std::size_t>(c.threads);
  std::vector<clock::time_point> begin(team);
  std::vector<clock::time_point> end(team);
  std::vector<double> worked(team);
  std::atomic<std::size_t> ready{0};
  auto const work = [&](std::size_t thread) {
    std::size_t const first = c.values * thread / team;
    std::size_t const count = c.values * (thread + 1) / team - first;
    c.run(first, count);
    ++ready;
    while (ready < team) {
    }
    begin[thread] = clock::now();
    double const start = thread_seconds();
    for (int i = 0; i < repetitions; ++i) c.run(first, count);
    worked[thread] = thread_seconds() - start;
    end[thread] = clock::now();
  };
  std::vector<std::jthread> others;
  for (std::size_t thread = 1; thread < team; ++thread) others.emplace_back(work, thread);
  work(0);
  others.clear();
  std::chrono::duration<double> const time =
      *std::ranges::max_element(end) - *std::ranges::min_element(begin);
  return {time.count() / repetitions, *std::ranges::min_element(worked) > 0.9 * time.count()};
}

/// Seconds of one run; short runs are repeated, after one that warms the caches. A team that other
/// programs disturb gets more tries; if they never leave it alone, its best one counts.
inline double time_once(contestant const& c, int repetitions) {
  if (c.threads > 1) {
    team_time best = time_team(c, repetitions);
    for (int tries = 1; tries < 20 && !best.undisturbed; ++tries) {
      team_time const again = time_team(c, repetitions);
      if (again.undisturbed || again.seconds < best.seconds) best = again;
    }
    return best.seconds;
  }
  if (repetitions > 1) c.run(0, c.values);
  double const begin = thread_seconds();
  for (int i = 0; i < repetitions; ++i) c.run(0, c.values);
  return (thread_seconds() - begin) / repetitions;
}

/// How often to repeat a run that is too short to be timed.
inline int repetitions_of(contestant c) {
  constexpr double shortest = 0.5e-3;
  c.threads = 1;
  double const once = std::min(time_once(c, 1), time_once(c, 1));
  return static_cast<int>(std::clamp(shortest / once, 1.0, 1e6));
}

/// Runs the contestants in turns, `rounds` times, fewer if these would take more than some seconds,
/// and appends to their seconds.
inline void race(std::span<contestant> contestants, int rounds) {
  using clock = std::chrono::steady_clock;
  auto const enough = clock::now() + std::chrono::seconds{5};
  std::vector<int> repetitions;
  for (contestant const& c : contestants) repetitions.push_back(repetitions_of(c));
  for (int round = 0; round < rounds && (round < 3 || clock::now() < enough); ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      contestants[i].seconds.push_back(time_once(contestants[i], repetitions[i]));
    }
  }
}

inline double median(std::vector<double> values) {
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// How many times faster `a` is than `b`, by the medians of both.
inline double speed_ratio(contestant const& a, contestant const& b) {
  return median(b.seconds) / median(a.seconds);
}

}  // namespace codec_bench
