#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/reduce/all_to_all_mean.hpp>

#include "contract/codec_contract.hpp"
#include "multi_rank/faulty.hpp"
#include "multi_rank/ranks.hpp"
#include "unit/codec/own_codecs.hpp"

namespace {

using rivulet::comm_status;
using rivulet::fragment_layout;
using rivulet::nonfinite_policy;
using rivulet::tile_range;
using rivulet::wire_check;
using rivulet::wire_header;
using rivulet::codec::float32;
using rivulet::codec::weighted_codes;
using rivulet::reduce::all_gather_mean;
using rivulet::reduce::all_to_all_mean;
using rivulet::reduce::exchange_result;
using rivulet::reduce::method;
using rivulet::reduce::verdict;
using rivulet_test::faulty;
using rivulet_test::own_global;
using rivulet_test::own_int8;
using rivulet_test::own_keyed;
using rivulet_test::contract::same_values;
using e3m0 = rivulet::codec::e3m0<64>;
using bytes = std::vector<std::byte>;
using floats = std::vector<float>;
using sizes = std::vector<std::size_t>;

/// A rank whose fragment has a slice of each of these sizes, with values of its own.
template <class C, class M>
struct worker {
  C codec;
  M mean_codec;
  int rank, world;
  std::vector<floats> tensors;
  rivulet::parameter_set params;
  rivulet::fragment fragment{"f", {}};
  std::unique_ptr<fragment_layout> layout;
  bytes buffer;
  rivulet::message_encoder<C> encoder;
  rivulet::message_encoder<M> mean_encoder;
  std::vector<weighted_codes> senders;
  rivulet::encode_options options{};

  worker(int which, int of, sizes const& slices) : rank(which), world(of) {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      tensors.push_back(
          rivulet_test::normal_values(slices[i], 100 * i + static_cast<std::uint64_t>(rank)));
    }
    for (std::size_t i = 0; i < slices.size(); ++i) {
      params.add("t" + std::to_string(i), rivulet::layer(0), tensors[i]);
      fragment.slices.push_back({i, 0, slices[i]});
    }
    layout = std::make_unique<fragment_layout>(fragment, params, codec, mean_codec);
    buffer.resize(all_to_all_mean::buffer_bytes(codec, mean_codec, *layout, world));
    encoder.reserve(codec, layout->values());
    mean_encoder.reserve(mean_codec, layout->values());
    senders.reserve(static_cast<std::size_t>(world));
  }

  /// All values, slice after slice.
  [[nodiscard]] floats values() const {
    floats result;
    for (floats const& tensor : tensors) result.insert(result.end(), tensor.begin(), tensor.end());
    return result;
  }
  int encode(double weight = 1) {
    wire_header header;
    header.fragment = 3;
    header.step = 110;
    header.weight = weight;
    return all_to_all_mean::encode(codec, encoder, rivulet::exec::host{},
                                   rivulet::pass::local_values{}, *layout, options, header,
                                   std::span(buffer), rank, world);
  }
  template <class Comm>
  exchange_result exchange(Comm& comm) {
    return all_to_all_mean::exchange(codec, mean_codec, mean_encoder, *layout, options, comm,
                                     std::span(buffer), senders, rivulet_test::soon());
  }
  [[nodiscard]] std::span<std::byte> result() {
    return std::span(buffer).last(all_to_all_mean::result_bytes(codec, mean_codec, *layout, world));
  }
  verdict open() { return all_to_all_mean::open(result(), world, senders); }
  floats mean() {
    auto const source = all_to_all_mean::mean(codec, mean_codec, *layout, senders);
    floats found(layout->values(), -1.0f);
    for (std::size_t t = layout->tiles(); t-- > 0;) {
      rivulet::tile_part const part = layout->tile(t);
      source.load(part, t, found.data() + part.first());
    }
    return found;
  }
  /// The message to rank `r` before the exchange.
  [[nodiscard]] std::byte* message_to(int r) {
    return buffer.data() +
           static_cast<std::size_t>(r) * all_to_all_mean::piece_bytes(codec, *layout, world);
  }
};

/// What every rank found.
struct outcome {
  exchange_result exchange;
  verdict found;
  int rejected = -1;
  std::uint64_t bytes_sent = 0;
  int collectives = 0;
  floats mean;
};

