#pragma once

/// \file
/// What every codec must do.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/array.hpp>
#include <rivulet/error.hpp>

#include "contract/any_codec.hpp"
#include "contract/codec_tools.hpp"

namespace rivulet_test {

namespace contract {

using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

inline bytes encoded(any_codec const& codec, std::span<float const> values,
                     std::uint64_t seed = 0) {
  bytes result(codec.bytes(values.size()), std::byte{0xff});
  codec.encode(values, result, seed);
  return result;
}

inline floats decoded(any_codec const& codec, std::span<std::byte const> in, std::size_t count) {
  floats result(count, -1.0f);
  codec.decode(in, result);
  return result;
}

inline floats round_trip(any_codec const& codec, std::span<float const> values) {
  return decoded(codec, encoded(codec, values), values.size());
}

inline bool same_values(std::span<float const> a, std::span<float const> b) {
  return std::ranges::equal(a, b, same_value);
}

/// Kinds of input, each meant for some corner of some codec.
enum class input : std::uint8_t {
  normal,
  heavy_tails,  ///< Student's t with 3 degrees of freedom
  ties,         ///< of few bits, with the middles and edges of many formats among them
  sparse,       ///< mostly zeros of both signs
  scattered,    ///< every 16 values of a magnitude of their own, 2^-140 .. 2^127
  tiny,         ///< around 2^-100 and subnormal
  huge,         ///< around the largest floats
  constant,     ///< a run of one value, of both signs
  nonfinite,    ///< some NaN and infinity of any payload
  any_bits      ///< any floats
};
inline constexpr input finite_inputs[] = {input::normal, input::heavy_tails, input::ties,
                                          input::sparse, input::scattered,   input::tiny,
                                          input::huge,   input::constant};
inline constexpr input all_inputs[] = {
    input::normal, input::heavy_tails, input::ties,     input::sparse,    input::scattered,
    input::tiny,   input::huge,        input::constant, input::nonfinite, input::any_bits};

inline floats values_of(input kind, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed * 16 + static_cast<std::uint64_t>(kind));
  auto const below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  auto const any_float = [&] {
    return rivulet::detail::float_of(static_cast<std::uint32_t>(random()));
  };
  auto const uniform = [&] {
    return std::ldexp(static_cast<float>(below(1 << 24) - (1 << 23)), -23);
  };
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> student(3);
  float const scale = std::ldexp(1.0f, below(41) - 30);
  int exponent = 0;
  float level = 0;
  floats values(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 16 == 0) {
      exponent = below(268) - 140;
      level = std::ldexp(uniform(), below(20) - 10);
    }
    float& x = values[i];
    switch (kind) {
      case input::normal: x = scale * normal(random); break;
      case input::heavy_tails: x = scale * student(random); break;
      case input::ties:
        x = std::ldexp(static_cast<float>(below(65) - 32), below(14) - 12 + exponent / 32);
        break;
      case input::sparse: x = below(16) == 0 ? uniform() : below(2) == 0 ? 0.0f : -0.0f; break;
      case input::scattered: x = std::ldexp(uniform(), exponent); break;
      case input::tiny: x = std::ldexp(uniform(), below(4) == 0 ? -126 : -98 - below(4)); break;
      case input::huge: x = std::ldexp(uniform(), 128 - below(5)); break;
      case input::constant: x = below(2) == 0 ? level : -level; break;
      case input::nonfinite:
        x = below(200) != 0
                ? normal(random)
                : rivulet::detail::float_of(rivulet::detail::bits_of(any_float()) | 0x7f800000u);
        break;
      case input::any_bits: x = any_float(); break;
    }
    if (kind != input::any_bits && kind != input::nonfinite) {
      x = std::clamp(x, -FLT_MAX, FLT_MAX);
    }
  }
  return values;
}

/// Sizes around those of vectors, blocks, groups of eight blocks, and tiles.
inline std::vector<std::size_t> sizes(any_codec const& codec) {
  std::set<std::size_t> result{0, 1, 2, 3, 4095, 4096, 4097, 4096 + 700, 2 * 4096, 2 * 4096 + 1};
  auto const around = [&](std::size_t n) { result.insert({n - 1, n, n + 1}); };
  for (std::size_t n = 8; n <= 512; n *= 2) around(n);
  std::size_t const block = codec.promises().block;
  if (block < 512) {
    for (std::size_t const n : {1u, 2u, 3u, 7u, 8u, 9u, 15u, 16u, 17u}) around(n * block);
  }
  return {result.begin(), result.end()};
}

