/// \file
/// Memory: nothing is allocated after construction, and no more than the documented formula in it.
/// This file replaces operator new to count.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"
#include "multi_rank/reference.hpp"

namespace {

std::atomic<std::size_t> allocations{0};
std::atomic<std::size_t> live_bytes{0};
std::atomic<std::size_t> peak_bytes{0};

constexpr std::size_t prefix = 16;  // holds the size, and keeps the alignment

}  // namespace

void* operator new(std::size_t size) {
  void* const block = std::malloc(size + prefix);
  if (block == nullptr) throw std::bad_alloc();
  *static_cast<std::size_t*>(block) = size;
  ++allocations;
  std::size_t const live = live_bytes += size;
  std::size_t peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return static_cast<std::byte*>(block) + prefix;
}

void operator delete(void* pointer) noexcept {
  if (pointer == nullptr) return;
  void* const block = static_cast<std::byte*>(pointer) - prefix;
  live_bytes -= *static_cast<std::size_t*>(block);
  std::free(block);
}

void operator delete(void* pointer, std::size_t) noexcept { operator delete(pointer); }

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

/// Waits for all ranks.
void meet(local& comm) {
  std::byte const mine[1] = {};
  std::byte all[4];
  auto const size = static_cast<std::size_t>(comm.size());
  if (comm.all_gather(mine, std::span(all).first(size), soon()) != rivulet::comm_status::done) {
    std::abort();
  }
}

/// What `f` does on all ranks together: number of allocations, and bytes above the level before it.
struct memory_use {
  std::size_t allocations = 0;
  std::size_t peak = 0;
  std::size_t kept = 0;
};

template <class F>
void measure(local& comm, memory_use& use, F const& f) {
  meet(comm);
  if (comm.rank() == 0) {
    peak_bytes = live_bytes.load();
    use = {allocations, 0, live_bytes};
  }
  meet(comm);
  f();
  meet(comm);
  if (comm.rank() == 0) {
    use = {allocations - use.allocations, peak_bytes - use.kept, live_bytes - use.kept};
  }
  meet(comm);
}

using rivulet::reduce::method;

/// Bytes that encoders keep for messages of up to `n` values: candidates and their places.
template <class C>
std::size_t encoder_bytes(C const&, std::size_t) {
  return 0;
}
template <class V>
std::size_t encoder_bytes(rivulet::codec::top_k<V> const& top, std::size_t n) {
  return 8 * std::min(n, 4 * top.kept_of(n) + 4096);
}

/// Buffers of one sync of fragment `p`.
template <class Engine>
std::size_t buffer_bytes(Engine const& sync, int p, std::size_t world) {
  if (sync.reduction_of(p) == method::all_gather) return world * sync.message_bytes(p);
  // Sent to each: s bytes of a shard and s of its mean; kept for each: what is sent, what comes,
  // and the mean.
  return world == 1 ? 3 * sync.message_bytes(p)
                    : 3 * world * (sync.sent_bytes(p) / 2) / (world - 1);
}

