#pragma once

/// \file
/// Whole arrays through a block codec. The layout of n values in B = ceil(n / block_size) blocks is
/// two arrays: the codes of all blocks (B * code_bytes), then their scales (B * scale_bytes). Codes
/// come first because they need the wider alignment.

#include <cstddef>
#include <cstdint>
#include <span>

#include <rivulet/concepts.hpp>
#include <rivulet/detail/hash.hpp>

namespace rivulet::codec {

/// Bytes of one encoded block.
template <BlockCodec C>
inline constexpr std::size_t block_bytes = C::code_bytes + C::scale_bytes;

/// Number of blocks that `values` values take.
template <BlockCodec C>
[[nodiscard]] constexpr std::size_t blocks(std::size_t values) {
  return (values + C::block_size - 1) / C::block_size;
}

/// Exact encoded size of `values` contiguous values: ceil(values / block_size) * block_bytes.
template <BlockCodec C>
[[nodiscard]] constexpr std::size_t encoded_bytes(std::size_t values) {
  return blocks<C>(values) * block_bytes<C>;
}

namespace detail {

/// What block number `index` adds to the checksum of its payload.
template <BlockCodec C>
[[nodiscard]] std::uint64_t block_sum(std::byte const* codes, std::byte const* scale,
                                      std::size_t index) {
  constexpr std::size_t code_words = (C::code_bytes + 7) / 8;
  constexpr std::size_t scale_words = (C::scale_bytes + 7) / 8;
  std::size_t const first = index * (code_words + scale_words);
  return rivulet::detail::mixed_sum(codes, C::code_bytes, first) +
         rivulet::detail::mixed_sum(scale, C::scale_bytes, first + code_words);
}

/// Checksum of a payload of `count` blocks: what the encoder summed up block by block.
template <BlockCodec C>
[[nodiscard]] std::uint64_t payload_sum(std::byte const* payload, std::size_t count) {
  std::byte const* const scales = payload + count * C::code_bytes;
  std::uint64_t sum = 0;
  for (std::size_t b = 0; b < count; ++b) {
    sum += block_sum<C>(payload + b * C::code_bytes, scales + b * C::scale_bytes, b);
  }
  return sum;
}

}  // namespace detail

/// Encodes `values` into `out`.
/// Throws precondition_error unless out.size() is encoded_bytes<C>(values.size()).
template <BlockCodec C>
void encode(C const& codec, std::span<float const> values, std::span<std::byte> out) {
  rivulet::detail::require(out.size() == encoded_bytes<C>(values.size()), "encode: ", values.size(),
                           " values need ", encoded_bytes<C>(values.size()), " bytes, not ",
                           out.size());
  std::size_t const count = blocks<C>(values.size());
  std::byte* const scales = out.data() + count * C::code_bytes;
  for (std::size_t b = 0; b < count; ++b) {
    std::size_t const first = b * C::block_size;
    std::byte* const codes = out.data() + b * C::code_bytes;
    std::byte* const scale = scales + b * C::scale_bytes;
    if (first + C::block_size <= values.size()) {
      codec.encode_block(values.data() + first, codes, scale);
    } else {
      float padded[C::block_size] = {};
      for (std::size_t i = first; i < values.size(); ++i) padded[i - first] = values[i];
      codec.encode_block(padded, codes, scale);
    }
  }
}

/// sums[i] <- fma(value_i, scale * weight, sums[i]) for the decoded values.
/// Throws precondition_error unless in.size() is encoded_bytes<C>(sums.size()).
template <BlockCodec C>
void accumulate(C const& codec, std::span<std::byte const> in, float weight,
                std::span<float> sums) {
  rivulet::detail::require(in.size() == encoded_bytes<C>(sums.size()), "decode: ", sums.size(),
                           " values take ", encoded_bytes<C>(sums.size()), " bytes, not ",
                           in.size());
  std::size_t const count = blocks<C>(sums.size());
  std::byte const* const scales = in.data() + count * C::code_bytes;
  for (std::size_t b = 0; b < count; ++b) {
    std::size_t const first = b * C::block_size;
    std::byte const* const codes = in.data() + b * C::code_bytes;
    std::byte const* const scale = scales + b * C::scale_bytes;
    if (first + C::block_size <= sums.size()) {
      codec.accumulate_block(codes, scale, weight, sums.data() + first);
    } else {
      float padded[C::block_size] = {};
      for (std::size_t i = first; i < sums.size(); ++i) padded[i - first] = sums[i];
      codec.accumulate_block(codes, scale, weight, padded);
      for (std::size_t i = first; i < sums.size(); ++i) sums[i] = padded[i - first];
    }
  }
}

/// Decodes to `values`; throws as accumulate does.
template <BlockCodec C>
void decode(C const& codec, std::span<std::byte const> in, std::span<float> values) {
  for (float& value : values) value = 0.0f;
  accumulate(codec, in, 1.0f, values);
}

}  // namespace rivulet::codec
