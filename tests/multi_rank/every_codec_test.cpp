/// \file
/// Every codec of the library through the engine: all ranks keep the same outer bits, those of a
/// naive implementation, by both reductions, with and without error feedback.

#include <cmath>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "contract/all_codecs.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"
#include "multi_rank/reference.hpp"

namespace {

using namespace rivulet_test;
using rivulet::codec::error_feedback;
using rivulet::comm::local;
using rivulet::reduce::method;

scenario run_of(int world, method reduction) {
  using enum rivulet::element_type;
  scenario s;
  s.start.add("wte", rivulet::embedding, float32, 9000);
  s.start.add("a", rivulet::layer(0), bfloat16, 333);
  s.start.add("b", rivulet::layer(1), float32, 70);
  s.start.add("c", rivulet::layer(2), float16, 513);
  s.start.fill(4);
  for (int r = 0; r < world; ++r) s.workers.push_back({1 + r, 0.5f, 1.0 + r});
  s.sync_every = 4;
  s.partitioner = rivulet::partition::balanced{.fragments = 2};
  s.reduction = reduction;
  s.steps = 13;
  return s;
}

rivulet::outer::nesterov const outer{.learning_rate = 0.3f, .momentum = 0.5f};

/// Hashes of the outer parameters of all ranks at the end of a run.
template <class C>
std::vector<std::uint64_t> ends(scenario const& s, C const& codec) {
  std::vector<std::uint64_t> hashes(s.workers.size());
  run_ranks(s.world(), [&](local& comm) {
    model m = s.start;
    rivulet::parameter_set parameters = m.parameters();
    rivulet::streaming_diloco sync{parameters,    comm,  s.config(comm.rank()),
                                   s.partitioner, codec, outer};
    std::uint64_t const before = outer_hash(sync, m);
    std::size_t applied = 0;
    for (int step = 1; step <= s.steps; ++step) {
      m.inner_step(s.seed, comm.rank(), step);
      applied += sync.after_step().applied.size();
    }
    applied += sync.finish().applied.size();
    CHECK(applied == 5);  // of the steps 4 6 8 10 12
    for (named_tensor const& t : m.tensors) {
      for (float value : outer_of(sync, t.name, t.values.size())) {
        if (!std::isfinite(value)) FAIL_CHECK("a value of " << t.name << " is " << value);
      }
    }
    std::uint64_t& hash = hashes[static_cast<std::size_t>(comm.rank())];
    hash = outer_hash(sync, m);
    CHECK(hash != before);
  });
  return hashes;
}

template <class C>
void check(scenario const& s, C const& codec, bool random) {
  std::vector<std::uint64_t> const found = ends(s, codec);
  CHECK(found == std::vector(found.size(), found[0]));
  if (random) {  // the naive run has other random numbers; another run has the same
    CHECK(ends(s, codec) == found);
    return;
  }
  reference<C> naive(s, codec, outer_rule(outer));
  for (int step = 1; step <= s.steps; ++step) naive.step();
  naive.finish();
  CHECK(found[0] == naive.outer_hash(0));
}

template <class C>
void check_everywhere(C const& codec, bool random) {
  for (method reduction : {method::all_gather, method::all_to_all}) {
    for (int world : {2, 3}) {
      CAPTURE(static_cast<int>(reduction));
      CAPTURE(world);
      check(run_of(world, reduction), codec, random);
      check(run_of(world, reduction), error_feedback{codec}, random);
    }
  }
}

TEST_CASE("every codec gives all ranks the same outer bits, those of a naive implementation") {
  auto const check_one = [](char const* name, auto const& tested) {
    CAPTURE(name);
    check_everywhere(rivulet::codec::any(tested.codec), tested.promises.gain == gain::unbiased);
  };
#define RIVULET_CHECK_ONE(name) check_one(#name, codecs::name());
  RIVULET_TEST_CODECS(RIVULET_CHECK_ONE)
#undef RIVULET_CHECK_ONE
}

TEST_CASE("whole messages give all ranks the same outer bits, those of a naive implementation") {
  using namespace rivulet::codec;
  check_everywhere(top_k<float32>{.fraction = 0.02}, false);
  check_everywhere(top_k<e3m0<32>>{.fraction = 0.5}, false);
}

TEST_CASE("a codec chosen at run time gives the bits of the codec itself") {
  using namespace rivulet::codec;
  for (method reduction : {method::all_gather, method::all_to_all}) {
    scenario const s = run_of(3, reduction);
    CHECK(ends(s, any(e3m0{})) == ends(s, e3m0{}));
    CHECK(ends(s, error_feedback{any(sign{})}) == ends(s, error_feedback{sign{}}));
    CHECK(ends(s, any(nvfp4{})) == ends(s, nvfp4{}));
    CHECK(ends(s, any(stochastic{e3m0{}})) == ends(s, stochastic{e3m0{}}));
    CHECK(ends(s, two_stage{any(e3m0{}), any(bf16{})}) == ends(s, two_stage{e3m0{}, bf16{}}));
  }
}

/// Outer values after `steps` outer steps of rate 1, D being 3/4 of the scale in each and on each
/// rank, but for a value per block that is 1.
template <class P>
std::vector<float> random_steps(int world, int steps, P const& partitioner) {
  std::vector<float> result;
  run_ranks(world, [&](local& comm) {
    std::vector<float> a(8192, 0.0f);
    std::vector<float> b(8192, 0.0f);
    rivulet::parameter_set parameters;
    parameters.add("a", rivulet::layer(0), a);
    parameters.add("b", rivulet::layer(1), b);
    rivulet::sync_config config = settings(1, 0);
    config.reduction = method::all_gather;
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   config,
                                   partitioner,
                                   rivulet::codec::stochastic{rivulet::codec::e3m0{}},
                                   rivulet::outer::sgd{}};
    for (int step = 1; step <= steps; ++step) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] -= i % 64 == 0 ? 1.0f : 0.75f;
        b[i] -= i % 64 == 0 ? 1.0f : 0.75f;
      }
      sync.after_step();
    }
    if (comm.rank() != 0) return;
    result = outer_of(sync, "a", a.size());
    std::vector<float> const rest = outer_of(sync, "b", b.size());
    result.insert(result.end(), rest.begin(), rest.end());
  });
  return result;
}

/// How many of the values that were rounded at random differ, as a fraction.
double different(std::span<float const> a, std::span<float const> b) {
  int count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count / (static_cast<double>(a.size()) * 63 / 64);
}

TEST_CASE("random numbers differ by step, rank, parameter and index, and by nothing else") {
  rivulet::partition::whole_model const whole;
  std::vector<float> const one = random_steps(1, 1, whole);
  auto const half = doctest::Approx(0.5).epsilon(0.05);
  std::vector<float> second = random_steps(1, 2, whole);
  for (std::size_t i = 0; i < second.size(); ++i) second[i] -= one[i];
  CHECK(different(one, second) == half);
  // If two ranks rounded alike, their mean would be what one of them has.
  CHECK(different(one, random_steps(2, 1, whole)) == half);
  std::span const values(one);
  CHECK(different(values.first(8192), values.last(8192)) == half);
  CHECK(different(values.first(4096), values.subspan(4096, 4096)) == half);
  CHECK(different(values.first(64), values.subspan(64, 64)) > 0.2);

  CHECK(random_steps(1, 1, whole) == one);
  CHECK(random_steps(1, 1, rivulet::partition::balanced{.fragments = 3}) == one);
  CHECK(random_steps(2, 3, rivulet::partition::strided{.layers_per_fragment = 1}) ==
        random_steps(2, 3, whole));
}

}  // namespace
