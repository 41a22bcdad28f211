#pragma once

/// \file
/// Ranks are processes that talk through MPI. Needs an MPI (CMake target rivulet::mpi).

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

// Open MPI's C++ interface, which nobody asks for, warns.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1  // NOLINT
#endif
#include <mpi.h>

#include <rivulet/comm/pairwise.hpp>

namespace rivulet::comm {

/// One rank of an MPI communicator. Messages between pairs rather than MPI's collectives: an
/// operation can then be given up, and a late rank is known by name.
///
/// MPI must be initialized with MPI_THREAD_SERIALIZED, and with MPI_THREAD_MULTIPLE if the program
/// calls it too: these objects take turns among themselves only. Progress is made by a loop of
/// MPI_Testsome that sleeps ever longer, up to 1/32 of the time waited and .5 ms. If a process
/// dies, mpirun ends them all. After anything but `done` this object is spent and what it holds of
/// MPI is not given back: a collective would be needed, and messages may be left on the way.
class mpi : public pairwise<mpi> {
 public:
  static constexpr memory_space payload_space = memory_space::host;

  /// Collective over `parent`, which is duplicated. Throws precondition_error if MPI is not
  /// initialized, is finalized, or allows one thread only; comm_error if it fails.
  explicit mpi(MPI_Comm parent = MPI_COMM_WORLD) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    rivulet::detail::require(initialized != 0 && !finalized(),
                             "comm::mpi: MPI is not initialized; call MPI_Init_thread first, and "
                             "MPI_Finalize after this object is gone");
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    rivulet::detail::require(level >= MPI_THREAD_SERIALIZED,
                             "comm::mpi: MPI was initialized for one thread, but an engine calls "
                             "it on a thread of its own; ask MPI_Init_thread for "
                             "MPI_THREAD_MULTIPLE");
    std::lock_guard turn(turns());
    int* most = nullptr;
    int found = 0;
    bool const good = MPI_Comm_dup(parent, &comm_) == MPI_SUCCESS &&
                      MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN) == MPI_SUCCESS &&
                      MPI_Comm_rank(comm_, &rank_) == MPI_SUCCESS &&
                      MPI_Comm_size(comm_, &size_) == MPI_SUCCESS &&
                      MPI_Comm_get_attr(comm_, MPI_TAG_UB, &most, &found) == MPI_SUCCESS &&
                      MPI_Irecv(&heard_from_, 1, MPI_INT, MPI_ANY_SOURCE, abort_tag, comm_,
                                &heard_) == MPI_SUCCESS;
    if (!good) {
      throw comm_error("rivulet: comm::mpi: the communicator cannot be duplicated",
                       comm_status::failed, -1, -1, 0);
    }
    if (found != 0) tags_ = static_cast<std::uint64_t>(*most);
  }

  mpi(mpi const&) = delete;
  mpi& operator=(mpi const&) = delete;

  ~mpi() {
    std::lock_guard turn(turns());
    if (finalized()) return;
    hear();
    if (heard_ != MPI_REQUEST_NULL) {
      MPI_Cancel(&heard_);
      MPI_Wait(&heard_, MPI_STATUS_IGNORE);
    }
    if (broken_ == comm_status::done) MPI_Comm_free(&comm_);
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// The rank that the last collective that was not `done` waited for; -1 if unknown.
  [[nodiscard]] int suspect() const noexcept { return suspect_; }

  void abort() noexcept {
    std::lock_guard turn(turns());
    break_up(comm_status::aborted);
  }

 private:
  friend pairwise<mpi>;
  using clock = std::chrono::steady_clock;

  static constexpr int abort_tag = 0;
  /// MPI counts in int; larger messages go in pieces, in order.
  static constexpr std::size_t piece = std::size_t{1} << 30;

  /// A message or a piece of one.
  struct part {
    int peer;
    std::size_t bytes;
    bool receives;
  };

  /// MPI is called by one thread at a time, whichever communicator it serves.
  static std::mutex& turns() {
    static std::mutex mutex;
    return mutex;
  }

  static bool finalized() {
    int result = 0;
    MPI_Finalized(&result);
    return result != 0;
  }

  comm_status exchange(std::span<transfer const> transfers, std::uint64_t slot, deadline until) {
    {
      std::lock_guard turn(turns());
      hear();
      if (broken_ == comm_status::done) begin(transfers, 1 + static_cast<int>(slot % tags_));
      if (broken_ != comm_status::done) return broken_;
    }
    auto const start = clock::now();
    for (;;) {
      {
        std::lock_guard turn(turns());
        std::size_t const open = test();
        if (open == 0 && broken_ == comm_status::done) return comm_status::done;
        hear();
        if (broken_ == comm_status::done && clock::now() >= until) {
          suspect_ = first_open();
          break_up(comm_status::timeout);
        }
        if (broken_ != comm_status::done) break;
      }
      auto const waited = clock::now() - start;
      if (waited < std::chrono::microseconds(50)) continue;
      std::this_thread::sleep_for(std::min<clock::duration>(waited / 32, longest_nap));
    }
    give_up();
    return broken_;
  }

  /// Starts all receives, then all sends.
  void begin(std::span<transfer const> transfers, int tag) {
    requests_.clear();
    parts_.clear();
    for (transfer const& t : transfers) {
      each_piece(t.in.size(), [&](std::size_t at, int count) {
        return MPI_Irecv(t.in.data() + at, count, MPI_BYTE, t.peer, tag, comm_,
                         next(t.peer, count, true));
      });
    }
    for (transfer const& t : transfers) {
      each_piece(t.out.size(), [&](std::size_t at, int count) {
        return MPI_Isend(t.out.data() + at, count, MPI_BYTE, t.peer, tag, comm_,
                         next(t.peer, count, false));
      });
    }
    done_.resize(requests_.size());
    statuses_.resize(requests_.size());
  }

  template <class F>
  void each_piece(std::size_t bytes, F const& f) {
    for (std::size_t at = 0; at < bytes && broken_ == comm_status::done; at += piece) {
      int const count = static_cast<int>((std::min)(piece, bytes - at));
      if (f(at, count) != MPI_SUCCESS) fail(parts_.back().peer);
    }
  }

  MPI_Request* next(int peer, int count, bool receives) {
    parts_.push_back({peer, static_cast<std::size_t>(count), receives});
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }

  /// Makes progress; returns how many requests are open.
  std::size_t test() {
    int count = 0;
    int const code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  done_.data(), statuses_.data());
    if (code != MPI_SUCCESS) fail(first_open());
    for (int i = 0; code == MPI_SUCCESS && i < count; ++i) {
      part const& ended = parts_[static_cast<std::size_t>(done_[static_cast<std::size_t>(i)])];
      int bytes = 0;
      MPI_Get_count(&statuses_[static_cast<std::size_t>(i)], MPI_BYTE, &bytes);
      if (ended.receives && static_cast<std::size_t>(bytes) != ended.bytes) fail(ended.peer);
    }
    return requests_.size() - static_cast<std::size_t>(
                                  std::count(requests_.begin(), requests_.end(), MPI_REQUEST_NULL));
  }

  [[nodiscard]] int first_open() const {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL) return parts_[i].peer;
    }
    return -1;
  }

  void fail(int peer) {
    suspect_ = peer;
    break_up(comm_status::failed);
  }

  /// Takes notice of another rank's abort.
  void hear() {
    int heard = 0;
    if (broken_ != comm_status::done || MPI_Test(&heard_, &heard, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return;
    if (heard == 0) return;
    broken_ = comm_status::aborted;
    suspect_ = heard_from_;
  }

  /// Sends all others the news, with the rank that is to blame.
  void break_up(comm_status why) noexcept {
    if (broken_ != comm_status::done || finalized()) return;
    broken_ = why;
    news_ = suspect_;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      MPI_Request sent = MPI_REQUEST_NULL;
      MPI_Isend(&news_, 1, MPI_INT, peer, abort_tag, comm_, &sent);
      if (sent != MPI_REQUEST_NULL) MPI_Request_free(&sent);
    }
  }

  /// Takes back the receives, so that nothing is written to the caller's memory any more. Those
  /// that have met their message, and sends, end by themselves or are left.
  void give_up() {
    {
      std::lock_guard turn(turns());
      for (std::size_t i = 0; i < requests_.size(); ++i) {
        if (requests_[i] != MPI_REQUEST_NULL && parts_[i].receives) MPI_Cancel(&requests_[i]);
      }
    }
    auto const until = clock::now() + std::chrono::milliseconds(250);
    while (clock::now() < until) {
      {
        std::lock_guard turn(turns());
        int all = 0;
        int const code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all,
                                     MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS || all != 0) return;
      }
      std::this_thread::sleep_for(longest_nap);
    }
  }

  static constexpr std::chrono::microseconds longest_nap{500};

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::uint64_t tags_ = 32767;  // what MPI promises at least
  // Guarded by turns():
  comm_status broken_ = comm_status::done;
  int suspect_ = -1;
  int news_ = -1;        // what others are told
  int heard_from_ = -1;  // what they tell
  MPI_Request heard_ = MPI_REQUEST_NULL;
  std::vector<MPI_Request> requests_;
  std::vector<part> parts_;  // one per request
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
};

static_assert(Communicator<mpi>);

}  // namespace rivulet::comm
