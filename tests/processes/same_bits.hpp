#pragma once

/// \file
/// What a transport carries changes no bit: every codec, by both reductions, gives the outer
/// parameters that it gives over comm::local.

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "contract/all_codecs.hpp"
#include "multi_rank/model.hpp"
#include "multi_rank/ranks.hpp"

namespace rivulet_test {

/// Hash of the outer parameters after a short run, with several fragments in flight.
template <class Comm, class C>
std::uint64_t outer_after_run(Comm& comm, C const& codec, rivulet::reduce::method reduction) {
  model m = small_model();
  rivulet::parameter_set parameters = m.parameters();
  rivulet::sync_config config = settings(4, 3, 0.25f);
  config.reduction = reduction;
  config.weight = 1 + comm.rank();
  rivulet::streaming_diloco sync{
      parameters, comm,
      config,     rivulet::partition::balanced{.fragments = 3},
      codec,      rivulet::outer::nesterov{.learning_rate = 0.3f, .momentum = 0.5f}};
  for (int step = 1; step <= 13; ++step) {
    m.inner_step(5, comm.rank(), step);
    sync.after_step();
  }
  sync.finish();
  return outer_hash(sync, m);
}

/// On every rank: a run over `comm`, and the same run by threads of this process.
template <class Comm>
void same_bits_as_local(Comm& comm) {
  auto const check_one = [&](char const* name, auto const& tested) {
    CAPTURE(name);
    rivulet::codec::any const codec(tested.codec);
    for (auto const reduction :
         {rivulet::reduce::method::all_gather, rivulet::reduce::method::all_to_all}) {
      CAPTURE(static_cast<int>(reduction));
      std::vector<std::uint64_t> local(static_cast<std::size_t>(comm.size()));
      run_ranks(comm.size(), [&](rivulet::comm::local& thread) {
        local[static_cast<std::size_t>(thread.rank())] = outer_after_run(thread, codec, reduction);
      });
      CHECK(outer_after_run(comm, codec, reduction) == local[0]);
    }
  };
#define RIVULET_CHECK_ONE(name) check_one(#name, codecs::name());
  RIVULET_TEST_CODECS(RIVULET_CHECK_ONE)
#undef RIVULET_CHECK_ONE
}

}  // namespace rivulet_test
