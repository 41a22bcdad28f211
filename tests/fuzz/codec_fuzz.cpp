/// Arbitrary codes and arbitrary values through the codec RIVULET_FUZZ_CODEC: vector kernels and
/// scalar code agree, nothing is written outside, and the promises of the codec hold.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contract/all_codecs.hpp"
#include "fuzz/input.hpp"

namespace {

using rivulet_test::expect;
using rivulet_test::fuzz_input;
using rivulet_test::kernels;

/// Memory that ends where its allocation does, so that the address sanitizer sees each byte behind
/// it, and begins `shift` elements behind the start of it.
template <class T>
class exact {
 public:
  exact(std::size_t size, std::size_t shift, T fill)
      : fill_(fill), shift_(shift), memory_(size + shift, fill) {}

  [[nodiscard]] std::span<T> values() { return std::span(memory_).subspan(shift_); }
  [[nodiscard]] bool intact() const {
    auto const front = std::span(memory_).first(shift_);
    return std::all_of(front.begin(), front.end(), [this](T value) { return value == fill_; });
  }

 private:
  T fill_;
  std::size_t shift_;
  std::vector<T> memory_;
};

bool same(std::span<float const> a, std::span<float const> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), rivulet_test::same_value);
}

/// Decodes and adds up `codes` by both kinds of kernels; returns the values.
std::vector<float> check_decoding(rivulet_test::any_codec const& codec,
                                  std::span<std::byte const> codes, std::size_t n, float weight,
                                  std::size_t shift) {
  exact<float> values[] = {{n, shift, 1.0f}, {n, 0, -1.0f}};
  exact<float> sums[] = {{n, shift, 0.75f}, {n, 0, 0.75f}};
  rivulet::codec::weighted_codes const sender{codes, weight};
  for (std::size_t const vectors : {0u, 1u}) {
    kernels const use(vectors == 1);
    codec.decode(codes, values[vectors].values());
    codec.accumulate({&sender, 1}, sums[vectors].values());
    expect(values[vectors].intact() && sums[vectors].intact(), "values written outside");
  }
  expect(same(values[0].values(), values[1].values()), "kernels decode to different values");
  expect(same(sums[0].values(), sums[1].values()), "kernels add up to different values");
  return {values[0].values().begin(), values[0].values().end()};
}

void check_promises(rivulet_test::codec_promises const& promises, std::span<float const> values,
                    std::span<float const> back) {
  auto const finite = [](float x) { return rivulet::detail::is_finite(x); };
  rivulet_test::magnitudes around;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t const end = std::min(i + promises.scope, values.size());
    std::span const decoded = back.subspan(i, end - i);
    std::span const scope = values.subspan(i, end - i);
    bool const good = std::ranges::all_of(scope, finite);
    if (!good) {
      expect(promises.spoils_scope ? std::ranges::none_of(decoded, finite)
                                   : !std::ranges::all_of(decoded, finite),
             "NaN or infinity is lost");
      i = end;
      continue;
    }
    expect(std::ranges::all_of(decoded, finite), "finite values come back as NaN or infinity");
    for (; i < end; ++i) {
      around = promises.around(values, i, around);
      expect(std::fabs(double{values[i]} - double{back[i]}) <=
                 promises.error(double{values[i]}, around),
             "the error is larger than documented");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  static auto const codec = rivulet_test::codecs::RIVULET_FUZZ_CODEC().erase();
  fuzz_input input(std::as_bytes(std::span(data, size)));
  auto const options = input.take<std::uint16_t>();
  bool const encodes = options % 2 == 1;
  bool const many = options / 2 % 16 == 0;  // more than a tile; else a bit more than 8 blocks
  std::size_t const code_shift = options / 32 % 32;
  std::size_t const shift = options / 1024 % 8;
  std::size_t const most = many ? 4500 : std::min<std::size_t>(9 * codec.promises().block, 4000);
  std::size_t const n = input.take<std::uint16_t>() % (most + 40);
  auto const weight = input.take<float>();
  auto const mask = input.take<std::uint32_t>();

  exact<std::byte> codes(codec.bytes(n), code_shift, std::byte{0});
  if (!encodes) {
    input.fill(codes.values(), mask);
    check_decoding(codec, codes.values(), n, weight, shift);
    return 0;
  }
  exact<float> values(n, shift, 0.0f);
  input.fill(std::as_writable_bytes(values.values()), mask);
  exact<std::byte> scalar_codes(codec.bytes(n), 0, std::byte{1});
  codec.encode(values.values(), codes.values(), 7);
  expect(codes.intact(), "codes written outside");
  {
    kernels const use(false);
    codec.encode(values.values(), scalar_codes.values(), 7);
  }
  expect(std::ranges::equal(codes.values(), scalar_codes.values()),
         "kernels encode to different codes");
  check_promises(codec.promises(), values.values(),
                 check_decoding(codec, codes.values(), n, weight, shift));
  return 0;
}
