#pragma once

/// \file
/// What a run leaves behind: metrics.jsonl, summary.json and the table at the end.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "files.hpp"
#include "options.hpp"
#include "progress.hpp"

namespace train_gpt {

/// What one worker did in one step; seconds are of its training thread.
struct worker_step {
  double loss = 0.0;
  double learning_rate = 0.0;
  std::uint64_t bytes_sent = 0;
  double stalled_seconds = 0.0;  // waiting for communication
  double encode_seconds = 0.0;
  double decode_seconds = 0.0;
  std::uint64_t syncs = 0;  // exchanges whose result was applied
};

/// How one method ended.
struct run_result {
  train_gpt::method method{};
  std::size_t workers = 0;
  std::size_t steps = 0;
  std::uint64_t tokens = 0;
  double eval_loss = 0.0;
  std::uint64_t bytes_sent_per_worker = 0;
  std::uint64_t peak_bytes_per_step = 0;
  double compute_utilization = 0.0;
  double wall_seconds = 0.0;
  std::uint64_t outer_fingerprint = 0;
  bool workers_identical = false;
  std::size_t parameters = 0;
  std::uint64_t syncs = 0;
  double stalled_seconds = 0.0;  // these three: mean of the workers, whole run
  double encode_seconds = 0.0;
  double decode_seconds = 0.0;

  double tokens_per_second() const { return static_cast<double>(tokens) / wall_seconds; }
};

/// Bytes that a worker sends per step in a ring all-reduce of `parameters` gradients of
/// `bytes_per_value`: 2 (1 - 1/workers) parameters bytes_per_value. The yardstick for the traffic
/// of every method.
inline double ring_all_reduce_bytes(std::size_t parameters, std::size_t workers,
                                    std::size_t bytes_per_value) {
  auto const others = static_cast<double>(workers - 1) / static_cast<double>(workers);
  return 2.0 * others * static_cast<double>(parameters) * static_cast<double>(bytes_per_value);
}

/// How many times fewer bytes than data-parallel a run sent, in total and in its largest step; 0
/// where it sent none.
struct traffic_ratios {
  double total;
  double peak;
};

inline traffic_ratios less_than_data_parallel(run_result const& run, std::size_t bytes_per_value) {
  double const per_step = ring_all_reduce_bytes(run.parameters, run.workers, bytes_per_value);
  auto const ratio = [](double reference, std::uint64_t bytes) {
    return bytes == 0 ? 0.0 : reference / static_cast<double>(bytes);
  };
  return {ratio(per_step * static_cast<double>(run.steps), run.bytes_sent_per_worker),
          ratio(per_step, run.peak_bytes_per_step)};
}

inline nlohmann::ordered_json to_json(run_result const& run) {
  auto const bf16 = less_than_data_parallel(run, 2);
  auto const fp32 = less_than_data_parallel(run, 4);
  nlohmann::ordered_json json;
  json["method"] = name_of(method_names, run.method);
  json["workers"] = run.workers;
  json["steps"] = run.steps;
  json["tokens"] = run.tokens;
  json["eval_loss"] = run.eval_loss;
  json["bytes_sent_per_worker"] = run.bytes_sent_per_worker;
  json["peak_bytes_per_step"] = run.peak_bytes_per_step;
  json["compute_utilization"] = run.compute_utilization;
  json["wall_seconds"] = run.wall_seconds;
  json["tokens_per_second"] = run.tokens_per_second();
  // Text, because a JSON number holds 53 bits in most readers.
  json["outer_fingerprint"] = fmt::format("{:016x}", run.outer_fingerprint);
  json["workers_identical"] = run.workers_identical;
  json["parameters"] = run.parameters;
  json["syncs"] = run.syncs;
  json["stalled_seconds"] = run.stalled_seconds;
  json["encode_seconds"] = run.encode_seconds;
  json["decode_seconds"] = run.decode_seconds;
  json["total_less_than_bf16"] = bf16.total;
  json["total_less_than_fp32"] = fp32.total;
  json["peak_less_than_bf16"] = bf16.peak;
  json["peak_less_than_fp32"] = fp32.peak;
  return json;
}

inline nlohmann::ordered_json to_json(options const& chosen) {
  std::vector<std::string> files;
  for (auto const& file : chosen.data) {
    files.push_back(file.string());
  }
  nlohmann::ordered_json json;
  json["workers"] = chosen.workers;
  json["threads"] = chosen.threads;
  json["layers"] = chosen.layers;
  json["heads"] = chosen.heads;
  json["width"] = chosen.width;
  json["context"] = chosen.context;
  json["batch"] = chosen.batch;
  json["steps"] = chosen.steps;
  json["learning_rate"] = chosen.learning_rate;
  json["warmup"] = chosen.warmup;
  json["seed"] = chosen.seed;
  json["sync_every"] = chosen.sync_every;
  json["overlap"] = chosen.overlap;
  json["mixing"] = chosen.mixing;
  json["pattern"] = name_of(pattern_names, chosen.pattern);
  json["layers_per_fragment"] = chosen.layers_per_fragment;
  json["codec"] = name_of(codec_names, chosen.codec);
  json["error_feedback"] = chosen.error_feedback;
  json["diloco_codec"] = name_of(codec_names, chosen.diloco_codec);
  json["outer_learning_rate"] = chosen.outer_learning_rate;
  json["outer_momentum"] = chosen.outer_momentum;
  json["first_sync"] = name_of(first_sync_names, chosen.first_sync);
  json["data"] = files;
  json["eval_batches"] = chosen.eval_batches;
  return json;
}

/// The content of summary.json.
inline nlohmann::ordered_json summary(std::span<run_result const> runs, options const& chosen,
                                      double byte_frequency_loss) {
  auto list = nlohmann::ordered_json::array();
  for (auto const& run : runs) {
    list.push_back(to_json(run));
  }
  nlohmann::ordered_json json;
  json["runs"] = list;
  json["byte_frequency_loss"] = byte_frequency_loss;
  json["settings"] = to_json(chosen);
  return json;
}

/// The files of a run: DIR/metrics.jsonl grows by whole lines, each flushed, so that it can be
/// followed and an interruption leaves whole lines; DIR/summary.json is replaced at once.
class result_files {
 public:
  /// Creates `folder` and tries whether the files can be written there; results of an earlier run
  /// in it stay as they are. Throws report_error.
  explicit result_files(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) {
      throw report_error{fmt::format("--out {}: {}", folder_.string(), error.message())};
    }
    check_writable(summary_file());
    metrics_ = open_file(metrics_file(), "ab");
  }

