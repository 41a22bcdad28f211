#pragma once

/// \file
/// Kernels run on an OpenMP team of the calling thread. A leaf: include it by name, compile with
/// -fopenmp.

#if !defined(_OPENMP)
#error "rivulet/exec/openmp.hpp needs OpenMP: compile with -fopenmp, or use rivulet::exec::host."
#endif

#include <omp.h>

#include <rivulet/concepts.hpp>

namespace rivulet::exec {

/// The tiles divided over `threads` threads (0: as many as OpenMP would take).
struct openmp {
  int threads = 0;

  template <class F>
  void for_each_tile(std::size_t tiles, F const& tile) const {
    int const team = threads > 0 ? threads : omp_get_max_threads();
#pragma omp parallel for schedule(static) num_threads(team)
    for (std::size_t i = 0; i < tiles; ++i) tile(i);
  }
};

static_assert(Executor<openmp>);

}  // namespace rivulet::exec
