#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/detail/avx2.hpp>
#include <rivulet/detail/hash.hpp>
#include <rivulet/element.hpp>

namespace {

using rivulet::detail::bits_of;
using rivulet::detail::float_of;

TEST_CASE("avx2: without vectors, or with them, there is an answer") {
  bool const found = rivulet::detail::use_vectors();
#if defined(RIVULET_AVX2)
  rivulet::detail::vector_kernels() = false;
  CHECK_FALSE(rivulet::detail::use_vectors());
  rivulet::detail::vector_kernels() = found;
#endif
  CHECK(rivulet::detail::use_vectors() == found);
  rivulet::detail::finish_stores(true);
  rivulet::detail::finish_stores(false);
}

#if defined(RIVULET_AVX2)

namespace simd = rivulet::detail::avx2;
using rivulet::detail::use_vectors;

// Entry points, since the test itself has no target attribute.

template <std::size_t Block>
RIVULET_AVX2 void largest(float const* values, std::uint32_t* out) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), simd::largest<Block>(values));
}
template <class Op>
RIVULET_AVX2 void reduce8(float const* values, float* out) {
  __m256i v[8];
  for (std::size_t b = 0; b < 8; ++b) v[b] = simd::load_bits(values + 8 * b);
  _mm256_storeu_ps(out, _mm256_castsi256_ps(simd::reduce8<Op>(v)));
}
RIVULET_AVX2 bool all_finite(float const* values) {
  return simd::all_finite(simd::magnitude(simd::load_bits(values)));
}
template <class T>
RIVULET_AVX2 void load8(T const* from, float* out) {
  _mm256_storeu_ps(out, simd::load8(from));
}
template <class T>
RIVULET_AVX2 void store8(T* to, float const* values) {
  simd::store8(to, _mm256_loadu_ps(values));
}
template <class T>
RIVULET_AVX2 void rounded8(float const* values, float* out) {
  _mm256_storeu_ps(out, simd::rounded8(_mm256_loadu_ps(values), static_cast<T const*>(nullptr)));
}
/// 16 codes from two vectors of 8, as kernels pack them.
RIVULET_AVX2_PART __m256i packed(std::uint16_t const* codes) {
  auto const* const from = reinterpret_cast<__m128i const*>(codes);
  return _mm256_packus_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from)),
                             _mm256_cvtepu16_epi32(_mm_loadu_si128(from + 1)));
}
RIVULET_AVX2 void pack_halves(std::uint16_t const* low, std::uint16_t const* high, std::byte* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), simd::pack_halves(packed(low), packed(high)));
}
template <std::size_t Count>
RIVULET_AVX2 bool none_above(float const* values, int most) {
  return simd::none_above<Count>(values, most);
}
RIVULET_AVX2 void store_low16(std::uint32_t const* lanes, std::byte* out) {
  simd::store_low16(out, _mm256_loadu_si256(reinterpret_cast<__m256i const*>(lanes)));
}
RIVULET_AVX2 std::uint64_t sum_of_32s(std::byte const* bytes, std::size_t count,
                                      std::uint64_t first) {
  return simd::mixed_sum(bytes, count, first);
}

/// Random bits, with many zeros, NaN and infinities among them.
std::vector<float> any_floats(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    auto bits = static_cast<std::uint32_t>(random());
    if (random() % 16 == 0) bits |= 0x7f800000u;
    if (random() % 16 == 0) bits &= 0x80000000u;
    if (random() % 32 == 0) bits = (bits & 0x80000000u) | 0x7f800000u;
    value = float_of(bits);
  }
  return values;
}

template <std::size_t Block>
void check_largest() {
  CAPTURE(Block);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<float> values = any_floats(8 * Block, seed);
    if (seed % 2 == 0) {  // the largest in one lane of one block
      for (float& value : values) value = float_of(bits_of(value) & 0x80ffffffu);
      values[seed * 37 % values.size()] = -1.0f;
    }
    std::uint32_t found[8];
    largest<Block>(values.data(), found);
    for (std::size_t b = 0; b < 8; ++b) {
      std::uint32_t expected = 0;
      for (std::size_t i = 0; i < Block; ++i) {
        expected = std::max(expected, bits_of(values[b * Block + i]) & 0x7fffffffu);
      }
      REQUIRE(found[b] == expected);
    }
  }
}

