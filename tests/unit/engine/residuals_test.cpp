#include <algorithm>
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/engine/residuals.hpp>

namespace {

using rivulet::residuals;

struct model {
  std::vector<float> a = std::vector<float>(300);
  std::vector<float> b = std::vector<float>(7);
  rivulet::parameter_set params;
  std::vector<rivulet::fragment> fragments = {{"x", {{0, 0, 300}}}, {"y", {{1, 0, 7}}}};
  model() {
    params.add("a", rivulet::layer(0), a);
    params.add("b", rivulet::layer(0), b);
  }
  [[nodiscard]] rivulet::outer_state state() const {
    rivulet::codec::e3m0<64> const codec;
    return {params, fragments, codec, codec, 1};
  }
};

/// Residuals of two fragments, where what is kept is 1 and what is pending is 2.
residuals some() {
  residuals r(model().state(), true);
  for (int const p : {0, 1}) {
    std::ranges::fill(r.kept(p), 1.0f);
    std::ranges::fill(r.pending(p), 2.0f);
  }
  return r;
}

float kept(residuals& r, int p) { return r.kept(p)[0]; }

TEST_CASE("residuals: they start as 0, one of each kind per value") {
  residuals r(model().state(), true);
  CHECK(r.enabled());
  std::size_t const sizes[] = {300, 7};
  for (int const p : {0, 1}) {
    CHECK(r.kept(p).size() == sizes[p]);
    CHECK(r.pending(p).size() == sizes[p]);
    CHECK(r.kept(p).data() != r.pending(p).data());
    CHECK(std::ranges::count(r.kept(p), 0.0f) == static_cast<std::ptrdiff_t>(sizes[p]));
    CHECK_FALSE(r.is_pending(p));
  }
}

TEST_CASE("residuals: without error feedback there are none") {
  residuals r(model().state(), false);
  CHECK_FALSE(r.enabled());
  r.sent(1, 4);
  CHECK_FALSE(r.is_pending(1));
  r.received(1, 5);
}

TEST_CASE("residuals: what was applied leaves its residual") {
  residuals r = some();
  r.sent(0, 4);
  CHECK(r.is_pending(0));
  CHECK_FALSE(r.is_pending(1));
  CHECK(kept(r, 0) == 1);  // until it is received
  r.received(0, 5);
  CHECK(kept(r, 0) == 2);
  CHECK(r.kept(0)[299] == 2);
  CHECK_FALSE(r.is_pending(0));
  CHECK(kept(r, 1) == 1);
}

TEST_CASE("residuals: what was skipped or dropped leaves e as it was") {
  residuals r = some();
  r.sent(0, 4);
  r.received(0, 4);
  CHECK(kept(r, 0) == 1);
  CHECK_FALSE(r.is_pending(0));
  r.received(0, 5);  // adopted later, when nothing was in flight
  CHECK(kept(r, 0) == 1);
}

TEST_CASE("residuals: a version that others have applied counts as applied") {
  for (std::uint64_t const version : {5u, 6u, 100u}) {
    residuals r = some();
    r.sent(0, 4);
    r.received(0, version);
    CHECK(kept(r, 0) == 2);
  }
}

TEST_CASE("residuals: what was not sent, with weight 0, leaves nothing") {
  residuals r = some();
  r.received(0, 5);
  CHECK(kept(r, 0) == 1);
  r.sent(0, 5);
  r.received(0, 6);
  r.received(0, 7);  // of weight 0 again
  CHECK(kept(r, 0) == 2);
}

TEST_CASE("residuals: round after round, each applied residual is the next e") {
  residuals r = some();
  for (std::uint64_t round = 0; round < 5; ++round) {
    r.sent(1, round);
    std::ranges::fill(r.pending(1), 10.0f + static_cast<float>(round));
    r.received(1, round + 1);
    CHECK(kept(r, 1) == 10.0f + static_cast<float>(round));
  }
  CHECK(kept(r, 0) == 1);
}

}  // namespace
