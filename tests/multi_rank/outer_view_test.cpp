/// \file
/// What a caller sees and changes between steps: swap_outer, copy_outer_to, the learning rate.

#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

/// Calls body(engine, model, parameters) after `steps` steps on two ranks, with operations in
/// flight.
template <class Body>
void after_steps(int steps, Body const& body) {
  run_ranks(2, [&](local& comm) {
    model m = small_model();
    m.add("long", rivulet::layer(1), rivulet::element_type::bfloat16, 9001);
    m.fill(3);
    rivulet::parameter_set parameters = m.parameters();
    parameters.add("head", rivulet::head, m.tensors[0].values);  // tied to the embedding
    rivulet::sync_config config = settings(6, 4, 0.5f);
    config.reduction = rivulet::reduce::method::all_to_all;  // works while the caller looks
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   config,
                                   rivulet::partition::balanced{.fragments = 3},
                                   rivulet::codec::e3m0{},
                                   rivulet::outer::nesterov{.learning_rate = 0.7f}};
    for (int step = 1; step <= steps; ++step) {
      m.inner_step(5, comm.rank(), step);
      sync.after_step();
    }
    body(sync, m, comm);
  });
}

TEST_CASE("swap_outer shows the outer parameters and restores the local ones bit for bit") {
  for (int steps : {0, 7, 14}) {
    after_steps(steps, [&](auto& sync, model& m, local&) {
      CHECK((sync.in_flight() > 0) == (steps > 0));
      std::uint64_t const before = m.hash();
      std::uint64_t const outer_before = outer_hash(sync, m);
      for (int repeat = 0; repeat < 2; ++repeat) {
        sync.swap_outer();
        CHECK(sync.swapped());
        CHECK((m.hash() != before) == (steps > 0));
        for (named_tensor const& t : m.tensors) {
          std::vector<float> const outer = outer_of(sync, t.name, t.values.size());
          tensor rounded(t.values.element(), t.values.size());
          for (std::size_t i = 0; i < outer.size(); ++i) rounded.set(i, outer[i]);
          bool const same = std::equal(rounded.bytes().begin(), rounded.bytes().end(),
                                       t.values.bytes().begin(), t.values.bytes().end());
          CHECK(same);
        }
        sync.swap_outer();
        CHECK(!sync.swapped());
        CHECK(m.hash() == before);
        CHECK(outer_hash(sync, m) == outer_before);
      }
    });
  }
}

TEST_CASE("no step, save or load while the model holds the outer parameters") {
  after_steps(7, [](auto& sync, model& m, local&) {
    std::uint64_t const before = m.hash();
    sync.swap_outer();
    auto const refuses = [](auto const& f) {
      return mentions(thrown_by<rivulet::precondition_error>(f).what(), "swap_outer()");
    };
    CHECK(refuses([&] { sync.after_step(); }));
    CHECK(refuses([&] { sync.finish(); }));
    CHECK(refuses([&] { sync.save([](std::span<std::byte const>) {}); }));
    CHECK(refuses([&] { sync.load({}); }));
    CHECK(sync.step() == 7);
    sync.swap_outer();
    CHECK(m.hash() == before);
    sync.after_step();
    sync.finish();
  });
}

TEST_CASE("copy_outer_to gives cut tensors, aliases and frozen parameters") {
  after_steps(14, [](auto& sync, model& m, local& comm) {
    sync.finish();
    // All workers hold the same outer parameters; a cut tensor comes as a whole.
    std::vector<float> const cut = outer_of(sync, "long", 9001);
    std::vector<float> all(2 * cut.size());
    auto const mine = std::as_bytes(std::span(cut));
    REQUIRE(comm.all_gather(mine, std::as_writable_bytes(std::span(all)), soon()) ==
            rivulet::comm_status::done);
    CHECK(std::equal(cut.begin(), cut.end(), all.begin()));
    CHECK(std::equal(cut.begin(), cut.end(), all.begin() + 9001));
    model const start = [] {
      model s = small_model();
      s.add("long", rivulet::layer(1), rivulet::element_type::bfloat16, 9001);
      s.fill(3);
      return s;
    }();
    std::size_t changed = 0;
    for (std::size_t i = 0; i < cut.size(); ++i) {
      if (cut[i] != start.tensors.back().values.get(i)) ++changed;
    }
    CHECK(changed > 8500);

    CHECK(outer_of(sync, "head", 131) == outer_of(sync, "wte", 131));
    std::vector<float> const frozen = outer_of(sync, "position", 7);
    for (named_tensor const& t : m.tensors) {
      if (t.name != "position") continue;
      for (std::size_t i = 0; i < 7; ++i) CHECK(frozen[i] == t.values.get(i));
    }
    CHECK(outer_of(sync, "empty", 0).empty());

    std::vector<float> values(5);
    CHECK(mentions(
        thrown_by<rivulet::precondition_error>([&] { sync.copy_outer_to("wte", values); }).what(),
        "5 elements, the parameter 131"));
    CHECK(mentions(
        thrown_by<rivulet::precondition_error>([&] { sync.copy_outer_to("wpe", values); }).what(),
        "'wpe'"));
  });
}

