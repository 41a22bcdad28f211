#pragma once

/// \file
/// Ranks are processes or machines that talk by TCP through Gloo. Needs Gloo's headers and library
/// (CMake target rivulet::gloo).

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <rivulet/comm/pairwise.hpp>

namespace rivulet::comm {

/// How ranks find each other and connect.
struct gloo_settings {
  /// Network interface ("eth0"); if empty, the one of `hostname`.
  std::string network_interface{};
  /// Name or address of this machine as the others reach it; if empty, what the system calls it.
  std::string hostname{};
  /// Connecting to all others must be done within this.
  int connect_timeout_ms = 60'000;
  /// Separates groups that use one store: another name for each, also for a group that is rebuilt.
  std::string group = "0";
};

/// One rank. Two threads of its own wait for the deadline of a collective and for the news that
/// another rank has aborted. After anything but `done` it is spent; a group is rebuilt by another
/// object, with another name, of the ranks that are left.
class gloo : public pairwise<gloo> {
 public:
  static constexpr memory_space payload_space = memory_space::host;

  /// Collective: connects to all ranks, which find each other through `store` (comm/rendezvous.hpp
  /// makes one). Throws precondition_error for a rank or size that cannot be, comm_error if not all
  /// are connected in time.
  gloo(std::shared_ptr<::gloo::rendezvous::Store> store, int rank, int size,
       gloo_settings settings = {})
      : rank_(rank), size_(size), store_(std::move(store)) {
    rivulet::detail::require(size >= 1 && rank >= 0 && rank < size, "comm::gloo: rank ", rank,
                             " must be from 0 to size - 1, and size is ", size);
    rivulet::detail::require(settings.connect_timeout_ms >= 1,
                             "comm::gloo: connect_timeout_ms = ", settings.connect_timeout_ms,
                             " must be at least 1");
    if (size == 1) return;
    auto const until =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(settings.connect_timeout_ms);
    try {
      connect(settings);
      prepare();
    } catch (std::exception const& error) {
      throw comm_error(rivulet::detail::concat("rivulet: comm::gloo: rank ", rank, " of ", size,
                                               " cannot connect in group '", settings.group,
                                               "': ", error.what()),
                       comm_status::failed, -1, -1, 0);
    }
    deadlines_ = std::thread([this] { watch_deadline(); });
    aborts_ = std::thread([this] { watch_aborts(); });
    // When all have arrived here, all are connected, and nobody needs the store any more.
    std::byte const here{};
    std::vector<std::byte> all(static_cast<std::size_t>(size));
    comm_status const status = all_gather({&here, 1}, all, until);
    if (status == comm_status::done) return;
    int const missing = suspect_;
    close();
    throw comm_error(
        rivulet::detail::concat("rivulet: comm::gloo: rank ", rank, " of ", size, " in group '",
                                settings.group, "': ", to_string(status), " while rank ", missing,
                                " connects"),
        status, missing, -1, 0);
  }

  gloo(gloo const&) = delete;
  gloo& operator=(gloo const&) = delete;
  ~gloo() { close(); }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// The rank that the last collective that was not `done` waited for; -1 if unknown.
  [[nodiscard]] int suspect() const noexcept {
    std::lock_guard lock(mutex_);
    return suspect_;
  }

  void abort() noexcept {
    std::lock_guard lock(mutex_);
    break_up(comm_status::aborted);
  }

 private:
  friend pairwise<gloo>;
  using buffer = std::unique_ptr<::gloo::transport::UnboundBuffer>;

  /// Gloo's own timeouts would close all connections before the others are told.
  static constexpr std::chrono::milliseconds forever = std::chrono::hours(24 * 365);
  static constexpr std::uint64_t abort_slot = ~std::uint64_t{0};

  comm_status exchange(std::span<transfer const> transfers, std::uint64_t slot, deadline until) {
    comm_status const begun = begin(transfers, slot, until);
    if (begun != comm_status::done || size_ == 1) return begun;
    comm_status const status = wait_for_all(transfers);
    if (status != comm_status::done) flush_aborts();
    std::lock_guard lock(mutex_);
    in_.clear();
    out_.clear();
    until_ = (deadline::max)();
    return status;
  }

  /// Starts all receives and sends.
  comm_status begin(std::span<transfer const> transfers, std::uint64_t slot, deadline until) {
    std::lock_guard lock(mutex_);
    if (broken_ != comm_status::done) return broken_;
    suspect_ = -1;
    try {
      for (transfer const& t : transfers) {
        suspect_ = t.peer;
        in_.push_back(t.in.empty() ? nullptr : make_buffer(t.in.data(), t.in.size()));
        if (!t.in.empty()) in_.back()->recv(t.peer, slot);
      }
      for (transfer const& t : transfers) {
        suspect_ = t.peer;
        // Gloo takes what it sends from memory that it does not call const.
        auto* const data = const_cast<std::byte*>(t.out.data());
        out_.push_back(t.out.empty() ? nullptr : make_buffer(data, t.out.size()));
        if (!t.out.empty()) out_.back()->send(t.peer, slot);
      }
    } catch (std::exception const&) {
      in_.clear();
      out_.clear();
      break_up(comm_status::failed);
      return broken_;
    }
    until_ = until;
    changed_.notify_all();
    return comm_status::done;
  }

