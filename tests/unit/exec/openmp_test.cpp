#include <atomic>
#include <cstddef>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/message.hpp>
#include <rivulet/exec/host.hpp>
#include <rivulet/exec/openmp.hpp>
#include <rivulet/outer/nesterov.hpp>

#include "contract/codec_tools.hpp"
#include "contract/executor_contract.hpp"

namespace {

TEST_CASE("openmp: meets the contract with any number of threads") {
  for (int const threads : {0, 1, 2, 3, 5}) {
    rivulet_test::executor_contract(rivulet::exec::openmp{threads});
  }
}

TEST_CASE("openmp: the team has the threads that were asked for") {
  std::atomic<int> team{0};
  rivulet::exec::openmp{3}.for_each_tile(1, [&](std::size_t) { team = omp_get_num_threads(); });
  CHECK(team == 3);
}

/// What both passes leave behind.
struct result {
  std::vector<std::byte> message;
  std::vector<float> left_over, theta, momentum, local;
  int parameter;
  bool operator==(result const&) const = default;
};

TEST_CASE("openmp: both passes give the bits of the host") {
  using codec = rivulet::codec::e3m0<64>;
  auto const run = [](auto const& executor, bool bad) {
    std::vector<float> a = rivulet_test::normal_values(50001, 1);
    std::vector<float> b = rivulet_test::normal_values(12345, 2);
    if (bad) a[20000] = b[3] = std::numeric_limits<float>::infinity();
    rivulet::parameter_set params;
    params.add("a", rivulet::layer(0), a);
    params.add("b", rivulet::layer(0), b);
    rivulet::fragment const all{"all", {{1, 0, 12345}, {0, 0, 50001}}};
    rivulet::fragment_layout const layout(all, params, codec{});
    std::size_t const n = layout.values();
    result r{std::vector<std::byte>(rivulet::message_bytes(codec{}, layout, layout.all())),
             std::vector<float>(n),
             rivulet_test::normal_values(n, 3),
             rivulet_test::normal_values(n, 4),
             {},
             -1};
    rivulet::message_encoder<codec> encoder;
    r.parameter = rivulet::encode_message(
        codec{}, encoder, executor, rivulet::pass::outer_gradient{r.theta.data()}, layout,
        layout.all(), {.left_over = {r.left_over.data()}}, {}, r.message);
    if (bad) r.left_over.clear();  // some are NaN
    rivulet::codec::weighted_codes const sender{std::span(r.message).subspan(rivulet::header_bytes),
                                                1.0f};
    rivulet::pass::sum_of<codec> const mean{codec{}, &layout, layout.all(), std::span(&sender, 1)};
    rivulet::pass::outer_step<rivulet::outer::nesterov> const sink{
        {}, r.theta.data(), r.momentum.data(), n, 0.5f};
    executor.for_each_tile(layout.tiles(), rivulet::pass::receive{mean, sink, &layout});
    r.local = a;
    r.local.insert(r.local.end(), b.begin(), b.end());
    return r;
  };
  for (int const threads : {0, 2, 3}) {
    CHECK(run(rivulet::exec::openmp{threads}, false) == run(rivulet::exec::host{}, false));
  }
  // With values that are rejected: the same bytes, and the first parameter of the fragment.
  result const bad = run(rivulet::exec::openmp{3}, true);
  CHECK(bad.message == run(rivulet::exec::host{}, true).message);
  CHECK(bad.parameter == 1);
}

}  // namespace