TEST_CASE("avx2: the largest magnitude of each of eight blocks") {
  if (!use_vectors()) return;
  check_largest<8>();
  check_largest<16>();
  check_largest<32>();
  check_largest<64>();
  check_largest<256>();
}

TEST_CASE("avx2: lanes are joined in the documented order") {
  if (!use_vectors()) return;
  // ((0 2)(1 3))((4 6)(5 7)): with these rounding errors any other order shows.
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    float values[64];
    for (float& value : values) value = normal(random);
    float found[8];
    reduce8<simd::add_floats>(values, found);
    for (std::size_t b = 0; b < 8; ++b) {
      float const* const v = values + 8 * b;
      float const low = (v[0] + v[2]) + (v[1] + v[3]);
      float const high = (v[4] + v[6]) + (v[5] + v[7]);
      REQUIRE(found[b] == low + high);
    }
    for (float& value : values) value = std::fabs(value);
    reduce8<simd::max_bits>(values, found);
    for (std::size_t b = 0; b < 8; ++b) {
      REQUIRE(found[b] == *std::max_element(values + 8 * b, values + 8 * b + 8));
    }
  }
}

TEST_CASE("avx2: one NaN or infinity in any lane is seen") {
  if (!use_vectors()) return;
  float values[8] = {1.0f, -FLT_MAX, 0.0f, 1e-40f, FLT_MAX, -2.0f, -0.0f, 3.0f};
  CHECK(all_finite(values));
  for (float& value : values) {
    float const kept = value;
    for (std::uint32_t const bad : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffffffffu}) {
      value = float_of(bad);
      CHECK_FALSE(all_finite(values));
    }
    value = kept;
  }
}

TEST_CASE("avx2: one magnitude above a limit in any lane is seen") {
  if (!use_vectors()) return;
  constexpr int limit = 0x7f7f7fff;
  std::vector<float> values(16, float_of(0x80000000u | limit));
  CHECK(none_above<16>(values.data(), limit));
  CHECK(none_above<8>(values.data() + 3, limit));
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::uint32_t const above : {limit + 1u, 0xff7f8000u, 0x7f800000u, 0xffffffffu}) {
      values[i] = float_of(above);
      CHECK_FALSE(none_above<16>(values.data(), limit));
      CHECK(none_above<8>(values.data(), limit) == (i >= 8));
    }
    values[i] = 0;
  }
}

/// Equal, or both NaN.
bool same(rivulet::bf16 a, rivulet::bf16 b) { return a.bits == b.bits; }
bool same(rivulet::fp16 a, rivulet::fp16 b) { return a.bits == b.bits; }
bool same(float a, float b) {
  bool const both_nan = a != a && b != b;
  return bits_of(a) == bits_of(b) || both_nan;
}

