#pragma once

/// \file
/// What every executor must do.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/concepts.hpp>

namespace rivulet_test {

/// Each tile runs exactly once and is done when for_each_tile returns.
template <rivulet::Executor E>
void executor_contract(E const& executor) {
  for (std::size_t const tiles : {0u, 1u, 2u, 3u, 7u, 64u, 1000u}) {
    CAPTURE(tiles);
    std::vector<std::atomic<int>> calls(tiles);
    std::atomic<int> outside{0};
    executor.for_each_tile(tiles, [&](std::size_t i) { ++(i < tiles ? calls[i] : outside); });
    CHECK(std::all_of(calls.begin(), calls.end(), [](auto const& count) { return count == 1; }));
    CHECK(outside == 0);
  }
}

}  // namespace rivulet_test
