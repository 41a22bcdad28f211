#pragma once

/// \file
/// The goals, and whether they are reached.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "codec_bench/codecs.hpp"
#include "codec_bench/operations.hpp"
#include "codec_bench/timing.hpp"
#include "examples/train_gpt/files.hpp"

namespace codec_bench {

/// What a codec does, or a baseline of it, with that many values.
using operation = std::function<contestant(any_codec const&, std::size_t values)>;

/// A ratio of speeds that each codec of a class must reach.
struct goal {
  std::string what;
  std::size_t values;
  double must;  ///< 0: only shown
  double aim;
  operation run;
  operation baseline;
  std::vector<any_codec> codecs;

  std::string against = {};          ///< the baseline's name
  std::vector<double> reached = {};  ///< per codec

  [[nodiscard]] std::size_t worst() const {
    return static_cast<std::size_t>(std::ranges::min_element(reached) - reached.begin());
  }
  [[nodiscard]] bool ok() const { return reached[worst()] >= must; }
};

/// Measures all goals, in several sweeps, so that no codec meets all of a bad minute. Contestants
/// are made anew each time: together they would take too much memory.
inline void measure(std::span<goal> goals) {
  constexpr int sweeps = 3;
  constexpr int rounds = 7;
  std::vector<std::vector<std::array<contestant, 2>>> results(goals.size());
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    std::fprintf(stderr, "codec_bench: sweep %d of %d\n", sweep + 1, sweeps);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      results[i].resize(goals[i].codecs.size());
      for (std::size_t j = 0; j < results[i].size(); ++j) {
        std::array<contestant, 2> now{goals[i].run(goals[i].codecs[j], goals[i].values),
                                      goals[i].baseline(goals[i].codecs[j], goals[i].values)};
        for (std::size_t k = 0; k < 2; ++k) now[k].seconds = std::move(results[i][j][k].seconds);
        race(now, rounds);
        for (contestant& c : now) c.run = nullptr;  // releases its memory
        results[i][j] = std::move(now);
      }
    }
  }
  for (std::size_t i = 0; i < goals.size(); ++i) {
    for (auto const& [run, baseline] : results[i]) {
      goals[i].against = baseline.name;
      goals[i].reached.push_back(speed_ratio(run, baseline));
    }
  }
}

/// A baseline that is the same for all codecs.
inline operation machine(contestant (*baseline)(std::size_t)) {
  return [=](any_codec const&, std::size_t values) { return baseline(values); };
}

inline operation on_two_cores(operation const& single) {
  return [=](any_codec const& codec, std::size_t values) {
    contestant result = single(codec, values);
    result.threads = 2;
    return result;
  };
}

inline operation pass(pass_part what) {
  return [=](any_codec const& codec, std::size_t values) { return codec.pass(what, values); };
}

inline contestant encoding_nearest(any_codec const& codec, std::size_t values) {
  contestant result = encoding(*codec.nearest, values);
  result.name = "nearest";
  return result;
}

inline std::vector<goal> all_goals() {
  auto const four = four_bit_codecs();
  auto const random = stochastic_codecs();
  auto const half = half_codecs();
  auto const of_block = [&](std::size_t block) {
    std::vector<any_codec> result;
    std::ranges::copy_if(four, std::back_inserter(result),
                         [&](any_codec const& c) { return c.block == block; });
    return result;
  };
  std::vector const int8{erase(rivulet::codec::int8<64>{})};
  std::vector const nvfp4{erase(rivulet::codec::nvfp4{})};
  operation const scan = machine(read_scan);
  operation const copy = machine(memory_copy);
  operation const add = machine(axpy);
  return {
      {"4-bit encode, blocks of 64", in_memory, .80, .92, encoding, scan, of_block(64)},
      {"4-bit encode, blocks of 32", in_memory, .75, .92, encoding, scan, of_block(32)},
      {"4-bit encode", in_cache, .45, .60, encoding, copy, four},
      {"stochastic encode", in_memory, .75, .90, encoding, encoding_nearest, random},
      {"stochastic encode", in_cache, .75, .90, encoding, encoding_nearest, random},
      {"4-bit decode", in_memory, 2.2, 2.6, decoding, copy, four},
      {"4-bit decode", in_cache, .90, 1.0, decoding, copy, four},
      {"4-bit decode and add", in_memory, 1.3, 1.5, decoding_and_adding, add, four},
      {"4-bit decode and add", in_cache, .85, 1.0, decoding_and_adding, add, four},
      {"4-bit sum of 8 senders", in_memory, 3.0, 3.4, summing, adding_8, four},
      {"encode of outer - local", in_memory, .40, .47, pass(pass_part::encode), scan, four},
      {"receive from 2, step and mix", in_memory, .75, .90, pass(pass_part::receive),
       pass(pass_part::receive_traffic), four},
      {"int8 encode", in_memory, .75, .85, encoding, scan, int8},
      {"int8 encode", in_cache, .65, .75, encoding, copy, int8},
      {"bf16, fp16 encode", in_memory, 1.35, 1.5, encoding, copy, half},
      {"bf16, fp16 decode", in_memory, 1.35, 1.5, decoding, copy, half},
      {"exact top-k, 1 %", in_memory, .25, .50, encoding, scan, {top_1_percent()}},
      {"two cores, 4-bit encode", in_cache, 1.5, 1.9, on_two_cores(encoding), encoding, four},
      {"two cores, 4-bit decode", in_cache, 1.5, 1.9, on_two_cores(decoding), decoding, four},
      {"nvfp4 encode", in_memory, 0, 0, encoding, scan, nvfp4},
      {"nvfp4 encode", in_cache, 0, 0, encoding, copy, nvfp4},
      {"nvfp4 decode", in_memory, 0, 0, decoding, copy, nvfp4},
      {"nvfp4 decode and add", in_memory, 0, 0, decoding_and_adding, add, nvfp4},
  };
}

