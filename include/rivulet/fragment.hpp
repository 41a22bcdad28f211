#pragma once

/// \file
/// Fragments: the units that are synchronized, each a list of slices of parameters.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <rivulet/error.hpp>
#include <rivulet/parameter.hpp>

namespace rivulet {

/// Where a tensor may be cut: at multiples of this many elements, a multiple of every block size.
inline constexpr std::size_t cut_elements = 4096;

/// A range of elements of one parameter.
struct slice {
  std::size_t parameter = 0;  ///< index in the parameter set
  std::size_t offset = 0;     ///< first element; a multiple of cut_elements
  std::size_t size = 0;       ///< number of elements

  friend bool operator==(slice const&, slice const&) = default;
};

/// What one operation synchronizes.
struct fragment {
  std::string name;
  std::vector<slice> slices;

  [[nodiscard]] std::size_t size() const {
    std::size_t total = 0;
    for (slice const& part : slices) total += part.size;
    return total;
  }
  /// Appends a parameter as a whole.
  void add_whole(std::span<parameter const> parameters, std::size_t index) {
    slices.push_back({index, 0, parameters[index].tensor.size});
  }
};

/// Checks that every element of every synced parameter is in exactly one fragment, that nothing
/// else is, and that cuts are at multiples of cut_elements. The engine runs it on the result of any
/// partitioner. Throws precondition_error that names the parameter.
inline void check_partition(std::vector<fragment> const& fragments,
                            std::span<parameter const> parameters) {
  detail::require(!fragments.empty(), "the partition has no fragment: no parameter is trainable");
  std::vector<std::vector<slice>> parts(parameters.size());
  for (fragment const& f : fragments) {
    detail::require(f.size() > 0, "fragment '", f.name,
                    "' has no elements; use fewer fragments, or give it a parameter");
    for (slice const& part : f.slices) {
      detail::require(part.parameter < parameters.size(), "fragment '", f.name,
                      "' names parameter ", part.parameter, " of a set of ", parameters.size());
      parts[part.parameter].push_back(part);
    }
  }
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    parameter const& p = parameters[index];
    std::sort(parts[index].begin(), parts[index].end(),
              [](slice const& a, slice const& b) { return a.offset < b.offset; });
    if (!p.synced()) {
      detail::require(parts[index].empty(), "parameter '", p.name,
                      "' is frozen or empty, so it must be in no fragment");
      continue;
    }
    std::size_t covered = 0;
    for (slice const& part : parts[index]) {
      detail::require(part.offset == covered && part.size > 0, "parameter '", p.name, "': element ",
                      (std::min)(covered, part.offset),
                      " is in no fragment or in two; every element must be in exactly one");
      detail::require(part.size <= p.tensor.size - covered, "parameter '", p.name, "': a slice of ",
                      part.size, " elements at ", covered, " goes beyond its ", p.tensor.size);
      detail::require(part.offset % cut_elements == 0, "parameter '", p.name,
                      "' is cut at element ", part.offset, ", which is no multiple of ",
                      cut_elements);
      covered += part.size;
    }
    detail::require(covered == p.tensor.size, "parameter '", p.name, "': ", covered, " of ",
                    p.tensor.size,
                    " elements are in a fragment; every element must be in exactly one");
  }
}

}  // namespace rivulet