/// The documented size, at any address, with nothing written outside and every byte written.
inline void sizes_and_addresses(any_codec const& codec) {
  for (std::size_t const n : sizes(codec)) {
    CAPTURE(n);
    if (codec.padding() != 0) {
      std::size_t const blocks = n / codec.padding() + (n % codec.padding() == 0 ? 0 : 1);
      REQUIRE(codec.bytes(n) == blocks * codec.block_bytes());
    } else {
      std::size_t const tile = codec.bytes(4096);
      REQUIRE(codec.bytes(n) == n / 4096 * tile + codec.bytes(n % 4096));
      REQUIRE(((n == 0) == (codec.bytes(n) == 0)));
    }
    floats const values = values_of(input::normal, n, n);
    bytes const expected = encoded(codec, values);
    floats const expected_back = decoded(codec, expected, n);
    std::size_t const shifts = n < 600 ? 40 : n < 3000 ? 8 : 2;
    for (std::size_t shift = 0; shift < shifts; ++shift) {
      CAPTURE(shift);
      floats moved(n + shift % 9);  // of the exact size, so that sanitizers see what lies behind
      std::copy(values.begin(), values.end(), moved.begin() + static_cast<int>(shift % 9));
      guarded<std::byte> out(expected.size(), std::byte(shift % 2 == 0 ? 0 : 0xff), shift);
      codec.encode(std::span(moved).subspan(shift % 9), out.values(), 0);
      REQUIRE(out.intact());
      REQUIRE(std::ranges::equal(out.values(), expected));
      bytes in(expected.size() + shift);
      std::copy(expected.begin(), expected.end(), in.begin() + static_cast<int>(shift));
      guarded<float> back(n, shift % 2 == 0 ? 1.0f : NAN, (shift + n) % 11);
      codec.decode(std::span(in).subspan(shift), back.values());
      REQUIRE(back.intact());
      REQUIRE(same_values(back.values(), expected_back));
      guarded<float> sums(n, 1.0f, (shift + n) % 11);
      rivulet::codec::weighted_codes const sender{std::span(in).subspan(shift), 0.5f};
      codec.accumulate({&sender, 1}, sums.values());
      REQUIRE(sums.intact());
    }
    if (codec.padding() != 0) {  // a tail is coded as if zeros followed
      floats padded = values;
      padded.resize((n + codec.padding() - 1) / codec.padding() * codec.padding());
      REQUIRE(encoded(codec, padded) == expected);
    }
  }
}

/// How many values come back with more than the documented error, or from the negated values as
/// other than the opposite.
inline std::size_t errors(any_codec const& codec, std::span<float const> values) {
  codec_promises const& promises = codec.promises();
  floats negated(values.begin(), values.end());
  for (float& value : negated) value = -value;
  floats const back = round_trip(codec, values);
  floats const negated_back = round_trip(codec, negated);
  std::size_t wrong = 0;
  magnitudes around;
  for (std::size_t i = 0; i < values.size(); ++i) {
    around = promises.around(values, i, around);
    double const error = std::fabs(double{values[i]} - double{back[i]});
    double const allowed = promises.error(double{values[i]}, around);
    bool const opposite = !promises.opposite || back[i] == -negated_back[i];
    if (error <= allowed && opposite) continue;
    if (++wrong == 1) {
      MESSAGE(codec.name(), ": value ", i, " of ", values.size(), ", ", values[i],
              " in a block of ", around.largest, ", comes back as ", back[i], " and negated as ",
              negated_back[i], "; the error may be ", allowed);
    }
  }
  return wrong;
}

inline void error_bound(any_codec const& codec) {
  for (input const kind : finite_inputs) {
    CAPTURE(static_cast<int>(kind));
    for (std::uint64_t round = 0; round < 24; ++round) {
      REQUIRE(errors(codec, values_of(kind, 4096 + 500 + round, round)) == 0);
    }
    REQUIRE(errors(codec, values_of(kind, 100, 9)) == 0);
  }
  // The ends of the range, alone and among others.
  constexpr float specials[] = {FLT_TRUE_MIN, FLT_MIN / 2, FLT_MIN, 0x1p-101f, 0x1.fffffep-101f,
                                0x1p-100f,    1e-10f,      1.0f,    0x1p126f,  0x1.000002p126f,
                                0x1p127f,     3.39e38f,    FLT_MAX};
  std::size_t const block = codec.promises().block;
  floats values;
  for (float const special : specials) {
    for (float const rest : {0.0f, FLT_TRUE_MIN, 1e-30f, 1.0f, 1e38f, -FLT_MAX}) {
      values.insert(values.end(), block, rest);
      values[values.size() - block + block / 2] = special;
      REQUIRE(errors(codec, std::span(values).last(block)) == 0);
    }
  }
  REQUIRE(errors(codec, values) == 0);
}

