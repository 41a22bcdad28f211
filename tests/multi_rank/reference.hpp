#pragma once

/// \file
/// Streaming DiLoCo the naive way: one thread, all workers in a list, whole tensors, a double loop
/// straight from the algorithm (arXiv 2501.18512, algorithm 2), with both reductions and error
/// feedback by their definitions. It shares with the engine the codecs' arithmetic on a tile or a
/// message and the partition, and nothing else.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <vector>

#include "multi_rank/model.hpp"

namespace rivulet_test {

/// What a codec for engines is made of.
template <class C, class M>
struct codec_parts {
  C sent;
  M mean;
  bool feeds_back = false;
  float beta = 0;
};

template <class C>
codec_parts<C, C> parts_of(C const& codec) {
  return {codec, codec};
}
template <class C, class M>
codec_parts<C, M> parts_of(rivulet::codec::two_stage<C, M> const& codec) {
  return {codec.sent, codec.mean};
}
template <class C>
auto parts_of(rivulet::codec::error_feedback<C> const& codec) {
  auto parts = parts_of(codec.codec);
  parts.feeds_back = true;
  parts.beta = codec.beta;
  return parts;
}

/// The values of a run of tiles.
using tiles = std::vector<std::vector<float>>;

/// A run of tiles in code: each by itself, or all as one message if the codec is such a one.
template <class C>
class coded_tiles {
 public:
  static constexpr bool whole = !rivulet::Codec<C>;

  coded_tiles(C const& codec, tiles const& values) : codec_(codec) {
    for (std::vector<float> const& run : runs(values)) {
      codes_.emplace_back(bytes(codec, run.size()));
      rivulet::codec::encode(codec_, run, codes_.back());
    }
  }

  /// sums <- fma(value, scale * weight, sums)
  void add_to(tiles& sums, float weight) const {
    tiles of_run = runs(sums);
    for (std::size_t i = 0; i < of_run.size(); ++i) {
      rivulet::codec::accumulate(codec_, codes_[i], weight, of_run[i]);
    }
    std::size_t run = 0;
    std::size_t at = 0;
    for (std::vector<float>& tile : sums) {
      for (float& value : tile) value = of_run[run][at++];
      if (!whole) ++run, at = 0;
    }
  }

  /// Bytes of a message about these tiles.
  static std::size_t message_bytes(C const& codec, tiles const& values) {
    std::size_t sum = rivulet::header_bytes;
    for (std::vector<float> const& run : runs(values)) sum += bytes(codec, run.size());
    return sum;
  }

 private:
  static tiles runs(tiles const& values) {
    if constexpr (!whole) {
      return values;
    } else {
      tiles all(1);
      for (std::vector<float> const& t : values) all[0].insert(all[0].end(), t.begin(), t.end());
      return all;
    }
  }
  static std::size_t bytes(C const& codec, std::size_t values) {
    if constexpr (!whole) {
      return rivulet::codec::encoded_bytes(codec, values);
    } else {
      return codec.message_bytes(values);
    }
  }

  C codec_;
  std::vector<std::vector<std::byte>> codes_;
};

/// Part `index` of `parts` of a run of tiles.
inline tiles shard_of(tiles const& all, std::size_t index, std::size_t parts) {
  auto const at = [&](std::size_t i) {
    return all.begin() + static_cast<std::ptrdiff_t>(all.size() * i / parts);
  };
  return tiles(at(index), at(index + 1));
}

/// What may differ from worker to worker.
struct worker_options {
  int overlap_steps = 0;
  float mixing = 0;
  double weight = 1;
};

/// A run.
struct scenario {
  model start;
  std::vector<worker_options> workers;
  int sync_every = 1;
  rivulet::first_sync first = rivulet::first_sync::after_full_round;
  std::vector<int> offsets = {};
  any_partitioner partitioner = rivulet::partition::whole_model{};
  rivulet::reduce::method reduction = rivulet::reduce::method::automatic;
  int steps = 0;
  std::uint64_t seed = 1;

