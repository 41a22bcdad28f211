#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/passes.hpp>
#include <rivulet/exec/host.hpp>
#include <rivulet/outer/nesterov.hpp>
#include <rivulet/outer/sgd.hpp>

#include "contract/codec_contract.hpp"
#include "unit/codec/own_codecs.hpp"
#include "unit/codec/scattered_model.hpp"

namespace {

using rivulet::bf16;
using rivulet::fp16;
using rivulet::fragment_layout;
using rivulet::nonfinite_policy;
using rivulet::tile_part;
using rivulet::tile_range;
using rivulet::codec::weighted_codes;
using rivulet_test::backwards;
using rivulet_test::guarded;
using rivulet_test::kernels;
using rivulet_test::own_int8;
using rivulet_test::own_keyed;
using rivulet_test::same_bits;
using rivulet_test::scattered_model;
using rivulet_test::contract::input;
using rivulet_test::contract::same_values;
namespace pass = rivulet::pass;
using bytes = std::vector<std::byte>;
using floats = std::vector<float>;

// --- the loops ---

#if defined(RIVULET_AVX2)

/// Calls f(count, shift) for counts around vectors and for elements at any address.
template <class F>
void for_each_size(F const& f) {
  if (!rivulet_test::has_vectors()) return;
  std::vector<std::size_t> counts = {63, 64, 65, 99, 127, 129, 333, 511, 512};
  for (std::size_t n = 0; n <= 40; ++n) counts.push_back(n);
  for (std::size_t const n : counts) {
    CAPTURE(n);
    for (std::size_t shift = 0; shift < 8; ++shift) {
      CAPTURE(shift);
      f(n, shift);
    }
  }
}

/// Any floats, `shift` elements into an allocation that ends with them.
floats any_floats(std::size_t n, std::size_t shift, std::uint64_t seed, bool finite = false) {
  floats result(shift + n);
  floats const values =
      rivulet_test::contract::values_of(finite ? input::scattered : input::any_bits, n, seed);
  std::ranges::copy(values, result.begin() + static_cast<std::ptrdiff_t>(shift));
  return result;
}

/// Elements of any bits, likewise.
template <class T>
std::vector<T> any_elements(std::size_t n, std::size_t shift, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> result(shift + n);
  for (T& element : result) {
    std::uint64_t const bits = random();
    std::memcpy(&element, &bits, sizeof element);
  }
  return result;
}

template <class T>
floats widened(std::vector<T> const& elements) {
  floats result;
  for (T const& element : elements) result.push_back(rivulet::to_float(element));
  return result;
}

TEST_CASE_TEMPLATE("passes: vector loops over elements give the bits of the scalar ones", T, float,
                   bf16, fp16) {
  for_each_size([](std::size_t n, std::size_t shift) {
    for (std::uint64_t const seed : {1u, 2u, 3u}) {
      std::vector<T> const local = any_elements<T>(n, shift, seed + n);
      floats const theta = any_floats(n, 7 - shift, seed + n);
      float const* const t = theta.data() + (7 - shift);
      guarded<float> scalar(n, 1.0f, shift);
      guarded<float> vector(n, 2.0f, shift);
      pass::subtract(t, local.data() + shift, n, scalar.values().data());
      pass::avx2::subtract(t, local.data() + shift, n, vector.values().data());
      REQUIRE(vector.intact());
      REQUIRE(same_values(scalar.values(), vector.values()));
      pass::load(local.data() + shift, n, scalar.values().data());
      pass::avx2::load(local.data() + shift, n, vector.values().data());
      REQUIRE(vector.intact());
      REQUIRE(same_values(scalar.values(), vector.values()));
      for (float const alpha : {0.0f, 0.3f, 0.5f, 1.0f}) {
        std::vector<T> scalar_local = local;
        std::vector<T> vector_local = local;
        pass::mix(scalar_local.data() + shift, t, alpha, n);
        pass::avx2::mix(vector_local.data() + shift, t, alpha, n);
        REQUIRE(same_values(widened(scalar_local), widened(vector_local)));
      }
    }
  });
}

/// A loop of the outer step by O with everything in arrays of exact size, then what it left.
template <class O, class T, bool Vector>
floats stepped(O const& optimizer, std::size_t n, std::size_t shift, float alpha) {
  floats const mean = any_floats(n, 0, n + 1);
  floats theta = any_floats(n, shift, n + 2);
  std::size_t const stride = n + 3;
  floats slots = any_floats(O::state_slots * stride + n, shift, n + 3);
  std::vector<T> local = any_elements<T>(n, shift, n + 4);
  float* const t = theta.data() + shift;
  float* const s = slots.data() + shift;
  if constexpr (Vector) {
    pass::avx2::step_and_mix(optimizer, mean.data(), t, s, stride, local.data() + shift, alpha, n);
  } else {
    pass::step(optimizer, mean.data(), t, s, stride, n);
    pass::mix(local.data() + shift, t, alpha, n);
  }
  floats result = theta;
  result.insert(result.end(), slots.begin(), slots.end());
  floats const wide = widened(local);
  result.insert(result.end(), wide.begin(), wide.end());
  return result;
}

TEST_CASE_TEMPLATE("passes: the fused outer step gives the bits of step and mix", T, float, bf16,
                   fp16) {
  for_each_size([](std::size_t n, std::size_t shift) {
    for (float const alpha : {0.0f, 0.3f, 1.0f}) {
      rivulet::outer::nesterov const momentum{0.7f, 0.9f};
      REQUIRE(same_values(stepped<rivulet::outer::nesterov, T, true>(momentum, n, shift, alpha),
                          stepped<rivulet::outer::nesterov, T, false>(momentum, n, shift, alpha)));
      rivulet::outer::sgd const plain{0.7f};
      REQUIRE(same_values(stepped<rivulet::outer::sgd, T, true>(plain, n, shift, alpha),
                          stepped<rivulet::outer::sgd, T, false>(plain, n, shift, alpha)));
    }
  });
}

TEST_CASE("passes: adding a residual gives the bits of the scalar loop") {
  for_each_size([](std::size_t n, std::size_t shift) {
    for (float const factor : {1.0f, 0.9f, 0.0f}) {
      floats const others = any_floats(n, shift, n);
      floats scalar = any_floats(n, shift, n + 1);
      floats vector = scalar;
      pass::add_scaled(factor, others.data() + shift, n, scalar.data() + shift);
      pass::avx2::add_scaled(factor, others.data() + shift, n, vector.data() + shift);
      REQUIRE(same_values(scalar, vector));
    }
  });
}

TEST_CASE("passes: all_finite finds one bad value anywhere, and no other") {
  constexpr float worst[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for_each_size([&](std::size_t n, std::size_t shift) {
    if (n > 129) return;
    floats values = any_floats(n, shift, n, true);
    if (n > 0) values[shift] = FLT_MAX;
    if (n > 1) values[shift + 1] = -FLT_MAX;
    REQUIRE(pass::all_finite(values.data() + shift, n));
    REQUIRE(pass::avx2::all_finite(values.data() + shift, n));
    for (std::size_t i = shift; i < n + shift; ++i) {
      float const kept = values[i];
      values[i] = worst[i % 4];
      REQUIRE_FALSE(pass::all_finite(values.data() + shift, n));
      REQUIRE_FALSE(pass::avx2::all_finite(values.data() + shift, n));
      values[i] = kept;
    }
  });
}

#endif

// --- encoding ---

/// What an encoding pass leaves behind.
struct encoded_range {
  bytes payload;
  std::uint64_t payload_sum, source_sum;
  std::size_t nonfinite_tile;
  floats left_over;

  friend bool operator==(encoded_range const& a, encoded_range const& b) {
    return a.payload == b.payload && a.payload_sum == b.payload_sum &&
           a.source_sum == b.source_sum && a.nonfinite_tile == b.nonfinite_tile &&
           same_values(a.left_over, b.left_over);
  }
};

template <class C, class E, class Source>
encoded_range encode(C const& codec, E const& executor, Source const& source,
                     fragment_layout const& layout, tile_range range,
                     nonfinite_policy policy = nonfinite_policy::reject, bool feeds_back = false,
                     std::uint64_t key = 0) {
  pass::encode_totals totals;
  guarded<std::byte> payload(layout.byte_of(range.end()) - layout.byte_of(range.first),
                             std::byte{0x77}, 3);
  guarded<float> left_over(feeds_back ? layout.values() : 0, -1.0f, 1);
  pass::remainder const remainder{feeds_back ? left_over.values().data() : nullptr};
  pass::encode_input<Source> const input{source, &layout, policy, remainder, &totals};
  executor.for_each_tile(
      range.count, pass::encode<C, Source>{codec, input, range, payload.values().data(), key});
  CHECK(payload.intact());
  CHECK(left_over.intact());
  return {{payload.values().begin(), payload.values().end()},
          totals.payload_sum,
          totals.source_sum,
          totals.nonfinite_tile,
          {left_over.values().begin(), left_over.values().end()}};
}

TEST_CASE_TEMPLATE("passes: the fused outer gradient and encoding equal the naive ones", C,
                   rivulet::codec::float32, rivulet::codec::bf16, own_int8,
                   rivulet::codec::e3m0<32>, rivulet::codec::e3m0<64>, rivulet::codec::e3m0<256>) {
  C const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  floats const theta = rivulet_test::normal_values(layout.values(), 10);
  bytes const before = m.bits();
  pass::outer_gradient const source{theta.data()};
  bytes const expected =
      rivulet_test::payload_of(m.fragment, rivulet_test::outer_gradient_of(m, theta), codec);
  std::uint64_t source_sum = 0;
  for (rivulet::bound_slice const& s : layout.slices()) {
    source_sum +=
        pass::outer_gradient::checksum(theta.data() + s.first_value, s.values, s.first_value);
  }
  for (bool const vectors : {false, true}) {
    CAPTURE(vectors);
    kernels const use(vectors);
    encoded_range const forward =
        encode(codec, rivulet::exec::host{}, source, layout, layout.all());
    CHECK(forward.payload == expected);
    CHECK(forward.source_sum == source_sum);
    CHECK(forward.nonfinite_tile == pass::encode_totals::none);
    CHECK(encode(codec, backwards{}, source, layout, layout.all()) == forward);
    CHECK(m.bits() == before);

    // Ranges of tiles are ranges of bytes and of checksums of the source.
    std::uint64_t sum = 0;
    for (int r = 0; r < 3; ++r) {
      tile_range const shard = layout.shard(r, 3);
      encoded_range const part = encode(codec, rivulet::exec::host{}, source, layout, shard);
      CHECK(std::ranges::equal(
          part.payload,
          std::span(expected).subspan(layout.byte_of(shard.first), part.payload.size())));
      CHECK(encode(codec, backwards{}, source, layout, shard) == part);
      sum += part.source_sum;
    }
    CHECK(sum == source_sum);

    // The checksum of the outer parameters notices any of them.
    for (std::size_t const at : {std::size_t{0}, std::size_t{7000}, theta.size() - 1}) {
      floats other = theta;
      other[at] = std::nextafter(other[at], 9.0f);
      pass::outer_gradient const changed{other.data()};
      CHECK(encode(codec, rivulet::exec::host{}, changed, layout, layout.all()).source_sum !=
            source_sum);
    }
  }
}

TEST_CASE("passes: parameters that training left alone have an outer gradient of zero") {
  rivulet::codec::e3m0<64> const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  floats const theta = rivulet_test::normal_values(layout.values(), 10);
  m.for_each_value([&](rivulet::parameter const& p, std::size_t i, std::size_t at) {
    rivulet_test::store(p, i, theta[at]);
  });
  bytes const payload =
      encode(codec, rivulet::exec::host{}, pass::outer_gradient{theta.data()}, layout, layout.all())
          .payload;
  CHECK(payload == bytes(payload.size()));
}

TEST_CASE("passes: gradients are read as they are, with no checksum") {
  rivulet::codec::float32 const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  encoded_range const found =
      encode(codec, rivulet::exec::host{}, pass::local_values{}, layout, layout.all());
  CHECK(found.source_sum == 0);
  CHECK(found.payload == rivulet_test::payload_of(m.fragment, rivulet_test::values_of(m), codec));
}

TEST_CASE_TEMPLATE("passes: with a residual, D + beta * e is sent and what is lost is kept", C,
                   rivulet::codec::float32, rivulet::codec::bf16, own_int8, own_keyed,
                   rivulet::codec::e3m0<32>, rivulet::codec::e3m0<256>) {
  C const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  std::size_t const n = layout.values();
  floats const theta = rivulet_test::normal_values(n, 10);
  floats const residual = rivulet_test::normal_values(n, 11);
  pass::outer_gradient const gradient{theta.data()};
  for (float const beta : {0.0f, 0.9f, 1.0f}) {
    for (bool const vectors : {false, true}) {
      CAPTURE(beta);
      CAPTURE(vectors);
      kernels const use(vectors);
      pass::with_residual<pass::outer_gradient> const source{gradient, residual.data(), beta};
      floats acc = rivulet_test::outer_gradient_of(m, theta);
      for (std::size_t i = 0; i < n; ++i) acc[i] = std::fma(beta, residual[i], acc[i]);
      encoded_range const found = encode(codec, rivulet::exec::host{}, source, layout, layout.all(),
                                         nonfinite_policy::reject, true);
      CHECK(encode(codec, backwards{}, source, layout, layout.all(), nonfinite_policy::reject,
                   true) == found);
      CHECK(found.source_sum ==
            encode(codec, backwards{}, gradient, layout, layout.all()).source_sum);
      if constexpr (!std::is_same_v<C, own_keyed>) {
        CHECK(found.payload == rivulet_test::payload_of(m.fragment, acc, codec));
      }
      // acc - code * scale with one rounding; the product is exact in double precision.
      floats const back = rivulet_test::values_in(m.fragment, found.payload, codec);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < n; ++i) {
        double const lost = double{acc[i]} - double{back[i]};
        double const rounded_product = std::is_same_v<C, own_int8> ? 0x1p-24 * back[i] : 0.0;
        double const slack = std::fabs(lost) * 0x1p-24 + std::fabs(rounded_product);
        wrong += std::fabs(double{found.left_over[i]} - lost) > slack;
      }
      CHECK(wrong == 0);
      if (std::is_same_v<C, rivulet::codec::float32>) CHECK(found.left_over == floats(n));
    }
  }
}

TEST_CASE("passes: the remainder of a range leaves the rest alone") {
  rivulet::codec::e3m0<64> const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  encoded_range const all = encode(codec, rivulet::exec::host{}, pass::local_values{}, layout,
                                   layout.all(), nonfinite_policy::reject, true);
  tile_range const shard{2, 3};
  encoded_range const part = encode(codec, rivulet::exec::host{}, pass::local_values{}, layout,
                                    shard, nonfinite_policy::reject, true);
  for (std::size_t i = 0; i < layout.values(); ++i) {
    bool const inside = i >= layout.value_of(2) && i < layout.value_of(5);
    REQUIRE(part.left_over[i] == (inside ? all.left_over[i] : -1.0f));
  }
}

TEST_CASE("passes: what error feedback sends over the rounds adds up to what it was given") {
  rivulet::codec::e3m0<256> const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  std::size_t const n = layout.values();
  floats const values = rivulet_test::values_of(m);
  floats residual(n);
  std::vector<double> sent(n);
  constexpr int rounds = 10;
  for (int round = 0; round < rounds; ++round) {
    pass::with_residual<pass::local_values> const source{{}, residual.data(), 1.0f};
    encoded_range const found = encode(codec, rivulet::exec::host{}, source, layout, layout.all(),
                                       nonfinite_policy::reject, true);
    floats const back = rivulet_test::values_in(m.fragment, found.payload, codec);
    for (std::size_t i = 0; i < n; ++i) sent[i] += double{back[i]};
    residual = found.left_over;
  }
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i) {
    worst = std::max(worst, std::fabs(rounds * double{values[i]} - double{residual[i]} - sent[i]));
  }
  CHECK(worst < 1e-4);
}

