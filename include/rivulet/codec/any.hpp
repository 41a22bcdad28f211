#pragma once

/// \file
/// A codec that is chosen when the program runs, by a flag for example.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

/// Any codec of tiles or blocks behind one indirect call per tile: one engine is compiled for all
/// of them. Bytes, values and bits are those of the codec within; copies share it.
class any {
 public:
  static constexpr std::string_view name = "any";
  static constexpr std::uint16_t id = 0;  // on the wire, the id of the codec within

  template <Codec C>
  requires(!std::same_as<C, any>)  // NOLINTNEXTLINE: implicit, as in std::any
      any(C codec)
      : codec_(std::make_shared<C const>(std::move(codec))), functions_(&functions_of<C>) {}

  [[nodiscard]] std::string_view wire_name() const { return functions_->name; }
  [[nodiscard]] std::uint16_t wire_id() const { return functions_->id; }

  [[nodiscard]] std::size_t tile_bytes(std::size_t count) const {
    return functions_->tile_bytes(codec_.get(), count);
  }
  void encode_tile(float const* values, std::size_t count, std::byte* out,
                   std::uint64_t key) const {
    functions_->encode(codec_.get(), values, count, out, key);
  }
  void accumulate_tile(std::byte const* in, std::size_t count, float weight, float* sums) const {
    functions_->accumulate(codec_.get(), in, count, weight, sums);
  }
  [[nodiscard]] std::uint64_t fingerprint() const { return functions_->fingerprint(codec_.get()); }
  void check() const { functions_->check(codec_.get()); }

 private:
  struct functions {
    std::string_view name;
    std::uint16_t id;
    std::size_t (*tile_bytes)(void const*, std::size_t);
    void (*encode)(void const*, float const*, std::size_t, std::byte*, std::uint64_t);
    void (*accumulate)(void const*, std::byte const*, std::size_t, float, float*);
    std::uint64_t (*fingerprint)(void const*);
    void (*check)(void const*);
  };

  template <class C>
  static C const& as(void const* codec) {
    return *static_cast<C const*>(codec);
  }

  template <class C>
  static constexpr functions functions_of{
      C::name,
      C::id,
      [](void const* c, std::size_t count) { return codec::tile_bytes(as<C>(c), count); },
      [](void const* c, float const* values, std::size_t count, std::byte* out, std::uint64_t key) {
        encode_chunk(as<C>(c), values, chunk(count), out, key);
      },
      [](void const* c, std::byte const* in, std::size_t count, float weight, float* sums) {
        weighted_codes const one{{in, codec::tile_bytes(as<C>(c), count)}, weight};
        accumulate_chunk(as<C>(c), std::span(&one, 1), 0, chunk(count), sums);
      },
      [](void const* c) { return codec::fingerprint(as<C>(c)); },
      [](void const* c) { codec::check(as<C>(c)); }};

  std::shared_ptr<void const> codec_;
  functions const* functions_;
};

static_assert(TileCodec<any>);

}  // namespace rivulet::codec
