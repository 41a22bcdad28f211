#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <zlib.h>

#include "examples/train_gpt/data.hpp"
#include "examples/train_gpt/options.hpp"
#include "examples/train_gpt/progress.hpp"
#include "examples/train_gpt/report.hpp"

namespace {

using bytes = std::vector<std::uint8_t>;

/// A folder of its own for a test, removed with it.
class temporary_folder {
 public:
  temporary_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "train_gpt_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
  ~temporary_folder() { std::filesystem::remove_all(path_); }

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write_plain(std::filesystem::path const& file, bytes const& content) {
  std::ofstream stream{file, std::ios::binary};
  stream.write(reinterpret_cast<char const*>(content.data()),
               static_cast<std::streamsize>(content.size()));
}

void write_gzip(std::filesystem::path const& file, bytes const& content) {
  gzFile const stream = gzopen(file.c_str(), "wb");
  REQUIRE(stream != nullptr);
  if (!content.empty()) {
    REQUIRE(gzwrite(stream, content.data(), static_cast<unsigned>(content.size())) > 0);
  }
  REQUIRE(gzclose(stream) == Z_OK);
}

bytes read_plain(std::filesystem::path const& file) {
  std::ifstream stream{file, std::ios::binary};
  return {std::istreambuf_iterator<char>{stream}, std::istreambuf_iterator<char>{}};
}

/// Bytes that do not compress well and repeat nowhere in short windows.
bytes noise(std::size_t size, std::uint64_t seed) {
  bytes result(size);
  for (std::size_t index = 0; index < size; ++index) {
    result[index] = static_cast<std::uint8_t>(train_gpt::keyed_hash(seed, 0, 0, index));
  }
  return result;
}

/// What `call` throws as an Error, or "" if it does not.
template <class Error, class Call>
std::string message_of(Call const& call) {
  try {
    call();
  } catch (Error const& error) {
    return error.what();
  }
  return {};
}

std::string file_error(std::filesystem::path const& file) {
  bytes text;
  return message_of<train_gpt::data_error>([&] { train_gpt::append_file(file, text); });
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// A corpus whose byte i is a hash of i, so that places in it can be found again.
train_gpt::corpus noise_corpus(std::size_t size, std::size_t workers, std::size_t context) {
  return train_gpt::corpus{noise(size, 7), workers, context, "noise"};
}

std::ptrdiff_t place_of(std::span<std::uint8_t const> text, std::span<std::uint8_t const> part) {
  auto const found = std::search(text.begin(), text.end(), part.begin(), part.end());
  return found == text.end() ? -1 : found - text.begin();
}

train_gpt::options parse(std::vector<char const*> arguments) {
  arguments.insert(arguments.begin(), "train_gpt");
  return train_gpt::parse_options(static_cast<int>(arguments.size()), arguments.data());
}

std::string usage_error(std::vector<char const*> arguments) {
  return message_of<train_gpt::usage_error>([&] { parse(std::move(arguments)); });
}

train_gpt::run_result example_result(train_gpt::method method) {
  train_gpt::run_result run;
  run.method = method;
  run.workers = 2;
  run.steps = 100;
  run.tokens = 76800;
  run.eval_loss = 1.75;
  run.bytes_sent_per_worker = 1000000;
  run.peak_bytes_per_step = 40000;
  run.compute_utilization = 0.96875;
  run.wall_seconds = 12.5;
  run.outer_fingerprint = 0xfedcba9876543210U;
  run.workers_identical = true;
  run.parameters = 10000;
  return run;
}

}  // namespace

TEST_CASE("text: plain and gzip files are read as one text in their order") {
  temporary_folder const folder;
  auto const first = noise(3000000, 1);  // more than a chunk of the reader
  auto const second = noise(1234, 2);
  auto const third = noise(77, 3);
  write_plain(folder / "first.txt", first);
  write_gzip(folder / "second.gz", second);
  write_gzip(folder / "gzip_by_content_not_by_name.txt", third);

  bytes expected = first;
  expected.insert(expected.end(), second.begin(), second.end());
  expected.insert(expected.end(), third.begin(), third.end());

  std::vector<std::filesystem::path> const files{folder / "first.txt", folder / "second.gz",
                                                 folder / "gzip_by_content_not_by_name.txt"};
  bytes text;
  for (auto const& file : files) {
    train_gpt::append_file(file, text);
  }
  CHECK(text == expected);

  auto const whole = train_gpt::corpus::read(files, 2, 64);
  CHECK(whole.training().size() + whole.held_out().size() == expected.size());
  CHECK(std::equal(whole.training().begin(), whole.training().end(), expected.begin()));
  CHECK(std::equal(whole.held_out().rbegin(), whole.held_out().rend(), expected.rbegin()));
}

TEST_CASE("text: gzip members one after the other are one text") {
  temporary_folder const folder;
  write_gzip(folder / "a", noise(100, 1));
  write_gzip(folder / "b", noise(200, 2));
  auto joined = read_plain(folder / "a");
  auto const tail = read_plain(folder / "b");
  joined.insert(joined.end(), tail.begin(), tail.end());
  write_plain(folder / "joined", joined);

  auto expected = noise(100, 1);
  auto const more = noise(200, 2);
  expected.insert(expected.end(), more.begin(), more.end());
  bytes text;
  train_gpt::append_file(folder / "joined", text);
  CHECK(text == expected);
}

TEST_CASE("text: a file that cannot be used is refused with its name and the rule") {
  temporary_folder const folder;
  auto const missing = file_error(folder / "missing.txt");
  CHECK(contains(missing, "missing.txt: no such file"));

  std::filesystem::create_directory(folder / "folder");
  CHECK(contains(file_error(folder / "folder"), "folder: is a directory"));

  write_plain(folder / "empty.txt", {});
  CHECK(contains(file_error(folder / "empty.txt"), "empty.txt: is empty"));
  write_gzip(folder / "empty.gz", {});
  CHECK(contains(file_error(folder / "empty.gz"), "empty.gz: is empty"));

  write_gzip(folder / "corrupt.gz", noise(5000, 4));
  auto damaged = read_plain(folder / "corrupt.gz");
  damaged[damaged.size() - 6] ^= 0x55U;  // the checksum
  write_plain(folder / "corrupt.gz", damaged);
  CHECK(contains(file_error(folder / "corrupt.gz"), "corrupt.gz: the gzip data is corrupt"));

  write_plain(folder / "magic_only.gz", {0x1f, 0x8b, 0x99, 0x99});
  CHECK(contains(file_error(folder / "magic_only.gz"), "magic_only.gz: the gzip data"));
}

TEST_CASE("text: gzip data cut anywhere is refused as truncated") {
  temporary_folder const folder;
  write_gzip(folder / "whole.gz", noise(2000, 5));
  auto const whole = read_plain(folder / "whole.gz");
  for (std::size_t size = 2; size < whole.size(); size += size < 40 ? 1 : 97) {
    bytes part{whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)};
    write_plain(folder / "cut.gz", part);
    CAPTURE(size);
    CHECK(contains(file_error(folder / "cut.gz"), "cut.gz: the gzip data ends early"));
  }
  bytes part{whole.begin(), whole.end() - 1};
  write_plain(folder / "cut.gz", part);
  CHECK(contains(file_error(folder / "cut.gz"), "cut.gz: the gzip data ends early"));
}

TEST_CASE("corpus: too little text for context and workers is refused, exactly enough is not") {
  // 110 bytes: 11 held out, 99 for training, 49 in the smaller of two shards, 9 in the smallest
  // of 11.
  CHECK_NOTHROW(noise_corpus(110, 2, 10));
  auto const held_out = message_of<train_gpt::data_error>([] { noise_corpus(110, 2, 11); });
  CHECK(contains(held_out,
                 "noise: 110 bytes are too few: the held-out tenth has 11, and must have "
                 "at least 12 (--context + 1)"));
  CHECK_NOTHROW(noise_corpus(110, 11, 8));
  auto const shard = message_of<train_gpt::data_error>([] { noise_corpus(110, 11, 9); });
  CHECK(contains(shard, "the shard of one of 11 workers has 9, and must have at least 10"));
  CHECK(contains(message_of<train_gpt::data_error>([] { noise_corpus(1, 1, 1); }), "too few"));
}

TEST_CASE("corpus: shards are contiguous, disjoint and cover the training part") {
  for (std::size_t const workers : {1U, 2U, 3U, 4U, 7U}) {
    auto const text = noise_corpus(10007, workers, 16);
    CHECK(text.held_out().size() == 1000);
    CHECK(text.training().size() == 9007);
    auto const* next = text.training().data();
    for (std::size_t worker = 0; worker < workers; ++worker) {
      auto const shard = text.shard(worker);
      CHECK(shard.data() == next);
      CHECK(shard.size() >= 9007 / workers);
      CHECK(shard.size() <= 9007 / workers + 1);
      next = shard.data() + shard.size();
    }
    CHECK(next == text.held_out().data());
  }
}

TEST_CASE("corpus: a sample lies in the shard of its worker, and its target is the next byte") {
  auto const text = noise_corpus(20000, 3, 16);
  train_gpt::sample_batch batch{8, 16};
  for (std::size_t worker = 0; worker < 3; ++worker) {
    std::set<std::ptrdiff_t> places;
    for (std::size_t step = 1; step <= 20; ++step) {
      text.training_batch(1, worker, step, batch);
      for (std::size_t index = 0; index < batch.sequences; ++index) {
        auto const inputs = std::span{batch.inputs}.subspan(index * 16, 16);
        auto const targets = std::span{batch.targets}.subspan(index * 16, 16);
        auto const place = place_of(text.shard(worker), inputs);
        CHECK(place >= 0);
        CHECK(place_of(text.shard(worker), targets) == place + 1);
        places.insert(place);
      }
    }
    CHECK(places.size() > 150);  // of 160: drawn, not repeated
    CHECK(*places.begin() < 600);
    CHECK(*places.rbegin() > 5400);  // of 6000: over the whole shard
  }
}

TEST_CASE("corpus: the last and the first byte of a shard are drawn") {
  auto const text = noise_corpus(110, 2, 8);  // 49 bytes in a shard: 41 places
  train_gpt::sample_batch batch{1, 8};
  std::set<std::ptrdiff_t> places;
  for (std::size_t step = 0; step < 1000; ++step) {
    text.training_batch(3, 0, step, batch);
    places.insert(place_of(text.shard(0), batch.inputs));
  }
  CHECK(places.size() == 41);
  CHECK(*places.begin() == 0);
  CHECK(*places.rbegin() == 40);
}

TEST_CASE("corpus: samples depend on seed, worker, step and index alone") {
  auto const text = noise_corpus(100000, 2, 16);
  auto const draw = [&text](std::uint64_t seed, std::size_t worker, std::size_t step,
                            std::size_t sequences) {
    train_gpt::sample_batch batch{sequences, 16};
    text.training_batch(seed, worker, step, batch);
    return batch.inputs;
  };
  auto const reference = draw(1, 0, 5, 4);
  draw(9, 1, 2, 3);  // what was drawn before changes nothing
  CHECK(draw(1, 0, 5, 4) == reference);
  CHECK(draw(2, 0, 5, 4) != reference);
  CHECK(draw(1, 1, 5, 4) != reference);
  CHECK(draw(1, 0, 6, 4) != reference);
  auto const larger = draw(1, 0, 5, 9);
  CHECK(std::equal(reference.begin(), reference.end(), larger.begin()));
}

TEST_CASE("corpus: evaluation sequences are fixed, held out and spread evenly") {
  auto const text = noise_corpus(50000, 2, 16);
  train_gpt::sample_batch all{60, 16};
  text.held_out_batch(1, 0, 60, all);
  for (std::size_t index = 0; index < 60; ++index) {
    auto const inputs = std::span{all.inputs}.subspan(index * 16, 16);
    auto const targets = std::span{all.targets}.subspan(index * 16, 16);
    auto const place = place_of(text.held_out(), inputs);
    CHECK(place == place_of(text.held_out(), targets) - 1);
    // One in each stretch of the 4984 places.
    CHECK(place >= static_cast<std::ptrdiff_t>(4984 * index / 60));
    CHECK(place < static_cast<std::ptrdiff_t>(4984 * (index + 1) / 60));
  }
  // Any way of cutting them into batches gives the same sequences.
  bytes joined;
  for (auto const& [first, count] : {std::pair{0U, 7U}, std::pair{7U, 40U}, std::pair{47U, 13U}}) {
    train_gpt::sample_batch part{count, 16};
    text.held_out_batch(1, first, 60, part);
    joined.insert(joined.end(), part.inputs.begin(), part.inputs.end());
  }
  CHECK(joined == all.inputs);
  train_gpt::sample_batch other{60, 16};
  text.held_out_batch(2, 0, 60, other);
  CHECK(other.inputs != all.inputs);
}

TEST_CASE("corpus: more evaluation sequences than places, and the least possible text, work") {
  auto const text = noise_corpus(170, 2, 16);  // 17 held out: one place
  train_gpt::sample_batch batch{30, 16};
  text.held_out_batch(1, 0, 30, batch);
  for (std::size_t index = 0; index < 30; ++index) {
    CHECK(place_of(text.held_out(), std::span{batch.inputs}.subspan(index * 16, 16)) == 0);
  }
}

TEST_CASE("byte frequencies: the loss is the cross entropy of the held-out bytes") {
  bytes const half{'a', 'b', 'a', 'b'};
  // Counts plus one: 3 of 260 for each of the two.
  CHECK(train_gpt::byte_frequency_loss(half, half) == doctest::Approx(std::log(260.0 / 3.0)));
  bytes const unseen{'z'};
  CHECK(train_gpt::byte_frequency_loss(half, unseen) == doctest::Approx(std::log(260.0)));
  auto const uniform = noise(400000, 9);
  CHECK(train_gpt::byte_frequency_loss(uniform, uniform) ==
        doctest::Approx(std::log(256.0)).epsilon(0.001));
}

TEST_CASE("options: the defaults are a whole comparison") {
  auto const chosen = parse({});
  CHECK(chosen.methods == std::vector{train_gpt::method::data_parallel, train_gpt::method::diloco,
                                      train_gpt::method::streaming});
  CHECK(chosen.workers == 2);
  CHECK(chosen.sync_every == 30);
  CHECK(chosen.overlap == 5);
  CHECK(chosen.mixing == 0.0F);
  CHECK(chosen.pattern == train_gpt::fragment_pattern::strided);
  CHECK(chosen.layers_per_fragment == 1);
  CHECK(chosen.codec == train_gpt::wire_codec::lloyd_max4);
  CHECK_FALSE(chosen.error_feedback);
  CHECK(chosen.record.empty());
  CHECK(chosen.diloco_codec == train_gpt::wire_codec::float32);
  CHECK(chosen.outer_learning_rate == 0.7F);
  CHECK(chosen.outer_momentum == 0.9F);
  CHECK(chosen.first_sync == train_gpt::first_sync_rule::after_full_round);
  CHECK(chosen.data == std::vector<std::filesystem::path>{"/usr/share/dictd/gcide.dict.dz"});
}

TEST_CASE("options: every flag arrives") {
  auto const chosen = parse({"--method",
                             "streaming",
                             "--workers",
                             "4",
                             "--threads",
                             "8",
                             "--layers",
                             "6",
                             "--heads",
                             "8",
                             "--width",
                             "256",
                             "--context",
                             "128",
                             "--batch",
                             "16",
                             "--steps",
                             "2000",
                             "--learning-rate",
                             "2e-3",
                             "--warmup",
                             "50",
                             "--seed",
                             "18446744073709551615",
                             "--sync-every",
                             "100",
                             "--overlap",
                             "100",
                             "--mixing",
                             "0.5",
                             "--pattern",
                             "balanced",
                             "--layers-per-fragment",
                             "3",
                             "--codec",
                             "bf16",
                             "--outer-learning-rate",
                             "0.4",
                             "--outer-momentum",
                             "0",
                             "--first-sync",
                             "at_offset",
                             "--check-syncs",
                             "--data",
                             "a.txt",
                             "b.gz",
                             "--eval-batches",
                             "7",
                             "--out",
                             "results"});
  CHECK(chosen.methods == std::vector{train_gpt::method::streaming});
  CHECK(chosen.workers == 4);
  CHECK(chosen.threads == 8);
  CHECK(chosen.threads_per_worker() == 2);
  CHECK(chosen.layers == 6);
  CHECK(chosen.heads == 8);
  CHECK(chosen.width == 256);
  CHECK(chosen.context == 128);
  CHECK(chosen.batch == 16);
  CHECK(chosen.sequences_per_worker() == 4);
  CHECK(chosen.tokens_per_step() == 2048);
  CHECK(chosen.steps == 2000);
  CHECK(chosen.learning_rate == 2e-3);
  CHECK(chosen.warmup == 50);
  CHECK(chosen.seed == 18446744073709551615U);
  CHECK(chosen.sync_every == 100);
  CHECK(chosen.overlap == 100);
  CHECK(chosen.mixing == 0.5F);
  CHECK(chosen.pattern == train_gpt::fragment_pattern::balanced);
  CHECK(chosen.layers_per_fragment == 3);
  CHECK(chosen.codec == train_gpt::wire_codec::bf16);
  CHECK(chosen.outer_learning_rate == 0.4F);
  CHECK(chosen.outer_momentum == 0.0F);
  CHECK(chosen.first_sync == train_gpt::first_sync_rule::at_offset);
  CHECK(chosen.data == std::vector<std::filesystem::path>{"a.txt", "b.gz"});
  CHECK(chosen.check_syncs);
  CHECK(chosen.eval_batches == 7);
  CHECK(chosen.out == "results");
}

TEST_CASE("options: of a flag given twice the last counts") {
  auto const chosen = parse({"--steps", "200", "--codec", "bf16", "--method", "none", "--out", "a",
                             "--steps", "300", "--codec", "e3m0", "--method", "all", "--out", "b"});
  CHECK(chosen.steps == 300);
  CHECK(chosen.codec == train_gpt::wire_codec::e3m0);
  CHECK(chosen.methods.size() == 3);
  CHECK(chosen.out == "b");
}

TEST_CASE("options: the files of every --data are read, and none has an empty name") {
  CHECK(parse({"--data", "a", "b", "--data", "c"}).data ==
        std::vector<std::filesystem::path>{"a", "b", "c"});
  CHECK(usage_error({"--data", "a", ""}) == "--data: a file has an empty name");
  CHECK(usage_error({"--out", ""}) == "--out: the folder has an empty name");
}

TEST_CASE("options: a model beyond int and buffers beyond 64 bits are refused") {
  CHECK(usage_error({"--width", "1048576", "--layers", "1048576"}) ==
        "--width 1048576 with --layers 1048576: the model must have at most 2147483647 parameters");
  CHECK(contains(usage_error({"--width", "1048576"}), "2147483647 parameters"));
  CHECK(contains(usage_error({"--context", "1048576", "--batch", "2048"}), "2147483647 bytes"));
  // 12 sequences of the evaluation, 4 layers, 4 heads.
  CHECK(contains(usage_error({"--context", "1048576", "--batch", "2"}), "at most 2^40"));
  CHECK_NOTHROW(parse({"--context", "65536", "--batch", "2"}));
  CHECK_NOTHROW(parse({"--width", "2048", "--layers", "40"}));
}

TEST_CASE("options: --codec is that of streaming, or of a diloco that runs alone") {
  CHECK(parse({"--codec", "bf16"}).diloco_codec == train_gpt::wire_codec::float32);
  CHECK(parse({"--codec", "bf16"}).codec == train_gpt::wire_codec::bf16);
  CHECK(parse({"--method", "diloco"}).diloco_codec == train_gpt::wire_codec::float32);
  CHECK(parse({"--method", "diloco", "--codec", "e3m0"}).diloco_codec ==
        train_gpt::wire_codec::e3m0);
}

TEST_CASE("options: the warm-up shrinks with a short run unless it is given") {
  CHECK(parse({"--steps", "2000"}).warmup == 100);
  CHECK(parse({"--steps", "200"}).warmup == 20);
  CHECK(parse({"--steps", "200", "--warmup", "150"}).warmup == 150);
}

TEST_CASE("options: values out of range are refused with flag, value and rule") {
  CHECK(usage_error({"--workers", "0"}) == "--workers 0: must be a whole number from 1 to 256");
  CHECK(usage_error({"--steps", "ten"}) ==
        "--steps ten: must be a whole number from 1 to 1000000000");
  CHECK(contains(usage_error({"--steps", "-5"}), "--steps -5: must be"));
  CHECK(contains(usage_error({"--steps", "1e3"}), "--steps 1e3: must be"));
  CHECK(contains(usage_error({"--steps", "99999999999999999999"}), "must be a whole number"));
  CHECK(contains(usage_error({"--steps", ""}), "--steps"));
  CHECK(usage_error({"--mixing", "1.5"}) == "--mixing 1.5: must be a number from 0 to 1");
  CHECK(contains(usage_error({"--mixing", "nan"}), "--mixing nan: must be"));
  CHECK(contains(usage_error({"--learning-rate", "0"}), "--learning-rate 0: must be"));
  CHECK(contains(usage_error({"--learning-rate", "inf"}), "--learning-rate inf: must be"));
  CHECK(contains(usage_error({"--outer-momentum", "1"}), "--outer-momentum 1: must be"));
  CHECK(contains(usage_error({"--codec", "fp6"}),
                 "--codec fp6: must be one of float32, bf16, fp16, fp8, int8, e3m0, lloyd_max4"));
  CHECK(usage_error({"--record", "d.f32", "--overlap", "0"}) ==
        "--record: needs --overlap of at least 1");
  CHECK(contains(usage_error({"--method", "diloco", "--record", "d.f32"}), "--record"));
  CHECK(contains(usage_error({"--method", "none", "--error-feedback"}), "--error-feedback"));
  CHECK(contains(usage_error({"--method", "fsdp"}), "--method fsdp: must be one of"));
}

TEST_CASE("options: what is unknown or incomplete is refused in one line") {
  for (auto const& arguments : std::vector<std::vector<char const*>>{
           {"--learning_rate", "1"}, {"--Steps=3"}, {"stray"}, {"--steps"}, {"--data"}}) {
    auto const message = usage_error(arguments);
    CAPTURE(message);
    CHECK(contains(message, std::string_view{arguments.front()}.substr(0, 7)));
    CHECK(!contains(message, "\n"));
  }
}

TEST_CASE("options: contradictions are refused") {
  CHECK(usage_error({"--overlap", "31"}) ==
        "--overlap 31: must be at most --sync-every 30 (a fragment is in flight once at a time)");
  CHECK(usage_error({"--batch", "13"}) == "--batch 13: must be divisible by --workers 2");
  CHECK(usage_error({"--width", "130"}) == "--width 130: must be divisible by --heads 4");
  CHECK(contains(usage_error({"--width", "12"}), "even number"));
  CHECK(contains(usage_error({"--warmup", "1001"}), "must be at most --steps 1000"));
  CHECK(contains(usage_error({"--layers-per-fragment", "5"}), "must be at most --layers 4"));
  CHECK(contains(usage_error({"--sync-every", "1001"}), "must be at most --steps 1000"));
  CHECK(contains(usage_error({"--sync-every", "501"}), "twice as many"));
  CHECK_NOTHROW(parse({"--sync-every", "501", "--first-sync", "at_offset"}));
  CHECK_NOTHROW(parse({"--sync-every", "501", "--method", "diloco"}));
  CHECK(contains(usage_error({"--pattern", "whole_model", "--layers-per-fragment", "1"}),
                 "no meaning with --pattern whole_model"));
}

TEST_CASE("options: flags that a method does not use are refused with it") {
  for (char const* const flag : {"--overlap", "--mixing", "--layers-per-fragment"}) {
    for (char const* const method : {"data_parallel", "diloco", "none"}) {
      auto const message = usage_error({"--method", method, flag, "1"});
      CHECK(contains(message, std::string{flag} + ": has no meaning with --method " + method));
    }
  }
  CHECK(contains(usage_error({"--method", "diloco", "--pattern", "strided"}), "--pattern"));
  CHECK(contains(usage_error({"--method", "data_parallel", "--codec", "bf16"}), "--codec"));
  CHECK(contains(usage_error({"--method", "none", "--check-syncs"}), "--check-syncs"));
  CHECK(contains(usage_error({"--method", "data_parallel", "--sync-every", "5"}), "--sync-every"));
  // Without them, the defaults of the unused flags are not checked either.
  CHECK_NOTHROW(parse({"--method", "data_parallel", "--steps", "3"}));
  CHECK_NOTHROW(parse({"--method", "none", "--steps", "3"}));
}

TEST_CASE("options: --help is not an error and names every flag") {
  std::string const text = message_of<train_gpt::help_request>([] { parse({"--help"}); });
  for (char const* const flag : {"--method",
                                 "--workers",
                                 "--threads",
                                 "--layers",
                                 "--heads",
                                 "--width",
                                 "--context",
                                 "--batch",
                                 "--steps",
                                 "--learning-rate",
                                 "--warmup",
                                 "--seed",
                                 "--sync-every",
                                 "--overlap",
                                 "--mixing",
                                 "--pattern",
                                 "--layers-per-fragment",
                                 "--codec",
                                 "--outer-learning-rate",
                                 "--outer-momentum",
                                 "--first-sync",
                                 "--data",
                                 "--eval-batches",
                                 "--out"}) {
    CHECK(contains(text, flag));
  }
}

TEST_CASE("progress: the line fits the width") {
  train_gpt::progress_state const state{.method = "streaming",
                                        .step = 250,
                                        .steps = 1000,
                                        .loss = 2.3456,
                                        .tokens = 192000,
                                        .elapsed_seconds = 20.0,
                                        .stalled_seconds = 0.5};
  auto const line = train_gpt::progress_line(state, 200);
  CHECK(line == "streaming     step  250/1000  loss 2.346  9.6k tokens/s  stalled 2.5 %  ETA 1:00");
  CHECK(train_gpt::progress_line(state, 30) == line.substr(0, 30));
  CHECK(train_gpt::duration_text(3723.4) == "1:02:03");
  CHECK(train_gpt::duration_text(std::numeric_limits<double>::infinity()) == "100000:00:00");
}

TEST_CASE("progress: a stream that cannot be written is no error") {
  std::FILE* const stream = std::fopen("/dev/full", "wb");
  REQUIRE(stream != nullptr);
  {
    train_gpt::progress shown{stream};
    CHECK_NOTHROW(shown.show({.method = "none",
                              .step = 1,
                              .steps = 1,
                              .loss = 1.0,
                              .tokens = 1.0,
                              .elapsed_seconds = 1.0,
                              .stalled_seconds = 0.0}));
  }
  std::fclose(stream);
}

TEST_CASE("progress: into a file go about twenty plain lines, the last step among them") {
  temporary_folder const folder;
  for (std::size_t const steps : {1U, 7U, 20U, 999U, 1003U}) {
    CAPTURE(steps);
    std::FILE* const stream = std::fopen((folder / "log").c_str(), "wb");
    REQUIRE(stream != nullptr);
    {
      train_gpt::progress shown{stream};
      for (std::size_t step = 1; step <= steps; ++step) {
        shown.show({.method = "none",
                    .step = step,
                    .steps = steps,
                    .loss = 1.0,
                    .tokens = 1.0,
                    .elapsed_seconds = 1.0,
                    .stalled_seconds = 0.0});
      }
    }
    std::fclose(stream);
    auto const content = read_plain(folder / "log");
    std::string const text{content.begin(), content.end()};
    auto const lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    CHECK(lines >= std::min(steps, std::size_t{19}));
    CHECK(lines <= 22);
    CHECK(!contains(text, "\r"));
    CHECK(contains(text, std::to_string(steps) + "/" + std::to_string(steps)));
  }
}

TEST_CASE("report: ratios are against a ring all-reduce") {
  // The paper's yardstick: 2 (1 - 1/M) n b per step.
  CHECK(train_gpt::ring_all_reduce_bytes(1000, 2, 2) == 2000.0);
  CHECK(train_gpt::ring_all_reduce_bytes(1000, 4, 4) == 6000.0);
  CHECK(train_gpt::ring_all_reduce_bytes(1000, 1, 4) == 0.0);
  auto run = example_result(train_gpt::method::streaming);
  CHECK(train_gpt::less_than_data_parallel(run, 2).total == 2.0);  // 100 steps of 20 kB
  CHECK(train_gpt::less_than_data_parallel(run, 4).total == 4.0);
  CHECK(train_gpt::less_than_data_parallel(run, 2).peak == 0.5);
  run.bytes_sent_per_worker = 0;
  CHECK(train_gpt::less_than_data_parallel(run, 2).total == 0.0);
}

TEST_CASE("report: summary.json reads back as it was written") {
  temporary_folder const folder;
  std::vector const runs{example_result(train_gpt::method::data_parallel),
                         example_result(train_gpt::method::streaming)};
  {
    train_gpt::result_files const files{folder / "deep/results"};
    files.write_summary(train_gpt::summary(runs, parse({}), 3.25));
    CHECK(!std::filesystem::exists(folder / "deep/results/summary.json.part"));
  }
  std::ifstream stream{folder / "deep/results/summary.json"};
  auto const read = nlohmann::ordered_json::parse(stream);
  REQUIRE(read.at("runs").size() == 2);
  auto const& run = read.at("runs").at(1);
  std::vector<std::string> keys;
  for (auto const& [key, value] : run.items()) {
    keys.push_back(key);
  }
  keys.resize(12);
  CHECK(keys == std::vector<std::string>{"method", "workers", "steps", "tokens", "eval_loss",
                                         "bytes_sent_per_worker", "peak_bytes_per_step",
                                         "compute_utilization", "wall_seconds", "tokens_per_second",
                                         "outer_fingerprint", "workers_identical"});
  CHECK(run.at("method") == "streaming");
  CHECK(run.at("workers") == 2);
  CHECK(run.at("steps") == 100);
  CHECK(run.at("tokens") == 76800);
  CHECK(run.at("eval_loss") == 1.75);
  CHECK(run.at("bytes_sent_per_worker") == 1000000);
  CHECK(run.at("peak_bytes_per_step") == 40000);
  CHECK(run.at("compute_utilization") == 0.96875);
  CHECK(run.at("wall_seconds") == 12.5);
  CHECK(run.at("tokens_per_second") == 6144.0);
  CHECK(run.at("outer_fingerprint") == "fedcba9876543210");
  CHECK(run.at("workers_identical") == true);
  CHECK(read.at("byte_frequency_loss") == 3.25);
  CHECK(read.at("settings").at("codec") == "lloyd_max4");
}

TEST_CASE("report: results that cannot be written are refused with the file") {
  temporary_folder const folder;
  write_plain(folder / "file", {1});
  auto const message =
      message_of<train_gpt::report_error>([&] { train_gpt::result_files{folder / "file"}; });
  CHECK(contains(message, "--out"));
  CHECK(contains(message, "file"));
  CHECK(contains(message_of<train_gpt::report_error>(
                     [&] { train_gpt::write_whole(folder / "missing/summary.json", "x"); }),
                 "missing/summary.json"));
}

TEST_CASE("report: a folder in the place of a result is refused at once and stays") {
  for (char const* const name : {"summary.json", "summary.json.part", "metrics.jsonl"}) {
    CAPTURE(name);
    temporary_folder const folder;
    std::filesystem::create_directory(folder / name);
    auto const message =
        message_of<train_gpt::report_error>([&] { train_gpt::result_files{folder / "."}; });
    CHECK(contains(message, name));
    CHECK(std::filesystem::is_directory(folder / name));
  }
}

TEST_CASE("report: a new run removes the results of an earlier one when it begins, not before") {
  temporary_folder const folder;
  train_gpt::write_whole(folder / "summary.json", "old");
  train_gpt::write_whole(folder / "metrics.jsonl", "old");
  train_gpt::result_files files{folder / "."};
  CHECK(std::filesystem::file_size(folder / "summary.json") == 3);
  CHECK(std::filesystem::file_size(folder / "metrics.jsonl") == 3);
  files.clear();
  CHECK(!std::filesystem::exists(folder / "summary.json"));
  CHECK(std::filesystem::file_size(folder / "metrics.jsonl") == 0);
  files.add_metrics({{"step", 1}});
  CHECK(std::filesystem::file_size(folder / "metrics.jsonl") == 11);  // flushed, not at the end
}

TEST_CASE("report: metrics hold a line per step in order, means of workers that run apart") {
  temporary_folder const folder;
  std::FILE* const stream = std::fopen((folder / "log").c_str(), "wb");
  REQUIRE(stream != nullptr);
  constexpr std::size_t steps = 200;
  {
    train_gpt::result_files files{folder / "."};
    train_gpt::progress shown{stream};
    auto const chosen = parse({"--steps", "200", "--workers", "3", "--batch", "12"});
    train_gpt::run_log log{train_gpt::method::streaming, chosen, files, shown};
    std::vector<std::thread> workers;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      workers.emplace_back([rank, &log] {
        for (std::size_t step = 1; step <= steps; ++step) {
          log.add(step, {.loss = static_cast<double>(step + rank),
                         .learning_rate = 0.25,
                         .bytes_sent = step % 10 == 0 ? 100U : 0U,
                         .stalled_seconds = rank == 0 ? 3.0 : 0.0,
                         .encode_seconds = 0.0,
                         .decode_seconds = 0.0,
                         .syncs = step % 10 == 0 ? 1U : 0U});
        }
      });
    }
    for (auto& worker : workers) {
      worker.join();
    }
  }
  std::fclose(stream);
  std::ifstream metrics{folder / "metrics.jsonl"};
  std::size_t step = 0;
  for (std::string line; std::getline(metrics, line);) {
    auto const read = nlohmann::json::parse(line);
    step += 1;
    CHECK(read.at("method") == "streaming");
    CHECK(read.at("step") == step);
    CHECK(read.at("loss").get<double>() == doctest::Approx(static_cast<double>(step + 1)));
    CHECK(read.at("learning_rate") == 0.25);
    CHECK(read.at("tokens") == step * 12 * 64);
    CHECK(read.at("bytes_sent") == (step % 10 == 0 ? 100 : 0));
    CHECK(read.at("stalled_seconds").get<double>() == doctest::Approx(1.0));
    CHECK(read.at("syncs") == (step % 10 == 0 ? 1 : 0));
    CHECK(read.contains("wall_seconds"));
  }
  CHECK(step == steps);
}

