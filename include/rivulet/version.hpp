#pragma once

/// \file
/// The version of the library; the build reads it from the three lines below.

#define RIVULET_VERSION_MAJOR 0
#define RIVULET_VERSION_MINOR 1
#define RIVULET_VERSION_PATCH 0

#define RIVULET_DETAIL_JOIN(major, minor, patch) #major "." #minor "." #patch
#define RIVULET_DETAIL_EXPAND(major, minor, patch) RIVULET_DETAIL_JOIN(major, minor, patch)

namespace rivulet {

/// The version as text: "major.minor.patch".
inline constexpr char const* version =
    RIVULET_DETAIL_EXPAND(RIVULET_VERSION_MAJOR, RIVULET_VERSION_MINOR, RIVULET_VERSION_PATCH);

}  // namespace rivulet

#undef RIVULET_DETAIL_EXPAND
#undef RIVULET_DETAIL_JOIN
