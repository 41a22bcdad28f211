#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/bf16.hpp>

#include "contract/block_codec_contract.hpp"

namespace {

using codec_bf16 = rivulet::codec::bf16;

TEST_CASE("codec bf16: meets the contract within 2^-8 of the value") {
  rivulet_test::block_codec_contract(codec_bf16{}, [](double x, double) {
    return std::max(std::fabs(x) * 0x1p-8, 0x1p-134);  // below 2^-126 half a subnormal step
  });
}

TEST_CASE("codec bf16: bytes and values by hand") {
  struct {
    float value;
    std::uint16_t code;
    float decoded;
  } const cases[] = {{1.0f, 0x3f80, 1.0f},
                     {-2.5f, 0xc020, -2.5f},
                     {1.00390625f, 0x3f80, 1.0f},         // a tie, to even
                     {1.01171875f, 0x3f82, 1.015625f},    // a tie, to even
                     {0x1.fep127f, 0x7f7f, 0x1.fep127f},  // the largest
                     {FLT_MAX, 0x7f7f, 0x1.fep127f},      // saturates
                     {-FLT_MAX, 0xff7f, -0x1.fep127f},
                     {INFINITY, 0x7f80, INFINITY},
                     {-INFINITY, 0xff80, -INFINITY}};
  for (auto const& c : cases) {
    CAPTURE(c.value);
    std::vector<std::byte> const bytes =
        rivulet_test::encoded(codec_bf16{}, std::vector<float>{c.value});
    REQUIRE(bytes.size() == 2);
    CHECK((static_cast<unsigned>(bytes[0]) | static_cast<unsigned>(bytes[1]) << 8) == c.code);
    CHECK(rivulet_test::decoded(codec_bf16{}, bytes, 1)[0] == c.decoded);
  }
}

}  // namespace
