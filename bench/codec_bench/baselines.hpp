#pragma once

/// \file
/// The limits of the machine: loops that do nothing but the memory traffic of an operation,
/// unrolled until nothing else counts.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <rivulet/detail/avx2.hpp>

namespace codec_bench::baseline {

#if defined(RIVULET_AVX2)

RIVULET_AVX2 inline std::size_t largest_avx2(float const* values, std::size_t count,
                                             std::uint32_t (&lanes)[32]) {
  __m256i largest[4] = {};
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (std::size_t j = 0; j < 8; ++j) {
      __m256i const bits = rivulet::detail::avx2::load_bits(values + i + 8 * j);
      largest[j % 4] = _mm256_max_epi32(largest[j % 4], rivulet::detail::avx2::magnitude(bits));
    }
  }
  std::memcpy(lanes, largest, sizeof(lanes));
  return i;
}

RIVULET_AVX2 inline std::size_t add_avx2(float const* x, float* y, std::size_t count) {
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    __m256 sum[8];
    for (std::size_t j = 0; j < 8; ++j) {
      sum[j] = _mm256_add_ps(_mm256_loadu_ps(y + i + 8 * j), _mm256_loadu_ps(x + i + 8 * j));
    }
    for (std::size_t j = 0; j < 8; ++j) _mm256_storeu_ps(y + i + 8 * j, sum[j]);
  }
  return i;
}

/// Reads `bytes` and returns what they add up to, so that the reads stay.
RIVULET_AVX2_PART __m256i read_all(std::byte const* from, std::size_t bytes) {
  __m256i sum = _mm256_setzero_si256();
  for (std::size_t at = 0; at + 32 <= bytes; at += 32) {
    __m256i const word = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from + at));
    sum = _mm256_or_si256(sum, word);
  }
  return sum;
}

RIVULET_AVX2 inline std::size_t receive_avx2(std::span<std::byte const> a,
                                             std::span<std::byte const> b, float* outer,
                                             float* momentum, float* local, std::size_t count) {
  __m256i const read = _mm256_or_si256(read_all(a.data(), a.size()), read_all(b.data(), b.size()));
  __m256 const mean = _mm256_and_ps(_mm256_castsi256_ps(read), _mm256_set1_ps(0x1p-126f));
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (std::size_t j = i; j < i + 16; j += 8) {
      __m256 const m = _mm256_add_ps(_mm256_loadu_ps(momentum + j), mean);
      __m256 const theta = _mm256_add_ps(_mm256_loadu_ps(outer + j), m);
      _mm256_storeu_ps(momentum + j, m);
      _mm256_storeu_ps(outer + j, theta);
      _mm256_storeu_ps(local + j, _mm256_add_ps(_mm256_loadu_ps(local + j), theta));
    }
  }
  return i;
}

#endif

/// Bits of the largest |x|. Every value is read once: the limit of an encoder.
inline std::uint32_t largest(std::span<float const> values) {
  std::uint32_t lanes[32] = {};
  std::size_t i = 0;
#if defined(RIVULET_AVX2)
  if (rivulet::detail::use_vectors()) i = largest_avx2(values.data(), values.size(), lanes);
#endif
  std::uint32_t result = *std::ranges::max_element(lanes);
  for (; i < values.size(); ++i) {
    result = std::max(result, rivulet::detail::bits_of(values[i]) & 0x7fffffffu);
  }
  return result;
}

/// y += x: the limit of decode-and-add.
inline void add(std::span<float const> x, std::span<float> y) {
  std::size_t i = 0;
#if defined(RIVULET_AVX2)
  if (rivulet::detail::use_vectors()) i = add_avx2(x.data(), y.data(), x.size());
#endif
  for (; i < x.size(); ++i) y[i] += x[i];
}

/// The traffic of a receiving pass for two senders: reads the codes of both, reads and writes outer
/// parameters, momentum and local parameters.
inline void receive(std::span<std::byte const> a, std::span<std::byte const> b,
                    std::span<float> outer, std::span<float> momentum, std::span<float> local) {
  std::size_t i = 0;
#if defined(RIVULET_AVX2)
  if (rivulet::detail::use_vectors()) {
    i = receive_avx2(a, b, outer.data(), momentum.data(), local.data(), outer.size());
  }
#endif
  float const mean = static_cast<float>(a.size() + b.size()) * 0x1p-126f;
  for (; i < outer.size(); ++i) {
    momentum[i] += mean;
    outer[i] += momentum[i];
    local[i] += outer[i];
  }
}

}  // namespace codec_bench::baseline