inline char const* place(std::size_t values) { return values == in_cache ? "in L2" : "64 MiB"; }

/// Prints how fast the machine is.
inline void print_limits() {
  constexpr std::pair<contestant (*)(std::size_t), char const*> limits[] = {
      {read_scan, "the largest |x|"}, {memory_copy, "of the C library"}, {axpy, "y += x"}};
  std::printf("limits of one core, GB/s of 32-bit values  in L2  64 MiB\n");
  for (auto const& [limit, meaning] : limits) {
    std::array contestants{limit(in_cache), limit(in_memory)};
    race(contestants, 11);
    auto const speed = [](contestant const& c) {
      return static_cast<double>(c.values * sizeof(float)) * 1e-9 / median(c.seconds);
    };
    std::printf("  %-8s %-30s %7.1f %7.1f\n", contestants[0].name.c_str(), meaning,
                speed(contestants[0]), speed(contestants[1]));
  }
}

inline void print(std::span<goal const> goals) {
  std::printf("\n%-32s %-6s  %-9s %5s %5s %8s  %s\n", "speed of", "", "relative to", "must", "aim",
              "reached", "by the slowest codec");
  for (goal const& g : goals) {
    std::printf("%-32s %-6s  %-11s", g.what.c_str(), place(g.values), g.against.c_str());
    std::size_t const worst = g.worst();
    char const* const codec = g.codecs[worst].label.c_str();
    if (g.must > 0) {
      std::printf(" %5.2f %5.2f %8.2f  %-22s %s\n", g.must, g.aim, g.reached[worst], codec,
                  g.ok() ? "ok" : "MISSED");
    } else {
      std::printf(" %5s %5s %8.2f  %s\n", "", "", g.reached[worst], codec);
    }
  }
}

/// What the checksums cost: nanoseconds per value in the two places.
struct checksum_cost {
  std::string what;
  double in_cache_ns;
  double in_memory_ns;
};

/// Alone, over the codes and over Theta, and as the difference that they make to an encoding pass.
inline std::vector<checksum_cost> measure_checksums() {
  any_codec const codec = erase_with_passes(rivulet::codec::e3m0<64>{});
  auto const sum = [](std::span<std::byte const> bytes) {
    static std::atomic<std::uint64_t> sink;
    sink.store(rivulet::detail::mixed_sum(bytes.data(), bytes.size()), std::memory_order_relaxed);
  };
  std::vector<double> costs[2];
  std::vector<std::string> names;
  for (std::size_t const values : {in_cache, in_memory}) {
    std::vector<contestant> all{
        {"of the codes alone", values,
         [=, c = coded(codec, values)](auto first, auto count) { sum(c->part(first, count)); }},
        {"of Theta alone", values,
         [=](auto first, auto count) { sum(std::as_bytes(input(first, count))); }},
        codec.pass(pass_part::encode, values),
        codec.pass(pass_part::encode_summed, values)};
    race(all, 21);
    names.clear();
    for (contestant const& c : all) {
      names.push_back(c.name);
      costs[values == in_memory].push_back(median(c.seconds) * 1e9 / static_cast<double>(values));
    }
  }
  std::vector<checksum_cost> result;
  for (std::size_t i = 0; i < names.size(); ++i) {
    result.push_back({names[i], costs[0][i], costs[1][i]});
  }
  return result;
}

inline void print(std::span<checksum_cost const> costs) {
  std::printf("\nchecksums, ns per value (e3m0<64>)        in L2  64 MiB\n");
  for (checksum_cost const& c : costs) {
    std::printf("  %-38s %6.3f  %6.3f\n", c.what.c_str(), c.in_cache_ns, c.in_memory_ns);
  }
}

/// The same with every codec.
inline nlohmann::ordered_json to_json(std::span<goal const> goals,
                                      std::span<checksum_cost const> costs) {
  nlohmann::ordered_json result;
  for (goal const& g : goals) {
    nlohmann::ordered_json line{{"operation", g.what},
                                {"place", place(g.values)},
                                {"relative_to", g.against},
                                {"must", g.must},
                                {"aim", g.aim},
                                {"reached", g.reached[g.worst()]},
                                {"slowest", g.codecs[g.worst()].label},
                                {"ok", g.ok()}};
    for (std::size_t i = 0; i < g.codecs.size(); ++i)
      line["codecs"][g.codecs[i].label] = g.reached[i];
    result["goals"].push_back(std::move(line));
  }
  for (checksum_cost const& c : costs) {
    result["checksum_ns_per_value"][c.what] = {{"in L2", c.in_cache_ns},
                                               {"64 MiB", c.in_memory_ns}};
  }
  return result;
}

/// Measures and prints all goals, and writes them to a file of JSON unless its name is empty;
/// throws train_gpt::report_error where that cannot be written, before anything is measured if
/// possible. Returns whether every goal is reached.
inline bool run_summary(std::string const& json) {
  if (!json.empty()) train_gpt::check_writable(json);
  double load = 0;
  if (getloadavg(&load, 1) == 1 && load > 0.5) {
    std::printf("Others use this machine (load average %.2f): ratios will be worse than alone.\n",
                load);
  }
  print_limits();
  std::vector<goal> goals = all_goals();
  measure(goals);
  print(goals);
  std::vector<checksum_cost> const costs = measure_checksums();
  print(costs);
  if (!json.empty()) train_gpt::write_whole(json, to_json(goals, costs).dump(2) + '\n');
  return std::ranges::all_of(goals, &goal::ok);
}

}  // namespace codec_bench
