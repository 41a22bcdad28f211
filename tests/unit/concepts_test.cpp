#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/error_feedback.hpp>
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

struct tile_codec {
  static constexpr std::string_view name = "tiles";
  static constexpr std::uint16_t id = 0x8002;
  [[nodiscard]] std::size_t tile_bytes(std::size_t) const { return 1; }
  void encode_tile(float const*, std::size_t, std::byte*, std::uint64_t) const {}
  void accumulate_tile(std::byte const*, std::size_t, float, float*) const {}
};
struct without_a_key : tile_codec {
  void encode_tile(float const*, std::size_t, std::byte*) const {}
};
struct without_const : tile_codec {
  void encode_tile(float const*, std::size_t, std::byte*, std::uint64_t) {}
};
struct of_no_size : tile_codec {
  void tile_bytes(std::size_t) const {}
};
struct nameless_tiles : tile_codec {
 private:
  using tile_codec::id;
};
static_assert(rivulet::TileCodec<tile_codec> && !rivulet::BlockCodec<tile_codec>);
static_assert(!rivulet::TileCodec<without_a_key>);
static_assert(!rivulet::TileCodec<without_const>);
static_assert(!rivulet::TileCodec<of_no_size>);
static_assert(!rivulet::TileCodec<nameless_tiles>);
static_assert(!rivulet::TileCodec<codec_of_4>);
static_assert(rivulet::Codec<tile_codec> && rivulet::Codec<codec_of_4>);
static_assert(!rivulet::Codec<without_a_key> && !rivulet::Codec<codec_of_3>);

struct message_codec {
  static constexpr std::string_view name = "messages";
  static constexpr std::uint16_t id = 0x8003;
  struct encoder {
    void reserve(message_codec const&, std::size_t) {}
    void begin(message_codec const&, std::size_t) {}
    void offer(float const*, std::size_t) {}
    void finish(message_codec const&, std::byte*) {}
  };
  [[nodiscard]] std::size_t message_bytes(std::size_t) const { return 1; }
  void accumulate(std::byte const*, std::size_t, std::size_t, std::size_t, float, float*) const {}
};
struct without_an_encoder : message_codec {
 private:
  using message_codec::encoder;
};
struct that_allocates_late : message_codec {
  struct encoder {
    void begin(message_codec const&, std::size_t) {}
    void offer(float const*, std::size_t) {}
    void finish(message_codec const&, std::byte*) {}
  };
};
struct that_decodes_all_at_once : message_codec {
  void accumulate(std::byte const*, std::size_t, float, float*) const {}
};
static_assert(rivulet::MessageCodec<message_codec> && !rivulet::Codec<message_codec>);
static_assert(!rivulet::MessageCodec<without_an_encoder>);
static_assert(!rivulet::MessageCodec<that_allocates_late>);
static_assert(!rivulet::MessageCodec<that_decodes_all_at_once>);
static_assert(!rivulet::MessageCodec<tile_codec>);

static_assert(rivulet::FragmentCodec<codec_of_4> && rivulet::FragmentCodec<tile_codec>);
static_assert(rivulet::FragmentCodec<message_codec>);
static_assert(!rivulet::FragmentCodec<codec_of_3> && !rivulet::FragmentCodec<int>);

using rivulet::codec::error_feedback;
using rivulet::codec::two_stage;
static_assert(rivulet::SyncCodec<codec_of_4> && rivulet::SyncCodec<message_codec>);
static_assert(rivulet::SyncCodec<error_feedback<tile_codec>>);
static_assert(rivulet::SyncCodec<error_feedback<two_stage<message_codec, codec_of_4>>>);
static_assert(!rivulet::SyncCodec<codec_of_3> && !rivulet::SyncCodec<error_feedback<codec_of_3>>);
static_assert(!rivulet::SyncCodec<two_stage<codec_of_4, codec_of_3>>);
static_assert(!rivulet::SyncCodec<two_stage<error_feedback<codec_of_4>, codec_of_4>>);

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
