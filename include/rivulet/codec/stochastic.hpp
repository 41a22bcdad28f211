#pragma once

/// \file
/// Rounding at random, with random numbers from a counter.

#include <cstddef>
#include <cstdint>

#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

namespace detail {

/// 16 random bits for each value of a tile, uniform: a hash of a key and the value's index, so that
/// they depend on neither threads nor instructions. Two neighbours share a 32-bit word. One round
/// of hashing is what speed allows: at some distances within a tile two numbers correlate, by up
/// to 0.033; the means of sums stay right, their variance is off by no more than that.
struct noise_counter {
  std::uint32_t key;

  static constexpr std::uint32_t weyl = 0x9e3779b9u;
  static constexpr std::uint32_t factor = 0x21f0aaadu;

  [[nodiscard]] constexpr std::uint16_t at(std::size_t i) const {
    std::uint32_t word = key + static_cast<std::uint32_t>(i / 2) * weyl;
    word = (word ^ (word >> 16)) * factor;
    word ^= word >> 15;
    return static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16);
  }

#if defined(RIVULET_AVX2)
  /// Of values i .. i + 31, for i a multiple of 32.
  RIVULET_AVX2_PART void at(std::size_t i, __m256i (&noise)[2]) const {
    auto const lane = [](std::uint32_t n) { return static_cast<int>(n * weyl); };
    __m256i const lanes =
        _mm256_setr_epi32(0, lane(1), lane(2), lane(3), lane(4), lane(5), lane(6), lane(7));
    auto const first = static_cast<int>(key + static_cast<std::uint32_t>(i / 2) * weyl);
    __m256i word = _mm256_add_epi32(_mm256_set1_epi32(first), lanes);
    RIVULET_UNROLL
    for (std::size_t j = 0; j < 2; ++j) {
      __m256i mixed = _mm256_xor_si256(word, _mm256_srli_epi32(word, 16));
      mixed = _mm256_mullo_epi32(mixed, _mm256_set1_epi32(static_cast<int>(factor)));
      noise[j] = _mm256_xor_si256(mixed, _mm256_srli_epi32(mixed, 15));
      word = _mm256_add_epi32(word, _mm256_set1_epi32(lane(8)));
    }
  }
#endif
};

#if defined(RIVULET_AVX2)
/// The kernel of C can round at random: encode(values, factor, noise) with 16 random bits a value.
template <class C>
concept HasRandomKernel = HasKernel<C> &&
    requires(float const* values, __m256 const* factor, __m256i const (&noise)[2]) {
  C::avx2::encode(values, *factor, noise);
};
#endif

/// Rounding of the blocks of a tile; see to_nearest.
template <class C>
struct at_random {
  C const& codec;
  noise_counter noise;

  void block(std::size_t b, float const* values, std::byte* codes, std::byte* scale) const {
    std::uint16_t of_block[C::block_size];
    for (std::size_t i = 0; i < C::block_size; ++i) of_block[i] = noise.at(b * C::block_size + i);
    float const s = C::natural_scale(values);
    C::store_scale(s, scale);
    codec.quantize(values, s, codes, of_block);
  }
#if defined(RIVULET_AVX2)
  RIVULET_AVX2_PART auto encode(std::size_t i, float const* values, __m256 factor) const {
    __m256i random[2];
    noise.at(i, random);
    return C::avx2::encode(values, factor, random);
  }
#endif
};

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
    detail::at_random<C> const round{codec, {static_cast<std::uint32_t>(mixed >> 32)}};
    detail::chunk_blocks<C> const b{chunk(count)};
    std::byte* const scales = out + b.places.scales;
    std::size_t done = 0;
#if defined(RIVULET_AVX2)
    if constexpr (detail::HasRandomKernel<C>) {
      if (rivulet::detail::use_vectors()) {
        done =
            detail::encode_by_8<false, C>(round, values, b.whole, out, scales, {{values, 4, 1024}})
                .blocks;
      }
    }
#endif
    for (; done < b.whole; ++done) {
      round.block(done, values + done * C::block_size, out + done * C::code_bytes,
                  scales + done * C::scale_bytes);
    }
    if (b.rest == 0) return;
    float padded[C::block_size] = {};
    for (std::size_t i = 0; i < b.rest; ++i) padded[i] = values[b.whole * C::block_size + i];
    round.block(b.whole, padded, out + b.tail().codes, out + b.tail().scales);
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
};
template <class C>
stochastic(C) -> stochastic<C>;
template <class C>
stochastic(C, std::uint64_t) -> stochastic<C>;

}  // namespace rivulet::codec
