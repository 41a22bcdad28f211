#pragma once

/// \file
/// Codecs as engines take them: with error feedback, or with another codec for the mean.

#include <cstdint>

#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

template <class C>
struct error_feedback;

namespace detail {
template <class C>
inline constexpr bool is_error_feedback = false;
template <class C>
inline constexpr bool is_error_feedback<error_feedback<C>> = true;
}  // namespace detail

/// Sends acc = D + beta * e instead of the outer gradient D, coded by C, and keeps what coding
/// loses: e = acc - decode(encode(acc)) (EF-SGD, arXiv 1901.09847). Over the rounds everything gets
/// through, so that codecs of 1 or 2 bits or of a few values train; see codec::sign, codec::int2
/// and codec::top_k. A new e counts only when its operation has been applied: one that fails, or
/// is skipped, leaves it untouched. Memory: 8 bytes per parameter, e and the e of an operation in
/// flight. On the wire it is C.
template <class C>
struct error_feedback {
  static_assert(
      !detail::is_error_feedback<C>,
      "rivulet: error_feedback<error_feedback<C>> has two residuals for one message; wrap "
      "the codec once");
  C codec;
  float beta = 1.0f;  ///< what e counts in the next message, 0 to 1

  [[nodiscard]] std::uint64_t fingerprint() const {
    return rivulet::detail::hash{}
        .add("error_feedback")
        .add(codec::fingerprint(codec))
        .add(beta)
        .value();
  }
  /// Throws precondition_error unless beta is from 0 to 1.
  void check() const {
    rivulet::detail::require(beta >= 0 && beta <= 1, "error_feedback: beta = ", beta,
                             " must be from 0 to 1");
    codec::check(codec);
  }
};
template <class C>
error_feedback(C) -> error_feedback<C>;
template <class C>
error_feedback(C, float) -> error_feedback<C>;

/// Codes what workers send by C, and the means that an all-to-all reduction sends back by M.
template <class C, class M>
struct two_stage {
  C sent;
  M mean;

  [[nodiscard]] std::uint64_t fingerprint() const {
    return rivulet::detail::hash{}
        .add("two_stage")
        .add(codec::fingerprint(sent))
        .add(codec::fingerprint(mean))
        .value();
  }
  void check() const {
    codec::check(sent);
    codec::check(mean);
  }
};
template <class C, class M>
two_stage(C, M) -> two_stage<C, M>;

namespace detail {

/// The codecs within what an engine is given.
template <class C>
struct stages {
  using sent_codec = C;
  using mean_codec = C;
  static constexpr bool feeds_back = false;
  static C const& sent(C const& codec) { return codec; }
  static C const& mean(C const& codec) { return codec; }
};
template <class C, class M>
struct stages<two_stage<C, M>> {
  using sent_codec = C;
  using mean_codec = M;
  static constexpr bool feeds_back = false;
  static C const& sent(two_stage<C, M> const& codec) { return codec.sent; }
  static M const& mean(two_stage<C, M> const& codec) { return codec.mean; }
};
template <class C>
struct stages<error_feedback<C>> {
  using inner = stages<C>;
  using sent_codec = typename inner::sent_codec;
  using mean_codec = typename inner::mean_codec;
  static constexpr bool feeds_back = true;
  static auto const& sent(error_feedback<C> const& codec) { return inner::sent(codec.codec); }
  static auto const& mean(error_feedback<C> const& codec) { return inner::mean(codec.codec); }
};

}  // namespace detail
}  // namespace rivulet::codec

namespace rivulet {

/// What an engine takes for a codec: any, also in error_feedback and two_stage.
template <class C>
concept SyncCodec = FragmentCodec<typename codec::detail::stages<C>::sent_codec> &&
    FragmentCodec<typename codec::detail::stages<C>::mean_codec>;

}  // namespace rivulet
