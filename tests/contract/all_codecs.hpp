#pragma once

/// \file
/// Every codec of the library, with what its documentation promises: the one list that tests,
/// fuzzers and benchmarks run over.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <rivulet/codec/any.hpp>
#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/chunked_top_k.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/fp16.hpp>
#include <rivulet/codec/fp8.hpp>
#include <rivulet/codec/int2.hpp>
#include <rivulet/codec/int8.hpp>
#include <rivulet/codec/mx.hpp>
#include <rivulet/codec/nvfp4.hpp>
#include <rivulet/codec/refit.hpp>
#include <rivulet/codec/sign.hpp>
#include <rivulet/codec/stochastic.hpp>
#include <rivulet/codec/table16.hpp>

#include "contract/any_codec.hpp"

/// Calls X(name) for each function in rivulet_test::codecs. (CMake reads these lines too.)
#define RIVULET_TEST_CODECS(X) \
  X(float32)                   \
  X(bf16)                      \
  X(fp16)                      \
  X(fp8)                       \
  X(stochastic_fp8)            \
  X(e3m0_32)                   \
  X(e3m0_64)                   \
  X(e3m0_256)                  \
  X(any_e3m0)                  \
  X(stochastic_e3m0)           \
  X(refit_e3m0)                \
  X(refit_gain_e3m0)           \
  X(refit_8_e3m0)              \
  X(lloyd_max4_32)             \
  X(lloyd_max4_64)             \
  X(nf4)                       \
  X(stochastic_nf4)            \
  X(int4)                      \
  X(int8)                      \
  X(stochastic_int8)           \
  X(int2)                      \
  X(sign)                      \
  X(mxfp4)                     \
  X(mxfp8)                     \
  X(nvfp4)                     \
  X(top_k_float32)             \
  X(top_k_e3m0)                \
  X(top_k_int8)

namespace rivulet_test {

/// A codec and its promises.
template <rivulet::Codec C>
struct tested_codec {
  C codec;
  codec_promises promises;

