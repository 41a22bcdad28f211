#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/float32.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::float32;

TEST_CASE("float32: the payload is the values, byte for byte") {
  std::vector<float> const values = rivulet_test::normal_values(101, 1);
  std::vector<std::byte> const bytes = rivulet_test::encoded(float32{}, values);
  REQUIRE(bytes.size() == 404);
  CHECK(std::memcmp(bytes.data(), values.data(), 404) == 0);
}

TEST_CASE("float32: any bits but NaN come back, but for the sign of zero") {
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 65521) {
    auto const value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (value == value) values.push_back(value);
  }
  for (bool const vectors : {false, true}) {
    rivulet_test::kernels const use(vectors);
    CHECK(rivulet_test::round_trip(float32{}, values) == values);
  }
}

}  // namespace