/// Zeros come back, and blocks too small to keep come back as zeros.
inline void zeros(any_codec const& codec) {
  bool const drops = codec.promises().block > 1 && codec.promises().drops_tiny;
  for (std::size_t const n : {std::size_t{1}, 2 * codec.promises().block + 1, std::size_t{5000}}) {
    for (float const zero : {0.0f, -0.0f, FLT_TRUE_MIN, 0x1.fffffep-102f, -0x1p-101f}) {
      if (zero != 0 && !drops) continue;
      floats const back = round_trip(codec, floats(n, zero));
      REQUIRE(std::ranges::count(back, 0.0f) == static_cast<std::ptrdiff_t>(n));
    }
  }
}

/// NaN and infinity show and spoil nothing outside of their scope.
inline void nonfinite(any_codec const& codec) {
  using limits = std::numeric_limits<float>;
  std::size_t const scope = codec.promises().scope;
  floats const clean = values_of(input::normal, 3 * scope, 1);
  floats const clean_back = round_trip(codec, clean);
  for (float const bad : {limits::quiet_NaN(), -limits::quiet_NaN(), limits::signaling_NaN(),
                          limits::infinity(), -limits::infinity()}) {
    CAPTURE(bad);
    for (std::size_t const at : {scope, scope + scope / 2, 2 * scope - 1}) {
      CAPTURE(at);
      for (bool const vectors : {false, true}) {
        CAPTURE(vectors);
        kernels const use(vectors);
        floats values = clean;
        values[at] = bad;
        floats const back = round_trip(codec, values);
        std::span const spoiled = std::span(back).subspan(scope, scope);
        REQUIRE_FALSE(std::isfinite(back[at]));
        if (codec.promises().spoils_scope) {
          REQUIRE(std::ranges::none_of(spoiled, [](float x) { return std::isfinite(x); }));
        }
        REQUIRE(same_values(std::span(back).first(scope), std::span(clean_back).first(scope)));
        REQUIRE(same_values(std::span(back).last(scope), std::span(clean_back).last(scope)));
      }
    }
  }
}

/// accumulate adds the weighted values to what is there, one sender after the other.
inline void accumulation(any_codec const& codec) {
  using rivulet::codec::weighted_codes;
  constexpr std::size_t n = 4096 + 333;
  constexpr float weights[] = {1.0f, 0.5f, 0.3f, -2.0f, 0.0f};
  std::vector<bytes> codes;
  std::vector<weighted_codes> senders;
  for (std::size_t s = 0; s < std::size(weights); ++s) {
    codes.push_back(encoded(codec, values_of(input::normal, n, s)));
  }
  for (std::size_t s = 0; s < std::size(weights); ++s) senders.push_back({codes[s], weights[s]});
  floats sums = values_of(input::normal, n, 17);
  floats together = sums;
  for (weighted_codes const& sender : senders) {
    floats const before = sums;
    floats const values = decoded(codec, sender.bytes, n);
    codec.accumulate({&sender, 1}, sums);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      double const added = double{sender.weight} * double{values[i]};
      double const exact = double{before[i]} + added;
      double const slack = (std::fabs(exact) + std::fabs(added)) * 0x1p-23;
      wrong += std::fabs(double{sums[i]} - exact) > slack;
    }
    CAPTURE(sender.weight);
    REQUIRE(wrong == 0);
  }
  codec.accumulate(senders, together);
  REQUIRE(same_values(sums, together));
  codec.accumulate({}, together);
  REQUIRE(same_values(sums, together));
}

/// Decodes `in` by both kinds of kernels, within bounds, and adds it up by both.
inline void check_decoders(any_codec const& codec, std::span<std::byte const> in, std::size_t n,
                           float weight) {
  guarded<float> values[] = {{n, 1.0f}, {n, NAN, 3}};
  guarded<float> sums[] = {{n, 0.75f}, {n, 0.75f, 5}};
  rivulet::codec::weighted_codes const sender{in, weight};
  for (std::size_t const vectors : {0u, 1u}) {
    kernels const use(vectors == 1);
    codec.decode(in, values[vectors].values());
    codec.accumulate({&sender, 1}, sums[vectors].values());
    REQUIRE(values[vectors].intact());
    REQUIRE(sums[vectors].intact());
  }
  REQUIRE(same_values(values[0].values(), values[1].values()));
  REQUIRE(same_values(sums[0].values(), sums[1].values()));
}

