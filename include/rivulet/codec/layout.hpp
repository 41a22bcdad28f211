#pragma once

/// \file
/// Fragments as codecs and passes see them: a sequence of tiles over the memory of the model.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <rivulet/codec/tile.hpp>
#include <rivulet/fragment.hpp>

namespace rivulet {

/// A slice with what a kernel needs.
struct bound_slice {
  std::byte* local;  ///< first element of the slice in the model
  element_type element;
  std::size_t parameter;
  std::size_t offset;  ///< first element of the slice in its parameter
  std::size_t values;
  std::size_t first_value;  ///< index in the fragment
  std::size_t first_tile;
  std::size_t first_byte;  ///< of its codes in the encoded fragment
};

/// The part of a slice that one tile covers, or a chunk of it.
struct tile_part {
  bound_slice const* from;
  std::size_t begin;   ///< first value, counted in the slice
  std::size_t count;   ///< 1 .. 4096
  std::size_t byte;    ///< where the codes of its tile begin in the encoded fragment
  std::size_t tile;    ///< first value of the tile, counted in the slice
  std::size_t values;  ///< of the tile

  /// Index of the first value in the fragment.
  [[nodiscard]] std::size_t first() const { return from->first_value + begin; }
  /// The values from number `at` of this tile on, at most `size`.
  [[nodiscard]] tile_part chunk(std::size_t at, std::size_t size) const {
    tile_part part = *this;
    part.begin = tile + at;
    part.count = (std::min)(size, values - at);
    return part;
  }
  [[nodiscard]] codec::chunk in_tile() const { return {begin - tile, count, values}; }
};

/// Tiles [first, first + count) of a fragment.
struct tile_range {
  std::size_t first = 0;
  std::size_t count = 0;

  [[nodiscard]] std::size_t end() const { return first + count; }
};

/// A fragment laid out for a codec: where the values, tiles and codes of each slice begin. A codec
/// that codes a message as a whole instead of tile by tile has no codes per tile.
class fragment_layout {
 public:
  /// The layout for what workers send by `codec` and, if another codec codes the means, mean() for
  /// that. Throws as below.
  template <class C, class M>
  fragment_layout(fragment const& f, parameter_set const& parameters, C const& codec,
                  M const& mean_codec)
      : fragment_layout(f, parameters, codec) {
    if constexpr (!std::is_same_v<C, M> || TileCodec<C>) {
      mean_.emplace_back(f, parameters, mean_codec);
    }
  }

  /// The layout of `f` for `codec`. Throws precondition_error for a parameter in device memory.
  template <class C>
  fragment_layout(fragment const& f, parameter_set const& parameters, C const& codec) {
    if constexpr (Codec<C>) tile_bytes_ = codec::tile_bytes(codec, codec::tile_values);
    for (slice const& part : f.slices) {
      parameter const& p = parameters[part.parameter];
      detail::require(p.tensor.space == memory_space::host, "parameter '", p.name,
                      "' lies in device memory, which these passes do not reach");
      slices_.push_back({nullptr, p.tensor.element, part.parameter, part.offset, part.size, values_,
                         tiles_, bytes_});
      std::size_t const whole = part.size / codec::tile_values;
      std::size_t const rest = part.size % codec::tile_values;
      values_ += part.size;
      tiles_ += whole + (rest > 0 ? 1 : 0);
      bytes_ += whole * tile_bytes_;
      if constexpr (Codec<C>) bytes_ += codec::tile_bytes(codec, rest);
    }
    bind(parameters);
  }

  /// Looks up where the parameters lie now.
  void bind(parameter_set const& parameters) {
    for (bound_slice& r : slices_) {
      tensor_ref const& tensor = parameters[r.parameter].tensor;
      r.local = static_cast<std::byte*>(tensor.data) + r.offset * size_of(tensor.element);
    }
    for (fragment_layout& mean : mean_) mean.bind(parameters);
  }

  /// The layout for the codec of the means.
  [[nodiscard]] fragment_layout const& mean() const {
    return mean_.empty() ? *this : mean_.front();
  }

  [[nodiscard]] tile_part tile(std::size_t index) const {
    std::size_t low = 0;
    std::size_t high = slices_.size();
    while (high - low > 1) {
      std::size_t const middle = (low + high) / 2;
      (slices_[middle].first_tile <= index ? low : high) = middle;
    }
    bound_slice const& r = slices_[low];
    std::size_t const number = index - r.first_tile;
    std::size_t const begin = number * codec::tile_values;
    std::size_t const count = (std::min)(codec::tile_values, r.values - begin);
    return {&r, begin, count, r.first_byte + number * tile_bytes_, begin, count};
  }

  /// Where the codes of tile `index`, or of what follows the last one, begin.
  [[nodiscard]] std::size_t byte_of(std::size_t index) const {
    return index < tiles_ ? tile(index).byte : bytes_;
  }
  /// Index of the first value of tile `index`, or of what follows the last one.
  [[nodiscard]] std::size_t value_of(std::size_t index) const {
    return index < tiles_ ? tile(index).first() : values_;
  }

  [[nodiscard]] tile_range all() const { return {0, tiles_}; }
  /// Part `index` of `parts` nearly equal ones.
  [[nodiscard]] tile_range shard(int index, int parts) const {
    auto const n = static_cast<std::size_t>(parts);
    auto const i = static_cast<std::size_t>(index);
    std::size_t const first = tiles_ * i / n;
    return {first, tiles_ * (i + 1) / n - first};
  }

  [[nodiscard]] std::span<bound_slice const> slices() const { return slices_; }
  [[nodiscard]] std::size_t values() const { return values_; }
  [[nodiscard]] std::size_t tiles() const { return tiles_; }

 private:
  std::vector<bound_slice> slices_;
  std::vector<fragment_layout> mean_;  // one or none
  std::size_t tile_bytes_ = 0;
  std::size_t values_ = 0;
  std::size_t tiles_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace rivulet
