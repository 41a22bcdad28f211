#pragma once

/// \file
/// Settings of streaming_diloco.

#include <cstdint>
#include <vector>

#include <rivulet/reduce/mean.hpp>
#include <rivulet/schedule/streaming.hpp>

namespace rivulet {

/// What happens at the start when no rank has synchronized yet and their parameters differ.
enum class initial_parameters : std::uint8_t {
  verify,    ///< an error on all ranks that names the fragment
  broadcast  ///< all take those of rank 0
};

/// Settings of streaming_diloco. All workers need the same but for tau, mixing, weight and timeout.
struct sync_config {
  int sync_every = 100;   ///< H >= 1: inner steps between two syncs of the same fragment
  int overlap_steps = 1;  ///< tau, 0 .. H: inner steps from send to receive
  float mixing = 0.0f;    ///< alpha, 0 .. 1: weight of the local parameters at a receive; with
                        ///< alpha = 0 the tau steps of each round are lost: all of them if tau = H
  rivulet::first_sync first_sync = rivulet::first_sync::after_full_round;
  std::vector<int> offsets = {};  ///< send offset per fragment, 0 .. H-1; empty: floor(p * H / P)
  nonfinite_policy nonfinite = nonfinite_policy::reject;
  reduce::method reduction = reduce::method::automatic;
  initial_parameters initial = initial_parameters::verify;
  double weight = 1.0;       ///< of this worker in the mean; 0: receives only
  int timeout_ms = 600'000;  ///< bound on every collective and every wait, > 0

  /// Throws precondition_error for a setting that breaks a rule (the schedule checks its own).
  void check() const {
    detail::require(mixing >= 0 && mixing <= 1, "mixing (alpha) = ", mixing,
                    " must be from 0 to 1");
    detail::require(timeout_ms > 0, "timeout_ms = ", timeout_ms, " must be positive");
    check_weight(weight);
  }

  /// Throws precondition_error unless `weight` can be a weight of the mean.
  static void check_weight(double weight) {
    detail::require(detail::is_finite(weight) && weight >= 0, "weight = ", weight,
                    " must be finite and not negative");
  }
};

}  // namespace rivulet
