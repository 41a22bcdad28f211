#pragma once

/// \file
/// How the library sees a tensor, and the one hook that teaches it a new tensor type.

#include <concepts>
#include <cstddef>
#include <type_traits>

#include <rivulet/element.hpp>

namespace rivulet {

/// A tensor with its type erased: a pointer to `size` contiguous elements. It owns nothing.
struct tensor_ref {
  void* data = nullptr;
  std::size_t size = 0;  ///< number of elements, the product of the shape; 1 for a 0-dim tensor
  element_type element = element_type::float32;
  memory_space space = memory_space::host;
  bool contiguous = true;  ///< false is refused by parameter_set::add, which names the tensor

  /// The reference to `size` elements at `data`. `T` is float, bf16, fp16 or has element_traits.
  template <class T>
  [[nodiscard]] static tensor_ref of(T* data, std::size_t size,
                                     memory_space space = memory_space::host) {
    static_assert(!std::is_const_v<T>,
                  "rivulet: a parameter is written to, so its elements must not be const");
    static_assert(
        requires { element_traits<T>::value; },
        "rivulet: elements must be float, rivulet::bf16 or rivulet::fp16; for a 16-bit "
        "type of your own specialize rivulet::element_traits");
    return {data, size, element_traits<T>::value, space, true};
  }
};

/// The one hook: specialize it for a tensor type `T` (without const or reference).
///
///     template <> struct rivulet::tensor_traits<my_tensor> {
///       static constexpr bool is_view = false;        // true if copies share the memory
///       static tensor_ref ref(my_tensor& t) { return tensor_ref::of(t.data(), t.size()); }
///     };
template <class T>
struct tensor_traits;

/// A type with tensor_traits.
template <class T>
concept Tensor = requires(std::remove_cvref_t<T>& tensor) {
  { tensor_traits<std::remove_cvref_t<T>>::is_view } -> std::convertible_to<bool>;
  { tensor_traits<std::remove_cvref_t<T>>::ref(tensor) } -> std::same_as<tensor_ref>;
};

}  // namespace rivulet
