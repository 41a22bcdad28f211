#pragma once

/// \file
/// The passes over a fragment: one traversal from parameters to codes, and one from the codes of
/// all workers to parameters. A pass is a functor per tile of 4096 values that an executor runs;
/// between memory and codec the values of a tile stay in the first-level cache.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <rivulet/codec/block_codec.hpp>
#include <rivulet/codec/wire.hpp>

namespace rivulet {

/// What encoding does with NaN and infinity.
enum class nonfinite_policy : std::uint8_t {
  reject,   ///< the header carries `rejected`; all ranks skip the fragment alike
  saturate  ///< NaN becomes 0, infinity the largest finite float of its sign
};

/// A slice with what a kernel needs.
struct bound_slice {
  std::byte* local;  ///< first element of the slice in the model
  element_type element;
  std::size_t parameter;
  std::size_t offset;  ///< first element of the slice in its parameter
  std::size_t values;
  std::size_t first_value;  ///< index in the fragment
  std::size_t first_block;
  std::size_t first_tile;
};

/// The part of a slice that one tile covers.
struct tile_part {
  bound_slice const* from;
  std::size_t begin;  ///< first value, counted in the slice
  std::size_t count;  ///< 1 .. 4096

  /// Index of the first value in the fragment.
  [[nodiscard]] std::size_t first() const { return from->first_value + begin; }
};

/// A fragment laid out for a codec: where the values, blocks and tiles of each slice begin.
class fragment_layout {
 public:
  /// Values in a tile; a multiple of every block size.
  static constexpr std::size_t tile_values = cut_elements;

  /// The layout of `f` for blocks of `block_size` values. Throws precondition_error for a
  /// parameter in device memory.
  fragment_layout(fragment const& f, parameter_set const& parameters, std::size_t block_size) {
    for (slice const& part : f.slices) {
      parameter const& p = parameters[part.parameter];
      detail::require(p.tensor.space == memory_space::host, "parameter '", p.name,
                      "' lies in device memory, which these passes do not reach");
      slices_.push_back({nullptr, p.tensor.element, part.parameter, part.offset, part.size, values_,
                         blocks_, tiles_});
      values_ += part.size;
      blocks_ += (part.size + block_size - 1) / block_size;
      tiles_ += (part.size + tile_values - 1) / tile_values;
    }
    bind(parameters);
  }

  /// Looks up where the parameters lie now.
  void bind(parameter_set const& parameters) {
    for (bound_slice& r : slices_) {
      tensor_ref const& tensor = parameters[r.parameter].tensor;
      r.local = static_cast<std::byte*>(tensor.data) + r.offset * size_of(tensor.element);
    }
  }

  [[nodiscard]] tile_part tile(std::size_t index) const {
    std::size_t low = 0;
    std::size_t high = slices_.size();
    while (high - low > 1) {
      std::size_t const middle = (low + high) / 2;
      (slices_[middle].first_tile <= index ? low : high) = middle;
    }
    bound_slice const& r = slices_[low];
    std::size_t const begin = (index - r.first_tile) * tile_values;
    std::size_t const rest = r.values - begin;
    return {&r, begin, rest < tile_values ? rest : tile_values};
  }

  [[nodiscard]] std::span<bound_slice const> slices() const { return slices_; }
  [[nodiscard]] std::size_t values() const { return values_; }
  [[nodiscard]] std::size_t blocks() const { return blocks_; }
  [[nodiscard]] std::size_t tiles() const { return tiles_; }

 private:
  std::vector<bound_slice> slices_;
  std::size_t values_ = 0;
  std::size_t blocks_ = 0;
  std::size_t tiles_ = 0;
};

/// Bytes of a fragment on the wire: header + sum over slices of ceil(n / block) * block_bytes.
template <BlockCodec C>
[[nodiscard]] std::size_t message_bytes(fragment_layout const& layout) {
  return header_bytes + layout.blocks() * codec::block_bytes<C>;
}

/// The encoded fragment of one worker, as the decoding pass reads it.
struct contribution {
  std::byte const* payload;
  float weight;  ///< c_m = float(w_m / sum of w), not 0
};

namespace pass {

/// Calls f(pointer to the tile's first element in the model, of its own type).
template <class F>
void visit_local(tile_part const& part, F const& f) {
  detail::visit_element(part.from->element, [&](auto* type) {
    f(reinterpret_cast<decltype(type)>(part.from->local) + part.begin);
  });
}

/// Source of an encoding pass: D = Theta - theta, the outer gradient. Theta is first rounded to the
/// model's element type, so that a parameter that training left alone has D = 0 exactly. Returns
/// the checksum of Theta's bits.
struct outer_gradient {
  float const* outer;  ///< Theta of the fragment

