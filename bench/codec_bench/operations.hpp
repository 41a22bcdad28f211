#pragma once

/// \file
/// What is timed: operations of codecs on arrays, and the baselines that they are compared with.
/// All read the same values and write to the same memory. Each result is checked once before it is
/// timed.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>

#include <rivulet/codec/array.hpp>

#include "codec_bench/baselines.hpp"
#include "codec_bench/samples.hpp"
#include "codec_bench/timing.hpp"

namespace codec_bench {

/// Values in the two arrays: one fits into the cache of a core, the other into none.
inline constexpr std::size_t in_cache = (std::size_t{128} << 10) / sizeof(float);
inline constexpr std::size_t in_memory = (std::size_t{64} << 20) / sizeof(float);

/// Normally distributed values.
inline std::span<float const> input(std::size_t first, std::size_t count) {
  static buffer<float> const memory = [] {
    buffer<float> result{in_memory};
    random_values random{1};
    for (float& x : result.all()) x = static_cast<float>(random.normal());
    return result;
  }();
  return memory.all().subspan(first, count);
}

/// Where results go: half a page past the place of the input, since a store and a load of one place
/// in two pages can get into each other's way.
inline std::span<float> output(std::size_t first, std::size_t count) {
  constexpr std::size_t shift = 528;
  static buffer<float> const memory{in_memory + shift};
  return memory.all().subspan(shift + first, count);
}

inline contestant read_scan(std::size_t values) {
  return {"read", values, [](std::size_t first, std::size_t count) {
            static std::atomic<std::uint32_t> sink;  // keeps the loop alive
            sink.store(baseline::largest(input(first, count)), std::memory_order_relaxed);
          }};
}

inline contestant memory_copy(std::size_t values) {
  return {"memcpy", values, [](std::size_t first, std::size_t count) {
            std::memcpy(output(first, count).data(), input(first, count).data(),
                        count * sizeof(float));
          }};
}

inline contestant axpy(std::size_t values) {
  return {"axpy", values, [](std::size_t first, std::size_t count) {
            baseline::add(input(first, count), output(first, count));
          }};
}

inline void check(bool holds, std::string const& codec, char const* what) {
  if (holds) return;
  std::fprintf(stderr, "codec_bench: %s: wrong result of %s\n", codec.c_str(), what);
  std::exit(1);
}

/// Runs `f` on the scalar code.
template <class F>
void without_vectors(F const& f) {
#if defined(RIVULET_AVX2)
  bool const before = rivulet::detail::vector_kernels().exchange(false);
  f();
  rivulet::detail::vector_kernels() = before;
#else
  f();
#endif
}

/// What to time of a pass.
enum class pass_part : std::uint8_t {
  encode,          ///< without checksums
  encode_summed,   ///< with those of the codes and of Theta
  receive,         ///< two workers, Nesterov, mixing
  receive_traffic  ///< the limit of `receive`
};

/// The functions of codec/array.hpp for one codec, and its fused passes.
struct any_codec {
  std::string label;  ///< name and block size: "e3m0<64>"
  std::size_t block = 1;
  bool divisible = true;  ///< a part of the codes is the codes of a part
  std::function<std::size_t(std::size_t values)> bytes;
  std::function<void(std::span<float const>, std::span<std::byte>)> encode;
  std::function<void(std::span<std::byte const>, std::span<float>)> decode;
  std::function<void(std::span<rivulet::codec::weighted_codes const>, std::span<float>)> accumulate;
  std::function<contestant(pass_part, std::size_t values)> pass;  ///< not of all codecs
  std::shared_ptr<any_codec const> nearest;  ///< of a stochastic codec: the one without noise

  [[nodiscard]] double bits_per_value() const {
    constexpr std::size_t values = std::size_t{1} << 20;
    return 8.0 * static_cast<double>(bytes(values)) / static_cast<double>(values);
  }
};

/// The codes of the input, and the codec to read them with.
class coded_input {
 public:
  coded_input(any_codec codec, std::size_t values)
      : codec_{std::move(codec)}, bytes_{codec_.bytes(values)} {
    codec_.encode(input(0, values), bytes_.all());
  }
  coded_input(coded_input const& other) : codec_{other.codec_}, bytes_{other.bytes_.all().size()} {
    std::ranges::copy(other.bytes_.all(), bytes_.data());
  }

