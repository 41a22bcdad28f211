/// \file
/// All workers hold the same outer bits at the same versions, whatever the seed of the day, and a
/// rank that has diverged is found.

#include <map>
#include <mutex>
#include <vector>

#include <doctest/doctest.h>

#if defined(_OPENMP)
#include <rivulet/exec/openmp.hpp>
#endif

#include "multi_rank/faulty.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

/// Outer fingerprints by versions of all fragments.
class fingerprints {
 public:
  void note(std::vector<std::uint64_t> const& versions, std::uint64_t fingerprint) {
    std::lock_guard lock(mutex_);
    auto const [place, added] = by_version_.try_emplace(versions, fingerprint);
    if (!added) ++compared_;
    if (place->second != fingerprint) ++different_;
  }
  [[nodiscard]] std::size_t compared() const { return compared_; }
  [[nodiscard]] std::size_t different() const { return different_; }
  [[nodiscard]] std::map<std::vector<std::uint64_t>, std::uint64_t> const& all() const {
    return by_version_;
  }

 private:
  std::mutex mutex_;
  std::map<std::vector<std::uint64_t>, std::uint64_t> by_version_;
  std::size_t compared_ = 0;
  std::size_t different_ = 0;
};

template <class Engine>
void note(fingerprints& to, Engine const& sync) {
  std::vector<std::uint64_t> versions;
  for (int p = 0; p < sync.schedule().fragments(); ++p) versions.push_back(sync.version(p));
  to.note(versions, sync.outer_fingerprint());
}

using rivulet::reduce::method;

template <class E>
void run(int world, std::uint64_t seed, fingerprints& found, E executor, method reduction) {
  run_ranks(world, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    rivulet::sync_config config =
        settings(10, 3 * comm.rank(), 0.3f * static_cast<float>(comm.rank()));
    config.weight = 1.0 / (1 + comm.rank());
    config.reduction = reduction;
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   config,
                                   rivulet::partition::sequential{.layers_per_fragment = 1},
                                   rivulet::codec::e3m0{},
                                   rivulet::outer::nesterov{},
                                   executor};
    for (int step = 1; step <= 45; ++step) {
      m.inner_step(seed, comm.rank(), step);
      sync.after_step();
      note(found, sync);
    }
    sync.finish();
    note(found, sync);
  });
}

TEST_CASE("outer bits are the same on all ranks at the same versions, and in every run") {
  auto const check = [](int world, method reduction) {
    CAPTURE(world);
    fingerprints first;
    fingerprints second;
    fingerprints other;
    run(world, 1, first, rivulet::exec::host{}, reduction);
    run(world, 1, second, rivulet::exec::host{}, reduction);
    run(world, 2, other, rivulet::exec::host{}, reduction);
    CHECK(first.different() == 0);
    CHECK(first.compared() >= 25 * static_cast<std::size_t>(world));
    CHECK(first.all().size() >= 15);
    // Ranks pass through the same versions in both runs.
    CHECK(first.all() == second.all());
    CHECK(first.all().rbegin()->second != other.all().rbegin()->second);
  };
  for (int world = 1; world <= 4; ++world) {
    check(world, method::all_gather);
    check(world, method::all_to_all);
  }
}

/// Tiles in another order, so that a result that depends on it would differ.
struct backwards {
  template <class F>
  void for_each_tile(std::size_t tiles, F const& tile) const {
    for (std::size_t i = tiles; i > 0; --i) tile(i - 1);
  }
};

