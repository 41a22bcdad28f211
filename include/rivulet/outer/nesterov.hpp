#pragma once

/// \file
/// Outer SGD with Nesterov momentum, the outer optimizer of DiLoCo (arXiv 2311.08105, section 2).

#include <rivulet/concepts.hpp>
#include <rivulet/detail/hash.hpp>

namespace rivulet::outer {

/// m <- mu * m + D;  Theta <- Theta - eta * (D + mu * m). No dampening, no weight decay.
/// A momentum below 2^-100 becomes 0.
struct nesterov {
  float learning_rate = 0.4f;  ///< eta >= 0; 0.4 in the streaming paper, 0.7 in DiLoCo's
  float momentum = 0.9f;       ///< mu, from 0 to 1

  static constexpr std::size_t state_slots = 1;  // m

  [[nodiscard]] RIVULET_HOST_DEVICE float step(float theta, float mean, float* slots) const {
    float m = rivulet::detail::fma(momentum, slots[0], mean);
    m = (m < rivulet::detail::smallest_kept && m > -rivulet::detail::smallest_kept) ? 0.0f : m;
    slots[0] = m;
    return rivulet::detail::fma(-learning_rate, rivulet::detail::fma(momentum, m, mean), theta);
  }
#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static __m256 step(nesterov const& outer, __m256 theta, __m256 mean,
                                         __m256 (&slots)[2]) {
      __m256 const mu = _mm256_set1_ps(outer.momentum);
      __m256 const m = _mm256_fmadd_ps(mu, slots[0], mean);
      __m256 const magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), m);
      __m256 const least = _mm256_set1_ps(rivulet::detail::smallest_kept);
      slots[0] = _mm256_andnot_ps(_mm256_cmp_ps(magnitude, least, _CMP_LT_OQ), m);
      __m256 const direction = _mm256_fmadd_ps(mu, slots[0], mean);
      return _mm256_fmadd_ps(_mm256_set1_ps(-outer.learning_rate), direction, theta);
    }
  };
#endif
  [[nodiscard]] std::uint64_t fingerprint() const {
    return rivulet::detail::hash{}.add("nesterov").add(momentum).value();
  }
  /// Throws precondition_error unless eta is finite and not negative, and mu in 0 .. 1.
  void check() const {
    rivulet::detail::require(rivulet::detail::is_finite(learning_rate) && learning_rate >= 0,
                             "outer learning_rate = ", learning_rate,
                             " must be finite and not negative");
    rivulet::detail::require(momentum >= 0 && momentum <= 1, "outer momentum = ", momentum,
                             " must be from 0 to 1");
  }
};

static_assert(OuterOptimizer<nesterov>);

}  // namespace rivulet::outer
