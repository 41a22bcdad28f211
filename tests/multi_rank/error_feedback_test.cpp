/// \file
/// Error feedback: what a message leaves over goes into the next one if, and only if, its operation
/// was applied. Runs in which not all goes well against a naive implementation in which the lost
/// operations never happened: the same bits after every step.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/doubling.hpp"
#include "multi_rank/faulty.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"
#include "multi_rank/reference.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm_error;
using rivulet::comm_status;
using rivulet::codec::error_feedback;
using rivulet::comm::local;
using rivulet::comm::local_group;
using rivulet::reduce::method;

constexpr int start_collectives = 2;  // settings and versions
constexpr int last_step = 27;

/// Two fragments of three tensors each, H 4: one is sent every 2 steps, from step 4 on.
scenario two_fragments(int world, int overlap_steps, method reduction) {
  using enum rivulet::element_type;
  scenario s;
  for (int i = 0; i < 2; ++i) {
    std::string const block = "h" + std::to_string(i);
    s.start.add(block + ".a", rivulet::layer(i), float32, 70);
    s.start.add(block + ".b", rivulet::layer(i), bfloat16, 33);
    s.start.add(block + ".c", rivulet::layer(i), float32, 300);
  }
  s.start.fill(5);
  for (int r = 0; r < world; ++r) {
    s.workers.push_back({overlap_steps, overlap_steps == 0 ? 0.0f : 0.5f, 1.0 + r});
  }
  s.sync_every = 4;
  s.partitioner = rivulet::partition::sequential{.layers_per_fragment = 1};
  s.reduction = reduction;
  s.seed = 3;
  return s;
}

int collectives_of(method reduction) { return reduction == method::all_to_all ? 2 : 1; }

rivulet::outer::nesterov const outer{.learning_rate = 0.5f, .momentum = 0.5f};

struct bits {
  std::uint64_t local;
  std::uint64_t outer;
};

