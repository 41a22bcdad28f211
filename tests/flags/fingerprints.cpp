/// Prints a fingerprint of everything whose bits must depend on no compiler and no flag, or
/// compares with those that a file holds:
///
///     fingerprints            prints "item fingerprint" lines, as the file has them
///     fingerprints FILE       compares, and names the items that differ

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/message.hpp>
#include <rivulet/exec/host.hpp>
#include <rivulet/outer/nesterov.hpp>

#include "contract/all_codecs.hpp"

namespace {

using fingerprints = std::map<std::string, std::uint64_t>;
using rivulet::detail::float_of;
using rivulet::detail::hash;
using rivulet::detail::mix;

std::uint64_t fingerprint(std::span<std::byte const> bytes) {
  return hash{}
      .add(std::uint64_t{bytes.size()})
      .add(rivulet::detail::mixed_sum(bytes.data(), bytes.size()))
      .value();
}

/// Of the bits; all NaN count as one.
std::uint64_t fingerprint(std::span<float const> values) {
  hash sum;
  for (float const value : values) {
    std::uint32_t const bits = rivulet::detail::bits_of(value);
    sum.add(std::uint64_t{(bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits});
  }
  return sum.value();
}

/// Values that no flag can change, for they come from integers: bell-shaped ones of many
/// magnitudes; `wild` ones with subnormals, huge ones, NaN and infinity among them.
std::vector<float> values_of(std::size_t count, std::uint64_t seed, bool wild) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t const random = mix(seed + i);
    auto const part = [&](int shift) { return static_cast<int>(random >> shift & 0xfffu); };
    int const sum = part(0) + part(12) + part(24) + part(36) - 2 * 4095;  // of 14 bits: exact
    std::uint64_t const block = mix(seed + i / 200);
    std::uint64_t const exponent = 127 - 12 - block % 16;
    values[i] = static_cast<float>(sum) * float_of(static_cast<std::uint32_t>(exponent << 23));
    if (wild && block % 3 == 0 && random >> 62 == 0) {
      values[i] = float_of(static_cast<std::uint32_t>(random));
    }
  }
  return values;
}

void add_codec(fingerprints& result, std::string const& name,
               rivulet_test::any_codec const& codec) {
  constexpr std::size_t n = 2 * 4096 + 777;
  for (bool const wild : {false, true}) {
    std::string const item = name + (wild ? ".wild" : "");
    std::vector<std::byte> codes(codec.bytes(n));
    codec.encode(values_of(n, 1, wild), codes, 5);
    result[item + ".codes"] = fingerprint(codes);
    if (wild) {
      for (std::size_t i = 0; i < codes.size(); ++i)
        codes[i] ^= static_cast<std::byte>(mix(i) >> 58);
    }
    std::vector<float> values(n);
    codec.decode(codes, values);
    result[item + ".values"] = fingerprint(values);
    std::vector<float> sums = values_of(n, 2, false);
    rivulet::codec::weighted_codes const senders[] = {{codes, 0.3f}, {codes, -1.7f}};
    codec.accumulate(senders, sums);
    result[item + ".sums"] = fingerprint(sums);
  }
}