TEST_CASE(
    "passes: the random numbers of a tile hang on its place in the model and on the message") {
  own_keyed const codec;
  scattered_model const m;
  auto const keys = [&](rivulet::fragment const& f, tile_range range, std::uint64_t key) {
    fragment_layout const layout(f, m.params, codec);
    encoded_range const found = encode(codec, backwards{}, pass::local_values{}, layout, range,
                                       nonfinite_policy::reject, false, key);
    std::vector<std::uint64_t> result(range.count);
    for (std::size_t t = 0; t < range.count; ++t) {
      std::size_t const at = layout.byte_of(range.first + t) - layout.byte_of(range.first);
      std::memcpy(&result[t], found.payload.data() + at, 8);
    }
    return result;
  };
  auto const expected = [](std::uint64_t key, std::uint64_t parameter, std::uint64_t first) {
    return rivulet::detail::hash{}.add(key).add(parameter).add(first).value();
  };
  std::vector<std::uint64_t> const all = keys(m.fragment, {0, 8}, 5);
  CHECK(all == std::vector{expected(5, 4, 0), expected(5, 0, 4096), expected(5, 0, 8192),
                           expected(5, 2, 4096), expected(5, 1, 0), expected(5, 1, 4096),
                           expected(5, 5, 0), expected(5, 2, 8192)});
  CHECK(keys(m.fragment, {2, 2}, 5) == std::vector{all[2], all[3]});
  CHECK(keys({"other", {{2, 8192, 4096}}}, {0, 1}, 5) == std::vector{all[7]});
  CHECK(keys(m.fragment, {0, 1}, 6) == std::vector{expected(6, 4, 0)});
}

