#include <cstddef>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/exec/host.hpp>

#include "contract/executor_contract.hpp"

namespace {

/// An executor of a program's own.
struct every_other_first {
  template <class F>
  void for_each_tile(std::size_t tiles, F const& tile) const {
    for (std::size_t begin = 0; begin < 2; ++begin) {
      for (std::size_t i = begin; i < tiles; i += 2) tile(i);
    }
  }
};

TEST_CASE("exec: host and an executor of a program's own meet the contract") {
  rivulet_test::executor_contract(rivulet::exec::host{});
  rivulet_test::executor_contract(every_other_first{});
}

TEST_CASE("host: tiles run in order on the calling thread") {
  std::vector<std::size_t> order;
  std::thread::id const caller = std::this_thread::get_id();
  bool here = true;
  rivulet::exec::host{}.for_each_tile(5, [&](std::size_t i) {
    order.push_back(i);
    here = here && std::this_thread::get_id() == caller;
  });
  CHECK(order == std::vector<std::size_t>{0, 1, 2, 3, 4});
  CHECK(here);
}

}  // namespace
