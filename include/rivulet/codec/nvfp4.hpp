#pragma once

/// \file
/// NVFP4: 4-bit floating point with two levels of scales (NVIDIA, "Pretraining Large Language
/// Models with NVFP4", arXiv 2509.25149).

#include <cstring>

#include <rivulet/codec/block_scale.hpp>
#include <rivulet/codec/minifloat.hpp>
#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

/// Codes E2M1 in blocks of 16 with a scale E4M3 each, and an FP32 scale d for all of a tile, which
/// here takes the place of the tensor: so tiles stay independent, and values are read once.
///
/// With A the largest magnitude of the tile and a that of a block, d = A / (448 * 6), the block's
/// scale is s = E4M3(a * (448 / A)), and the code of x is E2M1(x * (1 / (s * d))), each operation
/// rounded to nearest even. It stands for (s * d) * E2M1.
///
/// Error of a value x: at most |x| / 5, or s * d / 4 if that is more, and |x| - 6 * s * d beyond
/// the largest code; so at most a / 5 + A / 450000. A tile with d below 2^-100 has d = 0 and all
/// codes 0, and values beyond 0x1.fffp127 saturate to it. A tile with NaN or infinity decodes to
/// NaN as a whole. Bytes: 9 per block and 4 per tile: the codes, code 2 j of a block in the low and
/// code 2 j + 1 in the high half of its byte j; the scales of the blocks; d.
struct nvfp4 {
  static constexpr std::string_view name = "nvfp4";
  static constexpr std::uint16_t id = 13;

  [[nodiscard]] static constexpr std::size_t tile_bytes(std::size_t count) {
    return blocks_of(count) * 9 + 4;
  }

  void encode_tile(float const* values, std::size_t count, std::byte* out, std::uint64_t) const {
    std::size_t const blocks = blocks_of(count);
    std::byte* const scales = out + blocks * 8;
    std::memset(out, 0, blocks * 9);

    float largest[most_blocks];  // magnitude of each block
    std::uint32_t bits = 0;      // of the largest of these
    std::size_t whole = 0;       // blocks that vector kernels do
#if defined(RIVULET_AVX2)
    if (rivulet::detail::use_vectors()) {
      whole = count / 512 * 32;
      bits = avx2::measure(values, whole, largest);
    }
#endif
    for (std::size_t b = whole; b < blocks; ++b) {
      std::uint32_t const of_block = detail::largest_bits(values + b * 16, size_of(b, count));
      largest[b] = rivulet::detail::float_of(of_block);
      bits = bits > of_block ? bits : of_block;
    }

    float const most = rivulet::detail::float_of(bits < cap ? bits : cap);
    float d = kept(most / 2688.0f);
    if (bits >= detail::infinity_bits) d = detail::nan_scale;
    std::memcpy(scales + blocks, &d, 4);
    if (!detail::is_used(d)) return;

    float const to_scale = 448.0f / most;
    std::size_t b = 0;
#if defined(RIVULET_AVX2)
    for (; b < whole; b += 32) {
      avx2::encode(values + b * 16, largest + b, to_scale, d, out + b * 8, scales + b);
    }
#endif
    for (; b < blocks; ++b) {
      std::uint32_t const s = detail::e4m3::encode(largest[b] * to_scale);
      scales[b] = static_cast<std::byte>(s);
      float const factor = detail::factor_for(detail::e4m3::decode(s) * d, 1.0f);
      detail::e2m1::encode(values + b * 16, size_of(b, count), factor, out + b * 8);
    }
  }

  /// A stored d below 2^-100 counts as 0.
  void accumulate_tile(std::byte const* in, std::size_t count, float weight, float* sums) const {
    std::size_t const blocks = blocks_of(count);
    std::byte const* const scales = in + blocks * 8;
    float stored = 0;
    std::memcpy(&stored, scales + blocks, 4);
    float const d = kept(stored);
    std::size_t b = 0;
#if defined(RIVULET_AVX2)
    if (rivulet::detail::use_vectors()) {
      for (; b + 32 <= count / 16; b += 32) {
        avx2::accumulate(in + b * 8, scales + b, d, weight, sums + b * 16);
      }
    }
#endif
    for (; b < blocks; ++b) {
      auto const s = static_cast<std::uint32_t>(scales[b]);
      float const factor = detail::e4m3::decode(s) * d * weight;
      detail::e2m1::accumulate(in + b * 8, size_of(b, count), factor, sums + b * 16);
    }
  }

