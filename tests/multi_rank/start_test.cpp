/// \file
/// How ranks come together: settings that differ, initial parameters that differ.

#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

/// What a rank may get wrong.
struct start {
  model parameters = small_model();
  rivulet::sync_config config = settings(8, 1);
  any_partitioner partitioner = rivulet::partition::strided{.layers_per_fragment = 1};
  rivulet::outer::nesterov outer = {};
};

template <class C = rivulet::codec::bf16>
void construct(local& comm, start own, C codec = {}) {
  rivulet::parameter_set parameters = own.parameters.parameters();
  rivulet::streaming_diloco sync{parameters, comm, own.config, own.partitioner, codec, own.outer};
}

/// The texts of all ranks when rank 2 of 3 starts in another way.
template <class Change>
std::vector<std::string> texts_of(Change const& change) {
  std::vector<std::string> texts(3);
  run_ranks(3, [&](local& comm) {
    start own;
    if (comm.rank() == 2) change(own);
    texts[static_cast<std::size_t>(comm.rank())] =
        thrown_by<rivulet::precondition_error>([&] { construct(comm, own); }).what();
  });
  return texts;
}

void check_all_say(std::vector<std::string> const& texts, std::string_view what) {
  for (std::string const& text : texts) {
    CAPTURE(text);
    CHECK(mentions(text, what));
    CHECK(mentions(text, "ranks 0 and 2"));
    CHECK(text == texts[0]);
  }
}

TEST_CASE("settings that differ between ranks are refused on every rank by name") {
  check_all_say(texts_of([](start& own) { own.config.sync_every = 9; }), "sync_every (H)");
  check_all_say(texts_of([](start& own) { own.config.offsets = {0, 1, 2, 3, 5}; }), "offsets");
  check_all_say(
      texts_of([](start& own) { own.config.first_sync = rivulet::first_sync::at_offset; }),
      "first_sync");
  check_all_say(
      texts_of([](start& own) { own.config.nonfinite = rivulet::nonfinite_policy::saturate; }),
      "nonfinite policy");
  check_all_say(
      texts_of([](start& own) { own.config.reduction = rivulet::reduce::method::all_to_all; }),
      "the reduction");
  check_all_say(texts_of([](start& own) {
                  own.partitioner = rivulet::partition::sequential{.layers_per_fragment = 2};
                }),
                "partition");
  check_all_say(texts_of([](start& own) { own.outer.momentum = 0.8f; }), "outer optimizer");
  check_all_say(texts_of([](start& own) { own.outer.learning_rate = 0.8f; }),
                "outer learning rate");
  check_all_say(texts_of([](start& own) { own.parameters.tensors[1].name = "other"; }),
                "parameters (names, sizes");
  check_all_say(texts_of([](start& own) { own.parameters.tensors[2].trainable = false; }),
                "parameters (names, sizes");
  check_all_say(texts_of([](start& own) {
                  own.parameters.add("more", rivulet::layer(0), rivulet::element_type::float32, 3);
                }),
                "parameters (names, sizes");
  check_all_say(
      texts_of([](start& own) { own.config.initial = rivulet::initial_parameters::broadcast; }),
      "initial");
}

/// Rank 2 of 3 has the codec `other`.
template <class C, class D>
void check_refused(C codec, D other) {
  std::vector<std::string> texts(3);
  run_ranks(3, [&](local& comm) {
    texts[static_cast<std::size_t>(comm.rank())] =
        thrown_by<rivulet::precondition_error>([&] {
          comm.rank() == 2 ? construct(comm, {}, other) : construct(comm, {}, codec);
        }).what();
  });
  check_all_say(texts, "codec");
}

TEST_CASE("codecs that differ between ranks are refused on every rank by name") {
  using namespace rivulet::codec;
  check_refused(bf16{}, float32{});
  check_refused(e3m0{}, e3m0<32>{});
  check_refused(e3m0{}, error_feedback{e3m0{}});
  check_refused(error_feedback{e3m0{}}, error_feedback{e3m0{}, 0.5f});
  check_refused(e3m0{}, two_stage{e3m0{}, bf16{}});
  check_refused(two_stage{e3m0{}, e3m0{}}, two_stage{e3m0{}, bf16{}});
  check_refused(error_feedback{bf16{}}, error_feedback{float32{}});
  check_refused(top_k<bf16>{.fraction = 0.5}, top_k<bf16>{.fraction = 0.25});
}

TEST_CASE("a codec with options that break a rule is refused on every rank") {
  run_ranks(2, [](local& comm) {
    using namespace rivulet::codec;
    auto const text_of = [&](auto codec) {
      return std::string(
          thrown_by<rivulet::precondition_error>([&] { construct(comm, {}, codec); }).what());
    };
    CHECK(mentions(text_of(error_feedback{e3m0{}, 1.5f}), "beta = 1.5"));
    CHECK(mentions(text_of(error_feedback{e3m0{}, -0.1f}), "beta = -0.1"));
    CHECK(mentions(text_of(error_feedback{e3m0{}, std::numeric_limits<float>::quiet_NaN()}),
                   "beta = "));
    CHECK(mentions(text_of(error_feedback{top_k<bf16>{.fraction = 0}}), "fraction = 0"));
    CHECK(mentions(text_of(two_stage{e3m0{}, top_k<bf16>{.fraction = 2}}), "fraction = 2"));
  });
}

TEST_CASE("tau, mixing, weight and timeout may differ between ranks") {
  run_ranks(3, [](local& comm) {
    start own;
    own.config.overlap_steps = comm.rank();
    own.config.mixing = 0.25f * static_cast<float>(comm.rank());
    own.config.weight = comm.rank();
    own.config.timeout_ms += comm.rank();
    construct(comm, own);
  });
}

TEST_CASE("initial parameters that differ are refused on every rank, by fragment") {
  auto const texts = texts_of([](start& own) { own.parameters.tensors[3].values.set(0, 5.0f); });
  check_all_say(texts, "initial parameters");
  check_all_say(texts, "'blocks.1'");
  check_all_say(texts, "initial_parameters::broadcast");
}

TEST_CASE("initial parameters of rank 0 are broadcast if asked for") {
  std::vector<std::uint64_t> hashes(3);
  std::vector<std::size_t> written(3);
  run_ranks(3, [&](local& comm) {
    model m = small_model();
    m.fill(static_cast<std::uint64_t>(comm.rank()));
    for (named_tensor& t : m.tensors) {  // frozen ones are the caller's own
      for (std::size_t i = 0; !t.trainable && i < t.values.size(); ++i) t.values.set(i, 0.0f);
    }
    rivulet::parameter_set parameters = m.parameters();
    rivulet::sync_config config = settings(8, 1, 0.5f);  // alpha does not count here
    config.initial = rivulet::initial_parameters::broadcast;
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   config,
                                   rivulet::partition::strided{.layers_per_fragment = 1},
                                   rivulet::codec::e3m0{},
                                   rivulet::outer::nesterov{}};
    auto const rank = static_cast<std::size_t>(comm.rank());
    hashes[rank] = m.hash();
    written[rank] = sync.report().written.size();
    CHECK((sync.report().bytes_sent > 1000) == (comm.rank() == 0));
    for (int step = 1; step <= 9; ++step) {
      m.inner_step(1, comm.rank(), step);
      sync.after_step();
    }
    sync.finish();
  });
  CHECK(hashes[1] == hashes[0]);
  CHECK(hashes[2] == hashes[0]);
  CHECK(written == std::vector<std::size_t>{0, 10, 10});  // all synced parameters
}

}  // namespace
