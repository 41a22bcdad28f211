#pragma once

/// \file
/// The schedule of Streaming DiLoCo (arXiv 2501.18512, algorithm 2): every fragment is sent every H
/// inner steps at an offset of its own, and received tau steps later.

#include <cstdint>
#include <span>
#include <vector>

#include <rivulet/concepts.hpp>

namespace rivulet {

/// When a fragment is sent for the first time.
enum class first_sync : std::uint8_t {
  after_full_round,  ///< at step H + offset (H if the offset is 0): never before it has done H
                     ///< steps
  at_offset          ///< at step offset (H if the offset is 0)
};

namespace schedule {

/// With offset o_p in 0 .. H-1, fragment p is sent after the steps t = o_p (mod H) from its first
/// sync on, and received after step t + tau. Order within a step: receives of earlier sends by
/// (send step, fragment); sends by fragment; with tau = 0 the receives of these sends. Any H >= 1,
/// any number of fragments P >= 1 and 0 <= tau <= H; H < P gives several sends in a step, tau above
/// H / P several in flight, never two of one fragment. Workers may differ in tau.
class streaming {
 public:
  /// Offsets floor(p * H / P) if `offsets` is empty.
  /// Throws precondition_error unless H >= 1, 0 <= tau <= H, P >= 1, and the offsets are P numbers
  /// from 0 to H - 1.
  streaming(int sync_every, int overlap_steps, int fragments, first_sync first,
            std::span<int const> offsets = {})
      : sync_every_(sync_every), overlap_steps_(overlap_steps), first_(first) {
    detail::require(sync_every >= 1, "sync_every (H) = ", sync_every, " must be at least 1");
    detail::require(overlap_steps >= 0 && overlap_steps <= sync_every,
                    "overlap_steps (tau) = ", overlap_steps,
                    " must be from 0 to sync_every (H) = ", sync_every,
                    ", or a fragment would be in flight twice");
    detail::require(fragments >= 1, "the number of fragments (P) = ", fragments,
                    " must be at least 1");
    detail::require(offsets.empty() || offsets.size() == static_cast<std::size_t>(fragments),
                    "offsets: ", offsets.size(), " given for ", fragments, " fragments");
    offsets_.assign(offsets.begin(), offsets.end());
    for (std::int64_t p = 0; offsets_.size() < static_cast<std::size_t>(fragments); ++p) {
      offsets_.push_back(static_cast<int>(p * sync_every / fragments));
    }
    for (int offset : offsets_) {
      detail::require(offset >= 0 && offset < sync_every, "offsets: ", offset,
                      " must be from 0 to sync_every (H) - 1 = ", sync_every - 1);
    }
  }

  /// Calls visit(sync_event) for what is due after `step` (1, 2, ...), in order.
  template <class Visit>
  void for_each_event(std::int64_t step, Visit&& visit) const {
    auto const each_sent_at = [&](std::int64_t sent_at, sync_event::kind what) {
      for (int p = 0; p < fragments(); ++p) {
        if (is_sent(p, sent_at)) visit(sync_event{what, p, sent_at});
      }
    };
    if (overlap_steps_ > 0) each_sent_at(step - overlap_steps_, sync_event::kind::receive);
    each_sent_at(step, sync_event::kind::send);
    if (overlap_steps_ == 0) each_sent_at(step, sync_event::kind::receive);
  }

  /// Whether fragment `p` is sent after `step`.
  [[nodiscard]] bool is_sent(int p, std::int64_t step) const {
    return step >= first_send(p) && (step - offset(p)) % sync_every_ == 0;
  }

  /// The step after which fragment `p` is sent for the first time.
  [[nodiscard]] std::int64_t first_send(int p) const {
    if (offset(p) == 0) return sync_every_;
    return first_ == first_sync::at_offset ? offset(p) : std::int64_t{sync_every_} + offset(p);
  }

  /// The largest number of sends of which none has been received yet.
  [[nodiscard]] int max_in_flight() const {
    int most = 0;
    for (std::int64_t end : offsets_) {  // the number grows only by a send
      int sends = 0;
      for (int p = 0; p < fragments(); ++p) {
        // Fragment p is in flight after step `end` if its last send is less than tau steps ago;
        // with tau = 0 all sends of a step precede their receives.
        std::int64_t const age = ((end - offset(p)) % sync_every_ + sync_every_) % sync_every_;
        if (age < (overlap_steps_ > 0 ? overlap_steps_ : 1)) ++sends;
      }
      most = sends > most ? sends : most;
    }
    return most;
  }

  [[nodiscard]] int fragments() const { return static_cast<int>(offsets_.size()); }
  [[nodiscard]] int sync_every() const { return sync_every_; }
  [[nodiscard]] int overlap_steps() const { return overlap_steps_; }
  [[nodiscard]] first_sync first() const { return first_; }
  [[nodiscard]] int offset(int p) const { return offsets_[static_cast<std::size_t>(p)]; }

 private:
  int sync_every_;
  int overlap_steps_;
  first_sync first_;
  std::vector<int> offsets_;
};

static_assert(SyncSchedule<streaming>);

}  // namespace schedule
}  // namespace rivulet