/// Two rounds of two workers, without what lies between: encode, average, Nesterov step and mixing.
void add_passes(fingerprints& result) {
  rivulet::codec::e3m0<64> const codec;
  rivulet::exec::host const host;
  std::vector<float> a = values_of(9000, 3, false);
  std::vector<rivulet::bf16> b;
  for (float const value : values_of(321, 4, false)) b.push_back(rivulet::to_bf16(value));
  std::vector<rivulet::fp16> c;
  for (float const value : values_of(500, 5, false)) c.push_back(rivulet::to_fp16(value));
  rivulet::parameter_set parameters;
  parameters.add("a", rivulet::layer(0), a);
  parameters.add("b", rivulet::layer(1), b);
  parameters.add("c", rivulet::layer(2), c);
  rivulet::fragment const fragment{"f", {{1, 0, 321}, {0, 4096, 4904}, {2, 0, 500}, {0, 0, 4096}}};
  rivulet::fragment_layout const layout(fragment, parameters, codec);
  std::size_t const n = layout.values();
  std::vector<float> outer = values_of(n, 6, false);
  std::vector<float> momentum(n);
  std::vector<float> residual = values_of(n, 7, false);
  std::vector<float> left_over(n);
  rivulet::message_encoder<rivulet::codec::e3m0<64>> encoder;
  std::vector<std::byte> message(message_bytes(codec, layout, layout.all()));
  for (int round = 0; round < 2; ++round) {
    rivulet::pass::with_residual<rivulet::pass::outer_gradient> const source{
        {outer.data()}, residual.data(), 0.9f};
    rivulet::encode_options options;
    options.left_over = {left_over.data()};
    (void)encode_message(codec, encoder, host, source, layout, layout.all(), options, {}, message);
    residual.swap(left_over);
    std::span const payload = std::span(message).subspan(rivulet::header_bytes);
    std::vector<rivulet::codec::weighted_codes> const senders = {{payload, 0.7f}, {payload, 0.3f}};
    rivulet::pass::sum_of<rivulet::codec::e3m0<64>> const mean{codec, &layout, layout.all(),
                                                               senders};
    rivulet::pass::outer_step<rivulet::outer::nesterov> const step{
        {.learning_rate = 0.7f, .momentum = 0.9f}, outer.data(), momentum.data(), n, 0.3f};
    rivulet::pass::receive const receive{mean, step, &layout};
    host.for_each_tile(layout.tiles(), receive);
  }
  result["passes.message"] = fingerprint(message);
  result["passes.outer"] = fingerprint(outer);
  result["passes.momentum"] = fingerprint(momentum);
  result["passes.residual"] = fingerprint(residual);
  result["passes.local"] = fingerprint(a);
  result["passes.local_bf16"] = fingerprint(std::as_bytes(std::span(b)));
  result["passes.local_fp16"] = fingerprint(std::as_bytes(std::span(c)));
}

fingerprints all(bool vectors) {
  rivulet_test::kernels const use(vectors);
  fingerprints result;
#define RIVULET_ADD(name) add_codec(result, #name, rivulet_test::codecs::name().erase());
  RIVULET_TEST_CODECS(RIVULET_ADD)
#undef RIVULET_ADD
  add_passes(result);
  return result;
}

/// Names what differs; returns how much does.
int compare(fingerprints const& found, fingerprints const& expected, char const* kernels) {
  int wrong = 0;
  auto const name = [&](std::string const& item, char const* what) {
    std::printf("%s, %s kernels: %s\n", item.c_str(), kernels, what);
    ++wrong;
  };
  for (auto const& [item, value] : found) {
    auto const known = expected.find(item);
    if (known == expected.end()) {
      name(item, "is not in the file");
    } else if (known->second != value) {
      name(item, "differs from the file");
    }
  }
  for (auto const& [item, value] : expected) {
    if (!found.contains(item)) name(item, "is in the file only");
  }
  return wrong;
}

}  // namespace

int main(int count, char** arguments) {
  bool const vectors = rivulet_test::has_vectors();
  fingerprints const scalar = all(false);
  if (count == 1) {
    for (auto const& [item, value] : scalar) {
      std::printf("%s %016llx\n", item.c_str(), static_cast<unsigned long long>(value));
    }
    return 0;
  }
  fingerprints expected;
  std::ifstream file(arguments[1]);
  std::string item;
  std::uint64_t value = 0;
  while (file >> item >> std::hex >> value) expected[item] = value;
  int wrong = compare(scalar, expected, "scalar");
  if (vectors) wrong += compare(all(true), expected, "vector");
  std::printf("%zu fingerprints, %d differences%s\n", scalar.size(), wrong,
              vectors ? "" : "; no vector kernels here");
  return wrong == 0 && !expected.empty() ? 0 : 1;
}
