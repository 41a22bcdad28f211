#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/error_feedback.hpp>
#include <rivulet/engine/agreement.hpp>
#include <rivulet/outer/nesterov.hpp>
#include <rivulet/outer/sgd.hpp>
#include <rivulet/partition/balanced.hpp>

namespace {

using rivulet::detail::adoption;
using rivulet::detail::setting_names;
using rivulet::detail::start_record;
using rivulet::detail::version_record;

TEST_CASE("agreement: the table of decisions") {
  struct {
    std::vector<version_record> records;  // version, bits, trains
    int source, differs;
    bool needed;
  } const cases[] = {{{{0, 7}}, 0, -1, false},
                     {{{5, 7}, {5, 7}, {5, 7}}, 0, -1, false},
                     // A newer version is adopted by all, from the lowest rank that has it.
                     {{{5, 7}, {6, 8}, {5, 7}}, 1, -1, true},
                     {{{5, 7}, {6, 8}, {6, 8}}, 1, -1, true},
                     {{{6, 8}, {5, 7}, {6, 8}}, 0, -1, true},
                     {{{1, 7}, {2, 8}, {3, 9}}, 2, -1, true},
                     {{{1, 7}, {2, 7}}, 1, -1, true},  // equal bits of unequal versions
                     // Equal versions with different bits are told.
                     {{{0, 7}, {0, 8}}, 0, 1, true},
                     {{{0, 7}, {0, 7}, {0, 8}, {0, 9}}, 0, 2, true},
                     {{{4, 1}, {5, 7}, {4, 2}, {5, 7}, {5, 8}}, 1, 4, true},
                     // Those of an older version do not count.
                     {{{4, 1}, {5, 7}, {4, 2}}, 1, -1, true},
                     {{{~0ull, 1}, {0, 1}}, 0, -1, true},
                     // At the same version, those that train count before a joiner.
                     {{{0, 9, 0}, {0, 7, 1}, {0, 7, 1}}, 1, -1, true},
                     {{{0, 7, 0}, {0, 7, 1}}, 1, -1, false},
                     {{{0, 9, 0}, {0, 7, 1}, {0, 8, 1}}, 1, 2, true},
                     {{{2, 9, 0}, {0, 7, 1}}, 0, -1, true}};
  for (auto const& c : cases) {
    adoption const found = rivulet::detail::decide(static_cast<int>(c.records.size()), [&](int r) {
      return c.records[static_cast<std::size_t>(r)];
    });
    CHECK(found.source == c.source);
    CHECK(found.differs == c.differs);
    CHECK(found.needed == c.needed);
  }
}

TEST_CASE("agreement: check_settings names the first setting and the first rank that differs") {
  start_record same{};
  for (std::size_t i = 0; i < setting_names.size(); ++i) same.settings[i] = 100 + i;
  std::vector<start_record> const equal(3, same);
  CHECK_NOTHROW(rivulet::detail::check_settings(equal));
  CHECK_NOTHROW(rivulet::detail::check_settings({equal.data(), 1}));

  std::vector<start_record> other_step = equal;
  other_step[1].step = 7;  // a joiner's
  CHECK_NOTHROW(rivulet::detail::check_settings(other_step));

  for (std::size_t i = 0; i < setting_names.size(); ++i) {
    std::vector<start_record> records = equal;
    records[2].settings[i] = 0;
    records[1].settings.back() = 0;
    std::size_t const rank = i + 1 == setting_names.size() ? 1 : 2;
    std::string const text = "rivulet: ranks 0 and " + std::to_string(rank) + " differ in " +
                             std::string(setting_names[i]) + "; all workers need equal settings";
    CHECK_THROWS_WITH_AS(rivulet::detail::check_settings(records), text.c_str(),
                         rivulet::precondition_error);
  }
}

/// The settings of an engine, and what another rank might do otherwise.
struct engine {
  std::vector<float> a = std::vector<float>(10000);
  std::vector<float> b = std::vector<float>(300);
  std::string name = "a";
  std::size_t size = 10000;
  bool trainable = true;
  int fragments = 2;
  int sync_every = 100;
  std::vector<int> offsets = {};
  rivulet::sync_config config = {};
  rivulet::outer::nesterov outer = {};

