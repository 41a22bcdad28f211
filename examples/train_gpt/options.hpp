#pragma once

/// \file
/// The command line: its flags, their defaults and the rules between them.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

namespace train_gpt {

/// The command line is wrong; the message is one line that names the flag, the value and the rule.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Not an error: --help was given, and the message is the text to print.
class help_request : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How the replicas are kept together. `none` lets them drift apart: it measures what training
/// costs without any synchronization.
enum class method : std::uint8_t { data_parallel, diloco, streaming, none };
enum class fragment_pattern : std::uint8_t { strided, sequential, whole_model, balanced };
enum class wire_codec : std::uint8_t {
  float32,
  bf16,
  fp16,
  fp8,
  int8,
  e3m0,
  lloyd_max4,
  nf4,
  int4,
  mxfp4,
  mxfp8,
  nvfp4,
  int2,
  sign,
  chunked_top_k,
  top_k
};
enum class first_sync_rule : std::uint8_t { at_offset, after_full_round };

template <class Value>
struct named_value {
  std::string_view name;
  Value value;
};

inline constexpr std::array<named_value<method>, 4> method_names{{
    {"data_parallel", method::data_parallel},
    {"diloco", method::diloco},
    {"streaming", method::streaming},
    {"none", method::none},
}};
inline constexpr std::array<named_value<fragment_pattern>, 4> pattern_names{{
    {"strided", fragment_pattern::strided},
    {"sequential", fragment_pattern::sequential},
    {"whole_model", fragment_pattern::whole_model},
    {"balanced", fragment_pattern::balanced},
}};
inline constexpr std::array<named_value<wire_codec>, 16> codec_names{{
    {"float32", wire_codec::float32},
    {"bf16", wire_codec::bf16},
    {"fp16", wire_codec::fp16},
    {"fp8", wire_codec::fp8},
    {"int8", wire_codec::int8},
    {"e3m0", wire_codec::e3m0},
    {"lloyd_max4", wire_codec::lloyd_max4},
    {"nf4", wire_codec::nf4},
    {"int4", wire_codec::int4},
    {"mxfp4", wire_codec::mxfp4},
    {"mxfp8", wire_codec::mxfp8},
    {"nvfp4", wire_codec::nvfp4},
    {"int2", wire_codec::int2},
    {"sign", wire_codec::sign},
    {"chunked_top_k", wire_codec::chunked_top_k},
    {"top_k", wire_codec::top_k},
}};
inline constexpr std::array<named_value<first_sync_rule>, 2> first_sync_names{{
    {"at_offset", first_sync_rule::at_offset},
    {"after_full_round", first_sync_rule::after_full_round},
}};

/// The name of `value` in `names`.
template <class Value, std::size_t Count>
constexpr std::string_view name_of(std::array<named_value<Value>, Count> const& names,
                                   Value value) {
  for (auto const& candidate : names) {
    if (candidate.value == value) {
      return candidate.name;
    }
  }
  return "unknown";
}

/// What the command line asks for; the initial values are the defaults.
struct options {
  std::vector<method> methods{method::data_parallel, method::diloco, method::streaming};
  std::size_t workers = 2;
  std::size_t threads = std::max(1U, std::thread::hardware_concurrency());

  std::size_t layers = 4;
  std::size_t heads = 4;
  std::size_t width = 160;
  std::size_t context = 64;

  std::size_t batch = 12;  // sequences per step, over all workers
  std::size_t steps = 1000;
  double learning_rate = 1e-3;
  std::size_t warmup = 100;
  std::uint64_t seed = 1;

  std::size_t sync_every = 30;
  std::size_t overlap = 5;
  float mixing = 0.0F;
  fragment_pattern pattern = fragment_pattern::strided;
  std::size_t layers_per_fragment = 1;
  wire_codec codec = wire_codec::lloyd_max4;      // of streaming
  wire_codec diloco_codec = wire_codec::float32;  // of diloco
  bool error_feedback = false;
  float outer_learning_rate = 0.7F;
  float outer_momentum = 0.9F;
  first_sync_rule first_sync = first_sync_rule::after_full_round;
  bool check_syncs = false;

  std::vector<std::filesystem::path> data{"/usr/share/dictd/gcide.dict.dz"};
  std::size_t eval_batches = 200;
  std::filesystem::path out{"out/train_gpt"};
  std::filesystem::path record;  // of outer gradients; none if empty

  std::size_t sequences_per_worker() const noexcept { return batch / workers; }
  std::size_t threads_per_worker() const noexcept {
    return std::max(std::size_t{1}, threads / workers);
  }
  std::size_t tokens_per_step() const noexcept { return batch * context; }
};

/// Sequences in an evaluation batch, as in the runs of the README: --eval-batches counts
/// these.
inline constexpr std::size_t eval_batch_sequences = 12;

namespace detail {

/// Adds the flags to a CLI11 application. Values are converted here, by from_chars: independent of
/// the locale, no octal numbers, and errors that state the rule.
class flag_parser {
 public:
  explicit flag_parser(CLI::App& app) : app_(&app) {}

