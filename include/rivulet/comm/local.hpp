#pragma once

/// \file
/// Ranks are threads of one process: the embedded default, and the fastest test.

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include <rivulet/comm/communicator.hpp>

namespace rivulet::comm {

namespace detail {

/// Where the ranks of a group meet. An operation has two phases: all arrive with their spans, then
/// each copies what it needs from the others' spans. A rank leaves when all have copied, so spans
/// are read only while their owners wait. Only the first phase can fail: the second waits for
/// nothing but memcpy.
class meeting {
 public:
  enum class operation : std::uint8_t { all_gather, all_to_all, broadcast };
  struct offer {
    operation what;
    int root;
    std::span<std::byte const> bytes;
  };

  explicit meeting(int size)
      : offers_(static_cast<std::size_t>(size)), here_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] int size() const { return static_cast<int>(offers_.size()); }

  /// Arrives, and when all have, calls copy(offers of all ranks).
  template <class Copy>
  comm_status run(int rank, offer const& mine, deadline until, Copy const& copy) {
    std::unique_lock lock(mutex_);
    if (broken_ != comm_status::done) return broken_;
    auto const index = static_cast<std::size_t>(rank);
    if (here_[index]) return break_up(comm_status::failed);  // two threads are the same rank
    here_[index] = true;
    offers_[index] = mine;
    std::uint64_t const round = round_;
    if (++arrived_ == size()) {
      if (!agreed()) return break_up(comm_status::failed);
      arrived_ = 0;
      here_.assign(here_.size(), false);
      copying_ = size();
      ++round_;
      changed_.notify_all();
    } else {
      auto const started = [&] { return round_ != round || broken_ != comm_status::done; };
      if (!changed_.wait_until(lock, until, started)) {
        return break_up(comm_status::timeout);
      }
      if (round_ == round) return broken_;
    }
    lock.unlock();
    copy(std::span<offer const>(offers_));
    lock.lock();
    if (--copying_ == 0) {
      ++left_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return left_ > round; });
    }
    return comm_status::done;
  }

  void abort() noexcept {
    std::lock_guard lock(mutex_);
    if (broken_ == comm_status::done) break_up(comm_status::aborted);
  }

 private:
  [[nodiscard]] bool agreed() const {
    for (offer const& o : offers_) {
      if (o.what != offers_[0].what || o.root != offers_[0].root ||
          o.bytes.size() != offers_[0].bytes.size()) {
        return false;
      }
    }
    return true;
  }

  /// The rank that finds the reason returns it; for the others the operation was aborted, unless
  /// they disagreed, which is as much their failure.
  comm_status break_up(comm_status reason) {
    broken_ = reason == comm_status::failed ? comm_status::failed : comm_status::aborted;
    changed_.notify_all();
    return reason;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<offer> offers_;
  std::vector<bool> here_;  // ranks that have arrived
  comm_status broken_ = comm_status::done;
  int arrived_ = 0;
  int copying_ = 0;
  std::uint64_t round_ = 0;  // operations that all have arrived at
  std::uint64_t left_ = 0;   // operations that all have copied
};

}  // namespace detail

/// One rank of a local_group; a copy is the same rank. Payloads are host memory. Collectives cost
/// no wire: the bytes a rank would send are copied once.
class local {
 public:
  static constexpr memory_space payload_space = memory_space::host;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return meeting_->size(); }

  comm_status all_gather(std::span<std::byte const> mine, std::span<std::byte> all,
                         deadline until) {
    std::size_t const n = mine.size();
    rivulet::detail::require(all.size() == n * ranks(), "all_gather: `all` has ", all.size(),
                             " bytes, but ", n, " from each of ", size(), " ranks arrive");
    return meeting_->run(rank_, {operation::all_gather, 0, mine}, until, [&](auto offers) {
      for (std::size_t r = 0; r < ranks(); ++r) copy(all.subspan(r * n, n), offers[r].bytes);
    });
  }

  comm_status all_to_all(std::span<std::byte const> out, std::span<std::byte> in, deadline until) {
    rivulet::detail::require(out.size() == in.size() && out.size() % ranks() == 0,
                             "all_to_all: spans of ", out.size(), " and ", in.size(),
                             " bytes must be equal multiples of the ", size(), " ranks");
    std::size_t const n = out.size() / ranks();
    std::size_t const mine = static_cast<std::size_t>(rank_) * n;
    return meeting_->run(rank_, {operation::all_to_all, 0, out}, until, [&](auto offers) {
      for (std::size_t r = 0; r < ranks(); ++r) {
        copy(in.subspan(r * n, n), offers[r].bytes.subspan(mine, n));
      }
    });
  }

  comm_status broadcast(std::span<std::byte> data, int root, deadline until) {
    rivulet::detail::require(root >= 0 && root < size(), "broadcast: root ", root,
                             " is no rank of ", size());
    return meeting_->run(rank_, {operation::broadcast, root, data}, until, [&](auto offers) {
      if (rank_ != root) copy(data, offers[static_cast<std::size_t>(root)].bytes);
    });
  }

  void abort() noexcept { meeting_->abort(); }

 private:
  friend class local_group;
  using operation = detail::meeting::operation;

  local(std::shared_ptr<detail::meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  static void copy(std::span<std::byte> to, std::span<std::byte const> from) {
    if (to.data() != from.data() && !to.empty()) std::memcpy(to.data(), from.data(), to.size());
  }

  std::shared_ptr<detail::meeting> meeting_;
  int rank_;
};

static_assert(Communicator<local>);

/// A group of ranks; hands out one communicator per rank, each for a thread of its own. The
/// communicators keep what they share alive. After an abort or a timeout the group is spent.
class local_group {
 public:
  /// Throws precondition_error unless size >= 1.
  explicit local_group(int size) {
    rivulet::detail::require(size >= 1, "local_group: size = ", size, " must be at least 1");
    meeting_ = std::make_shared<detail::meeting>(size);
  }

  [[nodiscard]] int size() const { return meeting_->size(); }

  /// Throws precondition_error unless 0 <= rank < size().
  [[nodiscard]] local communicator(int rank) const {
    rivulet::detail::require(rank >= 0 && rank < size(), "local_group: rank ", rank,
                             " must be from 0 to ", size() - 1);
    return local(meeting_, rank);
  }

 private:
  std::shared_ptr<detail::meeting> meeting_;
};

}  // namespace rivulet::comm
