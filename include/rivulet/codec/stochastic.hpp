#pragma once

/// \file
/// Rounding at random, with random numbers from a counter.

#include <cstddef>
#include <cstdint>

#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

namespace detail {

/// 16 random bits for each value of a tile, uniform: a hash of a key and the value's index, so that
/// they depend on neither threads nor instructions. Two values, 8 apart, share a 32-bit word.
struct noise_counter {
  std::uint32_t key;

  static constexpr std::uint32_t weyl = 0x9e3779b9u;
  static constexpr std::uint32_t factor = 0x21f0aaadu;

  [[nodiscard]] constexpr std::uint16_t at(std::size_t i) const {
    auto const number = static_cast<std::uint32_t>(i / 16 * 8 + i % 8);
    std::uint32_t word = key + number * weyl;
    word = (word ^ (word >> 16)) * factor;
    word ^= word >> 15;
    return static_cast<std::uint16_t>(i % 16 < 8 ? word : word >> 16);
  }

#if defined(RIVULET_AVX2)
  /// Of values i .. i + 31, for i a multiple of 32.
  RIVULET_AVX2_PART void at(std::size_t i, __m256i (&noise)[4]) const {
    __m256i const lanes = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                             _mm256_set1_epi32(static_cast<int>(weyl)));
    RIVULET_UNROLL
    for (std::size_t j = 0; j < 2; ++j) {
      std::uint32_t const first = key + static_cast<std::uint32_t>(i / 2 + 8 * j) * weyl;
      __m256i word = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), lanes);
      word = _mm256_xor_si256(word, _mm256_srli_epi32(word, 16));
      word = _mm256_mullo_epi32(word, _mm256_set1_epi32(static_cast<int>(factor)));
      word = _mm256_xor_si256(word, _mm256_srli_epi32(word, 15));
      noise[2 * j] = _mm256_and_si256(word, _mm256_set1_epi32(0xffff));
      noise[2 * j + 1] = _mm256_srli_epi32(word, 16);
    }
  }
#endif
};

#if defined(RIVULET_AVX2)
/// The kernel of C can round at random: encode(values, factor, noise) with 16 random bits a lane.
template <class C>
concept HasRandomKernel = HasKernel<C> &&
    requires(float const* values, __m256 const* factor, __m256i const (&noise)[4]) {
  C::avx2::encode(values, *factor, noise);
};
#endif

}  // namespace detail

/// A block codec that can quantize with noise.
template <class C>
concept RandomRounding = BlockCodec<C> &&
    requires(C const& codec, float const* values, std::byte* codes, std::uint16_t const* noise) {
  codec.quantize(values, C::natural_scale(values), codes, noise);
  C::store_scale(1.0f, codes);
};

/// C with rounding to either neighbour at random, so that decoded values are right on average, but
/// beyond the outermost level of a table that does not reach the scale (lloyd_max4, int4). Equal
/// seeds give equal bits on any processor; each rank, step and place has its own random numbers.
/// The error of one value is up to the distance of its neighbours. Bytes and decoding: those of C.
template <RandomRounding C>
struct stochastic {
  C codec;
  std::uint64_t seed = 0;

  static constexpr std::string_view name = C::name;
  static constexpr std::uint16_t id = C::id;

  [[nodiscard]] constexpr std::size_t tile_bytes(std::size_t count) const {
    return codec::tile_bytes(codec, count);
  }

  void encode_tile(float const* values, std::size_t count, std::byte* out,
                   std::uint64_t key) const {
    std::uint64_t const mixed = rivulet::detail::hash{}.add(seed).add(key).value();
    detail::noise_counter const noise{static_cast<std::uint32_t>(mixed >> 32)};
    detail::chunk_blocks<C> const b{chunk(count)};
    std::byte* const scales = out + b.places.scales;
    std::size_t done = 0;
#if defined(RIVULET_AVX2)
    if constexpr (detail::HasRandomKernel<C>) {
      if (rivulet::detail::use_vectors()) done = encode_by_8(noise, values, b.whole, out, scales);
    }
#endif
    for (; done < b.whole; ++done) {
      encode_block(noise, done, values + done * C::block_size, out, scales);
    }
    if (b.rest == 0) return;
    float padded[C::block_size] = {};
    for (std::size_t i = 0; i < b.rest; ++i) padded[i] = values[b.whole * C::block_size + i];
    encode_block(noise, b.whole, padded, out, scales);
  }

  void accumulate_tile(std::byte const* in, std::size_t count, float weight, float* sums) const {
    weighted_codes const one{{in, tile_bytes(count)}, weight};
    accumulate_chunk(codec, std::span(&one, 1), 0, chunk(count), sums);
  }

  [[nodiscard]] std::uint64_t fingerprint() const {
    return rivulet::detail::hash{}
        .add("stochastic")
        .add(codec::fingerprint(codec))
        .add(seed)
        .value();
  }
  void check() const { codec::check(codec); }

 private:
  /// Block number `b` of a tile.
  void encode_block(detail::noise_counter noise, std::size_t b, float const* values,
                    std::byte* codes, std::byte* scales) const {
    std::uint16_t of_block[C::block_size];
    for (std::size_t i = 0; i < C::block_size; ++i) of_block[i] = noise.at(b * C::block_size + i);
    float const scale = C::natural_scale(values);
    C::store_scale(scale, scales + b * C::scale_bytes);
    codec.quantize(values, scale, codes + b * C::code_bytes, of_block);
  }

#if defined(RIVULET_AVX2)
  RIVULET_AVX2 std::size_t encode_by_8(detail::noise_counter noise, float const* values,
                                       std::size_t blocks, std::byte* codes,
                                       std::byte* scales) const {
    using kernel = typename C::avx2;
    std::size_t b = 0;
    for (; b + 8 <= blocks; b += 8) {
      __m256i const measured = kernel::measure(values + b * C::block_size);
      if (!rivulet::detail::avx2::all_finite(rivulet::detail::avx2::magnitude(measured))) {
        for (std::size_t j = b; j < b + 8; ++j) {
          encode_block(noise, j, values + j * C::block_size, codes, scales);
        }
        continue;
      }
      alignas(32) float factors[8];
      _mm256_store_ps(factors, kernel::scales(measured, scales + b * C::scale_bytes));
      for (std::size_t i = b * C::block_size; i < (b + 8) * C::block_size; i += 32) {
        __m256i random[4];
        noise.at(i, random);
        __m256 const f = _mm256_broadcast_ss(factors + (i / C::block_size - b));
        rivulet::detail::avx2::put<false>(codes + detail::code_bytes<C>(i),
                                          kernel::encode(values + i, f, random));
      }
    }
    return b;
  }
#endif
};
template <class C>
stochastic(C) -> stochastic<C>;
template <class C>
stochastic(C, std::uint64_t) -> stochastic<C>;

}  // namespace rivulet::codec
