#pragma once

/// \file
/// The parameters of a model, erased to names, roles and pointers.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <rivulet/error.hpp>
#include <rivulet/tensor_traits.hpp>

namespace rivulet {

/// What a parameter is in the model; partitioners that follow the layers read it.
struct role {
  enum class kind : std::uint8_t { embedding, layer, final_norm, head };
  kind what = kind::layer;
  int index = 0;  ///< layer number from 0; 0 for the other kinds

  friend constexpr bool operator==(role const&, role const&) = default;
};

inline constexpr role embedding{role::kind::embedding};
inline constexpr role final_norm{role::kind::final_norm};
inline constexpr role head{role::kind::head};

/// The role of a parameter in transformer block `index` (from 0).
[[nodiscard]] constexpr role layer(int index) { return {role::kind::layer, index}; }

/// One parameter, stored once however many names it has.
struct parameter {
  std::string name;
  role where;
  tensor_ref tensor;
  bool trainable = true;

  /// Takes part in synchronization: trainable and not empty.
  [[nodiscard]] bool synced() const { return trainable && tensor.size > 0; }
};

namespace detail {

/// A type of sizes; with bool, `add(name, role, pointer, true)` would pass for one element.
template <class T>
concept Count = std::integral<T> && !std::same_as<T, bool>;

}  // namespace detail

/// The parameters that the inner optimizer updates, in the order of `add`, which must be the same
/// on all workers. Register FP32 master weights where the optimizer has them. The set refers to the
/// tensors: they must outlive it, and it must outlive the engines built on it.
class parameter_set {
 public:
  /// Adds a tensor (any type with tensor_traits) under a new name. Frozen parameters
  /// (`trainable = false`) and empty tensors are kept in the set and never sent. A tensor whose
  /// memory is already in the set is tied to it: the new name becomes an alias, the values are
  /// synchronized once.
  ///
  /// Throws precondition_error for an empty or repeated name, a null pointer, a negative layer, a
  /// tensor that is not contiguous, memory that overlaps another parameter in part, or a tie
  /// between a trainable and a frozen parameter.
  template <class T>
  void add(std::string_view name, role where, T&& tensor, bool trainable = true) {
    add_ref(name, where, checked_ref(std::forward<T>(tensor)), trainable);
  }

  /// Adds `size` host elements at `data`. Throws precondition_error for a negative size, too.
  template <class T, detail::Count Size>
  void add(std::string_view name, role where, T* data, Size size, bool trainable = true) {
    detail::require(std::cmp_greater_equal(size, 0), "parameter '", name, "': size ", size,
                    " must not be negative");
    add_ref(name, where, tensor_ref::of(data, static_cast<std::size_t>(size)), trainable);
  }

  /// Adds what an erased reference names.
  void add_ref(std::string_view name, role where, tensor_ref tensor, bool trainable = true) {
    check(name, tensor);
    detail::require(!name.empty(), "a parameter needs a name");
    detail::require(where.index >= 0 && where.index < 1'000'000, "parameter '", name, "': layer ",
                    where.index, " must be from 0 to 999999");
    for (auto const& [known, index] : names_) {
      detail::require(known != name, "parameter '", name, "' is in the set already");
    }
    std::size_t index = parameters_.size();
    for (std::size_t other = 0; other < parameters_.size(); ++other) {
      parameter const& known = parameters_[other];
      if (!overlap(tensor, known.tensor)) continue;
      bool const same = tensor.data == known.tensor.data && tensor.size == known.tensor.size &&
                        tensor.element == known.tensor.element;
      detail::require(same, "parameter '", name, "' overlaps '", known.name,
                      "' in part; tied parameters must have the same memory, size and type");
      detail::require(trainable == known.trainable, "parameter '", name, "' is tied to '",
                      known.name, "', so both or neither must be trainable");
      index = other;
    }
    names_.emplace_back(name, index);
    if (index == parameters_.size()) {
      parameters_.push_back({std::string(name), where, tensor, trainable});
    }
  }

  /// Points a name (and what is tied to it) at memory that has moved; same size and element type.
  /// Call it between steps. Throws precondition_error for an unknown name, another size or type,
  /// or memory that overlaps another parameter.
  template <class T>
  void rebind(std::string_view name, T&& tensor) {
    tensor_ref const moved = checked_ref(std::forward<T>(tensor));
    check(name, moved);
    std::size_t const index = find(name);
    tensor_ref& bound = parameters_[index].tensor;
    detail::require(
        moved.size == bound.size && moved.element == bound.element && moved.space == bound.space,
        "rebind('", name, "'): ", moved.size, " elements of ", to_string(moved.element),
        " cannot replace ", bound.size, " of ", to_string(bound.element),
        "; size, element type and memory space must stay the same");
    for (std::size_t other = 0; other < parameters_.size(); ++other) {
      detail::require(other == index || !overlap(moved, parameters_[other].tensor), "rebind('",
                      name, "'): the memory overlaps parameter '", parameters_[other].name, "'");
    }
    bound = moved;
  }

  /// Index of the parameter that a name or alias refers to; throws precondition_error if none.
  [[nodiscard]] std::size_t find(std::string_view name) const {
    for (auto const& [known, index] : names_) {
      if (known == name) return index;
    }
    throw precondition_error(detail::concat("rivulet: no parameter is named '", name, "'"));
  }

  [[nodiscard]] std::size_t size() const { return parameters_.size(); }
  [[nodiscard]] parameter const& operator[](std::size_t index) const { return parameters_[index]; }
  [[nodiscard]] std::vector<parameter> const& parameters() const { return parameters_; }

 private:
  template <class T>
  static tensor_ref checked_ref(T&& tensor) {
    using type = std::remove_cvref_t<T>;
    static_assert(Tensor<type>,
                  "rivulet: this type is not known as a tensor; specialize "
                  "rivulet::tensor_traits<T> for it, or pass a pointer and a size");
    if constexpr (Tensor<type>) {
      static_assert(!std::is_const_v<std::remove_reference_t<T>> || tensor_traits<type>::is_view,
                    "rivulet: a parameter is written to, so the tensor must not be const");
      static_assert(std::is_lvalue_reference_v<T> || tensor_traits<type>::is_view,
                    "rivulet: an owning temporary would be gone before the first step; keep the "
                    "tensor in a variable and pass that");
      return tensor_traits<type>::ref(tensor);
    } else {
      return {};
    }
  }

  static void check(std::string_view name, tensor_ref const& tensor) {
    detail::require(tensor.contiguous, "parameter '", name,
                    "' is not contiguous; register a contiguous tensor");
    detail::require(tensor.size <= PTRDIFF_MAX / size_of(tensor.element), "parameter '", name,
                    "' cannot have ", tensor.size, " elements");
    detail::require(tensor.data != nullptr || tensor.size == 0, "parameter '", name, "' has ",
                    tensor.size, " elements at a null pointer");
  }

  static bool overlap(tensor_ref const& a, tensor_ref const& b) {
    if (a.size == 0 || b.size == 0 || a.space != b.space) return false;
    auto begin = [](tensor_ref const& t) { return reinterpret_cast<std::uintptr_t>(t.data); };
    auto end = [&](tensor_ref const& t) { return begin(t) + t.size * size_of(t.element); };
    return begin(a) < end(b) && begin(b) < end(a);
  }

  std::vector<parameter> parameters_;
  std::vector<std::pair<std::string, std::size_t>> names_;  // every name and alias
};

}  // namespace rivulet