  std::uint64_t load(tile_part const& part, float* values) const {
    std::size_t const first = part.first();
    float const* const theta = outer + first;
    visit_local(part, [&](auto const* local) {
      using element = std::remove_cvref_t<decltype(*local)>;
      for (std::size_t i = 0; i < part.count; ++i) {
        values[i] = to_float(from_float<element>(theta[i])) - to_float(local[i]);
      }
    });
    return checksum(theta, part.count, first);
  }

  /// Checksum of `count` outer parameters from index `first` of the fragment on.
  static std::uint64_t checksum(float const* theta, std::size_t count, std::size_t first) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sum += detail::mixed_word(detail::bits_of(theta[i]), first + i);
    }
    return sum;
  }
};

/// Source of an encoding pass: the tensors as they are (gradients, say).
struct local_values {
  std::uint64_t load(tile_part const& part, float* values) const {
    visit_local(part, [&](auto const* local) {
      for (std::size_t i = 0; i < part.count; ++i) values[i] = to_float(local[i]);
    });
    return 0;
  }
};

/// theta <- alpha * theta + (1 - alpha) * Theta; exactly Theta (rounded) for alpha = 0,
/// exactly theta for alpha = 1.
inline void mix(tile_part const& part, float const* theta, float alpha) {
  visit_local(part, [&](auto* local) {
    using element = std::remove_cvref_t<decltype(*local)>;
    if (alpha == 1.0f) return;
    if (alpha == 0.0f) {
      for (std::size_t i = 0; i < part.count; ++i) local[i] = from_float<element>(theta[i]);
      return;
    }
    for (std::size_t i = 0; i < part.count; ++i) {
      float const global = (1.0f - alpha) * theta[i];
      local[i] = from_float<element>(detail::fma(alpha, to_float(local[i]), global));
    }
  });
}

/// Sink of a decoding pass: the outer step, then theta <- alpha * theta + (1 - alpha) * Theta.
template <OuterOptimizer O>
struct outer_step {
  O optimizer;
  float* outer;        ///< Theta of the fragment
  float* slots;        ///< state of the fragment, one array per slot
  std::size_t stride;  ///< from slot to slot
  float mixing;        ///< alpha

  void store(tile_part const& part, float const* mean) const {
    std::size_t const first = part.first();
    float* const theta = outer + first;
    float* const state = slots + first;
    for (std::size_t i = 0; i < part.count; ++i) {
      float values[O::state_slots + 1];
      for (std::size_t s = 0; s < O::state_slots; ++s) values[s] = state[s * stride + i];
      theta[i] = optimizer.step(theta[i], mean[i], values);
      for (std::size_t s = 0; s < O::state_slots; ++s) state[s * stride + i] = values[s];
    }
    mix(part, theta, mixing);
  }
};

/// Sink of a decoding pass: the mean overwrites the tensors.
struct store_mean {
  void store(tile_part const& part, float const* mean) const {
    visit_local(part, [&](auto* local) {
      using element = std::remove_cvref_t<decltype(*local)>;
      for (std::size_t i = 0; i < part.count; ++i) local[i] = from_float<element>(mean[i]);
    });
  }
};

/// What an encoding pass found out, summed over tiles in any order.
struct encode_totals {
  static constexpr std::size_t none = ~std::size_t{0};

  std::atomic<std::uint64_t> payload_sum{0};
  std::atomic<std::uint64_t> source_sum{0};
  std::atomic<std::size_t> nonfinite_tile{none};  ///< the first one with NaN or infinity
};

/// Encodes a fragment: reads each value once, writes each code once.
template <BlockCodec C, class Source>
struct encode {
  C codec;
  Source source;
  fragment_layout const* layout;
  std::byte* payload;
  nonfinite_policy policy;
  encode_totals* totals;

