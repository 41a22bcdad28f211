/// \file
/// What only one rank sees: it applies nothing more, all others wake, and after rebuild() on a new
/// communicator all go on with identical bits.

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/faulty.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/quadratic.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm_error;
using rivulet::comm_status;
using rivulet::comm::local;
using rivulet::comm::local_group;

constexpr int world = 3;
constexpr int last_step = 90;
constexpr int start_collectives = 2;  // settings and versions

using rivulet::reduce::method;

/// Collectives of an operation.
int collectives_of(method reduction) { return reduction == method::all_to_all ? 2 : 1; }

using engine = rivulet::streaming_diloco<faulty, rivulet::codec::bf16, rivulet::outer::nesterov,
                                         rivulet::exec::host>;

/// A worker on the quadratic: two fragments of 5 tensors, that is tiles, H 4, so that one is sent
/// every 2 steps. A long overlap wants mixing, or what a worker has learned meanwhile is lost.
struct worker {
  explicit worker(faulty& comm, int overlap_steps = 1, int timeout_ms = 30'000, double weight = 1,
                  method reduction = method::all_gather)
      : rank(comm.rank()), x(problem.size, 0.0f) {
    for (std::size_t i = 0; i < tensors; ++i) {
      parameters.add(std::to_string(i), rivulet::layer(i < tensors / 2 ? 0 : 1),
                     std::span(x).subspan(20 * i, 20));
    }
    rivulet::sync_config config = settings(4, overlap_steps, overlap_steps > 1 ? 0.5f : 0.0f);
    config.reduction = reduction;
    config.timeout_ms = timeout_ms;
    config.weight = weight;
    sync.emplace(parameters, comm, config, rivulet::partition::sequential{.layers_per_fragment = 1},
                 rivulet::codec::bf16{},
                 rivulet::outer::nesterov{.learning_rate = 0.5f, .momentum = 0.5f});
  }
  worker(worker const&) = delete;

