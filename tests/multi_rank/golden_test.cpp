/// The bits of the outer parameters are pinned, so that every compiler, optimization level and
/// sanitizer that runs this test is compared with every other.

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/rivulet.hpp>

#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using rivulet::reduce::method;

/// Hash of the outer parameters of a run of three ranks.
template <class C>
std::uint64_t outer_bits(method reduction, C codec) {
  std::vector<std::uint64_t> hashes(3);
  rivulet_test::run_ranks(3, [&](rivulet::comm::local& comm) {
    std::vector<float> a(5000, 1.0f);
    std::vector<rivulet::bf16> b(321, rivulet::to_bf16(0.5f));
    rivulet::parameter_set parameters;
    parameters.add("a", rivulet::embedding, a);
    parameters.add("b", rivulet::layer(0), b);
    rivulet::streaming_diloco sync{
        parameters,
        comm,
        {.sync_every = 6, .overlap_steps = 2, .mixing = 0.5f, .reduction = reduction},
        rivulet::partition::balanced{.fragments = 3},
        codec,
        rivulet::outer::nesterov{.learning_rate = 0.7f, .momentum = 0.9f}};
    sync.set_weight(1.0 + comm.rank());
    auto const seed = static_cast<std::uint64_t>(comm.rank()) << 32;
    for (std::uint64_t step = 1; step <= 60; ++step) {
      // Sums of few bits: no flag can round them differently.
      auto const move = [&](std::uint64_t i) {
        auto const bits = rivulet::detail::mix(seed + step * 8192 + i) >> 59;
        return (static_cast<float>(bits) - 16.0f) * 0x1p-10f;
      };
      for (std::size_t i = 0; i < a.size(); ++i) a[i] += move(i);
      for (std::size_t i = 0; i < b.size(); ++i) b[i] = rivulet::to_bf16(to_float(b[i]) + move(i));
      sync.after_step();
    }
    sync.finish();
    std::uint64_t& hash = hashes[static_cast<std::size_t>(comm.rank())];
    for (std::vector<float> const& outer : {rivulet_test::outer_of(sync, "a", a.size()),
                                            rivulet_test::outer_of(sync, "b", b.size())}) {
      hash = rivulet_test::hash_of(std::as_bytes(std::span(outer)), hash);
    }
  });
  CHECK(hashes == std::vector(3, hashes[0]));
  return hashes[0];
}

TEST_CASE("golden: the outer parameters have the same bits under every compiler and flag") {
  using namespace rivulet::codec;
  top_k<e3m0<>> const top{.fraction = 0.1};
  CHECK(outer_bits(method::all_gather, e3m0{}) == 2265789470486414103u);
  CHECK(outer_bits(method::all_to_all, e3m0{}) == 17476136032121880806u);
  CHECK(outer_bits(method::all_gather, error_feedback{e3m0{}}) == 5061278038554214156u);
  CHECK(outer_bits(method::all_to_all, error_feedback{e3m0{}, 0.75f}) == 9924526606132202288u);
  CHECK(outer_bits(method::all_gather, error_feedback{top}) == 4403088141022081570u);
  CHECK(outer_bits(method::all_to_all, top) == 5871094778792871187u);
}

}  // namespace
