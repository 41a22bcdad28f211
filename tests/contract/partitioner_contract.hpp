#pragma once

/// \file
/// What every partitioner must do, on models of random shape.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/concepts.hpp>

namespace rivulet_test {

/// Parameters of random sizes and element types: several layers, ends, ties, frozen and empty ones;
/// "h0.whole" is always trainable. No partitioner reads the values, so one array is behind all.
class random_model {
 public:
  explicit random_model(std::uint64_t seed) : random_(seed), memory_(1 << 19) {
    add("h0.whole", rivulet::layer(0), 1 + below(9000), true);
    int const layers = 1 + static_cast<int>(below(7));
    if (below(4) > 0) add_any("wte", rivulet::embedding);
    for (int l = 0; l < layers; ++l) {
      std::string const name = "h" + std::to_string(l);
      for (char const* part : {".attention", ".mlp", ".norm"}) {
        if (below(5) > 0) add_any(name + part, rivulet::layer(l));
      }
    }
    if (below(2) > 0) add_any("norm", rivulet::final_norm);
    if (below(2) > 0) add_any("head", rivulet::head);
    if (below(2) > 0) params.add_ref("tied", rivulet::head, params[0].tensor);
  }

  rivulet::parameter_set params;

  /// How many pieces of 4096 elements a partitioner can make of it.
  [[nodiscard]] std::size_t pieces() const {
    std::size_t count = 0;
    for (rivulet::parameter const& p : params.parameters()) {
      if (p.synced()) count += (p.tensor.size + 4095) / 4096;
    }
    return count;
  }

 private:
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  void add(std::string const& name, rivulet::role where, std::size_t size, bool trainable) {
    rivulet::tensor_ref tensor = rivulet::tensor_ref::of(memory_.data() + used_, size);
    if (below(3) == 0) tensor.element = rivulet::element_type::bfloat16;
    used_ += size;
    params.add_ref(name, where, tensor, trainable);
  }

  void add_any(std::string const& name, rivulet::role where) {
    std::size_t const sizes[] = {0, 1, 1 + below(100), 4095, 4096, 4097, 8192, 1 + below(20000)};
    add(name, where, sizes[below(std::size(sizes))], below(6) > 0);
  }

  std::mt19937_64 random_;
  std::vector<float> memory_;
  std::size_t used_ = 0;
};

/// What is wrong with a partition; empty if nothing. Counts every element.
inline std::string partition_flaw(std::vector<rivulet::fragment> const& fragments,
                                  std::span<rivulet::parameter const> parameters) {
  std::vector<std::vector<int>> owners;
  for (rivulet::parameter const& p : parameters) owners.emplace_back(p.tensor.size, 0);
  std::set<std::string> names;
  for (rivulet::fragment const& f : fragments) {
    if (!names.insert(f.name).second) return "two fragments are named " + f.name;
    if (f.size() == 0) return f.name + " is empty";
    for (rivulet::slice const& s : f.slices) {
      if (s.offset % 4096 != 0) return f.name + " cuts at " + std::to_string(s.offset);
      for (std::size_t i = 0; i < s.size; ++i) ++owners.at(s.parameter).at(s.offset + i);
    }
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    int const expected = parameters[p].trainable ? 1 : 0;
    for (int const count : owners[p]) {
      if (count != expected) {
        return parameters[p].name + " has an element in " + std::to_string(count) + " fragments";
      }
    }
  }
  return "";
}

inline bool equal(std::vector<rivulet::fragment> const& a,
                  std::vector<rivulet::fragment> const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto const& x, auto const& y) {
    return x.name == y.name && x.slices == y.slices;
  });
}

/// `make(model, number)` gives the partitioner to be tested on a random_model.
template <class Make>
void partitioner_contract(Make const& make) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    random_model const model(seed);
    rivulet::Partitioner auto const partitioner = make(model, static_cast<int>(seed));
    std::vector<rivulet::fragment> const fragments = partitioner(model.params.parameters());
    REQUIRE(partition_flaw(fragments, model.params.parameters()) == "");
    REQUIRE_NOTHROW(rivulet::check_partition(fragments, model.params.parameters()));
    // Another worker has the same descriptions at other addresses.
    random_model const elsewhere(seed);
    REQUIRE(equal(fragments, partitioner(elsewhere.params.parameters())));
  }
}

}  // namespace rivulet_test
