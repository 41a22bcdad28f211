/// The bits of the outer state are pinned, so that every compiler, optimization level and sanitizer
/// that runs this test is compared with every other.

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/rivulet.hpp>

#include "multi_rank/ranks.hpp"

namespace {

TEST_CASE("golden: the outer state has the same bits under every compiler and flag") {
  rivulet_test::run_ranks(3, [](rivulet::comm::local& comm) {
    std::vector<float> a(5000, 1.0f);
    std::vector<rivulet::bf16> b(321, rivulet::to_bf16(0.5f));
    rivulet::parameter_set parameters;
    parameters.add("a", rivulet::embedding, a);
    parameters.add("b", rivulet::layer(0), b);
    rivulet::streaming_diloco sync{
        parameters,
        comm,
        {.sync_every = 6, .overlap_steps = 2, .mixing = 0.5f},
        rivulet::partition::balanced{.fragments = 3},
        rivulet::codec::e3m0{},
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
    CHECK(sync.outer_fingerprint() == 9238650617088404287u);
  });
}

}  // namespace
