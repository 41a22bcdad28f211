#pragma once

/// \file
/// Values for tests of codecs, and what becomes of them.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/array.hpp>

#include "contract/any_codec.hpp"

namespace rivulet_test {

/// An array with guards before and after it, `shift` elements into its allocation.
template <class T>
class guarded {
 public:
  guarded(std::size_t size, T fill, std::size_t shift = 0)
      : memory_(size + 2 * margin + shift, guard()), begin_(margin + shift), size_(size) {
    for (T& value : values()) value = fill;
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

template <class Distribution>
std::vector<float> random_values(Distribution distribution, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

inline std::vector<float> normal_values(std::size_t count, std::uint64_t seed, float scale = 1) {
  return random_values(std::normal_distribution<float>(0, scale), count, seed);
}

/// Signal to noise in dB.
inline double signal_to_noise(std::span<float const> values, std::span<float const> back) {
  double signal = 0;
  double noise = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    double const error = double{values[i]} - double{back[i]};
    signal += double{values[i]} * double{values[i]};
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

/// The encoded values; whatever was in memory before, every byte is written.
template <rivulet::Codec C>
std::vector<std::byte> encoded(C const& codec, std::span<float const> values,
                               std::uint64_t seed = 0) {
  std::size_t const size = rivulet::codec::encoded_bytes(codec, values.size());
  std::vector<std::byte> bytes(size, std::byte{0x00});
  std::vector<std::byte> again(size, std::byte{0xff});
  rivulet::codec::encode(codec, values, bytes, seed);
  rivulet::codec::encode(codec, values, again, seed);
  REQUIRE(bytes == again);
  return bytes;
}

template <rivulet::Codec C>
std::vector<float> decoded(C const& codec, std::span<std::byte const> bytes, std::size_t count) {
  std::vector<float> values(count, -1.0f);
  rivulet::codec::decode(codec, bytes, values);
  return values;
}

template <rivulet::Codec C>
std::vector<float> round_trip(C const& codec, std::span<float const> values) {
  return decoded(codec, encoded(codec, values), values.size());
}

/// That of what a codec makes of the values, in dB.
template <rivulet::Codec C>
double signal_to_noise(C const& codec, std::span<float const> values) {
  return signal_to_noise(values, std::span<float const>(round_trip(codec, values)));
}

inline float largest(std::span<float const> values) {
  float result = 0;
  for (float const value : values) result = std::max(result, std::fabs(value));
  return result;
}

/// Calls f with the vector kernels on, where there are any, and off.
template <class F>
void with_both_kernels(F const& f) {
  f();
  kernels const scalar(false);
  f();
}

}  // namespace rivulet_test
