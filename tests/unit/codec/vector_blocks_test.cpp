#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/vector_blocks.hpp>

#include "contract/codec_contract.hpp"
#include "unit/codec/own_codecs.hpp"

namespace {

using rivulet::codec::weighted_codes;
using rivulet::codec::detail::block_places;
using rivulet_test::guarded;
using rivulet_test::kernels;
using bytes = std::vector<std::byte>;
using floats = std::vector<float>;
using limits = std::numeric_limits<float>;

/// A codec with `Bits` bits per value, 1, 2, 4 or 8, code i of a byte in its bits from i * Bits on:
/// levels from -S to S, S being the largest magnitude, as FP32. Its kernel counts its calls.
template <unsigned Bits, std::size_t Block>
struct levels {
  static constexpr std::string_view name = "levels";
  static constexpr std::uint16_t id = 0x8004;
  static constexpr std::size_t block_size = Block;
  static constexpr std::size_t code_bytes = Block * Bits / 8;
  static constexpr std::size_t scale_bytes = 4;
  static constexpr unsigned top = (1u << Bits) - 1;

  inline static int encoded_by_kernel = 0;
  inline static int decoded_by_kernel = 0;

  static float scale_at(std::byte const* scale) {
    float s;
    std::memcpy(&s, scale, 4);
    return s;
  }
#if defined(RIVULET_AVX2)
  RIVULET_AVX2_PART static __m256 scales_at(std::byte const* scales) {
    return _mm256_loadu_ps(reinterpret_cast<float const*>(scales));
  }
#endif
  static void encode_values(float const* values, float factor, std::byte* codes,
                            std::size_t count) {
    std::memset(codes, 0, count * Bits / 8);
    for (std::size_t i = 0; i < count; ++i) {
      float const t = rivulet::detail::fma(values[i] * factor, top / 2.0f, top / 2.0f + 0.5f);
      unsigned const code = std::min(static_cast<unsigned>(std::max(t, 0.0f)), top);
      codes[i * Bits / 8] |= static_cast<std::byte>(code << (i * Bits % 8));
    }
  }
  static float value_of(std::byte const* codes, std::size_t i) {
    unsigned const code = (static_cast<unsigned>(codes[i * Bits / 8]) >> (i * Bits % 8)) & top;
    return rivulet::detail::fma(static_cast<float>(code), 2.0f / top, -1.0f);
  }

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float most = 0;
    for (std::size_t i = 0; i < Block; ++i) {
      if (!std::isfinite(values[i])) most = NAN;
      if (std::fabs(values[i]) > most) most = std::fabs(values[i]);
    }
    if (most < 0x1p-100f) most = 0;
    std::memcpy(scale, &most, 4);
    encode_values(values, most > 0 ? 1 / most : 0.0f, codes, std::isnan(most) ? 0 : Block);
    if (std::isnan(most)) std::memset(codes, 0, code_bytes);
  }
  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    float const factor = scale_at(scale) * weight;
    for (std::size_t i = 0; i < Block; ++i) {
      sums[i] = rivulet::detail::fma(value_of(codes, i), factor, sums[i]);
    }
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static __m256i measure(float const* values) {
      return rivulet::detail::avx2::largest<Block>(values);
    }
    RIVULET_AVX2_PART static __m256 scales(__m256i measured, std::byte* scales) {
      alignas(32) float most[8];
      _mm256_store_ps(most, _mm256_castsi256_ps(measured));
      for (float& s : most) s = s < 0x1p-100f ? 0.0f : s;
      std::memcpy(scales, most, 32);
      for (float& s : most) s = s > 0 ? 1 / s : 0.0f;
      return _mm256_load_ps(most);
    }
    RIVULET_AVX2_PART static auto encode(float const* values, __m256 factor) {
      ++encoded_by_kernel;
      alignas(32) std::byte codes[4 * Bits];
      encode_values(values, _mm256_cvtss_f32(factor), codes, 32);
      if constexpr (Bits == 8) {
        return _mm256_load_si256(reinterpret_cast<__m256i const*>(codes));
      } else if constexpr (Bits == 4) {
        return _mm_load_si128(reinterpret_cast<__m128i const*>(codes));
      } else {
        std::conditional_t<Bits == 2, std::uint64_t, std::uint32_t> word;
        std::memcpy(&word, codes, sizeof word);
        return word;
      }
    }
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      ++decoded_by_kernel;
      alignas(32) float v[32];
      for (std::size_t i = 0; i < 32; ++i) v[i] = value_of(codes, i);
      for (std::size_t j = 0; j < 4; ++j) values[j] = _mm256_load_ps(v + 8 * j);
    }
  };
