/// The program train_gpt as a whole: what it writes, that it repeats itself, what it refuses.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <rivulet/rivulet.hpp>

#include "examples/train_gpt/model.hpp"

namespace {

using nlohmann::json;

struct outcome {
  int status;
  std::string text;  // standard output and error
};

/// Runs the program with flags and redirections, words of the shell.
outcome run_in_shell(std::string const& words) {
  std::string const command = std::string(RIVULET_TRAIN_GPT) + " " + words + " </dev/null";
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  outcome result{0, {}};
  char part[256];
  while (std::fgets(part, sizeof part, pipe) != nullptr) result.text += part;
  int const status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

outcome run(std::string const& flags) { return run_in_shell(flags + " 2>&1"); }

/// A folder of this process, with a text of words in it.
class workspace {
 public:
  workspace() {
    std::filesystem::create_directories(folder_);
    std::ofstream text(file("text"));
    std::uint64_t word = 1;
    for (int i = 0; i < 20000; ++i) {
      word = rivulet::detail::mix(word + static_cast<std::uint64_t>(i));
      char const* const words[] = {"river", "stream", "brook", "delta",
                                   "flows", "runs",   "into",  "the"};
      text << words[word % 8] << (word % 11 == 0 ? ".\n" : " ");
    }
  }
  workspace(workspace const&) = delete;
  workspace& operator=(workspace const&) = delete;
  ~workspace() { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string file(std::string const& name) const { return folder_ / name; }

  /// Trains a small model and returns its summary.
  [[nodiscard]] json train(std::string const& out, std::string const& flags) const {
    outcome const result = run(
        "--layers 2 --heads 2 --width 32 --context 32 --batch 12 --steps 60 "
        "--eval-batches 4 --sync-every 8 --overlap 2 --learning-rate 1e-2 --check-syncs --data " +
        file("text") + " --out " + file(out) + " " + flags);
    INFO(result.text);
    REQUIRE(result.status == 0);
    std::ifstream stream(file(out) + "/summary.json");
    return json::parse(stream);
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("train_gpt_run_" + std::to_string(getpid()));
};

/// Bytes of a message of e3m0 by the formula: header + sum over tensors of ceil(n / 64) * 34.
std::size_t e3m0_message(std::span<train_gpt::gpt<float>::tensor const> tensors, int layer) {
  std::size_t bytes = 80;
  for (auto const& tensor : tensors) {
    if (tensor.layer == layer) bytes += (tensor.values.size() + 63) / 64 * 34;
  }
  return bytes;
}

}  // namespace

TEST_CASE("all methods learn, workers end identical, and the ledger equals the formula") {
  workspace const space;
  json const summary = space.train("all", "--method all --workers 2 --seed 5");
  REQUIRE(summary["runs"].size() == 3);
  std::map<std::string, json> runs;
  for (json const& r : summary["runs"]) {
    CHECK(r["workers_identical"] == true);
    CHECK(r["eval_loss"].get<double>() < 0.85 * summary["byte_frequency_loss"].get<double>());
    CHECK(r["tokens"] == 60 * 12 * 32);
    runs[r["method"]] = r;
  }

  train_gpt::gpt<float> const net({.layers = 2, .heads = 2, .width = 32, .context = 32}, 1, 1, 1);
  std::size_t const values = net.values().size();
  CHECK(runs["data_parallel"]["bytes_sent_per_worker"] == 60 * (80 + 4 * values));
  // DiLoCo sends everything after steps 8, 16, ... 56.
  CHECK(runs["diloco"]["bytes_sent_per_worker"] == 7 * (80 + 4 * values));

  // Two block fragments and the one of embedding and final norm, offsets 0, 2 and 5.
  std::size_t const sizes[] = {e3m0_message(net.tensors(), 0), e3m0_message(net.tensors(), 1),
                               e3m0_message(net.tensors(), -1)};
  rivulet::schedule::streaming const schedule(8, 2, 3, rivulet::first_sync::after_full_round);
  std::size_t total = 0;
  for (int step = 1; step <= 60; ++step) {
    for (int p = 0; p < 3; ++p) total += schedule.is_sent(p, step) ? sizes[p] : 0;
  }
  CHECK(runs["streaming"]["bytes_sent_per_worker"] == total);
  CHECK(runs["streaming"]["peak_bytes_per_step"] == std::max({sizes[0], sizes[1], sizes[2]}));
}

TEST_CASE("the same seed gives the same fingerprint, another seed another one") {
  workspace const space;
  auto const fingerprint = [&](std::string const& out, std::string const& flags) {
    return space.train(out, "--method streaming " + flags)["runs"][0]["outer_fingerprint"]
        .get<std::string>();
  };
  std::string const first = fingerprint("a", "--workers 3 --seed 1");
  CHECK(fingerprint("b", "--workers 3 --seed 1") == first);
  CHECK(fingerprint("c", "--workers 3 --seed 2") != first);
}

TEST_CASE("wrong flags and files end with one line and a status") {
  workspace const space;
  struct {
    char const* flags;
    int status;
    char const* text;
  } const cases[] = {
      {"--no-such-flag", 2, "--no-such-flag"},
      {"--overlap 31 --sync-every 30", 2, "overlap"},
      {"--workers 5 --batch 12", 2, "batch"},
      {"--width 130 --heads 4", 2, "heads"},
      {"--codec e4m3", 2, "codec"},
      {"--data /no/such/file", 1, "/no/such/file"},
  };
  for (auto const& c : cases) {
    CAPTURE(c.flags);
    outcome const result = run(std::string(c.flags) + " --out " + space.file("none"));
    CAPTURE(result.text);
    CHECK(result.status == c.status);
    CHECK(result.text.starts_with("train_gpt: "));
    CHECK(result.text.find(c.text) != std::string::npos);
    CHECK(result.text.find('\n') == result.text.size() - 1);
  }
}

TEST_CASE("output that cannot be written is an error, but progress that cannot is not") {
  workspace const space;
  std::string const flags =
      "--method none --layers 1 --heads 1 --width 8 --context 8 --steps 2 "
      "--batch 2 --eval-batches 1 --data " +
      space.file("text") + " --out " + space.file("out");
  std::string const full = "train_gpt: standard output: cannot be written\n";
  CHECK(run_in_shell("--no-such-flag 2>/dev/full").status == 2);
  CHECK(run_in_shell(flags + " 2>/dev/full").status == 0);
  outcome const help = run_in_shell("--help 2>&1 >/dev/full");
  CHECK(help.status == 1);
  CHECK(help.text == full);
  outcome const trained = run_in_shell(flags + " 2>&1 >/dev/full");
  CHECK(trained.status == 1);
  CHECK(trained.text.ends_with(full));
  CHECK(std::filesystem::exists(space.file("out") + "/summary.json"));
}

TEST_CASE("a training that diverges names the learning rates of its method") {
  workspace const space;
  for (std::string const method : {"data_parallel", "streaming"}) {
    outcome const result = run("--method " + method +
                               " --layers 1 --heads 1 --width 8 --context 8 --steps 60 "
                               "--batch 2 --warmup 0 --learning-rate 1000 --data " +
                               space.file("text") + " --out " + space.file("out"));
    CAPTURE(result.text);
    CHECK(result.status == 1);
    CHECK(result.text.find("diverged") != std::string::npos);
    CHECK(result.text.find("-nan") == std::string::npos);
    CHECK((result.text.find("--outer-learning-rate") != std::string::npos) ==
          (method == "streaming"));
  }
}

TEST_CASE("streaming learns real text") {
  std::string const text = std::string(RIVULET_SHARED) + "/data/tinyshakespeare.txt";
  if (!std::filesystem::exists(text)) {
    MESSAGE("skipped: shared/data/tinyshakespeare.txt is not beside the project");
    return;
  }
  workspace const space;
  outcome const result =
      run("--method streaming --width 64 --steps 150 --learning-rate 3e-3 "
          "--eval-batches 20 --data " +
          text + " --out " + space.file("real"));
  INFO(result.text);
  REQUIRE(result.status == 0);
  std::ifstream stream(space.file("real") + "/summary.json");
  json const run = json::parse(stream)["runs"][0];
  CHECK(run["eval_loss"].get<double>() < 2.7);  // 3.35 by byte frequencies
  CHECK(run["workers_identical"] == true);
}
