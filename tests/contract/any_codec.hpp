#pragma once

/// \file
/// A codec with its type erased and with what its documentation promises, so that tests are
/// compiled once and not per codec.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include <rivulet/codec/array.hpp>

namespace rivulet_test {

/// What becomes of encode(decode(codes)).
enum class repeat : std::uint8_t {
  differs,      ///< the largest value of a block is no level of its format
  same_values,  ///< the values come back
  same_codes    ///< the codes come back
};

/// How decoded values q relate to the values x.
enum class gain : std::uint8_t {
  any,
  least_squares,  ///< sum(x q) = sum(q^2): no other scale has less error
  one,            ///< sum(x q) = sum(x^2)
  unbiased        ///< that, and the mean of q over many seeds is x
};

/// The magnitudes around a value.
struct magnitudes {
  double largest = 0;  ///< in its block
  double mean = 0;     ///< of its block, padded with zeros
  double tile = 0;     ///< the largest in its tile
};

/// What a codec's documentation promises.
struct codec_promises {
  /// Largest error of a finite value among others.
  std::function<double(double x, magnitudes const& around)> error;
  std::size_t block = 1;              ///< values that share a scale
  std::size_t scope = 1;              ///< values that one NaN or infinity can spoil
  bool spoils_scope = true;           ///< it spoils all of them; else just some
  bool drops_tiny = true;             ///< blocks of several values below 2^-100 decode to 0
  bool opposite = true;               ///< -x decodes to the opposite of what x does
  repeat again = repeat::same_codes;  ///< for whole blocks
  rivulet_test::gain gain = rivulet_test::gain::any;

  /// The magnitudes around values[i], of finite values, by way of those around values[i - 1].
  [[nodiscard]] magnitudes around(std::span<float const> values, std::size_t i,
                                  magnitudes last) const {
    auto const part = [&](std::size_t size) {
      return values.subspan(i, std::min(size, values.size() - i));
    };
    auto const largest = [](std::span<float const> of) {
      double result = 0;
      for (float const value : of) result = std::max(result, std::fabs(double{value}));
      return result;
    };
    if (i % 4096 == 0) last.tile = largest(part(4096));
    if (i % block == 0) {
      last.largest = largest(part(block));
      last.mean = 0;
      for (float const value : part(block)) last.mean += std::fabs(double{value});
      last.mean /= static_cast<double>(block);
    }
    return last;
  }
};

/// The functions of codec/array.hpp and codec/tile.hpp, for one codec.
class any_codec {
 public:
  explicit any_codec(codec_promises promises) : promises_(std::move(promises)) {}
  virtual ~any_codec() = default;

  [[nodiscard]] codec_promises const& promises() const { return promises_; }
  [[nodiscard]] virtual std::string name() const = 0;
  /// Values that a tail is padded to; 0 if the codec is no block codec.
  [[nodiscard]] virtual std::size_t padding() const = 0;
  [[nodiscard]] virtual std::size_t block_bytes() const = 0;

  [[nodiscard]] virtual std::size_t bytes(std::size_t values) const = 0;
  virtual void encode(std::span<float const> values, std::span<std::byte> out,
                      std::uint64_t seed) const = 0;
  virtual void decode(std::span<std::byte const> in, std::span<float> values) const = 0;
  virtual void accumulate(std::span<rivulet::codec::weighted_codes const> senders,
                          std::span<float> sums) const = 0;

  /// What a pass hands over at a time.
  [[nodiscard]] virtual std::size_t chunk_values() const = 0;
  virtual void encode_chunk(float const* values, rivulet::codec::chunk part, std::byte* out,
                            std::uint64_t key, rivulet::codec::memory where) const = 0;
  virtual void accumulate_chunk(std::span<rivulet::codec::weighted_codes const> senders,
                                std::size_t offset, rivulet::codec::chunk part,
                                float* sums) const = 0;
  virtual void decode_tile(std::byte const* in, std::span<float> values,
                           rivulet::codec::memory where) const = 0;

 private:
  codec_promises promises_;
};

template <rivulet::Codec C>
class erased final : public any_codec {
 public:
  erased(C const& codec, codec_promises promises) : any_codec(std::move(promises)), codec_(codec) {}

  [[nodiscard]] std::string name() const override { return std::string(C::name); }
  [[nodiscard]] std::size_t padding() const override {
    if constexpr (rivulet::BlockCodec<C>) {
      return C::block_size;
    } else {
      return 0;
    }
  }
  [[nodiscard]] std::size_t block_bytes() const override {
    if constexpr (rivulet::BlockCodec<C>) {
      static_assert(rivulet::codec::block_bytes<C> == C::code_bytes + C::scale_bytes);
      return rivulet::codec::block_bytes<C>;
    } else {
      return 0;
    }
  }
  [[nodiscard]] std::size_t bytes(std::size_t values) const override {
    return rivulet::codec::encoded_bytes(codec_, values);
  }
  void encode(std::span<float const> values, std::span<std::byte> out,
              std::uint64_t seed) const override {
    rivulet::codec::encode(codec_, values, out, seed);
  }
  void decode(std::span<std::byte const> in, std::span<float> values) const override {
    rivulet::codec::decode(codec_, in, values);
  }
  void accumulate(std::span<rivulet::codec::weighted_codes const> senders,
                  std::span<float> sums) const override {
    rivulet::codec::accumulate(codec_, senders, sums);
  }
  [[nodiscard]] std::size_t chunk_values() const override {
    return rivulet::codec::chunk_values<C>;
  }
  void encode_chunk(float const* values, rivulet::codec::chunk part, std::byte* out,
                    std::uint64_t key, rivulet::codec::memory where) const override {
    rivulet::codec::encode_chunk(codec_, values, part, out, key, where);
  }
  void accumulate_chunk(std::span<rivulet::codec::weighted_codes const> senders, std::size_t offset,
                        rivulet::codec::chunk part, float* sums) const override {
    rivulet::codec::accumulate_chunk(codec_, senders, offset, part, sums);
  }
  void decode_tile(std::byte const* in, std::span<float> values,
                   rivulet::codec::memory where) const override {
    rivulet::codec::decode_tile(codec_, in, values.size(), values.data(), where);
  }

 private:
  C codec_;
};

/// Turns the vector kernels off, or leaves them, while it lives.
class kernels {
 public:
  explicit kernels([[maybe_unused]] bool vectors) {
#if defined(RIVULET_AVX2)
    if (!vectors) rivulet::detail::vector_kernels() = false;
#endif
  }
  ~kernels() {
#if defined(RIVULET_AVX2)
    rivulet::detail::vector_kernels() = before_;
#endif
  }
  kernels(kernels const&) = delete;
  kernels& operator=(kernels const&) = delete;

 private:
#if defined(RIVULET_AVX2)
  bool before_ = rivulet::detail::vector_kernels();
#endif
};

/// Whether there are vector kernels to compare with.
[[nodiscard]] inline bool has_vectors() { return rivulet::detail::use_vectors(); }

/// Equal bits, or both NaN.
[[nodiscard]] inline bool same_value(float a, float b) {
  auto const nan = [](float x) {
    return (rivulet::detail::bits_of(x) & 0x7fffffffu) > 0x7f800000u;
  };
  return rivulet::detail::bits_of(a) == rivulet::detail::bits_of(b) || (nan(a) && nan(b));
}

}  // namespace rivulet_test
