#pragma once

/// \file
/// Codecs of 16 levels, 4 bits per value, with a scale per block: one kernel, the tables as types.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <rivulet/codec/block_scale.hpp>
#include <rivulet/codec/tile.hpp>

namespace rivulet::codec {

namespace detail {

/// What follows from the levels of a table. They have ranks 0 .. 15 from the lowest on. Away from
/// zero the rank is a function of m = floor(128 |t|), by borders at the 128ths nearest to the
/// middles of the levels. There is at most one border in 8 steps of m, so that one offset for these
/// gives the rank as floor((offset + m) / 8), or floor((offset - m) / 8) below zero.
struct grid16 {
  bool symmetric = true;        // no level is zero; else one is
  bool regular = true;          // at most one border in 8 steps of m
  std::int8_t code_of[16]{};    // by rank: that of the magnitude and 8 * sign if symmetric, else it
  float level[16]{};            // by code
  std::int8_t code[2][128]{};   // by sign and m
  std::int8_t offset[2][16]{};  // by sign and m / 8; if symmetric, from rank 8 on
};

[[nodiscard]] constexpr grid16 make_grid16(float const (&table)[16]) {
  grid16 g;
  float levels[16];
  for (int r = 0; r < 16; ++r) levels[r] = to_float(to_bf16(table[r]));
  for (int r = 0; r < 16; ++r) g.symmetric = g.symmetric && levels[r] == -levels[15 - r];
  for (int r = 0; r < 16; ++r) {
    int const code = !g.symmetric ? r : r < 8 ? 15 - r : r - 8;
    g.code_of[r] = static_cast<std::int8_t>(code);
    g.level[code] = levels[r];
  }
  int zero = 0;  // the first rank from zero on
  while (levels[zero] < 0) ++zero;
  for (int sign = 0; sign < 2; ++sign) {
    int const step = sign == 0 ? 1 : -1;
    int rank = g.symmetric && sign == 1 ? zero - 1 : zero;
    for (int first = 0; first < 128; first += 8) {
      int const start = g.symmetric ? rank - zero : rank;
      int last = first + 7;  // the last m before a border
      for (int m = first; m < first + 8; ++m) {
        int const next = rank + step;
        if (next >= 0 && next < 16) {  // the middle in 128ths is the sum times 64
          float const middle = 64 * (levels[rank] + levels[next]) * static_cast<float>(step);
          if (m >= static_cast<int>(middle + 0.5f)) {
            g.regular = g.regular && last == first + 7;
            last = m - 1;
            rank = next;
          }
        }
        g.code[sign][m] = g.code_of[rank];
      }
      int const offset = 8 * start + (sign == 0 ? 7 - last : last);
      g.offset[sign][first / 8] = static_cast<std::int8_t>(offset);
    }
  }
  return g;
}

template <class Table>
inline constexpr grid16 grid16_of = make_grid16(Table::levels);

}  // namespace detail

/// Code c in a block of scale S stands for S * level(c), of 16 levels in -1 .. 1. A Table has
/// `name`, `id`, `levels` in ascending order, which are symmetric or have a zero among them, and
/// `signed_maximum`; levels count as rounded to bfloat16. S is the largest magnitude of the block,
/// rounded up to bfloat16; with `signed_maximum`, minus the value of largest magnitude (the
/// positive one of two), which so gets level -1. If the levels are symmetric, a code has the number
/// of the magnitude in bits 0-2 and the sign of the value, of zeros too, in bit 3; else it is the
/// number of the level.
///
/// A value x = t * S goes to the nearest level, where floor(128 |t|) decides: the border between
/// two levels is off their middle by up to 1 / 256. Error: at most S * (half the distance of the
/// levels around t + 1 / 256), and to the outermost level beyond it. Rounding at random gives one
/// of the two levels around t, on average t to 2^-16 of their distance. S is 0 for a block below
/// 2^-100, and values beyond 2^126 saturate to it. A block with NaN or infinity decodes to NaN as a
/// whole. Bytes: 2 + Block / 2 per block of Block values. Groups of 32 codes take 16 bytes; byte j
/// holds code j in its low and code j + 16 in its high half.
template <class Table, std::size_t Block>
struct table16 : detail::bf16_scale {
  static_assert(Block % 32 == 0 && cut_elements % Block == 0,
                "rivulet: a block of 4-bit codes is a multiple of 32 values that divides 4096");

