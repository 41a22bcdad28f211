#pragma once

/// \file
/// How ranks come to the same settings and the same versions when an engine starts: each gathers
/// the records of all and decides alike, so no vote is needed.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rivulet/codec/passes.hpp>
#include <rivulet/detail/hash.hpp>
#include <rivulet/engine/comm_link.hpp>
#include <rivulet/engine/outer_state.hpp>
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

/// The hashes of an engine.
template <class C, class O>
[[nodiscard]] setting_hashes hash_settings(parameter_set const& parameters,
                                           std::span<fragment const> fragments,
                                           schedule::streaming const& schedule,
                                           sync_config const& config, C const& codec,
                                           O const& outer) {
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
          codec::fingerprint(codec),
          static_cast<std::uint64_t>(config.nonfinite),
          static_cast<std::uint64_t>(config.reduction),
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
  std::uint64_t trains =
      1;  ///< 0 if the rank has not taken a step yet: a joiner, or all at the start

  /// Holds values that count before those of `other`.
  [[nodiscard]] bool ahead_of(version_record const& other) const {
    return version != other.version ? version > other.version : trains > other.trains;
  }
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
  int source = 0;    ///< the rank with the highest version, at version 0 one that trains already;
                     ///< the lowest among equals
  int differs = -1;  ///< a rank of the same version with other bits, or -1
  bool needed = false;  ///< some rank differs from the source
};

/// Decides on one fragment; record(r) is that of rank r.
template <class Record>
[[nodiscard]] adoption decide(int world, Record const& record) {
  adoption result;
  for (int r = 1; r < world; ++r) {
    if (record(r).ahead_of(record(result.source))) result.source = r;
  }
  version_record const best = record(result.source);
  for (int r = world - 1; r >= 0; --r) {
    if (record(r).version == best.version && record(r).bits == best.bits) continue;
    result.needed = true;
    if (!best.ahead_of(record(r))) result.differs = r;
  }
  return result;
}

/// Collective: fragment by fragment, the ranks take over the highest version; those equally far
/// hold the same bits already, or, at version 0, `initial` says that the first one's count. Calls
/// taken_over(p) for a fragment that changed on this rank.
/// Throws precondition_error or comm_error, alike on all ranks, where equal versions have different
/// bits.
template <class Comm, class TakenOver>
void agree_on_versions(comm_link<Comm>& link, outer_state& state,
                       std::span<fragment const> fragments, initial_parameters initial, bool trains,
                       TakenOver const& taken_over) {
  std::vector<version_record> mine;
  for (int p = 0; p < state.fragments_count(); ++p) {
    mine.push_back({state.version(p), state.bits(p), std::uint64_t{trains}});
  }
  auto const records =
      link.template gather<version_record>("comparing the versions of the ranks", mine);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    auto const p = static_cast<int>(i);
    auto const record = [&](int r) {
      return records[static_cast<std::size_t>(r) * mine.size() + i];
    };
    adoption const decision = decide(link.size(), record);
    if (!decision.needed) continue;
    version_record const best = record(decision.source);
    if (decision.differs >= 0) {
      std::string const who = concat("ranks ", decision.source, " and ", decision.differs);
      require(best.version > 0 || initial == initial_parameters::broadcast,
              "the initial parameters of ", who, " differ in fragment '", fragments[i].name,
              "'; start all ranks from the same values, or set .initial = "
              "initial_parameters::broadcast; to resume a saved run, restore the local parameters "
              "after construction");
      if (best.version > 0) {
        throw comm_error(concat("rivulet: ", who, " hold version ", best.version, " of fragment ",
                                p, " with different bits"),
                         comm_status::failed, decision.differs, p, 0);
      }
    }
    std::vector<float> values = state.copy(p);  // so that a broadcast that fails changes nothing
    link.broadcast("adopting outer parameters", values, decision.source);
    if (mine[i].version == best.version && mine[i].bits == best.bits) continue;
    state.replace(p, values, best.version);
    taken_over(p);
  }
}

}  // namespace rivulet::detail
