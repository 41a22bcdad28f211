#pragma once

/// \file
/// Kernels run by Thrust, under any of its execution policies whose threads can run host code:
/// thrust::host, thrust::omp::par, thrust::tbb::par. A leaf: include it by name, with the Thrust
/// that the program uses. It sets no device system.

#include <cstddef>

#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>

#include <rivulet/concepts.hpp>

namespace rivulet::exec {

/// One work item per tile, under `policy`.
template <class Policy>
struct thrust {
  Policy policy;

  template <class F>
  void for_each_tile(std::size_t tiles, F const& tile) const {
    ::thrust::counting_iterator<std::size_t> const first(0);
    ::thrust::for_each_n(policy, first, tiles, call<F>{&tile});
  }

 private:
  /// By pointer, because Thrust copies its functors.
  template <class F>
  struct call {
    F const* tile;
    void operator()(std::size_t index) const { (*tile)(index); }
  };
};
template <class Policy>
thrust(Policy) -> thrust<Policy>;

}  // namespace rivulet::exec