#endif
};

/// What a run of blocks becomes, by the kernels or without.
template <class C>
struct run {
  bytes codes, scales;
  floats decoded, sums;
};

template <class C>
run<C> of(floats const& values, std::size_t blocks, bool vectors, bool uncached,
          std::size_t shift) {
  kernels const use(vectors);
  C const codec;
  guarded<std::byte> codes(blocks * C::code_bytes, std::byte{0x11}, shift);
  guarded<std::byte> scales(blocks * C::scale_bytes, std::byte{0x11}, shift);
  rivulet::codec::detail::encode_blocks(codec, values.data(), blocks, codes.values().data(),
                                        scales.values().data(), uncached);
  rivulet::detail::finish_stores(uncached);
  guarded<float> decoded(values.size(), -1.0f, shift % 9);
  rivulet::codec::detail::decode_blocks(codec, codes.values().data(), scales.values().data(),
                                        blocks, decoded.values().data(), uncached);
  rivulet::detail::finish_stores(uncached);
  // Two senders whose codes and scales lie in one array each, the scales first.
  bytes messages[2];
  std::size_t const at_codes = 5 + scales.values().size();
  for (bytes& message : messages) {
    message.resize(5);
    message.insert(message.end(), scales.values().begin(), scales.values().end());
    message.insert(message.end(), codes.values().begin(), codes.values().end());
  }
  weighted_codes const senders[] = {{messages[0], 0.3f}, {messages[1], -2.0f}};
  guarded<float> sums(values.size(), 0.75f, shift % 9);
  rivulet::codec::detail::accumulate_blocks(codec, std::span(senders), block_places{at_codes, 5},
                                            blocks, sums.values().data());
  CHECK(codes.intact());
  CHECK(scales.intact());
  CHECK(decoded.intact());
  CHECK(sums.intact());
  return {{codes.values().begin(), codes.values().end()},
          {scales.values().begin(), scales.values().end()},
          {decoded.values().begin(), decoded.values().end()},
          {sums.values().begin(), sums.values().end()}};
}

/// The block functions, one block after the other.
template <class C>
run<C> one_by_one(floats const& values, std::size_t blocks) {
  C const codec;
  run<C> r{bytes(blocks * C::code_bytes), bytes(blocks * C::scale_bytes), floats(values.size()),
           floats(values.size(), 0.75f)};
  for (std::size_t b = 0; b < blocks; ++b) {
    std::byte* const codes = r.codes.data() + b * C::code_bytes;
    std::byte* const scale = r.scales.data() + b * C::scale_bytes;
    std::size_t const first = b * C::block_size;
    codec.encode_block(values.data() + first, codes, scale);
    codec.accumulate_block(codes, scale, 1.0f, r.decoded.data() + first);
    codec.accumulate_block(codes, scale, 0.3f, r.sums.data() + first);
    codec.accumulate_block(codes, scale, -2.0f, r.sums.data() + first);
  }
  return r;
}

