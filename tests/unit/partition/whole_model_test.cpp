#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/partition/whole_model.hpp>

#include "contract/partitioner_contract.hpp"

namespace {

using rivulet::partition::whole_model;

TEST_CASE("whole_model: every element is in exactly one fragment") {
  rivulet_test::partitioner_contract([](auto const&, int) { return whole_model{}; });
}

TEST_CASE("whole_model: one fragment in the order of the set") {
  std::vector<float> a(3);
  std::vector<float> b(5000);
  std::vector<float> frozen(2);
  rivulet::parameter_set params;
  CHECK(whole_model{}(params.parameters()).empty());
  params.add("frozen", rivulet::layer(0), frozen, false);
  CHECK(whole_model{}(params.parameters()).empty());
  params.add("a", rivulet::layer(0), a);
  params.add("b", rivulet::head, b);
  auto const fragments = whole_model{}(params.parameters());
  REQUIRE(fragments.size() == 1);
  CHECK(fragments[0].name == "whole_model");
  CHECK(fragments[0].slices == std::vector<rivulet::slice>{{1, 0, 3}, {2, 0, 5000}});
}

}  // namespace
