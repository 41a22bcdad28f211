/// \file
/// The baseline: the mean of gradients.

#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/faulty.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

double weight_of(int rank) { return rank == 1 ? 0.0 : 1.0 + rank; }

using rivulet::reduce::method;

/// Checks the mean that `codec` gives, value by value, to `tolerance`.
template <class C>
void check_mean(int world, method reduction, C codec, double tolerance) {
  CAPTURE(world);
  CAPTURE(static_cast<int>(reduction));
  CAPTURE(tolerance);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(world));
  run_ranks(world, [&](local& plain) {
    faulty comm(plain);
    model m = small_model();
    rivulet::parameter_set gradients = m.parameters();
    rivulet::data_parallel mean{gradients, comm, codec, rivulet::exec::host{}, 30'000, reduction};
    for (int step = 1; step <= 3; ++step) {
      for (std::size_t t = 0; t < m.tensors.size(); ++t) {
        for (std::size_t i = 0; i < m.tensors[t].values.size(); ++i) {
          m.tensors[t].values.set(i, noise(static_cast<std::uint64_t>(step),
                                           static_cast<std::uint64_t>(comm.rank()), t, i));
        }
      }
      model const own = m;
      std::uint64_t const sent_before = comm.bytes_sent();
      rivulet::step_report const& report = mean.average_gradients(weight_of(comm.rank()));
      CHECK(report.step == step);
      CHECK(report.applied.size() == 1);
      CHECK(report.written.size() == 10);
      CHECK(report.bytes_sent == mean.sent_bytes());
      CHECK(report.bytes_sent == comm.bytes_sent() - sent_before);
      CHECK(report.hidden_seconds == 0);
      CHECK(report.stalled_seconds == report.wire_seconds);
      std::size_t wrong = 0;
      for (std::size_t t = 0; t < m.tensors.size(); ++t) {
        tensor const& found = m.tensors[t].values;
        double const rounding = found.element() == rivulet::element_type::float32   ? 1e-6
                                : found.element() == rivulet::element_type::float16 ? 1e-3
                                                                                    : 8e-3;
        for (std::size_t i = 0; i < found.size(); ++i) {
          double sum = 0;
          double total = 0;
          for (int r = 0; r < world; ++r) {
            tensor value(found.element(), 1);
            value.set(0,
                      noise(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(r), t, i));
            sum += weight_of(r) * static_cast<double>(value.get(0));
            total += weight_of(r);
          }
          double const expected = m.tensors[t].trainable
                                      ? sum / total
                                      : static_cast<double>(own.tensors[t].values.get(i));
          double const error = static_cast<double>(found.get(i)) - expected;
          if (!(std::fabs(error) <= tolerance + rounding)) ++wrong;
        }
      }
      CHECK(wrong == 0);
      // What is frozen differs from rank to rank; the rest must not.
      for (named_tensor& t : m.tensors) {
        for (std::size_t i = 0; !t.trainable && i < t.values.size(); ++i) t.values.set(i, 0);
      }
      hashes[static_cast<std::size_t>(comm.rank())] = m.hash();
    }
  });
  for (std::uint64_t hash : hashes) CHECK(hash == hashes[0]);
}

TEST_CASE("the mean of gradients is the same on all ranks, and right") {
  for (int world = 1; world <= 4; ++world) {
    check_mean(world, method::all_gather, rivulet::codec::float32{}, 0);
    check_mean(world, method::all_gather, rivulet::codec::bf16{}, 4e-3);
    check_mean(world, method::all_gather, rivulet::codec::e3m0{}, 0.34);
    // Quantized twice; float32 gives the same.
    check_mean(world, method::all_to_all, rivulet::codec::float32{}, 0);
    check_mean(world, method::all_to_all, rivulet::codec::bf16{}, 8e-3);
    check_mean(world, method::all_to_all, rivulet::codec::e3m0{}, 0.68);
    check_mean(world, method::automatic, rivulet::codec::e3m0{}, 0.68);
  }
}

