#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/passes.hpp>
#include <rivulet/exec/host.hpp>
#include <rivulet/outer/nesterov.hpp>
#include <rivulet/outer/sgd.hpp>

#include "contract/block_codec_contract.hpp"

namespace {

using rivulet::bf16;
using rivulet::fp16;
using rivulet::fragment_layout;
using rivulet::header_bytes;
using rivulet::nonfinite_policy;
using rivulet::wire_header;
using bytes = std::vector<std::byte>;

/// Runs the tiles from the last to the first: the order must not matter.
struct backwards {
  template <class F>
  void for_each_tile(std::size_t tiles, F const& tile) const {
    for (std::size_t i = tiles; i-- > 0;) tile(i);
  }
};

/// Six tensors of three element types, and a fragment of some of their slices: whole tensors of odd
/// sizes, pieces of cut ones, out of order. Tensor 3 and the other pieces are none of its business.
struct model {
  std::vector<float> a = rivulet_test::normal_values(10001, 1);
  std::vector<bf16> b = narrowed<bf16>(rivulet_test::normal_values(4097, 2));
  std::vector<fp16> c = narrowed<fp16>(rivulet_test::normal_values(12288, 3));
  std::vector<float> other = rivulet_test::normal_values(100, 4);
  std::vector<float> d = rivulet_test::normal_values(1, 5);
  std::vector<bf16> e = narrowed<bf16>(rivulet_test::normal_values(333, 6));
  rivulet::parameter_set params;
  rivulet::fragment fragment{
      "f",
      {{4, 0, 1}, {0, 4096, 5905}, {2, 4096, 4096}, {1, 0, 4097}, {5, 0, 333}, {2, 8192, 4096}}};

  model() {
    params.add("a", rivulet::layer(0), a);
    params.add("b", rivulet::layer(1), b);
    params.add("c", rivulet::layer(2), c);
    params.add("other", rivulet::layer(3), other);
    params.add("d", rivulet::layer(4), d);
    params.add("e", rivulet::layer(5), e);
  }
  model(model const&) = delete;
  model& operator=(model const&) = delete;

  template <class T>
  static std::vector<T> narrowed(std::vector<float> const& values) {
    std::vector<T> result;
    for (float const value : values) result.push_back(rivulet::from_float<T>(value));
    return result;
  }

