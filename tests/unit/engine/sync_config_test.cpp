#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include <rivulet/engine/sync_config.hpp>

namespace {

using rivulet::sync_config;

TEST_CASE("sync_config: defaults") {
  sync_config const config;
  CHECK(config.reduction == rivulet::reduce::method::automatic);
  CHECK(config.nonfinite == rivulet::nonfinite_policy::reject);
  CHECK(config.initial == rivulet::initial_parameters::verify);
  CHECK(config.first_sync == rivulet::first_sync::after_full_round);
  CHECK(config.mixing == 0.0f);
  CHECK(config.weight == 1.0);
}

TEST_CASE("sync_config: what check accepts") {
  CHECK_NOTHROW(sync_config{}.check());
  for (float const mixing : {0.0f, 0.5f, 1.0f})
    CHECK_NOTHROW(sync_config{.mixing = mixing}.check());
  for (double const weight : {0.0, 1e-300, 1e300}) {
    CHECK_NOTHROW(sync_config{.weight = weight}.check());
  }
  CHECK_NOTHROW(sync_config{.timeout_ms = 1}.check());
  CHECK_NOTHROW(sync_config{.reduction = rivulet::reduce::method::all_to_all}.check());
}

TEST_CASE("sync_config: what check refuses, by text") {
  struct {
    sync_config config;
    char const* text;
  } const cases[] = {
      {{.mixing = -0.5f}, "rivulet: mixing (alpha) = -0.500000 must be from 0 to 1"},
      {{.mixing = 1.5f}, "rivulet: mixing (alpha) = 1.500000 must be from 0 to 1"},
      {{.mixing = NAN}, "rivulet: mixing (alpha) = nan must be from 0 to 1"},
      {{.weight = -1}, "rivulet: weight = -1.000000 must be finite and not negative"},
      {{.weight = NAN}, "rivulet: weight = nan must be finite and not negative"},
      {{.weight = std::numeric_limits<double>::infinity()},
       "rivulet: weight = inf must be finite and not negative"},
      {{.timeout_ms = 0}, "rivulet: timeout_ms = 0 must be positive"},
      {{.timeout_ms = -7}, "rivulet: timeout_ms = -7 must be positive"}};
  for (auto const& c : cases) {
    CHECK_THROWS_WITH_AS(c.config.check(), c.text, rivulet::precondition_error);
  }
}

}  // namespace