template <class C, class O>
void check_memory(int world, int overlap_steps, C codec, O outer,
                  method reduction = method::automatic) {
  CAPTURE(world);
  CAPTURE(overlap_steps);
  CAPTURE(static_cast<int>(reduction));
  memory_use construction;
  memory_use training;
  memory_use swap;
  std::size_t formula = 0;
  std::size_t model_bytes = 0;
  run_ranks(world, [&](local& comm) {
    std::size_t const sizes[] = {30'000, 5'001, 64, 90'003, 12'345};
    std::vector<std::vector<float>> tensors;
    std::vector<rivulet::bf16> narrow(7'777);
    rivulet::parameter_set parameters;
    std::size_t total = narrow.size();
    tensors.reserve(std::size(sizes));
    for (std::size_t size : sizes) {
      tensors.emplace_back(size, 1.0f);
      int const layer = static_cast<int>(tensors.size()) - 1;
      parameters.add("h" + std::to_string(layer), rivulet::layer(layer), tensors.back());
      total += size;
    }
    parameters.add("narrow", rivulet::embedding, narrow);
    rivulet::sync_config config = settings(6, overlap_steps, 0.5f);
    config.reduction = reduction;
    rivulet::partition::strided const partitioner{.layers_per_fragment = 2};

    using engine = rivulet::streaming_diloco<local, C, O, rivulet::exec::host>;
    std::optional<engine> sync;
    measure(comm, construction,
            [&] { sync.emplace(parameters, comm, config, partitioner, codec, outer); });
    measure(comm, training, [&] {
      for (int step = 1; step <= 25; ++step) {
        for (auto& tensor : tensors) {
          for (float& value : tensor) value += 0.01f;
        }
        if (step == 20) tensors[3][5] = std::numeric_limits<float>::infinity();  // a skip, too
        sync->set_weight(step);
        sync->after_step();
      }
      sync->finish();
    });
    measure(comm, swap, [&] {
      sync->swap_outer();
      sync->swap_outer();
    });

    if (comm.rank() != 0) return;
    auto const ranks = static_cast<std::size_t>(world);
    auto const parts = parts_of(codec);
    std::size_t largest = 0;
    std::size_t longest = 0;
    for (int p = 0; p < sync->schedule().fragments(); ++p) {
      std::size_t values = 0;
      for (rivulet::slice const& slice : sync->fragments()[static_cast<std::size_t>(p)].slices) {
        values += slice.size;
      }
      largest = std::max(largest, buffer_bytes(*sync, p, ranks));
      longest = std::max(longest, values);
    }
    auto const in_flight = static_cast<std::size_t>(sync->schedule().max_in_flight());
    formula = 4 * (1 + O::state_slots) * total + in_flight * largest +
              (parts.feeds_back ? 8 * total : 0) + encoder_bytes(parts.sent, longest) +
              encoder_bytes(parts.mean, longest);
    model_bytes = 4 * (total - narrow.size()) + 2 * narrow.size();
  });
  auto const ranks = static_cast<std::size_t>(world);
  constexpr std::size_t small = 12'000;  // lists, names, the thread
  CHECK(construction.peak >= ranks * formula);
  CHECK(construction.peak <= ranks * (formula + small));
  CHECK(construction.kept <= construction.peak);
  CHECK(training.allocations == 0);
  CHECK(swap.peak == ranks * model_bytes);
}

TEST_CASE("the engine takes the documented memory, and none after construction") {
  for (int world : {1, 2, 4}) {
    check_memory(world, 0, rivulet::codec::e3m0{}, rivulet::outer::nesterov{});
    check_memory(world, 2, rivulet::codec::float32{}, rivulet::outer::sgd{});
    check_memory(world, 6, rivulet::codec::bf16{}, rivulet::outer::nesterov{});
  }
}

TEST_CASE("error feedback takes 8 bytes more per value, and nothing after construction") {
  using rivulet::codec::error_feedback;
  rivulet::codec::top_k<rivulet::codec::bf16> const top{.fraction = 0.01};
  for (method reduction : {method::all_gather, method::all_to_all}) {
    for (int world : {1, 3}) {
      check_memory(world, 2, rivulet::codec::e3m0{}, rivulet::outer::nesterov{}, reduction);
      check_memory(world, 6, error_feedback{rivulet::codec::e3m0{}}, rivulet::outer::sgd{},
                   reduction);
      check_memory(world, 2, top, rivulet::outer::nesterov{}, reduction);
      check_memory(world, 3, error_feedback{top}, rivulet::outer::sgd{}, reduction);
    }
  }
}

TEST_CASE("data_parallel takes the buffer of the reduction, and nothing after construction") {
  for (method reduction : {method::all_gather, method::all_to_all}) {
    for (int world : {1, 3}) {
      memory_use construction;
      memory_use training;
      std::size_t buffer = 0;
      run_ranks(world, [&](local& comm) {
        std::vector<float> gradient(50'001, 0.5f);
        rivulet::parameter_set gradients;
        gradients.add("g", rivulet::layer(0), gradient);
        using engine = rivulet::data_parallel<local, rivulet::codec::bf16, rivulet::exec::host>;
        std::optional<engine> mean;
        measure(comm, construction, [&] {
          mean.emplace(gradients, comm, rivulet::codec::bf16{}, rivulet::exec::host{}, 30'000,
                       reduction);
        });
        measure(comm, training, [&] {
          for (int step = 1; step <= 5; ++step) mean->average_gradients(step);
        });
        if (comm.rank() != 0) return;
        auto const ranks = static_cast<std::size_t>(world);
        buffer = ranks * mean->message_bytes();
        if (reduction == method::all_to_all) {
          // 13 tiles, the longest shard of 3 being the last: 4 and the short one.
          buffer = 3 * ranks * (80 + 2 * (world == 1 ? 50'001 : 50'001 - 8 * 4096));
        }
      });
      auto const ranks = static_cast<std::size_t>(world);
      CHECK(construction.peak >= ranks * buffer);
      CHECK(construction.peak <= ranks * (buffer + 4'000));
      CHECK(training.allocations == 0);
    }
  }
}

}  // namespace