/// Runs the reduction on `world` ranks; prepare(worker) may change the rank's values and options,
/// tamper(worker) what it is about to send, and hooks(rank) disturbs its collectives.
template <class C, class M>
struct reduction {
  using worker_type = worker<C, M>;
  sizes slices;
  std::vector<double> weights;
  std::function<void(worker_type&)> prepare = [](worker_type&) {};
  std::function<void(worker_type&)> tamper = [](worker_type&) {};
  std::function<faulty::hooks(int)> hooks = [](int) { return faulty::hooks{}; };

  [[nodiscard]] std::vector<outcome> run() const {
    auto const world = static_cast<int>(weights.size());
    std::vector<outcome> all(weights.size());
    rivulet_test::run_ranks(world, [&](rivulet::comm::local& local) {
      auto const r = static_cast<std::size_t>(local.rank());
      outcome& mine = all[r];
      faulty comm(local, hooks(local.rank()));
      worker_type w(local.rank(), world, slices);
      prepare(w);
      mine.rejected = w.encode(weights[r]);
      tamper(w);
      mine.exchange = w.exchange(comm);
      mine.bytes_sent = comm.bytes_sent();
      mine.collectives = comm.collectives();
      if (!mine.exchange.good()) {
        comm.abort();
        return;
      }
      mine.found = w.open();
      if (mine.found.what == verdict::kind::apply) mine.mean = w.mean();
    });
    return all;
  }
};

/// Adds a message of the tiles of `range` with these values, coded and decoded the plain way.
template <class C>
void add_message(C const& codec, fragment_layout const& layout, tile_range range,
                 std::span<float const> values, float weight, std::span<float> sums) {
  if constexpr (rivulet::Codec<C>) {
    for (std::size_t t = range.first; t < range.end(); ++t) {
      std::size_t const first = layout.value_of(t) - layout.value_of(range.first);
      auto const tile = values.subspan(first, layout.tile(t).count);
      rivulet::codec::accumulate(codec, rivulet_test::encoded(codec, tile), weight,
                                 sums.subspan(first, tile.size()));
    }
  } else {
    bytes payload(codec.message_bytes(values.size()));
    rivulet::codec::encode(codec, values, payload);
    rivulet::codec::accumulate(codec, payload, weight, sums);
  }
}

/// The mean that every rank must come to.
template <class C, class M>
floats naive_mean(sizes const& slices, std::vector<double> const& weights) {
  auto const world = static_cast<int>(weights.size());
  double total = 0;
  for (double const weight : weights) total += weight;
  std::vector<floats> values;
  for (int r = 0; r < world; ++r) values.push_back(worker<C, M>(r, world, slices).values());
  worker<C, M> const any(0, world, slices);
  floats result(values[0].size());
  for (int shard = 0; shard < world; ++shard) {
    tile_range const range = any.layout->shard(shard, world);
    std::size_t const first = any.layout->value_of(range.first);
    std::size_t const count = any.layout->value_of(range.end()) - first;
    floats mean(count);
    for (std::size_t r = 0; r < weights.size(); ++r) {
      auto const weight = static_cast<float>(weights[r] / total);
      if (!(weight > 0)) continue;
      add_message(any.codec, *any.layout, range, std::span(values[r]).subspan(first, count), weight,
                  mean);
    }
    add_message(any.mean_codec, *any.layout, range, mean, 1.0f,
                std::span(result).subspan(first, count));
  }
  return result;
}

template <class C, class M>
struct codecs {
  using sent = C;
  using mean = M;
};