  [[nodiscard]] any_codec const& codec() const { return codec_; }
  /// The codes of a range of values that begins and ends with a tile.
  [[nodiscard]] std::span<std::byte> part(std::size_t first, std::size_t count) const {
    return bytes_.all().subspan(codec_.bytes(first), codec_.bytes(count));
  }
  [[nodiscard]] std::span<std::byte> all() const { return bytes_.all(); }

 private:
  any_codec codec_;
  buffer<std::byte> bytes_;
};

/// Checks that decoded values are near the input, that sums are sums of them, and that vector and
/// scalar code agree on the first values.
inline void check_results(coded_input const& coded, std::size_t values) {
  any_codec const& codec = coded.codec();
  buffer<float> decoded{values};
  codec.decode(coded.all(), decoded.all());
  check(signal_to_noise_db(input(0, values), decoded.all()) > 0.2, codec.label, "encode, decode");

  buffer<float> sums{values};
  buffer<float> one_by_one{values};
  std::array<rivulet::codec::weighted_codes, 3> senders;
  for (std::size_t i = 0; i < senders.size(); ++i) {
    senders[i] = {coded.all(), 1 + static_cast<float>(i)};
    codec.accumulate(std::span{&senders[i], 1}, one_by_one.all());
    if (i == 0) check(std::ranges::equal(one_by_one.all(), decoded.all()), codec.label, "decode");
  }
  codec.accumulate(senders, sums.all());
  check(std::ranges::equal(one_by_one.all(), sums.all()), codec.label, "accumulate");

  if (!codec.divisible && values > in_cache) return;  // parts have other codes than the whole
  std::size_t const n = std::min(values, in_cache);
  buffer<std::byte> scalar_codes{codec.bytes(n)};
  buffer<float> scalar{n};
  without_vectors([&] {
    codec.encode(input(0, n), scalar_codes.all());
    codec.decode(coded.part(0, n), scalar.all());
  });
  check(std::ranges::equal(scalar_codes.all(), coded.part(0, n)), codec.label, "encode");
  check(std::ranges::equal(scalar.all(), decoded.all().first(n)), codec.label, "decode");
}

inline std::shared_ptr<coded_input const> coded(any_codec const& codec, std::size_t values) {
  static std::set<std::pair<std::string, std::size_t>> checked;
  auto const result = std::make_shared<coded_input const>(codec, values);
  if (checked.emplace(codec.label, values).second) check_results(*result, values);
  return result;
}

inline contestant encoding(any_codec const& codec, std::size_t values) {
  return {"encode", values, [c = coded(codec, values)](std::size_t first, std::size_t count) {
            c->codec().encode(input(first, count), c->part(first, count));
          }};
}

inline contestant decoding(any_codec const& codec, std::size_t values) {
  return {"decode", values, [c = coded(codec, values)](std::size_t first, std::size_t count) {
            c->codec().decode(c->part(first, count), output(first, count));
          }};
}

inline contestant decoding_and_adding(any_codec const& codec, std::size_t values) {
  return {"add", values, [c = coded(codec, values)](std::size_t first, std::size_t count) {
            rivulet::codec::weighted_codes const sender{c->part(first, count), 0.5f};
            c->codec().accumulate(std::span{&sender, 1}, output(first, count));
          }};
}

/// The codes of eight senders, each in memory of its own.
using eight_senders = std::array<std::shared_ptr<coded_input const>, 8>;

inline eight_senders coded_by_8(any_codec const& codec, std::size_t values) {
  eight_senders result{coded(codec, values)};
  for (std::size_t i = 1; i < 8; ++i) result[i] = std::make_shared<coded_input const>(*result[0]);
  return result;
}

inline contestant summing(any_codec const& codec, std::size_t values) {
  return {"sum", values, [c = coded_by_8(codec, values)](std::size_t first, std::size_t count) {
            rivulet::codec::weighted_codes senders[8];
            for (std::size_t i = 0; i < 8; ++i) senders[i] = {c[i]->part(first, count), 0.125f};
            c[0]->codec().accumulate(senders, output(first, count));
          }};
}

/// The same as one pass per sender.
inline contestant adding_8(any_codec const& codec, std::size_t values) {
  return {"8_adds", values, [c = coded_by_8(codec, values)](std::size_t first, std::size_t count) {
            for (auto const& sender : c) {
              rivulet::codec::weighted_codes const one{sender->part(first, count), 0.125f};
              sender->codec().accumulate(std::span{&one, 1}, output(first, count));
            }
          }};
}

}  // namespace codec_bench