/// A rank on an engine.
template <class C>
struct worker {
  worker(faulty& comm, scenario const& s, C codec, int timeout_ms = 30'000)
      : from(s), id(comm.rank()), parameters_of(s.start), set(parameters_of.parameters()) {
    rivulet::sync_config config = s.config(comm.rank());
    config.timeout_ms = timeout_ms;
    sync.emplace(set, comm, config, s.partitioner, codec, outer);
  }
  worker(worker const&) = delete;

  void train() { parameters_of.inner_step(from.seed, id, sync->step() + 1); }
  void step() {
    train();
    sync->after_step();
    note();
  }
  void note() { history.push_back({parameters_of.hash(), outer_hash(*sync, parameters_of)}); }
  /// Steps to last_step and finish.
  void complete() {
    while (sync->step() < last_step) step();
    sync->finish();
    note();
  }

  scenario const& from;
  int id;
  model parameters_of;
  rivulet::parameter_set set;
  std::optional<rivulet::streaming_diloco<faulty, C, rivulet::outer::nesterov, rivulet::exec::host>>
      sync;
  std::vector<bits> history;  // after rebuild and every step from there on, and finish
};

/// The history of a rank in the naive run.
template <class C>
void note(reference<C>& naive, std::vector<std::vector<bits>>& histories) {
  for (int r = 0; r < naive.world(); ++r) {
    histories[static_cast<std::size_t>(r)].push_back({naive.local_hash(r), naive.outer_hash(r)});
  }
}
template <class C>
void complete(reference<C>& naive, int from, std::vector<std::vector<bits>>& histories) {
  for (int step = from + 1; step <= last_step; ++step) {
    naive.step();
    note(naive, histories);
  }
  naive.finish();
  note(naive, histories);
}

void check_alike(std::vector<std::vector<bits>> const& found,
                 std::vector<std::vector<bits>> const& expected) {
  for (std::size_t r = 0; r < found.size(); ++r) {
    CAPTURE(r);
    REQUIRE(found[r].size() == expected[r].size());
    for (std::size_t i = 0; i < found[r].size(); ++i) {
      CAPTURE(i);
      CHECK(found[r][i].local == expected[r][i].local);
      CHECK(found[r][i].outer == expected[r][i].outer);
    }
  }
}

/// All ranks fail at step `failed_at`, where nobody has received what was sent at the steps `lost`;
/// they rebuild and go on.
template <class C>
void check_lost(scenario const& s, C codec, std::function<faulty::hooks(int)> const& hooks,
                int failed_at, std::vector<int> const& lost, int timeout_of_0_ms = 30'000) {
  auto const ranks = static_cast<std::size_t>(s.world());
  std::vector<std::vector<bits>> found(ranks);
  std::vector<std::vector<bits>> expected(ranks);
  local_group const first(s.world());
  local_group const second(s.world());
  meeting_point all_failed(s.world());
  run_threads(
      s.world(),
      [&](int rank) {
        faulty comm(first.communicator(rank), hooks(rank));
        worker<C> w(comm, s, codec, rank == 0 ? timeout_of_0_ms : 30'000);
        (void)thrown_by<comm_error>([&] {
          for (;;) w.step();
        });
        CHECK(w.sync->step() == failed_at);
        w.history.clear();
        all_failed.arrive();
        faulty next(second.communicator(rank));
        w.sync->rebuild(next);
        w.note();
        w.complete();
        found[static_cast<std::size_t>(rank)] = w.history;
        w.sync.reset();
      },
      [&] {
        first.communicator(0).abort();
        second.communicator(0).abort();
      });
  reference<C> naive(s, codec, outer_rule(outer));
  for (int step = 1; step < failed_at; ++step) naive.step();
  naive.begin_step();
  for (int r = 0; r < s.world(); ++r) naive.train(r);
  naive.send_due();
  for (int step : lost) naive.drop(step);
  note(naive, expected);
  complete(naive, failed_at, expected);
  check_alike(found, expected);
}

TEST_CASE("an operation that fails on all ranks leaves the residuals as they were") {
  auto const check = [](method reduction, int stage, auto codec) {
    CAPTURE(static_cast<int>(reduction));
    CAPTURE(stage);
    for (int sync : {0, 3, 6}) {
      CAPTURE(sync);
      int const number = start_collectives + sync * collectives_of(reduction) + stage;
      int const step = 4 + 2 * sync;
      auto const cut = [=](int rank) { return rank == 0 ? cut_at(number) : faulty::hooks{}; };
      check_lost(two_fragments(3, 0, reduction), codec, cut, step, {step});
      // What is sent at the step of the failure has not been received either.
      check_lost(two_fragments(3, 2, reduction), codec, cut, step + 2, {step, step + 2});
    }
  };
  check(method::all_gather, 0, error_feedback{rivulet::codec::sign{}});
  check(method::all_to_all, 0, error_feedback{rivulet::codec::e3m0{}});
  check(method::all_to_all, 1, error_feedback{rivulet::codec::e3m0{}, 0.9f});
  rivulet::codec::top_k<rivulet::codec::bf16> const top{.fraction = 0.1};
  check(method::all_gather, 0, error_feedback{top});
  check(method::all_to_all, 1, error_feedback{top});
}

TEST_CASE("an operation that times out leaves the residuals as they were") {
  for (method reduction : {method::all_gather, method::all_to_all}) {
    int const number = start_collectives + 4 * collectives_of(reduction);
    auto const late = [=](int rank) -> faulty::hooks {
      if (rank != 2) return {};
      return {.before = [=](int at) {
        if (at == number) std::this_thread::sleep_for(std::chrono::milliseconds(1000));
        return comm_status::done;
      }};
    };
    check_lost(two_fragments(3, 0, reduction), error_feedback{rivulet::codec::sign{}}, late, 12,
               {12}, 300);
  }
}

TEST_CASE("a shard that is damaged leaves the residuals of all ranks as they were") {
  auto const damaged = [](int rank) {
    return rank == 1 ? damaged_at(start_collectives + 2 * 3, 2, 3,
                                  [](std::span<std::byte> message) { message[85] ^= std::byte{8}; })
                     : faulty::hooks{};
  };
  check_lost(two_fragments(3, 0, method::all_to_all), error_feedback{rivulet::codec::e3m0{}},
             damaged, 10, {10});
}

TEST_CASE("a rank that adopts a newer version commits its residual of that round, and no other") {
  // Rank 1 cannot read what the others apply at step 12. They go on to step 14, where the next
  // fragment is lost.
  auto const check = [](method reduction, auto codec, float mixing) {
    CAPTURE(static_cast<int>(reduction));
    scenario s = two_fragments(3, 0, reduction);
    for (worker_options& o : s.workers) o.mixing = mixing;
    using C = decltype(codec);
    int const number =
        start_collectives + 5 * collectives_of(reduction) - 1;  // the means of sync 4
    std::vector<std::vector<bits>> found(3);
    std::vector<std::vector<bits>> expected(3);
    local_group const first(3);
    local_group const second(3);
    run_threads(
        3,
        [&](int rank) {
          faulty comm(first.communicator(rank), rank == 1
                                                    ? damaged_at(number, 2, 3,
                                                                 [](std::span<std::byte> message) {
                                                                   message[85] ^= std::byte{8};
                                                                 })
                                                    : faulty::hooks{});
          worker<C> w(comm, s, codec);
          (void)thrown_by<comm_error>([&] {
            for (;;) w.step();
          });
          CHECK(w.sync->step() == (rank == 1 ? 12 : 14));
          CHECK(w.sync->version(0) == (rank == 1 ? 2 : 3));
          CHECK(w.sync->version(1) == 2);
          w.history.clear();
          faulty next(second.communicator(rank));
          w.sync->rebuild(next);
          CHECK(w.sync->step() == 14);
          CHECK(w.sync->report().written.size() == (rank == 1 ? 3 : 0));
          w.note();
          w.complete();
          found[static_cast<std::size_t>(rank)] = w.history;
          w.sync.reset();
        },
        [&] {
          first.communicator(0).abort();
          second.communicator(0).abort();
        });
    reference<C> naive(s, codec, outer_rule(outer));
    for (int step = 1; step <= 11; ++step) naive.step();
    naive.begin_step();
    for (int r : {0, 1, 2}) naive.train(r);
    naive.send_due();
    for (int r : {0, 2}) naive.receive(r, 12);
    for (int step : {13, 14}) {
      naive.begin_step();
      for (int r : {0, 2}) naive.train(r);
      naive.send_due();
      naive.drop(step == 14 ? 14 : 0);
    }
    naive.receive_all(1);
    note(naive, expected);
    complete(naive, 14, expected);
    check_alike(found, expected);
  };
  for (float mixing : {0.0f, 0.5f}) {
    check(method::all_gather, error_feedback{rivulet::codec::sign{}}, mixing);
    check(method::all_to_all, error_feedback{rivulet::codec::e3m0{}}, mixing);
  }
}

TEST_CASE("ranks that are behind commit the residuals of what they had sent when they rebuild") {
  // Rank 1 receives at once, the others 4 steps later: after step 13 they have one operation of
  // each fragment in flight.
  for (method reduction : {method::all_gather, method::all_to_all}) {
    CAPTURE(static_cast<int>(reduction));
    scenario s = two_fragments(3, 4, reduction);
    s.workers[1].overlap_steps = 0;
    error_feedback const codec{rivulet::codec::sign{}};
    using C = std::remove_const_t<decltype(codec)>;
    std::vector<std::vector<bits>> found(3);
    std::vector<std::vector<bits>> expected(3);
    local_group const first(3);
    local_group const second(3);
    meeting_point all_there(3);
    run_threads(
        3,
        [&](int rank) {
          faulty comm(first.communicator(rank));
          worker<C> w(comm, s, codec);
          while (w.sync->step() < 13) w.step();
          CHECK(w.sync->in_flight() == (rank == 1 ? 0 : 2));
          w.history.clear();
          all_there.arrive();
          faulty next(second.communicator(rank));
          w.sync->rebuild(next);
          w.note();
          w.complete();
          found[static_cast<std::size_t>(rank)] = w.history;
          w.sync.reset();
        },
        [&] {
          first.communicator(0).abort();
          second.communicator(0).abort();
        });
    reference<C> naive(s, codec, outer_rule(outer));
    for (int step = 1; step <= 13; ++step) naive.step();
    for (int r : {0, 2}) naive.receive_all(r);
    note(naive, expected);
    complete(naive, 13, expected);
    check_alike(found, expected);
  }
}

TEST_CASE("when a peer dies the others keep the residuals of what was not applied") {
  for (method reduction : {method::all_gather, method::all_to_all}) {
    CAPTURE(static_cast<int>(reduction));
    scenario const s = two_fragments(3, 0, reduction);
    error_feedback const codec{rivulet::codec::sign{}};
    using C = std::remove_const_t<decltype(codec)>;
    std::vector<std::vector<bits>> found(2);
    std::vector<std::vector<bits>> expected(2);
    local_group const first(3);
    local_group const second(2);
    meeting_point all_failed(2);
    run_threads(
        3,
        [&](int rank) {
          faulty comm(first.communicator(rank));
          worker<C> w(comm, s, codec, rank == 0 ? 500 : 30'000);
          if (rank == 2) {
            while (w.sync->step() < 9) w.step();
            return;
          }
          (void)thrown_by<comm_error>([&] {
            for (;;) w.step();
          });
          CHECK(w.sync->step() == 10);
          w.history.clear();
          all_failed.arrive();
          faulty next(second.communicator(rank));
          w.sync->rebuild(next);
          w.note();
          w.complete();
          found[static_cast<std::size_t>(rank)] = w.history;
          w.sync.reset();
        },
        [&] {
          first.communicator(0).abort();
          second.communicator(0).abort();
        });
    reference<C> naive(s, codec, outer_rule(outer));
    for (int step = 1; step <= 9; ++step) naive.step();
    naive.begin_step();
    for (int r : {0, 1}) naive.train(r);
    naive.remove(2);
    note(naive, expected);
    complete(naive, 10, expected);
    check_alike(found, expected);
  }
}

/// What is done on a rank before a step, on the engine and in the naive run alike.
struct disturbance {
  std::function<double(int rank, int step)> weight;
  int poisoned_step = 0;  // value 7 of tensor 2 on rank 1, for this step
  float poison = 0;
};

template <class C>
void check_disturbed(scenario const& s, C codec, disturbance const& what,
                     std::size_t expected_skips) {
  auto const ranks = static_cast<std::size_t>(s.world());
  std::vector<std::vector<bits>> found(ranks);
  std::vector<std::vector<bits>> expected(ranks);
  std::vector<std::size_t> skips(ranks);
  auto const poisons = [&](int rank, int step) { return rank == 1 && step == what.poisoned_step; };
  run_ranks(s.world(), [&](local& plain) {
    int const rank = plain.rank();
    faulty comm(plain);
    worker<C> w(comm, s, codec);
    tensor& values = w.parameters_of.tensors[2].values;
    for (int step = 1; step <= last_step; ++step) {
      w.train();
      w.sync->set_weight(what.weight(rank, step));
      float const kept = values.get(7);
      if (poisons(rank, step)) values.set(7, what.poison);
      skips[static_cast<std::size_t>(rank)] += w.sync->after_step().skipped.size();
      if (poisons(rank, step)) values.set(7, kept);
      w.note();
    }
    skips[static_cast<std::size_t>(rank)] += w.sync->finish().skipped.size();
    w.note();
    found[static_cast<std::size_t>(rank)] = w.history;
  });
  CHECK(skips == std::vector(ranks, expected_skips));
  reference<C> naive(s, codec, outer_rule(outer));
  for (int step = 1; step <= last_step; ++step) {
    naive.begin_step();
    float kept = 0;
    for (int r = 0; r < s.world(); ++r) {
      naive.train(r);
      naive.options(r).weight = what.weight(r, step);
      tensor& values = naive.local(r).tensors[2].values;
      if (r == 1) kept = values.get(7);
      if (poisons(r, step)) values.set(7, what.poison);
      naive.receive(r, step - 1);
    }
    naive.send_due();
    for (int r = 0; r < s.world(); ++r) {
      naive.receive(r, step);
      if (poisons(r, step)) naive.local(r).tensors[2].values.set(7, kept);
    }
    note(naive, expected);
  }
  naive.finish();
  note(naive, expected);
  check_alike(found, expected);
}

template <class Check>
void for_each_reduction_and_overlap(Check const& check) {
  for (method reduction : {method::all_gather, method::all_to_all}) {
    for (int overlap : {0, 3}) {
      CAPTURE(static_cast<int>(reduction));
      CAPTURE(overlap);
      check(two_fragments(3, overlap, reduction));
    }
  }
}

TEST_CASE("an operation that is skipped for the NaN of a peer leaves the residuals as they were") {
  for_each_reduction_and_overlap([](scenario const& s) {
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      disturbance const what{[](int rank, int) { return 1.0 + rank; }, 12, bad};
      check_disturbed(s, error_feedback{rivulet::codec::sign{}}, what, 1);
      check_disturbed(s, error_feedback{rivulet::codec::e3m0{}}, what, 1);
    }
  });
}

TEST_CASE("an operation that is skipped because all weights are 0 leaves the residuals") {
  for_each_reduction_and_overlap([](scenario const& s) {
    disturbance const what{[](int rank, int step) { return step == 10 ? 0.0 : 1.0 + rank; }};
    check_disturbed(s, error_feedback{rivulet::codec::sign{}}, what, 1);
  });
}

TEST_CASE("a rank of weight 0 keeps its residual, and its NaN does not count") {
  for_each_reduction_and_overlap([](scenario const& s) {
    auto const weight = [](int rank, int step) {
      return rank == 1 && step >= 8 && step <= 14 ? 0.0 : 1.0 + rank;
    };
    check_disturbed(s, error_feedback{rivulet::codec::sign{}}, {weight}, 0);
    check_disturbed(s, error_feedback{rivulet::codec::e3m0{}},
                    {weight, 12, std::numeric_limits<float>::quiet_NaN()}, 0);
  });
}

TEST_CASE("an operation that is skipped because its mean overflows leaves the residuals") {
  for (int overlap : {0, 3}) {
    disturbance const what{[](int, int) { return 1.0; }, 12, 3e38f};
    scenario s = two_fragments(2, overlap, method::all_to_all);
    for (worker_options& o : s.workers) o.weight = 1;
    check_disturbed(s, error_feedback{doubling{}, 0.25f}, what, 1);
  }
}

TEST_CASE("error feedback keeps its books with several fragments in flight") {
  for (int world = 1; world <= 4; ++world) {
    for (method reduction : {method::automatic, method::all_gather, method::all_to_all}) {
      CAPTURE(world);
      CAPTURE(static_cast<int>(reduction));
      scenario s;
      s.start = small_model();
      s.start.add("long", rivulet::layer(1), rivulet::element_type::float32, 9000);
      s.start.fill(2);
      s.partitioner = rivulet::partition::strided{.layers_per_fragment = 1};  // 5 fragments
      s.sync_every = 10;
      s.reduction = reduction;
      for (int r = 0; r < world; ++r) s.workers.push_back({9 - 2 * (r % 2), 0.5f, 1.0 + r});
      using C = error_feedback<rivulet::codec::sign<>>;
      std::vector<std::vector<bits>> found(s.workers.size());
      std::vector<std::vector<bits>> expected(s.workers.size());
      std::size_t most_in_flight = 0;
      run_ranks(world, [&](local& plain) {
        faulty comm(plain);
        worker<C> w(comm, s, C{});
        while (w.sync->step() < last_step) {
          w.step();
          if (plain.rank() == 0) most_in_flight = std::max(most_in_flight, w.sync->in_flight());
        }
        w.complete();
        found[static_cast<std::size_t>(plain.rank())] = w.history;
      });
      CHECK(most_in_flight >= 4);
      reference<C> naive(s, C{}, outer_rule(outer));
      complete(naive, 0, expected);
      check_alike(found, expected);
    }
  }
}

/// How well the sum of what is applied in 100 rounds follows the sum of what is sent.
struct followed {
  double snr_db;
  float worst;  // largest difference, over the largest value of a round
};

template <class C>
followed sum_of_rounds(int world, method reduction, C codec) {
  followed result{};
  run_ranks(world, [&](local& comm) {
    constexpr std::size_t size = 4096 + 500;
    std::vector<float> x(size, 0.0f);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), x);
    rivulet::sync_config config = settings(1, 0);
    config.reduction = reduction;
    rivulet::streaming_diloco sync{
        parameters, comm, config, rivulet::partition::whole_model{}, codec, rivulet::outer::sgd{}};
    std::vector<double> sum(size, 0.0);
    float largest = 0;
    for (std::uint64_t round = 0; round < 100; ++round) {
      for (std::size_t i = 0; i < size; ++i) {
        for (int r = 0; r < world; ++r) {
          float value = 0;  // nearly normal
          auto const seed = static_cast<std::uint64_t>(r) << 32;
          for (std::uint64_t part : {0u, 1u, 2u, 3u}) value += noise(seed, round, i, part);
          sum[i] += static_cast<double>(value) / world;
          largest = std::max(largest, std::fabs(value));
          if (r == comm.rank()) x[i] -= value;
        }
      }
      sync.after_step();
    }
    if (comm.rank() != 0) return;
    double signal = 0;
    double error = 0;
    std::vector<float> const applied = outer_of(sync, "x", size);
    for (std::size_t i = 0; i < size; ++i) {
      double const difference = static_cast<double>(applied[i]) + sum[i];
      signal += sum[i] * sum[i];
      error += difference * difference;
      result.worst = std::max(result.worst, static_cast<float>(std::fabs(difference)) / largest);
    }
    result.snr_db = 10 * std::log10(signal / error);
  });
  return result;
}

