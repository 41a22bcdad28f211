/// \file
/// The reference trainer: workers are threads that train replicas of a transformer, each on its own
/// shard of a text, and are kept together by data-parallel, DiLoCo or Streaming DiLoCo. Read from
/// here downwards: the ways to keep workers together, the training loop, a run of one method, main.

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <rivulet/rivulet.hpp>

#include "adamw.hpp"
#include "data.hpp"
#include "model.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "report.hpp"

namespace train_gpt {
namespace {

using model = gpt<float>;

// ------------------------------------------------------------------------------------------------
// The ways to keep workers together. Each has hooks before and after the inner optimizer's step and
// after the last step; `ledger` is what they sent and waited for, `outer` the parameters to
// evaluate, and `fingerprint` a hash of what must be equal on all workers.

/// A model's parameters, or their gradients, as the library sees them.
enum class content : std::uint8_t { values, gradients };

rivulet::parameter_set describe(model const& net, content what) {
  rivulet::parameter_set set;
  for (auto const& tensor : net.tensors()) {
    auto const role = tensor.role == tensor_role::embedding    ? rivulet::embedding
                      : tensor.role == tensor_role::final_norm ? rivulet::final_norm
                                                               : rivulet::layer(tensor.layer);
    set.add(tensor.name, role, what == content::values ? tensor.values : tensor.gradient);
  }
  return set;
}

/// Method none, and what the others have in common: no synchronization, so that replicas drift
/// apart.
class replica {
 public:
  explicit replica(model& net) : net_(&net) {}

  void before_optimizer(worker_step&) {}
  void after_optimizer(worker_step&) {}
  void finish() {}

  rivulet::observe::byte_ledger const& ledger() const { return ledger_; }
  std::vector<float> outer() const { return {net_->values().begin(), net_->values().end()}; }

  std::uint64_t fingerprint() const {
    std::uint64_t hash = 0;
    for (float const value : net_->values()) {
      hash = keyed_hash(hash, std::bit_cast<std::uint32_t>(value), 0, 0);
    }
    return hash;
  }

 protected:
  void count(rivulet::step_report const& report, worker_step& done) {
    ledger_.add(report);
    done.bytes_sent = report.bytes_sent;
    done.stalled_seconds = report.stalled_seconds;
    done.encode_seconds = report.encode_seconds;
    done.decode_seconds = report.decode_seconds;
    done.syncs = report.applied.size();
  }

  model* net_;
  rivulet::observe::byte_ledger ledger_;
};

/// Data-parallel: every step uses the mean of the workers' gradients, so that parameters stay
/// equal.
class gradient_mean : public replica {
 public:
  gradient_mean(model& net, rivulet::comm::local comm)
      : replica(net),
        comm_(std::move(comm)),
        gradients_(describe(net, content::gradients)),
        engine_(gradients_, comm_, rivulet::codec::float32{}) {}

  void before_optimizer(worker_step& done) { count(engine_.average_gradients(), done); }

 private:
  rivulet::comm::local comm_;
  rivulet::parameter_set gradients_;
  rivulet::data_parallel<rivulet::comm::local, rivulet::codec::float32, rivulet::exec::host>
      engine_;
};

/// DiLoCo and Streaming DiLoCo: replicas train on their own, and their outer gradients are
/// exchanged, all at once or fragment by fragment.
template <class Codec>
class outer_steps : public replica {
 public:
  template <class Partition>
  outer_steps(model& net, rivulet::comm::local comm, rivulet::sync_config const& config,
              Partition const& partition, Codec codec, rivulet::outer::nesterov outer)
      : replica(net),
        comm_(std::move(comm)),
        parameters_(describe(net, content::values)),
        engine_(parameters_, comm_, config, partition, codec, outer) {}

  /// Keeps the outer gradients that are sent from now on, up to 256 MiB of them.
  void record() { recording_ = true; }
  std::span<float const> recorded() const { return recorded_; }

  void after_optimizer(worker_step& done) {
    auto const& report = engine_.after_step();
    if (recording_) {
      // With an overlap, a fragment that has just been sent is still as it was sent.
      for (int const p : report.sent)
        record_fragment(engine_.fragments()[static_cast<std::size_t>(p)]);
    }
    count(report, done);
  }
  void finish() { ledger_.add(engine_.finish()); }

