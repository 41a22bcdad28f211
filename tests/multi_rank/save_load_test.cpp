/// \file
/// A run that is stopped anywhere and resumed in fresh engines gives the same bits.

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

constexpr int world = 3;
constexpr int last_step = 31;
constexpr std::uint64_t seed = 11;
constexpr int own_overlap[world] = {5, 2, 0};

using rivulet::reduce::method;

/// What a run is done with.
template <class C>
struct setup {
  C codec = {};
  method reduction = method::automatic;
  int ranks = world;
};
template <class C>
setup(C, method, int) -> setup<C>;
constexpr setup<rivulet::codec::e3m0<>> usual{};

struct stop {
  model parameters;
  std::vector<std::byte> state;
};

struct record {
  std::vector<stop> stops;           // after step 0, 1, ...
  std::vector<std::uint64_t> local;  // hash after step 1, 2, ..., and after finish
  std::vector<std::uint64_t> fingerprint;
  std::size_t sent = 0;
  std::size_t applied = 0;
};

template <class C = rivulet::codec::e3m0<>>
auto make_engine(rivulet::parameter_set& parameters, local& comm, int overlap_steps,
                 setup<C> const& with = {}) {
  rivulet::sync_config config = settings(12, overlap_steps, 0.25f);
  config.first_sync = rivulet::first_sync::at_offset;
  config.reduction = with.reduction;
  config.weight = 1 + comm.rank();
  return rivulet::streaming_diloco{
      parameters, comm,
      config,     rivulet::partition::strided{.layers_per_fragment = 1},
      with.codec, rivulet::outer::nesterov{}};
}

template <class Engine>
std::vector<std::byte> saved(Engine& sync) {
  std::vector<std::byte> state;
  sync.save([&](std::span<std::byte const> bytes) {
    state.insert(state.end(), bytes.begin(), bytes.end());
  });
  return state;
}

/// Steps `from` + 1 .. last_step and finish.
template <class Engine>
void train(Engine& sync, model& m, int rank, int from, record& to, bool keep_stops) {
  auto const note = [&](rivulet::step_report const& report) {
    to.sent += report.sent.size();
    to.applied += report.applied.size();
    to.local.push_back(m.hash());
    to.fingerprint.push_back(sync.outer_fingerprint());
  };
  for (int step = from + 1; step <= last_step; ++step) {
    m.inner_step(seed, rank, step);
    if (step == 17) sync.set_outer_learning_rate(0.9f);  // with operations in flight
    if (rank == 1 && step % 5 == 0) sync.set_weight(step % 10 == 0 ? 0 : 3);
    note(sync.after_step());
    if (keep_stops) to.stops.push_back({m, saved(sync)});
  }
  note(sync.finish());
}

template <class C = rivulet::codec::e3m0<>>
std::vector<record> undisturbed(bool keep_stops, setup<C> const& with = {}) {
  std::vector<record> runs(static_cast<std::size_t>(with.ranks));
  run_ranks(with.ranks, [&](local& comm) {
    record& own = runs[static_cast<std::size_t>(comm.rank())];
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    auto sync = make_engine(parameters, comm, own_overlap[comm.rank()], with);
    if (keep_stops) own.stops.push_back({m, saved(sync)});
    train(sync, m, comm.rank(), 0, own, keep_stops);
  });
  return runs;
}

/// Resumes after step `at` with another engine, model and group.
template <class Overlap, class C = rivulet::codec::e3m0<>>
std::vector<record> resumed(std::vector<record> const& from, int at, Overlap const& overlap,
                            setup<C> const& with = {}) {
  std::vector<record> runs(from.size());
  run_ranks(with.ranks, [&](local& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    stop const& start = from[rank].stops[static_cast<std::size_t>(at)];
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    auto sync = make_engine(parameters, comm, overlap(comm.rank()), with);
    sync.load(start.state);
    for (std::size_t t = 0; t < m.tensors.size(); ++t) {
      for (std::size_t i = 0; i < m.tensors[t].values.size(); ++i) {
        m.tensors[t].values.set(i, start.parameters.tensors[t].values.get(i));
      }
    }
    CHECK(sync.step() == at);
    if (comm.rank() == 1 && at >= 5) sync.set_weight(at / 5 % 2 == 0 ? 0 : 3);  // not saved
    train(sync, m, comm.rank(), at, runs[rank], false);
  });
  return runs;
}