  static constexpr std::string_view name = Table::name;
  static constexpr std::uint16_t id = Table::id;
  static constexpr std::size_t block_size = Block;
  static constexpr std::size_t code_bytes = Block / 2;

  static float natural_scale(float const* values) {
    if constexpr (!Table::signed_maximum) {
      return detail::scale_above(detail::largest_bits(values, Block));
    } else {
      std::uint32_t largest = 0;  // magnitude, then a bit that is set for positive values
      for (std::size_t i = 0; i < Block; ++i) {
        auto const bits = rivulet::detail::bits_of(values[i]);
        std::uint32_t const order = (bits << 1) | (~bits >> 31);
        largest = order > largest ? order : largest;
      }
      float const scale = detail::scale_above(largest >> 1);
      return largest % 2 == 1 && detail::is_used(scale) ? -scale : scale;
    }
  }

  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float const s = natural_scale(values);
    store_scale(s, scale);
    quantize(values, s, codes);
  }

  /// The codes for a stored scale; those of 0 if it is 0 or NaN.
  void quantize(float const* values, float scale, std::byte* codes) const {
    float const factor = detail::factor_for(scale, 128.0f);
    for (std::size_t i = 0; i < Block; i += 32, codes += 16) {
      for (std::size_t j = 0; j < 16; ++j) {
        codes[j] = both(code_of(values[i + j], factor), code_of(values[i + j + 16], factor));
      }
    }
  }

  /// The same, rounding at random: noise[i] is uniform in 0 .. 65535.
  void quantize(float const* values, float scale, std::byte* codes,
                std::uint16_t const* noise) const {
    float const factor = detail::factor_for(scale, 1.0f);
    for (std::size_t i = 0; i < Block; i += 32, codes += 16) {
      for (std::size_t j = 0; j < 16; ++j) {
        codes[j] = both(random_code(values[i + j], factor, noise[i + j]),
                        random_code(values[i + j + 16], factor, noise[i + j + 16]));
      }
    }
  }

  void accumulate_block(std::byte const* codes, std::byte const* scale, float weight,
                        float* sums) const {
    float const factor = scale_at(scale) * weight;
    for (std::size_t i = 0; i < Block; ++i) {
      auto const two = static_cast<unsigned>(codes[i / 32 * 16 + i % 16]);
      float const level = grid.level[i % 32 < 16 ? two & 15u : two >> 4];
      sums[i] = rivulet::detail::fma(level, factor, sums[i]);
    }
  }

#if defined(RIVULET_AVX2)
  struct avx2 {
    RIVULET_AVX2_PART static __m256i measure(float const* values) {
      if constexpr (!Table::signed_maximum) {
        return rivulet::detail::avx2::largest<Block>(values);
      } else {
        return signed_maxima(values);
      }
    }
    RIVULET_AVX2_PART static __m256 scales(__m256i largest, std::byte* scales) {
      __m256i s = detail::scales_above(rivulet::detail::avx2::magnitude(largest));
      if constexpr (Table::signed_maximum) {
        __m256i const used = _mm256_cmpgt_epi32(s, _mm256_setzero_si256());
        s = _mm256_or_si256(s, _mm256_andnot_si256(largest, _mm256_slli_epi32(used, 31)));
      }
      detail::store_scales(s, scales);
      return detail::factors_for(s, 128.0f);
    }
    RIVULET_AVX2_PART static __m128i encode(float const* values, __m256 factor) {
      __m256 const a = _mm256_mul_ps(_mm256_loadu_ps(values), factor);
      __m256 const b = _mm256_mul_ps(_mm256_loadu_ps(values + 8), factor);
      __m256 const c = _mm256_mul_ps(_mm256_loadu_ps(values + 16), factor);
      __m256 const d = _mm256_mul_ps(_mm256_loadu_ps(values + 24), factor);
      __m256i const t = to_bytes(_mm256_cvttps_epi32(a), _mm256_cvttps_epi32(b),
                                 _mm256_cvttps_epi32(c), _mm256_cvttps_epi32(d));
      if constexpr (grid.symmetric) {
        // `t` has lost the sign of what is below 1; saturating the bits of a float keeps it.
        __m256i const sign = to_bytes(_mm256_castps_si256(a), _mm256_castps_si256(b),
                                      _mm256_castps_si256(c), _mm256_castps_si256(d));
        __m256i const m = _mm256_min_epu8(_mm256_abs_epi8(t), _mm256_set1_epi8(127));
        __m256i const rank =
            _mm256_add_epi8(m, rivulet::detail::avx2::look_up(grid.offset[0], eighth(m)));
        __m256 const used = _mm256_cmp_ps(factor, _mm256_setzero_ps(), _CMP_NEQ_UQ);
        __m256i const bit_6 = _mm256_and_si256(_mm256_castps_si256(used), _mm256_set1_epi8(64));
        return pack(_mm256_or_si256(_mm256_and_si256(rank, _mm256_set1_epi8(7 << 3)),
                                    _mm256_and_si256(_mm256_srli_epi16(sign, 1), bit_6)));
      } else {
        __m256i const m = _mm256_max_epi8(t, _mm256_set1_epi8(-127));
        __m256i const at = eighth(_mm256_abs_epi8(m));
        __m256i const offset =
            _mm256_blendv_epi8(rivulet::detail::avx2::look_up(grid.offset[0], at),
                               rivulet::detail::avx2::look_up(grid.offset[1], at), m);
        return pack(_mm256_and_si256(_mm256_add_epi8(offset, m), _mm256_set1_epi8(15 << 3)));
      }
    }
    RIVULET_AVX2_PART static void decode(std::byte const* codes, __m256 (&values)[4]) {
      static constexpr auto table = [] {
        rivulet::detail::avx2::value_table result{};
        for (std::size_t c = 0; c < 16; ++c) result.set(c, to_bf16(grid.level[c]));
        return result;
      }();
      table.unpack_halves(codes, values);
    }

