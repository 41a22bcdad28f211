#include <array>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/tensor_traits.hpp>

namespace {

/// A tensor type of a program that knows nothing of the library, with 16-bit elements of its own.
struct own_half {
  std::uint16_t bits;
};
struct own_tensor {
  std::vector<own_half> values;
  bool transposed = false;
};
struct unknown {};

}  // namespace

template <>
struct rivulet::element_traits<own_half> {
  static constexpr element_type value = element_type::float16;
};
template <>
struct rivulet::tensor_traits<own_tensor> {
  static constexpr bool is_view = false;
  static tensor_ref ref(own_tensor& tensor) {
    tensor_ref result = tensor_ref::of(tensor.values.data(), tensor.values.size());
    result.contiguous = !tensor.transposed;
    return result;
  }
};

namespace {

using rivulet::element_type;
using rivulet::memory_space;
using rivulet::tensor_ref;

static_assert(rivulet::Tensor<own_tensor>);
static_assert(rivulet::Tensor<own_tensor&>);
static_assert(rivulet::Tensor<own_tensor const&>, "cv and reference do not count");
static_assert(!rivulet::Tensor<unknown>);
static_assert(!rivulet::Tensor<float*>, "a pointer alone has no size");

TEST_CASE_TEMPLATE("tensor_ref: of takes pointer, size and element type", T, float, rivulet::bf16,
                   rivulet::fp16, own_half) {
  std::array<T, 3> values{};
  tensor_ref const ref = tensor_ref::of(values.data(), values.size());
  CHECK(ref.data == values.data());
  CHECK(ref.size == 3);
  CHECK(ref.element == rivulet::element_traits<T>::value);
  CHECK(ref.space == memory_space::host);
  CHECK(ref.contiguous);
  CHECK(tensor_ref::of(values.data(), 3, memory_space::cuda).space == memory_space::cuda);
}

TEST_CASE("tensor_traits: an own tensor type is known by its specialization") {
  own_tensor tensor{std::vector<own_half>(5)};
  tensor_ref const ref = rivulet::tensor_traits<own_tensor>::ref(tensor);
  CHECK(ref.data == tensor.values.data());
  CHECK(ref.size == 5);
  CHECK(ref.element == element_type::float16);
  CHECK(ref.contiguous);
  tensor.transposed = true;
  CHECK_FALSE(rivulet::tensor_traits<own_tensor>::ref(tensor).contiguous);
}

}  // namespace
