#pragma once

/// \file
/// The passes over a fragment: one traversal from parameters to codes, and one from the codes of
/// all workers to parameters. A pass is a functor per tile that an executor runs; between memory
/// and codec the values of a tile stay in the first-level cache.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rivulet/codec/layout.hpp>
#include <rivulet/detail/hash.hpp>

namespace rivulet {

/// What encoding does with NaN and infinity.
enum class nonfinite_policy : std::uint8_t {
  reject,   ///< the header carries `rejected`; all ranks skip the fragment alike
  saturate  ///< NaN becomes 0, infinity the largest finite float of its sign
};

namespace pass {

/// Calls f(pointer to the tile's first element in the model, of its own type).
template <class F>
void visit_local(tile_part const& part, F const& f) {
  detail::visit_element(part.from->element, [&](auto* type) {
    f(reinterpret_cast<decltype(type)>(part.from->local) + part.begin);
  });
}

// --- loops over the values of a tile, each with a vector form of the same bits ---

/// values[i] <- round(theta[i]) - local[i]
template <class Element>
void subtract(float const* theta, Element const* local, std::size_t count, float* values) {
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = to_float(from_float<Element>(theta[i])) - to_float(local[i]);
  }
}

/// values[i] <- local[i]
template <class Element>
void load(Element const* local, std::size_t count, float* values) {
  for (std::size_t i = 0; i < count; ++i) values[i] = to_float(local[i]);
}

/// values[i] <- fma(factor, others[i], values[i])
inline void add_scaled(float factor, float const* others, std::size_t count, float* values) {
  for (std::size_t i = 0; i < count; ++i) values[i] = detail::fma(factor, others[i], values[i]);
}

/// local[i] <- alpha * local[i] + (1 - alpha) * theta[i]; exactly theta (rounded) for alpha = 0,
/// exactly local for alpha = 1.
template <class Element>
void mix(Element* local, float const* theta, float alpha, std::size_t count) {
  if (alpha == 1.0f) return;
  for (std::size_t i = 0; i < count; ++i) {
    float const global = (1.0f - alpha) * theta[i];
    local[i] = from_float<Element>(alpha == 0.0f ? theta[i]
                                                 : detail::fma(alpha, to_float(local[i]), global));
  }
}

/// One step of the outer optimizer on `count` values; the slots of a value lie `stride` apart.
template <class O>
void step(O const& optimizer, float const* mean, float* theta, float* slots, std::size_t stride,
          std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    float values[O::state_slots + 1];
    for (std::size_t s = 0; s < O::state_slots; ++s) values[s] = slots[s * stride + i];
    theta[i] = optimizer.step(theta[i], mean[i], values);
    for (std::size_t s = 0; s < O::state_slots; ++s) slots[s * stride + i] = values[s];
  }
}

[[nodiscard]] inline bool all_finite(float const* values, std::size_t count) {
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) bad |= detail::is_finite(values[i]) ? 0u : 1u;
  return bad == 0;
}

#if defined(RIVULET_AVX2)
namespace avx2 {

namespace simd = detail::avx2;

template <class Element>
RIVULET_AVX2 void subtract(float const* theta, Element const* local, std::size_t count,
                           float* values) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256 const rounded = simd::rounded8(simd::load8(theta + i), local);
    _mm256_storeu_ps(values + i, _mm256_sub_ps(rounded, simd::load8(local + i)));
  }
  pass::subtract(theta + i, local + i, count - i, values + i);
}

template <class Element>
RIVULET_AVX2 void load(Element const* local, std::size_t count, float* values) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(values + i, simd::load8(local + i));
  pass::load(local + i, count - i, values + i);
}

RIVULET_AVX2 inline void add_scaled(float factor, float const* others, std::size_t count,
                                    float* values) {
  __m256 const f = _mm256_set1_ps(factor);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256 const sum = _mm256_fmadd_ps(f, simd::load8(others + i), simd::load8(values + i));
    _mm256_storeu_ps(values + i, sum);
  }
  pass::add_scaled(factor, others + i, count - i, values + i);
}

template <class Element>
RIVULET_AVX2_PART void mix8(Element* local, __m256 theta, float alpha) {
  if (alpha == 1.0f) return;
  if (alpha != 0.0f) {
    __m256 const global = _mm256_mul_ps(_mm256_set1_ps(1.0f - alpha), theta);
    theta = _mm256_fmadd_ps(_mm256_set1_ps(alpha), simd::load8(local), global);
  }
  simd::store8(local, theta);
}

template <class Element>
RIVULET_AVX2 void mix(Element* local, float const* theta, float alpha, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) mix8(local + i, simd::load8(theta + i), alpha);
  pass::mix(local + i, theta + i, alpha, count - i);
}

