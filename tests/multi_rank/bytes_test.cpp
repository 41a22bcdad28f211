/// \file
/// Bytes are known in advance: what a communicator counts is what the formula says, what the
/// reports say, and what the ledger adds up.

#include <algorithm>
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/faulty.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"
#include "multi_rank/reference.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

static_assert(rivulet::header_bytes == 80);

/// Bytes of the codes of tiles of these sizes, written out anew.
template <class Bytes>
std::size_t sum_of(std::vector<std::size_t> const& sizes, Bytes const& bytes) {
  std::size_t sum = 0;
  for (std::size_t n : sizes) sum += bytes(n);
  return sum;
}
using sizes = std::vector<std::size_t>;
std::size_t encoded(rivulet::codec::float32, sizes const& tiles) {
  return sum_of(tiles, [](std::size_t n) { return 4 * n; });
}
std::size_t encoded(rivulet::codec::bf16, sizes const& tiles) {
  return sum_of(tiles, [](std::size_t n) { return 2 * n; });
}
std::size_t encoded(rivulet::codec::e3m0<64>, sizes const& tiles) {
  return sum_of(tiles, [](std::size_t n) { return (n + 63) / 64 * 34; });
}
std::size_t encoded(rivulet::codec::e3m0<32>, sizes const& tiles) {
  return sum_of(tiles, [](std::size_t n) { return (n + 31) / 32 * 18; });
}
std::size_t encoded(rivulet::codec::top_k<rivulet::codec::bf16> top, sizes const& tiles) {
  std::size_t const n = sum_of(tiles, [](std::size_t size) { return size; });
  return 6 * static_cast<std::size_t>(std::ceil(top.fraction * static_cast<double>(n)));
}

/// Tiles of tensors of these sizes.
sizes tiles_of(sizes const& tensors) {
  sizes result;
  for (std::size_t n : tensors) {
    for (; n > 0; n -= result.back()) result.push_back(std::min<std::size_t>(n, 4096));
  }
  return result;
}

/// The longest message about a shard of `tiles`.
template <class C>
std::size_t longest(C codec, sizes const& tiles, std::size_t world) {
  std::size_t result = 0;
  for (std::size_t r = 0; r < world; ++r) {
    auto const at = [&](std::size_t i) {
      return tiles.begin() + static_cast<std::ptrdiff_t>(tiles.size() * i / world);
    };
    result = std::max(result, 80 + encoded(codec, sizes(at(r), at(r + 1))));
  }
  return result;
}

using rivulet::reduce::method;

template <class C>
void check_bytes(int world, std::size_t n, C codec, method reduction) {
  CAPTURE(world);
  CAPTURE(n);
  CAPTURE(static_cast<int>(reduction));
  auto const parts = parts_of(codec);
  auto const ranks = static_cast<std::size_t>(world);
  sizes const tiles[] = {tiles_of({n, n + 1}), tiles_of({65})};
  std::uint64_t due[2];  // in a sync of each fragment
  int collectives[2];
  for (std::size_t p = 0; p < 2; ++p) {
    std::uint64_t const gathered = (ranks - 1) * (80 + encoded(parts.sent, tiles[p]));
    std::uint64_t const sharded =
        (ranks - 1) * (longest(parts.sent, tiles[p], ranks) + longest(parts.mean, tiles[p], ranks));
    bool const shards =
        reduction == method::all_to_all || (reduction == method::automatic && sharded < gathered);
    due[p] = shards ? sharded : gathered;
    collectives[p] = shards ? 2 : 1;
  }
  run_ranks(world, [&](local& plain) {
    faulty comm(plain);
    model m;
    m.add("a", rivulet::layer(0), rivulet::element_type::float32, n);
    m.add("b", rivulet::layer(0), rivulet::element_type::bfloat16, n + 1);
    m.add("frozen", rivulet::layer(0), rivulet::element_type::bfloat16, 50, false);
    m.add("c", rivulet::layer(1), rivulet::element_type::float16, 65);
    m.fill(1);
    rivulet::parameter_set parameters = m.parameters();
    parameters.add("c again", rivulet::layer(1), m.tensors.back().values);
    rivulet::sync_config config = settings(4, 3);
    config.reduction = reduction;
    rivulet::streaming_diloco sync{
        parameters, comm,
        config,     rivulet::partition::strided{.layers_per_fragment = 1},
        codec,      rivulet::outer::sgd{}};
    for (int p : {0, 1}) {
      CHECK(sync.message_bytes(p) == 80 + encoded(parts.sent, tiles[p]));
      CHECK(sync.sent_bytes(p) == due[p]);
      CHECK((sync.reduction_of(p) == method::all_to_all) == (collectives[p] == 2));
    }
    CHECK(sync.report().bytes_sent == comm.bytes_sent());

    std::uint64_t const at_start = comm.bytes_sent();
    rivulet::observe::byte_ledger ledger;
    std::uint64_t expected = 0;
    for (int step = 1; step <= 14; ++step) {
      m.inner_step(1, comm.rank(), step);
      rivulet::step_report const& report = sync.after_step();
      std::uint64_t due_now = 0;
      for (int p : report.sent) due_now += due[p];
      CHECK(report.bytes_sent == due_now);
      expected += due_now;
      ledger.add(report);
    }
    ledger.add(sync.finish());
    // H 4, offsets 0 and 2: sends after 4 6 8 10 12 14.
    CHECK(expected == 3 * (due[0] + due[1]));
    CHECK(comm.bytes_sent() - at_start == expected);
    CHECK(ledger.bytes_sent == expected);
    CHECK(ledger.peak_bytes_per_step == std::max(due[0], due[1]));
    CHECK(ledger.steps == 15);
    CHECK(ledger.syncs_sent == 6);
    CHECK(ledger.syncs_applied == 6);
    CHECK(ledger.syncs_skipped == 0);
    CHECK(comm.collectives() == 2 + 3 * (collectives[0] + collectives[1]));
  });
}

