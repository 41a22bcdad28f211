#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/outer/nesterov.hpp>
#include <rivulet/outer/sgd.hpp>

#include "contract/codec_contract.hpp"

namespace {

using rivulet::outer::sgd;

static_assert(sgd::state_slots == 0);

TEST_CASE("sgd: the step by hand") {
  CHECK(sgd{0.5f}.step(1.0f, 0.25f, nullptr) == 0.875f);
  CHECK(sgd{}.step(1.0f, 0.25f, nullptr) == 0.75f);  // the mean of the workers
  CHECK(sgd{2.0f}.step(-1.0f, -3.0f, nullptr) == 5.0f);
  CHECK(sgd{0.0f}.step(1.5f, 7.0f, nullptr) == 1.5f);
}

TEST_CASE("sgd: the step rounds once") {
  float const x = 1.0f + 0x1p-12f;  // x * x = 1 + 2^-11 + 2^-24
  CHECK(sgd{x}.step(1.0f + 0x1p-11f, x, nullptr) == -0x1p-24f);
}

#if defined(RIVULET_AVX2)

RIVULET_AVX2 void step_8(sgd const& optimizer, float const* theta, float const* mean, float* next) {
  __m256 slots[1] = {_mm256_setzero_ps()};
  _mm256_storeu_ps(
      next, sgd::avx2::step(optimizer, _mm256_loadu_ps(theta), _mm256_loadu_ps(mean), slots));
}

TEST_CASE("sgd: the vector step gives the bits of the scalar one") {
  if (!rivulet_test::has_vectors()) return;
  using rivulet_test::contract::input;
  for (input const kind : rivulet_test::contract::all_inputs) {
    std::vector<float> const theta = rivulet_test::contract::values_of(kind, 4096, 1);
    std::vector<float> const mean = rivulet_test::contract::values_of(kind, 4096, 2);
    for (float const rate : {0.0f, 0.7f, 1.0f, 1e30f}) {
      std::vector<float> scalar(4096);
      std::vector<float> vector(4096);
      for (std::size_t i = 0; i < 4096; ++i) {
        scalar[i] = sgd{rate}.step(theta[i], mean[i], nullptr);
        if (i % 8 == 0) step_8(sgd{rate}, &theta[i], &mean[i], &vector[i]);
      }
      CHECK(rivulet_test::contract::same_values(scalar, vector));
    }
  }
}

#endif

TEST_CASE("sgd: check takes a learning rate that is finite and not negative") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (float const rate : {0.0f, 1e-30f, 1.0f, 1e30f}) CHECK_NOTHROW(sgd{rate}.check());
  struct {
    float rate;
    char const* text;
  } const refused[] = {
      {-0.5f, "rivulet: outer learning_rate = -0.500000 must be finite and not negative"},
      {infinity, "rivulet: outer learning_rate = inf must be finite and not negative"},
      {NAN, "rivulet: outer learning_rate = nan must be finite and not negative"}};
  for (auto const& c : refused) {
    CHECK_THROWS_WITH_AS(sgd{c.rate}.check(), c.text, rivulet::precondition_error);
  }
}

TEST_CASE("sgd: the fingerprint is of the kind alone, the rate travels with each message") {
  CHECK(sgd{0.1f}.fingerprint() == sgd{0.2f}.fingerprint());
  CHECK(sgd{}.fingerprint() != rivulet::outer::nesterov{1.0f, 0.0f}.fingerprint());
}

}  // namespace