  std::vector<float> outer() const {
    std::vector<float> values(net_->values().size());
    std::size_t place = 0;
    for (auto const& tensor : net_->tensors()) {
      engine_.copy_outer_to(tensor.name, std::span{values}.subspan(place, tensor.values.size()));
      place += tensor.values.size();
    }
    return values;
  }

  std::uint64_t fingerprint() const { return engine_.outer_fingerprint(); }

 private:
  static constexpr std::size_t most_recorded = std::size_t{1} << 26U;  // values

  void record_fragment(rivulet::fragment const& sent) {
    for (auto const& part : sent.slices) {
      auto const local = net_->tensors()[part.parameter].values;
      std::vector<float> outer(local.size());
      engine_.copy_outer_to(net_->tensors()[part.parameter].name, outer);
      for (std::size_t i = part.offset; i < part.offset + part.size; ++i) {
        if (recorded_.size() < most_recorded) recorded_.push_back(outer[i] - local[i]);
      }
    }
  }

  bool recording_ = false;
  std::vector<float> recorded_;
  rivulet::comm::local comm_;
  rivulet::parameter_set parameters_;
  rivulet::streaming_diloco<rivulet::comm::local, Codec, rivulet::outer::nesterov,
                            rivulet::exec::host>
      engine_;
};

using any_partition = std::variant<rivulet::partition::whole_model, rivulet::partition::sequential,
                                   rivulet::partition::strided, rivulet::partition::balanced>;

/// Of the codecs, top_k looks at a whole fragment at once, and error feedback makes the engine keep
/// residuals: these make an engine of their own; all others share one.
using top_k = rivulet::codec::top_k<rivulet::codec::bf16>;
using any_codec =
    std::variant<rivulet::codec::any, rivulet::codec::error_feedback<rivulet::codec::any>, top_k,
                 rivulet::codec::error_feedback<top_k>>;

rivulet::codec::any tile_codec_of(wire_codec chosen) {
  namespace codec = rivulet::codec;
  switch (chosen) {
    case wire_codec::float32: return codec::float32{};
    case wire_codec::bf16: return codec::bf16{};
    case wire_codec::fp16: return codec::fp16{};
    case wire_codec::fp8: return codec::fp8<>{};
    case wire_codec::int8: return codec::int8<>{};
    case wire_codec::lloyd_max4: return codec::lloyd_max4<>{};
    case wire_codec::nf4: return codec::nf4<>{};
    case wire_codec::int4: return codec::int4<>{};
    case wire_codec::mxfp4: return codec::mxfp4{};
    case wire_codec::mxfp8: return codec::mxfp8{};
    case wire_codec::nvfp4: return codec::nvfp4{};
    case wire_codec::int2: return codec::int2<>{};
    case wire_codec::sign: return codec::sign<>{};
    case wire_codec::chunked_top_k: return codec::chunked_top_k<codec::int2<>>{};
    case wire_codec::e3m0:
    case wire_codec::top_k: break;
  }
  return codec::e3m0<>{};
}

any_codec codec_of(wire_codec chosen, bool error_feedback) {
  if (chosen == wire_codec::top_k) {
    top_k const codec{.fraction = 0.01};
    if (error_feedback) return rivulet::codec::error_feedback{codec};
    return codec;
  }
  rivulet::codec::any const codec = tile_codec_of(chosen);
  if (error_feedback) return rivulet::codec::error_feedback{codec};
  return codec;
}

any_partition partition_of(options const& chosen) {
  auto const layers = static_cast<int>(chosen.layers_per_fragment);
  switch (chosen.pattern) {
    case fragment_pattern::whole_model: return rivulet::partition::whole_model{};
    case fragment_pattern::sequential: return rivulet::partition::sequential{layers};
    case fragment_pattern::strided: return rivulet::partition::strided{layers};
    case fragment_pattern::balanced: break;
  }
  // As many as the layered patterns have: those of the blocks, and one for the embedding.
  auto const blocks = (static_cast<int>(chosen.layers) + layers - 1) / layers;
  return rivulet::partition::balanced{.fragments = blocks + 1};
}

rivulet::sync_config streaming_config(options const& chosen) {
  return {.sync_every = static_cast<int>(chosen.sync_every),
          .overlap_steps = static_cast<int>(chosen.overlap),
          .mixing = chosen.mixing,
          .first_sync = chosen.first_sync == first_sync_rule::at_offset
                            ? rivulet::first_sync::at_offset
                            : rivulet::first_sync::after_full_round,
          .reduction = rivulet::reduce::method::all_gather};  // as the paper: quantized once
}

rivulet::sync_config diloco_config(options const& chosen) {
  return {.sync_every = static_cast<int>(chosen.sync_every), .overlap_steps = 0, .mixing = 0.0F};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ------------------------------------------------------------------------------------------------
// The training of one worker.

/// For --check-syncs: the outer parameters of all workers must be equal to the last bit after the
/// same step. Any thread may call.
class sync_check {
 public:
  explicit sync_check(std::size_t workers) : workers_(workers) {}

  /// Throws std::runtime_error if a worker had another fingerprint after this step.
  void check(std::size_t rank, std::size_t step, std::uint64_t fingerprint) {
    std::scoped_lock const lock{mutex_};
    auto& [first, reported] = open_.try_emplace(step, fingerprint, 0).first->second;
    if (first != fingerprint) {
      throw std::runtime_error{fmt::format(
          "worker {}, step {}: its outer parameters are not those of the others", rank, step)};
    }
    if (++reported == workers_) {
      open_.erase(step);
    }
  }

 private:
  std::size_t workers_;
  std::mutex mutex_;
  std::map<std::size_t, std::pair<std::uint64_t, std::size_t>> open_;
};

/// What the workers of a run share.
struct shared_state {
  train_gpt::method method;
  options const& chosen;
  corpus const& text;
  run_log& log;
  rivulet::comm::local_group group;
  sync_check syncs;
  std::atomic<bool> failed = false;  // a worker has: the others stop
};

/// What is left of a worker.
struct worker_outcome {
  rivulet::observe::byte_ledger ledger;
  double wall_seconds = 0.0;
  std::uint64_t fingerprint = 0;
  std::vector<float> outer;
};

/// Trains `net`, replica `rank`, for all steps of the run. Initial parameters, shard and the order
/// of samples do not depend on the method, so all methods are compared on the same text.
template <class Synchronization>
worker_outcome train(shared_state& shared, std::size_t rank, model& net, Synchronization& sync) {
  auto const& chosen = shared.chosen;
  adamw<float> optimizer{net.tensors()};
  learning_rate_schedule const rate_at{chosen.learning_rate, chosen.warmup, chosen.steps};
  sample_batch samples{chosen.sequences_per_worker(), chosen.context};
  auto const start = std::chrono::steady_clock::now();

  for (std::size_t step = 1; step <= chosen.steps && !shared.failed; ++step) {
    worker_step done;
    shared.text.training_batch(chosen.seed, rank, step, samples);
    done.loss = static_cast<double>(net.loss_and_gradients(samples.inputs, samples.targets));
    sync.before_optimizer(done);
    double const norm = clip_by_global_norm(net.gradients(), 1.0);
    if (!std::isfinite(done.loss) || !std::isfinite(norm)) {
      bool const outer = shared.method == method::diloco || shared.method == method::streaming;
      // Neither is negative, but a NaN may have a sign, which says nothing.
      throw std::runtime_error{fmt::format(
          "worker {}, step {}: training has diverged (loss {}, norm of the gradient {}); a smaller "
          "--learning-rate{} may help",
          rank, step, std::abs(done.loss), std::abs(norm),
          outer ? " or --outer-learning-rate" : "")};
    }
    done.learning_rate = rate_at(step - 1);
    optimizer.step(done.learning_rate);
    sync.after_optimizer(done);
    if (chosen.check_syncs && done.syncs > 0) {
      shared.syncs.check(rank, step, sync.fingerprint());
    }
    shared.log.add(step, done);
  }
  if (shared.failed) {
    return {};
  }
  sync.finish();
  return {.ledger = sync.ledger(),
          .wall_seconds = seconds_since(start),
          .fingerprint = sync.fingerprint(),
          .outer = sync.outer()};
}

model_config config_of(options const& chosen) {
  return {.layers = static_cast<int>(chosen.layers),
          .heads = static_cast<int>(chosen.heads),
          .width = static_cast<int>(chosen.width),
          .context = static_cast<int>(chosen.context)};
}

/// Builds replica `rank` and trains it by the method of the run.
worker_outcome run_worker(shared_state& shared, std::size_t rank) {
  auto const& chosen = shared.chosen;
  model net{config_of(chosen), static_cast<int>(chosen.sequences_per_worker()),
            static_cast<int>(chosen.threads_per_worker()), chosen.seed};
  auto const comm = shared.group.communicator(static_cast<int>(rank));
  rivulet::outer::nesterov const outer{.learning_rate = chosen.outer_learning_rate,
                                       .momentum = chosen.outer_momentum};
  switch (shared.method) {
    case method::none: {
      replica sync{net};
      return train(shared, rank, net, sync);
    }
    case method::data_parallel: {
      gradient_mean sync{net, comm};
      return train(shared, rank, net, sync);
    }
    case method::diloco:
      return std::visit(
          [&](auto codec) {
            outer_steps sync{net,   comm, diloco_config(chosen), rivulet::partition::whole_model{},
                             codec, outer};
            return train(shared, rank, net, sync);
          },
          codec_of(chosen.diloco_codec, chosen.error_feedback));
    case method::streaming: break;
  }
  return std::visit(
      [&](auto codec, auto partition) {
        outer_steps sync{net, comm, streaming_config(chosen), partition, codec, outer};
        if (rank > 0 || chosen.record.empty()) return train(shared, rank, net, sync);
        sync.record();
        auto const outcome = train(shared, rank, net, sync);
        auto const bytes = std::as_bytes(sync.recorded());
        write_whole(chosen.record, {reinterpret_cast<char const*>(bytes.data()), bytes.size()});
        return outcome;
      },
      codec_of(chosen.codec, chosen.error_feedback), partition_of(chosen));
}

// ------------------------------------------------------------------------------------------------
// A run of one method, and the comparison.

/// Mean loss of the parameters `values` over the evaluation sequences, which are the same for all
/// methods and seeds.
double evaluate(options const& chosen, corpus const& text, std::span<float const> values) {
  model net{config_of(chosen), static_cast<int>(eval_batch_sequences),
            static_cast<int>(chosen.threads), chosen.seed};
  std::copy(values.begin(), values.end(), net.values().begin());
  sample_batch samples{eval_batch_sequences, chosen.context};
  constexpr std::uint64_t eval_seed = 0;
  double sum = 0.0;
  for (std::size_t batch = 0; batch < chosen.eval_batches; ++batch) {
    text.held_out_batch(eval_seed, batch * eval_batch_sequences,
                        chosen.eval_batches * eval_batch_sequences, samples);
    sum += static_cast<double>(net.loss(samples.inputs, samples.targets));
  }
  return sum / static_cast<double>(chosen.eval_batches);
}

/// Trains all workers by method `kind`, each in a thread of its own, and evaluates the result. If a
/// worker fails or its thread cannot be started, the others are stopped, and the first error is
/// thrown here.
run_result run_method(method kind, options const& chosen, corpus const& text, result_files& files,
                      progress& shown) {
  run_log log{kind, chosen, files, shown};
  shared_state shared{.method = kind,
                      .chosen = chosen,
                      .text = text,
                      .log = log,
                      .group = rivulet::comm::local_group{static_cast<int>(chosen.workers)},
                      .syncs = sync_check{chosen.workers}};
  std::vector<worker_outcome> outcomes(chosen.workers);
  std::exception_ptr first_error;
  std::mutex error_mutex;
  auto const stop_for_current_exception = [&] {
    // The first one is the cause; the others fail because the group is aborted.
    {
      std::scoped_lock const lock{error_mutex};
      if (!first_error) {
        first_error = std::current_exception();
      }
    }
    shared.failed = true;
    shared.group.communicator(0).abort();
  };
  std::vector<std::thread> threads;
  try {
    for (std::size_t rank = 0; rank < chosen.workers; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          outcomes[rank] = run_worker(shared, rank);
        } catch (...) {
          stop_for_current_exception();
        }
      });
    }
  } catch (...) {
    stop_for_current_exception();
  }
  for (auto& thread : threads) {
    thread.join();
  }
  if (first_error) {
    std::rethrow_exception(first_error);
  }