TEST_CASE_TEMPLATE("all_to_all_mean: every rank gets the twice coded weighted mean", T,
                   codecs<e3m0, e3m0>, codecs<float32, float32>, codecs<own_int8, own_int8>,
                   codecs<own_keyed, own_keyed>, codecs<own_global, own_global>,
                   // As two_stage has it, of smaller and of larger messages.
                   codecs<e3m0, rivulet::codec::bf16>, codecs<float32, e3m0>,
                   codecs<own_global, own_int8>, codecs<own_int8, own_global>,
                   codecs<own_keyed, e3m0>, codecs<e3m0, own_keyed>, codecs<own_keyed, own_global>,
                   codecs<rivulet::codec::e3m0<1024>, e3m0>) {
  using C = typename T::sent;
  using M = typename T::mean;
  // Fewer tiles than ranks, as many, more; slices that are tails.
  sizes const cases[] = {{1}, {4096}, {4097}, {100, 3, 5000}, {3 * 4096}, {9000, 1, 4096 * 4, 77}};
  std::vector<double> const weight_cases[] = {{1},    {3},         {1, 1},       {0.5, 2},
                                              {0, 1}, {1, 0.1, 1}, {1, 1, 1, 1}, {2, 0, 0.25, 3}};
  for (sizes const& slices : cases) {
    for (std::vector<double> const& weights : weight_cases) {
      auto const world = static_cast<int>(weights.size());
      CAPTURE(slices.size());
      CAPTURE(slices[0]);
      CAPTURE(world);
      std::vector<outcome> const all = reduction<C, M>{slices, weights}.run();
      floats const expected = naive_mean<C, M>(slices, weights);
      worker<C, M> const w(0, world, slices);
      std::uint64_t const formula =
          all_to_all_mean::sent_bytes(w.codec, w.mean_codec, *w.layout, world);
      for (outcome const& o : all) {
        REQUIRE(o.exchange.good());
        REQUIRE(o.exchange.peer == -1);
        REQUIRE(o.found.what == verdict::kind::apply);
        REQUIRE(o.found.rank == -1);
        REQUIRE(o.rejected == -1);
        REQUIRE(same_values(o.mean, expected));
        REQUIRE(o.bytes_sent == formula);
        REQUIRE(o.collectives == 2);
      }
    }
  }
}

TEST_CASE("all_to_all_mean: bytes by the formulas of the docstring") {
  // 5 tiles of 8 * 8 = 64 blocks or less: shards of 1 or 2 of them.
  worker<e3m0, e3m0> const w(0, 3, {4 * 4096 + 64});
  std::size_t const piece = 80 + 2 * 64 * 34;
  CHECK(all_to_all_mean::piece_bytes(e3m0{}, *w.layout, 3) == piece);
  CHECK(all_to_all_mean::buffer_bytes(e3m0{}, e3m0{}, *w.layout, 3) == 3 * 3 * piece);
  CHECK(all_to_all_mean::result_bytes(e3m0{}, e3m0{}, *w.layout, 3) == 3 * piece);
  CHECK(all_to_all_mean::sent_bytes(e3m0{}, e3m0{}, *w.layout, 3) == 2 * 2 * piece);
  CHECK(all_to_all_mean::sent_bytes(e3m0{}, e3m0{}, *w.layout, 1) == 0);
  CHECK(all_to_all_mean::piece_bytes(e3m0{}, *w.layout, 5) == 80 + 64 * 34);
  CHECK(all_to_all_mean::piece_bytes(e3m0{}, *w.layout, 50) == 80 + 64 * 34);
}

TEST_CASE("all_to_all_mean: a mean of another codec has bytes of its own") {
  worker<e3m0, rivulet::codec::bf16> const w(0, 2, {2 * 4096});
  std::size_t const sent = 80 + 64 * 34;
  std::size_t const mean = 80 + 2 * 4096;
  CHECK(all_to_all_mean::buffer_bytes(w.codec, w.mean_codec, *w.layout, 2) ==
        2 * (2 * sent + mean));
  CHECK(all_to_all_mean::result_bytes(w.codec, w.mean_codec, *w.layout, 2) == 2 * mean);
  CHECK(all_to_all_mean::sent_bytes(w.codec, w.mean_codec, *w.layout, 2) == sent + mean);
}

TEST_CASE("all_to_all_mean: what a rank sends are the shards of its message, each with its part") {
  worker<e3m0, e3m0> w(1, 3, {5000, 1, 2 * 4096});
  floats left_over(w.layout->values());
  w.options.left_over.values = left_over.data();
  CHECK(w.encode(2.5) == -1);

  rivulet::message_encoder<e3m0> encoder;
  bytes whole(rivulet::message_bytes(e3m0{}, *w.layout, w.layout->all()));
  floats whole_left_over(w.layout->values());
  rivulet::encode_message(e3m0{}, encoder, rivulet::exec::host{}, rivulet::pass::local_values{},
                          *w.layout, w.layout->all(), {.left_over = {whole_left_over.data()}}, {},
                          whole);
  CHECK(left_over == whole_left_over);
  for (int r = 0; r < 3; ++r) {
    tile_range const shard = w.layout->shard(r, 3);
    wire_header const header = wire_header::read(w.message_to(r));
    CHECK(header.part == 1 + static_cast<std::uint32_t>(r));
    CHECK(header.fragment == 3);
    CHECK(header.step == 110);
    CHECK(header.weight == 2.5);
    CHECK(header.flags == 0);
    std::size_t const size = rivulet::payload_bytes(e3m0{}, *w.layout, shard);
    CHECK(header.payload_bytes == size);
    CHECK(std::memcmp(w.message_to(r) + 80, whole.data() + 80 + w.layout->byte_of(shard.first),
                      size) == 0);
  }
}

