#pragma once

/// \file
/// Two 64-bit hashes: one of settings, one of large arrays in any order.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <rivulet/detail/avx2.hpp>

namespace rivulet::detail {

/// A good 64-bit mix (the finalizer of SplitMix64).
[[nodiscard]] RIVULET_HOST_DEVICE constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Hash of a sequence of settings; the order counts.
class hash {
 public:
  constexpr hash& add(std::uint64_t word) {
    state_ = mix(state_ + 0x9e3779b97f4a7c15u + word);
    return *this;
  }
  constexpr hash& add(float value) {
    return add(std::uint64_t{std::bit_cast<std::uint32_t>(value)});
  }
  constexpr hash& add(std::string_view text) {
    for (char c : text) add(std::uint64_t{static_cast<unsigned char>(c)});
    return add(text.size());
  }
  [[nodiscard]] constexpr std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

/// What word `index` of an array adds to its checksum: the halves, each shifted by a key that
/// depends on the index, multiplied to 64 bits (the NH hash of UMAC, RFC 4418), and the word
/// itself, so that a half that meets a factor of 0 counts too. The sum is independent of order, so
/// tiles and threads add to it as they like; a changed, moved or missing word changes it. One 32 x
/// 32 -> 64 bit product per word is cheap in SIMD.
[[nodiscard]] RIVULET_HOST_DEVICE constexpr std::uint64_t mixed_word(std::uint64_t word,
                                                                     std::uint64_t index) {
  std::uint64_t const key = (index + 1) * 0x9e3779b97f4a7c15u;
  std::uint64_t const low = (word + key) & 0xffffffffu;
  std::uint64_t const high = ((word >> 32) + (key >> 32)) & 0xffffffffu;
  return low * high + word + ((word << 32) | (word >> 32));
}

/// Reads up to 8 bytes as a little-endian word, missing ones as 0.
[[nodiscard]] inline std::uint64_t load_word(std::byte const* bytes, std::size_t count) {
  static_assert(std::endian::native == std::endian::little,
                "Rivulet's wire format is little-endian, and so must the processor be");
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, count < 8 ? count : 8);
  return word;
}

#if defined(RIVULET_AVX2)
namespace avx2 {

/// mixed_sum of `count` bytes, a multiple of 32.
RIVULET_AVX2 inline std::uint64_t mixed_sum(std::byte const* bytes, std::size_t count,
                                            std::uint64_t first) {
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
  auto const lane = [](std::uint64_t key) { return static_cast<long long>(key); };
  std::uint64_t const key0 = (first + 1) * golden;
  __m256i key = _mm256_setr_epi64x(lane(key0), lane(key0 + 8 * golden), lane(key0 + 16 * golden),
                                   lane(key0 + 24 * golden));
  __m256i const step = _mm256_set1_epi64x(lane(32 * golden));
  __m256i sum = _mm256_setzero_si256();
  for (std::size_t at = 0; at < count; at += 32) {
    __m256i const word = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(bytes + at));
    __m256i const halves = _mm256_add_epi32(word, key);  // the two are keyed without a carry
    __m256i const product = _mm256_mul_epu32(halves, _mm256_srli_epi64(halves, 32));
    __m256i const rotated = _mm256_shuffle_epi32(word, 0xb1);
    sum = _mm256_add_epi64(sum, _mm256_add_epi64(product, _mm256_add_epi64(word, rotated)));
    key = _mm256_add_epi64(key, step);
  }
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

}  // namespace avx2
#endif

/// Checksum of an array of bytes: the sum of its mixed words, the index of a word being `first`
/// plus its place in bytes. So the sums of pieces, cut at multiples of 8 bytes, add up to that of
/// all.
[[nodiscard]] inline std::uint64_t mixed_sum(std::byte const* bytes, std::size_t count,
                                             std::uint64_t first = 0) {
  std::uint64_t sum = 0;
  std::size_t at = 0;
#if defined(RIVULET_AVX2)
  if (use_vectors()) {
    at = count / 32 * 32;
    sum = avx2::mixed_sum(bytes, at, first);
  }
#endif
  for (; at < count; at += 8) {
    sum += mixed_word(load_word(bytes + at, count - at), first + at);
  }
  return sum;
}

}  // namespace rivulet::detail
