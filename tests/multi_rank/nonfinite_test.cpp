/// \file
/// NaN and infinity: rejected or saturated, alike on all ranks, and without damage to others.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/doubling.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

using rivulet::reduce::method;

void check_skip(method reduction) {
  CAPTURE(static_cast<int>(reduction));
  for (float bad : {nan, infinity, -infinity}) {
    for (int overlap : {0, 2}) {
      run_ranks(3, [&](local& comm) {
        rivulet::sync_config config = settings(5, overlap);  // a fragment per step
        config.reduction = reduction;
        model m = small_model();
        rivulet::parameter_set parameters = m.parameters();
        rivulet::streaming_diloco sync{parameters,
                                       comm,
                                       config,
                                       rivulet::partition::strided{.layers_per_fragment = 1},
                                       rivulet::codec::e3m0{},
                                       rivulet::outer::nesterov{}};
        std::size_t const index = parameters.find("h1.mlp");
        std::size_t skips = 0;
        std::size_t applied = 0;
        for (int step = 1; step <= 22; ++step) {
          m.inner_step(4, comm.rank(), step);
          if (step == 11 && comm.rank() == 1) m.tensors[index].values.set(3, bad);
          std::vector<float> const outer_before = outer_of(sync, "h1.mlp", 41);
          std::vector<float> const attn_before = outer_of(sync, "h1.attn", 76);
          std::uint64_t const local_before = m.hash();
          rivulet::step_report const& report = sync.after_step();
          applied += report.applied.size();
          if (report.skipped.empty()) continue;
          ++skips;
          REQUIRE(report.skipped.size() == 1);
          rivulet::skipped_fragment const& skipped = report.skipped[0];
          CHECK(skipped.fragment == 1);
          CHECK(skipped.sent_at == 11);
          CHECK(step == 11 + overlap);
          CHECK(skipped.why.what == rivulet::reduce::verdict::kind::rejected);
          CHECK(skipped.why.rank == 1);
          CHECK(skipped.parameter == (comm.rank() == 1 ? static_cast<int>(index) : -1));
          CHECK(outer_of(sync, "h1.mlp", 41) == outer_before);
          CHECK(outer_of(sync, "h1.attn", 76) == attn_before);
          CHECK(sync.version(1) == 1);
          if (report.applied.empty()) CHECK(m.hash() == local_before);
          // The caller mends what the report names, and the next round goes through.
          if (comm.rank() == 1) m.tensors[index].values.set(3, 0.5f);
        }
        applied += sync.finish().applied.size();
        CHECK(skips == 1);
        CHECK(applied == 17);  // of 18 sends
        std::uint64_t const fingerprint = sync.outer_fingerprint();
        std::vector<std::uint64_t> all(3);
        REQUIRE(comm.all_gather(std::as_bytes(std::span(&fingerprint, 1)),
                                std::as_writable_bytes(std::span(all)),
                                soon()) == rivulet::comm_status::done);
        CHECK(all == std::vector(3, fingerprint));
      });
    }
  }
}

TEST_CASE("a NaN on one rank skips its fragment on all ranks, and no other") {
  check_skip(method::all_gather);
  check_skip(method::all_to_all);  // the NaN is in one shard only
}

TEST_CASE("a mean that overflows is skipped by all ranks alike, and its owner is named") {
  for (int overlap : {0, 1}) {
    for (std::size_t bad : {0u, 1u, 2u}) {  // three tiles, one for each rank
      run_ranks(3, [&](local& comm) {
        std::vector<std::vector<float>> x(3, std::vector<float>(20, 0.0f));
        rivulet::parameter_set parameters;
        for (std::size_t i = 0; i < 3; ++i) {
          parameters.add(std::to_string(i), rivulet::layer(0), x[i]);
        }
        rivulet::sync_config config = settings(2, overlap, 0.5f);
        config.reduction = method::all_to_all;
        rivulet::streaming_diloco sync{parameters, comm,
                                       config,     rivulet::partition::whole_model{},
                                       doubling{}, rivulet::outer::nesterov{}};
        std::size_t skips = 0;
        for (int step = 1; step <= 9; ++step) {
          bool const too_large = step == 4;
          for (std::vector<float>& values : x) values[3] -= 0.25f;
          float const kept = x[bad][7];
          if (too_large) x[bad][7] = 3e38f;
          std::uint64_t const before = sync.outer_fingerprint();
          rivulet::step_report const& report = sync.after_step();
          if (!report.skipped.empty()) {
            ++skips;
            CHECK(report.skipped[0].sent_at == 4);
            CHECK(report.skipped[0].why.what == rivulet::reduce::verdict::kind::rejected);
            CHECK(report.skipped[0].why.rank == static_cast<int>(bad));
            CHECK(report.skipped[0].parameter == -1);
            CHECK(report.applied.empty());
            CHECK(report.written.empty());
            CHECK(sync.outer_fingerprint() == before);
          }
          if (too_large) x[bad][7] = kept;
        }
        sync.finish();
        CHECK(skips == 1);
        CHECK(sync.version(0) == 3);
        for (std::size_t i = 0; i < 3; ++i) {
          for (float value : outer_of(sync, std::to_string(i), 20)) CHECK(std::isfinite(value));
        }
      });
    }
  }
}

