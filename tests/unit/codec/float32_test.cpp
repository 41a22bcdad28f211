#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/float32.hpp>

#include "contract/block_codec_contract.hpp"

namespace {

using rivulet::codec::float32;

TEST_CASE("float32: meets the contract without error") {
  rivulet_test::block_codec_contract(float32{}, [](double, double) { return 0.0; });
}

TEST_CASE("float32: the payload is the values, byte for byte") {
  std::vector<float> const values = rivulet_test::normal_values(101, 1);
  std::vector<std::byte> const bytes = rivulet_test::encoded(float32{}, values);
  REQUIRE(bytes.size() == 404);
  CHECK(std::memcmp(bytes.data(), values.data(), 404) == 0);
}

TEST_CASE("float32: any bits but NaN come back") {
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 65521) {
    auto const value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (value != value) continue;
    REQUIRE(rivulet_test::round_trip(float32{}, std::vector<float>{value})[0] == value);
  }
}

}  // namespace
