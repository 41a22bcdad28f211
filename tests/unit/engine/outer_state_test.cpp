#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/engine/outer_state.hpp>
#include <rivulet/exec/host.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::outer_state;
using codec = rivulet::codec::e3m0<64>;

struct model {
  std::vector<float> a = rivulet_test::normal_values(5000, 1);
  std::vector<rivulet::bf16> b = std::vector<rivulet::bf16>(3, {0x3fc0});  // 1.5
  std::vector<float> frozen = rivulet_test::normal_values(4, 2);
  rivulet::parameter_set params;
  // Fragment 0 has the end of a and b, fragment 1 the begin of a.
  std::vector<rivulet::fragment> fragments = {{"x", {{0, 4096, 904}, {1, 0, 3}}},
                                              {"y", {{0, 0, 4096}}}};
  model() {
    params.add("a", rivulet::layer(0), a);
    params.add("b", rivulet::layer(0), b);
    params.add("frozen", rivulet::layer(0), frozen, false);
  }
};

TEST_CASE("outer_state: starts as the model, slots and versions as 0") {
  model const m;
  outer_state state(m.params, m.fragments, codec{}, codec{}, 2);
  CHECK(state.fragments_count() == 2);
  CHECK(state.values() == 5003);
  CHECK(state.slot_count() == 2);
  CHECK(state.layout(0).values() == 907);
  CHECK(state.layout(0).byte_of(1) == 15 * 34);  // laid out for the codec
  CHECK(std::ranges::equal(state.theta(0).first(904), std::span(m.a).subspan(4096)));
  for (float const value : state.theta(0).subspan(904)) CHECK(value == 1.5f);
  CHECK(std::ranges::equal(state.theta(1), std::span(m.a).first(4096)));
  CHECK(std::ranges::count(state.all_slots(), 0.0f) == 2 * 5003);
  CHECK(state.version(0) == 0);
  CHECK(state.version(1) == 0);
}

TEST_CASE("outer_state: slots of a fragment lie values() apart") {
  model const m;
  outer_state state(m.params, m.fragments, codec{}, codec{}, 2);
  float* const slots = state.all_slots().data();
  CHECK(state.all_slots().size() == 2 * 5003);
  CHECK(state.slots(0) == slots);
  CHECK(state.slots(1) == slots + 907);
  CHECK(outer_state(m.params, m.fragments, codec{}, codec{}, 0).slots(1) == nullptr);
  CHECK(state.slot(0, 0).data() == slots);
  CHECK(state.slot(1, 0).data() == slots + 907);
  CHECK(state.slot(0, 1).data() == slots + 5003);
  CHECK(state.slot(1, 1).data() == slots + 5003 + 907);
  CHECK(state.slot(1, 1).size() == 4096);
  CHECK(state.theta(1).data() == state.all_theta().data() + 907);
}

TEST_CASE("outer_state: bits and fingerprint notice every part") {
  model const m;
  outer_state const before(m.params, m.fragments, codec{}, codec{}, 2);
  outer_state state = before;
  CHECK(state.fingerprint() == before.fingerprint());
  std::set<std::uint64_t> seen = {before.fingerprint()};
  auto const changes = [&](float& value) {
    float const kept = value;
    value = 99;
    CHECK(state.bits(0) != before.bits(0));
    CHECK(state.bits(1) == before.bits(1));
    CHECK(seen.insert(state.fingerprint()).second);
    value = kept;
    CHECK(state.bits(0) == before.bits(0));
  };
  changes(state.theta(0)[0]);
  changes(state.theta(0)[906]);
  changes(state.slot(0, 0)[5]);
  changes(state.slot(0, 1)[5]);
  ++state.version(1);
  CHECK(state.bits(1) == before.bits(1));
  CHECK(seen.insert(state.fingerprint()).second);
}

TEST_CASE("outer_state: replace takes over what copy gave on another rank") {
  model const m;
  for (std::size_t const slots : {0u, 1u, 2u}) {
    outer_state other(m.params, m.fragments, codec{}, codec{}, slots);
    std::ranges::copy(rivulet_test::normal_values(5003, 7), other.all_theta().begin());
    std::ranges::copy(rivulet_test::normal_values(5003 * slots, 8), other.all_slots().begin());
    outer_state state(m.params, m.fragments, codec{}, codec{}, slots);
    std::uint64_t const first = state.bits(0);
    std::vector<float> const values = other.copy(1);
    CHECK(values.size() == 4096 * (1 + slots));
    state.replace(1, values, 12);
    CHECK(state.bits(1) == other.bits(1));
    CHECK(state.version(1) == 12);
    CHECK(state.bits(0) == first);
    CHECK(state.version(0) == 0);
  }
}

TEST_CASE("outer_state: copy_to puts the slices of a parameter together") {
  model const m;
  outer_state const state(m.params, m.fragments, codec{}, codec{}, 0);
  std::vector<float> a(5000);
  state.copy_to(0, a);
  CHECK(a == m.a);
  std::vector<float> b(3);
  state.copy_to(1, b);
  CHECK(b == std::vector<float>(3, 1.5f));
  std::vector<float> frozen(4, 7.0f);
  state.copy_to(2, frozen);
  CHECK(frozen == std::vector<float>(4, 7.0f));  // not its business
}

TEST_CASE("outer_state: mix writes one fragment of the model") {
  model m;
  outer_state state(m.params, m.fragments, codec{}, codec{}, 1);
  std::vector<float> const a = m.a;
  std::ranges::fill(state.theta(0), 4.0f);
  state.mix(0, 0.5f, rivulet::exec::host{});
  for (std::size_t i = 0; i < 4096; ++i) REQUIRE(m.a[i] == a[i]);
  for (std::size_t i = 4096; i < 5000; ++i) REQUIRE(m.a[i] == std::fma(0.5f, a[i], 2.0f));
  CHECK(rivulet::to_float(m.b[2]) == 2.75f);
  state.mix(1, 0.0f, rivulet::exec::host{});
  CHECK(std::equal(a.begin(), a.begin() + 4096, m.a.begin()));
}

TEST_CASE("outer_state: slices are visited where the model lies now") {
  model m;
  outer_state state(m.params, m.fragments, codec{}, codec{}, 1);
  std::vector<float> moved = m.a;
  m.params.rebind("a", moved);
  state.bind(m.params);
  std::vector<std::pair<void*, std::size_t>> visited;
  state.for_each_slice([&](std::byte* first, std::size_t size) {
    visited.push_back({first, size});
  });
  CHECK(visited == std::vector<std::pair<void*, std::size_t>>{
                       {moved.data() + 4096, 904 * 4}, {m.b.data(), 6}, {moved.data(), 4096 * 4}});
}

}  // namespace
