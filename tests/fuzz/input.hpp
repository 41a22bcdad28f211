#pragma once

/// \file
/// The bytes of a fuzzer as a stream of values, and what a target does when it finds a bug.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include <rivulet/detail/hash.hpp>

namespace rivulet_test {

/// Reads values from the front; zeros when the bytes are used up.
class fuzz_input {
 public:
  explicit fuzz_input(std::span<std::byte const> bytes) : bytes_(bytes) {}

  template <class T>
  [[nodiscard]] T take() {
    T value{};
    std::size_t const count = bytes_.size() < sizeof value ? bytes_.size() : sizeof value;
    if (count > 0) std::memcpy(&value, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
    return value;
  }

  [[nodiscard]] std::span<std::byte const> rest() const { return bytes_; }

  /// The rest of the bytes, then these over and over, changed by random bits where `mask` has ones:
  /// a short input fills large arrays, with runs of one value, of one magnitude, or of anything.
  void fill(std::span<std::byte> out, std::uint32_t mask) const {
    std::uint64_t noise = bytes_.size();
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::byte const given = bytes_.empty() ? std::byte{0} : bytes_[i % bytes_.size()];
      if (i % 4 == 0) noise = rivulet::detail::mix(noise + static_cast<std::uint64_t>(given) + 1);
      auto const change = static_cast<std::byte>((noise & mask) >> (i % 4 * 8));
      out[i] = i < bytes_.size() ? given : given ^ change;
    }
  }

 private:
  std::span<std::byte const> bytes_;
};

/// Stops the fuzzer, which keeps the input, unless `good`.
inline void expect(bool good, char const* what) {
  if (good) return;
  std::fprintf(stderr, "found: %s\n", what);
  std::abort();
}

}  // namespace rivulet_test
