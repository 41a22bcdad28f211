#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/outer/nesterov.hpp>

#include "contract/codec_contract.hpp"

namespace {

using rivulet::outer::nesterov;

static_assert(nesterov::state_slots == 1);

TEST_CASE("nesterov: steps by hand") {
  // eta and mu 1/2: m <- m / 2 + D, theta <- theta - (D + m / 2) / 2.
  nesterov const optimizer{0.5f, 0.5f};
  float momentum = 0;
  float theta = 1;
  struct {
    float mean, momentum, theta;
  } const steps[] = {
      {1, 1, 0.25f}, {1, 1.5f, -0.625f}, {-2, -1.25f, 0.6875f}, {0, -0.625f, 0.84375f}};
  for (auto const& s : steps) {
    theta = optimizer.step(theta, s.mean, &momentum);
    CHECK(momentum == s.momentum);
    CHECK(theta == s.theta);
  }
}

TEST_CASE("nesterov: without momentum it is gradient descent") {
  float momentum = 3;
  CHECK(nesterov{0.5f, 0.0f}.step(1.0f, 0.5f, &momentum) == 0.75f);
  CHECK(momentum == 0.5f);
}

TEST_CASE("nesterov: the formula in double precision, and its bits by fma") {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  nesterov const optimizer{0.7f, 0.9f};
  for (int i = 0; i < 10000; ++i) {
    float const theta = normal(random);
    float const mean = normal(random);
    float const before = normal(random);
    float momentum = before;
    float const result = optimizer.step(theta, mean, &momentum);
    double const mu = double{0.9f};
    double const m = mu * double{before} + double{mean};
    double const exact = double{theta} - double{0.7f} * (double{mean} + mu * m);
    REQUIRE(std::fabs(double{result} - exact) < 1e-6);
    REQUIRE(std::fabs(double{momentum} - m) < 1e-6);
    float const new_momentum = std::fma(0.9f, before, mean);
    REQUIRE(momentum == new_momentum);
    REQUIRE(result == std::fma(-0.7f, std::fma(0.9f, new_momentum, mean), theta));
  }
}

TEST_CASE("nesterov: momenta below 2^-100 become 0") {
  struct {
    float momentum, mean, expected;
  } const cases[] = {
      {0x1p-100f, 0, 0},          {-0x1p-100f, 0, 0},       {0x1p-99f, 0, 0x1p-100f},
      {-0x1p-99f, 0, -0x1p-100f}, {0x1.fffffep-100f, 0, 0}, {0, 0x1.fffffep-101f, 0},
      {0, -0x1.fffffep-101f, 0},  {0, 0x1p-149f, 0},        {0, 0x1p-100f, 0x1p-100f}};
  for (auto const& c : cases) {
    CAPTURE(c.momentum);
    CAPTURE(c.mean);
    float momentum = c.momentum;
    float const theta = nesterov{1.0f, 0.5f}.step(0.0f, c.mean, &momentum);
    CHECK(momentum == c.expected);
    CHECK(theta == -(c.mean + 0.5f * c.expected));
  }
}

#if defined(RIVULET_AVX2)

RIVULET_AVX2 void step_8(nesterov const& optimizer, float* theta, float const* mean,
                         float* momentum) {
  __m256 slots[2] = {_mm256_loadu_ps(momentum), _mm256_setzero_ps()};
  __m256 const next =
      nesterov::avx2::step(optimizer, _mm256_loadu_ps(theta), _mm256_loadu_ps(mean), slots);
  _mm256_storeu_ps(theta, next);
  _mm256_storeu_ps(momentum, slots[0]);
}

/// Whether both kinds of step leave the same.
bool steps_alike(nesterov const& optimizer, std::vector<float> theta, std::vector<float> mean,
                 std::vector<float> momentum) {
  std::vector<float> vector_theta = theta;
  std::vector<float> vector_momentum = momentum;
  for (std::size_t i = 0; i < theta.size(); ++i) {
    if (i % 8 == 0) step_8(optimizer, &vector_theta[i], &mean[i], &vector_momentum[i]);
    theta[i] = optimizer.step(theta[i], mean[i], &momentum[i]);
  }
  return rivulet_test::contract::same_values(theta, vector_theta) &&
         rivulet_test::contract::same_values(momentum, vector_momentum);
}

TEST_CASE("nesterov: the vector step gives the bits of the scalar one") {
  if (!rivulet_test::has_vectors()) return;
  using rivulet_test::contract::input;
  using rivulet_test::contract::values_of;
  for (input const kind : rivulet_test::contract::all_inputs) {
    CAPTURE(static_cast<int>(kind));
    for (nesterov const optimizer :
         {nesterov{0.7f, 0.9f}, nesterov{0.0f, 0.0f}, nesterov{1.0f, 1.0f}}) {
      CHECK(steps_alike(optimizer, values_of(kind, 4096, 1), values_of(kind, 4096, 2),
                        values_of(kind, 4096, 3)));
    }
  }
}

TEST_CASE("nesterov: the vector step flushes tiny momenta as the scalar one does") {
  if (!rivulet_test::has_vectors()) return;
  constexpr float edges[] = {
      0x1p-100f, 0x1.fffffep-101f, 0x1.000002p-100f, 0x1p-99f, 0x1p-126f, 0x1p-149f, 0.0f, 1.0f};
  std::vector<float> means;
  std::vector<float> momenta;
  for (float const mean : edges) {
    for (float const momentum : edges) {
      for (float const sign : {1.0f, -1.0f}) {
        means.insert(means.end(), {mean, -mean});
        momenta.insert(momenta.end(), 2, sign * momentum);
      }
    }
  }
  for (float const mu : {0.0f, 0.5f, 1.0f}) {
    CHECK(steps_alike(nesterov{1.0f, mu}, std::vector<float>(means.size(), -0.0f), means, momenta));
  }
}

#endif

TEST_CASE("nesterov: check takes a finite rate and a momentum of 0 to 1") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (float const momentum : {0.0f, 0.9f, 1.0f}) CHECK_NOTHROW(nesterov{0.4f, momentum}.check());
  CHECK_NOTHROW(nesterov{}.check());
  struct {
    nesterov optimizer;
    char const* text;
  } const refused[] = {
      {{-1, 0.9f}, "rivulet: outer learning_rate = -1.000000 must be finite and not negative"},
      {{infinity, 0.9f}, "rivulet: outer learning_rate = inf must be finite and not negative"},
      {{0.4f, -0.5f}, "rivulet: outer momentum = -0.500000 must be from 0 to 1"},
      {{0.4f, 1.5f}, "rivulet: outer momentum = 1.500000 must be from 0 to 1"},
      {{0.4f, NAN}, "rivulet: outer momentum = nan must be from 0 to 1"}};
  for (auto const& c : refused) {
    CHECK_THROWS_WITH_AS(c.optimizer.check(), c.text, rivulet::precondition_error);
  }
}

TEST_CASE("nesterov: the fingerprint covers the momentum, the rate travels with each message") {
  CHECK(nesterov{0.4f, 0.9f}.fingerprint() == nesterov{0.7f, 0.9f}.fingerprint());
  CHECK(nesterov{0.4f, 0.9f}.fingerprint() != nesterov{0.4f, 0.8f}.fingerprint());
}

}  // namespace
