#pragma once

/// \file
/// Fragments of equal size, whatever the shapes of the tensors.

#include <algorithm>
#include <string>

#include <rivulet/concepts.hpp>

namespace rivulet::partition {

/// `fragments` fragments whose sizes differ by at most 4096 elements. Tensors are cut at multiples
/// of 4096: the full pieces are dealt out in order, so that a fragment is a contiguous run of them,
/// then each remainder goes to the smallest fragment.
/// Throws precondition_error if there are fewer pieces than fragments.
struct balanced {
  int fragments = 8;

  [[nodiscard]] std::vector<fragment> operator()(std::span<parameter const> parameters) const {
    rivulet::detail::require(fragments >= 1, "partition::balanced: fragments = ", fragments,
                             " must be at least 1");
    auto const count = static_cast<std::size_t>(fragments);
    std::size_t pieces = 0;
    std::size_t full = 0;
    for (parameter const& p : parameters) {
      if (!p.synced()) continue;
      full += p.tensor.size / cut_elements;
      pieces += (p.tensor.size + cut_elements - 1) / cut_elements;
    }
    if (pieces == 0) return {};
    rivulet::detail::require(count <= pieces, "partition::balanced: fragments = ", fragments,
                             " is more than the ", pieces,
                             " pieces of 4096 elements that the parameters can be cut into");

    std::vector<fragment> parts(count);
    std::vector<std::size_t> sizes(count, 0);
    for (std::size_t f = 0; f < count; ++f) parts[f].name = "balanced." + std::to_string(f);

    std::size_t dealt = 0;  // full pieces so far; fragment f takes those below full * (f + 1) / P
    std::size_t f = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].synced()) continue;
      std::size_t const own = parameters[i].tensor.size / cut_elements;
      for (std::size_t piece = 0; piece < own;) {
        while (dealt >= full * (f + 1) / count) ++f;
        std::size_t const run = (std::min)(own - piece, full * (f + 1) / count - dealt);
        parts[f].slices.push_back({i, piece * cut_elements, run * cut_elements});
        sizes[f] += run * cut_elements;
        piece += run;
        dealt += run;
      }
    }
    // A remainder is below 4096, so giving it to the smallest keeps the spread within 4096.
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      std::size_t const size = parameters[i].tensor.size;
      std::size_t const rest = size % cut_elements;
      if (!parameters[i].synced() || rest == 0) continue;
      auto const smallest =
          static_cast<std::size_t>(std::min_element(sizes.begin(), sizes.end()) - sizes.begin());
      auto& slices = parts[smallest].slices;
      if (!slices.empty() && slices.back().parameter == i &&
          slices.back().offset + slices.back().size == size - rest) {
        slices.back().size += rest;
      } else {
        slices.push_back({i, size - rest, rest});
      }
      sizes[smallest] += rest;
    }
    return parts;
  }
};

static_assert(Partitioner<balanced>);

}  // namespace rivulet::partition
