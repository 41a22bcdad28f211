#pragma once

/// \file
/// Codecs of a program's own, one for each concept, without kernels.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include <rivulet/codec/tile.hpp>

namespace rivulet_test {

/// A block codec: 8 bits per value, an FP32 scale for 16.
struct own_int8 {
  static constexpr std::string_view name = "own_int8";
  static constexpr std::uint16_t id = 0x8001;
  static constexpr std::size_t block_size = 16;
  static constexpr std::size_t code_bytes = 16;
  static constexpr std::size_t scale_bytes = 4;

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float most = 0;
    for (std::size_t i = 0; i < block_size; ++i) {
      if (!std::isfinite(values[i])) most = NAN;
      if (std::fabs(values[i]) > most) most = std::fabs(values[i]);
    }
    float const s = most < 0x1p-100f ? 0.0f : most / 127.001f;
    std::memcpy(scale, &s, 4);
    for (std::size_t i = 0; i < block_size; ++i) {
      double const q = s > 0 ? std::round(double{values[i]} / double{s}) : 0.0;
      codes[i] =
          static_cast<std::byte>(static_cast<std::int8_t>(std::fmin(std::fmax(q, -127), 127)));
    }
  }
  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    float s;
    std::memcpy(&s, scale, 4);
    for (std::size_t i = 0; i < block_size; ++i) {
      auto const q = static_cast<float>(static_cast<std::int8_t>(codes[i]));
      sums[i] = std::fma(q, s * weight, sums[i]);
    }
  }
};
static_assert(rivulet::BlockCodec<own_int8> && !rivulet::TileCodec<own_int8>);

/// A tile codec: the tile's key, then values as bfloat16. A short tile is not that much shorter.
struct own_keyed {
  static constexpr std::string_view name = "own_keyed";
  static constexpr std::uint16_t id = 0x8002;

  [[nodiscard]] std::size_t tile_bytes(std::size_t count) const { return 8 + 2 * count; }
  void encode_tile(float const* values, std::size_t count, std::byte* out,
                   std::uint64_t key) const {
    std::memcpy(out, &key, 8);
    for (std::size_t i = 0; i < count; ++i) {
      rivulet::bf16 const code = rivulet::to_bf16(values[i]);
      std::memcpy(out + 8 + 2 * i, &code, 2);
    }
  }
  void accumulate_tile(std::byte const* in, std::size_t count, float weight, float* sums) const {
    for (std::size_t i = 0; i < count; ++i) {
      rivulet::bf16 code;
      std::memcpy(&code, in + 8 + 2 * i, 2);
      sums[i] = std::fma(to_float(code), weight, sums[i]);
    }
  }
};
static_assert(rivulet::TileCodec<own_keyed> && !rivulet::BlockCodec<own_keyed>);

/// A message codec: 8 bits per value, scaled by the largest of the message, which comes last.
struct own_global {
  static constexpr std::string_view name = "own_global";
  static constexpr std::uint16_t id = 0x8003;

  class encoder {
   public:
    void reserve(own_global const&, std::size_t n) { values_.reserve(n); }
    void begin(own_global const&, std::size_t) { values_.clear(); }
    void offer(float const* values, std::size_t count) {
      values_.insert(values_.end(), values, values + count);
    }
    void finish(own_global const&, std::byte* out) const {
      float most = 0;
      for (float const value : values_) most = std::max(most, std::fabs(value));
      float const s = most / 127;
      for (float const value : values_) {
        float const q = value / s;
        *out++ = static_cast<std::byte>(
            static_cast<std::int8_t>(std::fabs(q) < 127.5f ? std::round(q) : 0));
      }
      std::memcpy(out, &s, 4);
    }

   private:
    std::vector<float> values_;
  };

  [[nodiscard]] std::size_t message_bytes(std::size_t n) const { return n + 4; }
  void accumulate(std::byte const* in, std::size_t n, std::size_t first, std::size_t count,
                  float weight, float* sums) const {
    float s;
    std::memcpy(&s, in + n, 4);
    for (std::size_t i = 0; i < count; ++i) {
      auto const q = static_cast<float>(static_cast<std::int8_t>(in[first + i]));
      sums[i] = std::fma(q, s * weight, sums[i]);
    }
  }
};
static_assert(rivulet::MessageCodec<own_global> && !rivulet::Codec<own_global>);

}  // namespace rivulet_test