TEST_CASE("all_to_all_mean: the headers of means name their shards and no sender's weight") {
  reduction<e3m0, e3m0> run{{3 * 4096}, {0.25, 4, 0}};
  run.hooks = [](int) {
    return faulty::hooks{
        .before = {}, .after = [](int number, std::span<std::byte> arrived) {
          if (number != 1) return;
          std::size_t const each = arrived.size() / 3;
          for (std::size_t r = 0; r < 3; ++r) {
            wire_header const header = wire_header::read(arrived.data() + r * each);
            bool const good = header.part == all_to_all_mean::mean_part + r && header.weight == 1 &&
                              header.flags == 0 && header.fragment == 3 && header.step == 110;
            if (!good) throw std::logic_error("a header of a mean is wrong");
          }
        }};
  };
  for (outcome const& o : run.run()) CHECK(o.exchange.good());
}

TEST_CASE("all_to_all_mean: the random numbers of a mean are keyed by its owner's options") {
  reduction<own_keyed, own_keyed> run{{2 * 4096}, {1, 1}};
  run.prepare = [](auto& w) { w.options.key = 70 + static_cast<std::uint64_t>(w.rank); };
  run.hooks = [](int) {
    return faulty::hooks{
        .before = {}, .after = [](int number, std::span<std::byte> arrived) {
          if (number != 1) return;
          for (std::uint64_t r = 0; r < 2; ++r) {
            std::uint64_t key = 0;
            std::memcpy(&key, arrived.data() + r * arrived.size() / 2 + 80, 8);
            std::uint64_t const expected =
                rivulet::detail::hash{}.add(70 + r).add(std::uint64_t{0}).add(r * 4096).value();
            if (key != expected) throw std::logic_error("another key");
          }
        }};
  };
  for (outcome const& o : run.run()) CHECK(o.exchange.good());
}

TEST_CASE_TEMPLATE("all_to_all_mean: NaN in any shard skips the fragment on all ranks", T,
                   codecs<e3m0, e3m0>, codecs<own_global, own_global>, codecs<own_keyed, e3m0>) {
  using C = typename T::sent;
  using M = typename T::mean;
  struct {
    std::vector<double> weights;
    std::vector<int> bad;  // ranks with NaN
    int rank;              // that is named; -1: applied all the same
  } const cases[] = {{{1}, {0}, 0},          {{1, 1}, {1}, 1},        {{1, 2, 1}, {1, 2}, 1},
                     {{1, 0, 1, 1}, {3}, 3}, {{1, 0, 1, 1}, {1}, -1}, {{0, 0, 1}, {0, 2}, 2}};
  for (sizes const& slices : {sizes{10}, sizes{5000, 1, 2 * 4096}}) {
    for (auto const& c : cases) {
      CAPTURE(slices[0]);
      CAPTURE(c.weights.size());
      reduction<C, M> run{slices, c.weights};
      run.prepare = [&](auto& w) {
        bool const bad = std::ranges::count(c.bad, w.rank) > 0;
        if (bad) w.tensors.back().back() = INFINITY;
      };
      std::vector<outcome> const all = run.run();
      for (int r = 0; r < static_cast<int>(all.size()); ++r) {
        outcome const& o = all[static_cast<std::size_t>(r)];
        bool const bad = std::ranges::count(c.bad, r) > 0;
        REQUIRE(o.exchange.good());
        CHECK(o.rejected == (bad ? static_cast<int>(slices.size()) - 1 : -1));
        CHECK(o.found.what == (c.rank >= 0 ? verdict::kind::rejected : verdict::kind::apply));
        CHECK(o.found.rank == c.rank);
      }
    }
  }
}

TEST_CASE("all_to_all_mean: a rank that rejects flags all of its messages") {
  worker<e3m0, e3m0> w(1, 3, {3 * 4096});
  w.tensors[0][2 * 4096 + 5] = NAN;  // in the last shard
  CHECK(w.encode() == 0);
  for (int r = 0; r < 3; ++r) {
    wire_header const header = wire_header::read(w.message_to(r));
    CHECK(header.flags == wire_header::rejected);
    CHECK(header.header_sum == header.compute_sum());
  }
}

