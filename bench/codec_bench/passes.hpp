#pragma once

/// \file
/// The fused passes over a fragment, tile by tile: parameters to codes, and the codes of two
/// workers to parameters.

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include <rivulet/codec/passes.hpp>
#include <rivulet/outer/nesterov.hpp>

#include "codec_bench/operations.hpp"

namespace codec_bench {

/// A fragment of one parameter: Theta, momentum and the local parameters, which have drifted off.
class worker {
 public:
  template <class C>
  worker(C const& codec, std::size_t values)
      : outer{values},
        momentum{values + shift},
        local{values + 2 * shift},
        layout_{rivulet::fragment{"all", {{0, 0, values}}}, parameters(values), codec} {
    std::ranges::copy(input(0, values), outer.data());
    std::ranges::copy(input(0, values), local_values().begin());
    std::rotate(local_values().begin(), local_values().begin() + 1, local_values().end());
  }

  buffer<float> outer;
  buffer<float> momentum;
  buffer<float> local;

  [[nodiscard]] rivulet::fragment_layout const& layout() const { return layout_; }
  [[nodiscard]] float* slots() const { return momentum.data() + shift; }
  [[nodiscard]] std::span<float> local_values() const { return local.all().subspan(2 * shift); }

 private:
  static constexpr std::size_t shift = 528;  // see output()

  [[nodiscard]] rivulet::parameter_set parameters(std::size_t values) const {
    rivulet::parameter_set result;
    result.add("all", rivulet::layer(0), local_values().data(), values);
    return result;
  }

  rivulet::fragment_layout layout_;
};

/// Calls f(tile number) for a range of values that begins and ends with a tile.
template <class F>
void for_tiles(std::size_t first, std::size_t count, F const& f) {
  constexpr std::size_t size = rivulet::codec::tile_values;
  for (std::size_t i = first / size; i < (first + count + size - 1) / size; ++i) f(i);
}

/// Source of an encoding pass: the outer gradient without a checksum of Theta.
struct unsummed_gradient : rivulet::pass::outer_gradient {
  std::uint64_t load(rivulet::tile_part const& part, std::size_t, float* values) const {
    subtract(part, values);
    return 0;
  }
};

/// What an encoding pass needs for as long as it runs.
template <class C>
struct encoding_pass {
  worker fragment;
  C codec;
  buffer<std::byte> payload;
  rivulet::pass::encode_totals totals{};

  encoding_pass(C const& c, std::size_t values)
      : fragment{c, values}, codec{c}, payload{rivulet::codec::encoded_bytes(c, values)} {}

  /// As an engine runs it: with checksums of the codes and of Theta.
  void run_summed(std::size_t first, std::size_t count) {
    for_tiles(first, count, pass<rivulet::pass::outer_gradient>());
  }
  /// The same without checksums.
  void run(std::size_t first, std::size_t count) {
    auto const encode = pass<unsummed_gradient>();
    for_tiles(first, count, [&](std::size_t tile) {
      rivulet::tile_part const all = fragment.layout().tile(tile);
      encode.encode_tile(all, tile, payload.data() + all.byte);
    });
  }

 private:
  template <class Source>
  [[nodiscard]] rivulet::pass::encode<C, Source> pass() {
    rivulet::pass::encode_input<Source> const input{{fragment.outer.data()},
                                                    &fragment.layout(),
                                                    rivulet::nonfinite_policy::reject,
                                                    {},
                                                    &totals};
    return {codec, input, fragment.layout().all(), payload.data(), 1};
  }
};

/// What a receiving pass needs: the codes of two workers.
template <class C>
struct receiving_pass {
  worker fragment;
  C codec;
  std::array<buffer<std::byte>, 2> codes;

  receiving_pass(C const& c, std::size_t values)
      : fragment{c, values}, codec{c}, codes{coded(values), coded(values)} {}

