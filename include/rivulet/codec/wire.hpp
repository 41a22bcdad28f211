#pragma once

/// \file
/// The wire format: a header before every encoded fragment. What a peer sends is not trusted: all
/// fields are checked before anything is applied.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include <rivulet/detail/hash.hpp>

namespace rivulet {

/// Header of an encoded fragment: 80 bytes, little-endian, fields in this order and without gaps.
/// It is written last, when the payload is complete.
struct wire_header {
  static constexpr std::uint32_t expected_magic = 0x544c5652;  // "RVLT"
  static constexpr std::uint16_t expected_format = 1;
  static constexpr std::uint32_t rejected = 1;   ///< flag: the sender found NaN or infinity
  static constexpr std::uint32_t no_weight = 2;  ///< flag: there was nothing to average

  std::uint32_t magic = expected_magic;
  std::uint16_t format = expected_format;
  std::uint16_t codec = 0;  ///< C::id
  std::uint32_t fragment = 0;
  std::uint32_t flags = 0;    ///< the two above; from bit 8 on 1 + the rank that rejected, in a
                              ///< mean that was not formed
  std::int64_t step = 0;      ///< inner step of the send
  std::uint64_t version = 0;  ///< syncs that the sender had applied to the fragment
  double weight = 1;          ///< of the sender in the mean; 0 = receives only
  std::uint64_t payload_bytes = 0;
  std::uint64_t outer_state = 0;  ///< checksum of the sender's outer parameters: equal on all
  float learning_rate = 0;        ///< outer learning rate of this operation
  std::uint32_t part = 0;         ///< 0: the whole fragment; see reduce::all_to_all_mean
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
  part,
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
      "part of the fragment",
      "step",
      "version",
      "weight",
      "outer learning rate",
      "checksum of the outer parameters (the replicas have diverged)",
      "payload checksum"};
  return names[static_cast<std::size_t>(check)];
}

}  // namespace rivulet
