/// \file
/// The mean is sum(w x) / sum(w) with the weights that the workers send.

#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

constexpr std::size_t size = 50;

float value(int rank, std::size_t i) { return noise(9, static_cast<std::uint64_t>(rank), i, 0); }

using rivulet::reduce::method;

auto make_engine(rivulet::parameter_set& parameters, local& comm, double weight,
                 method reduction = method::automatic) {
  rivulet::sync_config config = settings(1, 0);
  config.weight = weight;
  config.reduction = reduction;
  return rivulet::streaming_diloco{parameters,
                                   comm,
                                   config,
                                   rivulet::partition::whole_model{},
                                   rivulet::codec::float32{},
                                   rivulet::outer::sgd{}};  // rate 1: outer <- mean of the locals
}

/// Outer parameters after each of two syncs, the second with the weights in reverse order.
std::vector<std::vector<float>> synced(std::vector<double> const& weights, int with_garbage = -1,
                                       method reduction = method::all_gather) {
  std::vector<std::vector<float>> result;
  run_ranks(static_cast<int>(weights.size()), [&](local& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    std::vector<float> x(size, 0.0f);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), x);
    auto sync = make_engine(parameters, comm, weights[rank], reduction);
    for (int round = 0; round < 2; ++round) {
      if (round == 1) sync.set_weight(weights[weights.size() - 1 - rank]);
      for (std::size_t i = 0; i < size; ++i) {
        x[i] = value(comm.rank() + 10 * round, i);
        if (comm.rank() == with_garbage) {
          x[i] = i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1e38f;
        }
      }
      rivulet::step_report const& report = sync.after_step();
      CHECK(report.skipped.empty());
      CHECK(x == outer_of(sync, "x", size));  // all receive, whatever their weight
      if (comm.rank() == 0) result.push_back(x);
      if (with_garbage >= 0) break;
    }
  });
  return result;
}

TEST_CASE("the mean is weighted by token counts, from send to send") {
  std::vector<double> const tokens = {1024, 77, 4096.5, 12'000'000};
  auto const found = synced(tokens);
  CHECK(synced(tokens, -1, method::all_to_all) == found);  // float32 is exact
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < size; ++i) {
      double sum = 0;
      double total = 0;
      for (std::size_t r = 0; r < 4; ++r) {
        double const w = round == 0 ? tokens[r] : tokens[3 - r];
        sum += w * static_cast<double>(value(static_cast<int>(r) + 10 * round, i));
        total += w;
      }
      CHECK(static_cast<double>(found[static_cast<std::size_t>(round)][i]) ==
            doctest::Approx(sum / total).epsilon(1e-5));
    }
  }
}

TEST_CASE("a worker of weight 0 receives, and its garbage does not count") {
  auto const clean = synced({3, 0, 1});
  auto const garbage = synced({3, 0, 1}, 1);
  CHECK(garbage[0] == clean[0]);
  CHECK(synced({3, 1, 0}, 2)[0] == synced({3, 1})[0]);
  CHECK(synced({3, 0, 1}, 1, method::all_to_all)[0] == clean[0]);
  CHECK(synced({3, 1, 0}, 2, method::all_to_all)[0] == synced({3, 1})[0]);  // it owns the shard
}

void check_no_weight(method reduction) {
  run_ranks(3, [&](local& comm) {
    std::vector<float> x(size, 0.0f);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), x);
    auto sync = make_engine(parameters, comm, 0, reduction);
    std::uint64_t const before = sync.outer_fingerprint();
    x.assign(size, static_cast<float>(comm.rank()));
    rivulet::step_report const& report = sync.after_step();
    REQUIRE(report.skipped.size() == 1);
    CHECK(report.skipped[0].why.what == rivulet::reduce::verdict::kind::no_weight);
    CHECK(report.applied.empty());
    CHECK(report.written.empty());
    CHECK(sync.outer_fingerprint() == before);
    CHECK(sync.version(0) == 0);
    CHECK(x == std::vector<float>(size, static_cast<float>(comm.rank())));
    if (comm.rank() == 1) sync.set_weight(2);
    CHECK(sync.after_step().applied.size() == 1);
    CHECK(x == std::vector<float>(size, 1.0f));
  });
}

TEST_CASE("if all weights are 0 the fragment is skipped on all ranks") {
  check_no_weight(method::all_gather);
  check_no_weight(method::all_to_all);
}

TEST_CASE("a weight that is negative or no number is refused, and changes nothing") {
  run_ranks(2, [](local& comm) {
    std::vector<float> x(size, 0.0f);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), x);
    auto sync = make_engine(parameters, comm, 1);
    for (double weight : {-1.0, std::numeric_limits<double>::quiet_NaN(),
                          std::numeric_limits<double>::infinity()}) {
      CHECK_THROWS_AS(sync.set_weight(weight), rivulet::precondition_error);
      CHECK(
          mentions(thrown_by<rivulet::precondition_error>([&] { sync.set_weight(weight); }).what(),
                   "weight = "));
    }
    x.assign(size, static_cast<float>(1 + comm.rank()));
    sync.after_step();
    CHECK(x == std::vector<float>(size, 1.5f));
  });
}

TEST_CASE("weights whose sum overflows skip alike") {
  for (method reduction : {method::all_gather, method::all_to_all}) {
    run_ranks(2, [&](local& comm) {
      std::vector<float> x(size, 0.0f);
      rivulet::parameter_set parameters;
      parameters.add("x", rivulet::layer(0), x);
      auto sync = make_engine(parameters, comm, std::numeric_limits<double>::max(), reduction);
      x.assign(size, 1.0f);
      CHECK(sync.after_step().skipped.size() == 1);
      CHECK(sync.version(0) == 0);
    });
  }
}

}  // namespace
