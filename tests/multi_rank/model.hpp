#pragma once

/// \file
/// A model for tests: tensors of several element types, and an inner step that is a function of
/// (seed, rank, step, index) alone.

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rivulet/rivulet.hpp>

namespace rivulet_test {

/// A tensor type of the tests' own, whose element type is chosen at run time.
class tensor {
 public:
  tensor(rivulet::element_type element, std::size_t size)
      : element_(element), size_(size), bytes_(size * rivulet::size_of(element)) {}

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] rivulet::element_type element() const { return element_; }
  [[nodiscard]] std::byte* data() { return bytes_.data(); }
  [[nodiscard]] std::span<std::byte const> bytes() const { return bytes_; }

  [[nodiscard]] float get(std::size_t i) const {
    float result = 0;
    rivulet::detail::visit_element(element_, [&](auto* type) {
      std::remove_pointer_t<decltype(type)> value;
      std::memcpy(&value, bytes_.data() + i * sizeof value, sizeof value);
      result = rivulet::to_float(value);
    });
    return result;
  }
  /// Rounds to the element type.
  void set(std::size_t i, float value) {
    rivulet::detail::visit_element(element_, [&](auto* type) {
      auto const rounded = rivulet::from_float<std::remove_pointer_t<decltype(type)>>(value);
      std::memcpy(bytes_.data() + i * sizeof rounded, &rounded, sizeof rounded);
    });
  }

 private:
  rivulet::element_type element_;
  std::size_t size_;
  std::vector<std::byte> bytes_;
};

}  // namespace rivulet_test

template <>
struct rivulet::tensor_traits<rivulet_test::tensor> {
  static constexpr bool is_view = false;
  static tensor_ref ref(rivulet_test::tensor& t) {
    return {t.data(), t.size(), t.element(), memory_space::host, true};
  }
};

namespace rivulet_test {

/// A random number that depends on its arguments alone, in -1 .. 1.
[[nodiscard]] inline float noise(std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                                 std::uint64_t c) {
  std::uint64_t x = seed;
  for (std::uint64_t word : {a, b, c}) {
    x = (x ^ word) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
  }
  return static_cast<float>(x >> 40) / static_cast<float>(1u << 23) - 1.0f;
}

/// Integers in a range, for choosing cases.
class dice {
 public:
  explicit dice(std::uint64_t seed) : state_(seed) {}
  /// From `low` to `high`, both included.
  [[nodiscard]] int roll(int low, int high) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return low + static_cast<int>((state_ >> 33) % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::uint64_t state_;
};

/// Hash of bytes (FNV-1a), for comparing histories.
[[nodiscard]] inline std::uint64_t hash_of(std::span<std::byte const> bytes,
                                           std::uint64_t start = 0xcbf29ce484222325u) {
  for (std::byte b : bytes) start = (start ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
  return start;
}

struct named_tensor {
  std::string name;
  rivulet::role where;
  tensor values;
  bool trainable = true;
};

/// The parameters of one worker. Do not copy it while a set refers to it.
struct model {
  std::vector<named_tensor> tensors;

  void add(std::string_view name, rivulet::role where, rivulet::element_type element,
           std::size_t size, bool trainable = true) {
    tensors.push_back({std::string(name), where, tensor(element, size), trainable});
  }

  [[nodiscard]] rivulet::parameter_set parameters() {
    rivulet::parameter_set set;
    for (named_tensor& t : tensors) set.add(t.name, t.where, t.values, t.trainable);
    return set;
  }

  /// The same values on all workers.
  void fill(std::uint64_t seed) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      tensor& values = tensors[t].values;
      for (std::size_t i = 0; i < values.size(); ++i) values.set(i, noise(seed, 1, t, i));
    }
  }

  /// A step towards a minimum of the rank's own, with noise. Frozen tensors stay.
  void inner_step(std::uint64_t seed, int rank, std::int64_t step) {
    auto const r = static_cast<std::uint64_t>(rank);
    auto const s = static_cast<std::uint64_t>(step);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (!tensors[t].trainable) continue;
      tensor& values = tensors[t].values;
      for (std::size_t i = 0; i < values.size(); ++i) {
        float const minimum = 2.0f * noise(seed, 2 + r, t, i);
        float const random = noise(seed + s, 100 + r, t, i);
        float const value = values.get(i);
        values.set(i, value - 0.05f * (value - minimum) + 0.02f * random);
      }
    }
  }

  /// Hash of all values.
  [[nodiscard]] std::uint64_t hash() const {
    std::uint64_t sum = 0;
    for (named_tensor const& t : tensors) sum = hash_of(t.values.bytes(), sum);
    return sum;
  }
};

/// A model of a few layers with odd sizes, all three element types, a frozen and an empty tensor.
[[nodiscard]] inline model small_model() {
  using enum rivulet::element_type;
  model m;
  m.add("wte", rivulet::embedding, float32, 131);
  for (int i = 0; i < 4; ++i) {
    std::string const block = "h" + std::to_string(i);
    m.add(block + ".attn", rivulet::layer(i), i % 2 == 0 ? float32 : bfloat16,
          static_cast<std::size_t>(63 + 13 * i));
    m.add(block + ".mlp", rivulet::layer(i), i % 3 == 0 ? float16 : float32,
          static_cast<std::size_t>(1 + 40 * i));
  }
  m.add("position", rivulet::embedding, float32, 7, false);
  m.add("empty", rivulet::head, bfloat16, 0);
  m.add("norm", rivulet::final_norm, bfloat16, 33);
  m.fill(7);
  return m;
}

/// H, tau, and a timeout after which a test fails and does not hang.
[[nodiscard]] inline rivulet::sync_config settings(int sync_every, int overlap_steps,
                                                   float mixing = 0.0f) {
  rivulet::sync_config config;
  config.sync_every = sync_every;
  config.overlap_steps = overlap_steps;
  config.mixing = mixing;
  config.timeout_ms = 30'000;
  return config;
}

/// Any partitioner, chosen at run time.
using any_partitioner =
    std::function<std::vector<rivulet::fragment>(std::span<rivulet::parameter const>)>;
static_assert(rivulet::Partitioner<any_partitioner>);

/// The outer values of a parameter.
template <class Engine>
[[nodiscard]] std::vector<float> outer_of(Engine const& engine, std::string_view name,
                                          std::size_t size) {
  std::vector<float> values(size);
  engine.copy_outer_to(name, values);
  return values;
}

/// Hash of the outer values of a whole model.
template <class Engine>
[[nodiscard]] std::uint64_t outer_hash(Engine const& engine, model const& m) {
  std::uint64_t sum = 0;
  for (named_tensor const& t : m.tensors) {
    std::vector<float> const values = outer_of(engine, t.name, t.values.size());
    sum = hash_of(std::as_bytes(std::span(values)), sum);
  }
  return sum;
}

}  // namespace rivulet_test