  auto const& first = outcomes.front();
  run_result result{.method = kind,
                    .workers = chosen.workers,
                    .steps = chosen.steps,
                    .tokens = chosen.steps * chosen.tokens_per_step(),
                    .outer_fingerprint = first.fingerprint,
                    .workers_identical = true,
                    .parameters = first.outer.size(),
                    .syncs = first.ledger.syncs_applied};
  auto const share = 1.0 / static_cast<double>(chosen.workers);
  for (auto const& outcome : outcomes) {
    result.bytes_sent_per_worker =
        std::max(result.bytes_sent_per_worker, outcome.ledger.bytes_sent);
    result.peak_bytes_per_step =
        std::max(result.peak_bytes_per_step, outcome.ledger.peak_bytes_per_step);
    result.wall_seconds = std::max(result.wall_seconds, outcome.wall_seconds);
    result.workers_identical &= outcome.fingerprint == first.fingerprint;
    result.stalled_seconds += share * outcome.ledger.stalled_seconds;
    result.encode_seconds += share * outcome.ledger.encode_seconds;
    result.decode_seconds += share * outcome.ledger.decode_seconds;
  }
  result.compute_utilization = 1.0 - result.stalled_seconds / result.wall_seconds;
  result.eval_loss = evaluate(chosen, text, first.outer);
  return result;
}

