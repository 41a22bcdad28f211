#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/bf16.hpp>

#include "contract/codec_tools.hpp"

namespace {

using codec_bf16 = rivulet::codec::bf16;

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
  // Alone, and among so many that the kernels run.
  for (std::size_t const count : {std::size_t{1}, std::size_t{40}}) {
    for (bool const vectors : {false, true}) {
      rivulet_test::kernels const use(vectors);
      for (auto const& c : cases) {
        CAPTURE(c.value);
        std::vector<float> const values(count, c.value);
        std::vector<std::byte> const bytes = rivulet_test::encoded(codec_bf16{}, values);
        REQUIRE(bytes.size() == 2 * count);
        for (std::size_t i = 0; i < count; ++i) {
          CHECK((static_cast<unsigned>(bytes[2 * i]) | static_cast<unsigned>(bytes[2 * i + 1])
                                                           << 8) == c.code);
        }
        CHECK(rivulet_test::decoded(codec_bf16{}, bytes, count) ==
              std::vector<float>(count, c.decoded));
      }
    }
  }
}

TEST_CASE("codec bf16: every code comes back, whatever the kernel") {
  std::vector<float> values;
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    float const value = rivulet::to_float(rivulet::bf16{static_cast<std::uint16_t>(code)});
    if (!std::isnan(value)) values.push_back(value);
  }
  for (bool const vectors : {false, true}) {
    rivulet_test::kernels const use(vectors);
    CHECK(rivulet_test::round_trip(codec_bf16{}, values) == values);
  }
}

}  // namespace