// --- NaN and infinity ---

TEST_CASE("passes: reject finds the first tile with NaN or infinity") {
  rivulet::codec::e3m0<64> const codec;
  constexpr std::size_t none = pass::encode_totals::none;
  // Values of the fragment that are made bad, and the tile of the earliest.
  struct {
    std::size_t first, second, tile;
  } const cases[] = {{0, none, 0},     {4096, none, 1},   {5905, none, 2},   {5906, 1, 1},
                     {14098, 9000, 3}, {14098, none, 5},  {14099, 14098, 5}, {14431, 14432, 6},
                     {18527, none, 7}, {none, none, none}};
  for (auto const& c : cases) {
    for (float const bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      CAPTURE(c.first);
      CAPTURE(bad);
      scattered_model const m;
      m.for_each_value([&](rivulet::parameter const& p, std::size_t i, std::size_t at) {
        if (at == c.first || at == c.second) rivulet_test::store(p, i, bad);
      });
      fragment_layout const layout = m.layout(codec);
      floats const theta(layout.values(), 0.0f);
      pass::outer_gradient const source{theta.data()};
      encoded_range found[2];
      for (bool const vectors : {false, true}) {
        kernels const use(vectors);
        found[vectors] = encode(codec, rivulet::exec::host{}, source, layout, layout.all());
        CHECK(found[vectors].nonfinite_tile == c.tile);
        CHECK(encode(codec, backwards{}, source, layout, layout.all()) == found[vectors]);
      }
      CHECK(found[0] == found[1]);
      // A range counts its tiles as the fragment does.
      if (c.tile == none) continue;
      encoded_range const one = encode(codec, backwards{}, source, layout, tile_range{c.tile, 1});
      CHECK(one.nonfinite_tile == c.tile);
    }
  }
}

