/// Messages from a hostile peer: all that is not as expected is refused, nothing is read outside of
/// the message, and whatever payload passes its checksum is decoded within bounds.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/chunked_top_k.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/int8.hpp>
#include <rivulet/codec/message.hpp>
#include <rivulet/codec/top_k.hpp>
#include <rivulet/exec/host.hpp>
#include <rivulet/outer/nesterov.hpp>

#include "fuzz/input.hpp"

namespace {

using rivulet::header_bytes;
using rivulet::tile_range;
using rivulet::wire_check;
using rivulet::wire_header;
using rivulet_test::expect;
using rivulet_test::fuzz_input;

/// A fragment with cut tensors and tails, and the outer state of an engine.
struct model {
  std::vector<float> a = std::vector<float>(4096 + 77, 1.0f);
  std::vector<rivulet::bf16> b = std::vector<rivulet::bf16>(131, rivulet::to_bf16(0.5f));
  rivulet::parameter_set parameters;
  rivulet::fragment fragment{"f", {{1, 0, 131}, {0, 4096, 77}, {0, 0, 4096}}};
  std::vector<float> outer;
  std::vector<float> momentum;

  model() : outer(fragment.size()), momentum(fragment.size()) {
    parameters.add("a", rivulet::layer(0), a);
    parameters.add("b", rivulet::layer(1), b);
  }
};

/// What is wrong with a sealed message whose header is `found`, as far as the fields go.
wire_check wrong_field(wire_header const& found, wire_header const& expected) {
  if (found.magic != expected.magic) return wire_check::magic;
  if (found.format != expected.format) return wire_check::format;
  if (found.payload_bytes != expected.payload_bytes) return wire_check::length;
  if (found.codec != expected.codec) return wire_check::codec;
  if (found.fragment != expected.fragment) return wire_check::fragment;
  if (found.part != expected.part) return wire_check::part;
  if (found.step != expected.step) return wire_check::step;
  if (found.version != expected.version) return wire_check::version;
  if (!std::isfinite(found.weight) || found.weight < 0) return wire_check::weight;
  if (rivulet::detail::bits_of(found.learning_rate) !=
      rivulet::detail::bits_of(expected.learning_rate)) {
    return wire_check::learning_rate;
  }
  if (found.outer_state != expected.outer_state) return wire_check::outer_state;
  return wire_check::good;
}

template <class C>
void try_message(C const& codec, fuzz_input input) {
  static model m;
  rivulet::exec::host const host;
  rivulet::fragment_layout const layout(m.fragment, m.parameters, codec);
  auto const options = input.take<std::uint8_t>();
  bool const guessed = options % 4 == 0;      // anything as a message, of any length
  bool const own_sum = options / 4 % 2 == 0;  // a payload of the peer's choice
  tile_range const range = options / 8 % 2 == 0 ? layout.all() : layout.shard(1, 2);
  std::vector<std::byte> message(message_bytes(codec, layout, range));

  // This rank's own header, by which it judges those of others.
  rivulet::message_encoder<C> encoder;
  encoder.reserve(codec, layout.values());
  wire_header header;
  header.fragment = 3;
  header.step = 120;
  header.version = 7;
  header.learning_rate = 0.4f;
  (void)encode_message(codec, encoder, host, rivulet::pass::local_values{}, layout, range, {},
                       header, message);
  wire_header const expected = wire_header::read(message.data());
  expect(check_message(codec, layout, range, message, expected) == wire_check::good,
         "an honest message is refused");

  if (guessed) {
    std::span<std::byte const> const rest = input.rest();
    std::vector<std::byte> const exact(rest.begin(), rest.end());
    wire_check const check = check_message(codec, layout, range, exact, expected);
    expect(check != wire_check::good, "a guess is accepted");
    return;
  }
  // A header that differs in some bits of one field, sealed again.
  wire_header sent = expected;
  auto const place = input.take<std::uint8_t>() % (header_bytes - 8);
  std::byte field[header_bytes];
  std::memcpy(field, &sent, header_bytes);
  field[place] ^= input.take<std::byte>();
  field[input.take<std::uint8_t>() % header_bytes] ^= input.take<std::byte>();
  std::memcpy(&sent, field, header_bytes);
  std::span const payload = std::span(message).subspan(header_bytes);
  if (own_sum) {
    input.fill(payload, input.take<std::uint32_t>());
    sent.payload_sum = payload_sum(codec, layout, range, payload.data());
  } else if (!payload.empty()) {
    payload[input.take<std::uint32_t>() % payload.size()] ^= input.take<std::byte>();
  }
  sent.write(message.data());

  wire_check const check = check_message(codec, layout, range, message, expected);
  wire_check const wrong = wrong_field(sent, expected);
  if (wrong != wire_check::good) {
    expect(check == wrong, "a field is not checked, or another is blamed");
    return;
  }
  bool const read = sent.weight > 0 && (sent.flags & wire_header::rejected) == 0;
  bool const sum_right = sent.payload_sum == payload_sum(codec, layout, range, payload.data());
  expect(check == (read && !sum_right ? wire_check::payload_sum : wire_check::good),
         "the checksum of the payload is not checked");
  if (check != wire_check::good || !read) return;

  std::vector<rivulet::codec::weighted_codes> const senders = {{payload, 0.5f}, {payload, 0.25f}};
  rivulet::pass::sum_of<C> const mean{codec, &layout, range, senders};
  rivulet::pass::outer_step<rivulet::outer::nesterov> const step{
      {}, m.outer.data(), m.momentum.data(), m.outer.size(), 0.25f};
  rivulet::pass::receive const receive{mean, step, &layout};
  for (std::size_t tile = range.first; tile < range.end(); ++tile) receive(tile);
  std::fill(m.outer.begin(), m.outer.end(), 0.0f);
  std::fill(m.momentum.begin(), m.momentum.end(), 0.0f);
  std::fill(m.a.begin(), m.a.end(), 1.0f);
  std::fill(m.b.begin(), m.b.end(), rivulet::to_bf16(0.5f));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t count);

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t count) {
  fuzz_input input(std::as_bytes(std::span(data, count)));
  switch (input.take<std::uint8_t>() % 4) {
    case 0: try_message(rivulet::codec::e3m0<32>{}, input); break;
    case 1:
      try_message(rivulet::codec::top_k<rivulet::codec::int8<>>{.fraction = 0.05}, input);
      break;
    case 2:
      try_message(rivulet::codec::top_k<rivulet::codec::float32>{.fraction = 1.0}, input);
      break;
    default: try_message(rivulet::codec::chunked_top_k<rivulet::codec::e3m0<32>>{}, input);
  }
  return 0;
}
