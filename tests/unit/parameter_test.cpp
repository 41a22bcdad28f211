#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/parameter.hpp>

namespace {

using rivulet::layer;
using rivulet::parameter_set;
using rivulet::precondition_error;
using rivulet::tensor_ref;

std::vector<std::string> names(parameter_set const& set) {
  std::vector<std::string> result;
  for (rivulet::parameter const& p : set.parameters()) result.push_back(p.name);
  return result;
}

TEST_CASE("parameter: a set keeps names, roles and tensors in the order of add") {
  std::vector<float> wte(6);
  std::vector<rivulet::bf16> attention(4);
  std::array<rivulet::fp16, 3> mlp{};
  std::vector<float> norm(2);
  float gain = 1;  // 0-dim
  parameter_set set;
  set.add("wte", rivulet::embedding, wte);
  set.add("h0.attention", layer(0), attention);
  set.add("h11.mlp", layer(11), std::span(mlp));  // a temporary view is welcome
  set.add("norm", rivulet::final_norm, norm.data(), norm.size(), false);
  set.add("gain", rivulet::head, &gain, 1);

  CHECK(names(set) == std::vector<std::string>{"wte", "h0.attention", "h11.mlp", "norm", "gain"});
  struct {
    rivulet::role where;
    void const* data;
    std::size_t size;
    rivulet::element_type element;
    bool trainable;
  } const expected[] = {
      {rivulet::embedding, wte.data(), 6, rivulet::element_type::float32, true},
      {layer(0), attention.data(), 4, rivulet::element_type::bfloat16, true},
      {layer(11), mlp.data(), 3, rivulet::element_type::float16, true},
      {rivulet::final_norm, norm.data(), 2, rivulet::element_type::float32, false},
      {rivulet::head, &gain, 1, rivulet::element_type::float32, true}};
  REQUIRE(set.size() == 5);
  for (std::size_t i = 0; i < set.size(); ++i) {
    CAPTURE(i);
    CHECK(set[i].where == expected[i].where);
    CHECK(set[i].tensor.data == expected[i].data);
    CHECK(set[i].tensor.size == expected[i].size);
    CHECK(set[i].tensor.element == expected[i].element);
    CHECK(set[i].trainable == expected[i].trainable);
    CHECK(set[i].synced() == expected[i].trainable);
    CHECK(set.find(set[i].name) == i);
  }
}

TEST_CASE("parameter: empty tensors are kept and never synced") {
  std::vector<float> empty;
  parameter_set set;
  set.add("a", layer(0), empty);
  set.add("b", layer(0), empty);  // two empty tensors share no memory
  set.add("c", layer(0), static_cast<float*>(nullptr), 0);
  REQUIRE(set.size() == 3);
  for (rivulet::parameter const& p : set.parameters()) CHECK_FALSE(p.synced());
}

TEST_CASE("parameter: a tied tensor is stored once under its first name") {
  std::vector<float> wte(6);
  std::vector<float> other(2);
  parameter_set set;
  set.add("wte", rivulet::embedding, wte);
  set.add("other", layer(0), other);
  set.add("head", rivulet::head, wte);
  set.add("head2", rivulet::head, wte.data(), wte.size());
  CHECK(names(set) == std::vector<std::string>{"wte", "other"});
  CHECK(set[0].where == rivulet::embedding);
  CHECK(set.find("head") == 0);
  CHECK(set.find("head2") == 0);
  CHECK(set.find("other") == 1);
}

TEST_CASE("parameter: the same address in another memory space is another tensor") {
  std::vector<float> values(4);
  parameter_set set;
  set.add("host", layer(0), values);
  set.add_ref("device", layer(0),
              tensor_ref::of(values.data(), values.size(), rivulet::memory_space::cuda));
  CHECK(set.size() == 2);
}

TEST_CASE("parameter: what add refuses, by text, and changes nothing") {
  std::vector<float> a(8);
  std::vector<float> b(8);
  std::vector<float> frozen(8);
  parameter_set set;
  set.add("a", layer(0), a);
  set.add("alias", layer(0), a);
  set.add("frozen", layer(0), frozen, false);
  tensor_ref strided = tensor_ref::of(b.data(), b.size());
  strided.contiguous = false;
  std::span const all_of_a(a);
  tensor_ref other_type = tensor_ref::of(a.data(), a.size());
  other_type.element = rivulet::element_type::bfloat16;

  struct {
    char const* name;
    rivulet::role where;
    tensor_ref tensor;
    bool trainable;
    char const* text;
  } const cases[] = {
      {"b", layer(0), strided, true,
       "rivulet: parameter 'b' is not contiguous; register a contiguous tensor"},
      {"b", layer(0), tensor_ref::of(static_cast<float*>(nullptr), 3), true,
       "rivulet: parameter 'b' has 3 elements at a null pointer"},
      {"", layer(0), tensor_ref::of(b.data(), 8), true, "rivulet: a parameter needs a name"},
      {"b", layer(-1), tensor_ref::of(b.data(), 8), true,
       "rivulet: parameter 'b': layer -1 must be from 0 to 999999"},
      {"a", layer(0), tensor_ref::of(b.data(), 8), true,
       "rivulet: parameter 'a' is in the set already"},
      {"alias", layer(0), tensor_ref::of(b.data(), 8), true,
       "rivulet: parameter 'alias' is in the set already"},
      {"b", layer(0), tensor_ref::of(all_of_a.subspan(7).data(), 1), true,
       "rivulet: parameter 'b' overlaps 'a' in part; tied parameters must have the same memory, "
       "size and type"},
      {"b", layer(0), tensor_ref::of(all_of_a.data(), 7), true,
       "rivulet: parameter 'b' overlaps 'a' in part; tied parameters must have the same memory, "
       "size and type"},
      {"b", layer(0), other_type, true,
       "rivulet: parameter 'b' overlaps 'a' in part; tied parameters must have the same memory, "
       "size and type"},
      {"b", layer(0), tensor_ref::of(a.data(), 8), false,
       "rivulet: parameter 'b' is tied to 'a', so both or neither must be trainable"},
      {"b", layer(0), tensor_ref::of(frozen.data(), 8), true,
       "rivulet: parameter 'b' is tied to 'frozen', so both or neither must be trainable"}};
  for (auto const& c : cases) {
    CHECK_THROWS_WITH_AS(set.add_ref(c.name, c.where, c.tensor, c.trainable), c.text,
                         precondition_error);
    CHECK(set.size() == 2);
  }
  CHECK_THROWS_AS((void)set.find("b"), precondition_error);  // no name was left behind
  set.add("b", layer(0), b);
  CHECK(set.size() == 3);
}

TEST_CASE("parameter: neighbours in memory do not overlap") {
  std::vector<float> values(8);
  std::span const all(values);
  parameter_set set;
  set.add("middle", layer(0), all.subspan(3, 2));
  set.add("left", layer(0), all.first(3));
  set.add("right", layer(0), all.subspan(5));
  CHECK(set.size() == 3);
}

TEST_CASE("parameter: a size may be any integer that is not negative") {
  float values[4] = {};
  parameter_set set;
  set.add("a", layer(0), values, 1);
  set.add("b", layer(0), values + 1, 3u, false);
  CHECK(set[0].tensor.size == 1);
  CHECK(set[0].trainable);
  CHECK(set[1].tensor.size == 3);
  CHECK_FALSE(set[1].trainable);
  CHECK_THROWS_WITH_AS(set.add("c", layer(0), values, -1),
                       "rivulet: parameter 'c': size -1 must not be negative", precondition_error);
}

TEST_CASE("parameter: find refuses an unknown name") {
  parameter_set const set;
  CHECK_THROWS_WITH_AS((void)set.find("x"), "rivulet: no parameter is named 'x'",
                       precondition_error);
}

TEST_CASE("parameter: rebind moves a parameter and its aliases") {
  std::vector<float> a(8);
  std::vector<float> moved(8);
  std::vector<float> b(8);
  parameter_set set;
  set.add("a", layer(0), a);
  set.add("alias", layer(0), a);
  set.add("b", layer(1), b);
  set.rebind("alias", moved);
  CHECK(set[set.find("a")].tensor.data == moved.data());
  CHECK(set[set.find("b")].tensor.data == b.data());
  set.rebind("a", std::span(moved));  // where it is already
  CHECK(set[0].tensor.data == moved.data());
}

TEST_CASE("parameter: what rebind refuses, by text, and changes nothing") {
  std::vector<float> a(8);
  std::vector<float> b(8);
  std::vector<float> longer(9);
  std::vector<rivulet::bf16> other_type(8);
  parameter_set set;
  set.add("a", layer(0), a);
  set.add("b", layer(1), b);
  std::span<float> const null{static_cast<float*>(nullptr), 0};

  CHECK_THROWS_WITH_AS(set.rebind("x", longer), "rivulet: no parameter is named 'x'",
                       precondition_error);
  CHECK_THROWS_WITH_AS(
      set.rebind("a", longer),
      "rivulet: rebind('a'): 9 elements of float32 cannot replace 8 of float32; size, "
      "element type and memory space must stay the same",
      precondition_error);
  CHECK_THROWS_WITH_AS(
      set.rebind("a", other_type),
      "rivulet: rebind('a'): 8 elements of bfloat16 cannot replace 8 of float32; size, "
      "element type and memory space must stay the same",
      precondition_error);
  CHECK_THROWS_WITH_AS(
      set.rebind("a", null),
      "rivulet: rebind('a'): 0 elements of float32 cannot replace 8 of float32; size, "
      "element type and memory space must stay the same",
      precondition_error);
  CHECK_THROWS_WITH_AS(set.rebind("a", b),
                       "rivulet: rebind('a'): the memory overlaps parameter 'b'",
                       precondition_error);
  CHECK(set[0].tensor.data == a.data());
}

}  // namespace
