/// \file
/// The contract of communicators on comm::local and on a foreign one.

#include <atomic>

#include <doctest/doctest.h>

#include "contract/communicator_contract.hpp"
#include "multi_rank/faulty.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;

TEST_CASE("comm::local keeps the contract of communicators") {
  communicator_contract([](int world, auto const& body) { run_ranks(world, body); });
}

TEST_CASE("a foreign communicator keeps the contract of communicators") {
  communicator_contract([](int world, auto const& body) {
    run_ranks(world, [&](rivulet::comm::local& local) {
      faulty comm(local);
      body(comm);
    });
  });
}

TEST_CASE("a late rank of a local group is waited for") {
  run_ranks(3, [](rivulet::comm::local& local) {
    faulty comm(local, local.rank() == 1 ? delayed(30, 0) : faulty::hooks{});
    for (int round = 0; round < 3; ++round) contract::check_all_gather(comm, round, 9);
  });
}

TEST_CASE("two threads cannot be the same rank of a local group") {
  rivulet::comm::local_group const group(2);
  std::atomic<int> failed = 0;
  run_threads(
      2,
      [&](int) {
        rivulet::comm::local same = group.communicator(0);
        std::byte const mine{};
        std::byte all[2];
        rivulet::comm_status const status = same.all_gather({&mine, 1}, all, soon());
        failed += status == rivulet::comm_status::done ? 0 : 1;
      },
      [&] { group.communicator(0).abort(); });
  CHECK(failed == 2);
}

TEST_CASE("a local group refuses sizes and ranks that do not exist") {
  CHECK_THROWS_AS(rivulet::comm::local_group{0}, rivulet::precondition_error);
  rivulet::comm::local_group const group(2);
  CHECK_THROWS_AS((void)group.communicator(2), rivulet::precondition_error);
  CHECK_THROWS_AS((void)group.communicator(-1), rivulet::precondition_error);
}

TEST_CASE("ranks of a local group that do not agree on an operation all fail") {
  run_ranks(3, [](rivulet::comm::local& comm) {
    std::vector<std::byte> bytes(6);
    auto const size = static_cast<std::size_t>(comm.rank() == 2 ? 1 : 2);
    rivulet::comm_status const status =
        comm.all_gather(std::span(bytes).first(size), std::span(bytes).first(3 * size), soon());
    CHECK(status == rivulet::comm_status::failed);
  });
}

}  // namespace