TEST_CASE_TEMPLATE("avx2: eight values are rounded as one is", T, rivulet::bf16, rivulet::fp16,
                   float) {
  if (!use_vectors()) return;
  std::mt19937_64 random(1);
  constexpr std::uint32_t lower[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x1fff,
                                     0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff};
  std::size_t wrong = 0;
  // All upper halves, with lower halves around ties of both types, and any.
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    float values[16];
    for (std::size_t i = 0; i < 16; ++i) {
      std::uint32_t const low =
          i < std::size(lower) ? lower[i] : static_cast<std::uint32_t>(random() & 0xffffu);
      values[i] = float_of((upper << 16) | low);
    }
    for (float const* const eight : {values, values + 8}) {
      T stored[8];
      store8(stored, eight);
      float rounded[8];
      rounded8<T>(eight, rounded);
      for (std::size_t i = 0; i < 8; ++i) {
        T const expected = rivulet::from_float<T>(eight[i]);
        wrong += !same(stored[i], expected) || !same(rounded[i], rivulet::to_float(expected));
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("avx2: eight elements are loaded as one is", T, rivulet::bf16, rivulet::fp16) {
  if (!use_vectors()) return;
  std::vector<T> all(0x10000);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    all[bits] = {static_cast<std::uint16_t>(bits)};
  }
  std::size_t wrong = 0;
  for (std::size_t first = 0; first + 8 <= all.size(); first += 3) {  // at any address
    float found[8];
    load8(all.data() + first, found);
    for (std::size_t i = 0; i < 8; ++i) {
      wrong += !same(found[i], rivulet::to_float(all[first + i]));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("avx2: store8 writes eight elements and no more") {
  if (!use_vectors()) return;
  float const values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<rivulet::bf16> exact(8);  // sanitizers see what lies behind
  store8(exact.data(), values);
  std::vector<rivulet::fp16> exact_halves(8);
  store8(exact_halves.data(), values);
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(rivulet::to_float(exact[i]) == values[i]);
    CHECK(rivulet::to_float(exact_halves[i]) == values[i]);
  }
}

TEST_CASE("avx2: two times 16 codes are packed to 16 bytes, code j in byte j") {
  if (!use_vectors()) return;
  std::uint16_t low[16];
  std::uint16_t high[16];
  for (std::uint16_t i = 0; i < 16; ++i) {
    low[i] = static_cast<std::uint16_t>((i * 7 + 3) % 16);
    high[i] = static_cast<std::uint16_t>((i * 5 + 1) % 16);
  }
  std::byte packed[16];
  pack_halves(low, high, packed);
  for (std::size_t j = 0; j < 16; ++j) {
    CHECK(static_cast<unsigned>(packed[j]) == static_cast<unsigned>(low[j] | (high[j] << 4)));
  }
}

TEST_CASE("avx2: the low 16 bits of each lane, in order") {
  if (!use_vectors()) return;
  std::uint32_t const lanes[8] = {0, 1, 0x7fff, 0x8000, 0xffff, 0x1234, 0xabcd, 2};
  std::vector<std::byte> out(16);
  store_low16(lanes, out.data());
  for (std::size_t i = 0; i < 8; ++i) {
    std::uint16_t found = 0;
    std::memcpy(&found, out.data() + 2 * i, 2);
    CHECK(found == lanes[i]);
  }
}

TEST_CASE("avx2: streaming stores need an address divisible by 32") {
  alignas(32) std::byte bytes[64];
  CHECK(simd::aligned(bytes));
  CHECK(simd::aligned(bytes + 32));
  for (std::size_t i = 1; i < 32; ++i) CHECK_FALSE(simd::aligned(bytes + i));
}

TEST_CASE("avx2: mixed_sum is the sum of its mixed words") {
  if (!use_vectors()) return;
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes(4096 + 64);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  std::fill_n(bytes.begin() + 100, 200, std::byte{0xff});
  std::fill_n(bytes.begin() + 400, 200, std::byte{0});
  for (std::uint64_t const first : {std::uint64_t{0}, std::uint64_t{8}, std::uint64_t{12345},
                                    std::uint64_t{1} << 40, ~std::uint64_t{0} - 100}) {
    for (std::size_t const count : {0u, 32u, 64u, 96u, 320u, 2176u, 4096u}) {
      for (std::size_t const shift : {0u, 1u, 7u, 31u}) {
        std::uint64_t expected = 0;
        for (std::size_t at = 0; at < count; at += 8) {
          expected += rivulet::detail::mixed_word(
              rivulet::detail::load_word(bytes.data() + shift + at, 8), first + at);
        }
        REQUIRE(sum_of_32s(bytes.data() + shift, count, first) == expected);
      }
    }
  }
  // With a rest of any length, and without kernels.
  for (std::size_t count = 0; count < 200; ++count) {
    std::vector<std::byte> const exact(bytes.begin(),
                                       bytes.begin() + static_cast<std::ptrdiff_t>(count));
    std::uint64_t const vector = rivulet::detail::mixed_sum(exact.data(), count, 40);
    rivulet::detail::vector_kernels() = false;
    std::uint64_t const scalar = rivulet::detail::mixed_sum(exact.data(), count, 40);
    rivulet::detail::vector_kernels() = true;
    REQUIRE(vector == scalar);
  }
}

#endif

}  // namespace