  /// The bits of all tensors.
  [[nodiscard]] bytes bits() const {
    bytes result;
    for (rivulet::parameter const& p : params.parameters()) {
      auto const* const first = static_cast<std::byte const*>(p.tensor.data);
      result.insert(result.end(), first, first + p.tensor.size * size_of(p.tensor.element));
    }
    return result;
  }
};

/// Element `i` of a slice, and how a value is stored there.
float load(rivulet::parameter const& p, std::size_t i) {
  switch (p.tensor.element) {
    case rivulet::element_type::float32: return static_cast<float*>(p.tensor.data)[i];
    case rivulet::element_type::bfloat16: return to_float(static_cast<bf16*>(p.tensor.data)[i]);
    case rivulet::element_type::float16: return to_float(static_cast<fp16*>(p.tensor.data)[i]);
  }
  return 0;
}
void store(rivulet::parameter const& p, std::size_t i, float value) {
  switch (p.tensor.element) {
    case rivulet::element_type::float32: static_cast<float*>(p.tensor.data)[i] = value; return;
    case rivulet::element_type::bfloat16:
      static_cast<bf16*>(p.tensor.data)[i] = rivulet::to_bf16(value);
      return;
    case rivulet::element_type::float16:
      static_cast<fp16*>(p.tensor.data)[i] = rivulet::to_fp16(value);
      return;
  }
}
float stored(rivulet::parameter const& p, float value) {
  switch (p.tensor.element) {
    case rivulet::element_type::float32: return value;
    case rivulet::element_type::bfloat16: return to_float(rivulet::to_bf16(value));
    case rivulet::element_type::float16: return to_float(rivulet::to_fp16(value));
  }
  return 0;
}

/// Encodes slice by slice with arrays for everything: codes of all slices, then all scales.
template <class C>
bytes naive_payload(model const& m, std::vector<float> const& values) {
  bytes codes;
  bytes scales;
  std::size_t first = 0;
  for (rivulet::slice const& s : m.fragment.slices) {
    bytes const part = rivulet_test::encoded(C{}, std::span(values).subspan(first, s.size));
    auto const cut = part.begin() +
                     static_cast<std::ptrdiff_t>(rivulet::codec::blocks<C>(s.size) * C::code_bytes);
    codes.insert(codes.end(), part.begin(), cut);
    scales.insert(scales.end(), cut, part.end());
    first += s.size;
  }
  codes.insert(codes.end(), scales.begin(), scales.end());
  return codes;
}

/// The weighted sum of payloads, slice by slice.
template <class C>
std::vector<float> naive_mean(model const& m, std::vector<bytes> const& payloads,
                              std::vector<float> const& weights) {
  std::vector<float> mean;
  std::size_t blocks = 0;
  for (rivulet::slice const& s : m.fragment.slices) blocks += rivulet::codec::blocks<C>(s.size);
  std::size_t first_block = 0;
  for (rivulet::slice const& s : m.fragment.slices) {
    std::size_t const own = rivulet::codec::blocks<C>(s.size);
    std::vector<float> sums(s.size, 0.0f);
    for (std::size_t w = 0; w < payloads.size(); ++w) {
      std::span<std::byte const> const payload = payloads[w];
      auto const codes = payload.subspan(first_block * C::code_bytes, own * C::code_bytes);
      auto const scales = payload.subspan(blocks * C::code_bytes + first_block * C::scale_bytes,
                                          own * C::scale_bytes);
      bytes part(codes.begin(), codes.end());
      part.insert(part.end(), scales.begin(), scales.end());
      rivulet::codec::accumulate(C{}, part, weights[w], sums);
    }
    mean.insert(mean.end(), sums.begin(), sums.end());
    first_block += own;
  }
  return mean;
}

/// Calls f(parameter, index in it, index in the fragment) for each value of the fragment.
template <class F>
void for_each_value(model const& m, F const& f) {
  std::size_t at = 0;
  for (rivulet::slice const& s : m.fragment.slices) {
    for (std::size_t i = 0; i < s.size; ++i) f(m.params[s.parameter], s.offset + i, at++);
  }
}

std::vector<float> naive_outer_gradient(model const& m, std::vector<float> const& theta) {
  std::vector<float> result(theta.size());
  for_each_value(m, [&](auto const& p, std::size_t i, std::size_t at) {
    result[at] = stored(p, theta[at]) - load(p, i);
  });
  return result;
}

bool same_bits(std::span<float const> a, std::span<float const> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

struct sent {
  bytes message;
  wire_header header;
  int parameter;  // what encode_message returned

  [[nodiscard]] bytes payload() const { return {message.begin() + header_bytes, message.end()}; }
};

template <class C, class E, class Source>
sent encode(C codec, E executor, Source const& source, model const& m,
            nonfinite_policy policy = nonfinite_policy::reject) {
  fragment_layout const layout(m.fragment, m.params, C::block_size);
  rivulet_test::guarded<std::byte> message(rivulet::message_bytes<C>(layout), std::byte{0x77}, 3);
  wire_header header;
  header.step = 42;
  header.weight = 3;
  sent result;
  result.parameter =
      rivulet::encode_message(codec, executor, source, layout, policy, header, message.values());
  CHECK(message.intact());
  result.message.assign(message.values().begin(), message.values().end());
  result.header = wire_header::read(result.message.data());
  return result;
}

TEST_CASE("passes: the layout counts values, blocks and tiles slice by slice") {
  model const m;
  fragment_layout const layout(m.fragment, m.params, 64);
  CHECK(layout.values() == 1 + 5905 + 4096 + 4097 + 333 + 4096);
  CHECK(layout.blocks() == 1 + 93 + 64 + 65 + 6 + 64);
  CHECK(layout.tiles() == 1 + 2 + 1 + 2 + 1 + 1);
  using codec = rivulet::codec::e3m0<64>;
  CHECK(rivulet::message_bytes<codec>(layout) == header_bytes + 293 * 34);

  struct {
    std::size_t parameter, offset, begin, count, first;
  } const tiles[] = {
      {4, 0, 0, 1, 0},          {0, 4096, 0, 4096, 1},    {0, 4096, 4096, 1809, 4097},
      {2, 4096, 0, 4096, 5906}, {1, 0, 0, 4096, 10002},   {1, 0, 4096, 1, 14098},
      {5, 0, 0, 333, 14099},    {2, 8192, 0, 4096, 14432}};
  for (std::size_t t = 0; t < layout.tiles(); ++t) {
    CAPTURE(t);
    rivulet::tile_part const part = layout.tile(t);
    CHECK(part.from->parameter == tiles[t].parameter);
    CHECK(part.from->offset == tiles[t].offset);
    CHECK(part.begin == tiles[t].begin);
    CHECK(part.count == tiles[t].count);
    CHECK(part.first() == tiles[t].first);
  }
}

TEST_CASE_TEMPLATE("passes: the fused outer gradient and encoding equal the naive ones", C,
                   rivulet::codec::float32, rivulet::codec::bf16, rivulet::codec::e3m0<32>,
                   rivulet::codec::e3m0<64>, rivulet::codec::e3m0<256>) {
  model const m;
  fragment_layout const layout(m.fragment, m.params, C::block_size);
  std::vector<float> const theta = rivulet_test::normal_values(layout.values(), 10);
  bytes const before = m.bits();
  rivulet::pass::outer_gradient const source{theta.data()};
  sent const forward = encode(C{}, rivulet::exec::host{}, source, m);
  CHECK(forward.payload() == naive_payload<C>(m, naive_outer_gradient(m, theta)));
  CHECK(encode(C{}, backwards{}, source, m).message == forward.message);
  CHECK(m.bits() == before);

  wire_header const& header = forward.header;
  CHECK(forward.parameter == -1);
  CHECK(header.codec == C::id);
  CHECK(header.flags == 0);
  CHECK(header.step == 42);
  CHECK(header.weight == 3);
  CHECK(header.payload_bytes == forward.message.size() - header_bytes);
  CHECK(header.outer_state ==
        rivulet::pass::outer_gradient::checksum(theta.data(), theta.size(), 0));
  CHECK(rivulet::check_message<C>(forward.message, header, layout.blocks()) ==
        rivulet::wire_check::good);

  // The checksum of the outer parameters notices any of them.
  for (std::size_t const at : {std::size_t{0}, std::size_t{7000}, theta.size() - 1}) {
    std::vector<float> other = theta;
    other[at] = std::nextafter(other[at], 9.0f);
    rivulet::pass::outer_gradient const changed{other.data()};
    CHECK(encode(C{}, rivulet::exec::host{}, changed, m).header.outer_state != header.outer_state);
  }
}

TEST_CASE("passes: parameters that training left alone have an outer gradient of zero") {
  model m;
  fragment_layout const layout(m.fragment, m.params, 64);
  std::vector<float> const theta = rivulet_test::normal_values(layout.values(), 10);
  for_each_value(m, [&](auto const& p, std::size_t i, std::size_t at) { store(p, i, theta[at]); });
  rivulet::pass::outer_gradient const source{theta.data()};
  bytes const payload =
      encode(rivulet::codec::e3m0<64>{}, rivulet::exec::host{}, source, m).payload();
  CHECK(payload == bytes(payload.size()));
}

TEST_CASE_TEMPLATE("passes: the fused mean, outer step and mixing equal the naive ones", C,
                   rivulet::codec::float32, rivulet::codec::bf16, rivulet::codec::e3m0<32>,
                   rivulet::codec::e3m0<256>) {
  std::vector<float> const weights = {0.25f, 0.6f, 0.15f};
  std::vector<bytes> payloads;
  std::vector<rivulet::contribution> contributions;
  for (std::uint64_t w = 0; w < 3; ++w) {
    model const sender;
    std::size_t const n = sender.fragment.size();
    payloads.push_back(naive_payload<C>(sender, rivulet_test::normal_values(n, 20 + w)));
  }
  for (std::size_t w = 0; w < 3; ++w) contributions.push_back({payloads[w].data(), weights[w]});

  for (float const alpha : {0.0f, 0.5f, 0.3f, 1.0f}) {
    for (bool const reversed : {false, true}) {
      CAPTURE(alpha);
      CAPTURE(reversed);
      model m;
      model naive;
      fragment_layout const layout(m.fragment, m.params, C::block_size);
      std::size_t const n = layout.values();
      rivulet::outer::nesterov const optimizer{0.4f, 0.9f};
      std::vector<float> const theta = rivulet_test::normal_values(n, 30);
      std::vector<float> const momentum = rivulet_test::normal_values(n, 31);
      rivulet_test::guarded<float> new_theta(n, 0);
      rivulet_test::guarded<float> new_momentum(n, 0);
      std::ranges::copy(theta, new_theta.values().begin());
      std::ranges::copy(momentum, new_momentum.values().begin());

      using sink = rivulet::pass::outer_step<rivulet::outer::nesterov>;
      rivulet::pass::decode_mean<C, sink> const pass{
          C{}, sink{optimizer, new_theta.values().data(), new_momentum.values().data(), n, alpha},
          &layout, contributions};
      if (reversed) {
        backwards{}.for_each_tile(layout.tiles(), pass);
      } else {
        rivulet::exec::host{}.for_each_tile(layout.tiles(), pass);
      }

      std::vector<float> const mean = naive_mean<C>(naive, payloads, weights);
      std::vector<float> naive_theta = theta;
      std::vector<float> naive_momentum = momentum;
      for (std::size_t i = 0; i < n; ++i) {
        naive_momentum[i] = std::fma(0.9f, naive_momentum[i], mean[i]);
        naive_theta[i] =
            std::fma(-0.4f, std::fma(0.9f, naive_momentum[i], mean[i]), naive_theta[i]);
      }
      for_each_value(naive, [&](auto const& p, std::size_t i, std::size_t at) {
        float const global = (1.0f - alpha) * naive_theta[at];
        store(p, i, alpha == 0 ? naive_theta[at] : std::fma(alpha, load(p, i), global));
      });
      CHECK(same_bits(new_theta.values(), naive_theta));
      CHECK(same_bits(new_momentum.values(), naive_momentum));
      CHECK(new_theta.intact());
      CHECK(new_momentum.intact());
      CHECK(m.bits() == naive.bits());  // what is not in the fragment too
      CHECK((m.bits() == model().bits()) == (alpha == 1));
    }
  }
}

/// An optimizer of a program's own.
struct two_slots {
  float learning_rate = 1;
  static constexpr std::size_t state_slots = 2;
  [[nodiscard]] float step(float theta, float mean, float* slots) const {
    slots[0] += mean;
    slots[1] -= 2 * mean;
    return theta - mean;
  }
  [[nodiscard]] std::uint64_t fingerprint() const { return 0; }
  void check() const {}
};

TEST_CASE("passes: two slots lie a stride apart, none needs no memory") {
  using codec = rivulet::codec::float32;
  model m;
  fragment_layout const layout(m.fragment, m.params, 1);
  std::size_t const n = layout.values();
  std::vector<float> const mean = rivulet_test::normal_values(n, 40);
  bytes const payload = naive_payload<codec>(m, mean);
  std::vector<rivulet::contribution> const contributions = {{payload.data(), 1.0f}};
  auto const run = [&](auto const& sink) {
    rivulet::exec::host{}.for_each_tile(
        layout.tiles(), rivulet::pass::decode_mean<codec, std::remove_cvref_t<decltype(sink)>>{
                            codec{}, sink, &layout, contributions});
  };

  std::vector<float> theta(n, 1.0f);
  std::vector<float> slots(2 * n + 5, 0.0f);
  run(rivulet::pass::outer_step<two_slots>{{}, theta.data(), slots.data(), n + 5, 0});
  int wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    wrong += slots[i] != mean[i] || slots[n + 5 + i] != -2 * mean[i] || theta[i] != 1 - mean[i];
  }
  CHECK(wrong == 0);
  for (std::size_t i = n; i < n + 5; ++i) CHECK(slots[i] == 0);

  std::ranges::fill(theta, 1.0f);
  run(rivulet::pass::outer_step<rivulet::outer::sgd>{{}, theta.data(), nullptr, 0, 0});
  for (std::size_t i = 0; i < n; ++i) wrong += theta[i] != std::fma(-1.0f, mean[i], 1.0f);
  CHECK(wrong == 0);
}

TEST_CASE("passes: gradients are sent as they are and overwritten by their mean") {
  using codec = rivulet::codec::float32;
  model const one;
  model two;
  model const untouched;
  sent const a = encode(codec{}, rivulet::exec::host{}, rivulet::pass::local_values{}, one);
  CHECK(a.header.outer_state == 0);
  bytes const payload = a.payload();
  std::vector<rivulet::contribution> const contributions = {{payload.data(), 0.5f},
                                                            {payload.data(), 0.25f}};
  fragment_layout const layout(two.fragment, two.params, 1);
  rivulet::exec::host{}.for_each_tile(layout.tiles(),
                                      rivulet::pass::decode_mean<codec, rivulet::pass::store_mean>{
                                          codec{}, {}, &layout, contributions});
  for_each_value(untouched, [&](auto const& p, std::size_t i, std::size_t) {
    store(p, i, std::fma(load(p, i), 0.25f, load(p, i) * 0.5f));
  });
  CHECK(two.bits() == untouched.bits());
}

TEST_CASE("passes: reject flags the message and names the first parameter with NaN or infinity") {
  using codec = rivulet::codec::e3m0<64>;
  constexpr auto none = static_cast<std::size_t>(-1);
  // Values of the fragment that are made bad, and the parameter of the earliest.
  struct {
    std::size_t first, second;
    int parameter;
  } const cases[] = {{0, none, 4},     {5905, none, 0},   {5906, 1, 0},      {14098, 9000, 2},
                     {14098, none, 1}, {14099, 14098, 1}, {14431, 14432, 5}, {18527, none, 2}};
  for (auto const& c : cases) {
    for (float const bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      CAPTURE(c.first);
      CAPTURE(bad);
      model m;
      for_each_value(m, [&](auto const& p, std::size_t i, std::size_t at) {
        if (at == c.first || at == c.second) store(p, i, bad);
      });
      std::vector<float> const theta(m.fragment.size(), 0.0f);
      rivulet::pass::outer_gradient const source{theta.data()};
      sent const forward = encode(codec{}, rivulet::exec::host{}, source, m);
      CHECK(forward.parameter == c.parameter);
      CHECK(forward.header.flags == wire_header::rejected);
      sent const reversed = encode(codec{}, backwards{}, source, m);
      CHECK(reversed.parameter == c.parameter);
      CHECK(reversed.message == forward.message);
    }
  }
}

TEST_CASE_TEMPLATE("passes: saturate sends NaN as 0 and infinity as the largest number", C,
                   rivulet::codec::float32, rivulet::codec::e3m0<64>) {
  model m;
  std::vector<float> values(m.fragment.size());
  for_each_value(m, [&](auto const& p, std::size_t i, std::size_t at) {
    if (at == 100) store(p, i, NAN);
    if (at == 5000) store(p, i, -NAN);
    if (at == 5906) store(p, i, INFINITY);
    if (at == 14100) store(p, i, -INFINITY);
    values[at] = at == 100 || at == 5000 ? 0.0f
                 : at == 5906            ? FLT_MAX
                 : at == 14100           ? -FLT_MAX
                                         : load(p, i);
  });
  sent const s =
      encode(C{}, backwards{}, rivulet::pass::local_values{}, m, nonfinite_policy::saturate);
  CHECK(s.parameter == -1);
  CHECK(s.header.flags == 0);
  CHECK(s.payload() == naive_payload<C>(m, values));
}

TEST_CASE("passes: a parameter in device memory is refused by name") {
  std::vector<float> values(3);
  rivulet::parameter_set set;
  set.add_ref("on.device", rivulet::head,
              rivulet::tensor_ref::of(values.data(), 3, rivulet::memory_space::cuda));
  rivulet::fragment const all{"all", {{0, 0, 3}}};
  CHECK_THROWS_WITH_AS(
      rivulet::fragment_layout(all, set, 64),
      "rivulet: parameter 'on.device' lies in device memory, which these passes do "
      "not reach",
      rivulet::precondition_error);
}

TEST_CASE("passes: bind follows a tensor that has moved") {
  model m;
  fragment_layout layout(m.fragment, m.params, 64);
  std::vector<float> const moved_values = rivulet_test::normal_values(10001, 50);
  std::vector<float> moved = moved_values;
  m.params.rebind("a", moved);
  CHECK(layout.slices()[1].local == reinterpret_cast<std::byte*>(m.a.data() + 4096));
  layout.bind(m.params);
  CHECK(layout.slices()[1].local == reinterpret_cast<std::byte*>(moved.data() + 4096));
  CHECK(layout.slices()[2].local == reinterpret_cast<std::byte*>(m.c.data() + 4096));
}

}  // namespace
