#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/concepts.hpp>

#include "contract/partitioner_contract.hpp"

namespace {

using rivulet::fragment;
using rivulet::parameter;

/// A partitioner of a program's own: each parameter is a fragment, long ones are two.
struct halves {
  std::vector<fragment> operator()(std::span<parameter const> parameters) const {
    std::vector<fragment> result;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].synced()) continue;
      std::size_t const size = parameters[i].tensor.size;
      std::size_t const cut = size / 2 / rivulet::cut_elements * rivulet::cut_elements;
      if (cut > 0) result.push_back({parameters[i].name + ".0", {{i, 0, cut}}});
      result.push_back({parameters[i].name, {{i, cut, size - cut}}});
    }
    return result;
  }
};

struct other_result {
  std::vector<int> operator()(std::span<parameter const>) const { return {}; }
};
struct not_const {
  std::vector<fragment> operator()(std::span<parameter const>) { return {}; }
};
static_assert(rivulet::Partitioner<halves>);
static_assert(!rivulet::Partitioner<other_result>);
static_assert(!rivulet::Partitioner<not_const>);
static_assert(!rivulet::Partitioner<int>);

TEST_CASE("concepts: a partitioner of a program's own") {
  rivulet_test::partitioner_contract([](auto const&, int) { return halves{}; });
}

struct codec_of_3 {
  static constexpr std::string_view name = "three";
  static constexpr std::uint16_t id = 0x8001;
  static constexpr std::size_t block_size = 3;
  static constexpr std::size_t code_bytes = 12;
  static constexpr std::size_t scale_bytes = 0;
  void encode_block(float const*, std::byte*, std::byte*) const {}
  void accumulate_block(std::byte const*, std::byte const*, float, float*) const {}
};
struct codec_of_4 : codec_of_3 {
  static constexpr std::size_t block_size = 4;
};
struct nameless_codec : codec_of_4 {
 private:
  using codec_of_4::name;
};
static_assert(rivulet::BlockCodec<codec_of_4>);
static_assert(!rivulet::BlockCodec<codec_of_3>, "3 does not divide 4096");
static_assert(!rivulet::BlockCodec<nameless_codec>);

struct optimizer {
  float learning_rate = 1;
  static constexpr std::size_t state_slots = 2;
  [[nodiscard]] float step(float theta, float, float*) const { return theta; }
  [[nodiscard]] std::uint64_t fingerprint() const { return 0; }
  void check() const {}
};
struct optimizer_in_double : optimizer {
  [[nodiscard]] double step(float theta, float, float*) const { return theta; }
};
static_assert(rivulet::OuterOptimizer<optimizer>);
static_assert(!rivulet::OuterOptimizer<optimizer_in_double>);

struct executor {
  template <class F>
  void for_each_tile(std::size_t, F const&) const {}
};
static_assert(rivulet::Executor<executor>);
static_assert(!rivulet::Executor<optimizer>);

struct schedule {
  [[nodiscard]] int fragments() const { return 1; }
  [[nodiscard]] int max_in_flight() const { return 1; }
  template <class Visit>
  void for_each_event(std::int64_t, Visit&&) const {}
};
static_assert(rivulet::SyncSchedule<schedule>);
static_assert(!rivulet::SyncSchedule<executor>);

}  // namespace
