#pragma once

/// \file
/// What the AVX2 kernels have in common. Kernels are functions with a target attribute, chosen at
/// run time by one check of the processor, so that speed does not hang on the user's flags; each
/// gives the bits of the scalar code beside it. Elsewhere than on x86-64, RIVULET_AVX2 is undefined
/// and the scalar code is all there is.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <rivulet/element.hpp>

#if defined(__x86_64__) && !defined(__CUDA_ARCH__)
#include <immintrin.h>

/// Marks an entry point of a kernel; it may be called only if vector_kernels() holds.
#define RIVULET_AVX2 [[gnu::target("avx2,fma,f16c")]]
/// Marks a part of a kernel. (A lambda would not inherit the target.)
#define RIVULET_AVX2_PART [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline
/// Before a short loop over an array of vectors, which must end up in registers at any -O level.
#if defined(__CUDACC__)
#define RIVULET_UNROLL
#else
#define RIVULET_UNROLL _Pragma("GCC unroll 8")
#endif
#endif

namespace rivulet::detail {

#if defined(RIVULET_AVX2)

/// Whether vector kernels run: what the processor can do, unless a test turns them off.
[[nodiscard]] inline std::atomic<bool>& vector_kernels() {
  // Every processor with AVX2 has F16C, which compilers cannot all ask for.
  static std::atomic<bool> enabled{__builtin_cpu_supports("avx2") != 0 &&
                                   __builtin_cpu_supports("fma") != 0};
  return enabled;
}

[[nodiscard]] inline bool use_vectors() { return vector_kernels().load(std::memory_order_relaxed); }

/// Makes streaming stores visible to other threads.
inline void finish_stores(bool streaming) {
  if (streaming) _mm_sfence();
}

namespace avx2 {

RIVULET_AVX2_PART __m256i load_bits(float const* values) {
  return _mm256_castps_si256(_mm256_loadu_ps(values));
}

RIVULET_AVX2_PART __m256i magnitude(__m256i bits) {
  return _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
}

// Maxima and sums of blocks, eight blocks at a time to hide the latency of each.

/// The operation of a reduction over the lanes of a vector.
struct max_bits {
  RIVULET_AVX2_PART static __m256i join(__m256i a, __m256i b) { return _mm256_max_epi32(a, b); }
};
struct add_floats {
  RIVULET_AVX2_PART static __m256i join(__m256i a, __m256i b) {
    return _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)));
  }
};

/// Joins the lanes of each of eight vectors: lane b of the result belongs to vector b. The order is
/// ((0 2)(1 3))((4 6)(5 7)) over lanes.
template <class Op>
RIVULET_AVX2_PART __m256i reduce8(__m256i const (&v)[8]) {
  __m256i const a = Op::join(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
  __m256i const b = Op::join(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
  __m256i const c = Op::join(_mm256_unpacklo_epi32(v[4], v[5]), _mm256_unpackhi_epi32(v[4], v[5]));
  __m256i const d = Op::join(_mm256_unpacklo_epi32(v[6], v[7]), _mm256_unpackhi_epi32(v[6], v[7]));
  __m256i const e = Op::join(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  __m256i const f = Op::join(_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
  return Op::join(_mm256_permute2x128_si256(e, f, 0x20), _mm256_permute2x128_si256(e, f, 0x31));
}

/// Bits of the largest magnitude in each of eight blocks; NaN and infinity come last.
template <std::size_t Block>
RIVULET_AVX2_PART __m256i largest(float const* values) {
  __m256i most[8];
  RIVULET_UNROLL
  for (std::size_t b = 0; b < 8; ++b, values += Block) {
    __m256i block = magnitude(load_bits(values));
    for (std::size_t i = 8; i < Block; i += 8) {
      block = _mm256_max_epi32(block, magnitude(load_bits(values + i)));
    }
    most[b] = block;
  }
  return reduce8<max_bits>(most);
}

/// Whether the magnitudes of `Count` values, as bits, are at most `most`.
template <std::size_t Count>
RIVULET_AVX2_PART bool none_above(float const* values, int most) {
  __m256i above = _mm256_setzero_si256();
  for (std::size_t i = 0; i < Count; i += 8) {
    __m256i const bits = magnitude(load_bits(values + i));
    above = _mm256_or_si256(above, _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(most)));
  }
  return _mm256_testz_si256(above, above) != 0;
}

/// True if no lane holds the bits of NaN or infinity (magnitudes only).
RIVULET_AVX2_PART bool all_finite(__m256i magnitudes) {
  __m256i const bad = _mm256_cmpgt_epi32(magnitudes, _mm256_set1_epi32(0x7f7fffff));
  return _mm256_testz_si256(bad, bad) != 0;
}

/// Two vectors of 16 codes, each packed from two of 8 (so in the order 0-3 8-11 4-7 12-15), to 16
/// bytes: byte j holds code j of `low` and, in its upper half, of `high`.
RIVULET_AVX2_PART __m128i pack_halves(__m256i low, __m256i high) {
  __m256i const c = _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
  __m128i const d = _mm_packus_epi16(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
  return _mm_shuffle_epi32(d, 0xd8);
}

/// 8 bytes from `in` on, each to a lane.
RIVULET_AVX2_PART __m256i widen(std::byte const* in) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<__m128i const*>(in)));
}

/// Two vectors of 16 numbers of 16 bits, in order, each to a lane.
RIVULET_AVX2_PART void widen(__m256i const (&in)[2], __m256i (&lanes)[4]) {
  RIVULET_UNROLL
  for (std::size_t j = 0; j < 2; ++j) {
    lanes[2 * j] = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(in[j]));
    lanes[2 * j + 1] = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(in[j], 1));
  }
}