TEST_CASE_TEMPLATE("vector_blocks: any number of blocks is what the block functions make of it", C,
                   levels<1, 32>, levels<2, 32>, levels<4, 32>, levels<8, 32>, levels<1, 64>,
                   levels<2, 128>, levels<4, 256>, levels<8, 64>, rivulet::codec::e3m0<32>,
                   rivulet::codec::float32, rivulet::codec::bf16, rivulet_test::own_int8) {
  using rivulet_test::contract::input;
  using rivulet_test::contract::same_values;
  for (std::size_t const blocks : {0u, 1u, 2u, 7u, 8u, 9u, 15u, 16u, 17u, 31u, 32u, 33u, 40u}) {
    CAPTURE(blocks);
    for (input const kind :
         {input::normal, input::scattered, input::tiny, input::nonfinite, input::any_bits}) {
      CAPTURE(static_cast<int>(kind));
      floats const values = rivulet_test::contract::values_of(kind, blocks * C::block_size, blocks);
      run<C> const expected = one_by_one<C>(values, blocks);
      for (bool const vectors : {false, true}) {
        for (bool const uncached : {false, true}) {
          for (std::size_t const shift : {0u, 1u, 2u, 16u}) {
            run<C> const found = of<C>(values, blocks, vectors, uncached, shift);
            REQUIRE(found.codes == expected.codes);
            REQUIRE(found.scales == expected.scales);
            REQUIRE(same_values(found.decoded, expected.decoded));
            REQUIRE(same_values(found.sums, expected.sums));
          }
        }
      }
    }
  }
}

TEST_CASE("vector_blocks: any bytes decode alike") {
  using C = rivulet::codec::e3m0<64>;
  std::mt19937_64 random(1);
  bytes message(40 * (C::code_bytes + C::scale_bytes));
  for (std::byte& b : message) b = static_cast<std::byte>(random());
  floats found[2] = {floats(40 * 64), floats(40 * 64)};
  floats sums[2] = {floats(40 * 64, 1.0f), floats(40 * 64, 1.0f)};
  for (bool const vectors : {false, true}) {
    kernels const use(vectors);
    weighted_codes const sender{message, 0.3f};
    rivulet::codec::detail::decode_blocks(C{}, message.data(), message.data() + 40 * C::code_bytes,
                                          40, found[vectors].data(), false);
    rivulet::codec::detail::accumulate_blocks(
        C{}, std::span(&sender, 1), block_places{0, 40 * C::code_bytes}, 40, sums[vectors].data());
  }
  CHECK(rivulet_test::contract::same_values(found[0], found[1]));
  CHECK(rivulet_test::contract::same_values(sums[0], sums[1]));
}

TEST_CASE("vector_blocks: kernels run where they can") {
  using C = levels<4, 32>;
  constexpr std::size_t blocks = 20;
  floats values = rivulet_test::normal_values(blocks * 32, 1);
  auto const counted = [&](bool vectors) {
    C::encoded_by_kernel = C::decoded_by_kernel = 0;
    of<C>(values, blocks, vectors, false, 0);
  };
  counted(false);
  CHECK(C::encoded_by_kernel == 0);
  CHECK(C::decoded_by_kernel == 0);
  if (!rivulet_test::has_vectors()) return;
  counted(true);
  CHECK(C::encoded_by_kernel == 16);          // eights of blocks
  CHECK(C::decoded_by_kernel == blocks * 3);  // decoded, and two senders
  values[5 * 32 + 1] = -limits::infinity();   // its eight goes block by block
  counted(true);
  CHECK(C::encoded_by_kernel == 8);
}

TEST_CASE("vector_blocks: a NaN block among eight spoils no other") {
  using C = levels<4, 32>;
  floats const clean = rivulet_test::normal_values(16 * 32, 1);
  run<C> const expected = of<C>(clean, 16, true, false, 0);
  for (std::size_t b = 0; b < 16; ++b) {
    floats values = clean;
    values[b * 32 + b] = b % 2 == 0 ? limits::quiet_NaN() : limits::infinity();
    run<C> const found = of<C>(values, 16, true, false, 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      REQUIRE((std::isnan(found.decoded[i]) == (i / 32 == b)));
      if (i / 32 != b) REQUIRE(found.decoded[i] == expected.decoded[i]);
    }
  }
}

}  // namespace