/// The vector kernels give the bits of the scalar code, whatever the values.
inline void equal_kernels(any_codec const& codec) {
  std::vector<std::size_t> const some = sizes(codec);
  for (input const kind : all_inputs) {
    CAPTURE(static_cast<int>(kind));
    for (std::uint64_t round = 0; round < 64; ++round) {
      std::size_t const n = round < 16 ? 4096 + 512 + round : some[(round * 7) % some.size()];
      CAPTURE(n);
      CAPTURE(round);
      floats const values = values_of(kind, n, round);
      bytes const by_vectors = encoded(codec, values, round);
      bytes by_scalars;
      {
        kernels const scalar(false);
        by_scalars = encoded(codec, values, round);
      }
      REQUIRE(by_scalars == by_vectors);
      check_decoders(codec, by_vectors, n, round % 3 == 0 ? 1.0f : 0.3f);
    }
  }
}

/// Any bytes decode to something, by all kernels to the same.
inline void arbitrary_bytes(any_codec const& codec) {
  std::mt19937_64 random(7);
  std::vector<std::size_t> const some = sizes(codec);
  for (std::size_t round = 0; round < 200; ++round) {
    std::size_t const n = some[round * 5 % some.size()];
    CAPTURE(n);
    CAPTURE(round);
    bytes noise(codec.bytes(n), std::byte(round == 0 ? 0xff : 0));
    if (round > 1) {
      for (std::byte& b : noise) b = static_cast<std::byte>(random());
    }
    for (float const weight : {1.0f, -0.3f, 0x1p-120f, FLT_MAX}) {
      check_decoders(codec, noise, n, weight);
    }
  }
}

/// What was decoded is encoded to the same again, as far as promised.
inline void repetition(any_codec const& codec) {
  if (codec.promises().again == repeat::differs) return;
  for (input const kind : finite_inputs) {
    CAPTURE(static_cast<int>(kind));
    for (std::uint64_t round = 0; round < 8; ++round) {
      CAPTURE(round);
      floats const values = values_of(kind, 4096 + 512, round);
      bytes const first = encoded(codec, values);
      floats const back = decoded(codec, first, values.size());
      bytes const second = encoded(codec, back);
      if (codec.promises().again == repeat::same_codes) REQUIRE(first == second);
      REQUIRE(same_values(back, decoded(codec, second, values.size())));
    }
  }
}

/// Sums over many values are as promised.
inline void gain_of_many(any_codec const& codec) {
  if (codec.promises().gain == gain::any) return;
  floats const values = normal_values(1 << 20, 11);
  floats const back = round_trip(codec, values);
  double signal = 0;
  double product = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    float const reference =
        codec.promises().gain == gain::least_squares ? back[i] : values[i];  // see enum gain
    signal += double{reference} * double{reference};
    product += double{values[i]} * double{back[i]};
  }
  CHECK(std::fabs(product / signal - 1) < 0.002);
}

/// The mean over many seeds is the value, for each value, where that is promised.
inline void mean_of_seeds(any_codec const& codec) {
  if (codec.promises().gain != gain::unbiased) return;
  constexpr std::size_t n = 320;
  constexpr std::uint64_t seeds = 20000;
  floats const values = values_of(input::normal, n, 5);
  std::vector<double> sum(n);
  std::vector<double> squares(n);
  double square_of_all = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    floats const back = decoded(codec, encoded(codec, values, seed), n);
    double all = 0;
    for (std::size_t i = 0; i < n; ++i) {
      double const error = double{back[i]} - double{values[i]};
      sum[i] += error;
      squares[i] += error * error;
      all += error;
    }
    square_of_all += all * all;
  }
  double const most = largest(values);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double const mean = sum[i] / double{seeds};
    double const deviation = std::sqrt(squares[i] / double{seeds});
    wrong += std::fabs(mean) > 5 * deviation / std::sqrt(double{seeds}) + most * 0x1p-16;
  }
  CHECK(wrong == 0);
  // The errors of different values are independent, so that their variances add up.
  double const variances = std::accumulate(squares.begin(), squares.end(), 0.0);
  CHECK(std::fabs(square_of_all / variances - 1) < 0.05);
  // Other seeds and other places in an array are other random numbers.
  floats twice = values_of(input::normal, 2 * 4096, 6);
  std::copy_n(twice.begin(), 4096, twice.begin() + 4096);
  bytes const codes = encoded(codec, twice, 1);
  CHECK_FALSE(std::ranges::equal(std::span(codes).first(codes.size() / 2),
                                 std::span(codes).last(codes.size() / 2)));
  CHECK(codes != encoded(codec, twice, 2));
}