/// table[at] for each byte, below 16.
template <class Byte>
RIVULET_AVX2_PART __m256i look_up(Byte const (&table)[16], __m256i at) {
  __m128i const bytes = _mm_loadu_si128(reinterpret_cast<__m128i const*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), at);
}

/// Values of 16 codes that are bfloat16 numbers: the third and the fourth bytes of the floats.
struct value_table {
  std::uint8_t third[16];
  std::uint8_t fourth[16];

  constexpr void set(std::size_t code, bf16 value) {
    third[code] = static_cast<std::uint8_t>(value.bits);
    fourth[code] = static_cast<std::uint8_t>(value.bits >> 8);
  }

  /// Values of 32 codes that pack_halves packed. The first shuffle spreads the bytes so that the
  /// interleaving within the halves of a vector leaves the values in order.
  RIVULET_AVX2_PART void unpack_halves(std::byte const* in, __m256 (&values)[4]) const {
    __m256i const codes =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<__m128i const*>(in)));
    __m256i const spread = _mm256_shuffle_epi8(
        codes, _mm256_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11,  //
                                4, 5, 6, 7, 12, 13, 14, 15, 4, 5, 6, 7, 12, 13, 14, 15));
    __m256i const nibbles = _mm256_and_si256(
        _mm256_srlv_epi64(spread, _mm256_setr_epi64x(0, 4, 0, 4)), _mm256_set1_epi8(15));
    __m256i const lower = look_up(third, nibbles);
    __m256i const upper = look_up(fourth, nibbles);
    __m256i const a = _mm256_unpacklo_epi8(lower, upper);
    __m256i const b = _mm256_unpackhi_epi8(lower, upper);
    __m256i const zero = _mm256_setzero_si256();
    values[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a));
    values[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a));
    values[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b));
    values[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b));
  }
};

/// Stores the low 16 bits of each lane.
RIVULET_AVX2_PART void store_low16(std::byte* out, __m256i lanes) {
  __m128i const packed =
      _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), packed);
}

// To memory, past the caches where there is much.

template <bool Streaming>
RIVULET_AVX2_PART void put(std::byte* out, __m128i codes) {
  auto* const to = reinterpret_cast<__m128i*>(out);
  Streaming ? _mm_stream_si128(to, codes) : _mm_storeu_si128(to, codes);
}
template <bool Streaming>
RIVULET_AVX2_PART void put(std::byte* out, __m256i codes) {
  auto* const to = reinterpret_cast<__m256i*>(out);
  Streaming ? _mm256_stream_si256(to, codes) : _mm256_storeu_si256(to, codes);
}
template <bool Streaming>
RIVULET_AVX2_PART void put(float* out, __m256 values) {
  Streaming ? _mm256_stream_ps(out, values) : _mm256_storeu_ps(out, values);
}
template <bool>
RIVULET_AVX2_PART void put(std::byte* out, std::uint64_t codes) {
  std::memcpy(out, &codes, 8);
}
template <bool>
RIVULET_AVX2_PART void put(std::byte* out, std::uint32_t codes) {
  std::memcpy(out, &codes, 4);
}

/// Whether streaming stores are allowed from this address on.
[[nodiscard]] inline bool aligned(void const* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 32 == 0;
}

/// Asks for the cache line of a byte.
RIVULET_AVX2_PART void prefetch_line(std::byte const* byte) {
  _mm_prefetch(reinterpret_cast<char const*>(byte), _MM_HINT_T0);
}

/// Asks for the cache lines of 32 values.
RIVULET_AVX2_PART void prefetch(float const* values) {
  prefetch_line(reinterpret_cast<std::byte const*>(values));
  prefetch_line(reinterpret_cast<std::byte const*>(values + 16));
}

// Elements of a model: 8 at a time, rounded as to_bf16 and to_fp16 do.

RIVULET_AVX2_PART __m256 load8(float const* from) { return _mm256_loadu_ps(from); }
RIVULET_AVX2_PART __m256 load8(bf16 const* from) {
  __m128i const bits = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
RIVULET_AVX2_PART __m256 load8(fp16 const* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(from)));
}

RIVULET_AVX2_PART __m256i bf16_bits(__m256 values) {
  __m256i const bits = _mm256_castps_si256(values);
  __m256i const odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i const half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  __m256i const rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  __m256i const quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  __m256i const nan = _mm256_cmpgt_epi32(magnitude(bits), _mm256_set1_epi32(0x7f800000));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}

RIVULET_AVX2_PART void store8(float* to, __m256 values) { _mm256_storeu_ps(to, values); }
RIVULET_AVX2_PART void store8(bf16* to, __m256 values) {
  store_low16(reinterpret_cast<std::byte*>(to), bf16_bits(values));
}
RIVULET_AVX2_PART void store8(fp16* to, __m256 values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}

/// to_float(from_float<element>(value)); the pointer only names the element.
RIVULET_AVX2_PART __m256 rounded8(__m256 values, float const*) { return values; }
RIVULET_AVX2_PART __m256 rounded8(__m256 values, bf16 const*) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(values), 16));
}
RIVULET_AVX2_PART __m256 rounded8(__m256 values, fp16 const*) {
  return _mm256_cvtph_ps(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace avx2

#else

[[nodiscard]] constexpr bool use_vectors() { return false; }
constexpr void finish_stores(bool) {}

#endif

}  // namespace rivulet::detail
