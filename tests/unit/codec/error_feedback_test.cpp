#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <type_traits>

#include <doctest/doctest.h>

#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/error_feedback.hpp>
#include <rivulet/codec/float32.hpp>

#include "unit/codec/own_codecs.hpp"

namespace {

using rivulet::SyncCodec;
using rivulet::codec::bf16;
using rivulet::codec::e3m0;
using rivulet::codec::error_feedback;
using rivulet::codec::fingerprint;
using rivulet::codec::float32;
using rivulet::codec::two_stage;
using rivulet::codec::detail::stages;
using rivulet_test::own_global;
using rivulet_test::own_int8;
using rivulet_test::own_keyed;

/// Which codecs an engine finds in a codec.
template <class C, class Sent, class Mean, bool FeedsBack>
constexpr bool has_stages =
    std::is_same_v<typename stages<C>::sent_codec, Sent>&&
        std::is_same_v<typename stages<C>::mean_codec, Mean>&& stages<C>::feeds_back == FeedsBack;

static_assert(has_stages<bf16, bf16, bf16, false>);
static_assert(has_stages<two_stage<e3m0<>, bf16>, e3m0<>, bf16, false>);
static_assert(has_stages<error_feedback<e3m0<>>, e3m0<>, e3m0<>, true>);
static_assert(has_stages<error_feedback<two_stage<e3m0<>, bf16>>, e3m0<>, bf16, true>);

static_assert(SyncCodec<bf16> && SyncCodec<own_int8> && SyncCodec<own_keyed>);
static_assert(SyncCodec<own_global> && SyncCodec<error_feedback<own_global>>);
static_assert(SyncCodec<two_stage<own_global, own_keyed>>);
static_assert(SyncCodec<error_feedback<two_stage<own_keyed, own_int8>>>);
static_assert(!SyncCodec<int>);
static_assert(!SyncCodec<error_feedback<int>>);
static_assert(!SyncCodec<two_stage<bf16, int>> && !SyncCodec<two_stage<int, bf16>>);
static_assert(!SyncCodec<two_stage<error_feedback<bf16>, bf16>>, "feedback is outermost");
static_assert(!SyncCodec<two_stage<bf16, error_feedback<bf16>>>, "feedback is of what is sent");
static_assert(!SyncCodec<two_stage<bf16, two_stage<bf16, bf16>>>);
static_assert(!rivulet::FragmentCodec<error_feedback<bf16>>, "bytes and sums are the codec's own");

static_assert(std::is_same_v<decltype(error_feedback{e3m0<32>{}}), error_feedback<e3m0<32>>>);
static_assert(std::is_same_v<decltype(error_feedback{bf16{}, 0.5f}), error_feedback<bf16>>);
static_assert(std::is_same_v<decltype(two_stage{e3m0<32>{}, bf16{}}), two_stage<e3m0<32>, bf16>>);
static_assert(std::is_same_v<decltype(error_feedback{two_stage{e3m0<32>{}, bf16{}}}),
                             error_feedback<two_stage<e3m0<32>, bf16>>>);

/// A codec with an option.
struct tuned : own_int8 {
  std::uint64_t option = 1;
  [[nodiscard]] std::uint64_t fingerprint() const { return option; }
  void check() const { rivulet::detail::require(option < 9, "tuned: option = ", option); }
};

TEST_CASE("error_feedback: the stages are the objects within, options and all") {
  using C = error_feedback<two_stage<tuned, tuned>>;
  C const codec{{{{}, 3}, {{}, 4}}, 0.5f};
  CHECK(stages<C>::sent(codec).option == 3);
  CHECK(stages<C>::mean(codec).option == 4);
  CHECK(&stages<C>::sent(codec) == &codec.codec.sent);
  tuned const plain{{}, 5};
  CHECK(&stages<tuned>::sent(plain) == &plain);
  CHECK(&stages<tuned>::mean(plain) == &plain);
}

TEST_CASE("error_feedback: the fingerprint covers everything that bytes and sums depend on") {
  std::set<std::uint64_t> const seen = {fingerprint(tuned{}),
                                        fingerprint(tuned{{}, 2}),
                                        fingerprint(error_feedback{tuned{}}),
                                        fingerprint(error_feedback{tuned{{}, 2}}),
                                        fingerprint(error_feedback{tuned{}, 0.5f}),
                                        fingerprint(error_feedback{bf16{}}),
                                        fingerprint(two_stage{tuned{}, tuned{}}),
                                        fingerprint(two_stage{tuned{{}, 2}, tuned{}}),
                                        fingerprint(two_stage{tuned{}, tuned{{}, 2}}),
                                        fingerprint(two_stage{bf16{}, float32{}}),
                                        fingerprint(two_stage{float32{}, bf16{}}),
                                        fingerprint(error_feedback{two_stage{bf16{}, float32{}}})};
  CHECK(seen.size() == 12);
  CHECK(fingerprint(error_feedback{tuned{}}) == fingerprint(error_feedback{tuned{}, 1.0f}));
}

TEST_CASE("error_feedback: check takes a beta of 0 to 1, and asks the codecs within") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (float const beta : {0.0f, 0.5f, 1.0f}) CHECK_NOTHROW(error_feedback{bf16{}, beta}.check());
  struct {
    float beta;
    char const* text;
  } const refused[] = {{-0.5f, "rivulet: error_feedback: beta = -0.500000 must be from 0 to 1"},
                       {1.5f, "rivulet: error_feedback: beta = 1.500000 must be from 0 to 1"},
                       {nan, "rivulet: error_feedback: beta = nan must be from 0 to 1"}};
  for (auto const& c : refused) {
    CHECK_THROWS_WITH_AS((error_feedback{bf16{}, c.beta}.check()), c.text,
                         rivulet::precondition_error);
  }
  tuned const bad{{}, 9};
  char const* const text = "rivulet: tuned: option = 9";
  CHECK_THROWS_WITH_AS(error_feedback{bad}.check(), text, rivulet::precondition_error);
  CHECK_THROWS_WITH_AS((two_stage{bad, bf16{}}.check()), text, rivulet::precondition_error);
  CHECK_THROWS_WITH_AS((two_stage{bf16{}, bad}.check()), text, rivulet::precondition_error);
  CHECK_THROWS_WITH_AS((error_feedback{two_stage{bf16{}, bad}}.check()), text,
                       rivulet::precondition_error);
  CHECK_NOTHROW((two_stage{tuned{}, bf16{}}.check()));
}

}  // namespace