/// Tiles from any threads in any order, whole or in chunks, cached or not, give the same bytes and
/// sums.
inline void tiles_from_threads(any_codec const& codec) {
  using rivulet::codec::chunk;
  using rivulet::codec::memory;
  using rivulet::codec::weighted_codes;
  constexpr std::size_t tile = 4096;
  constexpr std::size_t tiles = 9;
  constexpr std::size_t n = (tiles - 1) * tile + 777;
  floats const values = values_of(input::heavy_tails, n, 3);
  std::size_t const size = codec.bytes(n);
  std::size_t const tile_size = codec.bytes(tile);
  auto const count = [&](std::size_t t) { return std::min(tile, n - t * tile); };
  bytes expected(size);
  for (std::size_t t = 0; t < tiles; ++t) {
    codec.encode_chunk(values.data() + t * tile, chunk(count(t)), expected.data() + t * tile_size,
                       t, memory::cached);
  }
  bytes const other = encoded(codec, values_of(input::normal, n, 4));
  weighted_codes const senders[] = {{expected, 0.5f}, {other, 0.25f}, {expected, -1.5f}};
  floats const expected_back = decoded(codec, expected, n);
  floats expected_sums(n, 1.0f);
  codec.accumulate(senders, expected_sums);

  for (std::size_t const shift : {0u, 1u, 16u}) {
    for (memory const where : {memory::cached, memory::uncached}) {
      CAPTURE(shift);
      CAPTURE(where == memory::uncached);
      guarded<std::byte> out(size, std::byte{0x33}, shift);
      guarded<float> back(n, -1.0f, shift / 4);
      guarded<float> sums(n, 1.0f, shift / 4);
      auto const every_third = [&](std::size_t first) {
        for (std::size_t t = first; t < tiles; t += 3) {
          std::size_t const at = t * tile_size;
          codec.decode_tile(expected.data() + at, back.values().subspan(t * tile, count(t)), where);
          for (std::size_t i = 0; i < count(t); i += codec.chunk_values()) {
            chunk const part(i, std::min(codec.chunk_values(), count(t) - i), count(t));
            codec.encode_chunk(values.data() + t * tile + i, part, out.values().data() + at, t,
                               where);
            codec.accumulate_chunk(senders, at, part, sums.values().data() + t * tile + i);
          }
        }
        rivulet::detail::finish_stores(where == memory::uncached);
      };
      std::thread second([&] { every_third(1); });
      std::thread third([&] { every_third(2); });
      every_third(0);
      second.join();
      third.join();
      REQUIRE(out.intact());
      REQUIRE(back.intact());
      REQUIRE(sums.intact());
      REQUIRE(std::ranges::equal(out.values(), expected));
      REQUIRE(same_values(back.values(), expected_back));
      REQUIRE(same_values(sums.values(), expected_sums));
    }
  }
}

inline void spans_of_wrong_size(any_codec const& codec) {
  std::size_t const right = codec.bytes(64);
  bytes wrong(right + 1);
  floats values(64);
  rivulet::codec::weighted_codes const sender{wrong, 1.0f};
  auto const text = [&](std::string const& what) {
    return "rivulet: " + what + ": 64 values take " + std::to_string(right) + " bytes, not " +
           std::to_string(right + 1);
  };
  CHECK_THROWS_WITH_AS(codec.encode(values, wrong, 0), text("encode").c_str(),
                       rivulet::precondition_error);
  CHECK_THROWS_WITH_AS(codec.decode(wrong, values), text("decode").c_str(),
                       rivulet::precondition_error);
  CHECK_THROWS_WITH_AS(codec.accumulate({&sender, 1}, values), text("accumulate").c_str(),
                       rivulet::precondition_error);
}

}  // namespace contract

/// Runs all of it.
inline void codec_contract(any_codec const& codec) {
  std::string const name = codec.name();
  CAPTURE(name);
  contract::sizes_and_addresses(codec);
  contract::error_bound(codec);
  contract::zeros(codec);
  contract::nonfinite(codec);
  contract::accumulation(codec);
  contract::equal_kernels(codec);
  contract::arbitrary_bytes(codec);
  contract::repetition(codec);
  contract::gain_of_many(codec);
  contract::mean_of_seeds(codec);
  contract::tiles_from_threads(codec);
  contract::spans_of_wrong_size(codec);
}

/// The same for a codec of a test's own.
template <rivulet::Codec C>
void codec_contract(C const& codec, codec_promises promises) {
  codec_contract(erased<C>(codec, std::move(promises)));
}

}  // namespace rivulet_test
