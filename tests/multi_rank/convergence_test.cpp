/// \file
/// The sign of the outer gradient, the FP32 master, and that codes are made on one rank, too.

#include <algorithm>
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/model.hpp"
#include "multi_rank/quadratic.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

using rivulet::reduce::method;

/// Losses of the outer parameters at the start and after every fifth of the run.
template <class C, class O>
std::vector<double> losses(int world, C codec, O outer, int steps = 250,
                           method reduction = method::automatic) {
  std::vector<double> result;
  run_ranks(world, [&](local& comm) {
    quadratic const problem{world};
    std::vector<float> x(problem.size, 0.0f);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), x);
    rivulet::sync_config config = settings(5, 1);
    config.reduction = reduction;
    rivulet::streaming_diloco sync{parameters, comm, config, rivulet::partition::whole_model{},
                                   codec,      outer};
    auto const note = [&] {
      if (comm.rank() == 0) result.push_back(problem.loss(outer_of(sync, "x", x.size())));
    };
    note();
    for (int step = 1; step <= steps; ++step) {
      problem.step(comm.rank(), x);
      sync.after_step();
      if (step % (steps / 5) == 0) note();
    }
  });
  return result;
}

TEST_CASE("the loss of the outer parameters falls with every codec and outer optimizer") {
  auto const falls = [](std::vector<double> const& l) {
    CAPTURE(l.front());
    CAPTURE(l.back());
    CHECK(l[1] < 0.7 * l[0]);
    CHECK(l[2] < 0.7 * l[1]);
    CHECK(l.back() < 0.01 * l.front());
  };
  for (int world : {1, 2, 4}) {
    CAPTURE(world);
    rivulet::outer::nesterov const nesterov{.learning_rate = 0.4f, .momentum = 0.5f};
    falls(losses(world, rivulet::codec::float32{}, rivulet::outer::sgd{}));
    falls(losses(world, rivulet::codec::bf16{}, rivulet::outer::sgd{}));
    falls(losses(world, rivulet::codec::e3m0{}, rivulet::outer::sgd{}));
    falls(losses(world, rivulet::codec::float32{}, nesterov));
    falls(losses(world, rivulet::codec::bf16{}, nesterov));
    falls(losses(world, rivulet::codec::e3m0{}, nesterov));
  }
}

TEST_CASE("signs converge with error feedback, and without it do not") {
  using namespace rivulet::codec;
  rivulet::outer::sgd const sgd{.learning_rate = 0.5f};
  for (int world : {2, 4}) {
    CAPTURE(world);
    CHECK(losses(world, sign{}, sgd, 500, method::all_gather).back() > 0.05);
    CHECK(losses(world, error_feedback{sign{}}, sgd, 500, method::all_gather).back() < 0.005);
    // What the means lose is fed back to nobody, so they want a better codec.
    CHECK(losses(world, error_feedback{two_stage{sign{}, bf16{}}}, sgd, 500, method::all_to_all)
              .back() < 0.005);
  }
}

TEST_CASE("1 % of the values converge with error feedback, and without it do not") {
  using namespace rivulet::codec;
  // A value waits for 100 syncs: the rate must be low enough for gradients that old.
  rivulet::outer::sgd const sgd{.learning_rate = 0.05f};
  top_k<bf16> const top{.fraction = 0.01};
  for (int world : {1, 2, 4}) {
    CAPTURE(world);
    double const before = losses(world, top, sgd, 2000, method::all_gather).front();
    CHECK(losses(world, top, sgd, 2000, method::all_gather).back() > 0.8 * before);
    CHECK(losses(world, error_feedback{top}, sgd, 2000, method::all_gather).back() < 0.01);
    CHECK(losses(world, error_feedback{two_stage{top, bf16{}}}, sgd, 2000, method::all_to_all)
              .back() < 0.01);
  }
}

/// Outer value after 1000 outer steps, each of 1e-4 of it. Where the model is bf16, one unit in the
/// last place is 2^-8 of the value, so that no single step is visible there.
template <class T>
float after_many_small_steps() {
  float result = 0;
  run_ranks(2, [&](local& comm) {
    T x = rivulet::from_float<T>(1.0f);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), &x, 1);
    float const learning_rate = 1e-4f * 128.0f;  // an inner step goes up by 2^-7 = 1/128
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   settings(1, 0),
                                   rivulet::partition::whole_model{},
                                   rivulet::codec::float32{},
                                   rivulet::outer::sgd{learning_rate}};
    for (int step = 1; step <= 1000; ++step) {
      x = rivulet::from_float<T>(rivulet::to_float(x) + 0x1p-7f);
      sync.after_step();
    }
    if (comm.rank() == 0) result = outer_of(sync, "x", 1)[0];
  });
  return result;
}

TEST_CASE("a thousand outer steps of 1e-4 all count for bf16 parameters") {
  float const expected = after_many_small_steps<float>();
  CHECK(expected == doctest::Approx(1.1).epsilon(1e-3));
  CHECK(after_many_small_steps<rivulet::bf16>() == doctest::Approx(expected).epsilon(1e-5));
}

TEST_CASE("a parameter that training leaves alone stays as it is, in bf16 too") {
  run_ranks(2, [](local& comm) {
    std::vector<rivulet::bf16> x(70);
    std::vector<rivulet::bf16> still(70);
    for (std::size_t i = 0; i < 70; ++i) {
      x[i] = still[i] = rivulet::to_bf16(noise(3, i, 0, 0));
    }
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), x);
    parameters.add("still", rivulet::layer(0), still);
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   settings(2, 1, 0.5f),
                                   rivulet::partition::whole_model{},
                                   rivulet::codec::e3m0{},
                                   rivulet::outer::nesterov{}};
    std::vector<float> const before = outer_of(sync, "still", 70);
    for (int step = 1; step <= 40; ++step) {
      for (rivulet::bf16& value : x) {
        value = rivulet::to_bf16(rivulet::to_float(value) * 1.02f + 0.01f);
      }
      sync.after_step();
    }
    CHECK(outer_of(sync, "still", 70) == before);
    for (std::size_t i = 0; i < 70; ++i) CHECK(rivulet::to_float(still[i]) == before[i]);
  });
}

TEST_CASE("one worker sends no byte and codes all the same") {
  auto const run = [](auto codec) {
    std::vector<float> result;
    run_ranks(1, [&](local& comm) {
      std::vector<float> x(100, 1.0f);
      rivulet::parameter_set parameters;
      parameters.add("x", rivulet::layer(0), x);
      rivulet::streaming_diloco sync{parameters,     comm,
                                     settings(2, 1), rivulet::partition::whole_model{},
                                     codec,          rivulet::outer::sgd{}};
      CHECK(sync.report().bytes_sent == 0);
      for (int step = 1; step <= 4; ++step) {
        for (std::size_t i = 0; i < x.size(); ++i) x[i] += 0.01f * static_cast<float>(i);
        CHECK(sync.after_step().bytes_sent == 0);
      }
      CHECK(sync.finish().bytes_sent == 0);
      CHECK(sync.version(0) == 2);
      result = outer_of(sync, "x", 100);
    });
    return result;
  };
  std::vector<float> const exact = run(rivulet::codec::float32{});
  std::vector<float> const coarse = run(rivulet::codec::e3m0{});
  CHECK(exact != coarse);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    // What a code leaves out of a change, D: at most 1/3 of it, or 2^-7 of the block's largest.
    CHECK(std::fabs(coarse[i] - exact[i]) <= 0.35f * std::fabs(exact[i] - 1.0f) + 0.04f);
  }
}

}  // namespace
