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
/// scales_at(std::byte const*) -> __m256, 8 stored scales. `scales` meets finite statistics only.
/// For a codec of single values without scales:
///
///     bool regular(float const* values)          // whether encode is right for these 32 bytes
///     __m256i encode(float const* values)        // 32 bytes of codes
///     __m256 decode(std::byte const* codes)      // 8 values

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <rivulet/concepts.hpp>
#include <rivulet/detail/avx2.hpp>

namespace rivulet::codec {

/// The encoded values of one of several senders, and what they count in the sum.
struct weighted_codes {
  std::span<std::byte const> bytes;
  float weight = 1;
};

/// What is read after the values at hand, up to two arrays: a kernel asks for it while it computes,
/// so that memory and arithmetic overlap.
struct read_ahead {
  struct array {
    std::byte const* next = nullptr;
    std::size_t value_bytes = 0;

    array() = default;
    /// The values from `distance` behind `now` on; what is no memory does no harm.
    array(void const* now, std::size_t bytes, std::size_t distance)
        : next(static_cast<std::byte const*>(now) + bytes * distance), value_bytes(bytes) {}
  };
  array first{};
  array second{};
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

/// How values become codes: here to the nearest. `block` encodes block number `b` by the scalar
/// code, `encode` 32 values from number `i` on for a factor; both numbers count from the first
/// value of the run.
template <class C>
struct to_nearest {
  C const& codec;