TEST_CASE_TEMPLATE("passes: saturate sends NaN as 0 and infinity as the largest number", C,
                   rivulet::codec::float32, rivulet::codec::e3m0<64>) {
  C const codec;
  scattered_model const m;
  floats values(m.fragment.size());
  m.for_each_value([&](rivulet::parameter const& p, std::size_t i, std::size_t at) {
    if (at == 100) rivulet_test::store(p, i, NAN);
    if (at == 5000) rivulet_test::store(p, i, -NAN);
    if (at == 5906) rivulet_test::store(p, i, INFINITY);
    if (at == 14100) rivulet_test::store(p, i, -INFINITY);
    values[at] = at == 100 || at == 5000 ? 0.0f
                 : at == 5906            ? FLT_MAX
                 : at == 14100           ? -FLT_MAX
                                         : rivulet_test::load(p, i);
  });
  fragment_layout const layout = m.layout(codec);
  for (bool const vectors : {false, true}) {
    kernels const use(vectors);
    encoded_range const found = encode(codec, backwards{}, pass::local_values{}, layout,
                                       layout.all(), nonfinite_policy::saturate, true);
    CHECK(found.nonfinite_tile == pass::encode_totals::none);
    CHECK(found.payload == rivulet_test::payload_of(m.fragment, values, codec));
    // Error feedback goes on from the saturated values.
    CHECK(rivulet_test::contract::same_values(found.left_over, [&] {
      floats const back = rivulet_test::values_in(m.fragment, found.payload, codec);
      floats lost(values.size());
      for (std::size_t i = 0; i < lost.size(); ++i) lost[i] = values[i] - back[i];
      return lost;
    }()));
  }
}

