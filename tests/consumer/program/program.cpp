#include <cstdio>
#include <vector>

#include <rivulet/rivulet.hpp>

int main() {
  std::vector<float> weights(8, 1.0f);
  rivulet::parameter_set params;
  params.add("weights", rivulet::layer(0), weights);
  std::printf("Rivulet %s: %zu parameter\n", rivulet::version, params.size());
  return params.size() == 1 ? 0 : 1;
}