  void step() {
    problem.step(rank, x);
    sync->after_step();
  }
  void train_to(std::int64_t end) {
    while (sync->step() < end) step();
  }
  [[nodiscard]] std::vector<float> outer() const {
    std::vector<float> all;
    for (std::size_t i = 0; i < tensors; ++i) {
      std::vector<float> const values = outer_of(*sync, std::to_string(i), 20);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  [[nodiscard]] std::uint64_t versions() const { return sync->version(0) + sync->version(1); }

  static constexpr std::size_t tensors = 10;
  int rank;
  quadratic problem{world};
  std::vector<float> x;
  rivulet::parameter_set parameters;
  std::optional<engine> sync;
};

/// What a rank saw of a failure.
struct outcome {
  std::optional<comm_error> error;
  std::uint64_t versions = 0;  // syncs applied when it failed
  double final_loss = 0;
  std::uint64_t fingerprint = 0;
  std::int64_t final_step = 0;
};

/// Loss at the end of a run in which nothing happens.
double undisturbed_loss(int overlap_steps, method reduction) {
  double loss = 0;
  run_ranks(world, [&](local& plain) {
    faulty comm(plain);
    worker w(comm, overlap_steps, 30'000, 1, reduction);
    if (plain.rank() == 0) CHECK(w.problem.loss(w.outer()) > 8);
    w.train_to(last_step);
    w.sync->finish();
    if (plain.rank() == 0) loss = w.problem.loss(w.outer());
  });
  CHECK(loss < 0.1);
  return loss;
}

/// Trains with the hooks of make_hooks(rank) until all have failed, then rebuilds and ends the run.
/// Checks what holds for every failure.
template <class MakeHooks>
std::vector<outcome> disturbed(MakeHooks const& make_hooks, int overlap_steps = 1,
                               std::vector<int> timeouts_ms = {30'000, 30'000, 30'000},
                               method reduction = method::all_gather) {
  local_group const first(world);
  local_group const second(world);
  meeting_point all_failed(world);
  std::vector<outcome> outcomes(world);
  run_threads(
      world,
      [&](int rank) {
        outcome& own = outcomes[static_cast<std::size_t>(rank)];
        faulty comm(first.communicator(rank), make_hooks(rank));
        worker w(comm, overlap_steps, timeouts_ms[static_cast<std::size_t>(rank)], 1, reduction);
        std::uint64_t fingerprint_before = 0;
        std::uint64_t versions_before = 0;
        own.error = thrown_by<comm_error>([&] {
          while (w.sync->step() < last_step) {
            fingerprint_before = w.sync->outer_fingerprint();
            versions_before = w.versions();
            w.step();
          }
        });
        // One fragment is due in a step, so nothing of this step was applied.
        own.versions = w.versions();
        CHECK(w.sync->outer_fingerprint() == fingerprint_before);
        CHECK(own.versions == versions_before);
        auto const refuses = [](auto const& f) {
          return mentions(thrown_by<comm_error>(f).what(), "rebuild()");
        };
        CHECK(refuses([&] { w.step(); }));
        CHECK(refuses([&] { w.sync->finish(); }));
        CHECK(refuses([&] { w.sync->save([](std::span<std::byte const>) {}); }));
        CHECK(w.sync->outer_fingerprint() == fingerprint_before);

        all_failed.arrive();
        faulty next(second.communicator(rank));
        w.sync->rebuild(next);
        w.train_to(last_step);
        w.sync->finish();
        own.final_loss = w.problem.loss(w.outer());
        own.fingerprint = w.sync->outer_fingerprint();
        own.final_step = w.sync->step();
        w.sync.reset();
      },
      [&] {
        first.communicator(0).abort();
        second.communicator(0).abort();
      });
  double const undisturbed = undisturbed_loss(overlap_steps, reduction);
  for (outcome const& o : outcomes) {
    CHECK(o.fingerprint == outcomes[0].fingerprint);
    CHECK(o.final_step == last_step);
    CHECK(o.final_loss < 2 * undisturbed + 0.01);
  }
  return outcomes;
}

/// A message with some of its header changed and sealed again.
template <class Change>
auto forged(Change change) {
  return [=](std::span<std::byte> message) {
    rivulet::wire_header header = rivulet::wire_header::read(message.data());
    change(header);
    header.write(message.data());
  };
}

struct damage {
  char const* expected;  // in the text of the rank that sees it
  std::function<void(std::span<std::byte>)> apply;
};

std::function<void(std::span<std::byte>)> flip(std::size_t byte, int bit) {
  return [=](std::span<std::byte> message) { message[byte] ^= std::byte(1u << bit); };
}

std::vector<damage> damages() {
  using header = rivulet::wire_header;
  std::vector<damage> all;
  for (std::size_t byte = 0; byte < rivulet::header_bytes + 200; byte += 7) {
    char const* const part = byte < 4                       ? "wrong magic"
                             : byte < 6                     ? "wrong format"
                             : byte < rivulet::header_bytes ? "wrong header checksum"
                                                            : "wrong payload checksum";
    all.push_back({part, flip(byte, static_cast<int>(byte % 8))});
  }
  auto const cut = [](std::size_t kept) {
    return [=](std::span<std::byte> message) {
      auto const rest = message.subspan(kept);
      std::fill(rest.begin(), rest.end(), std::byte{0});
    };
  };
  all.push_back({"wrong magic", cut(0)});
  all.push_back({"wrong header checksum", cut(60)});
  all.push_back({"wrong payload checksum", cut(rivulet::header_bytes)});
  all.push_back({"wrong payload checksum", cut(rivulet::header_bytes + 199)});
  all.push_back({"wrong payload checksum", [](std::span<std::byte> message) {
                   std::swap(message[rivulet::header_bytes + 8],
                             message[rivulet::header_bytes + 16]);
                   message[rivulet::header_bytes + 9] ^= std::byte{1};
                 }});
  all.push_back({"wrong length", forged([](header& h) { h.payload_bytes += 4; })});
  all.push_back({"wrong length", forged([](header& h) { h.payload_bytes = ~std::uint64_t{0}; })});
  all.push_back({"wrong codec", forged([](header& h) { h.codec = rivulet::codec::float32::id; })});
  all.push_back({"wrong fragment", forged([](header& h) { h.fragment ^= 1; })});
  all.push_back({"wrong fragment", forged([](header& h) { h.fragment = 1u << 31; })});
  all.push_back({"wrong step", forged([](header& h) { h.step -= 4; })});
  all.push_back({"wrong version", forged([](header& h) { ++h.version; })});
  all.push_back({"wrong weight", forged([](header& h) { h.weight = -1; })});
  all.push_back({"wrong weight",
                 forged([](header& h) { h.weight = std::numeric_limits<double>::quiet_NaN(); })});
  all.push_back({"wrong outer learning rate", forged([](header& h) { h.learning_rate = 7; })});
  all.push_back({"the replicas have diverged", forged([](header& h) { ++h.outer_state; })});
  all.push_back({"wrong payload checksum", forged([](header& h) { ++h.payload_sum; })});
  return all;
}

/// The rank that sees a damaged message throws what it found, the others wake.
void check_damage(std::vector<outcome> const& outcomes, int sync, char const* expected) {
  comm_error const& seen = *outcomes[1].error;
  CAPTURE(std::string(seen.what()));
  CHECK(mentions(seen.what(), expected));
  CHECK(mentions(seen.what(), "rank 2"));
  CHECK(seen.status() == comm_status::failed);
  CHECK(seen.peer() == 2);
  // Sync number s is sent after step 4 + 2 s, fragment 0 first.
  CHECK(seen.fragment() == sync % 2);
  CHECK(seen.step() == 4 + 2 * sync);
  CHECK(outcomes[1].versions == static_cast<std::uint64_t>(sync));
  for (std::size_t other : {0u, 2u}) {
    CHECK(outcomes[other].error->status() == comm_status::aborted);
    CHECK(outcomes[other].versions >= outcomes[1].versions);
  }
}

TEST_CASE("every kind of damaged bytes is refused with its name, and repaired by rebuild") {
  for (damage const& d : damages()) {
    CAPTURE(d.expected);
    constexpr int sync = 3;
    check_damage(disturbed([&](int rank) {
                   return rank == 1 ? damaged_at(start_collectives + sync, 2, world, d.apply)
                                    : faulty::hooks{};
                 }),
                 sync, d.expected);
  }
}

TEST_CASE("damaged bytes are refused at every operation") {
  for (int sync = 0; sync <= 40; sync += sync < 8 ? 1 : 8) {
    check_damage(disturbed([&](int rank) {
                   return rank == 1 ? damaged_at(start_collectives + sync, 2, world, flip(85, 3))
                                    : faulty::hooks{};
                 }),
                 sync, "wrong payload checksum");
  }
}

TEST_CASE("messages of an earlier step and of another fragment are refused") {
  for (int back : {1, 2}) {  // the last message is of the other fragment
    constexpr int sync = 5;
    auto const earlier = std::make_shared<std::vector<std::byte>>();
    check_damage(disturbed([&](int rank) -> faulty::hooks {
                   if (rank != 1) return {};
                   return {.before = {}, .after = [=](int number, std::span<std::byte> arrived) {
                             if (number < start_collectives) return;
                             auto const message =
                                 arrived.last(arrived.size() / world);  // of rank 2
                             if (number == start_collectives + sync - back) {
                               earlier->assign(message.begin(), message.end());
                             }
                             if (number == start_collectives + sync) {
                               std::copy(earlier->begin(), earlier->end(), message.begin());
                             }
                           }};
                 }),
                 sync, back == 1 ? "wrong fragment" : "wrong step");
  }
}

TEST_CASE("a link that is cut at any operation ends in an error on all ranks and is repaired") {
  for (int sync = 0; sync <= 40; sync += sync < 6 ? 1 : 8) {
    CAPTURE(sync);
    auto const outcomes = disturbed(
        [&](int rank) { return rank == 0 ? cut_at(start_collectives + sync) : faulty::hooks{}; });
    CHECK(outcomes[0].error->status() == comm_status::failed);
    CHECK(outcomes[0].error->peer() == -1);
    CHECK(outcomes[0].error->fragment() == sync % 2);
    CHECK(outcomes[0].error->step() == 4 + 2 * sync);
    for (outcome const& o : outcomes) CHECK(o.versions == static_cast<std::uint64_t>(sync));
    CHECK(outcomes[1].error->status() == comm_status::aborted);
    CHECK(outcomes[2].error->status() == comm_status::aborted);
  }
}

TEST_CASE("failures with several operations in flight are repaired") {
  auto const check = [](int overlap, method reduction, int stage) {
    CAPTURE(overlap);
    CAPTURE(stage);
    for (int sync : {0, 1, 4, 7}) {
      int const number = start_collectives + sync * collectives_of(reduction) + stage;
      auto const outcomes = disturbed(
          [&](int rank) {
            return rank == 2 ? damaged_at(number, 0, world, flip(81, 0)) : faulty::hooks{};
          },
          overlap, {30'000, 30'000, 30'000}, reduction);
      CHECK(mentions(outcomes[2].error->what(), "rank 0"));
      CHECK(outcomes[2].error->step() == 4 + 2 * sync);
      CHECK(outcomes[2].versions == static_cast<std::uint64_t>(sync));
    }
  };
  for (int overlap : {0, 3, 4}) {
    check(overlap, method::all_gather, 0);
    check(overlap, method::all_to_all, 0);
    check(overlap, method::all_to_all, 1);
  }
}

/// Rank 2 sleeps before a collective of sync 4, and rank 0 waits for it no longer than 300 ms.
void check_late(method reduction, int stage) {
  CAPTURE(stage);
  auto const start = std::chrono::steady_clock::now();
  int const late = start_collectives + 4 * collectives_of(reduction) + stage;
  auto const outcomes = disturbed(
      [=](int rank) -> faulty::hooks {
        if (rank != 2) return {};
        return {.before = [=](int number) {
          if (number == late) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          return comm_status::done;
        }};
      },
      1, {300, 30'000, 30'000}, reduction);
  CHECK(outcomes[0].error->status() == comm_status::timeout);
  CHECK(outcomes[0].error->step() == 12);
  CHECK(mentions(outcomes[0].error->what(), "'timeout'"));
  CHECK(outcomes[1].error->status() == comm_status::aborted);
  CHECK(outcomes[2].error->status() == comm_status::aborted);
  for (outcome const& o : outcomes) CHECK(o.versions == 4);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("a rank that is late beyond the timeout is an error, and repaired when it is back") {
  check_late(method::all_gather, 0);
  check_late(method::all_to_all, 0);
  check_late(method::all_to_all, 1);
}

TEST_CASE("damaged shards and damaged means are refused with their names, and repaired") {
  using header = rivulet::wire_header;
  std::vector<damage> all = {
      {"wrong magic", flip(1, 1)},
      {"wrong format", flip(5, 2)},
      {"wrong header checksum", flip(60, 3)},
      {"wrong payload checksum", flip(80, 0)},
      {"wrong payload checksum", flip(155, 7)},
      {"wrong length", forged([](header& h) { h.payload_bytes -= 2; })},
      {"wrong codec", forged([](header& h) { h.codec = rivulet::codec::float32::id; })},
      {"wrong fragment", forged([](header& h) { h.fragment ^= 1; })},
      {"wrong part", forged([](header& h) { h.part ^= 0x80000000u; })},
      {"wrong part", forged([](header& h) { ++h.part; })},
      {"wrong part", forged([](header& h) { h.part = 0; })},
      {"wrong step", forged([](header& h) { h.step -= 4; })},
      {"wrong version", forged([](header& h) { ++h.version; })},
      {"wrong weight", forged([](header& h) { h.weight = -1; })},
      {"wrong outer learning rate", forged([](header& h) { h.learning_rate = 7; })},
      {"the replicas have diverged", forged([](header& h) { ++h.outer_state; })},
      {"wrong payload checksum", forged([](header& h) { ++h.payload_sum; })}};
  for (damage const& d : all) {
    for (int stage : {0, 1}) {
      CAPTURE(d.expected);
      CAPTURE(stage);
      constexpr int sync = 3;
      auto const outcomes = disturbed(
          [&](int rank) {
            return rank == 1 ? damaged_at(start_collectives + 2 * sync + stage, 2, world, d.apply)
                             : faulty::hooks{};
          },
          1, {30'000, 30'000, 30'000}, method::all_to_all);
      check_damage(outcomes, sync, d.expected);
      // Without the mean of rank 1 nobody applies anything.
      if (stage == 0) CHECK(outcomes[0].versions == sync);
      if (stage == 0) CHECK(outcomes[2].versions == sync);
    }
  }
}

TEST_CASE("a link that is cut in either collective of an operation is an error on all ranks") {
  for (int stage : {0, 1}) {
    for (int sync : {0, 1, 6}) {
      CAPTURE(stage);
      CAPTURE(sync);
      auto const outcomes = disturbed(
          [&](int rank) {
            return rank == 0 ? cut_at(start_collectives + 2 * sync + stage) : faulty::hooks{};
          },
          1, {30'000, 30'000, 30'000}, method::all_to_all);
      CHECK(outcomes[0].error->status() == comm_status::failed);
      CHECK(outcomes[0].error->step() == 4 + 2 * sync);
      for (outcome const& o : outcomes) CHECK(o.versions == static_cast<std::uint64_t>(sync));
      CHECK(outcomes[1].error->status() == comm_status::aborted);
      CHECK(outcomes[2].error->status() == comm_status::aborted);
    }
  }
}

TEST_CASE("abort from another thread ends all ranks") {
  local_group const group(world);
  std::atomic<int> far{0};
  std::thread other([&] {
    while (far < world) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    group.communicator(1).abort();
  });
  std::vector<comm_status> statuses(world);
  run_threads(
      world,
      [&](int rank) {
        faulty comm(group.communicator(rank));
        worker w(comm);
        statuses[static_cast<std::size_t>(rank)] = thrown_by<comm_error>([&] {
                                                     for (;;) {
                                                       w.step();
                                                       if (w.sync->step() == 20) ++far;
                                                     }
                                                   }).status();
      },
      [&] { group.communicator(0).abort(); });
  other.join();
  CHECK(statuses == std::vector(world, comm_status::aborted));
}

TEST_CASE("a rank that never comes to construct is a timeout, not a hang") {
  run_ranks(world, [](local& plain) {
    if (plain.rank() == 1) return;
    faulty comm(plain);
    comm_error const error = thrown_by<comm_error>([&] { worker w(comm, 1, 200); });
    CHECK(mentions(error.what(), "comparing the settings"));
    CHECK((error.status() == comm_status::timeout || error.status() == comm_status::aborted));
  });
}

TEST_CASE("when a rank dies the others go on without it") {
  auto const check = [](int overlap, method reduction) {
    CAPTURE(overlap);
    CAPTURE(static_cast<int>(reduction));
    local_group const first(world);
    local_group const second(world - 1);
    meeting_point all_failed(world - 1);
    std::vector<std::uint64_t> fingerprints(world - 1);
    std::vector<double> losses(world - 1);
    run_threads(
        world,
        [&](int rank) {
          faulty comm(first.communicator(rank));
          worker w(comm, overlap, rank == 0 ? 500 : 30'000, 1, reduction);
          if (rank == 2) {
            w.train_to(29);
            return;  // its engine is destroyed in the middle of a run
          }
          comm_error const error = thrown_by<comm_error>([&] { w.train_to(last_step); });
          CHECK(error.step() >= 24);
          CHECK(error.step() <= 30);
          all_failed.arrive();
          faulty next(second.communicator(rank));
          w.sync->rebuild(next);
          w.problem.world = 2;
          w.train_to(2 * last_step);
          w.sync->finish();
          fingerprints[static_cast<std::size_t>(rank)] = w.sync->outer_fingerprint();
          losses[static_cast<std::size_t>(rank)] = w.problem.loss(w.outer());
          w.sync.reset();
        },
        [&] {
          first.communicator(0).abort();
          second.communicator(0).abort();
        });
    CHECK(fingerprints[0] == fingerprints[1]);
    CHECK(losses[0] < 0.1);
  };
  for (int overlap : {0, 1, 4}) check(overlap, method::all_gather);
  for (int overlap : {0, 4}) check(overlap, method::all_to_all);
}

TEST_CASE("a joiner takes over outer parameters, versions and step, with weight 0 at first") {
  auto const check = [](int overlap, method reduction) {
    for (int joiner : {0, 2}) {  // as the lowest rank and as the highest
      CAPTURE(overlap);
      CAPTURE(static_cast<int>(reduction));
      CAPTURE(joiner);
      local_group const first(world - 1);
      local_group const second(world);
      std::vector<std::uint64_t> after_rebuild(world);
      std::vector<std::uint64_t> at_end(world);
      std::vector<double> losses(world);
      run_threads(
          world,
          [&](int rank) {
            auto const r = static_cast<std::size_t>(rank);
            bool const joins = rank == joiner;
            std::optional<worker> w;
            std::optional<faulty> comm;
            faulty next(second.communicator(rank));
            if (joins) {
              w.emplace(next, overlap, 30'000, 0.0, reduction);
              CHECK(w->sync->report().written.size() == worker::tensors);
              CHECK(w->x == w->outer());  // not mixed: it has taken no step
            } else {
              comm.emplace(first.communicator(joiner == 0 ? rank - 1 : rank));
              w.emplace(*comm, overlap, 30'000, 1, reduction);
              w->rank = rank;
              w->train_to(22);
              w->sync->finish();
              w->sync->rebuild(next);
              CHECK(w->sync->report().written.empty());
            }
            CHECK(w->sync->step() == 22);
            CHECK(w->sync->in_flight() == 0);
            CHECK(w->versions() == 10);
            after_rebuild[r] = w->sync->outer_fingerprint();
            w->train_to(30);
            w->sync->set_weight(1);
            w->train_to(2 * last_step);
            w->sync->finish();
            at_end[r] = w->sync->outer_fingerprint();
            losses[r] = w->problem.loss(w->outer());
            w->sync.reset();
          },
          [&] {
            first.communicator(0).abort();
            second.communicator(0).abort();
          });
      CHECK(after_rebuild == std::vector(world, after_rebuild[0]));
      CHECK(at_end == std::vector(world, at_end[0]));
      CHECK(losses[0] < 0.1);
    }
  };
  for (int overlap : {0, 1, 4}) check(overlap, method::all_gather);
  check(1, method::all_to_all);
}

TEST_CASE("rebuild adopts the highest version of each fragment") {
  // With different tau, ranks have applied different syncs when they are torn apart.
  local_group const first(world);
  local_group const second(world);
  meeting_point all_there(world);
  std::vector<std::vector<std::uint64_t>> before(world);
  std::vector<std::vector<std::uint64_t>> after(world);
  std::vector<std::uint64_t> outer_before(world);
  std::vector<std::uint64_t> outer_after(world);
  run_threads(
      world,
      [&](int rank) {
        auto const r = static_cast<std::size_t>(rank);
        faulty comm(first.communicator(rank));
        worker w(comm, rank == 1 ? 0 : 4);
        w.train_to(13);
        before[r] = {w.sync->version(0), w.sync->version(1)};
        outer_before[r] = w.sync->outer_fingerprint();
        std::vector<float> const local_before = w.x;
        all_there.arrive();
        faulty next(second.communicator(rank));
        w.sync->rebuild(next);
        after[r] = {w.sync->version(0), w.sync->version(1)};
        outer_after[r] = w.sync->outer_fingerprint();
        CHECK(w.sync->report().written.size() == (rank == 1 ? 0 : worker::tensors));
        std::vector<float> mixed = w.outer();  // as at a receive, alpha is 0.5
        for (std::size_t i = 0; i < mixed.size(); ++i) {
          mixed[i] = 0.5f * local_before[i] + 0.5f * mixed[i];
        }
        CHECK(w.x == (rank == 1 ? local_before : mixed));
        w.train_to(20);
        w.sync->finish();
        w.sync.reset();
      },
      [&] {
        first.communicator(0).abort();
        second.communicator(0).abort();
      });
  CHECK(before[0] == std::vector<std::uint64_t>{2, 1});
  CHECK(before[1] == std::vector<std::uint64_t>{3, 2});
  CHECK(after == std::vector(world, before[1]));
  CHECK(outer_after == std::vector(world, outer_before[1]));
}

TEST_CASE("a worker that ends by an exception wakes the others at once") {
  std::atomic<bool> woken = false;
  local_group const group(2);
  run_threads(
      2,
      [&](int rank) {
        faulty comm(group.communicator(rank));
        auto const end_early = [&] {
          worker w(comm);
          w.train_to(6);
          w.sync->finish();  // nothing is on the wire
          throw std::runtime_error("the data of this worker ended");
        };
        if (rank == 1) {
          CHECK_THROWS_AS(end_early(), std::runtime_error);
          return;
        }
        worker w(comm);
        w.train_to(6);
        w.sync->finish();
        woken = thrown_by<comm_error>([&] { w.train_to(12); }).status() == comm_status::aborted;
      },
      [&] { group.communicator(0).abort(); });
  CHECK(woken);
}

TEST_CASE("an adoption that is interrupted changes nothing") {
  local_group const pair(2);
  run_threads(
      2,
      [&](int rank) {
        local_group const alone(1);
        faulty own(alone.communicator(0));
        worker w(own);
        w.train_to(rank == 0 ? 12 : 6);
        w.sync->finish();
        std::vector<float> const locals = w.x;
        std::uint64_t const before = w.sync->outer_fingerprint();
        faulty broken(pair.communicator(rank), cut_at(rank == 1 ? start_collectives : 99));
        CHECK_THROWS_AS(w.sync->rebuild(broken), comm_error);
        CHECK(w.sync->outer_fingerprint() == before);
        CHECK(w.x == locals);
      },
      [&] { pair.communicator(0).abort(); });
}

TEST_CASE("rebuild on the communicator in use is refused") {
  run_ranks(1, [](local& comm) {
    faulty own(comm);
    worker w(own);
    std::string const text =
        thrown_by<rivulet::precondition_error>([&] { w.sync->rebuild(own); }).what();
    CHECK(mentions(text, "still uses this communicator"));
  });
}

}  // namespace
