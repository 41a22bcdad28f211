#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/e3m0.hpp>
#include <rivulet/reduce/all_gather_mean.hpp>

#include "multi_rank/faulty.hpp"
#include "multi_rank/ranks.hpp"
#include "unit/codec/own_codecs.hpp"
#include "unit/codec/scattered_model.hpp"

namespace {

using rivulet::comm_status;
using rivulet::fragment_layout;
using rivulet::wire_check;
using rivulet::wire_header;
using rivulet::codec::weighted_codes;
using rivulet::reduce::all_gather_mean;
using rivulet::reduce::exchange_result;
using rivulet::reduce::verdict;
using rivulet_test::faulty;
using rivulet_test::own_global;
using rivulet_test::own_keyed;
using rivulet_test::scattered_model;
using e3m0 = rivulet::codec::e3m0<64>;
using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

/// The rank `rank` of `world`, whose model holds values of its own.
template <class C>
struct worker {
  C codec;
  scattered_model model;
  fragment_layout layout = model.layout(codec);
  int rank, world;
  std::vector<std::byte> buffer;
  rivulet::message_encoder<C> encoder;
  rivulet::message_encoder<C> no_encoder;  // of the mean, which is not encoded
  std::vector<weighted_codes> senders;

  worker(int which, int of) : rank(which), world(of) {
    floats const values =
        rivulet_test::normal_values(layout.values(), 100 + static_cast<std::uint64_t>(rank));
    model.for_each_value([&](rivulet::parameter const& p, std::size_t i, std::size_t at) {
      rivulet_test::store(p, i, values[at]);
    });
    buffer.resize(all_gather_mean::buffer_bytes(codec, codec, layout, world));
    encoder.reserve(codec, layout.values());
  }

  int encode(double weight = 1) {
    wire_header header;
    header.weight = weight;
    return all_gather_mean::encode(codec, encoder, rivulet::exec::host{},
                                   rivulet::pass::local_values{}, layout, {}, header,
                                   std::span(buffer), rank, world);
  }
  template <class Comm>
  exchange_result exchange(Comm& comm) {
    return all_gather_mean::exchange(codec, codec, no_encoder, layout, rivulet::encode_options{},
                                     comm, std::span(buffer), senders, rivulet_test::soon());
  }
  verdict open() {
    std::size_t const size = all_gather_mean::result_bytes(codec, codec, layout, world);
    return all_gather_mean::open(std::span(buffer).last(size), world, senders);
  }
  floats mean() {
    auto const source = all_gather_mean::mean(codec, codec, layout, senders);
    floats result(layout.values(), -1.0f);
    for (std::size_t t = 0; t < layout.tiles(); ++t) {
      rivulet::tile_part const part = layout.tile(t);
      source.load(part, t, result.data() + part.first());
    }
    return result;
  }
};

TEST_CASE("all_gather_mean: bytes by its formulas") {
  scattered_model const m;
  fragment_layout const layout = m.layout(e3m0{});
  constexpr std::size_t message = 80 + 293 * 34;
  CHECK(all_gather_mean::buffer_bytes(e3m0{}, e3m0{}, layout, 1) == message);
  CHECK(all_gather_mean::buffer_bytes(e3m0{}, e3m0{}, layout, 4) == 4 * message);
  CHECK(all_gather_mean::result_bytes(e3m0{}, e3m0{}, layout, 4) == 4 * message);
  CHECK(all_gather_mean::sent_bytes(e3m0{}, e3m0{}, layout, 1) == 0);
  CHECK(all_gather_mean::sent_bytes(e3m0{}, e3m0{}, layout, 4) == 3 * message);
  fragment_layout const whole = m.layout(own_global{});
  CHECK(all_gather_mean::buffer_bytes(own_global{}, own_global{}, whole, 2) ==
        2 * (80 + 18528 + 4));
}

TEST_CASE("all_gather_mean: a rank encodes into its own place") {
  worker<e3m0> w(2, 4);
  std::ranges::fill(w.buffer, std::byte{0x44});
  CHECK(w.encode(3) == -1);
  std::size_t const size = w.buffer.size() / 4;
  wire_header const header = wire_header::read(w.buffer.data() + 2 * size);
  CHECK(header.weight == 3);
  CHECK(header.part == 0);
  CHECK(rivulet::check_message(w.codec, w.layout, w.layout.all(),
                               std::span(w.buffer).subspan(2 * size, size),
                               header) == wire_check::good);
  auto const untouched = [](std::byte b) { return b == std::byte{0x44}; };
  CHECK(std::ranges::all_of(std::span(w.buffer).first(2 * size), untouched));
  CHECK(std::ranges::all_of(std::span(w.buffer).last(size), untouched));
}

/// The mean of what the workers hold, from their payloads.
template <class C>
floats naive_mean(std::vector<double> const& weights) {
  double total = 0;
  for (double const weight : weights) total += weight;
  floats sums;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    worker<C> const w(static_cast<int>(r), 1);
    sums.resize(w.layout.values());
    auto const weight = static_cast<float>(weights[r] / total);
    if (!(weight > 0)) continue;
    floats const values = rivulet_test::values_of(w.model);
    if constexpr (rivulet::Codec<C>) {
      bytes const payload = rivulet_test::payload_of(w.model.fragment, values, w.codec);
      std::size_t first = 0;
      std::size_t byte = 0;
      for (rivulet::slice const& s : w.model.fragment.slices) {
        std::size_t const size = rivulet::codec::encoded_bytes(w.codec, s.size);
        rivulet::codec::accumulate(w.codec, std::span(payload).subspan(byte, size), weight,
                                   std::span(sums).subspan(first, s.size));
        first += s.size;
        byte += size;
      }
    } else {
      bytes payload(w.codec.message_bytes(values.size()));
      rivulet::codec::encode(w.codec, values, payload);
      rivulet::codec::accumulate(w.codec, payload, weight, sums);
    }
  }
  return sums;
}

