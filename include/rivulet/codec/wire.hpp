#pragma once

/// \file
/// The wire format: a header before every encoded fragment. What a peer sends is not trusted: all
/// fields are checked before anything is applied.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <rivulet/codec/block_codec.hpp>

namespace rivulet {

/// Header of an encoded fragment: 80 bytes, little-endian, fields in this order and without gaps.
/// It is written last, when the payload is complete.
struct wire_header {
  static constexpr std::uint32_t expected_magic = 0x544c5652;  // "RVLT"
  static constexpr std::uint16_t expected_format = 1;
  static constexpr std::uint32_t rejected = 1;  ///< flag: the sender found NaN or infinity

  std::uint32_t magic = expected_magic;
  std::uint16_t format = expected_format;
  std::uint16_t codec = 0;  ///< C::id
  std::uint32_t fragment = 0;
  std::uint32_t flags = 0;
  std::int64_t step = 0;      ///< inner step of the send
  std::uint64_t version = 0;  ///< syncs that the sender had applied to the fragment
  double weight = 1;          ///< of the sender in the mean; 0 = receives only
  std::uint64_t payload_bytes = 0;
  std::uint64_t outer_state = 0;  ///< checksum of the sender's outer parameters: equal on all
  float learning_rate = 0;        ///< outer learning rate of this operation
  std::uint32_t reserved = 0;
  std::uint64_t payload_sum = 0;  ///< order-independent checksum of the payload
  std::uint64_t header_sum = 0;   ///< mixed sum of the 72 bytes before it

  /// Sum over the bytes before `header_sum`.
  [[nodiscard]] std::uint64_t compute_sum() const {
    std::byte bytes[sizeof(wire_header)];
    std::memcpy(bytes, this, sizeof bytes);
    return detail::mixed_sum(bytes, offsetof(wire_header, header_sum));
  }

  /// Seals the header and writes it to the first 80 bytes of `out`.
  void write(std::byte* out) {
    header_sum = compute_sum();
    std::memcpy(out, this, sizeof(wire_header));
  }

  /// Reads a header, valid or not.
  [[nodiscard]] static wire_header read(std::byte const* in) {
    wire_header header;
    std::memcpy(&header, in, sizeof header);
    return header;
  }
};

static_assert(sizeof(wire_header) == 80 && std::is_trivially_copyable_v<wire_header>);

/// Bytes of the header.
inline constexpr std::size_t header_bytes = sizeof(wire_header);

/// Whether a message is what this rank expects, and what is wrong if not.
enum class wire_check : std::uint8_t {
  good,
  length,
  magic,
  format,
  header_sum,
  codec,
  fragment,
  step,
  version,
  weight,
  learning_rate,
  outer_state,
  payload_sum
};

/// The field that failed, for messages.
[[nodiscard]] constexpr std::string_view to_string(wire_check check) {
  constexpr std::string_view names[] = {
      "good",
      "length",
      "magic",
      "format",
      "header checksum",
      "codec",
      "fragment",
      "step",
      "version",
      "weight",
      "outer learning rate",
      "checksum of the outer parameters (the replicas have diverged)",
      "payload checksum"};
  return names[static_cast<std::size_t>(check)];
}

/// Checks the header and the checksum of `message` against `expected`, this rank's own header of
/// the same operation, for a payload of `blocks` blocks. Nothing but `message` is read. The payload
/// of a sender of weight 0 is not read: it is not decoded either.
template <BlockCodec C>
[[nodiscard]] wire_check check_message(std::span<std::byte const> message,
                                       wire_header const& expected, std::size_t blocks) {
  std::size_t const payload_bytes = blocks * codec::block_bytes<C>;
  if (message.size() != header_bytes + payload_bytes) return wire_check::length;
  wire_header const header = wire_header::read(message.data());
  if (header.magic != wire_header::expected_magic) return wire_check::magic;
  if (header.format != wire_header::expected_format) return wire_check::format;
  if (header.header_sum != header.compute_sum()) return wire_check::header_sum;
  if (header.payload_bytes != payload_bytes) return wire_check::length;
  if (header.codec != C::id) return wire_check::codec;
  if (header.fragment != expected.fragment) return wire_check::fragment;
  if (header.step != expected.step) return wire_check::step;
  if (header.version != expected.version) return wire_check::version;
  if (!detail::is_finite(header.weight) || header.weight < 0) return wire_check::weight;
  if (detail::bits_of(header.learning_rate) != detail::bits_of(expected.learning_rate)) {
    return wire_check::learning_rate;
  }
  if (header.outer_state != expected.outer_state) return wire_check::outer_state;
  if (header.weight > 0 && (header.flags & wire_header::rejected) == 0 &&
      header.payload_sum != codec::detail::payload_sum<C>(message.data() + header_bytes, blocks)) {
    return wire_check::payload_sum;
  }
  return wire_check::good;
}

}  // namespace rivulet