  template <class C, class O = rivulet::outer::nesterov>
  [[nodiscard]] rivulet::detail::setting_hashes hashes(O const& optimizer, C const& codec = {}) {
    rivulet::parameter_set params;
    params.add(name, rivulet::layer(0), a.data(), size);
    params.add("b", rivulet::layer(1), b.data(), b.size(), trainable);
    auto const parts = rivulet::partition::balanced{fragments}(params.parameters());
    rivulet::schedule::streaming const schedule(sync_every, config.overlap_steps, fragments,
                                                config.first_sync, offsets);
    return rivulet::detail::hash_settings(params, parts, schedule, config, codec, optimizer);
  }
  [[nodiscard]] rivulet::detail::setting_hashes hashes() {
    return hashes<rivulet::codec::e3m0<64>>(outer);
  }
};

/// Names of the settings in which `other` differs from the default engine.
std::set<std::string> differences(rivulet::detail::setting_hashes const& other) {
  rivulet::detail::setting_hashes const own = engine{}.hashes();
  std::set<std::string> result;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i] != other[i]) result.insert(std::string(setting_names[i]));
  }
  return result;
}

/// A codec with an option.
struct coarse : rivulet::codec::e3m0<64> {
  std::uint64_t candidates = 1;
  [[nodiscard]] std::uint64_t fingerprint() const { return candidates; }
};

TEST_CASE("agreement: every setting that the outer bits depend on is told apart") {
  using rivulet::codec::e3m0;
  std::string const model = "the parameters (names, sizes or which are trainable)";
  struct {
    std::function<void(engine&)> change;
    std::set<std::string> differ;
  } const cases[] = {
      {[](engine&) {}, {}},
      {[&](engine& e) { e.name = "A"; }, {model}},
      {[&](engine& e) { e.size = 9999; }, {model, "the partition"}},
      {[&](engine& e) { e.trainable = false; }, {model, "the partition"}},
      {[](engine& e) { e.fragments = 3; }, {"the partition", "the offsets"}},
      {[](engine& e) { e.sync_every = 101; }, {"sync_every (H)"}},  // offsets 0, 50 as before
      {[](engine& e) {
         e.offsets = {0, 51};
       },
       {"the offsets"}},
      {[](engine& e) { e.config.first_sync = rivulet::first_sync::at_offset; }, {"first_sync"}},
      {[](engine& e) { e.config.nonfinite = rivulet::nonfinite_policy::saturate; },
       {"the nonfinite policy"}},
      {[](engine& e) { e.config.reduction = rivulet::reduce::method::all_to_all; },
       {"the reduction"}},
      {[](engine& e) { e.config.reduction = rivulet::reduce::method::all_gather; },
       {"the reduction"}},
      {[](engine& e) { e.outer.momentum = 0.8f; }, {"the outer optimizer"}},
      {[](engine& e) { e.outer.learning_rate = 0.7f; }, {"the outer learning rate"}},
      {[](engine& e) { e.config.initial = rivulet::initial_parameters::broadcast; },
       {"initial (verify or broadcast)"}},
      // Workers may differ in these.
      {[](engine& e) { e.config.overlap_steps = 5; }, {}},
      {[](engine& e) { e.config.mixing = 0.5f; }, {}},
      {[](engine& e) { e.config.weight = 3; }, {}},
      {[](engine& e) { e.config.timeout_ms = 1; }, {}}};
  for (auto const& c : cases) {
    engine other;
    c.change(other);
    CHECK(differences(other.hashes()) == c.differ);
  }
  engine e;
  using strings = std::set<std::string>;
  CHECK(differences(e.hashes<e3m0<32>>(e.outer)) == strings{"the codec"});
  CHECK(differences(e.hashes<rivulet::codec::bf16>(e.outer)) == strings{"the codec"});
  coarse finer;
  finer.candidates = 8;
  CHECK(e.hashes<coarse>(e.outer) == e.hashes<coarse>(e.outer));
  CHECK(e.hashes<coarse>(e.outer, finer) != e.hashes<coarse>(e.outer));
  using rivulet::codec::error_feedback;
  using rivulet::codec::two_stage;
  CHECK(differences(e.hashes(e.outer, error_feedback{e3m0<64>{}})) == strings{"the codec"});
  CHECK(e.hashes(e.outer, error_feedback{e3m0<64>{}}) !=
        e.hashes(e.outer, error_feedback{e3m0<64>{}, 0.5f}));
  CHECK(differences(e.hashes(e.outer, two_stage{e3m0<64>{}, e3m0<64>{}})) == strings{"the codec"});
  CHECK(differences(e.hashes<e3m0<64>>(rivulet::outer::sgd{0.4f})) ==
        strings{"the outer optimizer"});
}

TEST_CASE("agreement: a saved state does not depend on the last two settings") {
  CHECK(setting_names[rivulet::detail::saved_settings] == "the outer learning rate");
  CHECK(rivulet::detail::saved_settings + 2 == setting_names.size());
}

}  // namespace