/// step and mix in one loop.
template <class O, class Element>
RIVULET_AVX2 void step_and_mix(O const& optimizer, float const* mean, float* theta, float* slots,
                               std::size_t stride, Element* local, float alpha, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256 values[O::state_slots + 1];
    RIVULET_UNROLL
    for (std::size_t s = 0; s < O::state_slots; ++s)
      values[s] = simd::load8(slots + s * stride + i);
    __m256 const next =
        O::avx2::step(optimizer, simd::load8(theta + i), simd::load8(mean + i), values);
    RIVULET_UNROLL
    for (std::size_t s = 0; s < O::state_slots; ++s) {
      _mm256_storeu_ps(slots + s * stride + i, values[s]);
    }
    _mm256_storeu_ps(theta + i, next);
    mix8(local + i, next, alpha);
  }
  if (i == count) return;
  float* const rest = O::state_slots > 0 ? slots + i : nullptr;
  pass::step(optimizer, mean + i, theta + i, rest, stride, count - i);
  pass::mix(local + i, theta + i, alpha, count - i);
}

/// pass::step, whose fma is an instruction here even where the user's flags make it a call.
template <class O>
RIVULET_AVX2 void step(O const& optimizer, float const* mean, float* theta, float* slots,
                       std::size_t stride, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    float values[O::state_slots + 1];
    for (std::size_t s = 0; s < O::state_slots; ++s) values[s] = slots[s * stride + i];
    theta[i] = optimizer.step(theta[i], mean[i], values);
    for (std::size_t s = 0; s < O::state_slots; ++s) slots[s * stride + i] = values[s];
  }
}

RIVULET_AVX2 inline bool all_finite(float const* values, std::size_t count) {
  __m256i most[4] = {};
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    RIVULET_UNROLL
    for (std::size_t j = 0; j < 4; ++j) {
      __m256i const bits = simd::load_bits(values + i + 8 * j);
      most[j] = _mm256_max_epi32(most[j], simd::magnitude(bits));
    }
  }
  most[0] = _mm256_max_epi32(most[0], most[1]);
  most[2] = _mm256_max_epi32(most[2], most[3]);
  return simd::all_finite(_mm256_max_epi32(most[0], most[2])) &&
         pass::all_finite(values + i, count - i);
}

}  // namespace avx2

/// Calls a loop of this namespace, in its vector form where the processor can.
#define RIVULET_DISPATCH(loop, ...) \
  (detail::use_vectors() ? avx2::loop(__VA_ARGS__) : pass::loop(__VA_ARGS__))
#else
#define RIVULET_DISPATCH(loop, ...) pass::loop(__VA_ARGS__)
#endif

// --- sources: what an encoding pass reads; load(part, tile, values) fills `values` with a part of
// tile number `tile`, cut at multiples of `chunk` values, and returns a checksum ---

/// D = Theta - theta, the outer gradient. Theta is first rounded to the model's element type, so
/// that a parameter that training left alone has D = 0 exactly. The checksum is that of Theta.
struct outer_gradient {
  static constexpr std::size_t chunk = 1;
  static constexpr std::size_t distance = 768;  ///< values to read ahead, by measurement
  float const* outer;                           ///< Theta of the fragment

  std::uint64_t load(tile_part const& part, std::size_t, float* values) const {
    subtract(part, values);
    return checksum(outer + part.first(), part.count, part.first());
  }

  /// What is read after a part.
  codec::read_ahead ahead(tile_part const& part) const {
    std::size_t const size = size_of(part.from->element);
    return {{outer + part.first(), 4, distance},
            {part.from->local + part.begin * size, size, distance}};
  }

  /// The values alone.
  void subtract(tile_part const& part, float* values) const {
    visit_local(part, [&](auto const* local) {
      RIVULET_DISPATCH(subtract, outer + part.first(), local, part.count, values);
    });
  }

  /// Checksum of `count` outer parameters from index `first` of the fragment on.
  static std::uint64_t checksum(float const* theta, std::size_t count, std::size_t first) {
    return detail::mixed_sum(reinterpret_cast<std::byte const*>(theta), count * 4, first * 4);
  }
};

/// The tensors as they are (gradients, say).
struct local_values {
  static constexpr std::size_t chunk = 1;

  std::uint64_t load(tile_part const& part, std::size_t, float* values) const {
    visit_local(part,
                [&](auto const* local) { RIVULET_DISPATCH(load, local, part.count, values); });
    return 0;
  }
};

/// Another source and what earlier messages left over: acc = D + beta * e.
template <class Source>
struct with_residual {
  static constexpr std::size_t chunk = Source::chunk;
  Source source;
  float const* residual;  ///< e of the fragment
  float beta;

