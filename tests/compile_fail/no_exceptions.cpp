// mistake: -fno-exceptions
// expect: Rivulet reports errors by exceptions: compile without -fno-exceptions
#include <rivulet/rivulet.hpp>

int fragments(rivulet::sync_config const& config) {
  return static_cast<int>(config.offsets.size());
}
