#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/partition/by_name.hpp>

#include "contract/partitioner_contract.hpp"

namespace {

using rivulet::slice;
using rivulet::partition::by_name;

TEST_CASE("by_name: every element is in exactly one fragment") {
  rivulet_test::partitioner_contract([](rivulet_test::random_model const& model, int n) {
    by_name lists{{{}, {}}};
    for (rivulet::parameter const& p : model.params.parameters()) {
      if (p.synced()) lists.fragments[lists.fragments[0].empty() ? 0 : 1].push_back(p.name);
    }
    if (lists.fragments[1].empty() || n % 3 == 0) return by_name{{{"*"}}};
    return lists;
  });
}

struct model {
  std::vector<float> tensors[6] = {std::vector<float>(1), std::vector<float>(2),
                                   std::vector<float>(3), std::vector<float>(4),
                                   std::vector<float>(5), {}};
  rivulet::parameter_set params;

  model() {
    params.add("wte", rivulet::embedding, tensors[0]);
    params.add("h0.a", rivulet::layer(0), tensors[1]);
    params.add("h0.b", rivulet::layer(0), tensors[2]);
    params.add("h1.a", rivulet::layer(1), tensors[3]);
    params.add("h1.frozen", rivulet::layer(1), tensors[4], false);
    params.add("h1.empty", rivulet::layer(1), tensors[5]);
    params.add("head", rivulet::head, tensors[0]);  // tied to wte
  }
};

TEST_CASE("by_name: names and prefixes in the order of the list") {
  model const m;
  auto const fragments = by_name{{{"h1.*", "wte"}, {"h0.b", "h0.a"}}}(m.params.parameters());
  REQUIRE(fragments.size() == 2);
  CHECK(fragments[0].name == "by_name.0");
  CHECK(fragments[1].name == "by_name.1");
  CHECK(fragments[0].slices == std::vector<slice>{{3, 0, 4}, {0, 0, 1}});  // frozen left out
  CHECK(fragments[1].slices == std::vector<slice>{{2, 0, 3}, {1, 0, 2}});
}

TEST_CASE("by_name: what it refuses, by text") {
  model const m;
  struct {
    by_name partitioner;
    char const* text;
  } const cases[] = {
      {{{{"*"}, {"typo"}}}, "rivulet: partition::by_name: 'typo' matches no parameter"},
      {{{{"*"}, {"h2.*"}}}, "rivulet: partition::by_name: 'h2.*' matches no parameter"},
      {{{{"head", "h*"}}}, "rivulet: partition::by_name: 'head' matches no parameter"},
      {{{{"wte", "h*", "h1.frozen"}}},
       "rivulet: partition::by_name: parameter 'h1.frozen' is frozen or empty, so it must not be "
       "listed"},
      {{{{"wte", "h*", "h1.empty"}}},
       "rivulet: partition::by_name: parameter 'h1.empty' is frozen or empty, so it must not be "
       "listed"},
      {{{{"wte", "h0.*"}, {"h1.a", "h0.b"}}},
       "rivulet: partition::by_name: parameter 'h0.b' is listed twice"},
      {{{{"wte", "h0.*", "h0.*"}}},
       "rivulet: partition::by_name: parameter 'h0.a' is listed twice"},
      {{{{"h0.*", "h1.*"}}}, "rivulet: partition::by_name: parameter 'wte' is in no fragment"},
      {{{{"wte"}, {"h0.a"}, {"h1.a"}}},
       "rivulet: partition::by_name: parameter 'h0.b' is in no fragment"},
      {{}, "rivulet: partition::by_name: parameter 'wte' is in no fragment"}};
  for (auto const& c : cases) {
    CHECK_THROWS_WITH_AS((void)c.partitioner(m.params.parameters()), c.text,
                         rivulet::precondition_error);
  }
}

}  // namespace
