#pragma once

/// \file
/// Tiles: the unit in which all passes work. A tile holds the codes of up to 4096 values of one
/// tensor: the codes of its blocks one after the other, then their scales. An encoded array or
/// fragment is a sequence of tiles, so every range of tiles is a range of bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <rivulet/codec/vector_blocks.hpp>
#include <rivulet/concepts.hpp>
#include <rivulet/detail/hash.hpp>

namespace rivulet::codec {

/// Values in a full tile; a multiple of every block size.
inline constexpr std::size_t tile_values = cut_elements;

/// Bytes of one encoded block.
template <BlockCodec C>
inline constexpr std::size_t block_bytes = C::code_bytes + C::scale_bytes;

/// Where an array lies; if beyond the caches, it is written past them.
enum class memory : bool { cached, uncached };

/// Values that a pass hands over at a time: few enough that the hardware reads ahead meanwhile, but
/// the 8 blocks that a kernel wants. A tile codec gets whole tiles.
template <class C>
inline constexpr std::size_t chunk_values = tile_values;
template <BlockCodec C>
inline constexpr std::size_t chunk_values<C> =
    (std::min)(tile_values, (std::max)(std::size_t{512}, 8 * C::block_size));

/// The id that stands in headers.
template <NamedCodec C>
[[nodiscard]] std::uint16_t wire_id(C const& codec) {
  if constexpr (requires { codec.wire_id(); }) return codec.wire_id();
  return C::id;
}

/// Hash of what the bytes of a codec depend on: equal on all workers.
template <class C>
[[nodiscard]] std::uint64_t fingerprint(C const& codec) {
  rivulet::detail::hash sum;
  if constexpr (NamedCodec<C>) sum.add(std::string_view(C::name)).add(std::uint64_t{C::id});
  if constexpr (BlockCodec<C>) sum.add(std::uint64_t{C::block_size});
  if constexpr (requires { codec.fingerprint(); }) sum.add(codec.fingerprint());
  return sum.value();
}

/// Throws precondition_error for options that break a rule, if the codec has any.
template <class C>
void check(C const& codec) {
  if constexpr (requires { codec.check(); }) codec.check();
}

/// Exact encoded size of a tile of `count` values, 0 to 4096. For a block codec
/// ceil(count / block_size) * block_bytes.
template <Codec C>
[[nodiscard]] constexpr std::size_t tile_bytes(C const& codec, std::size_t count) {
  if constexpr (TileCodec<C>) {
    return count == 0 ? 0 : codec.tile_bytes(count);
  } else {
    return (count + C::block_size - 1) / C::block_size * block_bytes<C>;
  }
}

/// Values [first, first + size) of a tile of `count`; `first` is a multiple of chunk_values.
struct chunk {
  std::size_t first;
  std::size_t size;
  std::size_t count;

  /// The whole tile.
  explicit constexpr chunk(std::size_t all) : chunk(0, all, all) {}
  constexpr chunk(std::size_t begin, std::size_t length, std::size_t all)
      : first(begin), size(length), count(all) {}
};

namespace detail {

/// Where the blocks of a chunk lie in a tile.
template <BlockCodec C>
struct chunk_blocks {
  std::size_t whole;    ///< blocks
  std::size_t rest;     ///< values of the last block, if it is not whole
  block_places places;  ///< from the beginning of the tile

  explicit constexpr chunk_blocks(chunk const& part)
      : whole(part.size / C::block_size),
        rest(part.size % C::block_size),
        places{part.first / C::block_size * C::code_bytes,
               (part.count + C::block_size - 1) / C::block_size * C::code_bytes +
                   part.first / C::block_size * C::scale_bytes} {}

  /// Where the last block lies.
  [[nodiscard]] constexpr block_places tail() const {
    return {places.codes + whole * C::code_bytes, places.scales + whole * C::scale_bytes};
  }
};

}  // namespace detail

/// Encodes a chunk of a tile into the tile's tile_bytes(codec, count) bytes at `out`. Equal input
/// gives equal bytes: a tail is padded with zeros. `key` belongs to the tile. Returns true only if
/// all values are finite; it may be false without a reason.
template <Codec C>
bool encode_chunk(C const& codec, float const* values, chunk part, std::byte* out,
                  std::uint64_t key, memory where = memory::cached, read_ahead const& ahead = {}) {
  if constexpr (TileCodec<C>) {
    codec.encode_tile(values, part.count, out, key);
    return false;
  } else {
    detail::chunk_blocks<C> const b(part);
    bool const finite =
        detail::encode_blocks(codec, values, b.whole, out + b.places.codes, out + b.places.scales,
                              where == memory::uncached, ahead);
    if (b.rest == 0) return finite;
    float padded[C::block_size] = {};
    for (std::size_t i = 0; i < b.rest; ++i) padded[i] = values[b.whole * C::block_size + i];
    codec.encode_block(padded, out + b.tail().codes, out + b.tail().scales);
    return false;
  }
}

/// sums[i] <- fma(value_i, scale * weight, sums[i]) for the decoded values of a chunk of each
/// sender in order, whose tile begins `offset` bytes into its bytes. Any bytes decode to something.
template <Codec C>
void accumulate_chunk(C const& codec, std::span<weighted_codes const> senders, std::size_t offset,
                      chunk part, float* sums) {
  if constexpr (TileCodec<C>) {
    for (weighted_codes const& sender : senders) {
      codec.accumulate_tile(sender.bytes.data() + offset, part.count, sender.weight, sums);
    }
  } else {
    detail::chunk_blocks<C> const b(part);
    detail::accumulate_blocks(codec, senders, b.places.from(offset), b.whole, sums);
    if (b.rest == 0) return;
    float* const tail = sums + b.whole * C::block_size;
    float padded[C::block_size] = {};
    for (std::size_t i = 0; i < b.rest; ++i) padded[i] = tail[i];
    detail::accumulate_blocks(codec, senders, b.tail().from(offset), 1, padded);
    for (std::size_t i = 0; i < b.rest; ++i) tail[i] = padded[i];
  }
}

/// values[i] <- fma(value_i, scale, 0) for a tile.
template <Codec C>
void decode_tile(C const& codec, std::byte const* in, std::size_t count, float* values,
                 memory where = memory::cached) {
  if constexpr (TileCodec<C>) {
    for (std::size_t i = 0; i < count; ++i) values[i] = 0.0f;
    codec.accumulate_tile(in, count, 1.0f, values);
  } else {
    detail::chunk_blocks<C> const b{chunk(count)};
    detail::decode_blocks(codec, in + b.places.codes, in + b.places.scales, b.whole, values,
                          where == memory::uncached);
    if (b.rest == 0) return;
    float padded[C::block_size];
    detail::decode_blocks(codec, in + b.tail().codes, in + b.tail().scales, 1, padded, false);
    for (std::size_t i = 0; i < b.rest; ++i) values[b.whole * C::block_size + i] = padded[i];
  }
}

}  // namespace rivulet::codec