  [[nodiscard]] int world() const { return static_cast<int>(workers.size()); }
  /// The settings of a worker.
  [[nodiscard]] rivulet::sync_config config(int rank) const {
    worker_options const& own = workers[static_cast<std::size_t>(rank)];
    rivulet::sync_config config = settings(sync_every, own.overlap_steps, own.mixing);
    config.weight = own.weight;
    config.first_sync = first;
    config.offsets = offsets;
    config.reduction = reduction;
    return config;
  }
};

/// Plain descent, or Nesterov's.
struct outer_rule {
  float learning_rate;
  float momentum;
  bool nesterov;

  explicit outer_rule(rivulet::outer::sgd const& sgd) : outer_rule(sgd.learning_rate, 0, false) {}
  explicit outer_rule(rivulet::outer::nesterov const& outer)
      : outer_rule(outer.learning_rate, outer.momentum, true) {}

 private:
  outer_rule(float rate, float mu, bool is_nesterov)
      : learning_rate(rate), momentum(mu), nesterov(is_nesterov) {}
};

/// All workers of a run.
template <class C>
class reference {
 public:
  reference(scenario const& s, C codec, outer_rule outer)
      : sync_every_(s.sync_every),
        first_(s.first),
        offsets_(s.offsets),
        reduction_(s.reduction),
        codec_(parts_of(codec)),
        outer_(outer),
        seed_(s.seed) {
    for (worker_options const& o : s.workers) {
      worker w{static_cast<int>(workers_.size()), o, s.start, {}, {}, {}};
      for (named_tensor const& t : s.start.tensors) {
        std::vector<float> values(t.values.size());
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = t.values.get(i);
        w.outer.push_back(values);
        w.momentum.emplace_back(values.size(), 0.0f);
        w.residual.emplace_back(values.size(), 0.0f);
      }
      workers_.push_back(std::move(w));
    }
    model copy = s.start;
    fragments_ = s.partitioner(copy.parameters().parameters());
    if (offsets_.empty()) {
      for (std::size_t p = 0; p < fragments_.size(); ++p) {
        offsets_.push_back(static_cast<int>(p) * sync_every_ / static_cast<int>(fragments_.size()));
      }
    }
  }

  /// One inner step of all workers and what is due after it.
  void step() {
    begin_step();
    for (int r = 0; r < world(); ++r) train(r);
    for (int r = 0; r < world(); ++r) receive(r, step_ - 1);
    send_due();
    for (int r = 0; r < world(); ++r) receive(r, step_);
  }

  // The parts of a step, for runs in which not all goes well.
  void begin_step() { ++step_; }
  void train(int rank) { at(rank).local.inner_step(seed_, at(rank).id, step_); }
  void send_due() {
    for (std::size_t p = 0; p < fragments_.size(); ++p) {
      if (is_due(p)) send(p);
    }
  }
  /// What is due now of what was sent until then.
  void receive(int rank, std::int64_t sent_until) { receive(rank, sent_until, false); }
  /// All that is in flight.
  void receive_all(int rank) { receive(rank, step_, true); }
  /// Nobody receives any more what was sent at that step.
  void drop(std::int64_t sent_at) {
    flights_.remove_if([&](flight const& f) { return f.sent_at == sent_at; });
  }
  /// A worker is gone; nothing is in flight.
  void remove(int rank) {
    flights_.clear();
    workers_.erase(workers_.begin() + rank);
  }

  /// All workers receive what is in flight.
  void finish() {
    for (int r = 0; r < world(); ++r) receive_all(r);
  }

