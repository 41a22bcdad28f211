#pragma once

/// \file
/// What every communicator must do (comm/communicator.hpp), as a test that runs on any of them.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/comm/communicator.hpp>
#include <rivulet/error.hpp>

namespace rivulet_test {

namespace contract {

using rivulet::comm_status;

inline rivulet::deadline in(int milliseconds) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
}

/// Byte `i` of the part that rank `from` has for rank `to` in round `round`.
inline std::byte content(int round, int from, int to, std::size_t i) {
  auto const mixed = static_cast<std::size_t>(round * 31 + from * 7 + to * 3) + i * 5;
  return static_cast<std::byte>(mixed & 0xffu);
}

inline std::vector<std::byte> part(int round, int from, int to, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = content(round, from, to, i);
  return bytes;
}

inline void append(std::vector<std::byte>& to, std::vector<std::byte> const& bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

template <rivulet::Communicator Comm>
void check_all_gather(Comm& comm, int round, std::size_t size) {
  auto const world = static_cast<std::size_t>(comm.size());
  std::vector<std::byte> expected;
  for (int r = 0; r < comm.size(); ++r) append(expected, part(round, r, 0, size));
  std::vector<std::byte> const mine = part(round, comm.rank(), 0, size);
  std::vector<std::byte> all(size * world);
  CHECK(comm.all_gather(mine, all, in(30'000)) == comm_status::done);
  CHECK(all == expected);

  std::vector<std::byte> in_place(size * world);
  auto const own = std::span(in_place).subspan(static_cast<std::size_t>(comm.rank()) * size, size);
  std::copy(mine.begin(), mine.end(), own.begin());
  CHECK(comm.all_gather(own, in_place, in(30'000)) == comm_status::done);
  CHECK(in_place == expected);
}

template <rivulet::Communicator Comm>
void check_all_to_all(Comm& comm, int round, std::size_t size) {
  std::vector<std::byte> out;
  std::vector<std::byte> expected;
  for (int r = 0; r < comm.size(); ++r) {
    append(out, part(round, comm.rank(), r, size));
    append(expected, part(round, r, comm.rank(), size));
  }
  std::vector<std::byte> arrived(out.size());
  CHECK(comm.all_to_all(out, arrived, in(30'000)) == comm_status::done);
  CHECK(arrived == expected);
}

template <rivulet::Communicator Comm>
void check_broadcast(Comm& comm, int round, std::size_t size) {
  for (int root = 0; root < comm.size(); ++root) {
    std::vector<std::byte> data(size);
    if (comm.rank() == root) data = part(round, root, 1, size);
    CHECK(comm.broadcast(data, root, in(30'000)) == comm_status::done);
    CHECK(data == part(round, root, 1, size));
  }
}

/// A broken communicator serves no more.
template <rivulet::Communicator Comm>
void check_spent(Comm& comm) {
  std::byte const mine[1] = {};
  std::vector<std::byte> all(static_cast<std::size_t>(comm.size()));
  CHECK(comm.all_gather(mine, all, in(30'000)) != comm_status::done);
  CHECK(comm.broadcast(all, 0, in(30'000)) != comm_status::done);
}

}  // namespace contract

/// `run(world, body)` calls body(comm) on each rank of a fresh group, on threads of their own, or
/// on this rank of processes.
template <class Run>
void communicator_contract(Run const& run, std::vector<int> const& worlds = {1, 2, 3, 4}) {
  using rivulet::comm_status;
  for (int const world : worlds) {
    CAPTURE(world);

    // Collectives, in any order, of any size.
    run(world, [&](auto& comm) {
      CHECK(comm.size() == world);
      for (int round = 0; round < 20; ++round) {
        auto const size = static_cast<std::size_t>(round * round * 7 / 2);
        contract::check_all_gather(comm, round, size);
        contract::check_all_to_all(comm, round, size);
        contract::check_broadcast(comm, round, size);
      }
    });

    // Wrong sizes of the caller's own spans.
    run(world, [&](auto& comm) {
      std::byte const mine[2] = {};
      std::vector<std::byte> bytes(static_cast<std::size_t>(3 * world));
      CHECK_THROWS_AS((void)comm.all_gather(mine, bytes, contract::in(30'000)),
                      rivulet::precondition_error);
      CHECK_THROWS_AS((void)comm.all_to_all(bytes, std::span(bytes).first(1), contract::in(30'000)),
                      rivulet::precondition_error);
      CHECK_THROWS_AS((void)comm.broadcast(bytes, world, contract::in(30'000)),
                      rivulet::precondition_error);
      contract::check_all_gather(comm, 1, 5);  // nothing happened
    });

    // abort() from another thread wakes a rank that waits, and all others.
    run(world, [&](auto& comm) {
      contract::check_all_gather(comm, 1, 5);
      auto const start = std::chrono::steady_clock::now();
      if (comm.rank() == 0) {
        std::thread other([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          comm.abort();
        });
        other.join();
      } else {
        std::byte const mine[1] = {};
        std::vector<std::byte> all(static_cast<std::size_t>(world));
        CHECK(comm.all_gather(mine, all, contract::in(30'000)) == comm_status::aborted);
      }
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
      contract::check_spent(comm);
    });

    // A rank that is late: a deadline ends the wait, for all.
    if (world == 1) continue;
    run(world, [&](auto& comm) {
      contract::check_all_gather(comm, 1, 5);
      if (comm.rank() == world - 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        contract::check_spent(comm);
        return;
      }
      bool const first = comm.rank() == 0;
      std::byte const mine[1] = {};
      std::vector<std::byte> all(static_cast<std::size_t>(world));
      comm_status const status = comm.all_gather(mine, all, contract::in(first ? 50 : 30'000));
      CHECK(status == (first ? comm_status::timeout : comm_status::aborted));
      contract::check_spent(comm);
    });
  }
}

}  // namespace rivulet_test