/// Runs the methods one after the other. summary.json is written after each, so that an interrupted
/// comparison keeps what is finished.
void run(options const& chosen) {
  result_files files{chosen.out};
  auto const text = corpus::read(chosen.data, chosen.workers, chosen.context);
  auto const reference_loss = byte_frequency_loss(text.training(), text.held_out());
  std::fputs(
      fmt::format("text: {} for training, {} held out; model: {} parameters; {} steps of {} bytes\n"
                  "workers: {}, threads of each: {}\n",
                  bytes_text(text.training().size()), bytes_text(text.held_out().size()),
                  parameter_count(config_of(chosen)), chosen.steps, chosen.tokens_per_step(),
                  chosen.workers, chosen.threads_per_worker())
          .c_str(),
      stdout);
  std::fflush(stdout);

  files.clear();
  std::vector<run_result> runs;
  for (auto const kind : chosen.methods) {
    progress shown{stderr};
    runs.push_back(run_method(kind, chosen, text, files, shown));
    files.write_summary(summary(runs, chosen, reference_loss));
    if (kind != method::none && !runs.back().workers_identical) {
      throw std::runtime_error{fmt::format("{}: the workers ended with different outer parameters",
                                           name_of(method_names, kind))};
    }
  }
  std::fputs(fmt::format("\n{}results are in {} and {}\n", result_table(runs, reference_loss),
                         files.summary_file().string(), files.metrics_file().string())
                 .c_str(),
             stdout);
}

/// The status of a failed program. If standard error cannot be written, it says it alone.
int failed(char const* reason, int status) {
  std::fprintf(stderr, "train_gpt: %s\n", reason);
  return status;
}

/// The status of a program that did what it was asked for, if its output could be written.
int finished() {
  bool const written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  return written ? 0 : failed("standard output: cannot be written", 1);
}

}  // namespace
}  // namespace train_gpt

int main(int argument_count, char** arguments) {
  try {
    train_gpt::run(train_gpt::parse_options(argument_count, arguments));
    return train_gpt::finished();
  } catch (train_gpt::help_request const& help) {
    std::fputs(help.what(), stdout);
    return train_gpt::finished();
  } catch (train_gpt::usage_error const& error) {
    return train_gpt::failed(error.what(), 2);
  } catch (std::bad_alloc const&) {
    return train_gpt::failed("not enough memory", 1);
  } catch (std::system_error const& error) {
    // Files are tried with error codes: what throws this is the start of a thread.
    auto const reason = fmt::format(
        "a thread cannot be started ({}); fewer --workers or --threads may help", error.what());
    return train_gpt::failed(reason.c_str(), 1);
  } catch (std::exception const& error) {
    return train_gpt::failed(error.what(), 1);
  }
}
