#pragma once

/// \file
/// What error feedback remembers: per fragment the residual e, and the one that an operation in
/// flight will leave if it is applied.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <rivulet/engine/outer_state.hpp>

namespace rivulet {

/// Residuals of all fragments; empty unless the codec has error feedback. No two operations of one
/// fragment are in flight, so there is one pending residual per fragment.
class residuals {
 public:
  residuals(outer_state const& state, bool enabled) {
    if (!enabled) return;
    for (int p = 0; p < state.fragments_count(); ++p) {
      std::size_t const values = state.layout(p).values();
      all_.push_back({std::vector<float>(values), std::vector<float>(values), nothing});
    }
  }

  [[nodiscard]] bool enabled() const { return !all_.empty(); }
  /// e of fragment `p`.
  [[nodiscard]] std::span<float> kept(int p) { return at(p).kept; }
  /// What the operation in flight leaves.
  [[nodiscard]] std::span<float> pending(int p) { return at(p).pending; }

  /// An operation of fragment `p` has been sent when `version` syncs had been applied.
  void sent(int p, std::uint64_t version) {
    if (enabled()) at(p).version = version;
  }
  /// Whether an operation in flight will leave its residual if it is applied.
  [[nodiscard]] bool is_pending(int p) const {
    return enabled() && all_[static_cast<std::size_t>(p)].version != nothing;
  }
  /// The fragment's version is now `version`: if the operation in flight was applied, it leaves its
  /// residual; if not, e stays as it was.
  void received(int p, std::uint64_t version) {
    if (!enabled()) return;
    residual& r = at(p);
    if (r.version != nothing && version > r.version) r.kept.swap(r.pending);
    r.version = nothing;
  }

 private:
  static constexpr std::uint64_t nothing = ~std::uint64_t{0};  // no operation in flight counts

  struct residual {
    std::vector<float> kept;
    std::vector<float> pending;
    std::uint64_t version;
  };

  [[nodiscard]] residual& at(int p) { return all_[static_cast<std::size_t>(p)]; }

  std::vector<residual> all_;
};

}  // namespace rivulet
