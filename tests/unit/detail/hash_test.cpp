#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/detail/hash.hpp>

namespace {

using rivulet::detail::hash;
using rivulet::detail::load_word;
using rivulet::detail::mixed_sum;
using rivulet::detail::mixed_word;
using bytes = std::vector<std::byte>;

bytes random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  bytes result(count);
  for (std::byte& b : result) b = static_cast<std::byte>(random());
  return result;
}

std::uint64_t sum(bytes const& b) { return mixed_sum(b.data(), b.size()); }

TEST_CASE("hash: mix is the finalizer of SplitMix64") {
  // Its first outputs for the seed 0 (Vigna, splitmix64.c).
  std::uint64_t state = 0;
  for (std::uint64_t const expected :
       {0xe220a8397b1dcdafu, 0x6e789e6aa1b965f4u, 0x06c45d188009454fu}) {
    CHECK(rivulet::detail::mix(state += 0x9e3779b97f4a7c15u) == expected);
  }
}

TEST_CASE("hash: sequences that differ in anything differ") {
  using std::string_view;
  std::set<std::uint64_t> const values = {
      hash{}.value(),
      hash{}.add(std::uint64_t{0}).value(),
      hash{}.add(std::uint64_t{0}).add(std::uint64_t{0}).value(),
      hash{}.add(std::uint64_t{1}).add(std::uint64_t{2}).value(),
      hash{}.add(std::uint64_t{2}).add(std::uint64_t{1}).value(),
      hash{}.add(1.0f).value(),
      hash{}.add(-1.0f).value(),
      hash{}.add(-0.0f).value(),
      hash{}.add(string_view("")).add(string_view("ab")).value(),
      hash{}.add(string_view("a")).add(string_view("b")).value(),
      hash{}.add(string_view("ab")).add(string_view("")).value(),
      hash{}.add(string_view("ab")).value()};
  CHECK(values.size() == 12);
  CHECK(hash{}.add(string_view("ab")).value() == hash{}.add(string_view("ab")).value());
  CHECK(hash{}.add(0.0f).value() == hash{}.add(std::uint64_t{0}).value());  // by bits
}

TEST_CASE("hash: load_word is little-endian and stops at the end") {
  bytes const b = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5},
                   std::byte{6}, std::byte{7}, std::byte{8}, std::byte{9}};
  CHECK(load_word(b.data(), 9) == 0x0807060504030201u);
  CHECK(load_word(b.data(), 8) == 0x0807060504030201u);
  CHECK(load_word(b.data(), 3) == 0x030201u);
  CHECK(load_word(b.data(), 0) == 0);
  CHECK(load_word(b.data() + 1, 8) == 0x0908070605040302u);
}

TEST_CASE("hash: mixed_sum is the sum of its words in any order and any split") {
  bytes const b = random_bytes(101, 1);
  std::uint64_t backwards = 0;
  for (std::size_t word = 13; word-- > 0;) {
    backwards += mixed_word(load_word(b.data() + word * 8, 101 - word * 8), word * 8);
  }
  CHECK(sum(b) == backwards);
  for (std::size_t cut = 0; cut <= 101; cut += 8) {
    CHECK(mixed_sum(b.data(), cut) + mixed_sum(b.data() + cut, 101 - cut, cut) == sum(b));
  }
  CHECK(mixed_sum(b.data(), 0) == 0);
  // In three pieces, and as a piece of something longer.
  CHECK(mixed_sum(b.data(), 40) + mixed_sum(b.data() + 40, 8, 40) +
            mixed_sum(b.data() + 48, 53, 48) ==
        sum(b));
  CHECK(mixed_sum(b.data(), 64, 1000) + mixed_sum(b.data() + 64, 37, 1064) ==
        mixed_sum(b.data(), 101, 1000));
}

TEST_CASE("hash: mixed_sum notices every flipped bit") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    bytes b = random_bytes(61, seed);
    std::uint64_t const before = sum(b);
    for (std::size_t bit = 0; bit < 8 * b.size(); ++bit) {
      b[bit / 8] ^= std::byte(1u << (bit % 8));
      REQUIRE(sum(b) != before);
      b[bit / 8] ^= std::byte(1u << (bit % 8));
    }
  }
}

TEST_CASE("hash: a word changes the sum even where a factor of its product is 0") {
  constexpr std::uint64_t key = 0x9e3779b97f4a7c15u;  // of index 0
  std::uint64_t const no_high = (0u - (key >> 32)) << 32;
  std::uint64_t const no_low = (0u - key) & 0xffffffffu;
  for (unsigned bit = 0; bit < 32; ++bit) {
    CHECK(mixed_word(no_high | std::uint64_t{1} << bit, 0) != mixed_word(no_high, 0));
    CHECK(mixed_word(no_low | std::uint64_t{1} << (bit + 32), 0) != mixed_word(no_low, 0));
  }
}

TEST_CASE("hash: mixed_sum notices words that move, vanish or repeat") {
  bytes const b = random_bytes(80, 3);
  auto const word = [](bytes& of, std::size_t i) { return of.begin() + std::ptrdiff_t(8 * i); };
  for (std::size_t i = 0; i < 10; ++i) {
    for (std::size_t j = i + 1; j < 10; ++j) {
      bytes swapped = b;
      std::swap_ranges(word(swapped, i), word(swapped, i + 1), word(swapped, j));
      REQUIRE(sum(swapped) != sum(b));
    }
    bytes without = b;
    without.erase(word(without, i), word(without, i + 1));
    REQUIRE(sum(without) != sum(b));
    bytes zeroed = b;
    std::fill(word(zeroed, i), word(zeroed, i + 1), std::byte{0});
    REQUIRE(sum(zeroed) != sum(b));
  }
  bytes longer = b;
  longer.resize(88);
  CHECK(sum(longer) != sum(b));  // even by zeros
  CHECK(mixed_sum(b.data(), 80, 1) != sum(b));
}

}  // namespace