template <class T>
bool is_end_of(std::vector<T> const& end, std::vector<T> const& whole) {
  return end.size() <= whole.size() && std::equal(end.rbegin(), end.rend(), whole.rbegin());
}

template <class C>
void check_resume(setup<C> const& with, int first, int end) {
  CAPTURE(with.ranks);
  CAPTURE(static_cast<int>(with.reduction));
  std::vector<record> const plain = undisturbed(false, with);
  std::vector<record> const whole = undisturbed(true, with);
  for (std::size_t rank = 0; rank < whole.size(); ++rank) {  // saving changes nothing
    CHECK(plain[rank].local == whole[rank].local);
    CHECK(plain[rank].fingerprint == whole[rank].fingerprint);
  }
  std::size_t most_in_flight = 0;
  for (int at = first; at <= end; ++at) {
    CAPTURE(at);
    std::vector<record> const rest = resumed(
        whole, at, [](int rank) { return own_overlap[rank]; }, with);
    for (std::size_t r = 0; r < rest.size(); ++r) {
      CAPTURE(r);
      bool const same_local = is_end_of(rest[r].local, whole[r].local);
      bool const same_outer = is_end_of(rest[r].fingerprint, whole[r].fingerprint);
      CHECK(same_local);
      CHECK(same_outer);
      most_in_flight = std::max(most_in_flight, rest[r].applied - rest[r].sent);
    }
  }
  CHECK(most_in_flight >= 2);  // some stops had operations in flight
}

TEST_CASE("a run stopped after any step and resumed gives the same bits") {
  check_resume(usual, 0, last_step);
  check_resume(setup{rivulet::codec::e3m0{}, method::all_to_all, 3}, 0, last_step);
}

TEST_CASE("a run with error feedback stopped after any step and resumed gives the same bits") {
  using rivulet::codec::error_feedback;
  for (method reduction : {method::all_gather, method::all_to_all}) {
    for (int ranks : {2, 3}) {
      check_resume(setup{error_feedback{rivulet::codec::e3m0{}}, reduction, ranks}, 4, 28);
      check_resume(setup{error_feedback{rivulet::codec::sign{}, 0.9f}, reduction, ranks}, 4, 28);
    }
  }
}

TEST_CASE("a run with whole messages stopped after any step and resumed gives the same bits") {
  rivulet::codec::top_k<rivulet::codec::bf16> const top{.fraction = 0.1};
  for (method reduction : {method::all_gather, method::all_to_all}) {
    for (int ranks : {2, 3}) {
      check_resume(setup{top, reduction, ranks}, 4, 28);
      check_resume(setup{rivulet::codec::error_feedback{top}, reduction, ranks}, 4, 28);
    }
  }
}

TEST_CASE("a run with random rounding stopped after any step and resumed gives the same bits") {
  rivulet::codec::stochastic<rivulet::codec::e3m0<>> const random{};
  for (method reduction : {method::all_gather, method::all_to_all}) {
    check_resume(setup{random, reduction, 3}, 4, 28);
  }
}

