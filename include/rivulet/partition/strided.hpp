#pragma once

/// \file
/// Block i in fragment i mod P: the default of Streaming DiLoCo (arXiv 2501.18512, section 2.2).

#include <rivulet/partition/layered.hpp>

namespace rivulet::partition {

/// P = ceil(layers / layers_per_fragment) fragments; layer i is in fragment i mod P. Embedding,
/// final norm and head are the last fragment, or join block fragment `ends_in`.
/// Throws precondition_error for layers_per_fragment < 1 or an `ends_in` that does not exist.
struct strided {
  int layers_per_fragment = 3;
  int ends_in = own_fragment;

  [[nodiscard]] std::vector<fragment> operator()(std::span<parameter const> parameters) const {
    return detail::by_layer("strided", parameters, layers_per_fragment, ends_in,
                            [](int layer, int fragments) { return layer % fragments; });
  }
};

static_assert(Partitioner<strided>);

}  // namespace rivulet::partition
