#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/block_codec.hpp>
#include <rivulet/codec/e3m0.hpp>

#include "contract/block_codec_contract.hpp"

namespace {

/// A codec of a program's own: 8 bits per value, an FP32 scale for 16.
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

TEST_CASE("block_codec: a codec of a program's own") {
  rivulet_test::block_codec_contract(own_int8{}, [](double x, double largest) {
    return largest < 0x1p-100 ? std::fabs(x) : largest / 253;
  });
}

TEST_CASE("block_codec: codes of all blocks come first, then their scales") {
  std::vector<float> values(40);
  values[0] = 127.001f;    // scale 1
  values[16] = -254.002f;  // scale 2
  values[39] = 63.5005f;   // scale .5, at place 7 of a tail
  std::vector<std::byte> const bytes = rivulet_test::encoded(own_int8{}, values);
  REQUIRE(bytes.size() == 3 * 20);
  CHECK(bytes[0] == std::byte{127});
  CHECK(bytes[16] == std::byte{256 - 127});
  CHECK(bytes[32 + 7] == std::byte{127});
  float scales[3];
  std::memcpy(scales, bytes.data() + 48, 12);
  CHECK(scales[0] == 1.0f);
  CHECK(scales[1] == 2.0f);
  CHECK(scales[2] == 0.5f);
}

TEST_CASE("block_codec: the sum of blocks in any order is the checksum of the payload") {
  using codec = rivulet::codec::e3m0<32>;
  constexpr std::size_t count = 9;
  std::vector<std::byte> const payload =
      rivulet_test::encoded(codec{}, rivulet_test::normal_values(count * 32, 1));
  auto const sum_of = [&](std::size_t b) {
    return rivulet::codec::detail::block_sum<codec>(payload.data() + b * 16,
                                                    payload.data() + count * 16 + b * 2, b);
  };
  std::uint64_t backwards = 0;
  for (std::size_t b = count; b-- > 0;) backwards += sum_of(b);
  std::uint64_t const sum = rivulet::codec::detail::payload_sum<codec>(payload.data(), count);
  CHECK(sum == backwards);

  auto const changed = [&](auto const& change) {
    std::vector<std::byte> other = payload;
    change(other.data());
    return rivulet::codec::detail::payload_sum<codec>(other.data(), count) != sum;
  };
  // Two codes, two words of codes, or two scales that change places.
  CHECK(changed([](std::byte* p) { std::swap_ranges(p, p + 16, p + 16); }));
  CHECK(changed([](std::byte* p) { std::swap_ranges(p, p + 8, p + 8); }));
  CHECK(changed([](std::byte* p) {
    std::swap_ranges(p + count * 16, p + count * 16 + 2, p + count * 16 + 2);
  }));
  CHECK_FALSE(changed([](std::byte*) {}));
}

}  // namespace
