/// \file
/// Bytes are known in advance: what a communicator counts is what the formula says, what the
/// reports say, and what the ledger adds up.

#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/faulty.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

static_assert(rivulet::header_bytes == 80);

/// Bytes of n encoded values, written out anew.
std::size_t encoded(rivulet::codec::float32, std::size_t n) { return 4 * n; }
std::size_t encoded(rivulet::codec::bf16, std::size_t n) { return 2 * n; }
std::size_t encoded(rivulet::codec::e3m0<64>, std::size_t n) { return (n + 63) / 64 * 34; }
std::size_t encoded(rivulet::codec::e3m0<32>, std::size_t n) { return (n + 31) / 32 * 18; }

template <class C>
void check_bytes(int world, std::size_t n, C codec) {
  CAPTURE(world);
  CAPTURE(n);
  CAPTURE(C::name);
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
    rivulet::streaming_diloco sync{
        parameters,     comm,
        settings(4, 3), rivulet::partition::strided{.layers_per_fragment = 1},
        codec,          rivulet::outer::sgd{}};
    std::size_t const messages[] = {80 + encoded(codec, n) + encoded(codec, n + 1),
                                    80 + encoded(codec, 65)};
    CHECK(sync.message_bytes(0) == messages[0]);
    CHECK(sync.message_bytes(1) == messages[1]);
    CHECK(sync.report().bytes_sent == comm.bytes_sent());

    std::uint64_t const at_start = comm.bytes_sent();
    auto const peers = static_cast<std::uint64_t>(world - 1);
    rivulet::observe::byte_ledger ledger;
    std::uint64_t expected = 0;
    for (int step = 1; step <= 14; ++step) {
      m.inner_step(1, comm.rank(), step);
      rivulet::step_report const& report = sync.after_step();
      std::uint64_t due = 0;
      for (int p : report.sent) due += peers * messages[p];
      CHECK(report.bytes_sent == due);
      expected += due;
      ledger.add(report);
    }
    ledger.add(sync.finish());
    // H 4, offsets 0 and 2: sends after 4 6 8 10 12 14.
    CHECK(expected == 3 * peers * (messages[0] + messages[1]));
    CHECK(comm.bytes_sent() - at_start == expected);
    CHECK(ledger.bytes_sent == expected);
    CHECK(ledger.peak_bytes_per_step == peers * std::max(messages[0], messages[1]));
    CHECK(ledger.steps == 15);
    CHECK(ledger.syncs_sent == 6);
    CHECK(ledger.syncs_applied == 6);
    CHECK(ledger.syncs_skipped == 0);
    CHECK(comm.collectives() == 2 + 6);
  });
}

TEST_CASE("measured bytes are those of the formula, reports and ledger, for every small size") {
  for (int world = 1; world <= 4; ++world) {
    for (std::size_t n = 0; n <= static_cast<std::size_t>(3 * world + 1); ++n) {
      check_bytes(world, n, rivulet::codec::float32{});
      check_bytes(world, n, rivulet::codec::bf16{});
      check_bytes(world, n, rivulet::codec::e3m0{});
    }
  }
}

TEST_CASE("measured bytes are those of the formula around whole blocks and cuts") {
  for (std::size_t n : {31u, 32u, 33u, 63u, 64u, 127u, 128u, 129u, 4095u, 4096u, 4097u, 10000u}) {
    check_bytes(3, n, rivulet::codec::e3m0{});
    check_bytes(2, n, rivulet::codec::e3m0<32>{});
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
