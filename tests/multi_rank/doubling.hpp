#pragma once

/// \file
/// A codec of someone else, with which means of finite values overflow.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <rivulet/rivulet.hpp>

namespace rivulet_test {

/// Decodes to twice what was encoded.
struct doubling {
  static constexpr std::string_view name = "doubling";
  static constexpr std::uint16_t id = 0x8000;
  static constexpr std::size_t block_size = 1;
  static constexpr std::size_t code_bytes = 4;
  static constexpr std::size_t scale_bytes = 0;

  void encode_block(float const* values, std::byte* codes, std::byte*) const {
    std::memcpy(codes, values, 4);
  }
  void accumulate_block(std::byte const* codes, std::byte const*, float weight, float* sums) const {
    float value = 0;
    std::memcpy(&value, codes, 4);
    sums[0] = std::fma(2 * value, weight, sums[0]);
  }
};

static_assert(rivulet::BlockCodec<doubling>);

}  // namespace rivulet_test
