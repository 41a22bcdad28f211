#pragma once

/// \file
/// Runs of whole blocks: one after the other by the codec's scalar functions, or, where the codec
/// has an AVX2 kernel and the processor can, many at a time with the same bits.
///
/// A kernel is a nested struct `avx2` of static functions. For a codec with scales, blocks being
/// multiples of 32 values:
///
///     __m256i measure(float const* values)       // a statistic of each of 8 blocks, as float bits
///     __m256 scales(__m256i measured, std::byte* scales)  // stores 8 scales; factors for values
///     CODES encode(float const* values, __m256 factor)    // of 32 values
///     void decode(std::byte const* codes, __m256 (&values)[4])  // 32 values for scale 1
///
/// where CODES is __m256i, __m128i, std::uint64_t or std::uint32_t, and the codec itself has
/// scale_at(std::byte const*) -> float. `scales` meets finite statistics only. For a codec of
/// single values without scales:
///
///     bool regular(float const* values)          // whether encode is right for these 32 bytes
///     __m256i encode(float const* values)        // 32 bytes of codes
///     __m256 decode(std::byte const* codes)      // 8 values

#include <cstddef>
#include <cstdint>
#include <span>

#include <rivulet/concepts.hpp>
#include <rivulet/detail/avx2.hpp>

namespace rivulet::codec {

/// The encoded values of one of several senders, and what they count in the sum.
struct weighted_codes {
  std::span<std::byte const> bytes;
  float weight = 1;
};

namespace detail {

/// Where the codes and the scales of a run of blocks begin, in the bytes of each sender.
struct block_places {
  std::size_t codes;
  std::size_t scales;

