#include <string>

#include <doctest/doctest.h>

#include <rivulet/version.hpp>

namespace {

TEST_CASE("version: the text is that of the three numbers") {
  CHECK(rivulet::version == std::to_string(RIVULET_VERSION_MAJOR) + "." +
                                std::to_string(RIVULET_VERSION_MINOR) + "." +
                                std::to_string(RIVULET_VERSION_PATCH));
}

}  // namespace
