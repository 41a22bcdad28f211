#include <cstddef>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/fragment.hpp>

namespace {

using rivulet::fragment;
using rivulet::precondition_error;

/// 0: 10000 elements, 1: 5, 2: frozen, 3: empty.
struct model {
  std::vector<float> a = std::vector<float>(10000);
  std::vector<float> b = std::vector<float>(5);
  std::vector<float> frozen = std::vector<float>(7);
  std::vector<float> empty;
  rivulet::parameter_set params;

  model() {
    params.add("a", rivulet::layer(0), a);
    params.add("b", rivulet::layer(0), b);
    params.add("frozen", rivulet::layer(0), frozen, false);
    params.add("empty", rivulet::layer(0), empty);
  }
};

TEST_CASE("fragment: size and whole parameters") {
  model const m;
  fragment f{"f", {{0, 4096, 100}}};
  CHECK(f.size() == 100);
  f.add_whole(m.params.parameters(), 1);
  CHECK(f.slices == std::vector<rivulet::slice>{{0, 4096, 100}, {1, 0, 5}});
  CHECK(f.size() == 105);
  CHECK(fragment{}.size() == 0);
}

TEST_CASE("fragment: check_partition accepts every right partition") {
  model const m;
  std::vector<std::vector<fragment>> const right = {
      {{"all", {{0, 0, 10000}, {1, 0, 5}}}},
      {{"x", {{1, 0, 5}}}, {"y", {{0, 0, 10000}}}},
      {{"x", {{0, 8192, 1808}, {1, 0, 5}}}, {"y", {{0, 4096, 4096}, {0, 0, 4096}}}},
  };
  for (auto const& fragments : right) {
    CHECK_NOTHROW(rivulet::check_partition(fragments, m.params.parameters()));
  }
}

TEST_CASE("fragment: check_partition refuses every wrong partition by text") {
  model const m;
  struct {
    std::vector<fragment> fragments;
    char const* text;
  } const wrong[] = {
      {{}, "rivulet: the partition has no fragment: no parameter is trainable"},
      {{{"all", {{0, 0, 10000}, {1, 0, 5}}}, {"none", {}}},
       "rivulet: fragment 'none' has no elements; use fewer fragments, or give it a parameter"},
      {{{"all", {{0, 0, 10000}, {1, 0, 5}}}, {"none", {{0, 0, 0}}}},
       "rivulet: fragment 'none' has no elements; use fewer fragments, or give it a parameter"},
      {{{"all", {{0, 0, 10000}, {4, 0, 5}}}},
       "rivulet: fragment 'all' names parameter 4 of a set of 4"},
      {{{"all", {{0, 0, 10000}, {1, 0, 5}, {2, 0, 7}}}},
       "rivulet: parameter 'frozen' is frozen or empty, so it must be in no fragment"},
      {{{"all", {{0, 0, 10000}, {1, 0, 5}, {3, 0, 0}}}},
       "rivulet: parameter 'empty' is frozen or empty, so it must be in no fragment"},
      {{{"all", {{0, 0, 10000}}}},
       "rivulet: parameter 'b': 0 of 5 elements are in a fragment; every element must be in "
       "exactly one"},
      {{{"all", {{0, 0, 8192}, {1, 0, 5}}}},
       "rivulet: parameter 'a': 8192 of 10000 elements are in a fragment; every element must be "
       "in exactly one"},
      {{{"all", {{0, 0, 10001}, {1, 0, 5}}}},
       "rivulet: parameter 'a': a slice of 10001 elements at 0 goes beyond its 10000"},
      {{{"all", {{0, 4096, 5904}, {1, 0, 5}}}},
       "rivulet: parameter 'a': element 0 is in no fragment or in two; every element must be in "
       "exactly one"},
      {{{"all", {{0, 0, 4096}, {0, 8192, 1808}, {1, 0, 5}}}},
       "rivulet: parameter 'a': element 4096 is in no fragment or in two; every element must be "
       "in exactly one"},
      {{{"x", {{0, 0, 8192}, {1, 0, 5}}}, {"y", {{0, 4096, 5904}}}},
       "rivulet: parameter 'a': element 4096 is in no fragment or in two; every element must be "
       "in exactly one"},
      {{{"x", {{0, 0, 10000}, {1, 0, 5}}}, {"y", {{1, 0, 5}}}},
       "rivulet: parameter 'b': element 0 is in no fragment or in two; every element must be in "
       "exactly one"},
      {{{"x", {{0, 0, 4096}, {0, 4096, 0}, {0, 4096, 5904}, {1, 0, 5}}}},
       "rivulet: parameter 'a': element 4096 is in no fragment or in two; every element must be "
       "in exactly one"},
      {{{"x", {{0, 0, 4095}, {1, 0, 5}}}, {"y", {{0, 4095, 5905}}}},
       "rivulet: parameter 'a' is cut at element 4095, which is no multiple of 4096"},
  };
  for (auto const& c : wrong) {
    CHECK_THROWS_WITH_AS(rivulet::check_partition(c.fragments, m.params.parameters()), c.text,
                         precondition_error);
  }
}

}  // namespace