  [[nodiscard]] erased<C> erase() const { return {codec, promises}; }
};
template <class C>
tested_codec(C, codec_promises) -> tested_codec<C>;

namespace codecs {

using namespace rivulet::codec;

// --- error bounds, from the docstrings ---

using error_bound = decltype(codec_promises::error);

/// The next number of 8 binary digits, which is what a bfloat16 scale that covers `most` is.
inline double covering_bf16(double most) {
  if (most < 0x1p-100) return 0;
  int exponent = 0;
  double const mantissa = std::frexp(std::min(most, 0x1p126), &exponent);
  return std::ldexp(std::ceil(mantissa * 256) / 256, exponent);
}

/// Of rounding t to nearest with `bits` of mantissa, from 2^smallest on, up to a largest value.
inline double minifloat_error(double t, int bits, int smallest, double most) {
  int const exponent = t == 0 ? smallest : std::max(std::ilogb(t), smallest);
  return std::max(std::ldexp(0.5, exponent - bits), t - most);
}
/// The same in a codec without scales.
inline error_bound minifloat_error(int bits, int smallest, double most) {
  return [=](double x, magnitudes const&) {
    return minifloat_error(std::fabs(x), bits, smallest, most);
  };
}
/// The same in a block with the scale of the MX formats: 2^(exponent of the largest - emax).
inline error_bound mx_error(int bits, int smallest, double most, int emax) {
  return [=](double x, magnitudes const& around) {
    if (around.largest < std::ldexp(0x1p-100, emax)) return std::fabs(x);
    double const s = std::ldexp(1, std::ilogb(around.largest) - emax);
    return s * minifloat_error(std::fabs(x) / s, bits, smallest, most);
  };
}

inline double fp8_scale(magnitudes const& around) {
  return covering_bf16(std::min(around.largest, 0x1.ffp127) / 448);
}
inline double fp8_error(double x, magnitudes const& around) {
  double const s = fp8_scale(around);
  if (s == 0) return std::fabs(x);
  return s * minifloat_error(std::fabs(x) / s, 3, -6, 448) + std::fabs(x) * 0x1p-22;
}
/// To either neighbour.
inline double stochastic_fp8_error(double x, magnitudes const& around) {
  return std::max(2 * fp8_error(x, around), fp8_scale(around) * 0x1p-9);
}

inline double e3m0_error(double x, magnitudes const& around) {
  double const magnitude = std::fabs(x);
  double const s = covering_bf16(around.largest);
  if (s == 0) return magnitude;
  double const rounded = magnitude >= 0x1p-6 * s ? magnitude / 3 : 0x1p-7 * s;
  return std::max(magnitude - s, rounded) * (1 + 0x1p-20);
}
inline double stochastic_e3m0_error(double x, magnitudes const& around) {
  double const s = covering_bf16(around.largest);
  return std::max({std::fabs(x) - s, std::fabs(x), 0x1p-6 * s});
}

inline double to_e4m3(double t) {
  double const step = std::ldexp(1, std::max(std::ilogb(t), -6) - 3);
  return std::nearbyint(t / step) * step;
}
inline double nvfp4_error(double x, magnitudes const& around) {
  double const magnitude = std::fabs(x);
  double const d = std::min(around.tile, 0x1.fffp127) / (448 * 6);
  if (d < 0x1p-100) return magnitude;
  double worst = 0;
  for (double const rounding : {1 - 0x1p-20, 1 + 0x1p-20}) {
    double const s = around.largest == 0 ? 0 : to_e4m3(around.largest / (6 * d) * rounding) * d;
    double const error = s == 0 ? magnitude : s * minifloat_error(magnitude / s, 1, 0, 6);
    worst = std::max(worst, error + magnitude * 0x1p-20);
  }
  return worst;
}

/// `part` of the distance of the levels around t, and what a border is off.
template <class Table>
double table_error(double x, double s, double part) {
  if (s == 0) return std::fabs(x);
  static std::vector<double> const levels = [] {
    std::vector<double> result;
    for (float const level : Table::levels) {
      result.push_back(double{rivulet::to_float(rivulet::to_bf16(level))});
    }
    return result;
  }();
  double worst = 0;
  for (double const t : {x / s, -x / s}) {
    if (!Table::signed_maximum && t != x / s) continue;  // else s may have either sign
    auto const above = std::ranges::upper_bound(levels, t);
    double error = 0;
    if (above == levels.end()) {
      error = t - levels.back();
    } else if (above == levels.begin()) {
      error = levels.front() - t;
    } else {
      error = part * (above[0] - above[-1]) + 1 / 256.0;
    }
    worst = std::max(worst, error);
  }
  return s * (worst + 0x1p-21);
}
template <class Table>
double nearest_in_table(double x, magnitudes const& around) {
  return table_error<Table>(x, covering_bf16(around.largest), 0.5);
}
template <class Table>
double either_in_table(double x, magnitudes const& around) {
  return table_error<Table>(x, covering_bf16(around.largest), 1);
}

inline double int8_scale(magnitudes const& around) {
  return covering_bf16(double{static_cast<float>(around.largest) / 127.0f});
}
inline double int8_error(double x, magnitudes const& around) {
  double const s = int8_scale(around);
  return s == 0 ? std::fabs(x) : s / 2 * (1 + 0x1p-15);
}
inline double stochastic_int8_error(double x, magnitudes const& around) {
  double const s = int8_scale(around);
  return s == 0 ? std::fabs(x) : s * (1 + 0x1p-15);
}

/// For a scale near `s`, which becomes 0 near 2^-100: to the nearest of s / 2 and 3 s / 2, or to s.
inline double int2_error(double x, magnitudes const& around) {
  double const s = std::min(around.mean * 1.25, 0x1p126);
  double const magnitude = std::fabs(x);
  if (s < 0x1.01p-100) return magnitude + s;
  return std::max(s / 2, magnitude - 1.5 * s) + s * 0x1p-7;
}
inline double sign_error(double x, magnitudes const& around) {
  double const s = std::min(around.mean, 0x1p126);
  if (s < 0x1.01p-100) return std::fabs(x) + s;
  return std::fabs(std::fabs(x) - s) + s * 0x1p-7;
}

/// Any scale up to that of the codec may be the best one.
inline error_bound refit_error(error_bound const& of_codec) {
  return
      [=](double x, magnitudes const& around) { return of_codec(x, around) + around.largest / 2; };
}
/// A value is dropped, or coded in a block with the largest ones.
inline error_bound top_k_error(error_bound const& of_values) {
  return [=](double x, magnitudes const& around) {
    return std::max(std::fabs(x), of_values(x, {around.tile, around.tile, around.tile}));
  };
}

// --- the codecs ---

/// Promises of a codec with a scale for each block.
template <class C>
tested_codec<C> blocks(C const& codec, std::size_t block, error_bound error, repeat again,
                       bool opposite = true, rivulet_test::gain gain = gain::any) {
  return {codec,
          {.error = std::move(error),
           .block = block,
           .scope = block,
           .opposite = opposite,
           .again = again,
           .gain = gain}};
}
template <class V>
tested_codec<chunked_top_k<V>> chunks(V const& values, error_bound const& of_values, repeat again) {
  return {{.values = values},
          {.error = top_k_error(of_values),
           .block = tile_values,
           .scope = tile_values,
           .spoils_scope = false,
           .again = again}};
}

inline double exact(double, magnitudes const&) { return 0; }

inline auto float32() {
  return tested_codec{rivulet::codec::float32{}, {.error = exact, .again = repeat::same_values}};
}
inline auto bf16() {
  return tested_codec{
      rivulet::codec::bf16{},
      {.error = minifloat_error(7, -126, 0x1.fep127), .again = repeat::same_values}};
}
inline auto fp16() {
  return tested_codec{rivulet::codec::fp16{},
                      {.error = minifloat_error(10, -14, 65504), .again = repeat::same_values}};
}
inline auto fp8() { return blocks(rivulet::codec::fp8<>{}, 128, fp8_error, repeat::same_values); }
inline auto stochastic_fp8() {
  return blocks(stochastic{rivulet::codec::fp8<>{}, 4}, 128, stochastic_fp8_error, repeat::differs,
                true, gain::unbiased);
}
inline auto e3m0_32() { return blocks(e3m0<32>{}, 32, e3m0_error, repeat::same_codes); }
inline auto e3m0_64() { return blocks(e3m0<64>{}, 64, e3m0_error, repeat::same_codes); }
inline auto e3m0_256() { return blocks(e3m0<256>{}, 256, e3m0_error, repeat::same_codes); }
inline auto stochastic_e3m0() {
  return blocks(stochastic{e3m0<64>{}, 3}, 64, stochastic_e3m0_error, repeat::differs, true,
                gain::unbiased);
}
inline auto any_e3m0() { return blocks(any{e3m0<64>{}}, 64, e3m0_error, repeat::same_codes); }
inline auto refit_e3m0() {
  return blocks(refit{e3m0<64>{}}, 64, refit_error(e3m0_error), repeat::differs, true,
                gain::least_squares);
}
inline auto refit_8_e3m0() {
  return blocks(refit<e3m0<32>, 8>{}, 32, refit_error(e3m0_error), repeat::differs, true,
                gain::least_squares);
}
inline auto refit_gain_e3m0() {
  return blocks(refit<e3m0<64>, 1, fit::gain>{}, 64, refit_error(e3m0_error), repeat::differs, true,
                gain::one);
}
inline auto lloyd_max4_32() {
  return blocks(lloyd_max4<32>{}, 32, nearest_in_table<rivulet::codec::detail::lloyd_max_table<32>>,
                repeat::differs);
}
inline auto lloyd_max4_64() {
  return blocks(lloyd_max4<64>{}, 64, nearest_in_table<rivulet::codec::detail::lloyd_max_table<64>>,
                repeat::differs);
}
inline auto nf4() {
  return blocks(rivulet::codec::nf4<>{}, 64, nearest_in_table<rivulet::codec::detail::nf4_table>,
                repeat::same_codes, false);
}
inline auto stochastic_nf4() {
  return blocks(stochastic{rivulet::codec::nf4<>{}}, 64,
                either_in_table<rivulet::codec::detail::nf4_table>, repeat::differs, false,
                gain::unbiased);
}
inline auto int4() {
  return blocks(rivulet::codec::int4<>{}, 32, nearest_in_table<rivulet::codec::detail::int4_table>,
                repeat::same_codes, false);
}
inline auto int8() { return blocks(rivulet::codec::int8<>{}, 64, int8_error, repeat::differs); }
inline auto stochastic_int8() {
  return blocks(stochastic{rivulet::codec::int8<>{}}, 64, stochastic_int8_error, repeat::differs,
                false, gain::unbiased);
}
inline auto int2() { return blocks(rivulet::codec::int2<>{}, 64, int2_error, repeat::differs); }
inline auto sign() { return blocks(rivulet::codec::sign<>{}, 256, sign_error, repeat::same_codes); }
inline auto mxfp4() {
  return blocks(rivulet::codec::mxfp4{}, 32, mx_error(1, 0, 6, 2), repeat::same_values);
}
inline auto mxfp8() {
  return blocks(rivulet::codec::mxfp8{}, 32, mx_error(3, -6, 448, 8), repeat::same_values);
}
inline auto nvfp4() {
  return tested_codec{
      rivulet::codec::nvfp4{},
      {.error = nvfp4_error, .block = 16, .scope = tile_values, .again = repeat::differs}};
}
inline auto top_k_float32() {
  auto result = chunks(rivulet::codec::float32{}, exact, repeat::same_values);
  result.promises.drops_tiny = false;
  return result;
}
inline auto top_k_e3m0() { return chunks(e3m0<32>{}, e3m0_error, repeat::differs); }
inline auto top_k_int8() { return chunks(rivulet::codec::int8<>{}, int8_error, repeat::differs); }

}  // namespace codecs

}  // namespace rivulet_test
