/// The inner optimizer: AdamW (Loshchilov and Hutter, arXiv 1711.05101), gradient clipping and the
/// learning rate's schedule.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

namespace train_gpt {

struct adamw_options {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
};

/// AdamW over the tensors of a model, which must outlive it. With t counted from 1 and g the
/// gradient:
///   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
///   p -= learning_rate * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay p)
/// Only tensors marked `decay` decay: matrices, the tied embedding among them, since it is the
/// output matrix too and gets a gradient in every row at every step.
///
/// The state is first_moment(), second_moment() and steps(): saved and loaded as they are, training
/// goes on bit for bit.
template <class Real>
class adamw {
 public:
  /// `tensors` is a range of objects with spans `values` and `gradient` and a bool `decay`.
  template <class Tensors>
  explicit adamw(Tensors const& tensors, adamw_options options = {}) : options_{options} {
    std::size_t count = 0;
    for (auto const& tensor : tensors) {
      tensors_.push_back({tensor.values, tensor.gradient, tensor.decay});
      count += tensor.values.size();
    }
    first_.resize(count);
    second_.resize(count);
  }

  /// m and v, in the order of the tensors.
  std::span<Real> first_moment() { return first_; }
  std::span<Real> second_moment() { return second_; }
  /// Steps taken; set it when the moments are loaded.
  std::uint64_t steps() const { return steps_; }
  void set_steps(std::uint64_t steps) { steps_ = steps; }

  void step(double learning_rate) {
    ++steps_;
    auto const t = static_cast<double>(steps_);
    auto const beta1 = static_cast<Real>(options_.beta1);
    auto const beta2 = static_cast<Real>(options_.beta2);
    auto const rest1 = static_cast<Real>(1 - options_.beta1);
    auto const rest2 = static_cast<Real>(1 - options_.beta2);
    auto const rate = static_cast<Real>(learning_rate / (1 - std::pow(options_.beta1, t)));
    auto const scale = static_cast<Real>(1 / (1 - std::pow(options_.beta2, t)));
    auto const epsilon = static_cast<Real>(options_.epsilon);
    std::size_t at = 0;
    for (slot const& s : tensors_) {
      auto const keep =
          static_cast<Real>(s.decay ? 1 - learning_rate * options_.weight_decay : 1.0);
      Real* const p = s.values.data();
      Real const* const gradient = s.gradient.data();
      Real* const m = first_.data() + at;
      Real* const v = second_.data() + at;
      std::size_t const count = s.values.size();
      // Vectorizes with -fno-math-errno, which tells that nobody reads errno after std::sqrt.
      for (std::size_t i = 0; i < count; ++i) {
        Real const g = gradient[i];
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        p[i] = keep * p[i] - rate * m[i] / (std::sqrt(v[i] * scale) + epsilon);
      }
      at += count;
    }
  }

 private:
  struct slot {
    std::span<Real> values;
    std::span<Real const> gradient;
    bool decay;
  };
  adamw_options options_;
  std::vector<slot> tensors_;
  std::vector<Real> first_;
  std::vector<Real> second_;
  std::uint64_t steps_ = 0;
};

/// Scales `gradients` so that their 2-norm is at most `limit`; returns the norm before. A norm that
/// is not finite leaves NaN behind and is for the caller to notice.
template <class Real>
double clip_by_global_norm(std::span<Real> gradients, double limit) {
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    auto const g = static_cast<double>(gradients[i]);
    squares += g * g;
  }
  double const norm = std::sqrt(squares);
  if (!(norm <= limit)) {
    auto const scale = static_cast<Real>(limit / norm);
    for (Real& g : gradients) g *= scale;
  }
  return norm;
}

/// Linear warm-up, then half a cosine from `peak` to `peak` / 10.
struct learning_rate_schedule {
  double peak;
  std::uint64_t warmup_steps;
  std::uint64_t total_steps;

  /// The rate of step `step`, from 0: peak * (step + 1) / (warmup_steps + 1) at first, peak at
  /// step = warmup_steps, peak / 10 from step = total_steps - 1 on.
  double operator()(std::uint64_t step) const {
    if (step < warmup_steps)
      return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
    double const last = static_cast<double>(total_steps) - 1 - static_cast<double>(warmup_steps);
    double const done =
        last > 0 ? std::min(1.0, static_cast<double>(step - warmup_steps) / last) : 1.0;
    return peak * (0.55 + 0.45 * std::cos(std::numbers::pi * done));
  }
};

}  // namespace train_gpt