  [[nodiscard]] int world() const { return static_cast<int>(workers_.size()); }
  [[nodiscard]] model& local(int rank) { return at(rank).local; }
  [[nodiscard]] worker_options& options(int rank) { return at(rank).options; }
  [[nodiscard]] std::uint64_t local_hash(int rank) { return at(rank).local.hash(); }
  [[nodiscard]] std::uint64_t outer_hash(int rank) {
    std::uint64_t sum = 0;
    for (auto const& values : at(rank).outer) sum = hash_of(std::as_bytes(std::span(values)), sum);
    return sum;
  }
  /// What a worker sends in a sync.
  [[nodiscard]] std::uint64_t sent_bytes(std::size_t p) {
    tiles const values = zeros(p);
    bool const shards = reduction_of(p) == rivulet::reduce::method::all_to_all;
    return shards ? all_to_all_bytes(values) : all_gather_bytes(values);
  }
  [[nodiscard]] rivulet::reduce::method reduction_of(std::size_t p) {
    using enum rivulet::reduce::method;
    if (reduction_ != automatic) return reduction_;
    tiles const values = zeros(p);
    return all_to_all_bytes(values) < all_gather_bytes(values) ? all_to_all : all_gather;
  }

 private:
  struct worker {
    int id;
    worker_options options;
    model local;
    std::vector<std::vector<float>> outer;
    std::vector<std::vector<float>> momentum;
    std::vector<std::vector<float>> residual;
  };
  struct flight {
    std::size_t fragment;
    std::int64_t sent_at;
    tiles mean;
    std::vector<tiles> left_over;  // of each worker; empty if its weight was 0
    std::vector<bool> received;    // by each worker
  };
  /// Where the values of a tile belong.
  struct place {
    std::size_t parameter;
    std::size_t first;
    std::size_t count;
  };

  [[nodiscard]] worker& at(int rank) { return workers_[static_cast<std::size_t>(rank)]; }

  [[nodiscard]] std::vector<place> places(std::size_t p) const {
    std::vector<place> result;
    for (rivulet::slice const& s : fragments_[p].slices) {
      for (std::size_t i = 0; i < s.size; i += 4096) {
        result.push_back({s.parameter, s.offset + i, std::min<std::size_t>(4096, s.size - i)});
      }
    }
    return result;
  }
  [[nodiscard]] tiles zeros(std::size_t p) const {
    tiles result;
    for (place const& t : places(p)) result.emplace_back(t.count, 0.0f);
    return result;
  }

  [[nodiscard]] bool is_due(std::size_t p) const {
    std::int64_t const offset = offsets_[p];
    bool const full_round = first_ == rivulet::first_sync::after_full_round || offset == 0;
    return step_ % sync_every_ == offset && (!full_round || step_ >= sync_every_);
  }

  std::uint64_t all_gather_bytes(tiles const& values) {
    return (workers_.size() - 1) * message_bytes(codec_.sent, values);
  }
  std::uint64_t all_to_all_bytes(tiles const& values) {
    std::size_t longest = 0;
    std::size_t longest_mean = 0;
    for (std::size_t r = 0; r < workers_.size(); ++r) {
      tiles const shard = shard_of(values, r, workers_.size());
      longest = std::max(longest, message_bytes(codec_.sent, shard));
      longest_mean = std::max(longest_mean, message_bytes(codec_.mean, shard));
    }
    return (workers_.size() - 1) * (longest + longest_mean);
  }
  template <class Any>
  static std::size_t message_bytes(Any const& codec, tiles const& values) {
    return coded_tiles<Any>::message_bytes(codec, values);
  }

  /// acc = D + beta * e
  tiles gradient(worker const& w, std::size_t p) const {
    tiles result = zeros(p);
    std::size_t number = 0;
    for (place const& t : places(p)) {
      tensor rounded = w.local.tensors[t.parameter].values;
      for (std::size_t i = 0; i < t.count; ++i) {
        std::size_t const at = t.first + i;
        float const local = rounded.get(at);
        rounded.set(at, w.outer[t.parameter][at]);
        float& value = result[number][i];
        value = rounded.get(at) - local;
        if (codec_.feeds_back) value = std::fma(codec_.beta, w.residual[t.parameter][at], value);
      }
      ++number;
    }
    return result;
  }