  /// Removes the results of an earlier run. Throws report_error.
  void clear() {
    // An old summary beside new metrics would belong to another run.
    std::error_code error;
    std::filesystem::remove(summary_file(), error);
    if (error) {
      throw report_error{fmt::format("{}: {}", summary_file().string(), error.message())};
    }
    metrics_ = open_file(metrics_file(), "wb");
  }

  std::filesystem::path metrics_file() const { return folder_ / "metrics.jsonl"; }
  std::filesystem::path summary_file() const { return folder_ / "summary.json"; }

  void add_metrics(nlohmann::ordered_json const& line) {
    auto const text = line.dump() + '\n';
    bool const written = std::fwrite(text.data(), 1, text.size(), metrics_.get()) == text.size();
    if (!written || std::fflush(metrics_.get()) != 0) {
      throw report_error{metrics_file().string() + ": cannot be written (disk full?)"};
    }
  }

  void write_summary(nlohmann::ordered_json const& content) const {
    write_whole(summary_file(), content.dump(2) + '\n');
  }

 private:
  std::filesystem::path folder_;
  std::unique_ptr<std::FILE, stream_closer> metrics_;
};

/// Gathers what the workers of one method report after each step. A step that all have finished
/// becomes a line of metrics.jsonl and moves the progress line on. Any thread may call `add`.
class run_log {
 public:
  run_log(train_gpt::method method, options const& chosen, result_files& files, progress& shown)
      : method_(name_of(method_names, method)),
        workers_(chosen.workers),
        steps_(chosen.steps),
        tokens_per_step_(chosen.tokens_per_step()),
        files_(&files),
        progress_(&shown) {}

  /// Reports `done` for the next step of a worker; `step` counts from 1.
  void add(std::size_t step, worker_step const& done) {
    std::scoped_lock const lock{mutex_};
    while (pending_.size() < step - finished_) {
      pending_.emplace_back();
    }
    auto& entry = pending_[step - finished_ - 1];
    auto const share = 1.0 / static_cast<double>(workers_);
    entry.sum.loss += share * done.loss;
    entry.sum.learning_rate = done.learning_rate;
    entry.sum.bytes_sent = std::max(entry.sum.bytes_sent, done.bytes_sent);
    entry.sum.stalled_seconds += share * done.stalled_seconds;
    entry.sum.encode_seconds += share * done.encode_seconds;
    entry.sum.decode_seconds += share * done.decode_seconds;
    entry.sum.syncs = std::max(entry.sum.syncs, done.syncs);
    entry.workers += 1;
    while (!pending_.empty() && pending_.front().workers == workers_) {
      finish_step(pending_.front().sum);
      pending_.pop_front();
    }
  }

 private:
  struct step_entry {
    worker_step sum;
    std::size_t workers = 0;
  };

