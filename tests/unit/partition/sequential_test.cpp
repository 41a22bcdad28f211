#include <doctest/doctest.h>

#include <rivulet/partition/sequential.hpp>

#include "contract/layered_contract.hpp"

namespace {

using rivulet::partition::sequential;
using rivulet_test::table;

TEST_CASE("sequential: layer i is in fragment floor of i over layers_per_fragment") {
  rivulet_test::layered_contract<sequential>("sequential",
                                             [](int layer, int per, int) { return layer / per; });
}

TEST_CASE("sequential: tables by hand") {
  rivulet_test::layered_model const seven(7);
  auto const parameters = std::span(seven.params.parameters());
  CHECK(rivulet_test::parameters_of(sequential{3}(parameters)) ==
        table{{0, 1, 2}, {3, 4, 5}, {6}, {7}});
  CHECK(rivulet_test::parameters_of(sequential{3, 2}(parameters)) ==
        table{{0, 1, 2}, {3, 4, 5}, {6, 7}});
  CHECK(rivulet_test::parameters_of(sequential{4}(parameters)) ==
        table{{0, 1, 2, 3}, {4, 5, 6}, {7}});
  rivulet_test::layered_model const paper(24, {}, false);
  auto const fragments = rivulet_test::parameters_of(sequential{}(paper.params.parameters()));
  REQUIRE(fragments.size() == 8);
  CHECK(fragments[7] == std::vector<std::size_t>{21, 22, 23});
}

}  // namespace
