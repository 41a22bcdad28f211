#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/nvfp4.hpp>

#include "contract/codec_tools.hpp"

namespace {

using rivulet::codec::nvfp4;
using rivulet::detail::bits_of;
using rivulet::detail::float_of;
using rivulet_test::decoded;
using rivulet_test::encoded;
using rivulet_test::normal_values;
using rivulet_test::random_values;
using rivulet_test::signal_to_noise;
using rivulet_test::with_both_kernels;

/// The nearest number with that many bits after the first one, from 2^smallest on, ties to even,
/// saturating.
float nearest(float t, int bits, int smallest, float largest) {
  int const exponent = t == 0 ? smallest : std::max(std::ilogb(t), smallest);
  float const step = std::ldexp(1.0f, exponent - bits);
  return std::clamp(std::nearbyint(t / step) * step, -largest, largest);
}
float e2m1(float t) { return nearest(t, 1, 0, 6); }
float e4m3(float t) { return nearest(t, 3, -6, 448); }

TEST_CASE("nvfp4: sizes") {
  CHECK(nvfp4::tile_bytes(1) == 13);
  CHECK(nvfp4::tile_bytes(16) == 13);
  CHECK(nvfp4::tile_bytes(17) == 22);
  CHECK(nvfp4::tile_bytes(4096) == 2308);
  CHECK(rivulet::codec::encoded_bytes(nvfp4{}, 0) == 0);
  CHECK(rivulet::codec::encoded_bytes(nvfp4{}, 4096 + 5) == 2308 + 13);
}

TEST_CASE("nvfp4: the bytes of a tile by hand") {
  // Four kinds of blocks again and again; the last block is shorter. d = 2688 / 2688 = 1.
  std::size_t const blocks = 38;
  std::vector<float> values(blocks * 16 - 11);
  std::vector<std::byte> bytes(blocks * 9 + 4);
  for (std::size_t b = 0; b < blocks; ++b) {
    std::size_t const first = b * 16;
    unsigned codes[8] = {};
    unsigned scale = 0;
    auto const set = [&](std::size_t i, float value) {
      if (first + i < values.size()) values[first + i] = value;
    };
    switch (b % 4) {
      case 0:  // s = 448
        set(0, 2688);
        set(1, -1000);
        codes[0] = 0xc7;
        scale = 0x7e;
        break;
      case 1:  // s = 1
        set(0, 6);
        set(1, -0.5f);
        set(2, 2.5f);  // a tie, to 2
        set(3, 3.5f);  // a tie, to 4
        set(4, -0.2f);
        codes[0] = 0x97;
        codes[1] = 0x64;
        codes[2] = 0x08;
        scale = 0x38;
        if (first + 5 < values.size()) {
          set(15, -4);
          codes[7] = 0xe0;
        }
        break;
      case 2:  // 0.01 / 6 = 0.85 * 2^-9, to s = 2^-9
        set(1, 0.01f);
        codes[0] = 0x70;
        scale = 0x01;
        break;
      default:  // 0.005 / 6 = 0.43 * 2^-9, to s = 0
        set(2, -0.005f);
        break;
    }
    for (std::size_t i = 0; i < 8; ++i) bytes[b * 8 + i] = static_cast<std::byte>(codes[i]);
    bytes[blocks * 8 + b] = static_cast<std::byte>(scale);
  }
  bytes[blocks * 9 + 2] = std::byte{0x80};  // 1.0f
  bytes[blocks * 9 + 3] = std::byte{0x3f};
  REQUIRE(blocks % 4 == 2);
  with_both_kernels([&] {
    CHECK(encoded(nvfp4{}, values) == bytes);
    std::vector<float> const back = decoded(nvfp4{}, bytes, values.size());
    CHECK(back[0] == 2688);
    CHECK(back[1] == -896);
    CHECK(back[16 + 2] == 2);
    CHECK(back[32 + 1] == 6 * 0x1p-9f);
    CHECK(back[48 + 2] == 0);
  });
}

TEST_CASE("nvfp4: scales and codes are those of the definition") {
  std::mt19937_64 random(1);
  std::student_t_distribution<float> student(3);
  std::vector<float> values(3 * 4096 + 700);
  for (std::size_t i = 0; i < values.size(); ++i) {
    float const size = std::ldexp(1.0f, -static_cast<int>(i / 16 % 23));
    values[i] = i / 4096 == 2 ? student(random) * size : student(random) * 1e-3f;
  }
  with_both_kernels([&] {
    std::vector<float> const back = decoded(nvfp4{}, encoded(nvfp4{}, values), values.size());
    int wrong = 0;
    float of_tile = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto const largest = [&](std::size_t first, std::size_t size) {
        float most = 0;
        for (std::size_t j = first; j < std::min(first + size, values.size()); ++j) {
          most = std::fmax(most, std::fabs(values[j]));
        }
        return most;
      };
      if (i % 4096 == 0) of_tile = largest(i, 4096);
      float const of_block = largest(i / 16 * 16, 16);
      float const to_scale = 448 / of_tile;
      float const scale = e4m3(of_block * to_scale) * (of_tile / 2688);
      float const factor = scale == 0 ? 0 : 1 / scale;
      wrong += back[i] != scale * e2m1(values[i] * factor);
      float const bound = of_block / 5 + of_tile / 450000;
      wrong += !(std::fabs(back[i] - values[i]) <= bound);
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("nvfp4: zeros, tiny and huge tiles") {
  struct {
    float largest;
    float d;
  } const cases[] = {{0, 0},
                     {-0.0f, 0},
                     {0x1p-149f, 0},
                     {0x1p-89f, 0},  // d below 2^-100
                     {0x1.5p-89f, 0x1p-100f},
                     {FLT_MAX, 0x1.fffp127f / 2688}};
  for (auto const& c : cases) {
    CAPTURE(c.largest);
    std::vector<float> values(1024 + 3, -c.largest / 3);
    values[700] = c.largest;
    with_both_kernels([&] {
      std::vector<std::byte> const bytes = encoded(nvfp4{}, values);
      float d = -1;
      std::memcpy(&d, bytes.data() + bytes.size() - 4, 4);
      CHECK(bits_of(d) == bits_of(c.d));
      if (c.d == 0) CHECK(bytes == std::vector<std::byte>(bytes.size()));
      for (float const value : decoded(nvfp4{}, bytes, values.size())) CHECK(std::isfinite(value));
      if (c.d != 0) CHECK(decoded(nvfp4{}, bytes, values.size())[700] > 0.99f * c.largest);
    });
  }
}

TEST_CASE("nvfp4: a tile with one NaN or infinity decodes to NaN as a whole, others as before") {
  std::vector<float> values(3 * 4096, 0.5f);
  for (float const bad : {NAN, INFINITY, -INFINITY}) {
    for (std::size_t const at : {4096u, 5000u, 8191u}) {
      values[at] = bad;
      with_both_kernels([&] {
        std::vector<float> const back = decoded(nvfp4{}, encoded(nvfp4{}, values), values.size());
        int wrong = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          wrong += std::isnan(back[i]) != (i / 4096 == 1);
        }
        CHECK(wrong == 0);
      });
      values[at] = 0.5f;
    }
  }
}

TEST_CASE("nvfp4: the kernels have the bits of the scalar code, for any floats and any bytes") {
#if defined(RIVULET_AVX2)
  std::mt19937_64 random(3);
  int wrong = 0;
  for (std::size_t round = 0; round < 300; ++round) {
    std::size_t const count = round % 5 == 0 ? 4096 : 1 + random() % 4096;
    std::vector<float> values(count);
    auto const shift = static_cast<std::uint32_t>(random() % 180);
    for (float& x : values) {
      auto const bits = static_cast<std::uint32_t>(random());
      x = float_of(round % 4 == 0 ? (bits & 0x80000000u) | (bits >> 3)
                                  : (bits & 0x87ff0000u) + (shift << 23));
    }
    if (round % 7 == 0) values[random() % count] = float_of(static_cast<std::uint32_t>(random()));
    std::vector<std::byte> const bytes = encoded(nvfp4{}, values);
    std::vector<std::byte> noise(bytes.size());
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    float const specials[] = {NAN, INFINITY, -1, 0x1p-101f, 0x1p-149f, 1, FLT_MAX};
    if (round % 3 != 0) std::memcpy(noise.data() + noise.size() - 4, specials + round % 7, 4);
    std::vector<float> const back = decoded(nvfp4{}, noise, count);
    std::vector<float> sums(count, 0.1f);
    rivulet::codec::accumulate(nvfp4{}, noise, 0.3f, sums);

    bool const before = rivulet::detail::vector_kernels();
    rivulet::detail::vector_kernels() = false;
    wrong += encoded(nvfp4{}, values) != bytes;
    std::vector<float> const scalar_back = decoded(nvfp4{}, noise, count);
    std::vector<float> scalar_sums(count, 0.1f);
    rivulet::codec::accumulate(nvfp4{}, noise, 0.3f, scalar_sums);
    rivulet::detail::vector_kernels() = before;
    auto const same = [](float a, float b) {
      return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b));
    };
    for (std::size_t i = 0; i < count; ++i) {
      wrong += !same(back[i], scalar_back[i]) || !same(sums[i], scalar_sums[i]);
    }
  }
  CHECK(wrong == 0);
#endif
}

TEST_CASE("nvfp4: a stored scale below 2^-100 counts as 0") {
  std::vector<std::byte> bytes(nvfp4::tile_bytes(600), std::byte{0x77});
  for (float const d : {0x1.fffffep-101f, -0x1p-101f, 0x1p-149f, -0.0f}) {
    std::memcpy(bytes.data() + bytes.size() - 4, &d, 4);
    with_both_kernels([&] {
      for (float const value : decoded(nvfp4{}, bytes, 600)) CHECK(value == 0.0f);
    });
  }
}

TEST_CASE("nvfp4: accumulate is one fma of the element with the scales times weight") {
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(1000);
  std::vector<float> before(1000);
  for (float& x : values) x = normal(random);
  for (float& x : before) x = normal(random);
  std::vector<std::byte> const bytes = encoded(nvfp4{}, values);
  std::vector<float> const back = decoded(nvfp4{}, bytes, 1000);
  float d = 0;
  std::memcpy(&d, bytes.data() + bytes.size() - 4, 4);
  with_both_kernels([&] {
    std::vector<float> sums = before;
    rivulet::codec::accumulate(nvfp4{}, bytes, 0.3f, sums);
    int wrong = 0;
    for (std::size_t i = 0; i < 1000; ++i) {
      auto const code = static_cast<std::uint32_t>(bytes[63 * 8 + i / 16]);
      float const scale = rivulet::codec::detail::e4m3::decode(code) * d;
      float const element = std::nearbyint(2 * back[i] / scale) / 2;
      wrong += sums[i] != std::fma(element, scale * 0.3f, before[i]);
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("nvfp4: signal to noise is that of the format") {
  std::vector<float> const normal = normal_values(1 << 20, 2);
  std::vector<float> const student =
      random_values(std::student_t_distribution<float>{3}, 1 << 20, 2);
  CHECK(std::fabs(signal_to_noise(nvfp4{}, normal) - 20.4) < 0.1);
  CHECK(std::fabs(signal_to_noise(nvfp4{}, student) - 20.9) < 0.2);
}

}  // namespace
