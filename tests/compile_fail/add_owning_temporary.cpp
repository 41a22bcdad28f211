#include <vector>

#include <rivulet/rivulet.hpp>

void add(rivulet::parameter_set& params) {
  std::vector<float> weights(4);
  params.add("weights", rivulet::layer(0), weights);
#ifdef RIVULET_COMPILE_FAIL
  // expect: rivulet: an owning temporary would be gone before the first step
  params.add("temporary", rivulet::layer(0), std::vector<float>(4));
#endif
}
