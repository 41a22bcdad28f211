#pragma once

/// \file
/// How ranks come to the same settings and the same versions when an engine starts: each gathers
/// the records of all and decides alike, so no vote is needed.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include <rivulet/codec/passes.hpp>
#include <rivulet/detail/hash.hpp>
#include <rivulet/engine/sync_config.hpp>
#include <rivulet/error.hpp>
#include <rivulet/fragment.hpp>
#include <rivulet/schedule/streaming.hpp>

namespace rivulet::detail {

/// What the bits of the outer parameters depend on, in the order of comparison.
inline constexpr std::array<std::string_view, 12> setting_names = {
    "the wire format",
    "the parameters (names, sizes or which are trainable)",
    "the partition",
    "sync_every (H)",
    "the offsets",
    "first_sync",
    "the codec",
    "the nonfinite policy",
    "the reduction",
    "the outer optimizer",
    "the outer learning rate",
    "initial (verify or broadcast)"};

using setting_hashes = std::array<std::uint64_t, setting_names.size()>;

/// The settings before these two count for a saved state.
inline constexpr std::size_t saved_settings = setting_names.size() - 2;

/// The hashes of an engine with codec C and reduction R.
template <class C, class R, class O>
[[nodiscard]] setting_hashes hash_settings(parameter_set const& parameters,
                                           std::span<fragment const> fragments,
                                           schedule::streaming const& schedule,
                                           sync_config const& config, O const& outer) {
  hash model;
  hash partition;
  hash offsets;
  for (parameter const& p : parameters.parameters()) {
    model.add(p.name).add(p.tensor.size).add(std::uint64_t{p.trainable});
  }
  for (fragment const& f : fragments) {
    partition.add(f.slices.size());
    for (slice const& s : f.slices) partition.add(s.parameter).add(s.offset).add(s.size);
  }
  for (int p = 0; p < schedule.fragments(); ++p) {
    offsets.add(static_cast<std::uint64_t>(schedule.offset(p)));
  }
  return {wire_header::expected_format,
          model.value(),
          partition.value(),
          static_cast<std::uint64_t>(schedule.sync_every()),
          offsets.value(),
          static_cast<std::uint64_t>(schedule.first()),
          hash{}.add(std::string_view(C::name)).add(C::block_size).value(),
          static_cast<std::uint64_t>(config.nonfinite),
          hash{}.add(R::name).value(),
          outer.fingerprint(),
          hash{}.add(outer.learning_rate).value(),
          static_cast<std::uint64_t>(config.initial)};
}

/// What a rank tells first.
struct start_record {
  setting_hashes settings;
  std::int64_t step;
};

/// What a rank tells of each fragment.
struct version_record {
  std::uint64_t version;  ///< syncs applied
  std::uint64_t bits;     ///< checksum of outer parameters and optimizer state
};

/// Throws precondition_error, the same on every rank, that names the first setting in which a rank
/// differs from rank 0.
inline void check_settings(std::span<start_record const> of_rank) {
  for (std::size_t i = 0; i < setting_names.size(); ++i) {
    for (std::size_t r = 1; r < of_rank.size(); ++r) {
      require(of_rank[r].settings[i] == of_rank[0].settings[i], "ranks 0 and ", r, " differ in ",
              setting_names[i], "; all workers need equal settings");
    }
  }
}

/// Whose outer parameters of a fragment count.
struct adoption {
  int source = 0;       ///< the rank with the highest version, the lowest among equals
  int differs = -1;     ///< a rank of the same version with other bits, or -1
  bool needed = false;  ///< some rank differs from the source
};

/// Decides on one fragment; record(r) is that of rank r.
template <class Record>
[[nodiscard]] adoption decide(int world, Record const& record) {
  adoption result;
  for (int r = 1; r < world; ++r) {
    if (record(r).version > record(result.source).version) result.source = r;
  }
  version_record const best = record(result.source);
  for (int r = world - 1; r >= 0; --r) {
    bool const same_version = record(r).version == best.version;
    bool const same_bits = record(r).bits == best.bits;
    if (same_version && !same_bits) result.differs = r;
    if (!same_version || !same_bits) result.needed = true;
  }
  return result;
}

}  // namespace rivulet::detail