/// Checks that error feedback gains at least `gain_db`, and that what it has not sent yet is at
/// most `worst` times the largest value of a round.
template <class C>
void check_gain(char const* name, int world, method reduction, C codec, double gain_db,
                float worst) {
  followed const without = sum_of_rounds(world, reduction, codec);
  followed const with = sum_of_rounds(world, reduction, error_feedback{codec});
  MESSAGE(std::string(name), ", ", world, " workers: ", without.snr_db, " dB, with error feedback ",
          with.snr_db, " dB; behind by ", with.worst, " of the largest value");
  CHECK(with.snr_db > without.snr_db + gain_db);
  CHECK(with.worst < worst);
}

TEST_CASE("what is applied in 100 rounds follows what was sent, by error feedback") {
  using namespace rivulet::codec;
  for (int world : {1, 2}) {
    check_gain("e3m0", world, method::all_gather, e3m0{}, 15, 0.55f);
    check_gain("e3m0<32>", world, method::all_gather, e3m0<32>{}, 15, 0.55f);
    check_gain("sign", world, method::all_gather, sign{}, 15, 2);
    check_gain("int2", world, method::all_gather, int2{}, 15, 1);
    check_gain("top_k 10 %", world, method::all_gather, top_k<bf16>{.fraction = 0.1}, 15, 2);
  }
  check_gain("e3m0, means in float32", 2, method::all_to_all, two_stage{e3m0{}, float32{}}, 15,
             0.55f);
}

}  // namespace