// --- receiving ---

/// Three messages of the fragment with their weights, and their naive sum.
template <class C>
struct three_messages {
  C codec;
  std::vector<bytes> payloads;
  std::vector<weighted_codes> senders;
  floats sum;

  explicit three_messages(rivulet::fragment const& f) {
    constexpr float weights[] = {0.25f, 0.6f, 0.15f};
    for (std::uint64_t w = 0; w < 3; ++w) {
      floats const values = rivulet_test::normal_values(f.size(), 20 + w);
      payloads.push_back(rivulet_test::payload_of(f, values, codec));
    }
    for (std::size_t w = 0; w < 3; ++w) senders.push_back({payloads[w], weights[w]});
    sum = rivulet_test::sum_of(f, senders, codec);
  }
};

/// Keeps what a receiving pass hands over.
struct keep_mean {
  float* mean;
  void store(tile_part const& part, float const* values) const {
    std::copy_n(values, part.count, mean + part.first());
  }
};

template <class E, class Source>
floats received(E const& executor, Source const& source, fragment_layout const& layout) {
  guarded<float> mean(layout.values(), -1.0f, 5);
  executor.for_each_tile(layout.tiles(),
                         pass::receive{source, keep_mean{mean.values().data()}, &layout});
  CHECK(mean.intact());
  return {mean.values().begin(), mean.values().end()};
}

