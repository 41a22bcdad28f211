// mistake: -ffast-math
// expect: Rivulet needs IEEE arithmetic for bit-identical replicas: compile without -ffast-math
#include <rivulet/rivulet.hpp>

int fragments(rivulet::sync_config const& config) {
  return static_cast<int>(config.offsets.size());
}
