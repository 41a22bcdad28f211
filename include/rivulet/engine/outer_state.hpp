#pragma once

/// \file
/// What the workers hold in common: outer parameters, state of the outer optimizer, versions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <rivulet/codec/passes.hpp>
#include <rivulet/detail/hash.hpp>
#include <rivulet/fragment.hpp>

namespace rivulet {

/// Outer parameters Theta (FP32) and optimizer state of all fragments, one after the other, with
/// their layouts and versions. Memory: 4 * (1 + slots) bytes per value.
class outer_state {
 public:
  /// Theta starts as the model's parameters; the optimizer's slots start as 0.
  template <FragmentCodec C, FragmentCodec M>
  outer_state(parameter_set const& parameters, std::span<fragment const> fragments, C const& codec,
              M const& mean_codec, std::size_t slot_count) {
    for (fragment const& f : fragments) {
      pieces_.push_back({fragment_layout(f, parameters, codec, mean_codec), values_, 0});
      values_ += pieces_.back().layout.values();
    }
    theta_.resize(values_);
    slots_.resize(values_ * slot_count);
    for (int p = 0; p < fragments_count(); ++p) {
      fragment_layout const& l = layout(p);
      for (std::size_t i = 0; i < l.tiles(); ++i) {
        tile_part const part = l.tile(i);
        pass::local_values{}.load(part, i, theta(p).data() + part.first());
      }
    }
  }

  [[nodiscard]] int fragments_count() const { return static_cast<int>(pieces_.size()); }
  /// Number of values of all fragments; also the stride between the slots of a value.
  [[nodiscard]] std::size_t values() const { return values_; }

  [[nodiscard]] fragment_layout& layout(int p) { return at(p).layout; }
  [[nodiscard]] fragment_layout const& layout(int p) const { return at(p).layout; }
  /// Syncs applied to fragment `p`.
  [[nodiscard]] std::uint64_t& version(int p) { return at(p).version; }
  [[nodiscard]] std::uint64_t version(int p) const { return at(p).version; }
  /// Outer parameters of fragment `p`.
  [[nodiscard]] std::span<float> theta(int p) {
    return std::span(theta_).subspan(at(p).first, layout(p).values());
  }
  [[nodiscard]] std::span<float const> theta(int p) const {
    return std::span(theta_).subspan(at(p).first, layout(p).values());
  }
  /// First slot of fragment `p`; the next ones follow at multiples of values(). Null without slots.
  [[nodiscard]] float* slots(int p) {
    return slots_.empty() ? nullptr : slots_.data() + at(p).first;
  }
  /// Slot `s` of fragment `p`.
  [[nodiscard]] std::span<float> slot(int p, std::size_t s) {
    return std::span(slots_).subspan(s * values_ + at(p).first, layout(p).values());
  }
  [[nodiscard]] std::span<float const> slot(int p, std::size_t s) const {
    return std::span(slots_).subspan(s * values_ + at(p).first, layout(p).values());
  }
  /// Outer parameters and slots of fragment `p`, one after the other.
  [[nodiscard]] std::vector<float> copy(int p) {
    std::vector<float> values(theta(p).begin(), theta(p).end());
    for (std::size_t s = 0; s < slot_count(); ++s) {
      values.insert(values.end(), slot(p, s).begin(), slot(p, s).end());
    }
    return values;
  }
  /// Takes over what copy() gave on another rank.
  void replace(int p, std::span<float const> values, std::uint64_t version) {
    std::size_t const count = theta(p).size();
    std::copy_n(values.data(), count, theta(p).data());
    for (std::size_t s = 0; s < slot_count(); ++s) {
      std::copy_n(values.data() + (s + 1) * count, count, slot(p, s).data());
    }
    at(p).version = version;
  }
  [[nodiscard]] std::size_t slot_count() const { return slots_.size() / values_; }
  [[nodiscard]] std::span<float> all_theta() { return theta_; }
  [[nodiscard]] std::span<float> all_slots() { return slots_; }

  /// Checksum of Theta and optimizer state of fragment `p`.
  [[nodiscard]] std::uint64_t bits(int p) const {
    detail::hash sum;
    add(sum, theta(p));
    for (std::size_t s = 0; s < slot_count(); ++s) {
      add(sum, slot(p, s));
    }
    return sum.value();
  }

  /// Hash of everything.
  [[nodiscard]] std::uint64_t fingerprint() const {
    detail::hash sum;
    for (int p = 0; p < fragments_count(); ++p) sum.add(bits(p)).add(version(p));
    return sum.value();
  }

  /// theta <- alpha * theta + (1 - alpha) * Theta for fragment `p` of the model.
  template <class E>
  void mix(int p, float alpha, E const& executor) const {
    fragment_layout const& l = layout(p);
    executor.for_each_tile(l.tiles(), [&](std::size_t i) {
      tile_part const part = l.tile(i);
      pass::mix_tile(part, theta(p).data() + part.first(), alpha);
    });
  }

  /// Copies the outer values of parameter `index` to `values`; returns how many there were.
  std::size_t copy_to(std::size_t index, std::span<float> values) const {
    std::size_t copied = 0;
    for (int p = 0; p < fragments_count(); ++p) {
      for (bound_slice const& part : layout(p).slices()) {
        if (part.parameter != index) continue;
        std::copy_n(theta(p).data() + part.first_value, part.values, values.data() + part.offset);
        copied += part.values;
      }
    }
    return copied;
  }

  /// Calls visit(first byte in the model, number of bytes) for every slice of every fragment.
  template <class Visit>
  void for_each_slice(Visit const& visit) const {
    for (piece const& p : pieces_) {
      for (bound_slice const& s : p.layout.slices()) visit(s.local, s.values * size_of(s.element));
    }
  }

  /// Looks up where the parameters lie now.
  void bind(parameter_set const& parameters) {
    for (piece& p : pieces_) p.layout.bind(parameters);
  }

 private:
  static void add(detail::hash& sum, std::span<float const> values) {
    auto const bytes = std::as_bytes(values);
    sum.add(detail::mixed_sum(bytes.data(), bytes.size()));
  }

  struct piece {
    fragment_layout layout;
    std::size_t first;  // of its values among all
    std::uint64_t version;
  };

  [[nodiscard]] piece& at(int p) { return pieces_[static_cast<std::size_t>(p)]; }
  [[nodiscard]] piece const& at(int p) const { return pieces_[static_cast<std::size_t>(p)]; }

  std::vector<piece> pieces_;
  std::size_t values_ = 0;
  std::vector<float> theta_;
  std::vector<float> slots_;
};

}  // namespace rivulet