TEST_CASE_TEMPLATE("all_to_all_mean: without any weight all ranks skip", T, codecs<e3m0, e3m0>,
                   codecs<own_keyed, own_keyed>, codecs<own_global, own_global>) {
  using C = typename T::sent;
  using M = typename T::mean;
  std::vector<double> const weight_cases[] = {{0}, {0, 0}, {0, 0, 0, 0}, {1e308, 1e308}};
  for (std::vector<double> const& weights : weight_cases) {
    for (sizes const& slices : {sizes{10}, sizes{5000, 1, 2 * 4096}}) {
      CAPTURE(weights.size());
      CAPTURE(slices[0]);
      for (outcome const& o : reduction<C, M>{slices, weights}.run()) {
        CHECK(o.exchange.good());
        CHECK(o.exchange.check == wire_check::good);
        CHECK(o.found.what == verdict::kind::no_weight);
        CHECK(o.found.rank == -1);
      }
    }
  }
}

/// Rank 1 sends infinity in the last tile without owning up to it.
template <class M>
reduction<float32, M> with_a_liar(nonfinite_policy policy) {
  reduction<float32, M> run{{3 * 4096}, {1, 1, 1}};
  run.prepare = [=](auto& w) {
    if (w.rank == 1) w.tensors[0].back() = -INFINITY;
    if (w.rank != 1) w.options.policy = policy;
  };
  run.tamper = [](auto& w) {
    for (int r = 0; r < 3 && w.rank == 1; ++r) {
      wire_header header = wire_header::read(w.message_to(r));
      header.flags = 0;
      header.write(w.message_to(r));
    }
  };
  return run;
}

TEST_CASE("all_to_all_mean: a mean that is not finite is rejected by its owner") {
  for (outcome const& o : with_a_liar<float32>(nonfinite_policy::reject).run()) {
    CHECK(o.exchange.good());
    CHECK(o.found.what == verdict::kind::rejected);
    CHECK(o.found.rank == 2);  // owns the last tile
  }
}

