#pragma once

/// \file
/// Test data and accuracy.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace codec_bench {

/// Random numbers that are the same with every standard library, whose distributions are not.
class random_values {
 public:
  explicit random_values(std::uint64_t seed) : bits_{seed} {}

  /// N(0, 1), by the transform of Box and Muller.
  double normal() {
    if (std::exchange(has_spare_, !has_spare_)) return spare_;
    double const radius = std::sqrt(-2 * std::log(1 - uniform()));
    double const angle = 2 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }
  /// Student's t with 3 degrees of freedom.
  double student_t3() {
    double const a = normal(), b = normal(), c = normal();
    return normal() / std::sqrt((a * a + b * b + c * c) / 3);
  }

 private:
  double uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }  // 0 <= u < 1

  std::mt19937_64 bits_;
  double spare_ = 0;
  bool has_spare_ = false;
};

/// 10 log10 of sum x^2 / sum (x - y)^2; infinite if they are equal.
inline double signal_to_noise_db(std::span<float const> x, std::span<float const> y) {
  double signal = 0;
  double noise = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    double const value = static_cast<double>(x[i]);
    double const error = value - static_cast<double>(y[i]);
    signal += value * value;
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

}  // namespace codec_bench
