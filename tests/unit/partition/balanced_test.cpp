#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/partition/balanced.hpp>

#include "contract/partitioner_contract.hpp"

namespace {

using rivulet::slice;
using rivulet::partition::balanced;

std::size_t spread(std::vector<rivulet::fragment> const& fragments) {
  auto const [least, most] =
      std::minmax_element(fragments.begin(), fragments.end(),
                          [](auto const& a, auto const& b) { return a.size() < b.size(); });
  return most->size() - least->size();
}

TEST_CASE("balanced: every element is in exactly one fragment") {
  rivulet_test::partitioner_contract([](rivulet_test::random_model const& model, int n) {
    return balanced{1 + n % static_cast<int>(model.pieces())};
  });
}

TEST_CASE("balanced: sizes differ by at most 4096 for every number of fragments") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    rivulet_test::random_model const model(seed);
    auto const parameters = std::span(model.params.parameters());
    for (int count = 1; count <= static_cast<int>(model.pieces()); ++count) {
      CAPTURE(seed);
      CAPTURE(count);
      auto const fragments = balanced{count}(parameters);
      REQUIRE(fragments.size() == static_cast<std::size_t>(count));
      REQUIRE(rivulet_test::partition_flaw(fragments, parameters) == "");
      REQUIRE(spread(fragments) <= 4096);
    }
  }
}

TEST_CASE("balanced: full pieces in order, then the remainders to the smallest") {
  std::vector<float> a(3 * 4096 + 10);
  std::vector<float> b(4096);
  std::vector<float> c(7);
  rivulet::parameter_set params;
  params.add("a", rivulet::layer(0), a);
  params.add("b", rivulet::layer(0), b);
  params.add("c", rivulet::layer(0), c);
  auto const fragments = balanced{2}(params.parameters());
  REQUIRE(fragments.size() == 2);
  CHECK(fragments[0].name == "balanced.0");
  CHECK(fragments[0].slices == std::vector<slice>{{0, 0, 8192}, {0, 12288, 10}});
  CHECK(fragments[1].slices == std::vector<slice>{{0, 8192, 4096}, {1, 0, 4096}, {2, 0, 7}});
  // One fragment is the whole model, with no cut that is not needed.
  CHECK(balanced{1}(params.parameters())[0].slices ==
        std::vector<slice>{{0, 0, 12288}, {1, 0, 4096}, {0, 12288, 10}, {2, 0, 7}});
}

TEST_CASE("balanced: what it refuses, by text") {
  std::vector<float> a(4097);
  rivulet::parameter_set params;
  CHECK(balanced{3}(params.parameters()).empty());
  params.add("a", rivulet::layer(0), a);
  CHECK(balanced{2}(params.parameters()).size() == 2);
  CHECK_THROWS_WITH_AS((void)balanced{3}(params.parameters()),
                       "rivulet: partition::balanced: fragments = 3 is more than the 2 pieces of "
                       "4096 elements that the parameters can be cut into",
                       rivulet::precondition_error);
  CHECK_THROWS_WITH_AS((void)balanced{0}(params.parameters()),
                       "rivulet: partition::balanced: fragments = 0 must be at least 1",
                       rivulet::precondition_error);
}

}  // namespace