TEST_CASE_TEMPLATE("passes: the sum of senders, of all tiles and of some", C,
                   rivulet::codec::float32, rivulet::codec::bf16, own_int8, own_keyed,
                   rivulet::codec::e3m0<32>, rivulet::codec::e3m0<256>) {
  scattered_model const m;
  three_messages<C> const messages(m.fragment);
  fragment_layout const layout = m.layout(messages.codec);
  for (bool const vectors : {false, true}) {
    kernels const use(vectors);
    pass::sum_of<C> const all{messages.codec, &layout, layout.all(), messages.senders};
    CHECK(same_bits(received(rivulet::exec::host{}, all, layout), messages.sum));
    CHECK(same_bits(received(backwards{}, all, layout), messages.sum));
    pass::sum_of<C> const none{messages.codec, &layout, layout.all(), {}};
    CHECK(received(backwards{}, none, layout) == floats(layout.values()));

    // Senders that hold a range of tiles only.
    for (int r = 0; r < 3; ++r) {
      tile_range const range = layout.shard(r, 3);
      std::vector<bytes> parts;
      for (bytes const& payload : messages.payloads) {
        auto const begin =
            payload.begin() + static_cast<std::ptrdiff_t>(layout.byte_of(range.first));
        auto const end = payload.begin() + static_cast<std::ptrdiff_t>(layout.byte_of(range.end()));
        parts.emplace_back(begin, end);
      }
      std::vector<weighted_codes> senders;
      for (std::size_t w = 0; w < 3; ++w) {
        senders.push_back({parts[w], messages.senders[w].weight});
      }
      pass::sum_of<C> const some{messages.codec, &layout, range, senders};
      for (std::size_t t = range.first; t < range.end(); ++t) {
        tile_part const part = layout.tile(t);
        floats values(part.count, 9.0f);
        CHECK(some.load(part, t, values.data()) == 0);
        CHECK(same_bits(values, std::span(messages.sum).subspan(part.first(), part.count)));
      }
    }
  }
}

