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

auto make_engine(rivulet::parameter_set& parameters, local& comm, int overlap_steps,
                 float learning_rate = 0.4f) {
  rivulet::sync_config config = settings(12, overlap_steps, 0.25f);
  config.first_sync = rivulet::first_sync::at_offset;
  return rivulet::streaming_diloco{parameters,
                                   comm,
                                   config,
                                   rivulet::partition::strided{.layers_per_fragment = 1},
                                   rivulet::codec::e3m0{},
                                   rivulet::outer::nesterov{.learning_rate = learning_rate}};
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
    note(sync.after_step());
    if (keep_stops) to.stops.push_back({m, saved(sync)});
  }
  note(sync.finish());
}

std::vector<record> undisturbed(bool keep_stops) {
  std::vector<record> runs(world);
  run_ranks(world, [&](local& comm) {
    record& own = runs[static_cast<std::size_t>(comm.rank())];
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    auto sync = make_engine(parameters, comm, own_overlap[comm.rank()]);
    if (keep_stops) own.stops.push_back({m, saved(sync)});
    train(sync, m, comm.rank(), 0, own, keep_stops);
  });
  return runs;
}

/// Resumes after step `at` with another engine, model and group.
template <class Overlap>
std::vector<record> resumed(std::vector<record> const& from, int at, Overlap const& overlap) {
  std::vector<record> runs(world);
  run_ranks(world, [&](local& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    stop const& start = from[rank].stops[static_cast<std::size_t>(at)];
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    auto sync = make_engine(parameters, comm, overlap(comm.rank()));
    sync.load(start.state);
    for (std::size_t t = 0; t < m.tensors.size(); ++t) {
      for (std::size_t i = 0; i < m.tensors[t].values.size(); ++i) {
        m.tensors[t].values.set(i, start.parameters.tensors[t].values.get(i));
      }
    }
    CHECK(sync.step() == at);
    train(sync, m, comm.rank(), at, runs[rank], false);
  });
  return runs;
}

template <class T>
bool is_end_of(std::vector<T> const& end, std::vector<T> const& whole) {
  return end.size() <= whole.size() && std::equal(end.rbegin(), end.rend(), whole.rbegin());
}

TEST_CASE("a run stopped after any step and resumed gives the same bits") {
  std::vector<record> const plain = undisturbed(false);
  std::vector<record> const whole = undisturbed(true);
  for (int r = 0; r < world; ++r) {  // saving changes nothing
    auto const rank = static_cast<std::size_t>(r);
    CHECK(plain[rank].local == whole[rank].local);
    CHECK(plain[rank].fingerprint == whole[rank].fingerprint);
  }
  std::size_t most_in_flight = 0;
  for (int at = 0; at <= last_step; ++at) {
    CAPTURE(at);
    std::vector<record> const rest = resumed(whole, at, [](int rank) { return own_overlap[rank]; });
    for (std::size_t r = 0; r < world; ++r) {
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

TEST_CASE("every damaged byte of a state is found") {
  std::vector<record> const whole = undisturbed(true);
  model m = small_model();
  rivulet::parameter_set parameters = m.parameters();
  rivulet::comm::local_group const group(1);
  local comm = group.communicator(0);
  auto sync = make_engine(parameters, comm, 5);
  std::vector<std::byte> state = saved(sync);
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
}

TEST_CASE("a state of other settings is refused by all") {
  std::vector<std::byte> other;
  run_ranks(world, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   settings(11, 0),
                                   rivulet::partition::strided{.layers_per_fragment = 1},
                                   rivulet::codec::e3m0{},
                                   rivulet::outer::nesterov{}};
    std::vector<std::byte> const state = saved(sync);
    if (comm.rank() == 0) other = state;
  });
  auto const texts = refused<rivulet::state_error>(2, [&](int) { return other; });
  for (std::string const& text : texts) CHECK(mentions(text, "schedule"));
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