  comm_status wait_for_all(std::span<transfer const> transfers) {
    try {
      for (std::size_t i = 0; i < transfers.size(); ++i) {
        wait_for(transfers[i].peer);
        if (in_[i] != nullptr && !in_[i]->waitRecv(nullptr, forever)) return broken();
      }
      for (std::size_t i = 0; i < transfers.size(); ++i) {
        wait_for(transfers[i].peer);
        if (out_[i] != nullptr && !out_[i]->waitSend(nullptr, forever)) return broken();
      }
      return comm_status::done;
    } catch (std::exception const&) {  // the connection is gone
      std::lock_guard lock(mutex_);
      if (broken_ == comm_status::done) suspect_ = waiting_for_;
      break_up(comm_status::failed);
      return broken_;
    }
  }

  void wait_for(int peer) {
    std::lock_guard lock(mutex_);
    waiting_for_ = peer;
  }

  [[nodiscard]] comm_status broken() const {
    std::lock_guard lock(mutex_);
    return broken_;
  }

  /// With the lock: wakes this rank, and sends all others the news with the rank that is to blame.
  void break_up(comm_status why) noexcept {
    if (broken_ != comm_status::done) return;
    broken_ = why;
    wake();
    news_ = suspect_;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      try {
        aborted_.push_back(make_buffer(&news_, sizeof(news_)));
        aborted_.back()->send(peer, abort_slot);
      } catch (std::exception const&) {  // that rank is gone
      }
    }
  }

  void wake() noexcept {
    until_ = (deadline::max)();
    for (buffer const& b : in_) {
      if (b != nullptr) b->abortWaitRecv();
    }
    for (buffer const& b : out_) {
      if (b != nullptr) b->abortWaitSend();
    }
  }

  /// The news cannot overtake a payload that is on its way, which ends here: where it does not get
  /// through soon, this closes the connections, which wakes the other side too.
  void flush_aborts() noexcept {
    std::vector<buffer> sent;
    {
      std::lock_guard lock(mutex_);
      sent.swap(aborted_);
    }
    for (buffer const& news : sent) {
      try {
        (void)news->waitSend(nullptr, std::chrono::milliseconds(250));
      } catch (std::exception const&) {
      }
    }
  }

  void watch_deadline() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      deadline const until = until_;
      auto const moved = [&] { return closing_ || until_ != until; };
      if (until == (deadline::max)()) {
        changed_.wait(lock, moved);
      } else if (!changed_.wait_until(lock, until, moved)) {
        suspect_ = waiting_for_;
        break_up(comm_status::timeout);
      }
    }
  }

  void watch_aborts() {
    try {
      if (!heard_->waitRecv(nullptr, forever)) return;  // closing
    } catch (std::exception const&) {
      return;  // the connections are closed, which the collective itself sees
    }
    std::lock_guard lock(mutex_);
    if (broken_ != comm_status::done) return;
    broken_ = comm_status::aborted;
    suspect_ = heard_from_;
    wake();
  }

  void connect(gloo_settings const& settings) {
    ::gloo::transport::tcp::attr attributes;
    attributes.iface = settings.network_interface;
    attributes.hostname = settings.hostname;
    device_ = ::gloo::transport::tcp::CreateDevice(attributes);
    context_ = std::make_shared<::gloo::rendezvous::Context>(rank_, size_);
    context_->setTimeout(std::chrono::milliseconds(settings.connect_timeout_ms));
    ::gloo::rendezvous::PrefixStore names(settings.group, *store_);
    context_->connectFullMesh(names, device_);
  }

  void prepare() {
    auto const peers = static_cast<std::size_t>(size_ - 1);
    in_.reserve(peers);
    out_.reserve(peers);
    aborted_.reserve(peers);
    heard_ = make_buffer(&heard_from_, sizeof(heard_from_));
    std::vector<int> others;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) others.push_back(peer);
    }
    heard_->recv(others, abort_slot);
  }

  [[nodiscard]] buffer make_buffer(void* data, std::size_t size) {
    return context_->createUnboundBuffer(data, size);
  }

  void close() noexcept {
    if (!aborts_.joinable()) return;
    flush_aborts();
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    heard_->abortWaitRecv();
    deadlines_.join();
    aborts_.join();
  }

  int rank_;
  int size_;
  std::shared_ptr<::gloo::rendezvous::Store> store_;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::shared_ptr<::gloo::rendezvous::Context> context_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  comm_status broken_ = comm_status::done;
  bool closing_ = false;
  int suspect_ = -1;
  int waiting_for_ = -1;
  deadline until_ = (deadline::max)();
  int news_ = -1;
  int heard_from_ = -1;
  std::vector<buffer> in_;       // of the running operation, one per transfer
  std::vector<buffer> out_;      // alike
  std::vector<buffer> aborted_;  // what tells the others
  buffer heard_;                 // what others tell
  std::thread deadlines_;
  std::thread aborts_;
};

static_assert(Communicator<gloo>);

}  // namespace rivulet::comm