TEST_CASE("the mean of gradients is right with a codec for the means") {
  for (method reduction : {method::all_gather, method::all_to_all}) {
    check_mean(3, reduction,
               rivulet::codec::two_stage{rivulet::codec::e3m0{}, rivulet::codec::float32{}}, 0.34);
    check_mean(3, reduction,
               rivulet::codec::two_stage{rivulet::codec::float32{}, rivulet::codec::bf16{}}, 4e-3);
  }
}

TEST_CASE("bytes of the mean of gradients are those of the formula for every small size") {
  for (int world = 1; world <= 4; ++world) {
    for (std::size_t n = 0; n <= static_cast<std::size_t>(3 * world + 1); ++n) {
      for (method reduction : {method::automatic, method::all_gather, method::all_to_all}) {
        run_ranks(world, [&](local& plain) {
          faulty comm(plain);
          std::vector<float> a(n, 1.0f);
          std::vector<rivulet::bf16> b(1 + 2 * n, rivulet::to_bf16(1.0f));
          rivulet::parameter_set gradients;
          gradients.add("a", rivulet::layer(0), a);
          gradients.add("b", rivulet::layer(0), b);
          rivulet::data_parallel mean{
              gradients, comm, rivulet::codec::bf16{}, rivulet::exec::host{}, 30'000, reduction};
          CHECK(mean.message_bytes() == 80 + 2 * n + 2 * (1 + 2 * n));
          auto const peers = static_cast<std::uint64_t>(world - 1);
          // Two tiles of n and 1 + 2 n values, or one. The longest shard has both only for one
          // worker; the shards of automatic would have to save a header.
          std::size_t const shard = 80 + (world == 1 ? 2 * n : 0) + 2 * (1 + 2 * n);
          bool const shards = reduction == method::all_to_all ||
                              (reduction == method::automatic && 2 * shard < mean.message_bytes());
          CHECK(mean.sent_bytes() == peers * (shards ? 2 * shard : mean.message_bytes()));
          mean.average_gradients();
          mean.average_gradients();
          CHECK(comm.bytes_sent() == 2 * mean.sent_bytes());
          CHECK(comm.collectives() == (shards ? 4 : 2));
          CHECK(a == std::vector<float>(n, 1.0f));
        });
      }
    }
  }
}

TEST_CASE("the mean of gradients of many tiles sends fewer bytes by shards, if nothing is said") {
  run_ranks(4, [](local& plain) {
    faulty comm(plain);
    std::vector<float> a(40'960, 1.0f);  // 10 tiles, 3 of them in the longest shard
    rivulet::parameter_set gradients;
    gradients.add("a", rivulet::layer(0), a);
    rivulet::data_parallel mean{gradients, comm, rivulet::codec::bf16{}};
    mean.average_gradients();
    CHECK(mean.sent_bytes() == 3 * 2 * (80 + 3 * 8192));
    CHECK(comm.bytes_sent() == mean.sent_bytes());
  });
}

void check_nan(method reduction) {
  run_ranks(3, [&](local& comm) {
    std::vector<float> a(10, 1.0f);
    std::vector<float> b(10, static_cast<float>(comm.rank()));
    if (comm.rank() == 2) b[4] = std::numeric_limits<float>::quiet_NaN();
    rivulet::parameter_set gradients;
    gradients.add("a", rivulet::layer(0), a);
    gradients.add("b", rivulet::layer(0), b);
    rivulet::data_parallel mean{
        gradients, comm, rivulet::codec::float32{}, rivulet::exec::host{}, 30'000, reduction};
    rivulet::step_report const& report = mean.average_gradients();
    REQUIRE(report.skipped.size() == 1);
    CHECK(report.skipped[0].why.what == rivulet::reduce::verdict::kind::rejected);
    CHECK(report.skipped[0].why.rank == 2);
    CHECK(report.skipped[0].parameter == (comm.rank() == 2 ? 1 : -1));
    CHECK(report.applied.empty());
    CHECK(report.written.empty());
    CHECK(b[5] == static_cast<float>(comm.rank()));
    b[4] = 0;
    CHECK(mean.average_gradients().applied.size() == 1);
    CHECK(b[5] == 1.0f);
    // A worker of weight 0 rejects nothing.
    if (comm.rank() == 1) b[4] = std::numeric_limits<float>::quiet_NaN();
    CHECK(mean.average_gradients(comm.rank() == 1 ? 0 : 1).applied.size() == 1);
    CHECK(b[4] == 0.0f);
    CHECK(mean.average_gradients(0).skipped.size() == 1);
  });
}

TEST_CASE("a NaN gradient on one rank leaves all gradients as they are") {
  check_nan(method::all_gather);
  check_nan(method::all_to_all);
}

/// Collective `number` brings rank 1 a damaged message of rank 0.
void check_failure(method reduction, int number) {
  CAPTURE(number);
  std::vector<std::string> texts(3);
  run_ranks(3, [&](local& plain) {
    faulty comm(plain,
                plain.rank() == 1
                    ? damaged_at(number, 0, 3, [](auto message) { message[90] ^= std::byte{2}; })
                    : faulty::hooks{});
    std::vector<float> a(30, static_cast<float>(comm.rank()));
    rivulet::parameter_set gradients;
    gradients.add("a", rivulet::layer(0), std::span(a).first(10));  // a tile for each shard
    gradients.add("b", rivulet::layer(0), std::span(a).subspan(10, 10));
    gradients.add("c", rivulet::layer(0), std::span(a).last(10));
    rivulet::data_parallel mean{
        gradients, comm, rivulet::codec::float32{}, rivulet::exec::host{}, 30'000, reduction};
    mean.average_gradients();
    CHECK(a == std::vector<float>(30, 1.0f));
    a.assign(30, static_cast<float>(comm.rank()));
    rivulet::comm_error const error = thrown_by<rivulet::comm_error>([&] {
      for (;;) {
        mean.average_gradients();
        a.assign(30, static_cast<float>(comm.rank()));
      }
    });
    CHECK(a == std::vector<float>(30, static_cast<float>(comm.rank())));
    texts[static_cast<std::size_t>(comm.rank())] = error.what();
    CHECK_THROWS_AS(mean.average_gradients(), rivulet::comm_error);
  });
  CHECK(mentions(texts[1], "wrong payload checksum"));
  CHECK(mentions(texts[1], "rank 0"));
  CHECK(mentions(texts[0], "'aborted'"));
  CHECK(mentions(texts[2], "'aborted'"));
}

TEST_CASE("a failed exchange of gradients throws, changes nothing, and wakes the others") {
  check_failure(method::all_gather, 1);
  check_failure(method::all_to_all, 2);  // the shards of the second mean
  check_failure(method::all_to_all, 3);  // its means
}

TEST_CASE("data_parallel refuses what breaks a rule") {
  run_ranks(1, [](local& comm) {
    std::vector<float> a(10);
    rivulet::parameter_set gradients;
    CHECK_THROWS_AS((rivulet::data_parallel{gradients, comm, rivulet::codec::float32{}}),
                    rivulet::precondition_error);
    gradients.add("a", rivulet::layer(0), a);
    CHECK_THROWS_AS((rivulet::data_parallel{gradients, comm, rivulet::codec::float32{},
                                            rivulet::exec::host{}, 0}),
                    rivulet::precondition_error);
    rivulet::data_parallel mean{gradients, comm, rivulet::codec::float32{}};
    CHECK_THROWS_AS(mean.average_gradients(-1), rivulet::precondition_error);
    CHECK_THROWS_AS(mean.average_gradients(std::numeric_limits<double>::quiet_NaN()),
                    rivulet::precondition_error);
    CHECK(mean.average_gradients(0).skipped.size() == 1);
  });
}

}  // namespace