 private:
  static constexpr std::size_t most_blocks = tile_values / 16;
  static constexpr std::uint32_t cap = 0x7f7ff800;  // bits of 0x1.fffp127

  static constexpr std::size_t blocks_of(std::size_t count) { return (count + 15) / 16; }
  /// Values of block `b` of a tile of `count`.
  static constexpr std::size_t size_of(std::size_t b, std::size_t count) {
    return b < count / 16 ? 16 : count % 16;
  }
  static constexpr float kept(float d) {
    auto const magnitude = rivulet::detail::bits_of(d) & 0x7fffffffu;
    return magnitude < detail::smallest_scale ? 0.0f : d;
  }

#if defined(RIVULET_AVX2)
  /// Each as the scalar code above.
  struct avx2 {
    /// Magnitudes of blocks, a multiple of 8; returns the bits of the largest.
    RIVULET_AVX2 static std::uint32_t measure(float const* values, std::size_t blocks,
                                              float* largest) {
      __m256i most = _mm256_setzero_si256();
      for (std::size_t b = 0; b < blocks; b += 8) {
        __m256i const bits = rivulet::detail::avx2::largest<16>(values + b * 16);
        _mm256_storeu_ps(largest + b, _mm256_castsi256_ps(bits));
        most = _mm256_max_epi32(most, bits);
      }
      float lanes[8];
      _mm256_storeu_ps(lanes, _mm256_castsi256_ps(most));
      return detail::largest_bits(lanes, 8);
    }

    /// Codes and scales of 32 blocks.
    RIVULET_AVX2 static void encode(float const* values, float const* largest, float to_scale,
                                    float d, std::byte* codes, std::byte* scales) {
      __m256 const to = _mm256_set1_ps(to_scale);
      rivulet::detail::avx2::put<false>(scales, detail::e4m3::avx2::encode(largest, to, to));
      float factor[32];
      load_factors(scales, d, factor);
      for (std::size_t i = 0; i < 32; i += 8) {
        __m256i const f = rivulet::detail::avx2::load_bits(factor + i);
        _mm256_storeu_ps(factor + i, detail::factors_for(f, 1.0f));
      }
      for (std::size_t b = 0; b < 32; b += 2) {
        __m256 const low = _mm256_broadcast_ss(factor + b);
        __m256 const high = _mm256_broadcast_ss(factor + b + 1);
        rivulet::detail::avx2::put<false>(codes + b * 8,
                                          detail::e2m1::avx2::encode(values + b * 16, low, high));
      }
    }

    /// Adds 32 blocks.
    RIVULET_AVX2 static void accumulate(std::byte const* codes, std::byte const* scales, float d,
                                        float weight, float* sums) {
      float factor[32];
      load_factors(scales, d, factor);
      __m256 const w = _mm256_set1_ps(weight);
      for (std::size_t b = 0; b < 32; b += 2, sums += 32) {
        __m256 v[4];
        detail::e2m1::avx2::decode(codes + b * 8, v);
        RIVULET_UNROLL
        for (std::size_t j = 0; j < 4; ++j) {
          __m256 const f = _mm256_mul_ps(_mm256_broadcast_ss(factor + b + j / 2), w);
          __m256 const sum = _mm256_fmadd_ps(v[j], f, _mm256_loadu_ps(sums + 8 * j));
          _mm256_storeu_ps(sums + 8 * j, sum);
        }
      }
    }

    /// s * d of 32 blocks.
    RIVULET_AVX2_PART static void load_factors(std::byte const* scales, float d,
                                               float (&factor)[32]) {
      __m256 s[4];
      detail::e4m3::avx2::decode(scales, s);
      RIVULET_UNROLL
      for (std::size_t j = 0; j < 4; ++j) {
        _mm256_storeu_ps(factor + 8 * j, _mm256_mul_ps(s[j], _mm256_set1_ps(d)));
      }
    }
  };
#endif
};

static_assert(TileCodec<nvfp4>);

}  // namespace rivulet::codec