TEST_CASE_TEMPLATE("all_gather_mean: every rank forms the weighted mean", C, e3m0,
                   rivulet_test::own_int8, own_keyed, own_global) {
  std::vector<double> const cases[] = {{1}, {1, 1}, {0.5, 3, 1}, {1, 0, 2, 0}};
  for (std::vector<double> const& weights : cases) {
    auto const world = static_cast<int>(weights.size());
    CAPTURE(world);
    std::vector<floats> means(weights.size());
    std::vector<std::uint64_t> sent(weights.size());
    std::uint64_t formula = 0;
    rivulet_test::run_ranks(world, [&](rivulet::comm::local& local) {
      auto const r = static_cast<std::size_t>(local.rank());
      faulty comm(local);
      worker<C> w(local.rank(), world);
      w.encode(weights[r]);
      if (!w.exchange(comm).good()) throw std::logic_error("the exchange failed");
      if (w.open().what != verdict::kind::apply) throw std::logic_error("nothing to apply");
      means[r] = w.mean();
      sent[r] = comm.bytes_sent();
      if (r == 0) formula = all_gather_mean::sent_bytes(w.codec, w.codec, w.layout, world);
    });
    floats const expected = naive_mean<C>(weights);
    for (floats const& mean : means) CHECK(rivulet_test::same_bits(mean, expected));
    for (std::uint64_t const count : sent) CHECK(count == formula);
  }
}

TEST_CASE("all_gather_mean: NaN and weights of 0 skip the fragment on all ranks alike") {
  for (bool const bad : {true, false}) {
    std::vector<verdict> found(3);
    std::vector<int> rejected(3);
    rivulet_test::run_ranks(3, [&](rivulet::comm::local& comm) {
      auto const r = static_cast<std::size_t>(comm.rank());
      worker<e3m0> w(comm.rank(), 3);
      if (bad && r > 0) w.model.a[5000] = NAN;
      rejected[r] = w.encode(bad ? static_cast<double>(r) : 0.0);
      if (!w.exchange(comm).good()) throw std::logic_error("the exchange failed");
      found[r] = w.open();
    });
    CHECK(rejected == (bad ? std::vector{-1, 0, 0} : std::vector{-1, -1, -1}));
    for (verdict const& v : found) {
      CHECK(v.what == (bad ? verdict::kind::rejected : verdict::kind::no_weight));
      CHECK(v.rank == (bad ? 1 : -1));
    }
  }
}

TEST_CASE("all_gather_mean: the first rank whose message is wrong is named") {
  struct {
    std::size_t at;  // of the byte that is changed, in the message; from the end if negative
    double weight;
    wire_check check;
  } const cases[] = {{0, 1, wire_check::magic},
                     {9, 1, wire_check::header_sum},
                     {500, 1, wire_check::payload_sum},
                     {500, 0, wire_check::good}};  // not decoded
  for (auto const& c : cases) {
    for (int sender = 0; sender < 3; ++sender) {
      std::vector<exchange_result> found(3);
      rivulet_test::run_ranks(3, [&](rivulet::comm::local& local) {
        faulty comm(local, rivulet_test::damaged_at(0, sender, 3, [&](std::span<std::byte> m) {
                      m[c.at] ^= std::byte{0x10};
                    }));
        worker<e3m0> w(local.rank(), 3);
        w.encode(local.rank() == sender ? c.weight : 1.0);
        found[static_cast<std::size_t>(local.rank())] = w.exchange(comm);
      });
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == sender) continue;  // compared with itself
        exchange_result const& result = found[static_cast<std::size_t>(rank)];
        CHECK(result.status == comm_status::done);
        CHECK(result.check == c.check);
        CHECK(result.peer == (c.check == wire_check::good ? -1 : sender));
      }
    }
  }
}

TEST_CASE("all_gather_mean: a status other than done is passed on and nothing is read") {
  for (comm_status const status :
       {comm_status::timeout, comm_status::failed, comm_status::aborted}) {
    rivulet::comm::local_group const group(2);
    faulty comm(group.communicator(0), {.before = [&](int) { return status; }});
    worker<e3m0> w(0, 2);
    w.encode();
    exchange_result const result = w.exchange(comm);
    CHECK(result.status == status);
    CHECK(result.check == wire_check::good);
    CHECK_FALSE(result.good());
  }
}

}  // namespace
