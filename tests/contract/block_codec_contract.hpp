#pragma once

/// \file
/// What every block codec must do.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/block_codec.hpp>

namespace rivulet_test {

/// An array with guards before and after it, `shift` elements into its allocation.
template <class T>
class guarded {
 public:
  guarded(std::size_t size, T fill, std::size_t shift = 0)
      : memory_(size + 2 * margin + shift, guard()), begin_(margin + shift), size_(size) {
    std::fill_n(memory_.data() + begin_, size_, fill);
  }

  [[nodiscard]] std::span<T> values() { return std::span(memory_).subspan(begin_, size_); }

  [[nodiscard]] bool intact() const {
    auto const is_guard = [](T const& value) { return value == guard(); };
    T const* const begin = memory_.data() + begin_;
    return std::all_of(memory_.data(), begin, is_guard) &&
           std::all_of(begin + size_, memory_.data() + memory_.size(), is_guard);
  }

 private:
  static constexpr std::size_t margin = 32;
  static T guard() { return static_cast<T>(0x5a); }

  std::vector<T> memory_;
  std::size_t begin_;
  std::size_t size_;
};

/// Normally distributed values.
inline std::vector<float> normal_values(std::size_t count, std::uint64_t seed, float scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = scale * normal(random);
  return values;
}

/// The encoded values; whatever was in memory before, every byte is written.
template <class C>
std::vector<std::byte> encoded(C const& codec, std::span<float const> values) {
  std::size_t const size = rivulet::codec::encoded_bytes<C>(values.size());
  std::vector<std::byte> bytes(size, std::byte{0x00});
  std::vector<std::byte> again(size, std::byte{0xff});
  rivulet::codec::encode(codec, values, bytes);
  rivulet::codec::encode(codec, values, again);
  REQUIRE(bytes == again);
  return bytes;
}

template <class C>
std::vector<float> decoded(C const& codec, std::span<std::byte const> bytes, std::size_t count) {
  std::vector<float> values(count, -1.0f);
  rivulet::codec::decode(codec, bytes, values);
  return values;
}

template <class C>
std::vector<float> round_trip(C const& codec, std::span<float const> values) {
  return decoded(codec, encoded(codec, values), values.size());
}

inline float largest(std::span<float const> values) {
  float result = 0;
  for (float const value : values) result = std::max(result, std::fabs(value));
  return result;
}

/// How many values come back with an error above bound(value, largest magnitude of its block), or
/// come back from the negated values as other than the opposite.
template <class C, class Bound>
int errors(C const& codec, Bound const& bound, std::span<float const> values) {
  std::vector<float> negated(values.begin(), values.end());
  for (float& value : negated) value = -value;
  std::vector<float> const back = round_trip(codec, values);
  std::vector<float> const negated_back = round_trip(codec, negated);
  int wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::size_t const first = i / C::block_size * C::block_size;
    float const most =
        largest(values.subspan(first, std::min(C::block_size, values.size() - first)));
    double const error = std::fabs(double{values[i]} - double{back[i]});
    wrong += !(error <= bound(double{values[i]}, double{most}));
    wrong += !(back[i] == -negated_back[i]);
  }
  return wrong;
}