  std::uint64_t load(tile_part const& part, std::size_t index, float* values) const {
    std::uint64_t const sum = source.load(part, index, values);
    RIVULET_DISPATCH(add_scaled, beta, residual + part.first(), part.count, values);
    return sum;
  }
};

/// The weighted sum of encoded tiles, senders in order: acc = fma(value, scale * weight, acc).
/// Every sender's bytes hold the tiles of `range`.
template <FragmentCodec C>
struct sum_of {
  static constexpr std::size_t chunk = codec::chunk_values<C>;
  C codec;
  fragment_layout const* layout;
  tile_range range;
  std::span<codec::weighted_codes const> senders;

  std::uint64_t load(tile_part const& part, std::size_t tile, float* values) const {
    std::fill_n(values, part.count, 0.0f);
    if constexpr (Codec<C>) {
      std::size_t const at = layout->byte_of(tile) - layout->byte_of(range.first);
      codec::accumulate_chunk(codec, senders, at, part.in_tile(), values);
    } else {
      std::size_t const first = layout->value_of(range.first);
      std::size_t const count = layout->value_of(range.end()) - first;
      for (codec::weighted_codes const& sender : senders) {
        codec.accumulate(sender.bytes.data(), count, part.first() - first, part.count,
                         sender.weight, values);
      }
    }
    return 0;
  }
};

/// What the parts of a fragment hold that other workers have averaged: shard r stands in
/// messages[r].
template <FragmentCodec C>
struct shards_of {
  static constexpr std::size_t chunk = codec::chunk_values<C>;
  C codec;
  fragment_layout const* layout;
  std::span<codec::weighted_codes const> messages;

  std::uint64_t load(tile_part const& part, std::size_t tile, float* values) const {
    auto const shards = static_cast<int>(messages.size());
    int r = 0;
    while (layout->shard(r, shards).end() <= tile) ++r;
    sum_of<C> const own{codec, layout, layout->shard(r, shards),
                        messages.subspan(static_cast<std::size_t>(r), 1)};
    return own.load(part, tile, values);
  }
};

// --- sinks: what a receiving pass does with the mean ---

/// The outer step, then theta <- alpha * theta + (1 - alpha) * Theta.
template <OuterOptimizer O>
struct outer_step {
  O optimizer;
  float* outer;        ///< Theta of the fragment
  float* slots;        ///< state of the fragment, one array per slot
  std::size_t stride;  ///< from slot to slot
  float mixing;        ///< alpha

  void store(tile_part const& part, float const* mean) const {
    float* const theta = outer + part.first();
    float* const state = O::state_slots > 0 ? slots + part.first() : nullptr;
    visit_local(part, [&](auto* local) {
#if defined(RIVULET_AVX2)
      if constexpr (requires { typename O::avx2; }) {
        if (detail::use_vectors()) {
          avx2::step_and_mix(optimizer, mean, theta, state, stride, local, mixing, part.count);
          return;
        }
      }
#endif
      RIVULET_DISPATCH(step, optimizer, mean, theta, state, stride, part.count);
      RIVULET_DISPATCH(mix, local, theta, mixing, part.count);
    });
  }
};

/// The mean overwrites the tensors.
struct store_mean {
  void store(tile_part const& part, float const* mean) const {
    visit_local(part, [&](auto* local) { RIVULET_DISPATCH(mix, local, mean, 0.0f, part.count); });
  }
};

/// theta <- alpha * theta + (1 - alpha) * Theta.
inline void mix_tile(tile_part const& part, float const* theta, float alpha) {
  visit_local(part, [&](auto* local) { RIVULET_DISPATCH(mix, local, theta, alpha, part.count); });
}

// --- the passes ---

/// What an encoding pass found out, summed over tiles in any order.
struct encode_totals {
  static constexpr std::size_t none = ~std::size_t{0};

  std::atomic<std::uint64_t> payload_sum{0};
  std::atomic<std::uint64_t> source_sum{0};
  std::atomic<std::size_t> nonfinite_tile{none};  ///< the first one with NaN or infinity
};

/// Where error feedback keeps what a message leaves over, acc - decode(encode(acc)); or nowhere.
struct remainder {
  float* values = nullptr;  ///< of the fragment

  [[nodiscard]] explicit operator bool() const { return values != nullptr; }
};

/// Where an encoding pass gets its values from, how it checks them, and what it keeps of them.
template <class Source>
struct encode_input {
  Source source;
  fragment_layout const* layout;
  nonfinite_policy policy;
  remainder left_over;
  encode_totals* totals;

