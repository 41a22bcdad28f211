#pragma once

/// \file
/// Standard containers and spans as tensors.

#include <array>
#include <span>
#include <vector>

#include <rivulet/tensor_traits.hpp>

namespace rivulet {

/// A vector owns its elements: it must neither move nor grow while an engine uses it.
template <class T, class Allocator>
struct tensor_traits<std::vector<T, Allocator>> {
  static constexpr bool is_view = false;
  static tensor_ref ref(std::vector<T, Allocator>& tensor) {
    return tensor_ref::of(tensor.data(), tensor.size());
  }
};

/// An array owns its elements.
template <class T, std::size_t Size>
struct tensor_traits<std::array<T, Size>> {
  static constexpr bool is_view = false;
  static tensor_ref ref(std::array<T, Size>& tensor) { return tensor_ref::of(tensor.data(), Size); }
};

/// A span is a view: a temporary one is welcome.
template <class T, std::size_t Extent>
struct tensor_traits<std::span<T, Extent>> {
  static constexpr bool is_view = true;
  static tensor_ref ref(std::span<T, Extent> const& tensor) {
    return tensor_ref::of(tensor.data(), tensor.size());
  }
};

static_assert(Tensor<std::vector<float>>);
static_assert(Tensor<std::array<bf16, 3>>);
static_assert(Tensor<std::span<fp16>>);
static_assert(!Tensor<int>);

}  // namespace rivulet
