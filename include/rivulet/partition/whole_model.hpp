#pragma once

/// \file
/// One fragment that holds everything: DiLoCo (arXiv 2311.08105).

#include <rivulet/concepts.hpp>

namespace rivulet::partition {

/// All synced parameters in one fragment.
struct whole_model {
  [[nodiscard]] std::vector<fragment> operator()(std::span<parameter const> parameters) const {
    fragment all{"whole_model", {}};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].synced()) all.add_whole(parameters, i);
    }
    if (all.slices.empty()) return {};
    return {all};
  }
};

static_assert(Partitioner<whole_model>);

}  // namespace rivulet::partition
