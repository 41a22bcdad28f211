/// \file
/// The engine against a naive implementation of the algorithm: the same bits after every step.

#include "multi_rank/reference.hpp"

#include <algorithm>
#include <string>
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

model random_model(dice& random, int embedding_size) {
  model m;
  auto const add = [&](std::string const& name, rivulet::role where, int more = 0,
                       bool trainable = true) {
    auto const element = static_cast<rivulet::element_type>(random.roll(0, 2));
    m.add(name, where, element, static_cast<std::size_t>(random.roll(1, 150) + more), trainable);
  };
  add("wte", rivulet::embedding, embedding_size);
  int const layers = random.roll(1, 5);
  for (int i = 0; i < layers; ++i) {
    std::string const block = "h" + std::to_string(i);
    add(block + ".attn", rivulet::layer(i));
    add(block + ".mlp", rivulet::layer(i), random.roll(0, 9) == 0 ? 4090 : 0);
    add(block + ".frozen", rivulet::layer(i), 0, false);
  }
  add("norm", rivulet::final_norm);
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

/// Case 0 is one in which an all-to-all sends fewer bytes, case 1 one with fewer tiles than ranks.
scenario random_scenario(dice& random, int number) {
  scenario s;
  bool const first = number == 0;
  bool const second = number == 1;
  bool const large = first || (!second && random.roll(0, 4) == 0);
  s.start = random_model(random, first ? 70'000 : large ? 33'000 : 0);
  s.partitioner = random_partitioner(random, s.start);
  if (large) s.partitioner = rivulet::partition::balanced{.fragments = random.roll(1, 3)};
  if (first) s.partitioner = rivulet::partition::whole_model{};
  if (second) s.partitioner = rivulet::partition::sequential{.layers_per_fragment = 1};
  s.sync_every = random.roll(1, 9);
  s.first = static_cast<rivulet::first_sync>(random.roll(0, 1));
  if (random.roll(0, 2) == 0) {
    model copy = s.start;
    std::size_t const fragments = s.partitioner(copy.parameters().parameters()).size();
    for (std::size_t p = 0; p < fragments; ++p)
      s.offsets.push_back(random.roll(0, s.sync_every - 1));
  }
  bool const alike = random.roll(0, 1) == 0;
  int const world = random.roll(number < 2 ? 4 : large ? 3 : 1, 4);
  for (int r = 0; r < world; ++r) {
    worker_options const own{random.roll(0, s.sync_every),
                             static_cast<float>(random.roll(0, 4)) / 4.0f,
                             random.roll(0, 1) == 0 ? 1.0 : 0.1 * random.roll(0, 30)};
    s.workers.push_back(alike && r > 0 ? s.workers.front() : own);
  }
  s.reduction = static_cast<rivulet::reduce::method>(random.roll(second ? 2 : 0, first ? 0 : 2));
  s.steps = 3 * s.sync_every + random.roll(0, 3);
  s.seed = static_cast<std::uint64_t>(random.roll(0, 1 << 20));
  return s;
}

/// What happened in some runs: a comparison of runs in which nothing happens would prove nothing.
struct coverage {
  int moved = 0;               // outer parameters that changed, runs times ranks
  std::size_t in_flight = 0;   // most
  bool cut = false;            // a tensor was
  bool several_tiles = false;  // of a fragment, in all_to_all
  bool chosen[2] = {};         // by automatic: all_gather, all_to_all
  bool fewer_tiles_than_ranks = false;
};

template <class C, class O>
std::vector<std::vector<bits>> engine_history(scenario const& s, C codec, O outer,
                                              reference<C>& naive, coverage& seen) {
  std::vector<std::vector<bits>> history(s.workers.size());
  run_ranks(s.world(), [&](rivulet::comm::local& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    model local = s.start;
    rivulet::parameter_set parameters = local.parameters();
    rivulet::streaming_diloco sync{parameters,    comm,  s.config(comm.rank()),
                                   s.partitioner, codec, outer};
    for (std::size_t p = 0; rank == 0 && p < sync.fragments().size(); ++p) {
      bool const shards =
          sync.reduction_of(static_cast<int>(p)) == rivulet::reduce::method::all_to_all;
      CHECK(shards == (naive.reduction_of(p) == rivulet::reduce::method::all_to_all));
      CHECK(sync.sent_bytes(static_cast<int>(p)) == naive.sent_bytes(p));
      std::size_t tiles_of_fragment = 0;
      for (rivulet::slice const& slice : sync.fragments()[p].slices) {
        if (slice.size < parameters[slice.parameter].tensor.size) seen.cut = true;
        tiles_of_fragment += (slice.size + 4095) / 4096;
      }
      if (s.reduction == rivulet::reduce::method::automatic) seen.chosen[shards ? 1 : 0] = true;
      if (shards && tiles_of_fragment > s.workers.size()) seen.several_tiles = true;
      if (shards && tiles_of_fragment < s.workers.size()) seen.fewer_tiles_than_ranks = true;
    }
    for (int step = 1; step <= s.steps; ++step) {
      local.inner_step(s.seed, comm.rank(), step);
      sync.after_step();
      history[rank].push_back({local.hash(), outer_hash(sync, local)});
      if (rank == 0) seen.in_flight = std::max(seen.in_flight, sync.in_flight());
    }
    sync.finish();
    history[rank].push_back({local.hash(), outer_hash(sync, local)});
  });
  return history;
}

template <class C>
std::vector<std::vector<bits>> naive_history(scenario const& s, reference<C>& naive) {
  std::vector<std::vector<bits>> history(s.workers.size());
  auto const record = [&] {
    for (int r = 0; r < s.world(); ++r) {
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
  coverage seen;
  for (int i = 0; i < cases; ++i) {
    CAPTURE(i);
    scenario const s = random_scenario(random, i);
    reference<C> naive(s, codec, outer_rule(outer));
    auto const found = engine_history(s, codec, outer, naive, seen);
    auto const expected = naive_history(s, naive);
    for (std::size_t r = 0; r < found.size(); ++r) {
      CAPTURE(r);
      bool const same = found[r] == expected[r];
      CHECK(same);
      if (found[r].front().outer != found[r].back().outer) ++seen.moved;
    }
  }
  CHECK(seen.moved > cases);
  CHECK(seen.in_flight >= 3);
  CHECK(seen.cut);
  CHECK(seen.several_tiles);
  CHECK(seen.fewer_tiles_than_ranks);
  CHECK(seen.chosen[0]);
  using parts = decltype(parts_of(codec));
  bool const alike = std::is_same_v<decltype(parts::sent), decltype(parts::mean)>;
  if (alike) CHECK(seen.chosen[1]);  // means of more bytes may never pay
}

using rivulet::codec::error_feedback;
using rivulet::codec::two_stage;

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

TEST_CASE("random runs have the bits of a naive implementation, with error feedback") {
  compare(18, 30, error_feedback{rivulet::codec::e3m0{}}, rivulet::outer::nesterov{});
  compare(19, 30, error_feedback{rivulet::codec::e3m0<32>{}, 0.9f}, rivulet::outer::sgd{});
  compare(20, 30, error_feedback{rivulet::codec::bf16{}, 0.5f}, rivulet::outer::nesterov{});
  compare(21, 30, error_feedback{rivulet::codec::sign{}}, rivulet::outer::sgd{});
}

TEST_CASE("random runs have the bits of a naive implementation, of whole messages") {
  rivulet::codec::top_k<rivulet::codec::bf16> const top{.fraction = 0.1};
  compare(12, 30, top, rivulet::outer::nesterov{});
  compare(13, 30, error_feedback{top}, rivulet::outer::sgd{});
}

TEST_CASE("random runs have the bits of a naive implementation, with a codec for the means") {
  rivulet::codec::top_k<rivulet::codec::bf16> const top{.fraction = 0.1};
  compare(14, 30, two_stage{rivulet::codec::e3m0{}, rivulet::codec::bf16{}},
          rivulet::outer::nesterov{});
  compare(15, 30, error_feedback{two_stage{rivulet::codec::sign{}, rivulet::codec::e3m0{}}},
          rivulet::outer::sgd{});
  compare(16, 30, error_feedback{two_stage{top, rivulet::codec::bf16{}}}, rivulet::outer::sgd{});
  compare(17, 30, two_stage{rivulet::codec::bf16{}, top}, rivulet::outer::sgd{});
}

}  // namespace
