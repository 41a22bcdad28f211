/// The codecs: speed against the limits of the machine, and accuracy.
///
///   codec_bench [--benchmark_filter=REGEX]      every operation of every codec
///   codec_bench --summary [--json FILE]         the goals and what is reached
///   codec_bench --accuracy [FILE]               signal-to-noise ratios
///
/// Speeds are in bytes of 32-bit values, whatever the codes take. What is compared is timed in
/// turns, and by medians. Build it optimized, and let nothing else run.
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <benchmark/benchmark.h>

#include "codec_bench/accuracy.hpp"
#include "codec_bench/codecs.hpp"
#include "codec_bench/operations.hpp"
#include "codec_bench/summary.hpp"
#include "codec_bench/timing.hpp"

namespace {

using namespace codec_bench;

/// Makes what a benchmark times, and then its baselines.
using contest = std::function<std::vector<contestant>()>;

/// Registers a benchmark of one iteration, which is a race with the baselines.
void add_benchmark(std::string const& name, any_codec const& codec, std::size_t values, int threads,
                   contest const& make) {
  auto const run = [=](benchmark::State& state) {
    std::vector<contestant> all = make();
    for (contestant& c : all) c.threads = threads;
    for (auto _ : state) {
      race(all, 9);
      state.SetIterationTime(median(all[0].seconds));
    }
    state.SetBytesProcessed(static_cast<std::int64_t>(values * sizeof(float)));
    state.counters["bits_per_value"] = codec.bits_per_value();
    for (std::size_t i = 1; i < all.size(); ++i) {
      state.counters["ratio_" + all[i].name] = speed_ratio(all[0], all[i]);
    }
  };
  std::string full = name + "/" + codec.label;
  full += (values == in_cache ? "/128KiB/threads:" : "/64MiB/threads:") + std::to_string(threads);
  benchmark::RegisterBenchmark(full.c_str(), run)
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

/// An operation on both sizes and by one and two threads.
void add_benchmarks(std::string const& name, any_codec const& codec, operation const& run,
                    operation const& baseline = nullptr) {
  for (std::size_t const values : {in_cache, in_memory}) {
    for (int const threads : {1, 2}) {
      if (threads > 1 && !codec.divisible) continue;
      add_benchmark(name, codec, values, threads, [=] {
        std::vector<contestant> all{run(codec, values), read_scan(values), memory_copy(values),
                                    axpy(values)};
        if (baseline) all.push_back(baseline(codec, values));
        return all;
      });
    }
  }
}

void add_benchmarks() {
  for (any_codec const& codec : all_codecs()) {
    add_benchmarks("encode", codec, encoding, codec.nearest ? encoding_nearest : nullptr);
    add_benchmarks("decode", codec, decoding);
    add_benchmarks("decode_add", codec, decoding_and_adding);
    add_benchmarks("sum_8", codec, summing, adding_8);
    if (!codec.pass) continue;
    add_benchmarks("encode_pass", codec, pass(pass_part::encode));
    add_benchmarks("encode_pass_with_checksums", codec, pass(pass_part::encode_summed));
    add_benchmarks("receive_pass", codec, pass(pass_part::receive),
                   pass(pass_part::receive_traffic));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Codecs: speed against the limits of the machine, and accuracy. Without a flag, Google "
      "Benchmark times every operation of every codec; its own flags, as "
      "--benchmark_filter=REGEX, work too."};
  bool summary = false;
  std::string json;
  std::string values;
  auto* const summary_flag =
      app.add_flag("--summary", summary, "Time what has a goal; exit status 1 if one is missed");
  app.add_option("--json", json, "Write the summary, with every codec, to this file too")
      ->needs(summary_flag)
      ->option_text("FILE");
  auto* const accuracy = app.add_option("--accuracy", values,
                                        "Print signal-to-noise ratios, of the values in a file of "
                                        "32-bit floats or of known distributions")
                             ->expected(0, 1)
                             ->option_text("[FILE]");
  app.allow_extras();
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  std::vector<std::string> rest = app.remaining();
  rest.insert(rest.begin(), argv[0]);
  std::vector<char*> arguments;
  for (std::string& argument : rest) arguments.push_back(argument.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;

  try {
    bool good = true;
    if (*accuracy && values.empty()) good = print_accuracy();
    if (*accuracy && !values.empty()) print_accuracy(values);
    if (summary) good = run_summary(json) && good;
    if (*accuracy || summary) return good ? 0 : 1;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "codec_bench: %s\n", error.what());
    return 2;
  }
  add_benchmarks();
  std::size_t const run = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return run > 0 ? 0 : 2;
}