   private:
    /// The value of largest magnitude of each of 8 blocks, the positive one of two.
    RIVULET_AVX2_PART static __m256i signed_maxima(float const* values) {
      __m256i positive[8];
      __m256i negative[8];
      RIVULET_UNROLL
      for (std::size_t b = 0; b < 8; ++b, values += Block) {
        positive[b] = negative[b] = rivulet::detail::avx2::load_bits(values);
        for (std::size_t i = 8; i < Block; i += 8) {
          __m256i const bits = rivulet::detail::avx2::load_bits(values + i);
          positive[b] = _mm256_max_epi32(positive[b], bits);
          negative[b] = _mm256_max_epu32(negative[b], bits);
        }
      }
      __m256i const p = rivulet::detail::avx2::reduce8<rivulet::detail::avx2::max_bits>(positive);
      __m256i const n = rivulet::detail::avx2::reduce8<max_unsigned>(negative);
      // Without positive values p < 0, without negative ones n = p.
      return _mm256_blendv_epi8(p, n, _mm256_cmpgt_epi32(rivulet::detail::avx2::magnitude(n), p));
    }
    struct max_unsigned {
      RIVULET_AVX2_PART static __m256i join(__m256i a, __m256i b) { return _mm256_max_epu32(a, b); }
    };
    /// Integers saturated to bytes, in the order a0-3 b0-3 c0-3 d0-3 a4-7 b4-7 c4-7 d4-7.
    RIVULET_AVX2_PART static __m256i to_bytes(__m256i a, __m256i b, __m256i c, __m256i d) {
      return _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    }
    RIVULET_AVX2_PART static __m256i eighth(__m256i m) {
      return _mm256_and_si256(_mm256_srli_epi16(m, 3), _mm256_set1_epi8(15));
    }
    /// The layout of the docstring, from codes in bits 3-6 and in the order of to_bytes.
    RIVULET_AVX2_PART static __m128i pack(__m256i code) {
      __m256i const high = _mm256_slli_epi16(_mm256_bsrli_epi128(code, 8), 1);
      __m256i const two = _mm256_or_si256(_mm256_srli_epi16(code, 3), high);
      return _mm_unpacklo_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
    }
  };
#endif

 private:
  static constexpr auto const& grid = detail::grid16_of<Table>;
  static_assert(grid.regular, "rivulet: two levels of a 4-bit table lie too close to each other");

  static float level_of(int rank) { return grid.level[grid.code_of[rank]]; }
  static std::byte both(int low, int high) { return static_cast<std::byte>(low | (high << 4)); }