  void finish_step(worker_step const& mean) {
    finished_ += 1;
    stalled_seconds_ += mean.stalled_seconds;
    // The loss of a few sequences is noisy: shown is a mean over about twenty steps.
    smooth_loss_ = finished_ == 1 ? mean.loss : smooth_loss_ + 0.05 * (mean.loss - smooth_loss_);
    auto const elapsed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    auto const tokens = finished_ * tokens_per_step_;
    nlohmann::ordered_json json;
    json["method"] = method_;
    json["step"] = finished_;
    json["loss"] = mean.loss;
    json["learning_rate"] = mean.learning_rate;
    json["tokens"] = tokens;
    json["bytes_sent"] = mean.bytes_sent;
    json["stalled_seconds"] = mean.stalled_seconds;
    json["encode_seconds"] = mean.encode_seconds;
    json["decode_seconds"] = mean.decode_seconds;
    json["syncs"] = mean.syncs;
    json["wall_seconds"] = elapsed;
    files_->add_metrics(json);
    progress_->show({.method = method_,
                     .step = finished_,
                     .steps = steps_,
                     .loss = smooth_loss_,
                     .tokens = static_cast<double>(tokens),
                     .elapsed_seconds = elapsed,
                     .stalled_seconds = stalled_seconds_});
  }

  std::string_view method_;
  std::size_t workers_;
  std::size_t steps_;
  std::size_t tokens_per_step_;
  result_files* files_;
  progress* progress_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();

  std::mutex mutex_;
  std::deque<step_entry> pending_;  // of the steps after the first finished_ ones
  std::size_t finished_ = 0;
  double stalled_seconds_ = 0.0;
  double smooth_loss_ = 0.0;
};

/// `bytes` with a decimal unit: 512 B, 53.1 MB.
inline std::string bytes_text(std::uint64_t bytes) {
  auto value = static_cast<double>(bytes);
  std::string_view unit = "B";
  for (std::string_view const larger : {"kB", "MB", "GB", "TB"}) {
    if (value < 999.95) {
      break;
    }
    value /= 1000.0;
    unit = larger;
  }
  return unit == "B" ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, unit);
}

/// A ratio with about three digits: 402x, 14.9x, 0.50x; "-" for 0, which stands for no bytes at
/// all.
inline std::string ratio_text(double ratio) {
  if (ratio == 0.0) {
    return "-";
  }
  int const decimals = ratio < 9.995 ? 2 : ratio < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}x", ratio, decimals);
}

/// A loss in at most eight columns: 1.2345, 5.67e+07.
inline std::string loss_text(double loss) {
  // A NaN may have a sign, which says nothing.
  return std::abs(loss) < 999.99995 ? fmt::format("{:.4f}", loss)
                                    : fmt::format("{:.3g}", std::abs(loss));
}

/// A difference of `fraction` in at most eight columns: +1.00 %, +250 %, +2e+09 %.
inline std::string difference_text(double fraction) {
  double const percent = 100.0 * fraction;
  if (std::isnan(percent)) {
    return "nan";
  }
  return percent < 99.995    ? fmt::format("{:+.2f} %", percent)
         : percent < 99999.5 ? fmt::format("{:+.0f} %", percent)
                             : fmt::format("{:+.0e} %", percent);
}

/// The table at the end: a row per method.
inline std::string result_table(std::span<run_result const> runs, double byte_frequency_loss) {
  run_result const* data_parallel = nullptr;
  for (auto const& run : runs) {
    data_parallel = run.method == method::data_parallel ? &run : data_parallel;
  }
  std::string text;
  auto const row = [&text](auto const&... cells) {
    text += fmt::format("{:<13} {:>8} {:>8} {:>9} {:>6} {:>6} {:>9} {:>6} {:>6} {:>7} {:>7}\n",
                        cells...);
  };
  text +=
      fmt::format("{:<13} {:>8} {:>8} {:>9} {:>13} {:>9} {:>13} {:>7} {:>7}\n", "", "held-out",
                  "against", "sent per", "less than", "largest", "less than", "compute", "wall");
  row("method", "loss", "data-p.", "worker", "bf16", "fp32", "step", "bf16", "fp32", "util.",
      "seconds");
  for (auto const& run : runs) {
    auto const bf16 = less_than_data_parallel(run, 2);
    auto const fp32 = less_than_data_parallel(run, 4);
    auto const against = data_parallel == nullptr || data_parallel == &run
                             ? std::string{"-"}
                             : difference_text(run.eval_loss / data_parallel->eval_loss - 1.0);
    row(name_of(method_names, run.method), loss_text(run.eval_loss), against,
        bytes_text(run.bytes_sent_per_worker), ratio_text(bf16.total), ratio_text(fp32.total),
        bytes_text(run.peak_bytes_per_step), ratio_text(bf16.peak), ratio_text(fp32.peak),
        fmt::format("{:.1f} %", 100.0 * run.compute_utilization),
        fmt::format("{:.1f}", run.wall_seconds));
  }
  text += fmt::format(
      "A model of byte frequencies alone has a held-out loss of {:.4f}. \"Less than\" compares "
      "with a\n"
      "ring all-reduce of the gradients in every step, counted as bf16 and as fp32.\n",
      byte_frequency_loss);
  return text;
}

}  // namespace train_gpt