TEST_CASE("a mean that overflows is saturated if asked for") {
  run_ranks(2, [](local& comm) {
    std::vector<float> x(20, 0.0f);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), x);
    rivulet::sync_config config = settings(1, 0);
    config.reduction = method::all_to_all;
    config.nonfinite = rivulet::nonfinite_policy::saturate;
    rivulet::streaming_diloco sync{parameters, comm,
                                   config,     rivulet::partition::whole_model{},
                                   doubling{}, rivulet::outer::sgd{.learning_rate = 0x1p-8f}};
    x[7] = 3e38f;
    CHECK(sync.after_step().applied.size() == 1);
    CHECK(x[7] > 1e36f);
    CHECK(x[6] == 0.0f);
  });
}

/// Outer parameters after one sync of two ranks, the second with `bad` at element 70.
template <class C>
std::vector<float> saturated(C codec, float bad, method reduction = method::all_gather) {
  std::vector<float> result;
  run_ranks(2, [&](local& comm) {
    std::vector<float> x(200, 1.0f);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), x);
    rivulet::sync_config config = settings(1, 0);
    config.nonfinite = rivulet::nonfinite_policy::saturate;
    config.reduction = reduction;
    rivulet::streaming_diloco sync{
        parameters, comm, config, rivulet::partition::whole_model{}, codec, rivulet::outer::sgd{}};
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += noise(2, static_cast<std::uint64_t>(comm.rank()), i, 0);
    }
    if (comm.rank() == 1) x[70] = bad;
    CHECK(sync.after_step().applied.size() == 1);
    CHECK(x == outer_of(sync, "x", 200));
    if (comm.rank() == 0) result = x;
  });
  return result;
}

/// Elements that differ.
std::vector<std::size_t> differences(std::vector<float> const& a, std::vector<float> const& b) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i])) result.push_back(i);
  }
  return result;
}

TEST_CASE("saturate makes NaN no change and infinity the largest one, value by value") {
  // 1 is where all start, so D = 0.
  CHECK(saturated(rivulet::codec::float32{}, nan) == saturated(rivulet::codec::float32{}, 1.0f));
  CHECK(saturated(rivulet::codec::bf16{}, nan) == saturated(rivulet::codec::bf16{}, 1.0f));
  CHECK(saturated(rivulet::codec::e3m0{}, nan) == saturated(rivulet::codec::e3m0{}, 1.0f));

  auto const clean = saturated(rivulet::codec::float32{}, 1.0f);
  auto const high = saturated(rivulet::codec::float32{}, infinity);
  auto const low = saturated(rivulet::codec::float32{}, -infinity);
  CHECK(differences(high, clean) == std::vector<std::size_t>{70});
  CHECK(differences(low, clean) == std::vector<std::size_t>{70});
  CHECK(high[70] == doctest::Approx(std::numeric_limits<float>::max() / 2).epsilon(1e-6));
  CHECK(saturated(rivulet::codec::float32{}, infinity, method::all_to_all) == high);
  CHECK(saturated(rivulet::codec::float32{}, nan, method::all_to_all) == clean);
  CHECK(low[70] == doctest::Approx(-std::numeric_limits<float>::max() / 2).epsilon(1e-6));
}

TEST_CASE("saturate keeps infinity within its block of e3m0, and the result finite") {
  auto const clean = saturated(rivulet::codec::e3m0{}, 1.0f);
  auto const high = saturated(rivulet::codec::e3m0{}, infinity);
  std::vector<std::size_t> const changed = differences(high, clean);
  CHECK(!changed.empty());
  for (std::size_t i : changed) CHECK((i >= 64 && i < 128));
  for (float value : high) CHECK(std::isfinite(value));
}

}  // namespace
