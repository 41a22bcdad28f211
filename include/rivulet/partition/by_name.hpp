#pragma once

/// \file
/// The user's own list.

#include <string>

#include <rivulet/concepts.hpp>

namespace rivulet::partition {

/// A list of names per fragment; a name that ends in '*' stands for all that begin so. Aliases are
/// not listed: a tied parameter goes by its first name.
/// Throws precondition_error for a name that matches no parameter or a frozen one, or a parameter
/// that no fragment lists or two list.
struct by_name {
  std::vector<std::vector<std::string>> fragments;

  [[nodiscard]] std::vector<fragment> operator()(std::span<parameter const> parameters) const {
    std::vector<fragment> parts;
    std::vector<bool> listed(parameters.size(), false);
    for (auto const& names : fragments) {
      fragment part{"by_name." + std::to_string(parts.size()), {}};
      for (std::string const& name : names) {
        bool const prefix = name.ends_with('*');
        std::string_view const stem = std::string_view(name).substr(0, name.size() - prefix);
        bool found = false;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          parameter const& p = parameters[i];
          if (prefix ? !std::string_view(p.name).starts_with(stem) : p.name != stem) continue;
          found = true;
          if (prefix && !p.synced()) continue;
          rivulet::detail::require(p.synced(), "partition::by_name: parameter '", name,
                                   "' is frozen or empty, so it must not be listed");
          rivulet::detail::require(!listed[i], "partition::by_name: parameter '", p.name,
                                   "' is listed twice");
          listed[i] = true;
          part.add_whole(parameters, i);
        }
        rivulet::detail::require(found, "partition::by_name: '", name, "' matches no parameter");
      }
      parts.push_back(part);
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      rivulet::detail::require(listed[i] || !parameters[i].synced(),
                               "partition::by_name: parameter '", parameters[i].name,
                               "' is in no fragment");
    }
    return parts;
  }
};

static_assert(Partitioner<by_name>);

}  // namespace rivulet::partition