TEST_CASE("all_to_all_mean: or saturates, if that is the policy") {
  for (outcome const& o : with_a_liar<float32>(nonfinite_policy::saturate).run()) {
    CHECK(o.exchange.good());
    REQUIRE(o.found.what == verdict::kind::apply);
    CHECK(o.mean.back() == -FLT_MAX);
    CHECK(std::ranges::all_of(o.mean, [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE("all_to_all_mean: whose message is damaged is named, in either collective") {
  struct {
    int collective;
    std::size_t at;  // of the byte that is changed
    double weight;   // of the sender
    wire_check check;
  } const cases[] = {{0, 0, 1, wire_check::magic},         {0, 9, 1, wire_check::header_sum},
                     {0, 200, 1, wire_check::payload_sum}, {0, 200, 0, wire_check::good},
                     {1, 5, 1, wire_check::format},        {1, 33, 1, wire_check::header_sum},
                     {1, 200, 1, wire_check::payload_sum}};
  for (auto const& c : cases) {
    for (int sender = 0; sender < 3; ++sender) {
      CAPTURE(c.collective);
      CAPTURE(c.at);
      CAPTURE(sender);
      reduction<e3m0, e3m0> run{{3 * 4096}, {1, 1, 1}};
      run.weights[static_cast<std::size_t>(sender)] = c.weight;
      int const victim = (sender + 1) % 3;  // it alone gets the damaged message
      run.hooks = [&](int rank) {
        if (rank != victim) return faulty::hooks{};
        return rivulet_test::damaged_at(
            c.collective, sender, 3, [&](std::span<std::byte> m) { m[c.at] ^= std::byte{0x10}; });
      };
      outcome const o = run.run()[static_cast<std::size_t>(victim)];
      CHECK(o.exchange.status == comm_status::done);
      CHECK(o.exchange.check == c.check);
      CHECK(o.exchange.peer == (c.check == wire_check::good ? -1 : sender));
    }
  }
}

TEST_CASE("all_to_all_mean: a message about another shard is refused, in either collective") {
  for (int const collective : {0, 1}) {
    reduction<e3m0, e3m0> run{{2 * 4096}, {1, 1}};
    run.hooks = [&](int rank) {
      if (rank != 0) return faulty::hooks{};
      return rivulet_test::damaged_at(collective, 1, 2, [](std::span<std::byte> m) {
        wire_header header = wire_header::read(m.data());
        header.part ^= 3;
        header.write(m.data());
      });
    };
    outcome const o = run.run()[0];
    CHECK(o.exchange.check == wire_check::part);
    CHECK(o.exchange.peer == 1);
  }
}

TEST_CASE("all_to_all_mean: replicas that have diverged are found by the shard's owner") {
  reduction<e3m0, e3m0> run{{2 * 4096}, {1, 1}};
  run.tamper = [](auto& w) {
    if (w.rank == 0) return;
    wire_header header = wire_header::read(w.message_to(0));
    header.outer_state ^= 1;
    header.write(w.message_to(0));
  };
  outcome const o = run.run()[0];
  CHECK(o.exchange.check == wire_check::outer_state);
  CHECK(o.exchange.peer == 1);
}

TEST_CASE("all_to_all_mean: a status other than done is passed on, from either collective") {
  for (int const collective : {0, 1}) {
    for (comm_status const status :
         {comm_status::timeout, comm_status::failed, comm_status::aborted}) {
      reduction<e3m0, e3m0> run{{2 * 4096}, {1, 1}};
      run.hooks = [&](int rank) {
        if (rank != 0) return faulty::hooks{};
        return faulty::hooks{.before = [=](int number) {
          return number == collective ? status : comm_status::done;
        }};
      };
      std::vector<outcome> const all = run.run();
      CHECK(all[0].exchange.status == status);
      CHECK(all[0].exchange.check == wire_check::good);
      CHECK(all[0].exchange.peer == -1);
      CHECK_FALSE(all[1].exchange.good());
    }
  }
}

/// Tiles of 80 bytes, whatever they hold: as many as a header has.
struct eighty {
  static constexpr std::string_view name = "eighty";
  static constexpr std::uint16_t id = 0x8080;
  [[nodiscard]] std::size_t tile_bytes(std::size_t) const { return 80; }
  void encode_tile(float const*, std::size_t, std::byte*, std::uint64_t) const {}
  void accumulate_tile(std::byte const*, std::size_t, float, float*) const {}
};

TEST_CASE("all_to_all_mean: automatic is whatever sends fewer bytes") {
  auto const chosen = [](auto codec, std::size_t values, int world) {
    worker<decltype(codec), decltype(codec)> const w(0, world, {values});
    return rivulet::reduce::choose(method::automatic, codec, codec, *w.layout, world);
  };
  CHECK(chosen(e3m0{}, 100 * 4096, 1) == method::all_gather);
  CHECK(chosen(e3m0{}, 100 * 4096, 2) == method::all_gather);
  CHECK(chosen(e3m0{}, 100 * 4096, 3) == method::all_to_all);
  CHECK(chosen(e3m0{}, 100 * 4096, 8) == method::all_to_all);
  CHECK(chosen(e3m0{}, 4096, 8) == method::all_gather);      // one tile is one shard
  CHECK(chosen(e3m0{}, 2 * 4096, 8) == method::all_gather);  // 160 + 2 tiles to 80 + 2 tiles
  CHECK(chosen(e3m0{}, 3 * 4096, 8) == method::all_to_all);
  CHECK(chosen(eighty{}, 3 * 4096, 3) == method::all_gather);  // 2 * (80 + 80) to 80 + 3 * 80
  CHECK(chosen(eighty{}, 3 * 4096 + 1, 4) == method::all_to_all);
  CHECK(chosen(own_global{}, 100 * 4096, 4) == method::all_to_all);

  worker<e3m0, e3m0> const w(0, 4, {100 * 4096});
  worker<e3m0, float32> const big_means(0, 4, {100 * 4096});
  for (method const m : {method::all_gather, method::all_to_all}) {
    CHECK(rivulet::reduce::choose(m, e3m0{}, e3m0{}, *w.layout, 4) == m);
    CHECK(rivulet::reduce::choose(m, e3m0{}, e3m0{}, *w.layout, 1) == m);
  }
  CHECK(rivulet::reduce::choose(method::automatic, e3m0{}, float32{}, *big_means.layout, 4) ==
        method::all_gather);  // quarters of 4 bytes per value to 4 bits
}

}  // namespace
