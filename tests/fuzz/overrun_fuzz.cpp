/// The fuzzer of codecs over one that touches the float behind a value for some codes: it must find
/// that.

#define RIVULET_FUZZ_CODEC overrun

#include <cstddef>
#include <cstdint>

#include "contract/all_codecs.hpp"

namespace rivulet_test::codecs {

struct overrun_codec {
  static constexpr std::string_view name = "overrun";
  static constexpr std::uint16_t id = 0x8001;
  static constexpr std::size_t block_size = 1;
  static constexpr std::size_t code_bytes = 2;
  static constexpr std::size_t scale_bytes = 0;

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    rivulet::codec::bf16{}.encode_block(values, codes, scale);
  }
  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    rivulet::codec::bf16{}.accumulate_block(codes, scale, weight, sums);
    if (codes[1] == std::byte{0x5a}) sums[1] += 0.0f;
  }
};

inline auto overrun() { return tested_codec{overrun_codec{}, bf16().promises}; }

}  // namespace rivulet_test::codecs

#include "fuzz/codec_fuzz.cpp"