  /// Looks for NaN and infinity; true if it had to change them.
  bool saturate(tile_part const& part, std::size_t tile, float* values) const {
    if (RIVULET_DISPATCH(all_finite, values, part.count)) return false;
    if (policy == nonfinite_policy::reject) {
      note_nonfinite(tile);
      return false;
    }
    for (std::size_t i = 0; i < part.count; ++i) values[i] = saturated(values[i]);
    return true;
  }

  void keep(tile_part const& part, float const* values) const {
    if (left_over) std::copy_n(values, part.count, left_over.values + part.first());
  }

 private:
  static float saturated(float value) {
    if (detail::is_finite(value)) return value;
    auto const bits = detail::bits_of(value);
    if ((bits & 0x7fffffffu) != 0x7f800000u) return 0.0f;
    return detail::float_of(bits - 1);
  }

  void note_nonfinite(std::size_t tile) const {
    std::size_t seen = totals->nonfinite_tile.load(std::memory_order_relaxed);
    while (tile < seen &&
           !totals->nonfinite_tile.compare_exchange_weak(seen, tile, std::memory_order_relaxed)) {
    }
  }
};

/// What the tile whose codes begin `at` bytes into a payload adds to its checksum.
template <Codec C>
[[nodiscard]] std::uint64_t tile_sum(C const& codec, std::size_t count, std::byte const* codes,
                                     std::size_t at) {
  return detail::mixed_sum(codes, codec::tile_bytes(codec, count), at);
}

/// Encodes tile number `range.first + index`: reads each value once, writes each code once.
template <Codec C, class Source>
struct encode {
  C codec;
  encode_input<Source> input;
  tile_range range;
  std::byte* payload;  ///< of the range
  std::uint64_t key;   ///< of random numbers in this message

  void operator()(std::size_t index) const {
    std::size_t const tile = range.first + index;
    tile_part const all = input.layout->tile(tile);
    std::size_t const at = all.byte - input.layout->byte_of(range.first);
    std::uint64_t const source_sum = encode_tile(all, tile, payload + at);
    std::uint64_t const sum = tile_sum(codec, all.count, payload + at, at);
    input.totals->payload_sum.fetch_add(sum, std::memory_order_relaxed);
    input.totals->source_sum.fetch_add(source_sum, std::memory_order_relaxed);
  }

  /// Encodes `all` of tile number `tile` to `codes`; returns the source's checksum.
  std::uint64_t encode_tile(tile_part const& all, std::size_t tile, std::byte* codes) const {
    constexpr std::size_t size = (std::max)(codec::chunk_values<C>, Source::chunk);
    alignas(64) float values[size];
    std::uint64_t const random = tile_key(all);
    std::uint64_t source_sum = 0;
    for (std::size_t i = 0; i < all.count; i += size) {
      tile_part const part = all.chunk(i, size);
      source_sum += input.source.load(part, tile, values);
      codec::read_ahead ahead;
      if constexpr (requires { input.source.ahead(part); }) ahead = input.source.ahead(part);
      if (!codec::encode_chunk(codec, values, part.in_tile(), codes, random, codec::memory::cached,
                               ahead) &&
          input.saturate(part, tile, values)) {
        codec::encode_chunk(codec, values, part.in_tile(), codes, random);
      }
      if (input.left_over) {
        input.keep(part, values);
        codec::weighted_codes const own{{codes, codec::tile_bytes(codec, all.count)}, -1.0f};
        codec::accumulate_chunk(codec, std::span(&own, 1), 0, part.in_tile(),
                                input.left_over.values + part.first());
      }
    }
    return source_sum;
  }

 private:
  /// Random numbers hang on the place in the model, not on the partition.
  [[nodiscard]] std::uint64_t tile_key(tile_part const& part) const {
    return detail::hash{}
        .add(key)
        .add(std::uint64_t{part.from->parameter})
        .add(std::uint64_t{part.from->offset + part.begin})
        .value();
  }
};

/// Hands the mean, as a source gives it, to a sink.
template <class Source, class Sink>
struct receive {
  Source mean;
  Sink sink;
  fragment_layout const* layout;

  void operator()(std::size_t tile) const {
    constexpr std::size_t size = Source::chunk;
    alignas(64) float values[size];
    tile_part const all = layout->tile(tile);
    for (std::size_t i = 0; i < all.count; i += size) {
      tile_part const part = all.chunk(i, size);
      mean.load(part, tile, values);
      sink.store(part, values);
    }
  }
};
template <class Source, class Sink>
receive(Source, Sink, fragment_layout const*) -> receive<Source, Sink>;

}  // namespace pass
}  // namespace rivulet

#undef RIVULET_DISPATCH
