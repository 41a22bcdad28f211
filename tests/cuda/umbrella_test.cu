#include <vector>

#include <doctest/doctest.h>

#include <rivulet/rivulet.hpp>

TEST_CASE("nvcc compiles the umbrella header, and the host code runs") {
  std::vector<float> weights(8, 1.0f);
  rivulet::parameter_set params;
  params.add("weights", rivulet::layer(0), weights);
  CHECK(params.size() == 1);
}