  [[nodiscard]] constexpr block_places from(std::size_t offset) const {
    return {codes + offset, scales + offset};
  }
};

#if defined(RIVULET_AVX2)

namespace avx2 = rivulet::detail::avx2;

template <class C>
concept HasKernel = BlockCodec<C> && requires {
  typename C::avx2;
};

/// The codec whose kernel decodes the codes of C: C, unless it names another as its `decoder`.
template <class C>
struct decoder {
  using type = C;
};
template <class C>
requires requires { typename C::decoder; }
struct decoder<C> {
  using type = typename C::decoder;
};
template <class C>
using decoder_of = typename decoder<C>::type;

/// Bytes of the codes of `values` values.
template <class C>
[[nodiscard]] constexpr std::size_t code_bytes(std::size_t values) {
  return C::code_bytes * values / C::block_size;
}

/// Scales and factors of 8 blocks; false, and nothing of use, if one has NaN or infinity.
template <class C>
RIVULET_AVX2_PART bool measure_8(float const* values, std::byte* scales, float (&factors)[8]) {
  __m256i const measured = C::avx2::measure(values);
  _mm256_store_ps(factors, C::avx2::scales(measured, scales));
  return avx2::all_finite(avx2::magnitude(measured));
}

/// Encodes 8 blocks at a time; returns how many blocks it did. Of the next 8, statistics and scales
/// are made before these are encoded from the first-level cache, so that nothing waits for the
/// chain from the load over the division to the factor.
template <bool Far, class C>
RIVULET_AVX2 std::size_t encode_by_8(C const& codec, float const* values, std::size_t blocks,
                                     std::byte* codes, std::byte* scales) {
  using kernel = typename C::avx2;
  constexpr std::size_t ahead = 8 * C::block_size + 512;  // values
  std::size_t const groups = blocks / 8;
  alignas(32) float factors[2][8];
  bool regular[2];
  if (groups > 0) regular[0] = measure_8<C>(values, scales, factors[0]);
  for (std::size_t g = 0; g < groups; ++g) {
    std::size_t const now = g % 2;
    float const* const next = values + 8 * C::block_size;
    scales += 8 * C::scale_bytes;
    if (g + 1 < groups) regular[1 - now] = measure_8<C>(next, scales, factors[1 - now]);
    if (!regular[now]) {
      for (std::size_t j = 0; j < 8; ++j, values += C::block_size, codes += C::code_bytes) {
        codec.encode_block(values, codes, scales - (8 - j) * C::scale_bytes);
      }
      continue;
    }
    for (float const& factor : factors[now]) {
      __m256 const f = _mm256_broadcast_ss(&factor);
      for (std::size_t i = 0; i < C::block_size; i += 32) {
        avx2::prefetch(values + ahead);
        avx2::put<Far>(codes, kernel::encode(values, f));
        values += 32;
        codes += code_bytes<C>(32);
      }
    }
  }
  return groups * 8;
}

/// Encodes single values, 32 bytes of codes at a time; returns how many values it did.
template <bool Far, class C>
RIVULET_AVX2 std::size_t encode_singles(C const& codec, float const* values, std::size_t count,
                                        std::byte* codes) {
  constexpr std::size_t step = 32 / C::code_bytes;
  std::size_t i = 0;
  for (; i + step <= count; i += step, values += step, codes += 32) {
    if (C::avx2::regular(values)) {
      avx2::put<Far>(codes, C::avx2::encode(values));
    } else {
      for (std::size_t j = 0; j < step; ++j) {
        codec.encode_block(values + j, codes + j * C::code_bytes, nullptr);
      }
    }
  }
  return i;
}

/// 32 values for scale 1.
template <class C>
RIVULET_AVX2_PART void decode_32(std::byte const* codes, __m256 (&values)[4]) {
  if constexpr (C::scale_bytes > 0) {
    C::avx2::decode(codes, values);
  } else {
    RIVULET_UNROLL
    for (std::size_t j = 0; j < 4; ++j) values[j] = C::avx2::decode(codes + code_bytes<C>(8 * j));
  }
}

/// What the values of a block are multiplied by.
template <class C>
RIVULET_AVX2_PART __m256 factor_of(std::byte const* scale, float weight) {
  if constexpr (C::scale_bytes > 0) {
    return _mm256_set1_ps(C::scale_at(scale) * weight);
  } else {
    return _mm256_set1_ps(weight);
  }
}

/// Blocks in 32 values, or 1 if a block has more.
template <class C>
inline constexpr std::size_t blocks_in_step = C::block_size < 32 ? 32 / C::block_size : 1;

/// Values whose sums stay in registers while the senders are added.
template <class C>
inline constexpr std::size_t values_in_registers = C::block_size % 64 == 0 ? 64 : 32;

/// Adds up all senders, step by step, so that the sums are read and written once; returns how many
/// blocks it did.
template <class C>
RIVULET_AVX2 std::size_t accumulate_kernel(std::span<weighted_codes const> senders, block_places at,
                                           std::size_t blocks, float* sums) {
  constexpr std::size_t width = values_in_registers<C>;
  constexpr std::size_t step_values = blocks_in_step<C> * C::block_size;
  std::size_t b = 0;
  for (; b + blocks_in_step<C> <= blocks; b += blocks_in_step<C>) {
    for (std::size_t i = 0; i < step_values; i += width, sums += width) {
      __m256 sum[width / 8];
      RIVULET_UNROLL
      for (std::size_t j = 0; j < width / 8; ++j) sum[j] = _mm256_loadu_ps(sums + 8 * j);
      for (weighted_codes const& sender : senders) {
        __m256 const factor = factor_of<C>(sender.bytes.data() + at.scales, sender.weight);
        std::byte const* const codes = sender.bytes.data() + at.codes + code_bytes<C>(i);
        // Many streams are more than the hardware reads ahead by itself.
        if (senders.size() > 2)
          _mm_prefetch(reinterpret_cast<char const*>(codes) + 4096, _MM_HINT_T0);
        RIVULET_UNROLL
        for (std::size_t j = 0; j < width / 8; j += 4) {
          __m256 v[4];
          decode_32<C>(codes + code_bytes<C>(8 * j), v);
          RIVULET_UNROLL
          for (std::size_t k = 0; k < 4; ++k) {
            sum[j + k] = _mm256_fmadd_ps(v[k], factor, sum[j + k]);
          }
        }
      }
      RIVULET_UNROLL
      for (std::size_t j = 0; j < width / 8; ++j) _mm256_storeu_ps(sums + 8 * j, sum[j]);
    }
    at.codes += blocks_in_step<C> * C::code_bytes;
    at.scales += blocks_in_step<C> * C::scale_bytes;
  }
  return b;
}

template <bool Far, class C>
RIVULET_AVX2 std::size_t decode_kernel(std::byte const* codes, std::byte const* scales,
                                       std::size_t blocks, float* values) {
  constexpr std::size_t step_values = blocks_in_step<C> * C::block_size;
  std::size_t b = 0;
  for (; b + blocks_in_step<C> <= blocks; b += blocks_in_step<C>) {
    __m256 const factor = factor_of<C>(scales, 1.0f);
    for (std::size_t i = 0; i < step_values; i += 32, codes += code_bytes<C>(32), values += 32) {
      __m256 v[4];
      decode_32<C>(codes, v);
      RIVULET_UNROLL
      for (std::size_t j = 0; j < 4; ++j) {
        avx2::put<Far>(values + 8 * j, _mm256_fmadd_ps(v[j], factor, _mm256_setzero_ps()));
      }
    }
    scales += blocks_in_step<C> * C::scale_bytes;
  }
  return b;
}

#endif

/// Encodes whole blocks. `uncached`: store past the caches.
template <BlockCodec C>
void encode_blocks(C const& codec, float const* values, std::size_t blocks, std::byte* codes,
                   std::byte* scales, [[maybe_unused]] bool uncached) {
  std::size_t done = 0;
#if defined(RIVULET_AVX2)
  if constexpr (HasKernel<C>) {
    bool const past = uncached && avx2::aligned(codes);
    if (rivulet::detail::use_vectors()) {
      if constexpr (C::scale_bytes > 0) {
        done = past ? encode_by_8<true>(codec, values, blocks, codes, scales)
                    : encode_by_8<false>(codec, values, blocks, codes, scales);
      } else {
        done = past ? encode_singles<true>(codec, values, blocks, codes)
                    : encode_singles<false>(codec, values, blocks, codes);
      }
    }
  }
#endif
  for (std::size_t b = done; b < blocks; ++b) {
    codec.encode_block(values + b * C::block_size, codes + b * C::code_bytes,
                       scales + b * C::scale_bytes);
  }
}

/// sums <- fma(value, scale * weight, sums) for whole blocks of each sender in order.
template <BlockCodec C>
void accumulate_blocks(C const& codec, std::span<weighted_codes const> senders, block_places at,
                       std::size_t blocks, float* sums) {
  std::size_t done = 0;
#if defined(RIVULET_AVX2)
  if constexpr (HasKernel<decoder_of<C>>) {
    if (rivulet::detail::use_vectors()) {
      done = accumulate_kernel<decoder_of<C>>(senders, at, blocks, sums);
    }
  }
#endif
  for (weighted_codes const& sender : senders) {
    for (std::size_t b = done; b < blocks; ++b) {
      codec.accumulate_block(sender.bytes.data() + at.codes + b * C::code_bytes,
                             sender.bytes.data() + at.scales + b * C::scale_bytes, sender.weight,
                             sums + b * C::block_size);
    }
  }
}

/// values <- fma(value, scale, 0) for whole blocks.
template <BlockCodec C>
void decode_blocks(C const& codec, std::byte const* codes, std::byte const* scales,
                   std::size_t blocks, float* values, [[maybe_unused]] bool uncached) {
  std::size_t done = 0;
#if defined(RIVULET_AVX2)
  if constexpr (HasKernel<decoder_of<C>>) {
    if (rivulet::detail::use_vectors()) {
      done = uncached && avx2::aligned(values)
                 ? decode_kernel<true, decoder_of<C>>(codes, scales, blocks, values)
                 : decode_kernel<false, decoder_of<C>>(codes, scales, blocks, values);
    }
  }
#endif
  for (std::size_t b = done; b < blocks; ++b) {
    float* const block = values + b * C::block_size;
    for (std::size_t i = 0; i < C::block_size; ++i) block[i] = 0.0f;
    codec.accumulate_block(codes + b * C::code_bytes, scales + b * C::scale_bytes, 1.0f, block);
  }
}

}  // namespace detail
}  // namespace rivulet::codec