  /// The code of `value`, for a factor of 128 / S.
  static int code_of(float value, float factor) {
    if (factor == 0) return grid.code[0][0];
    auto const t = rivulet::detail::bits_of(value * factor);
    float const magnitude = rivulet::detail::float_of(t & 0x7fffffffu);
    return grid.code[t >> 31][magnitude < 127 ? static_cast<int>(magnitude) : 127];
  }

  /// That of one of the levels around `value`, for a factor of 1 / S.
  static int random_code(float value, float factor, std::uint16_t noise) {
    if (factor == 0) return grid.code[0][0];
    float const t = value * factor;
    int rank = 0;  // that of the lower level
    while (rank < 14 && t >= level_of(rank + 1)) ++rank;
    float const above = rivulet::detail::fma(value, factor, -level_of(rank));
    float const part = (static_cast<float>(noise) + 0.5f) * 0x1p-16f;
    bool const up = above > part * (level_of(rank + 1) - level_of(rank));
    return grid.code_of[up ? rank + 1 : rank];
  }
};

namespace detail {

template <std::size_t Block>
struct lloyd_max_table {
  static_assert(Block == 32 || Block == 64,
                "rivulet: lloyd_max4 has tables for blocks of 32 and of 64 values");
  static constexpr std::string_view name = "lloyd_max4";
  static constexpr std::uint16_t id = 4;
  static constexpr bool signed_maximum = false;
  static constexpr float levels[16] = {-.9740f, -.7140f, -.5289f, -.3844f, -.2655f, -.1675f,
                                       -.0879f, -.0250f, .0250f,  .0879f,  .1675f,  .2655f,
                                       .3844f,  .5289f,  .7140f,  .9740f};
};
template <>
struct lloyd_max_table<32> : lloyd_max_table<64> {
  static constexpr float levels[16] = {-.9826f, -.7422f, -.5617f, -.4166f, -.2934f, -.1888f,
                                       -.1002f, -.0282f, .0282f,  .1002f,  .1888f,  .2934f,
                                       .4166f,  .5617f,  .7422f,  .9826f};
};

struct nf4_table {
  static constexpr std::string_view name = "nf4";
  static constexpr std::uint16_t id = 5;
  static constexpr bool signed_maximum = false;
  static constexpr float levels[16] = {-1.0f,
                                       -0.6961928009986877f,
                                       -0.5250730514526367f,
                                       -0.39491748809814453f,
                                       -0.28444138169288635f,
                                       -0.18477343022823334f,
                                       -0.09105003625154495f,
                                       0.0f,
                                       0.07958029955625534f,
                                       0.16093020141124725f,
                                       0.24611230194568634f,
                                       0.33791524171829224f,
                                       0.44070982933044434f,
                                       0.5626170039176941f,
                                       0.7229568362236023f,
                                       1.0f};
};

struct int4_table {
  static constexpr std::string_view name = "int4";
  static constexpr std::uint16_t id = 6;
  static constexpr bool signed_maximum = true;
  static constexpr float levels[16] = {-1.0f, -.875f, -.75f, -.625f, -.5f, -.375f, -.25f, -.125f,
                                       0.0f,  .125f,  .25f,  .375f,  .5f,  .625f,  .75f,  .875f};
};

}  // namespace detail

/// Levels of least squared error for normal values in blocks of 32 or 64 (Lloyd,
/// doi:10.1109/TIT.1982.1056489); none is zero.
template <std::size_t Block = 64>
struct lloyd_max4 : table16<detail::lloyd_max_table<Block>, Block> {};

/// The levels of NormalFloat (QLoRA, arXiv 2305.14314, appendix E); one is zero.
template <std::size_t Block = 64>
struct nf4 : table16<detail::nf4_table, Block> {};

/// The levels -8 .. 7, in eighths of S; -8 for the value of largest magnitude. Values of the other
/// sign saturate to 7. The codes are those of ggml's q4_0, where S / 8 is stored.
template <std::size_t Block = 32>
struct int4 : table16<detail::int4_table, Block> {};

static_assert(BlockCodec<lloyd_max4<>> && BlockCodec<nf4<>> && BlockCodec<int4<>>);

}  // namespace rivulet::codec