/// Runs all of it. `bound(x, largest)` is the documented error of a finite value x in a block of
/// that largest magnitude.
template <class C, class Bound>
void block_codec_contract(C const& codec, Bound const& bound) {
  using namespace rivulet::codec;
  constexpr std::size_t block = C::block_size;
  std::string const name{C::name};
  CAPTURE(name);
  CAPTURE(block);
  static_assert(rivulet::BlockCodec<C>);
  static_assert(block_bytes<C> == C::code_bytes + C::scale_bytes);

  // Sizes, round trip and tails; bytes at any address; nothing written outside.
  for (std::size_t n = 0; n <= 3 * block + 17; ++n) {
    CAPTURE(n);
    std::size_t const count = n / block + (n % block == 0 ? 0 : 1);
    REQUIRE(blocks<C>(n) == count);
    REQUIRE(encoded_bytes<C>(n) == count * (C::code_bytes + C::scale_bytes));
    std::vector<float> const values = normal_values(n, n, n % 3 == 0 ? 1e-5f : 10.0f);
    REQUIRE(errors(codec, bound, values) == 0);
    guarded<std::byte> bytes(encoded_bytes<C>(n), std::byte{0}, n % 16);
    encode(codec, values, bytes.values());
    REQUIRE(bytes.intact());
    guarded<float> back(n, -1.0f, n % 5);
    decode(codec, bytes.values(), back.values());
    REQUIRE(back.intact());
    REQUIRE(std::ranges::equal(back.values(), round_trip(codec, values)));
    // A tail is coded as if zeros followed.
    std::vector<float> padded = values;
    padded.resize(count * block);
    REQUIRE(std::ranges::equal(bytes.values(), encoded(codec, padded)));
  }

  // Zeros are exact.
  for (float const zero : {0.0f, -0.0f}) {
    for (float const value : round_trip(codec, std::vector<float>(2 * block + 1, zero))) {
      REQUIRE(value == 0.0f);
    }
  }

  // The ends of the range, alone and among others.
  constexpr float specials[] = {FLT_TRUE_MIN, FLT_MIN / 2, FLT_MIN, 0x1p-101f, 0x1.fffffep-101f,
                                0x1p-100f,    1e-10f,      1.0f,    0x1p126f,  0x1.000002p126f,
                                0x1p127f,     3.39e38f,    FLT_MAX};
  for (float const special : specials) {
    for (float const rest : {0.0f, FLT_TRUE_MIN, 1e-30f, 1.0f, 1e38f, -FLT_MAX}) {
      CAPTURE(special);
      CAPTURE(rest);
      std::vector<float> values(block, rest);
      values[block / 2] = special;
      REQUIRE(errors(codec, bound, values) == 0);
    }
  }

  // A block with NaN or infinity shows it and harms no other.
  using limits = std::numeric_limits<float>;
  std::vector<float> const clean = normal_values(3 * block, 1);
  std::vector<float> const clean_back = round_trip(codec, clean);
  for (float const bad : {limits::quiet_NaN(), -limits::quiet_NaN(), limits::signaling_NaN(),
                          limits::infinity(), -limits::infinity()}) {
    for (std::size_t const at : {block, block + block / 2, 2 * block - 1}) {
      std::vector<float> values = clean;
      values[at] = bad;
      std::vector<float> const back = round_trip(codec, values);
      REQUIRE_FALSE(std::isfinite(back[at]));
      for (std::size_t i = 0; i < block; ++i) {
        REQUIRE(back[i] == clean_back[i]);
        REQUIRE(back[2 * block + i] == clean_back[2 * block + i]);
      }
    }
  }

  // accumulate adds the weighted values to what is there.
  std::vector<std::byte> const bytes = encoded(codec, clean);
  for (float const weight : {1.0f, 0.5f, 0.3f, -2.0f}) {
    std::vector<float> const before = normal_values(clean.size(), 2);
    std::vector<float> sums = before;
    accumulate(codec, bytes, weight, sums);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      double const added = double{weight} * double{clean_back[i]};
      double const exact = double{before[i]} + added;
      double const slack = (std::fabs(exact) + std::fabs(added)) * 0x1p-23;
      REQUIRE(std::fabs(double{sums[i]} - exact) <= slack);
    }
  }

  // Any bytes decode to something, the same each time, and nothing is written outside.
  std::mt19937_64 random(7);
  for (std::size_t round = 0; round < 64; ++round) {
    std::size_t const n = 2 * block + round % (2 * block);
    guarded<std::byte> noise(encoded_bytes<C>(n), std::byte(round == 0 ? 0xff : 0), round % 16);
    if (round > 0) {
      for (std::byte& b : noise.values()) b = static_cast<std::byte>(random());
    }
    guarded<float> one(n, 1.0f);
    guarded<float> two(n, 2.0f);
    decode(codec, noise.values(), one.values());
    decode(codec, noise.values(), two.values());
    REQUIRE(one.intact());
    auto const same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    REQUIRE(std::ranges::equal(one.values(), two.values(), same));
  }

  // Spans of the wrong size.
  std::vector<std::byte> wrong(encoded_bytes<C>(block) + 1);
  std::vector<float> values(block);
  std::string const right = std::to_string(encoded_bytes<C>(block));
  std::string const found = std::to_string(wrong.size());
  std::string const of = std::to_string(block);
  CHECK_THROWS_WITH_AS(
      encode(codec, values, wrong),
      ("rivulet: encode: " + of + " values need " + right + " bytes, not " + found).c_str(),
      rivulet::precondition_error);
  CHECK_THROWS_WITH_AS(
      decode(codec, wrong, values),
      ("rivulet: decode: " + of + " values take " + right + " bytes, not " + found).c_str(),
      rivulet::precondition_error);
}

}  // namespace rivulet_test