TEST_CASE("a run resumed with another tau loses no operation") {
  std::vector<record> const whole = undisturbed(true);
  for (int overlap : {0, 1, 5, 12}) {
    for (int at = 0; at <= last_step; ++at) {
      CAPTURE(overlap);
      CAPTURE(at);
      std::vector<record> const rest =
          resumed(whole, at, [=](int rank) { return rank == 1 ? 3 : overlap; });
      std::size_t const rank_0_in_flight = rest[0].applied - rest[0].sent;
      std::size_t applied_before = 0;  // by rank 0, of what the whole run sent
      applied_before = whole[0].applied - rest[0].applied;
      CHECK(applied_before + rest[0].sent + rank_0_in_flight == whole[0].sent);
      for (std::size_t r = 1; r < world; ++r) {
        CHECK(rest[r].fingerprint.back() == rest[0].fingerprint.back());
      }
    }
  }
}

/// Loads `state(rank)` on every rank into engines that have taken `steps` steps; returns the
/// exceptions' texts, after checking that nothing changed and that training goes on.
template <class Error, class State>
std::vector<std::string> refused(int steps, State const& state) {
  std::vector<std::string> texts(world);
  run_ranks(world, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    auto sync = make_engine(parameters, comm, own_overlap[comm.rank()]);
    int step = 0;
    while (step < steps) {
      m.inner_step(seed, comm.rank(), ++step);
      sync.after_step();
    }
    sync.finish();
    std::uint64_t const local_before = m.hash();
    std::uint64_t const outer_before = sync.outer_fingerprint();
    texts[static_cast<std::size_t>(comm.rank())] =
        thrown_by<Error>([&] { sync.load(state(comm.rank())); }).what();
    CHECK(m.hash() == local_before);
    CHECK(sync.outer_fingerprint() == outer_before);
    CHECK(sync.step() == steps);
    CHECK(sync.in_flight() == 0);
    while (step < steps + 13) {
      m.inner_step(seed, comm.rank(), ++step);
      sync.after_step();
    }
    sync.finish();
    CHECK(sync.outer_fingerprint() != outer_before);
  });
  return texts;
}

TEST_CASE("a state that is damaged on one rank is refused by all, and changes nothing") {
  std::vector<record> const whole = undisturbed(true);
  std::vector<std::byte> const& good = whole[1].stops[16].state;
  for (std::size_t at = 0; at < good.size(); at += good.size() / 23) {
    CAPTURE(at);
    auto const texts = refused<rivulet::state_error>(2, [&](int rank) {
      std::vector<std::byte> state = whole[static_cast<std::size_t>(rank)].stops[16].state;
      if (rank == 1) state[at] ^= std::byte{4};
      return state;
    });
    CHECK(mentions(texts[0], "rank 1"));
    CHECK(mentions(texts[2], "rank 1"));
  }
  auto const truncated = refused<rivulet::state_error>(2, [&](int rank) {
    std::vector<std::byte> state = whole[static_cast<std::size_t>(rank)].stops[16].state;
    if (rank == 2) state.pop_back();
    return state;
  });
  CHECK(mentions(truncated[2], "truncated"));
  auto const empty = refused<rivulet::state_error>(2, [](int) { return std::vector<std::byte>{}; });
  CHECK(mentions(empty[0], "truncated"));
}

template <class C>
void check_every_byte(C codec) {
  model m = small_model();
  rivulet::parameter_set parameters = m.parameters();
  rivulet::comm::local_group const group(1);
  local comm = group.communicator(0);
  setup<C> const with{codec, method::automatic, 1};
  std::vector<std::byte> state;
  {
    auto sync = make_engine(parameters, comm, 5, with);
    for (int step = 1; step <= 13; ++step) {
      m.inner_step(seed, 0, step);
      sync.after_step();
    }
    REQUIRE(sync.in_flight() > 0);
    state = saved(sync);
  }
  auto sync = make_engine(parameters, comm, 5, with);
  std::uint64_t const before = sync.outer_fingerprint();
  for (std::size_t at = 0; at < state.size(); ++at) {
    state[at] ^= std::byte{0x80};
    bool refused_it = false;
    try {
      sync.load(state);
    } catch (rivulet::state_error const&) {
      refused_it = true;
    }
    state[at] ^= std::byte{0x80};
    if (!refused_it) FAIL_CHECK("byte " << at << " was not found");
  }
  CHECK(sync.outer_fingerprint() == before);
  sync.load(state);
  CHECK(saved(sync) == state);
}

