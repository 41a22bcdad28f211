/// \file
/// Syncing a fragment changes no byte outside it; tied tensors are synced once, frozen ones never.

#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "contract/deduction.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::local;

/// A range of bytes that belongs to a parameter.
struct range {
  std::size_t begin;
  std::size_t end;
};

TEST_CASE("syncing one fragment changes no byte outside it") {
  for (int overlap : {0, 1}) {
    run_ranks(2, [&](local& comm) {
      // One block of memory: tensors of odd sizes with guards between, all filled with a pattern.
      std::vector<std::byte> memory(60'000, std::byte{0x3d});
      std::vector<range> ranges;
      rivulet::parameter_set parameters;
      std::size_t at = 64;
      auto const place = [&]<class T>(T*, std::size_t size, bool trainable) {
        T* const data = reinterpret_cast<T*>(memory.data() + at);
        ranges.push_back({at, at + size * sizeof(T)});
        parameters.add("p" + std::to_string(ranges.size()), rivulet::embedding, data, size,
                       trainable);
        at += (size * sizeof(T) + 3) / 4 * 4 + 20;
      };
      place(static_cast<float*>(nullptr), 1, true);
      place(static_cast<rivulet::bf16*>(nullptr), 4097, true);
      place(static_cast<rivulet::fp16*>(nullptr), 65, true);
      place(static_cast<float*>(nullptr), 77, false);
      place(static_cast<rivulet::bf16*>(nullptr), 1, true);
      place(static_cast<float*>(nullptr), 9001, true);
      REQUIRE(at < memory.size());
      rivulet::partition::by_name const partition{{{"p1", "p3"}, {"p2"}, {"p5", "p6"}}};
      std::vector<std::vector<std::size_t>> const members = {{0, 2}, {1}, {4, 5}};
      rivulet::streaming_diloco sync{parameters,
                                     comm,
                                     settings(3, overlap),
                                     partition,
                                     rivulet::codec::e3m0{},
                                     rivulet::outer::nesterov{}};
      int synced = 0;
      for (int step = 1; step <= 12; ++step) {
        for (std::size_t p = 0; p < parameters.size(); ++p) {  // training
          if (!parameters[p].trainable) continue;
          rivulet::detail::visit_element(parameters[p].tensor.element, [&](auto* type) {
            auto* const data = static_cast<decltype(type)>(parameters[p].tensor.data);
            for (std::size_t i = 0; i < parameters[p].tensor.size; ++i) {
              float const change = noise(static_cast<std::uint64_t>(step + comm.rank()), p, i, 0);
              data[i] = rivulet::from_float<std::remove_pointer_t<decltype(type)>>(
                  rivulet::to_float(data[i]) + 0.1f + 0.05f * change);
            }
          });
        }
        std::vector<std::byte> const before = memory;
        rivulet::step_report const& report = sync.after_step();
        std::vector<bool> may_change(memory.size(), false);
        std::vector<std::size_t> written;
        for (int f : report.applied) {
          for (std::size_t p : members[static_cast<std::size_t>(f)]) {
            written.push_back(p);
            for (std::size_t i = ranges[p].begin; i < ranges[p].end; ++i) may_change[i] = true;
            bool const changed =
                std::memcmp(memory.data() + ranges[p].begin, before.data() + ranges[p].begin,
                            ranges[p].end - ranges[p].begin) != 0;
            CHECK(changed);
          }
          ++synced;
        }
        CHECK(report.written == written);
        std::size_t outside = 0;
        for (std::size_t i = 0; i < memory.size(); ++i) {
          if (!may_change[i] && memory[i] != before[i]) ++outside;
        }
        CHECK(outside == 0);
      }
      CHECK(synced >= 9);
    });
  }
}

TEST_CASE("tied tensors are synced once, and frozen ones neither sent nor changed") {
  run_ranks(2, [](local& comm) {
    std::vector<float> shared(100, 1.0f);
    std::vector<float> frozen(64, static_cast<float>(comm.rank()));  // not even equal
    rivulet::parameter_set parameters;
    parameters.add("wte", rivulet::embedding, shared);
    parameters.add("position", rivulet::embedding, frozen, false);
    parameters.add("lm_head", rivulet::head, shared);
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   settings(1, 0),
                                   rivulet::partition::whole_model{},
                                   rivulet::codec::float32{},
                                   rivulet::outer::sgd{.learning_rate = 0.5f}};
    CHECK(sync.message_bytes(0) == 80 + 400);
    for (float& value : shared) value += 1.0f + static_cast<float>(comm.rank());
    for (float& value : frozen) value += 1.0f;
    CHECK(sync.after_step().written == std::vector<std::size_t>{0});
    // The mean change is 1.5, half of which is taken once.
    CHECK(shared == std::vector<float>(100, 1.75f));
    CHECK(frozen == std::vector<float>(64, static_cast<float>(comm.rank()) + 1.0f));
    CHECK(outer_of(sync, "lm_head", 100) == shared);
  });
}

TEST_CASE("parameters that move are followed by rebind") {
  run_ranks(2, [](local& comm) {
    std::vector<float> old_place(70, 1.0f);
    std::vector<float> new_place(70);
    rivulet::parameter_set parameters;
    parameters.add("x", rivulet::layer(0), old_place);
    rivulet::streaming_diloco sync{parameters,
                                   comm,
                                   settings(2, 1),
                                   rivulet::partition::whole_model{},
                                   rivulet::codec::float32{},
                                   rivulet::outer::sgd{}};
    old_place.assign(70, 2.0f);
    sync.after_step();
    sync.after_step();  // sends from the old place
    new_place = old_place;
    old_place.assign(70, -5.0f);
    parameters.rebind("x", new_place);
    new_place.assign(70, 3.0f);
    CHECK(sync.after_step().applied.size() == 1);  // receives into the new one
    CHECK(new_place == std::vector<float>(70, 2.0f));
    CHECK(old_place == std::vector<float>(70, -5.0f));
    sync.swap_outer();
    sync.swap_outer();
    CHECK(old_place == std::vector<float>(70, -5.0f));
  });
}

}  // namespace
