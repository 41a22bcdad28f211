/// The codecs: speed against the limits of the machine, and accuracy.
///
///   codec_bench                     every operation of every codec, by Google Benchmark
///   codec_bench --summary           the goals and what is reached; exit status 1 if one is missed
///               [--json FILE]       the same, with every codec, to a file
///   codec_bench --accuracy          signal-to-noise ratios against those that the formats reach
///   codec_bench --accuracy FILE     the same on the 32-bit floats of a file, outer gradients say
///
/// Speeds are in bytes of 32-bit values, whatever the codes take. What is compared is timed in
/// turns, and by medians. Build it optimized, and let nothing else run.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

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
  for (std::vector<any_codec> const& codecs :
       {four_bit_codecs(), stochastic_codecs(), half_codecs(), other_codecs()}) {
    for (any_codec const& codec : codecs) {
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
}

struct options {
  bool summary = false;
  bool accuracy = false;
  std::string file;
  std::string json;
};

/// Takes our own flags out of the arguments.
options parse(int& count, char** arguments) {
  options o;
  int kept = 1;
  for (int i = 1; i < count; ++i) {
    bool const value_follows = i + 1 < count && arguments[i + 1][0] != '-';
    if (std::strcmp(arguments[i], "--summary") == 0) {
      o.summary = true;
    } else if (std::strcmp(arguments[i], "--accuracy") == 0) {
      o.accuracy = true;
      if (value_follows) o.file = arguments[++i];
    } else if (std::strcmp(arguments[i], "--json") == 0 && value_follows) {
      o.json = arguments[++i];
    } else {
      arguments[kept++] = arguments[i];
    }
  }
  count = kept;
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  options const o = parse(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  bool good = true;
  if (o.accuracy) {
    good =
        o.file.empty() ? print_accuracy(accuracy_rows()) : print_accuracy(accuracy_rows(), o.file);
  }
  if (o.summary) good = run_summary(o.json) && good;
  if (o.accuracy || o.summary) return good ? 0 : 1;
  add_benchmarks();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
