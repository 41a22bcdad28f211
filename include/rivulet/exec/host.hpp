#pragma once

/// \file
/// Kernels run on the calling thread.

#include <rivulet/concepts.hpp>

namespace rivulet::exec {

/// A loop over the tiles.
struct host {
  template <class F>
  void for_each_tile(std::size_t tiles, F const& tile) const {
    for (std::size_t i = 0; i < tiles; ++i) tile(i);
  }
};

static_assert(Executor<host>);

}  // namespace rivulet::exec