TEST_CASE_TEMPLATE("passes: shards are put together from the messages of their owners", C,
                   rivulet::codec::float32, own_keyed, rivulet::codec::e3m0<64>) {
  C const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  bytes const payload =
      rivulet_test::payload_of(m.fragment, rivulet_test::normal_values(layout.values(), 1), codec);
  floats const expected = rivulet_test::values_in(m.fragment, payload, codec);
  for (int shards = 1; shards <= 11; ++shards) {  // more than the 8 tiles, so that some are empty
    CAPTURE(shards);
    std::vector<weighted_codes> messages;
    for (int r = 0; r < shards; ++r) {
      tile_range const shard = layout.shard(r, shards);
      std::size_t const begin = layout.byte_of(shard.first);
      messages.push_back(
          {std::span(payload).subspan(begin, layout.byte_of(shard.end()) - begin), 1.0f});
    }
    pass::shards_of<C> const source{codec, &layout, messages};
    CHECK(same_bits(received(rivulet::exec::host{}, source, layout), expected));
    CHECK(same_bits(received(backwards{}, source, layout), expected));
  }
}

TEST_CASE_TEMPLATE("passes: the fused mean, outer step and mixing equal the naive ones", C,
                   rivulet::codec::float32, own_int8, own_keyed, rivulet::codec::e3m0<32>,
                   rivulet::codec::e3m0<256>) {
  rivulet::fragment const f = scattered_model().fragment;
  three_messages<C> const messages(f);
  for (float const alpha : {0.0f, 0.5f, 0.3f, 1.0f}) {
    for (int const mode : {0, 1, 2, 3}) {
      bool const reversed = mode % 2 == 1;
      kernels const use(mode < 2);
      CAPTURE(alpha);
      CAPTURE(mode);
      scattered_model const m;
      scattered_model const naive;
      fragment_layout const layout = m.layout(messages.codec);
      std::size_t const n = layout.values();
      rivulet::outer::nesterov const optimizer{0.4f, 0.9f};
      floats const theta = rivulet_test::normal_values(n, 30);
      floats const momentum = rivulet_test::normal_values(n, 31);
      guarded<float> new_theta(n, 0);
      guarded<float> new_momentum(n, 0);
      std::ranges::copy(theta, new_theta.values().begin());
      std::ranges::copy(momentum, new_momentum.values().begin());

      pass::sum_of<C> const source{messages.codec, &layout, layout.all(), messages.senders};
      pass::outer_step<rivulet::outer::nesterov> const sink{optimizer, new_theta.values().data(),
                                                            new_momentum.values().data(), n, alpha};
      pass::receive const pass{source, sink, &layout};
      if (reversed) {
        backwards{}.for_each_tile(layout.tiles(), pass);
      } else {
        rivulet::exec::host{}.for_each_tile(layout.tiles(), pass);
      }

      floats naive_theta = theta;
      floats naive_momentum = momentum;
      for (std::size_t i = 0; i < n; ++i) {
        float const mean = messages.sum[i];
        naive_momentum[i] = std::fma(0.9f, naive_momentum[i], mean);
        naive_theta[i] = std::fma(-0.4f, std::fma(0.9f, naive_momentum[i], mean), naive_theta[i]);
      }
      naive.for_each_value([&](rivulet::parameter const& p, std::size_t i, std::size_t at) {
        float const global = (1.0f - alpha) * naive_theta[at];
        float const mixed = std::fma(alpha, rivulet_test::load(p, i), global);
        rivulet_test::store(p, i, alpha == 0 ? naive_theta[at] : mixed);
      });
      CHECK(same_bits(new_theta.values(), naive_theta));
      CHECK(same_bits(new_momentum.values(), naive_momentum));
      CHECK(new_theta.intact());
      CHECK(new_momentum.intact());
      CHECK(m.bits() == naive.bits());  // what is not in the fragment too
      CHECK((m.bits() == scattered_model().bits()) == (alpha == 1));
    }
  }
}

