#pragma once

/// \file
/// Better scales for a block codec, at the price of a slower encoder.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

/// A block codec whose codes can be chosen for any scale.
template <class C>
concept FreeScale = BlockCodec<C> &&
    requires(C const& codec, float const* values, std::byte* codes) {
  codec.quantize(values, C::natural_scale(values), codes);
  C::store_scale(1.0f, codes);
};

/// What a fitted scale is best at.
enum class fit : std::uint8_t {
  error,  ///< least squared error of the decoded values
  gain    ///< gain sum(x xq) / sum(x^2) of 1, so that the mean of many workers is not shrunk
};

/// C with the scale of each block fitted to its codes, for values x and decoded values q of scale
/// 1: S = sum(x q) / sum(q^2) for the least error, S = sum(x^2) / sum(x q) for a gain of 1, but for
/// the rounding of S; rounding to nearest alone shrinks e3m0 by some percent. With Candidates > 1,
/// codes are also made for scales S * 2^(1/4 - i / Candidates) around C's own S, and those kept
/// whose fitted error is least. Bytes and decoding: those of C; encoding is
/// scalar code.
template <FreeScale C, std::size_t Candidates = 1, fit Fit = fit::error>
struct refit {
  static_assert(Candidates >= 1 && Candidates <= 64, "rivulet: refit tries 1 to 64 scales");

  using decoder = C;
  C codec;

  static constexpr std::string_view name = C::name;
  static constexpr std::uint16_t id = C::id;
  static constexpr std::size_t block_size = C::block_size;
  static constexpr std::size_t code_bytes = C::code_bytes;
  static constexpr std::size_t scale_bytes = C::scale_bytes;

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float const natural = C::natural_scale(values);
    codec.quantize(values, natural, codes);
    if (natural == 0 || !rivulet::detail::is_finite(natural)) {
      C::store_scale(natural, scale);
      return;
    }
    fitted best = fit_scale(values, natural, codes);
    for (std::size_t i = 0; i < Candidates && Candidates > 1; ++i) {
      std::byte tried[C::code_bytes];
      std::byte stored[C::scale_bytes];
      C::store_scale(natural * factors[i], stored);
      codec.quantize(values, C::scale_at(stored), tried);
      fitted const other = fit_scale(values, natural, tried);
      if (other.explained <= best.explained) continue;
      best = other;
      std::memcpy(codes, tried, C::code_bytes);
    }
    // A fitted scale may be too small to keep where C's own was not.
    float const magnitude = best.scale < 0 ? -best.scale : best.scale;
    C::store_scale(magnitude < rivulet::detail::smallest_kept ? natural : best.scale, scale);
  }
  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    codec.accumulate_block(codes, scale, weight, sums);
  }
  [[nodiscard]] std::uint64_t fingerprint() const {
    return rivulet::detail::hash{}
        .add("refit")
        .add(codec::fingerprint(codec))
        .add(std::uint64_t{Candidates})
        .add(static_cast<std::uint64_t>(Fit))
        .value();
  }
  void check() const { codec::check(codec); }

 private:
  struct fitted {
    float scale;
    double explained;  ///< sum(x^2) less the least squared error for these codes, over natural^2
  };

  /// 2^(1/4 - i / Candidates)
  static constexpr std::array<float, Candidates> factors = [] {
    double root = 1;  // 2^(-1 / Candidates) by Newton's method
    for (int round = 0; round < 60; ++round) {
      double power = 1;
      for (std::size_t i = 1; i < Candidates; ++i) power *= root;
      root -= (power * root - 0.5) / (static_cast<double>(Candidates) * power);
    }
    std::array<float, Candidates> result{};
    double factor = 1.189207115002721;  // 2^(1/4)
    for (float& f : result) {
      f = static_cast<float>(factor);
      factor *= root;
    }
    return result;
  }();

  fitted fit_scale(float const* values, float natural, std::byte const* codes) const {
    float q[C::block_size] = {};
    std::byte one[C::scale_bytes];
    C::store_scale(1.0f, one);
    codec.accumulate_block(codes, one, 1.0f, q);
    double xx = 0;
    double xq = 0;
    double qq = 0;
    for (std::size_t i = 0; i < C::block_size; ++i) {
      double const x = double{values[i]} / double{natural};
      xx = __builtin_fma(x, x, xx);
      xq = __builtin_fma(x, double{q[i]}, xq);
      qq = __builtin_fma(double{q[i]}, double{q[i]}, qq);
    }
    if (!(qq > 0) || !(xq > 0)) return {natural, 0};
    double const scale = Fit == fit::error ? xq / qq : xx / xq;
    return {static_cast<float>(scale * double{natural}), xq * xq / qq};
  }
};
template <class C>
refit(C) -> refit<C>;

}  // namespace rivulet::codec