  template <class Value>
  requires std::integral<Value> || std::floating_point<Value> CLI::Option* number(
      std::string const& flag, Value& target, Value least, Value most, std::string const& text) {
    auto const initial = shown(target);
    auto const read = [flag, &target, least, most](CLI::results_t const& words) {
      auto const& word = words.front();
      Value value{};
      auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      // Written so that a NaN fails too.
      bool const inside = value >= least && value <= most;
      if (error != std::errc{} || end != word.data() + word.size() || !inside) {
        auto const kind = std::integral<Value> ? " must be a whole number" : " must be a number";
        throw usage_error{flag + " " + word + ":" + kind + range(least, most)};
      }
      target = value;
      return true;
    };
    return app_->add_option(flag, read, text)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->type_name("N")
        ->default_str(initial)
        ->group(group_);
  }

  template <class Value, std::size_t Count>
  CLI::Option* choice(std::string const& flag, Value& target,
                      std::array<named_value<Value>, Count> const& names, std::string const& text) {
    std::string list;
    for (auto const& candidate : names) {
      list += (list.empty() ? "" : ", ") + std::string{candidate.name};
    }
    auto const read = [flag, &target, &names, list](CLI::results_t const& words) {
      for (auto const& candidate : names) {
        if (candidate.name == words.front()) {
          target = candidate.value;
          return true;
        }
      }
      throw usage_error{flag + " " + words.front() + ": must be one of " + list};
    };
    return app_->add_option(flag, read, text + ": " + list)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->type_name("NAME")
        ->default_str(std::string{name_of(names, target)})
        ->group(group_);
  }

  /// The heading of --help under which the flags that follow are listed.
  void group(std::string name) { group_ = std::move(name); }

 private:
  template <class Value>
  static std::string shown(Value value) {
    std::array<char, 64> text{};
    auto const [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} ? std::string{text.data(), end} : std::string{};
  }

  template <class Value>
  static std::string range(Value least, Value most) {
    if (most == std::numeric_limits<Value>::max()) {
      return " of at least " + shown(least);
    }
    return " from " + shown(least) + " to " + shown(most);
  }