/// An optimizer of a program's own.
struct two_slots {
  float learning_rate = 1;
  static constexpr std::size_t state_slots = 2;
  [[nodiscard]] float step(float theta, float mean, float* slots) const {
    slots[0] += mean;
    slots[1] -= 2 * mean;
    return theta - mean;
  }
  [[nodiscard]] std::uint64_t fingerprint() const { return 0; }
  void check() const {}
};

TEST_CASE("passes: two slots lie a stride apart, none needs no memory") {
  rivulet::codec::float32 const codec;
  scattered_model const m;
  fragment_layout const layout = m.layout(codec);
  std::size_t const n = layout.values();
  floats const mean = rivulet_test::normal_values(n, 40);
  bytes const payload = rivulet_test::payload_of(m.fragment, mean, codec);
  weighted_codes const sender{payload, 1.0f};
  pass::sum_of<rivulet::codec::float32> const source{codec, &layout, layout.all(),
                                                     std::span(&sender, 1)};
  for (bool const vectors : {false, true}) {
    kernels const use(vectors);
    floats theta(n, 1.0f);
    floats slots(2 * n + 5, 0.0f);
    pass::outer_step<two_slots> const own{{}, theta.data(), slots.data(), n + 5, 0};
    backwards{}.for_each_tile(layout.tiles(), pass::receive{source, own, &layout});
    int wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      wrong += slots[i] != mean[i] || slots[n + 5 + i] != -2 * mean[i] || theta[i] != 1 - mean[i];
    }
    CHECK(wrong == 0);
    for (std::size_t i = n; i < n + 5; ++i) CHECK(slots[i] == 0);

    std::ranges::fill(theta, 1.0f);
    pass::outer_step<rivulet::outer::sgd> const none{{}, theta.data(), nullptr, 0, 0};
    backwards{}.for_each_tile(layout.tiles(), pass::receive{source, none, &layout});
    for (std::size_t i = 0; i < n; ++i) wrong += theta[i] != std::fma(-1.0f, mean[i], 1.0f);
    CHECK(wrong == 0);
  }
}

TEST_CASE("passes: a mean overwrites the tensors, rounded to their elements") {
  rivulet::codec::float32 const codec;
  for (bool const vectors : {false, true}) {
    kernels const use(vectors);
    scattered_model const m;
    scattered_model const naive;
    fragment_layout const layout = m.layout(codec);
    floats const mean = rivulet_test::normal_values(layout.values(), 40);
    bytes const payload = rivulet_test::payload_of(m.fragment, mean, codec);
    weighted_codes const sender{payload, 1.0f};
    pass::sum_of<rivulet::codec::float32> const source{codec, &layout, layout.all(),
                                                       std::span(&sender, 1)};
    backwards{}.for_each_tile(layout.tiles(), pass::receive{source, pass::store_mean{}, &layout});
    naive.for_each_value([&](rivulet::parameter const& p, std::size_t i, std::size_t at) {
      rivulet_test::store(p, i, mean[at]);
    });
    CHECK(m.bits() == naive.bits());
  }
}

TEST_CASE("passes: mix_tile mixes one tile") {
  for (bool const vectors : {false, true}) {
    kernels const use(vectors);
    scattered_model const m;
    scattered_model const naive;
    fragment_layout const layout = m.layout(rivulet::codec::float32{});
    tile_part const part = layout.tile(5);  // the last value of b
    floats const theta = {3.0f};
    pass::mix_tile(part, theta.data(), 0.25f);
    rivulet_test::store(naive.params[1], 4096,
                        std::fma(0.25f, rivulet_test::load(naive.params[1], 4096), 2.25f));
    CHECK(m.bits() == naive.bits());
  }
}

}  // namespace