TEST_CASE("report: the table has a row per method and the reference line") {
  std::vector runs{example_result(train_gpt::method::data_parallel),
                   example_result(train_gpt::method::streaming)};
  runs[1].eval_loss = 1.7675;
  auto const table = train_gpt::result_table(runs, 3.25);
  CHECK(contains(table, "data_parallel"));
  CHECK(contains(table, "streaming"));
  CHECK(contains(table, "+1.00 %"));
  CHECK(contains(table, "1.0 MB"));
  CHECK(contains(table, "96.9 %"));
  CHECK(contains(table, "3.25"));
  std::size_t begin = 0;
  while (begin < table.size()) {
    auto const end = table.find('\n', begin);
    REQUIRE(end != std::string::npos);
    CHECK(end - begin <= 100);
    begin = end + 1;
  }
}

TEST_CASE("report: losses and their differences fit eight columns") {
  CHECK(train_gpt::loss_text(1.75) == "1.7500");
  CHECK(train_gpt::loss_text(999.99994) == "999.9999");
  CHECK(train_gpt::loss_text(999.99996) == "1e+03");
  CHECK(train_gpt::loss_text(56659968.0) == "5.67e+07");
  CHECK(train_gpt::loss_text(-std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(train_gpt::difference_text(-0.0123) == "-1.23 %");
  CHECK(train_gpt::difference_text(0.99994) == "+99.99 %");
  CHECK(train_gpt::difference_text(2.5) == "+250 %");
  CHECK(train_gpt::difference_text(999.99) == "+99999 %");
  CHECK(train_gpt::difference_text(2e7) == "+2e+09 %");
  CHECK(train_gpt::difference_text(-std::numeric_limits<double>::quiet_NaN()) == "nan");
}

TEST_CASE("report: bytes and ratios are written with few digits") {
  CHECK(train_gpt::bytes_text(0) == "0 B");
  CHECK(train_gpt::bytes_text(999) == "999 B");
  CHECK(train_gpt::bytes_text(1500) == "1.5 kB");
  CHECK(train_gpt::bytes_text(999999) == "1.0 MB");
  CHECK(train_gpt::bytes_text(12345678901) == "12.3 GB");
  CHECK(train_gpt::ratio_text(0.0) == "-");
  CHECK(train_gpt::ratio_text(0.5) == "0.50x");
  CHECK(train_gpt::ratio_text(14.93) == "14.9x");
  CHECK(train_gpt::ratio_text(402.4) == "402x");
}
