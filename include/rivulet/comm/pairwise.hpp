#pragma once

/// \file
/// Collectives out of messages between pairs of ranks: what a transport of one's own derives from.

#include <cstdint>
#include <cstring>
#include <vector>

#include <rivulet/comm/communicator.hpp>
#include <rivulet/detail/hash.hpp>

namespace rivulet::comm {

/// What a rank sends to and receives from one other rank in a collective. An empty span is no
/// message.
struct transfer {
  int peer = 0;
  std::span<std::byte const> out{};
  std::span<std::byte> in{};
};

/// The collectives of a Communicator, every rank sending directly to every other: no byte crosses
/// more than one link, and a late rank is known by name. `Transport` derives from this and offers
///
///     int rank() const;
///     int size() const;
///     comm_status exchange(std::span<transfer const>, std::uint64_t slot, deadline);
///
/// `exchange` makes all transfers, of messages that go by the same slot on both sides: what belongs
/// to another collective, or is of another size, never meets. It may be called with no transfers.
template <class Transport>
class pairwise {
 public:
  comm_status all_gather(std::span<std::byte const> mine, std::span<std::byte> all,
                         deadline until) {
    std::size_t const n = mine.size();
    rivulet::detail::require(all.size() == n * ranks(), "all_gather: `all` has ", all.size(),
                             " bytes, but ", n, " from each of ", self().size(), " ranks arrive");
    copy(part(all, self().rank(), n), mine);
    for_each_peer([&](int peer) { add(peer, mine, part(all, peer, n)); });
    return self().exchange(transfers_, next_slot(0, n), until);
  }

  comm_status all_to_all(std::span<std::byte const> out, std::span<std::byte> in, deadline until) {
    rivulet::detail::require(out.size() == in.size() && out.size() % ranks() == 0,
                             "all_to_all: spans of ", out.size(), " and ", in.size(),
                             " bytes must be equal multiples of the ", self().size(), " ranks");
    std::size_t const n = out.size() / ranks();
    copy(part(in, self().rank(), n), part(out, self().rank(), n));
    for_each_peer([&](int peer) { add(peer, part(out, peer, n), part(in, peer, n)); });
    return self().exchange(transfers_, next_slot(1, n), until);
  }

  comm_status broadcast(std::span<std::byte> data, int root, deadline until) {
    rivulet::detail::require(root >= 0 && root < self().size(), "broadcast: root ", root,
                             " is no rank of ", self().size());
    transfers_.clear();
    if (self().rank() != root) {
      add(root, {}, data);
    } else {
      for_each_peer([&](int peer) { add(peer, data, {}); });
    }
    return self().exchange(transfers_, next_slot(2 + static_cast<unsigned>(root), data.size()),
                           until);
  }

 private:
  friend Transport;
  pairwise() = default;

  [[nodiscard]] Transport& self() { return static_cast<Transport&>(*this); }
  [[nodiscard]] std::size_t ranks() { return static_cast<std::size_t>(self().size()); }

  /// Each rank begins with its successor, so that not all send to the same one at first.
  template <class F>
  void for_each_peer(F const& f) {
    transfers_.clear();
    for (int i = 1; i < self().size(); ++i) f((self().rank() + i) % self().size());
  }

  void add(int peer, std::span<std::byte const> out, std::span<std::byte> in) {
    if (!out.empty() || !in.empty()) transfers_.push_back({peer, out, in});
  }

  [[nodiscard]] std::uint64_t next_slot(unsigned kind, std::size_t bytes) {
    return rivulet::detail::hash{}
        .add(++operation_)
        .add(std::uint64_t{kind})
        .add(std::uint64_t{bytes})
        .value();
  }

  template <class Bytes>
  static Bytes part(Bytes bytes, int rank, std::size_t size) {
    return bytes.subspan(static_cast<std::size_t>(rank) * size, size);
  }

  static void copy(std::span<std::byte> to, std::span<std::byte const> from) {
    if (to.data() != from.data() && !to.empty()) std::memcpy(to.data(), from.data(), to.size());
  }

  std::uint64_t operation_ = 0;
  std::vector<transfer> transfers_;  // keeps its memory from call to call
};

}  // namespace rivulet::comm