TEST_CASE("every damaged byte of a state is found") {
  check_every_byte(rivulet::codec::e3m0{});
  check_every_byte(rivulet::codec::error_feedback{rivulet::codec::e3m0{}});
}

/// A state of engines that have taken no step, with other settings than `usual`.
template <class C>
std::vector<std::byte> other_state(int sync_every, C codec, method reduction) {
  std::vector<std::byte> other;
  run_ranks(world, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    rivulet::sync_config config = settings(sync_every, 0);
    config.first_sync = rivulet::first_sync::at_offset;
    config.reduction = reduction;
    rivulet::streaming_diloco sync{
        parameters, comm,
        config,     rivulet::partition::strided{.layers_per_fragment = 1},
        codec,      rivulet::outer::nesterov{}};
    std::vector<std::byte> const state = saved(sync);
    if (comm.rank() == 0) other = state;
  });
  return other;
}

TEST_CASE("a state of other settings is refused by all") {
  using namespace rivulet::codec;
  auto const refused_by_all = [](std::vector<std::byte> const& state) {
    auto const texts = refused<rivulet::state_error>(2, [&](int) { return state; });
    for (std::string const& text : texts) CHECK(mentions(text, "schedule"));
  };
  refused_by_all(other_state(11, e3m0{}, method::automatic));
  refused_by_all(other_state(12, e3m0<32>{}, method::automatic));
  refused_by_all(other_state(12, error_feedback{e3m0{}}, method::automatic));
  refused_by_all(other_state(12, two_stage{e3m0{}, bf16{}}, method::automatic));
  refused_by_all(other_state(12, e3m0{}, method::all_to_all));
}

TEST_CASE("states of different steps are refused by all") {
  std::vector<record> const whole = undisturbed(true);
  auto const texts = refused<rivulet::precondition_error>(2, [&](int rank) {
    auto const r = static_cast<std::size_t>(rank);
    return whole[r].stops[rank == 2 ? 9 : 8].state;
  });
  for (std::string const& text : texts) {
    CHECK(mentions(text, "rank 2"));
    CHECK(mentions(text, "step 8"));
    CHECK(mentions(text, "step 9"));
  }
}

TEST_CASE("a state goes to another number of workers only if nothing is in flight") {
  std::vector<record> const whole = undisturbed(true);
  std::vector<std::byte> drained;
  run_ranks(world, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    auto sync = make_engine(parameters, comm, 5);
    for (int step = 1; step <= 16; ++step) {
      m.inner_step(seed, comm.rank(), step);
      sync.after_step();
    }
    sync.finish();
    std::vector<std::byte> const state = saved(sync);
    if (comm.rank() == 0) drained = state;
  });
  run_ranks(2, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    auto sync = make_engine(parameters, comm, 5);
    std::uint64_t const before = sync.outer_fingerprint();
    std::string const text =
        thrown_by<rivulet::state_error>([&] { sync.load(whole[0].stops[16].state); }).what();
    CHECK(mentions(text, "between 3 workers, but there are 2"));
    CHECK(sync.outer_fingerprint() == before);
    sync.load(drained);
    CHECK(sync.step() == 16);
    CHECK(sync.outer_fingerprint() != before);
  });
}

TEST_CASE("load with operations in flight is refused") {
  std::vector<record> const whole = undisturbed(true);
  run_ranks(world, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    auto sync = make_engine(parameters, comm, 5);
    for (int step = 1; step <= 12; ++step) {
      m.inner_step(seed, comm.rank(), step);
      sync.after_step();
    }
    REQUIRE(sync.in_flight() > 0);
    std::string const text =
        thrown_by<rivulet::state_error>([&] { sync.load(whole[0].stops[16].state); }).what();
    CHECK(mentions(text, "in flight"));
    sync.finish();
  });
}

}  // namespace
