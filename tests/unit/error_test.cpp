#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include <doctest/doctest.h>

#include <rivulet/error.hpp>

namespace {

using rivulet::comm_status;

static_assert(std::is_base_of_v<std::invalid_argument, rivulet::precondition_error>);
static_assert(std::is_base_of_v<std::runtime_error, rivulet::state_error>);
static_assert(std::is_base_of_v<std::runtime_error, rivulet::comm_error>);

TEST_CASE("error: every status has a name") {
  CHECK(rivulet::to_string(comm_status::done) == "done");
  CHECK(rivulet::to_string(comm_status::timeout) == "timeout");
  CHECK(rivulet::to_string(comm_status::failed) == "failed");
  CHECK(rivulet::to_string(comm_status::aborted) == "aborted");
  CHECK(rivulet::to_string(static_cast<comm_status>(99)) == "unknown");
}

TEST_CASE("error: comm_error tells status, peer, fragment and step") {
  rivulet::comm_error const error("lost", comm_status::timeout, 3, 7, 110);
  CHECK(error.what() == std::string("lost"));
  CHECK(error.status() == comm_status::timeout);
  CHECK(error.peer() == 3);
  CHECK(error.fragment() == 7);
  CHECK(error.step() == 110);
}

TEST_CASE("error: concat joins texts and numbers") {
  using rivulet::detail::concat;
  CHECK(concat("H = ", 100, ", name ", std::string("x"), std::string_view(", "), -7L, '!') ==
        "H = 100, name x, -733");  // a char is a number
  CHECK(concat(0.5f, " ", std::numeric_limits<double>::infinity()) == "0.500000 inf");
}

TEST_CASE("error: require throws only where its condition fails") {
  CHECK_NOTHROW(rivulet::detail::require(true, "never"));
  CHECK_THROWS_WITH_AS(rivulet::detail::require(false, "H = ", 0, " is too small"),
                       "rivulet: H = 0 is too small", rivulet::precondition_error);
}

}  // namespace