  void run(std::size_t first, std::size_t count) const {
    rivulet::codec::weighted_codes const senders[] = {{codes[0].all(), 0.5f},
                                                      {codes[1].all(), 0.5f}};
    using mean = rivulet::pass::sum_of<C>;
    using sink = rivulet::pass::outer_step<rivulet::outer::nesterov>;
    rivulet::pass::receive<mean, sink> const pass{
        {codec, &fragment.layout(), fragment.layout().all(), senders},
        {{}, fragment.outer.data(), fragment.slots(), fragment.layout().values(), 0.5f},
        &fragment.layout()};
    for_tiles(first, count, pass);
  }
  /// Its memory traffic and nothing else.
  void run_traffic(std::size_t first, std::size_t count) const {
    for_tiles(first, count, [&](std::size_t tile) {
      rivulet::tile_part const part = fragment.layout().tile(tile);
      std::size_t const bytes = rivulet::codec::tile_bytes(codec, part.count);
      baseline::receive(codes[0].all().subspan(part.byte, bytes),
                        codes[1].all().subspan(part.byte, bytes),
                        {fragment.outer.data() + part.begin, part.count},
                        {fragment.slots() + part.begin, part.count},
                        fragment.local_values().subspan(part.begin, part.count));
    });
  }

 private:
  [[nodiscard]] buffer<std::byte> coded(std::size_t values) const {
    buffer<std::byte> result{rivulet::codec::encoded_bytes(codec, values)};
    rivulet::codec::encode(codec, input(0, values), result.all());
    return result;
  }
};

/// Both forms must write the same codes; those of D, by the vector and the scalar code.
template <class C>
void check_encoding(C const& codec, std::string const& label) {
  std::size_t const n = in_cache;
  encoding_pass<C> a{codec, n};
  encoding_pass<C> b{codec, n};
  encoding_pass<C> c{codec, n};
  a.run(0, n);
  b.run_summed(0, n);
  without_vectors([&] { c.run_summed(0, n); });
  check(std::ranges::equal(a.payload.all(), b.payload.all()), label, "the encoding pass");
  check(std::ranges::equal(b.payload.all(), c.payload.all()), label, "the encoding pass");
  check(b.totals.payload_sum == c.totals.payload_sum && b.totals.source_sum == c.totals.source_sum,
        label, "the checksums");
  buffer<float> gradient{n};
  rivulet::codec::decode(codec, a.payload.all(), gradient.all());
  buffer<float> difference{n};
  for (std::size_t i = 0; i < n; ++i) {
    difference.data()[i] = a.fragment.outer.data()[i] - a.fragment.local_values()[i];
  }
  check(signal_to_noise_db(difference.all(), gradient.all()) > 0.2, label, "the encoding pass");
}

template <class C>
void check_receiving(C const& codec, std::string const& label) {
  std::size_t const n = in_cache;
  receiving_pass<C> a{codec, n};
  receiving_pass<C> b{codec, n};
  a.run(0, n);
  without_vectors([&] { b.run(0, n); });
  check(std::ranges::equal(a.fragment.outer.all(), b.fragment.outer.all()) &&
            std::ranges::equal(a.fragment.momentum.all(), b.fragment.momentum.all()) &&
            std::ranges::equal(a.fragment.local_values(), b.fragment.local_values()),
        label, "the receiving pass");
  check(!std::ranges::equal(a.fragment.outer.all(), input(0, n)), label, "the receiving pass");
}

template <rivulet::Codec C>
contestant running_pass(C const& codec, pass_part what, std::size_t values,
                        std::string const& label) {
  auto const bind = [&](char const* name, auto pass, auto function) {
    return contestant{name, values, [pass, function](std::size_t first, std::size_t count) {
                        ((*pass).*function)(first, count);
                      }};
  };
  if (what == pass_part::encode || what == pass_part::encode_summed) {
    check_encoding(codec, label);
    auto const pass = std::make_shared<encoding_pass<C>>(codec, values);
    return what == pass_part::encode
               ? bind("encoding pass without", pass, &encoding_pass<C>::run)
               : bind("encoding pass with both", pass, &encoding_pass<C>::run_summed);
  }
  check_receiving(codec, label);
  auto const pass = std::make_shared<receiving_pass<C>>(codec, values);
  return what == pass_part::receive ? bind("receiving pass", pass, &receiving_pass<C>::run)
                                    : bind("traffic", pass, &receiving_pass<C>::run_traffic);
}

}  // namespace codec_bench