TEST_CASE("measured bytes are those of the formula, reports and ledger, for every small size") {
  for (method reduction : {method::all_gather, method::all_to_all}) {
    for (int world = 1; world <= 4; ++world) {
      for (std::size_t n = 0; n <= static_cast<std::size_t>(3 * world + 1); ++n) {
        check_bytes(world, n, rivulet::codec::float32{}, reduction);
        check_bytes(world, n, rivulet::codec::bf16{}, reduction);
        check_bytes(world, n, rivulet::codec::e3m0{}, reduction);
      }
    }
  }
}

TEST_CASE("measured bytes are those of the formula around whole blocks, tiles and shards") {
  for (method reduction : {method::automatic, method::all_gather, method::all_to_all}) {
    for (std::size_t n :
         {31u, 32u, 33u, 63u, 64u, 127u, 128u, 129u, 4095u, 4096u, 4097u, 10000u, 33000u}) {
      check_bytes(3, n, rivulet::codec::e3m0{}, reduction);
      check_bytes(2, n, rivulet::codec::e3m0<32>{}, reduction);
    }
  }
}

TEST_CASE("measured bytes are those of the formula for whole messages and error feedback") {
  rivulet::codec::top_k<rivulet::codec::bf16> const top{.fraction = 0.03};
  for (method reduction : {method::automatic, method::all_gather, method::all_to_all}) {
    for (std::size_t n : {0u, 100u, 4096u, 20000u}) {
      check_bytes(3, n, top, reduction);
      check_bytes(3, n, rivulet::codec::error_feedback{rivulet::codec::e3m0{}}, reduction);
    }
  }
}

TEST_CASE("measured bytes are those of the formula where means have a codec of their own") {
  rivulet::codec::top_k<rivulet::codec::bf16> const top{.fraction = 0.03};
  for (method reduction : {method::automatic, method::all_gather, method::all_to_all}) {
    for (std::size_t n : {0u, 100u, 4096u, 20000u}) {
      check_bytes(4, n, rivulet::codec::two_stage{rivulet::codec::e3m0{}, rivulet::codec::bf16{}},
                  reduction);
      check_bytes(3, n, rivulet::codec::two_stage{rivulet::codec::bf16{}, rivulet::codec::e3m0{}},
                  reduction);
      check_bytes(3, n, rivulet::codec::two_stage{top, rivulet::codec::e3m0{}}, reduction);
    }
  }
}

TEST_CASE("adopted parameters are counted as what the source sends") {
  run_ranks(3, [&](local& plain) {
    faulty comm(plain);
    model m = small_model();
    m.fill(static_cast<std::uint64_t>(comm.rank()));
    rivulet::parameter_set parameters = m.parameters();
    rivulet::sync_config config = settings(4, 1);
    config.initial = rivulet::initial_parameters::broadcast;
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   config,
                                   rivulet::partition::whole_model{},
                                   rivulet::codec::e3m0{},
                                   rivulet::outer::nesterov{}};
    CHECK(sync.report().bytes_sent == comm.bytes_sent());
    CHECK((comm.bytes_sent() > 2000) == (comm.rank() == 0));
  });
}

}  // namespace
