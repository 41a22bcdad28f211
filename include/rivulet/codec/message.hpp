#pragma once

/// \file
/// Messages: the codes of a range of tiles behind a header, written and checked.

#include <cstddef>
#include <cstdint>
#include <span>

#include <rivulet/codec/passes.hpp>
#include <rivulet/codec/wire.hpp>

namespace rivulet {

/// Bytes of the codes of `range`. Tile by tile for most codecs: the sum over slices of
/// ceil(n / block) * block_bytes.
template <FragmentCodec C>
[[nodiscard]] std::size_t payload_bytes(C const& codec, fragment_layout const& layout,
                                        tile_range range) {
  if constexpr (Codec<C>) {
    return layout.byte_of(range.end()) - layout.byte_of(range.first);
  } else {
    return codec.message_bytes(layout.value_of(range.end()) - layout.value_of(range.first));
  }
}

/// Bytes of a message on the wire: header + payload.
template <FragmentCodec C>
[[nodiscard]] std::size_t message_bytes(C const& codec, fragment_layout const& layout,
                                        tile_range range) {
  return header_bytes + payload_bytes(codec, layout, range);
}

/// Checksum of a payload, independent of the order in which tiles are summed up.
template <FragmentCodec C>
[[nodiscard]] std::uint64_t payload_sum(C const& codec, fragment_layout const& layout,
                                        tile_range range, std::byte const* payload) {
  if constexpr (Codec<C>) {
    std::size_t const begin = layout.byte_of(range.first);
    std::uint64_t sum = 0;
    for (std::size_t i = range.first; i < range.end(); ++i) {
      tile_part const part = layout.tile(i);
      sum += pass::tile_sum(codec, part.count, payload + (part.byte - begin), part.byte - begin);
    }
    return sum;
  } else {
    return detail::mixed_sum(payload, payload_bytes(codec, layout, range));
  }
}

/// What an encoding needs beside the codec: memory for a codec that looks at whole messages.
template <FragmentCodec C>
struct message_encoder {
  void reserve(C const&, std::size_t) {}
};
template <MessageCodec C>
struct message_encoder<C> : C::encoder {};

/// How a message is encoded.
struct encode_options {
  nonfinite_policy policy = nonfinite_policy::reject;
  std::uint64_t key = 0;           ///< of random numbers: differs by seed, rank and step
  pass::remainder left_over = {};  ///< error feedback
};

/// Encodes the tiles of `range` behind the header whose place `message` begins with, completes the
/// header (payload bytes, checksums, flags) and writes it last. Returns the index of the parameter
/// in which NaN or infinity was found and rejected, or -1.
template <FragmentCodec C, class Source, Executor E>
int encode_message(C const& codec, message_encoder<C>& encoder, E const& executor,
                   Source const& source, fragment_layout const& layout, tile_range range,
                   encode_options options, wire_header header, std::span<std::byte> message) {
  pass::encode_totals totals;
  pass::encode_input<Source> const input{source, &layout, options.policy, options.left_over,
                                         &totals};
  std::byte* const payload = message.data() + header_bytes;
  if constexpr (Codec<C>) {
    executor.for_each_tile(range.count,
                           pass::encode<C, Source>{codec, input, range, payload, options.key});
  } else {
    std::size_t const first = layout.value_of(range.first);
    std::size_t const count = layout.value_of(range.end()) - first;
    encoder.begin(codec, count);
    for (std::size_t i = range.first; i < range.end(); ++i) {
      alignas(64) float values[codec::tile_values];
      tile_part const part = layout.tile(i);
      totals.source_sum += source.load(part, i, values);
      input.saturate(part, i, values);
      input.keep(part, values);
      encoder.offer(values, part.count);
    }
    encoder.finish(codec, payload);
    totals.payload_sum = detail::mixed_sum(payload, codec.message_bytes(count));
    if (options.left_over) {
      codec.accumulate(payload, count, 0, count, -1.0f, options.left_over.values + first);
    }
  }
  header.codec = codec::wire_id(codec);
  header.payload_bytes = payload_bytes(codec, layout, range);
  header.payload_sum = totals.payload_sum;
  header.outer_state += totals.source_sum;
  int parameter = -1;
  if (totals.nonfinite_tile != pass::encode_totals::none) {
    header.flags |= wire_header::rejected;
    parameter = static_cast<int>(layout.tile(totals.nonfinite_tile).from->parameter);
  }
  header.write(message.data());
  return parameter;
}

/// Checks the header and the checksum of `message`, the tiles of `range`, against `expected`: this
/// rank's own header of the same operation. Nothing but `message` is read. The payload of a sender
/// of weight 0 is not read: it is not decoded either.
template <FragmentCodec C>
[[nodiscard]] wire_check check_message(C const& codec, fragment_layout const& layout,
                                       tile_range range, std::span<std::byte const> message,
                                       wire_header const& expected) {
  if (message.size() != message_bytes(codec, layout, range)) return wire_check::length;
  wire_header const header = wire_header::read(message.data());
  if (header.magic != wire_header::expected_magic) return wire_check::magic;
  if (header.format != wire_header::expected_format) return wire_check::format;
  if (header.header_sum != header.compute_sum()) return wire_check::header_sum;
  if (header.payload_bytes != payload_bytes(codec, layout, range)) return wire_check::length;
  if (header.codec != codec::wire_id(codec)) return wire_check::codec;
  if (header.fragment != expected.fragment) return wire_check::fragment;
  if (header.part != expected.part) return wire_check::part;
  if (header.step != expected.step) return wire_check::step;
  if (header.version != expected.version) return wire_check::version;
  if (!detail::is_finite(header.weight) || header.weight < 0) return wire_check::weight;
  if (detail::bits_of(header.learning_rate) != detail::bits_of(expected.learning_rate)) {
    return wire_check::learning_rate;
  }
  if (header.outer_state != expected.outer_state) return wire_check::outer_state;
  if (header.weight > 0 && (header.flags & wire_header::rejected) == 0 &&
      header.payload_sum != payload_sum(codec, layout, range, message.data() + header_bytes)) {
    return wire_check::payload_sum;
  }
  return wire_check::good;
}

}  // namespace rivulet