  static bool all_finite(tiles const& values) {
    return std::all_of(values.begin(), values.end(), [](std::vector<float> const& tile) {
      return std::all_of(tile.begin(), tile.end(), [](float v) { return std::isfinite(v); });
    });
  }

  void send(std::size_t p) {
    double total = 0;
    std::vector<tiles> values;
    for (worker const& w : workers_) {
      total += w.options.weight;
      values.push_back(gradient(w, p));
      if (w.options.weight > 0 && !all_finite(values.back())) return;  // rejected
    }
    if (total == 0) return;
    flight f{p, step_, {}, {}, std::vector<bool>(workers_.size(), false)};
    f.left_over.resize(workers_.size());
    bool const shards = reduction_of(p) == rivulet::reduce::method::all_to_all;
    std::size_t const parts = shards ? workers_.size() : 1;
    for (std::size_t s = 0; s < parts; ++s) {
      tiles mean = shard_of(zeros(p), s, parts);
      for (std::size_t w = 0; w < workers_.size(); ++w) {
        if (workers_[w].options.weight == 0) continue;
        tiles acc = shard_of(values[w], s, parts);
        coded_tiles const message(codec_.sent, acc);
        message.add_to(mean, static_cast<float>(workers_[w].options.weight / total));
        message.add_to(acc, -1.0f);
        f.left_over[w].insert(f.left_over[w].end(), acc.begin(), acc.end());
      }
      if (shards) {
        if (!all_finite(mean)) return;  // rejected by its owner
        coded_tiles const message(codec_.mean, mean);
        for (std::vector<float>& tile : mean) std::fill(tile.begin(), tile.end(), 0.0f);
        message.add_to(mean, 1.0f);
      }
      f.mean.insert(f.mean.end(), mean.begin(), mean.end());
    }
    flights_.push_back(std::move(f));
  }

  void receive(int rank, std::int64_t sent_until, bool early) {
    auto const r = static_cast<std::size_t>(rank);
    worker& w = at(rank);
    for (flight& f : flights_) {
      if (f.received[r] || f.sent_at > sent_until) continue;
      if (!early && f.sent_at + w.options.overlap_steps != step_) continue;
      apply(w, f, f.left_over[r]);
      f.received[r] = true;
    }
  }

  void apply(worker& w, flight const& f, tiles const& left_over) {
    std::size_t number = 0;
    for (place const& t : places(f.fragment)) {
      tensor& local = w.local.tensors[t.parameter].values;
      for (std::size_t i = 0; i < t.count; ++i) {
        std::size_t const at = t.first + i;
        float const mean = f.mean[number][i];
        float& theta = w.outer[t.parameter][at];
        float& m = w.momentum[t.parameter][at];
        float direction = mean;
        if (outer_.nesterov) {
          m = std::fma(outer_.momentum, m, mean);
          if (std::fabs(m) < 0x1p-100f) m = 0.0f;
          direction = std::fma(outer_.momentum, m, mean);
        }
        theta = std::fma(-outer_.learning_rate, direction, theta);
        float const alpha = w.options.mixing;
        float const mixed = std::fma(alpha, local.get(at), (1.0f - alpha) * theta);
        local.set(at, alpha == 0 ? theta : mixed);
        if (!left_over.empty()) w.residual[t.parameter][at] = left_over[number][i];
      }
      ++number;
    }
  }

  int sync_every_;
  rivulet::first_sync first_;
  std::vector<int> offsets_;
  rivulet::reduce::method reduction_;
  decltype(parts_of(std::declval<C>())) codec_;
  outer_rule outer_;
  std::uint64_t seed_;
  std::vector<rivulet::fragment> fragments_;
  std::vector<worker> workers_;
  std::list<flight> flights_;
  std::int64_t step_ = 0;
};

}  // namespace rivulet_test
