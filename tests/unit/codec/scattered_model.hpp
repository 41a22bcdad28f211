#pragma once

/// \file
/// A model whose fragment has every awkward slice, and the passes over it done the naive way.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/array.hpp>
#include <rivulet/codec/layout.hpp>

#include "contract/codec_tools.hpp"

namespace rivulet_test {

/// Six tensors of three element types, and a fragment of some of their slices: whole tensors of odd
/// sizes, pieces of cut ones, out of order. Tensor 3 and the other pieces are none of its business.
struct scattered_model {
  std::vector<float> a = normal_values(10001, 1);
  std::vector<rivulet::bf16> b = narrowed<rivulet::bf16>(normal_values(4097, 2));
  std::vector<rivulet::fp16> c = narrowed<rivulet::fp16>(normal_values(12288, 3));
  std::vector<float> other = normal_values(100, 4);
  std::vector<float> d = normal_values(1, 5);
  std::vector<rivulet::bf16> e = narrowed<rivulet::bf16>(normal_values(333, 6));
  rivulet::parameter_set params;
  rivulet::fragment fragment{
      "f",
      {{4, 0, 1}, {0, 4096, 5905}, {2, 4096, 4096}, {1, 0, 4097}, {5, 0, 333}, {2, 8192, 4096}}};

  scattered_model() {
    params.add("a", rivulet::layer(0), a);
    params.add("b", rivulet::layer(1), b);
    params.add("c", rivulet::layer(2), c);
    params.add("other", rivulet::layer(3), other);
    params.add("d", rivulet::layer(4), d);
    params.add("e", rivulet::layer(5), e);
  }
  scattered_model(scattered_model const&) = delete;
  scattered_model& operator=(scattered_model const&) = delete;

  template <class T>
  static std::vector<T> narrowed(std::vector<float> const& values) {
    std::vector<T> result;
    for (float const value : values) result.push_back(rivulet::from_float<T>(value));
    return result;
  }

  template <class C>
  [[nodiscard]] rivulet::fragment_layout layout(C const& codec) const {
    return {fragment, params, codec};
  }

  /// The bits of all tensors.
  [[nodiscard]] std::vector<std::byte> bits() const {
    std::vector<std::byte> result;
    for (rivulet::parameter const& p : params.parameters()) {
      auto const* const first = static_cast<std::byte const*>(p.tensor.data);
      result.insert(result.end(), first, first + p.tensor.size * size_of(p.tensor.element));
    }
    return result;
  }

  /// Calls f(parameter, index in it, index in the fragment) for each value of the fragment.
  template <class F>
  void for_each_value(F const& f) const {
    std::size_t at = 0;
    for (rivulet::slice const& s : fragment.slices) {
      for (std::size_t i = 0; i < s.size; ++i) f(params[s.parameter], s.offset + i, at++);
    }
  }
};

/// Element `i` of a parameter, and how a value is stored there.
inline float load(rivulet::parameter const& p, std::size_t i) {
  float result = 0;
  rivulet::detail::visit_element(p.tensor.element, [&](auto* type) {
    result = rivulet::to_float(static_cast<decltype(type)>(p.tensor.data)[i]);
  });
  return result;
}
inline void store(rivulet::parameter const& p, std::size_t i, float value) {
  rivulet::detail::visit_element(p.tensor.element, [&](auto* type) {
    static_cast<decltype(type)>(p.tensor.data)[i] =
        rivulet::from_float<std::remove_pointer_t<decltype(type)>>(value);
  });
}
inline float stored(rivulet::parameter const& p, float value) {
  float result = 0;
  rivulet::detail::visit_element(p.tensor.element, [&](auto* type) {
    result = rivulet::to_float(rivulet::from_float<std::remove_pointer_t<decltype(type)>>(value));
  });
  return result;
}

/// Theta - theta, value by value.
inline std::vector<float> outer_gradient_of(scattered_model const& m,
                                            std::span<float const> theta) {
  std::vector<float> result(theta.size());
  m.for_each_value([&](rivulet::parameter const& p, std::size_t i, std::size_t at) {
    result[at] = stored(p, theta[at]) - load(p, i);
  });
  return result;
}

/// The values of the fragment as they are.
inline std::vector<float> values_of(scattered_model const& m) {
  std::vector<float> result(m.fragment.size());
  m.for_each_value(
      [&](rivulet::parameter const& p, std::size_t i, std::size_t at) { result[at] = load(p, i); });
  return result;
}

/// The payload of a fragment: its slices as arrays, one after the other.
template <rivulet::Codec C>
std::vector<std::byte> payload_of(rivulet::fragment const& f, std::span<float const> values,
                                  C const& codec) {
  std::vector<std::byte> result;
  std::size_t first = 0;
  for (rivulet::slice const& s : f.slices) {
    std::vector<std::byte> const part = encoded(codec, values.subspan(first, s.size));
    result.insert(result.end(), part.begin(), part.end());
    first += s.size;
  }
  return result;
}

/// The weighted sum of payloads, slice by slice.
template <rivulet::Codec C>
std::vector<float> sum_of(rivulet::fragment const& f,
                          std::span<rivulet::codec::weighted_codes const> senders, C const& codec) {
  std::vector<float> result(f.size());
  std::size_t first = 0;
  std::size_t byte = 0;
  for (rivulet::slice const& s : f.slices) {
    std::size_t const bytes = rivulet::codec::encoded_bytes(codec, s.size);
    for (rivulet::codec::weighted_codes const& sender : senders) {
      rivulet::codec::accumulate(codec, sender.bytes.subspan(byte, bytes), sender.weight,
                                 std::span(result).subspan(first, s.size));
    }
    first += s.size;
    byte += bytes;
  }
  return result;
}

/// What a payload decodes to.
template <rivulet::Codec C>
std::vector<float> values_in(rivulet::fragment const& f, std::span<std::byte const> payload,
                             C const& codec) {
  rivulet::codec::weighted_codes const sender{payload, 1.0f};
  return sum_of(f, std::span(&sender, 1), codec);
}

/// Runs the tiles from the last to the first: the order must not matter.
struct backwards {
  template <class F>
  void for_each_tile(std::size_t tiles, F const& tile) const {
    for (std::size_t i = tiles; i-- > 0;) tile(i);
  }
};

inline bool same_bits(std::span<float const> a, std::span<float const> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace rivulet_test
