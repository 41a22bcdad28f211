#pragma once

/// \file
/// Outer stochastic gradient descent; with learning rate 1 it averages the workers (local SGD).

#include <rivulet/concepts.hpp>
#include <rivulet/detail/hash.hpp>

namespace rivulet::outer {

/// Theta <- Theta - eta * D, one fma.
struct sgd {
  float learning_rate = 1.0f;  ///< eta >= 0

  static constexpr std::size_t state_slots = 0;

  [[nodiscard]] RIVULET_HOST_DEVICE float step(float theta, float mean, float*) const {
    return rivulet::detail::fma(-learning_rate, mean, theta);
  }
#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static __m256 step(sgd const& outer, __m256 theta, __m256 mean,
                                         __m256 (&)[1]) {
      return _mm256_fmadd_ps(_mm256_set1_ps(-outer.learning_rate), mean, theta);
    }
  };
#endif
  [[nodiscard]] std::uint64_t fingerprint() const {
    return rivulet::detail::hash{}.add("sgd").value();
  }
  /// Throws precondition_error unless eta is finite and not negative.
  void check() const {
    rivulet::detail::require(rivulet::detail::is_finite(learning_rate) && learning_rate >= 0,
                             "outer learning_rate = ", learning_rate,
                             " must be finite and not negative");
  }
};

static_assert(OuterOptimizer<sgd>);

}  // namespace rivulet::outer
