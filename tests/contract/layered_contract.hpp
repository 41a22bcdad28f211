#pragma once

/// \file
/// What strided and sequential have in common.

#include <climits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/partition/layered.hpp>

#include "contract/partitioner_contract.hpp"

namespace rivulet_test {

/// Layers 0 .. layers - 1, one parameter each, between an embedding (parameter `layers`, added
/// last) and nothing. Layers of which `trains` is false are frozen.
class layered_model {
 public:
  explicit layered_model(int layers, std::vector<bool> const& trains = {}, bool ends = true)
      : tensors_(static_cast<std::size_t>(layers) + 1, std::vector<float>(3)) {
    for (int l = 0; l < layers; ++l) {
      auto const i = static_cast<std::size_t>(l);
      params.add("h" + std::to_string(l), rivulet::layer(l), tensors_[i],
                 trains.empty() || trains[i]);
    }
    if (ends) params.add("wte", rivulet::embedding, tensors_.back());
  }

  rivulet::parameter_set params;

 private:
  std::vector<std::vector<float>> tensors_;
};

using table = std::vector<std::vector<std::size_t>>;

/// The parameters of each fragment.
inline table parameters_of(std::vector<rivulet::fragment> const& fragments) {
  table result;
  for (rivulet::fragment const& f : fragments) {
    result.emplace_back();
    for (rivulet::slice const& s : f.slices) result.back().push_back(s.parameter);
  }
  return result;
}

/// `P` is strided or sequential; `place(layer, layers_per_fragment, fragments)` is the definition.
template <class P, class Place>
void layered_contract(std::string const& name, Place const& place) {
  constexpr int own = rivulet::partition::own_fragment;
  partitioner_contract([](random_model const&, int n) {
    return P{.layers_per_fragment = 1 + n % 5, .ends_in = n % 2 == 0 ? own : 0};
  });

  for (int layers = 1; layers <= 13; ++layers) {
    for (int per = 1; per <= 13; ++per) {
      CAPTURE(layers);
      CAPTURE(per);
      int const fragments = (layers - 1) / per + 1;
      table blocks(static_cast<std::size_t>(fragments));
      for (int l = 0; l < layers; ++l) {
        blocks.at(static_cast<std::size_t>(place(l, per, fragments)))
            .push_back(static_cast<std::size_t>(l));
      }
      auto const embedding = static_cast<std::size_t>(layers);
      for (int ends_in = own; ends_in < fragments; ++ends_in) {
        table expected = blocks;
        if (ends_in == own) expected.emplace_back();
        (ends_in == own ? expected.back() : expected[static_cast<std::size_t>(ends_in)])
            .push_back(embedding);
        layered_model const model(layers);
        auto const result = P{per, ends_in}(model.params.parameters());
        REQUIRE(parameters_of(result) == expected);
        REQUIRE(result.front().name == "blocks.0");
        if (ends_in == own) REQUIRE(result.back().name == "ends");
      }
      layered_model const without_ends(layers, {}, false);
      REQUIRE(parameters_of(P{per}(without_ends.params.parameters())) == blocks);
    }
  }

  // A fragment whose layers are all frozen does not exist.
  layered_model const frozen(3, {true, false, true});
  CHECK(parameters_of(P{1}(frozen.params.parameters())) == table{{0}, {2}, {3}});
  // One fragment for all layers, however the user spells "all".
  layered_model const model(4);
  CHECK(parameters_of(P{INT_MAX}(model.params.parameters())) == table{{0, 1, 2, 3}, {4}});

  layered_model const no_layers(0);
  CHECK(parameters_of(P{3}(no_layers.params.parameters())) == table{{0}});
  CHECK(P{3}({}).empty());
  struct {
    layered_model const& model;
    P partitioner;
    std::string text;
  } const refused[] = {
      {model, {0}, ": layers_per_fragment = 0 must be at least 1"},
      {model, {-2}, ": layers_per_fragment = -2 must be at least 1"},
      {model,
       {2, 2},
       ": ends_in = 2 must be below 2, the number of block fragments, or own_fragment"},
      {model,
       {2, -2},
       ": ends_in = -2 must be below 2, the number of block fragments, or own_fragment"},
      {no_layers, {2, 0}, ": ends_in = 0, but no parameter belongs to a layer"}};
  for (auto const& c : refused) {
    CHECK_THROWS_WITH_AS((void)c.partitioner(c.model.params.parameters()),
                         ("rivulet: partition::" + name + c.text).c_str(),
                         rivulet::precondition_error);
  }
}

}  // namespace rivulet_test