  void operator()(std::size_t index) const {
    tile_part const part = layout->tile(index);
    std::size_t const count = codec::blocks<C>(part.count);
    alignas(64) float values[fragment_layout::tile_values];
    std::uint64_t const source_sum = source.load(part, values);
    for (std::size_t i = part.count; i < count * C::block_size; ++i) values[i] = 0.0f;
    if (!all_finite(values, part.count)) {
      if (policy == nonfinite_policy::saturate) {
        for (std::size_t i = 0; i < part.count; ++i) values[i] = saturated(values[i]);
      } else {
        note_nonfinite(index);
      }
    }
    std::size_t const first = part.from->first_block + part.begin / C::block_size;
    std::byte* const scales = payload + layout->blocks() * C::code_bytes;
    std::uint64_t sum = 0;
    for (std::size_t b = 0; b < count; ++b) {
      std::byte* const codes = payload + (first + b) * C::code_bytes;
      std::byte* const scale = scales + (first + b) * C::scale_bytes;
      codec.encode_block(values + b * C::block_size, codes, scale);
      sum += codec::detail::block_sum<C>(codes, scale, first + b);
    }
    totals->payload_sum.fetch_add(sum, std::memory_order_relaxed);
    totals->source_sum.fetch_add(source_sum, std::memory_order_relaxed);
  }

 private:
  static bool all_finite(float const* values, std::size_t count) {
    std::uint32_t found = 0;
    for (std::size_t i = 0; i < count; ++i) found |= detail::is_finite(values[i]) ? 0u : 1u;
    return found == 0;
  }

  static float saturated(float value) {
    if (detail::is_finite(value)) return value;
    auto const bits = detail::bits_of(value);
    if ((bits & 0x7fffffffu) != 0x7f800000u) return 0.0f;
    return detail::float_of(bits - 1);
  }

  void note_nonfinite(std::size_t index) const {
    std::size_t seen = totals->nonfinite_tile.load(std::memory_order_relaxed);
    while (index < seen &&
           !totals->nonfinite_tile.compare_exchange_weak(seen, index, std::memory_order_relaxed)) {
    }
  }
};

/// Decodes the contributions of all workers in order of rank, adds them up, and hands the mean to
/// the sink: acc = fma(value, scale * c_m, acc).
template <BlockCodec C, class Sink>
struct decode_mean {
  C codec;
  Sink sink;
  fragment_layout const* layout;
  std::span<contribution const> contributions;

  void operator()(std::size_t index) const {
    tile_part const part = layout->tile(index);
    std::size_t const count = codec::blocks<C>(part.count);
    std::size_t const first = part.from->first_block + part.begin / C::block_size;
    alignas(64) float mean[fragment_layout::tile_values];
    for (std::size_t i = 0; i < count * C::block_size; ++i) mean[i] = 0.0f;
    for (contribution const& c : contributions) {
      std::byte const* const codes = c.payload + first * C::code_bytes;
      std::byte const* const scales =
          c.payload + layout->blocks() * C::code_bytes + first * C::scale_bytes;
      for (std::size_t b = 0; b < count; ++b) {
        codec.accumulate_block(codes + b * C::code_bytes, scales + b * C::scale_bytes, c.weight,
                               mean + b * C::block_size);
      }
    }
    sink.store(part, mean);
  }
};

}  // namespace pass

/// Encodes a fragment behind the header whose place `message` begins with, completes the header
/// (payload bytes, checksums, flags) and writes it last. Returns the index of the parameter in
/// which NaN or infinity was found and rejected, or -1.
template <BlockCodec C, class Source, Executor E>
int encode_message(C const& codec, E const& executor, Source const& source,
                   fragment_layout const& layout, nonfinite_policy policy, wire_header header,
                   std::span<std::byte> message) {
  pass::encode_totals totals;
  executor.for_each_tile(
      layout.tiles(), pass::encode<C, Source>{codec, source, &layout, message.data() + header_bytes,
                                              policy, &totals});
  header.codec = C::id;
  header.payload_bytes = message.size() - header_bytes;
  header.payload_sum = totals.payload_sum;
  header.outer_state = totals.source_sum;
  int parameter = -1;
  if (totals.nonfinite_tile != pass::encode_totals::none) {
    header.flags |= wire_header::rejected;
    parameter = static_cast<int>(layout.tile(totals.nonfinite_tile).from->parameter);
  }
  header.write(message.data());
  return parameter;
}

}  // namespace rivulet