/// Fingerprints of ranks whose executors are those given.
template <class C, class... E>
std::vector<std::uint64_t> with_executors(method reduction, C codec, E... executors) {
  constexpr int world = sizeof...(E);
  std::vector<std::uint64_t> result(world);
  run_ranks(world, [&](local& comm) {
    auto const train = [&](auto executor) {
      model m = small_model();
      m.add("long", rivulet::layer(2), rivulet::element_type::float32, 70'001);
      m.fill(1);
      rivulet::parameter_set parameters = m.parameters();
      rivulet::sync_config config = settings(2, 1);
      config.reduction = reduction;
      rivulet::streaming_diloco sync{parameters, comm,
                                     config,     rivulet::partition::balanced{.fragments = 2},
                                     codec,      rivulet::outer::nesterov{},
                                     executor};
      for (int step = 1; step <= 7; ++step) {
        m.inner_step(1, comm.rank(), step);
        sync.after_step();
      }
      sync.finish();
      result[static_cast<std::size_t>(comm.rank())] = sync.outer_fingerprint();
    };
    int rank = 0;
    ((rank++ == comm.rank() ? train(executors) : void()), ...);
  });
  return result;
}

template <class C>
void check_executors(method reduction, C codec) {
  using rivulet::exec::host;
  auto const expected = with_executors(reduction, codec, host{}, host{});
  CHECK(expected[0] == expected[1]);
  CHECK(with_executors(reduction, codec, backwards{}, host{}) == expected);
#if defined(_OPENMP)
  CHECK(with_executors(reduction, codec, rivulet::exec::openmp{3}, host{}) == expected);
  CHECK(with_executors(reduction, codec, rivulet::exec::openmp{}, rivulet::exec::openmp{2}) ==
        expected);
#endif
}

TEST_CASE("executors give the same bits, and workers may mix them") {
  using namespace rivulet::codec;
  check_executors(method::all_gather, e3m0{});
  check_executors(method::all_to_all, e3m0{});
  check_executors(method::all_gather, error_feedback{e3m0{}});
  check_executors(method::all_to_all, error_feedback{e3m0{}});
  check_executors(method::all_gather, error_feedback{top_k<bf16>{}});
}

/// A state after 12 steps of training with `seed`, the same for both ranks.
std::vector<std::byte> state_of(std::uint64_t seed, method reduction) {
  std::vector<std::byte> state;
  run_ranks(1, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    rivulet::sync_config config = settings(6, 0);
    config.reduction = reduction;
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   config,
                                   rivulet::partition::whole_model{},
                                   rivulet::codec::float32{},
                                   rivulet::outer::sgd{}};
    for (int step = 1; step <= 12; ++step) {
      m.inner_step(seed, 0, step);
      sync.after_step();
    }
    sync.save([&](std::span<std::byte const> bytes) {
      state.insert(state.end(), bytes.begin(), bytes.end());
    });
  });
  return state;
}

void check_diverged(method reduction) {
  std::vector<std::byte> const common = state_of(1, reduction);
  std::vector<std::byte> const diverged = state_of(2, reduction);
  std::vector<std::string> texts(3);
  std::vector<int> peers(3);
  run_ranks(3, [&](local& comm) {
    model m = small_model();
    rivulet::parameter_set parameters = m.parameters();
    rivulet::sync_config config = settings(6, 0);
    config.reduction = reduction;
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   config,
                                   rivulet::partition::whole_model{},
                                   rivulet::codec::float32{},
                                   rivulet::outer::sgd{}};
    sync.load(comm.rank() == 1 ? diverged : common);
    std::uint64_t const before = sync.outer_fingerprint();
    rivulet::comm_error const error = thrown_by<rivulet::comm_error>([&] {
      for (int step = 13; step <= 18; ++step) {
        m.inner_step(3, comm.rank(), step);
        sync.after_step();
      }
    });
    CHECK(error.fragment() == 0);
    CHECK(error.step() == 18);
    CHECK(sync.outer_fingerprint() == before);
    texts[static_cast<std::size_t>(comm.rank())] = error.what();
    peers[static_cast<std::size_t>(comm.rank())] = error.peer();
  });
  for (std::string const& text : texts) CHECK(mentions(text, "the replicas have diverged"));
  CHECK(peers == std::vector{1, 0, 1});
}

TEST_CASE("a rank whose outer parameters have diverged is named at the next sync") {
  check_diverged(method::all_gather);
  check_diverged(method::all_to_all);
}

}  // namespace
