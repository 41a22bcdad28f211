#pragma once

/// \file
/// A problem whose answer is known: each worker has a quadratic with a minimum of its own, and
/// their sum has its minimum at the mean.

#include <cstdint>
#include <vector>

#include "multi_rank/model.hpp"

namespace rivulet_test {

struct quadratic {
  int world = 1;
  std::size_t size = 200;

  [[nodiscard]] float minimum(int rank, std::size_t i) const {
    return noise(1, static_cast<std::uint64_t>(rank), i, 0) + 3.0f;
  }
  /// An inner step of gradient descent.
  void step(int rank, std::vector<float>& x) const {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] -= 0.05f * (x[i] - minimum(rank, i));
  }
  /// Mean squared distance from the best answer.
  [[nodiscard]] double loss(std::vector<float> const& x) const {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      double best = 0;
      for (int r = 0; r < world; ++r) best += static_cast<double>(minimum(r, i)) / world;
      double const distance = static_cast<double>(x[i]) - best;
      sum += distance * distance;
    }
    return sum / static_cast<double>(x.size());
  }
};

}  // namespace rivulet_test
