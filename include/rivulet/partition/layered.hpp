#pragma once

/// \file
/// What strided and sequential share: fragments of whole transformer blocks.

#include <algorithm>
#include <string>

#include <rivulet/concepts.hpp>

namespace rivulet::partition {

/// The value of `ends_in` that gives embedding, final norm and head a fragment of their own, after
/// those of the blocks.
inline constexpr int own_fragment = -1;

namespace detail {

/// Puts layer i into fragment `place(i, fragments)`. `Place` sees the number of fragments,
/// ceil(layers / layers_per_fragment).
template <class Place>
[[nodiscard]] std::vector<fragment> by_layer(std::string_view name,
                                             std::span<parameter const> parameters,
                                             int layers_per_fragment, int ends_in,
                                             Place const& place) {
  rivulet::detail::require(layers_per_fragment >= 1, "partition::", name,
                           ": layers_per_fragment = ", layers_per_fragment, " must be at least 1");
  int layers = 0;
  bool ends = false;
  for (parameter const& p : parameters) {
    if (!p.synced()) continue;
    if (p.where.what == role::kind::layer) {
      layers = (std::max)(layers, p.where.index + 1);
    } else {
      ends = true;
    }
  }
  int const blocks = layers == 0 ? 0 : (layers - 1) / layers_per_fragment + 1;
  rivulet::detail::require(blocks > 0 || !ends || ends_in == own_fragment, "partition::", name,
                           ": ends_in = ", ends_in, ", but no parameter belongs to a layer");
  rivulet::detail::require(ends_in == own_fragment || (ends_in >= 0 && ends_in < blocks),
                           "partition::", name, ": ends_in = ", ends_in, " must be below ", blocks,
                           ", the number of block fragments, or own_fragment");
  std::vector<fragment> fragments;
  for (int f = 0; f < blocks; ++f) {
    fragments.push_back({"blocks." + std::to_string(f), {}});
  }
  if (ends && ends_in == own_fragment) fragments.push_back({"ends", {}});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameter const& p = parameters[i];
    if (!p.synced()) continue;
    int f = ends_in == own_fragment ? blocks : ends_in;
    if (p.where.what == role::kind::layer) f = place(p.where.index, blocks);
    fragments[static_cast<std::size_t>(f)].add_whole(parameters, i);
  }
  // A layer whose parameters are all frozen leaves no fragment behind.
  std::erase_if(fragments, [](fragment const& f) { return f.slices.empty(); });
  return fragments;
}

}  // namespace detail
}  // namespace rivulet::partition
