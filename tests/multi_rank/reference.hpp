#pragma once

/// \file
/// Streaming DiLoCo the naive way: one thread, all workers in a list, whole tensors, a double loop
/// straight from the algorithm (arXiv 2501.18512, algorithm 2). It shares with the engine the
/// codecs' arithmetic on a slice and the partition, and nothing else.

#include <cmath>
#include <cstdint>
#include <list>
#include <vector>

#include "multi_rank/model.hpp"

namespace rivulet_test {

/// What may differ from worker to worker.
struct worker_options {
  int overlap_steps = 0;
  float mixing = 0;
  double weight = 1;
};

/// A run of all workers.
template <class C>
class reference {
 public:
  struct outer_rule {
    float learning_rate;
    float momentum;
    bool nesterov;
  };

  reference(model const& start, std::vector<worker_options> options, int sync_every,
            rivulet::first_sync first, std::vector<int> offsets, any_partitioner const& partitioner,
            C codec, outer_rule outer, std::uint64_t seed)
      : sync_every_(sync_every),
        first_(first),
        offsets_(std::move(offsets)),
        codec_(codec),
        outer_(outer),
        seed_(seed) {
    for (worker_options const& o : options) {
      worker w{o, start, {}, {}};
      for (named_tensor const& t : start.tensors) {
        std::vector<float> values(t.values.size());
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = t.values.get(i);
        w.outer.push_back(values);
        w.momentum.emplace_back(values.size(), 0.0f);
      }
      workers_.push_back(std::move(w));
    }
    model copy = start;
    fragments_ = partitioner(copy.parameters().parameters());
    if (offsets_.empty()) {
      for (std::size_t p = 0; p < fragments_.size(); ++p) {
        offsets_.push_back(static_cast<int>(p) * sync_every / static_cast<int>(fragments_.size()));
      }
    }
  }

  /// One inner step of all workers and what is due after it.
  void step() {
    ++step_;
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      workers_[w].local.inner_step(seed_, static_cast<int>(w), step_);
      receive(w, step_ - 1);
    }
    for (std::size_t p = 0; p < fragments_.size(); ++p) {
      if (is_due(p)) send(p);
    }
    for (std::size_t w = 0; w < workers_.size(); ++w) receive(w, step_);
  }

  /// All workers receive what is in flight.
  void finish() {
    for (std::size_t w = 0; w < workers_.size(); ++w) receive(w, step_, true);
  }

  [[nodiscard]] std::uint64_t local_hash(int rank) const { return at(rank).local.hash(); }
  [[nodiscard]] std::uint64_t outer_hash(int rank) const {
    std::uint64_t sum = 0;
    for (auto const& values : at(rank).outer) sum = hash_of(std::as_bytes(std::span(values)), sum);
    return sum;
  }

 private:
  struct worker {
    worker_options options;
    model local;
    std::vector<std::vector<float>> outer;
    std::vector<std::vector<float>> momentum;
  };
  struct flight {
    std::size_t fragment;
    std::int64_t sent_at;
    std::vector<std::vector<float>> mean;  // of each slice
    std::vector<bool> received;            // by each worker
  };

  [[nodiscard]] worker const& at(int rank) const {
    return workers_[static_cast<std::size_t>(rank)];
  }

  [[nodiscard]] bool is_due(std::size_t p) const {
    std::int64_t const offset = offsets_[p];
    bool const full_round = first_ == rivulet::first_sync::after_full_round || offset == 0;
    return step_ % sync_every_ == offset && (!full_round || step_ >= sync_every_);
  }

  void send(std::size_t p) {
    double total = 0;
    for (worker const& w : workers_) total += w.options.weight;
    flight f{p, step_, {}, std::vector<bool>(workers_.size(), total == 0)};
    for (rivulet::slice const& s : fragments_[p].slices) {
      std::vector<float> mean(s.size, 0.0f);
      for (worker const& w : workers_) {
        if (w.options.weight == 0) continue;
        std::vector<float> gradient(s.size);
        tensor rounded = w.local.tensors[s.parameter].values;
        for (std::size_t i = 0; i < s.size; ++i) {
          std::size_t const at = s.offset + i;
          float const local = rounded.get(at);
          rounded.set(at, w.outer[s.parameter][at]);
          gradient[i] = rounded.get(at) - local;
        }
        std::vector<std::byte> code(rivulet::codec::encoded_bytes<C>(s.size));
        rivulet::codec::encode(codec_, gradient, code);
        auto const share = static_cast<float>(w.options.weight / total);
        rivulet::codec::accumulate(codec_, code, share, mean);
      }
      f.mean.push_back(mean);
    }
    flights_.push_back(f);
  }

  void receive(std::size_t rank, std::int64_t sent_until, bool early = false) {
    worker& w = workers_[rank];
    for (flight& f : flights_) {
      if (f.received[rank] || f.sent_at > sent_until) continue;
      if (!early && f.sent_at + w.options.overlap_steps != step_) continue;
      apply(w, f);
      f.received[rank] = true;
    }
  }

  void apply(worker& w, flight const& f) {
    std::size_t number = 0;
    for (rivulet::slice const& s : fragments_[f.fragment].slices) {
      std::vector<float> const& mean = f.mean[number++];
      tensor& local = w.local.tensors[s.parameter].values;
      for (std::size_t i = 0; i < s.size; ++i) {
        float& theta = w.outer[s.parameter][s.offset + i];
        float& m = w.momentum[s.parameter][s.offset + i];
        float direction = mean[i];
        if (outer_.nesterov) {
          m = std::fma(outer_.momentum, m, mean[i]);
          if (std::fabs(m) < 0x1p-100f) m = 0.0f;
          direction = std::fma(outer_.momentum, m, mean[i]);
        }
        theta = std::fma(-outer_.learning_rate, direction, theta);
        float const alpha = w.options.mixing;
        float const mixed = std::fma(alpha, local.get(s.offset + i), (1.0f - alpha) * theta);
        local.set(s.offset + i, alpha == 0 ? theta : mixed);
      }
    }
  }

  int sync_every_;
  rivulet::first_sync first_;
  std::vector<int> offsets_;
  C codec_;
  outer_rule outer_;
  std::uint64_t seed_;
  std::vector<rivulet::fragment> fragments_;
  std::vector<worker> workers_;
  std::list<flight> flights_;
  std::int64_t step_ = 0;
};

}  // namespace rivulet_test