template <class Rate>
std::vector<std::uint64_t> with_learning_rate(Rate const& rate) {
  std::vector<std::uint64_t> fingerprints(3);
  run_ranks(3, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   settings(6, 6 - 2 * comm.rank()),
                                   rivulet::partition::strided{.layers_per_fragment = 1},
                                   rivulet::codec::bf16{},
                                   rivulet::outer::nesterov{.learning_rate = 0.5f}};
    for (int step = 1; step <= 20; ++step) {
      m.inner_step(5, comm.rank(), step);
      rate(sync, comm.rank(), step);
      sync.after_step();
    }
    sync.finish();
    fingerprints[static_cast<std::size_t>(comm.rank())] = sync.outer_fingerprint();
  });
  return fingerprints;
}

TEST_CASE("copy_outer_to refuses a parameter that was added after the engine was built") {
  run_ranks(1, [](rivulet::comm::local& comm) {
    std::vector<float> first(3);
    std::vector<float> later(3);
    rivulet::parameter_set parameters;
    parameters.add("first", rivulet::head, first);
    rivulet::streaming_diloco const sync{parameters,
                                         comm,
                                         {},
                                         rivulet::partition::whole_model{},
                                         rivulet::codec::float32{},
                                         rivulet::outer::sgd{}};
    parameters.add("later", rivulet::head, later);
    std::vector<float> values(3);
    CHECK_NOTHROW(sync.copy_outer_to("first", values));
    CHECK_THROWS_AS(sync.copy_outer_to("later", values), rivulet::precondition_error);
  });
}

TEST_CASE("a learning rate changed on all ranks counts from the next send on") {
  auto const constant = with_learning_rate([](auto&, int, int) {});
  // Several are in flight at step 15; their rate was decided when they were sent.
  auto const changed = with_learning_rate([](auto& sync, int, int step) {
    if (step == 15) {
      CHECK(sync.in_flight() > 0);
      sync.set_outer_learning_rate(0.8f);
    }
  });
  CHECK(changed[0] == changed[1]);
  CHECK(changed[0] == changed[2]);
  CHECK(changed[0] != constant[0]);
  // Nothing is sent after step 17 (H 6, offsets 0 1 2 3 4): a change for that step does not count.
  auto const between = with_learning_rate([](auto& sync, int, int step) {
    if (step == 17) sync.set_outer_learning_rate(0.8f);
    if (step == 18) sync.set_outer_learning_rate(0.5f);
  });
  CHECK(between[0] == constant[0]);
}

TEST_CASE("a learning rate changed on one rank only is found at the next sync") {
  rivulet::comm_error const error = thrown_by<rivulet::comm_error>([] {
    with_learning_rate([](auto& sync, int rank, int step) {
      if (step == 15 && rank == 1) sync.set_outer_learning_rate(0.8f);
    });
  });
  CHECK(mentions(error.what(), "outer learning rate"));
  CHECK(error.step() >= 15);
}

TEST_CASE("a learning rate that is no number is refused") {
  after_steps(1, [](auto& sync, model&, local&) {
    for (float rate :
         {-1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      CHECK_THROWS_AS(sync.set_outer_learning_rate(rate), rivulet::precondition_error);
    }
  });
}

}  // namespace
