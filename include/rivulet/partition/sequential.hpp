#pragma once

/// \file
/// Consecutive blocks in a fragment (arXiv 2501.18512, section 2.2).

#include <rivulet/partition/layered.hpp>

namespace rivulet::partition {

/// P = ceil(layers / layers_per_fragment) fragments; layer i is in fragment
/// floor(i / layers_per_fragment). Embedding, final norm and head are the last fragment, or join
/// block fragment `ends_in`.
/// Throws precondition_error for layers_per_fragment < 1 or an `ends_in` that does not exist.
struct sequential {
  int layers_per_fragment = 3;
  int ends_in = own_fragment;

  [[nodiscard]] std::vector<fragment> operator()(std::span<parameter const> parameters) const {
    return detail::by_layer("sequential", parameters, layers_per_fragment, ends_in,
                            [this](int layer, int) { return layer / layers_per_fragment; });
  }
};

static_assert(Partitioner<sequential>);

}  // namespace rivulet::partition
