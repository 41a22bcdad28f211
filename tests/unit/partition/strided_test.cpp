#include <doctest/doctest.h>

#include <rivulet/partition/strided.hpp>

#include "contract/layered_contract.hpp"

namespace {

using rivulet::partition::strided;
using rivulet_test::table;

TEST_CASE("strided: layer i is in fragment i mod P") {
  rivulet_test::layered_contract<strided>(
      "strided", [](int layer, int, int fragments) { return layer % fragments; });
}

TEST_CASE("strided: tables by hand") {
  rivulet_test::layered_model const seven(7);
  auto const parameters = std::span(seven.params.parameters());
  CHECK(rivulet_test::parameters_of(strided{3}(parameters)) ==
        table{{0, 3, 6}, {1, 4}, {2, 5}, {7}});
  CHECK(rivulet_test::parameters_of(strided{3, 1}(parameters)) ==
        table{{0, 3, 6}, {1, 4, 7}, {2, 5}});
  CHECK(rivulet_test::parameters_of(strided{4}(parameters)) == table{{0, 2, 4, 6}, {1, 3, 5}, {7}});
  // The paper's 24 layers in fragments of 3: fragment 0 holds 0, 8 and 16.
  rivulet_test::layered_model const paper(24, {}, false);
  auto const fragments = rivulet_test::parameters_of(strided{}(paper.params.parameters()));
  REQUIRE(fragments.size() == 8);
  CHECK(fragments[0] == std::vector<std::size_t>{0, 8, 16});
  CHECK(fragments[7] == std::vector<std::size_t>{7, 15, 23});
}

}  // namespace
