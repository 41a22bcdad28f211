#include <array>
#include <memory_resource>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>

namespace {

template <class T>
rivulet::tensor_ref ref_of(T& tensor) {
  return rivulet::tensor_traits<T>::ref(tensor);
}

TEST_CASE_TEMPLATE("adapters/standard: containers and spans of every element type", T, float,
                   rivulet::bf16, rivulet::fp16) {
  std::vector<T> vector(7);
  std::pmr::vector<T> pmr_vector(6);
  std::array<T, 5> array{};
  std::span<T> const span = std::span(vector).subspan(2);
  std::span<T, 4> const fixed = std::span(vector).template first<4>();
  auto dynamic_copy = span;
  auto fixed_copy = fixed;

  struct {
    rivulet::tensor_ref ref;
    void const* data;
    std::size_t size;
  } const cases[] = {{ref_of(vector), vector.data(), 7},
                     {ref_of(pmr_vector), pmr_vector.data(), 6},
                     {ref_of(array), array.data(), 5},
                     {ref_of(dynamic_copy), vector.data() + 2, 5},
                     {ref_of(fixed_copy), vector.data(), 4}};
  for (auto const& c : cases) {
    CAPTURE(c.size);
    CHECK(c.ref.data == c.data);
    CHECK(c.ref.size == c.size);
    CHECK(c.ref.element == rivulet::element_traits<T>::value);
    CHECK(c.ref.space == rivulet::memory_space::host);
    CHECK(c.ref.contiguous);
  }
}

TEST_CASE("adapters/standard: an empty vector is an empty tensor") {
  std::vector<float> empty;
  CHECK(ref_of(empty).size == 0);
}

// Owners must not be temporaries; spans may be.
static_assert(!rivulet::tensor_traits<std::vector<float>>::is_view);
static_assert(!rivulet::tensor_traits<std::array<float, 2>>::is_view);
static_assert(rivulet::tensor_traits<std::span<float>>::is_view);
static_assert(rivulet::tensor_traits<std::span<float, 2>>::is_view);
static_assert(!rivulet::Tensor<std::vector<std::vector<float>>*>);

}  // namespace
