#pragma once

/// \file
/// Values rounded to bfloat16.

#include <cstring>

#include <rivulet/codec/block_codec.hpp>

namespace rivulet::codec {

/// 2 bytes per value, round to nearest even: relative error at most 2^-8 (normal values). A finite
/// value beyond the largest bfloat16, 3.39e38, saturates to it.
struct bf16 {
  static constexpr std::string_view name = "bf16";
  static constexpr std::uint16_t id = 2;
  static constexpr std::size_t block_size = 1;
  static constexpr std::size_t code_bytes = 2;
  static constexpr std::size_t scale_bytes = 0;

  void encode_block(float const* values, std::byte* codes, std::byte*) const {
    rivulet::bf16 code = to_bf16(*values);
    bool const overflowed = (code.bits & 0x7fffu) == 0x7f80u && rivulet::detail::is_finite(*values);
    if (overflowed) --code.bits;  // the largest finite value of that sign
    std::memcpy(codes, &code.bits, 2);
  }
  void accumulate_block(std::byte const* codes, std::byte const*, float weight, float* sums) const {
    rivulet::bf16 code;
    std::memcpy(&code.bits, codes, 2);
    *sums = rivulet::detail::fma(to_float(code), weight, *sums);
  }
};

static_assert(BlockCodec<bf16>);

}  // namespace rivulet::codec
