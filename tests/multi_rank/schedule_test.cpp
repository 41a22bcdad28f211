/// \file
/// Any H >= 1, P >= 1 and 0 <= tau <= H works in the engine or is refused with one clear message.

#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

/// P scalars, a fragment each.
struct scalars {
  explicit scalars(int fragments) : values(static_cast<std::size_t>(fragments)) {
    for (int p = 0; p < fragments; ++p) {
      std::string const name = std::to_string(p);
      parameters.add(name, rivulet::layer(p), &values[static_cast<std::size_t>(p)], 1);
      partition.fragments.push_back({name});
    }
  }
  std::vector<float> values;
  rivulet::parameter_set parameters;
  rivulet::partition::by_name partition;
};

/// The steps after which a fragment was sent and applied.
struct syncs {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> applied;
};

/// Checks every fragment of a run against "sent every H steps, received tau steps later".
void check_grid_point(int world, int sync_every, int fragments, int overlap, bool at_offset) {
  CAPTURE(sync_every);
  CAPTURE(fragments);
  CAPTURE(overlap);
  CAPTURE(at_offset);
  int const steps = 3 * sync_every + 2;
  run_ranks(world, [&](local& comm) {
    scalars m(fragments);
    rivulet::sync_config config = settings(sync_every, overlap);
    config.first_sync =
        at_offset ? rivulet::first_sync::at_offset : rivulet::first_sync::after_full_round;
    rivulet::streaming_diloco sync{
        m.parameters, comm, config, m.partition, rivulet::codec::float32{}, rivulet::outer::sgd{}};
    std::vector<syncs> of(static_cast<std::size_t>(fragments));
    for (int step = 1; step <= steps; ++step) {
      for (float& value : m.values) value += 1.0f + static_cast<float>(comm.rank());
      rivulet::step_report const& report = sync.after_step();
      for (int p : report.sent) of[static_cast<std::size_t>(p)].sent.push_back(step);
      for (int p : report.applied) of[static_cast<std::size_t>(p)].applied.push_back(step);
    }
    bool good = true;
    for (int p = 0; p < fragments; ++p) {
      std::int64_t const offset = p * sync_every / fragments;
      syncs expected;
      std::int64_t const first = offset == 0 ? sync_every
                                 : at_offset ? offset
                                             : sync_every + offset;
      for (std::int64_t t = first; t <= steps; t += sync_every) {
        expected.sent.push_back(t);
        if (t + overlap <= steps) expected.applied.push_back(t + overlap);
      }
      syncs const& found = of[static_cast<std::size_t>(p)];
      good = good && found.sent == expected.sent && found.applied == expected.applied;
    }
    CHECK(good);
    std::size_t in_flight = 0;
    for (syncs const& s : of) in_flight += s.sent.size() - s.applied.size();
    CHECK(sync.in_flight() == in_flight);
    CHECK(sync.finish().applied.size() == in_flight);
    for (int p = 0; p < fragments; ++p) {
      CHECK(sync.version(p) == of[static_cast<std::size_t>(p)].sent.size());
    }
  });
}

TEST_CASE("the engine keeps H and tau over a grid of H, P and tau, on one rank") {
  for (int sync_every = 1; sync_every <= 7; ++sync_every) {
    for (int fragments : {1, 2, 3, 5, 9}) {
      for (int overlap = 0; overlap <= sync_every; ++overlap) {
        check_grid_point(1, sync_every, fragments, overlap, false);
        check_grid_point(1, sync_every, fragments, overlap, true);
      }
    }
  }
}

TEST_CASE("the engine keeps H and tau on three ranks, tau = H and H < P among them") {
  check_grid_point(3, 1, 1, 0, false);
  check_grid_point(3, 1, 1, 1, false);
  check_grid_point(3, 1, 4, 1, true);
  check_grid_point(3, 3, 8, 0, false);
  check_grid_point(3, 3, 8, 2, true);
  check_grid_point(3, 3, 8, 3, false);
  check_grid_point(3, 11, 4, 11, true);
  check_grid_point(3, 12, 5, 7, false);
}

TEST_CASE("a schedule that cannot be is refused with one clear message on every rank") {
  auto const texts_of = [](auto const& change) {
    std::vector<std::string> texts(2);
    run_ranks(2, [&](local& comm) {
      scalars m(2);
      rivulet::sync_config config = settings(4, 1);
      change(config);
      texts[static_cast<std::size_t>(comm.rank())] =
          thrown_by<rivulet::precondition_error>([&] {
            rivulet::streaming_diloco{
                m.parameters,         comm, config, m.partition, rivulet::codec::float32{},
                rivulet::outer::sgd{}};
          }).what();
    });
    CHECK(texts[0] == texts[1]);
    return texts[0];
  };
  using config = rivulet::sync_config;
  CHECK(mentions(texts_of([](config& c) { c.sync_every = 0; }), "sync_every (H) = 0"));
  CHECK(mentions(texts_of([](config& c) { c.sync_every = -3; }), "sync_every (H) = -3"));
  CHECK(mentions(texts_of([](config& c) { c.overlap_steps = 5; }), "overlap_steps (tau) = 5"));
  CHECK(mentions(texts_of([](config& c) { c.overlap_steps = -1; }), "overlap_steps (tau) = -1"));
  CHECK(mentions(texts_of([](config& c) { c.offsets = {0}; }), "1 given for 2 fragments"));
  CHECK(mentions(texts_of([](config& c) { c.offsets = {0, 4}; }), "offsets: 4"));
  CHECK(mentions(texts_of([](config& c) { c.offsets = {-1, 2}; }), "offsets: -1"));
  CHECK(mentions(texts_of([](config& c) { c.mixing = 1.5f; }), "mixing (alpha) = 1.5"));
  CHECK(mentions(texts_of([](config& c) { c.mixing = std::numeric_limits<float>::quiet_NaN(); }),
                 "mixing (alpha) = "));
  CHECK(mentions(texts_of([](config& c) { c.timeout_ms = 0; }), "timeout_ms = 0"));
  CHECK(mentions(texts_of([](config& c) { c.weight = -1; }), "weight = -1"));
}

TEST_CASE("an enormous H costs nothing") {
  run_ranks(1, [](local& comm) {
    scalars m(3);
    rivulet::streaming_diloco sync{m.parameters,
                                   comm,
                                   settings(std::numeric_limits<int>::max(), 1),
                                   m.partition,
                                   rivulet::codec::float32{},
                                   rivulet::outer::sgd{}};
    CHECK(sync.after_step().sent.empty());
  });
}

}  // namespace