  void block(std::size_t, float const* values, std::byte* codes, std::byte* scale) const {
    codec.encode_block(values, codes, scale);
  }
  RIVULET_AVX2_PART static auto encode(std::size_t, float const* values, __m256 factor) {
    return C::avx2::encode(values, factor);
  }
};

/// How far a kernel came.
struct progress {
  std::size_t blocks = 0;
  bool finite = true;  ///< no value of these was NaN or infinity
};

/// Scales and factors of 8 blocks; false, and nothing of use, if one has NaN or infinity.
template <class C>
RIVULET_AVX2_PART bool measure_8(float const* values, std::byte* scales, float (&factors)[8]) {
  __m256i const measured = C::avx2::measure(values);
  _mm256_store_ps(factors, C::avx2::scales(measured, scales));
  return avx2::all_finite(avx2::magnitude(measured));
}

/// Asks for what is read next in place of 32 values from number `i` on.
RIVULET_AVX2_PART void fetch(read_ahead::array const& array, std::size_t i) {
  if (array.next == nullptr) return;
  std::byte const* const at = array.next + i * array.value_bytes;
  avx2::prefetch_line(at);
  avx2::prefetch_line(at + 64);
}

/// Encodes 8 blocks at a time. Of the next 8, statistics and scales are made before these are
/// encoded from the first-level cache, so that nothing waits for the chain from the load over the
/// division to the factor.
template <bool Far, class C, class Rounding>
RIVULET_AVX2 progress encode_by_8(Rounding const& rounding, float const* values, std::size_t blocks,
                                  std::byte* codes, std::byte* scales, read_ahead const& ahead) {
  progress done{blocks / 8 * 8};
  alignas(32) float factors[2][8];
  bool regular[2];
  if (done.blocks > 0) regular[0] = measure_8<C>(values, scales, factors[0]);
  for (std::size_t b = 0; b < done.blocks; b += 8) {
    std::size_t const now = b / 8 % 2;
    float const* const next = values + 8 * C::block_size;
    scales += 8 * C::scale_bytes;
    if (b + 8 < done.blocks) regular[1 - now] = measure_8<C>(next, scales, factors[1 - now]);
    if (!regular[now]) {
      for (std::size_t j = 0; j < 8; ++j, values += C::block_size, codes += C::code_bytes) {
        rounding.block(b + j, values, codes, scales - (8 - j) * C::scale_bytes);
      }
      done.finite = false;
      continue;
    }
    std::size_t first = b * C::block_size;
    for (float const& factor : factors[now]) {
      __m256 const f = _mm256_broadcast_ss(&factor);
      for (std::size_t i = 0; i < C::block_size; i += 32) {
        fetch(ahead.first, first);
        fetch(ahead.second, first);
        avx2::put<Far>(codes, rounding.encode(first, values, f));
        values += 32;
        codes += code_bytes<C>(32);
        first += 32;
      }
    }
  }
  return done;
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

/// Values in 8 blocks; of single values, in 8 steps of 32.
template <class C>
inline constexpr std::size_t values_of_8 = 8 * (C::block_size < 32 ? 32 : C::block_size);

/// What the values of up to 8 blocks are multiplied by.
template <class C>
RIVULET_AVX2_PART void load_factors(std::byte const* scales, std::size_t blocks, float weight,
                                    float (&factors)[8]) {
  __m256 const w = _mm256_set1_ps(weight);
  if constexpr (C::scale_bytes > 0) {
    std::byte padded[8 * C::scale_bytes] = {};
    if (blocks < 8) {
      std::memcpy(padded, scales, blocks * C::scale_bytes);
      scales = padded;
    }
    _mm256_store_ps(factors, _mm256_mul_ps(C::scales_at(scales), w));
  } else {
    _mm256_store_ps(factors, w);
  }
}

/// The factor of the values from number `i` of 8 blocks on.
template <class C>
RIVULET_AVX2_PART __m256 factor_at(float const (&factors)[8], std::size_t i) {
  return _mm256_broadcast_ss(factors + i / (values_of_8<C> / 8));
}

/// Decodes to `values`, or adds to them; returns how many blocks it did.
template <bool Far, bool Add, class C>
RIVULET_AVX2 std::size_t decode_kernel(std::byte const* codes, std::byte const* scales,
                                       std::size_t blocks, float weight, float* values) {
  std::size_t const all = blocks * C::block_size / 32 * 32;
  alignas(32) float factors[8];
  for (std::size_t i = 0; i < all; i += 32, codes += code_bytes<C>(32), values += 32) {
    if (i % values_of_8<C> == 0) {
      std::size_t const left = blocks - i / C::block_size;
      load_factors<C>(scales + i / C::block_size * C::scale_bytes, left, weight, factors);
    }
    __m256 const factor = factor_at<C>(factors, i % values_of_8<C>);
    __m256 v[4];
    decode_32<C>(codes, v);
    RIVULET_UNROLL
    for (std::size_t j = 0; j < 4; ++j) {
      __m256 const sum = Add ? _mm256_loadu_ps(values + 8 * j) : _mm256_setzero_ps();
      avx2::put<Far>(values + 8 * j, _mm256_fmadd_ps(v[j], factor, sum));
    }
  }
  return all / C::block_size;
}

/// Adds up several senders in one pass over the sums; returns how many blocks it did.
template <class C>
RIVULET_AVX2 std::size_t sum_kernel(std::span<weighted_codes const> senders, block_places at,
                                    std::size_t blocks, float* sums) {
  constexpr std::size_t most = 8;        // senders at a time
  bool const many = senders.size() > 2;  // more streams than the hardware reads ahead by itself
  std::size_t const all = blocks * C::block_size / 32 * 32;
  alignas(32) float factors[most][8];
  for (std::size_t first = 0; first < all; first += values_of_8<C>, sums += values_of_8<C>) {
    std::size_t const count = all - first < values_of_8<C> ? all - first : values_of_8<C>;
    for (std::size_t begin = 0; begin < senders.size(); begin += most) {
      auto const some = senders.subspan(begin, (std::min)(most, senders.size() - begin));
      for (std::size_t s = 0; s < some.size(); ++s) {
        load_factors<C>(some[s].bytes.data() + at.scales, count / C::block_size, some[s].weight,
                        factors[s]);
        if (!many) continue;
        std::byte const* const ahead = some[s].bytes.data() + at.codes + 2048;
        for (std::size_t i = 0; i < code_bytes<C>(count); i += 64) avx2::prefetch_line(ahead + i);
      }
      for (std::size_t i = 0; i < count; i += 32) {
        if (many) avx2::prefetch(sums + i + 1024);
        __m256 sum[4];
        RIVULET_UNROLL
        for (std::size_t j = 0; j < 4; ++j) sum[j] = _mm256_loadu_ps(sums + i + 8 * j);
        for (std::size_t s = 0; s < some.size(); ++s) {
          __m256 const factor = factor_at<C>(factors[s], i);
          __m256 v[4];
          decode_32<C>(some[s].bytes.data() + at.codes + code_bytes<C>(i), v);
          RIVULET_UNROLL
          for (std::size_t j = 0; j < 4; ++j) sum[j] = _mm256_fmadd_ps(v[j], factor, sum[j]);
        }
        RIVULET_UNROLL
        for (std::size_t j = 0; j < 4; ++j) _mm256_storeu_ps(sums + i + 8 * j, sum[j]);
      }
    }
    at.codes += C::code_bytes * values_of_8<C> / C::block_size;
    at.scales += C::scale_bytes * values_of_8<C> / C::block_size;
  }
  return all / C::block_size;
}

#endif

/// Encodes whole blocks. `uncached`: store past the caches; `ahead`: what is read next. Returns
/// true only if all values are finite; it may be false without a reason.
template <BlockCodec C>
bool encode_blocks(C const& codec, float const* values, std::size_t blocks, std::byte* codes,
                   std::byte* scales, [[maybe_unused]] bool uncached,
                   [[maybe_unused]] read_ahead const& ahead = {}) {
  std::size_t done = 0;
  bool finite = false;
#if defined(RIVULET_AVX2)
  if constexpr (HasKernel<C>) {
    bool const past = uncached && avx2::aligned(codes);
    if (rivulet::detail::use_vectors()) {
      if constexpr (C::scale_bytes > 0) {
        to_nearest<C> const rounding{codec};
        progress const by_8 =
            past ? encode_by_8<true, C>(rounding, values, blocks, codes, scales, ahead)
                 : encode_by_8<false, C>(rounding, values, blocks, codes, scales, ahead);
        done = by_8.blocks;
        finite = by_8.finite && done == blocks;
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
  return finite;
}

/// sums <- fma(value, scale * weight, sums) for whole blocks of each sender in order.
template <BlockCodec C>
void accumulate_blocks(C const& codec, std::span<weighted_codes const> senders, block_places at,
                       std::size_t blocks, float* sums) {
  std::size_t done = 0;
#if defined(RIVULET_AVX2)
  if constexpr (HasKernel<decoder_of<C>>) {
    if (rivulet::detail::use_vectors()) {
      using kernel = decoder_of<C>;
      if (senders.size() == 1) {
        std::byte const* const bytes = senders[0].bytes.data();
        done = decode_kernel<false, true, kernel>(bytes + at.codes, bytes + at.scales, blocks,
                                                  senders[0].weight, sums);
      } else {
        done = sum_kernel<kernel>(senders, at, blocks, sums);
      }
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
                 ? decode_kernel<true, false, decoder_of<C>>(codes, scales, blocks, 1, values)
                 : decode_kernel<false, false, decoder_of<C>>(codes, scales, blocks, 1, values);
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
