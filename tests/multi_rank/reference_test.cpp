/// \file
/// The engine against a naive implementation of the algorithm: the same bits after every step.

#include "multi_rank/reference.hpp"

#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;

struct bits {
  std::uint64_t local;
  std::uint64_t outer;
  friend bool operator==(bits const&, bits const&) = default;
};

/// A case drawn at random.
struct scenario {
  model start;
  std::vector<worker_options> workers;
  int sync_every;
  rivulet::first_sync first;
  std::vector<int> offsets;
  any_partitioner partitioner;
  int steps;
  std::uint64_t seed;
};

model random_model(dice& random) {
  model m;
  auto const element = [&] { return static_cast<rivulet::element_type>(random.roll(0, 2)); };
  auto const size = [&] { return static_cast<std::size_t>(random.roll(1, 150)); };
  m.add("wte", rivulet::embedding, element(), size() + (random.roll(0, 5) == 0 ? 9000 : 0));
  int const layers = random.roll(1, 5);
  for (int i = 0; i < layers; ++i) {
    m.add("h" + std::to_string(i) + ".attn", rivulet::layer(i), element(), size());
    m.add("h" + std::to_string(i) + ".mlp", rivulet::layer(i), element(),
          size() + (random.roll(0, 9) == 0 ? 4090 : 0));
    m.add("h" + std::to_string(i) + ".frozen", rivulet::layer(i), element(), size(), false);
  }
  m.add("norm", rivulet::final_norm, element(), size());
  m.fill(static_cast<std::uint64_t>(random.roll(0, 1 << 20)));
  return m;
}

any_partitioner random_partitioner(dice& random, model const& m) {
  int const layers = static_cast<int>(m.tensors.size() - 2) / 3;
  switch (random.roll(0, 4)) {
    case 0: return rivulet::partition::whole_model{};
    case 1: return rivulet::partition::sequential{.layers_per_fragment = random.roll(1, layers)};
    case 2: return rivulet::partition::strided{.layers_per_fragment = random.roll(1, layers)};
    case 3: return rivulet::partition::balanced{.fragments = random.roll(1, 2 + layers)};
    default: {
      rivulet::partition::by_name lists{{{"wte", "h0*"}}};
      for (int i = 1; i < layers; ++i) lists.fragments.push_back({"h" + std::to_string(i) + "*"});
      lists.fragments.push_back({"norm"});
      return lists;
    }
  }
}

scenario random_scenario(dice& random) {
  scenario s;
  s.start = random_model(random);
  s.partitioner = random_partitioner(random, s.start);
  s.sync_every = random.roll(1, 9);
  s.first = static_cast<rivulet::first_sync>(random.roll(0, 1));
  if (random.roll(0, 2) == 0) {
    model copy = s.start;
    std::size_t const fragments = s.partitioner(copy.parameters().parameters()).size();
    for (std::size_t p = 0; p < fragments; ++p)
      s.offsets.push_back(random.roll(0, s.sync_every - 1));
  }
  bool const alike = random.roll(0, 1) == 0;
  int const world = random.roll(1, 4);
  for (int r = 0; r < world; ++r) {
    worker_options const own{random.roll(0, s.sync_every),
                             static_cast<float>(random.roll(0, 4)) / 4.0f,
                             random.roll(0, 1) == 0 ? 1.0 : 0.1 * random.roll(0, 30)};
    s.workers.push_back(alike && r > 0 ? s.workers.front() : own);
  }
  s.steps = 3 * s.sync_every + random.roll(0, 3);
  s.seed = static_cast<std::uint64_t>(random.roll(0, 1 << 20));
  return s;
}

template <class C, class O>
std::vector<std::vector<bits>> engine_history(scenario const& s, C codec, O outer) {
  std::vector<std::vector<bits>> history(s.workers.size());
  run_ranks(static_cast<int>(s.workers.size()), [&](rivulet::comm::local& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    model local = s.start;
    rivulet::parameter_set parameters = local.parameters();
    worker_options const& own = s.workers[rank];
    rivulet::sync_config config = settings(s.sync_every, own.overlap_steps, own.mixing);
    config.weight = own.weight;
    config.first_sync = s.first;
    config.offsets = s.offsets;
    rivulet::streaming_diloco sync{parameters, comm, config, s.partitioner, codec, outer};
    for (int step = 1; step <= s.steps; ++step) {
      local.inner_step(s.seed, comm.rank(), step);
      sync.after_step();
      history[rank].push_back({local.hash(), outer_hash(sync, local)});
    }
    sync.finish();
    history[rank].push_back({local.hash(), outer_hash(sync, local)});
  });
  return history;
}

template <class C, class O>
std::vector<std::vector<bits>> naive_history(scenario const& s, C codec, O outer) {
  typename reference<C>::outer_rule rule{outer.learning_rate, 0, false};
  if constexpr (std::is_same_v<O, rivulet::outer::nesterov>) {
    rule = {outer.learning_rate, outer.momentum, true};
  }
  std::vector<std::vector<bits>> history(s.workers.size());
  reference<C> naive(s.start, s.workers, s.sync_every, s.first, s.offsets, s.partitioner, codec,
                     rule, s.seed);
  auto const record = [&] {
    for (int r = 0; r < static_cast<int>(s.workers.size()); ++r) {
      history[static_cast<std::size_t>(r)].push_back({naive.local_hash(r), naive.outer_hash(r)});
    }
  };
  for (int step = 1; step <= s.steps; ++step) {
    naive.step();
    record();
  }
  naive.finish();
  record();
  return history;
}

template <class C, class O>
void compare(std::uint64_t seed, int cases, C codec, O outer) {
  dice random(seed);
  int moved = 0;  // a comparison of runs in which nothing happens would prove nothing
  for (int i = 0; i < cases; ++i) {
    CAPTURE(i);
    scenario const s = random_scenario(random);
    auto const found = engine_history(s, codec, outer);
    auto const expected = naive_history(s, codec, outer);
    for (std::size_t r = 0; r < found.size(); ++r) {
      CAPTURE(r);
      bool const same = found[r] == expected[r];
      CHECK(same);
      if (found[r].front().outer != found[r].back().outer) ++moved;
    }
  }
  CHECK(moved > cases);
}

TEST_CASE("random runs have the bits of a naive implementation, float32") {
  compare(1, 30, rivulet::codec::float32{}, rivulet::outer::sgd{.learning_rate = 0.7f});
  compare(2, 30, rivulet::codec::float32{}, rivulet::outer::nesterov{});
}

TEST_CASE("random runs have the bits of a naive implementation, bf16") {
  compare(3, 30, rivulet::codec::bf16{}, rivulet::outer::sgd{});
  compare(4, 30, rivulet::codec::bf16{}, rivulet::outer::nesterov{.learning_rate = 0.7f});
}

TEST_CASE("random runs have the bits of a naive implementation, e3m0") {
  compare(5, 30, rivulet::codec::e3m0{}, rivulet::outer::sgd{});
  compare(6, 30, rivulet::codec::e3m0{}, rivulet::outer::nesterov{});
}

TEST_CASE("random runs have the bits of a naive implementation, e3m0 in blocks of 32") {
  compare(7, 30, rivulet::codec::e3m0<32>{}, rivulet::outer::nesterov{.momentum = 0.5f});
}

}  // namespace