  CLI::App* app_;
  std::string group_;
};

inline void require(bool rule_holds, std::string const& message) {
  if (!rule_holds) {
    throw usage_error{message};
  }
}

/// Limits to what sizes come to together: BLAS counts in int, and sizes of buffers must fit in 64
/// bits. In double, which does not overflow.
inline void check_sizes(options const& chosen) {
  auto const layers = static_cast<double>(chosen.layers);
  auto const heads = static_cast<double>(chosen.heads);
  auto const width = static_cast<double>(chosen.width);
  auto const context = static_cast<double>(chosen.context);
  auto const number = [](std::size_t value) { return std::to_string(value); };
  constexpr int most = std::numeric_limits<int>::max();
  // As parameter_count of the model.
  double const parameters =
      257 * width + layers * (12 * width * width + 2 * width + 2 * width / heads);
  require(parameters <= most, "--width " + number(chosen.width) + " with --layers " +
                                  number(chosen.layers) + ": the model must have at most " +
                                  std::to_string(most) + " parameters");
  require(static_cast<double>(chosen.batch) * context <= most,
          "--context " + number(chosen.context) + " with --batch " + number(chosen.batch) +
              ": a step must have at most " + std::to_string(most) + " bytes");
  auto const sequences = std::max(chosen.sequences_per_worker(), eval_batch_sequences);
  require(static_cast<double>(sequences) * layers * heads * context * context <= 0x1p40,
          "--context " + number(chosen.context) + " with " + number(sequences) +
              " sequences: --layers * --heads * context^2 * sequences, the weights of attention, "
              "must be at most 2^40");
}

/// Rules that tie the values of several flags to each other.
inline void check_values(options const& chosen) {
  auto const number = [](std::size_t value) { return std::to_string(value); };
  require(chosen.batch % chosen.workers == 0, "--batch " + number(chosen.batch) +
                                                  ": must be divisible by --workers " +
                                                  number(chosen.workers));
  require(
      chosen.width % chosen.heads == 0,
      "--width " + number(chosen.width) + ": must be divisible by --heads " + number(chosen.heads));
  require(chosen.width / chosen.heads % 2 == 0,
          "--width " + number(chosen.width) + ": must be an even number times --heads " +
              number(chosen.heads) + " (rotary positions turn pairs of values)");
  require(chosen.warmup <= chosen.steps, "--warmup " + number(chosen.warmup) +
                                             ": must be at most --steps " + number(chosen.steps));
  require(chosen.layers_per_fragment <= chosen.layers,
          "--layers-per-fragment " + number(chosen.layers_per_fragment) +
              ": must be at most --layers " + number(chosen.layers));
  check_sizes(chosen);

  for (auto const kind : chosen.methods) {
    if (kind != method::diloco && kind != method::streaming) {
      continue;
    }
    require(chosen.sync_every <= chosen.steps,
            "--sync-every " + number(chosen.sync_every) + ": must be at most --steps " +
                number(chosen.steps) + ", or nothing is ever synchronized");
    if (kind == method::streaming) {
      require(chosen.overlap <= chosen.sync_every,
              "--overlap " + number(chosen.overlap) + ": must be at most --sync-every " +
                  number(chosen.sync_every) + " (a fragment is in flight once at a time)");
      require(chosen.first_sync == first_sync_rule::at_offset ||
                  chosen.pattern == fragment_pattern::whole_model ||
                  2 * chosen.sync_every <= chosen.steps,
              "--sync-every " + number(chosen.sync_every) +
                  ": twice as many must be at most --steps " + number(chosen.steps) +
                  " with --first-sync after_full_round, or some fragments are never synchronized");
    }
  }
}

/// Flags that mean nothing for the chosen method are refused when given, instead of being ignored.
inline void check_flags(CLI::App const& app, std::string const& chosen_method) {
  auto const refuse = [&](std::vector<std::string_view> const& flags, std::string const& reason) {
    for (auto const flag : flags) {
      require(app.count(std::string{flag}) == 0, std::string{flag} +
                                                     ": has no meaning with --method " +
                                                     chosen_method + " (" + reason + ")");
    }
  };
  if (chosen_method == "data_parallel" || chosen_method == "none") {
    refuse({"--sync-every", "--overlap", "--mixing", "--pattern", "--layers-per-fragment",
            "--codec", "--error-feedback", "--record", "--outer-learning-rate", "--outer-momentum",
            "--first-sync"},
           chosen_method == "none" ? "nothing is synchronized"
                                   : "gradients are averaged in every step, as FP32");
  }
  if (chosen_method == "none") {
    refuse({"--check-syncs"}, "nothing is synchronized");
  }
  if (chosen_method == "diloco") {
    refuse(
        {"--overlap", "--mixing", "--pattern", "--layers-per-fragment", "--first-sync", "--record"},
        "the whole model is synchronized at once, without overlap");
  }
}

}  // namespace detail

/// Reads the command line; of a flag given twice, the last counts, but the files of every --data
/// are read. Throws help_request for --help, and usage_error for anything unknown, out of range or
/// contradictory.
inline options parse_options(int argument_count, char const* const* arguments) {
  options chosen;
  CLI::App app{
      "Trains a transformer on the bytes of a text with data-parallel, DiLoCo and Streaming "
      "DiLoCo,\n"
      "and compares the loss they reach with the traffic they need."};
  app.name("train_gpt");
  app.allow_extras();
  detail::flag_parser flags{app};
  constexpr auto most_steps = std::size_t{1'000'000'000};
  constexpr auto most_size = std::size_t{1} << 20U;

  flags.group("Method");
  std::string method_name = "all";
  app.add_option(
         "--method", method_name,
         "data_parallel: the mean of the gradients in every step.\n"
         "diloco: the whole model every --sync-every steps, float32 unless --codec is given.\n"
         "streaming: a fragment at a time, overlapped with training.\n"
         "all: these three, in this order (--codec is then that of streaming).\n"
         "none: no synchronization, to measure what it costs; evaluates worker 0")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->type_name("NAME")
      ->capture_default_str()
      ->group("Method");
  flags.number("--workers", chosen.workers, std::size_t{1}, std::size_t{256},
               "replicas; each is a thread with its own shard of the text");
  flags.number("--threads", chosen.threads, std::size_t{1}, std::size_t{1024},
               "cores in total; a worker gets its share of them, at least one");

  flags.group("Model");
  flags.number("--layers", chosen.layers, std::size_t{1}, most_size, "transformer blocks");
  flags.number("--heads", chosen.heads, std::size_t{1}, most_size, "attention heads");
  flags.number("--width", chosen.width, std::size_t{2}, most_size, "width of the residual stream");
  flags.number("--context", chosen.context, std::size_t{1}, most_size, "bytes in a sequence");

  flags.group("Training");
  flags.number("--batch", chosen.batch, std::size_t{1}, most_size,
               "sequences per step, over all workers");
  flags.number("--steps", chosen.steps, std::size_t{1}, most_steps, "training steps");
  flags.number("--learning-rate", chosen.learning_rate, 1e-12, 1e3,
               "peak of the learning rate; a cosine takes it to a tenth");
  flags.number("--warmup", chosen.warmup, std::size_t{0}, most_steps,
               "steps of linear warm-up; at most a tenth of --steps unless given");
  flags.number("--seed", chosen.seed, std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max(),
               "of the initial parameters and the order of samples");

  flags.group("Synchronization");
  flags.number("--sync-every", chosen.sync_every, std::size_t{1}, most_steps,
               "steps between two syncs of a fragment (H)");
  flags.number("--overlap", chosen.overlap, std::size_t{0}, most_steps,
               "steps between sending a fragment and applying what came back (tau)");
  flags.number("--mixing", chosen.mixing, 0.0F, 1.0F,
               "weight of the local parameters when a fragment is applied (alpha)");
  flags.choice("--pattern", chosen.pattern, pattern_names, "how layers are put into fragments");
  flags.number("--layers-per-fragment", chosen.layers_per_fragment, std::size_t{1}, most_size,
               "transformer blocks in a fragment");
  auto* const codec =
      flags.choice("--codec", chosen.codec, codec_names, "outer gradients on the wire");
  app.add_flag("--error-feedback", chosen.error_feedback,
               "what the codec loses goes into the next message (for sign, int2 and the top_k "
               "codecs: top_k sends 1 %, chunked_top_k 64 of 4096 in 2 bits)")
      ->group("Synchronization");
  flags.number("--outer-learning-rate", chosen.outer_learning_rate, 1e-6F, 1e3F,
               "of the outer optimizer (eta)");
  flags.number("--outer-momentum", chosen.outer_momentum, 0.0F, 0.9999F,
               "Nesterov momentum of the outer optimizer (mu); 0 is plain SGD");
  flags.choice("--first-sync", chosen.first_sync, first_sync_names,
               "the first sync of a fragment with offset t is after step t, or H + t");

  app.add_option("--record", chosen.record,
                 "file for the outer gradients that worker 0 sends, as raw float32, to measure "
                 "codecs on: codec_bench --accuracy FILE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->type_name("FILE")
      ->group("Data and results");
  app.add_flag(
         "--check-syncs", chosen.check_syncs,
         "compare the outer parameters of all workers after every sync, and stop if they differ")
      ->group("Synchronization");

  flags.group("Data and results");
  std::vector<std::string> files;
  app.add_option(
         "--data", files,
         "text, plain or gzip (.gz, .dz); several files, also of several --data, are read as one "
         "text; the last tenth is held out")
      ->type_name("FILE")
      ->default_str(chosen.data.front().string())
      ->group("Data and results");
  flags.number("--eval-batches", chosen.eval_batches, std::size_t{1}, most_size,
               "batches of 12 held-out sequences in the final evaluation");
  app.add_option("--out", chosen.out, "folder for metrics.jsonl and summary.json")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->type_name("DIR")
      ->default_str(chosen.out.string())
      ->group("Data and results");

  try {
    app.parse(argument_count, arguments);
  } catch (CLI::CallForHelp const&) {
    throw help_request{app.help()};
  } catch (CLI::ParseError const& error) {
    throw usage_error{error.what()};
  }
  if (auto const unknown = app.remaining(); !unknown.empty()) {
    throw usage_error{unknown.front() + ": unknown; train_gpt --help lists the flags"};
  }

  if (method_name != "all") {
    chosen.methods.clear();
    for (auto const& candidate : method_names) {
      if (candidate.name == method_name) {
        chosen.methods.push_back(candidate.value);
      }
    }
    detail::require(
        !chosen.methods.empty(),
        "--method " + method_name + ": must be one of data_parallel, diloco, streaming, all, none");
    if (method_name == "diloco" && codec->count() > 0) {
      chosen.diloco_codec = chosen.codec;
    }
  }
  if (app.count("--warmup") == 0) {
    chosen.warmup = std::min(chosen.warmup, chosen.steps / 10);
  }
  detail::require(std::ranges::find(files, "") == files.end(), "--data: a file has an empty name");
  detail::require(!chosen.out.empty(), "--out: the folder has an empty name");
  if (!files.empty()) {
    chosen.data.assign(files.begin(), files.end());
  }
  detail::require(
      chosen.pattern != fragment_pattern::whole_model || app.count("--layers-per-fragment") == 0,
      "--layers-per-fragment: has no meaning with --pattern whole_model");
  detail::require(chosen.record.empty() || chosen.overlap > 0,
                  "--record: needs --overlap of at least 1");
  detail::check_flags(app, method_name);
  detail::check_values(chosen);
  return chosen;
}

}  // namespace train_gpt
