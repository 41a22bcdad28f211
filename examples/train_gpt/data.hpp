#pragma once

/// \file
/// The text: read from files, cut into shards, and drawn from without any state.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <zlib.h>

namespace train_gpt {

/// The text cannot be read or is not enough; the message names the file and the rule.
class data_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Sequences of bytes for one step: `inputs` and `targets` have shape (sequences, context), and the
/// target of a position is the byte that follows it in the text.
struct sample_batch {
  sample_batch(std::size_t sequence_count, std::size_t context_length)
      : sequences(sequence_count),
        context(context_length),
        inputs(sequence_count * context_length),
        targets(sequence_count * context_length) {}

  std::size_t sequences;
  std::size_t context;
  std::vector<std::uint8_t> inputs;
  std::vector<std::uint8_t> targets;
};

/// 64 bits that depend on the key alone (splitmix64's finalizer, chained): no state, so any sample
/// can be drawn at any time, by any thread, and a resumed run draws what it would have drawn.
constexpr std::uint64_t keyed_hash(std::uint64_t seed, std::uint64_t worker, std::uint64_t step,
                                   std::uint64_t index) noexcept {
  std::uint64_t hash = 0;
  for (std::uint64_t const part : {seed, worker, step, index}) {
    hash = (hash ^ part) + 0x9e3779b97f4a7c15U;
    hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9U;
    hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111ebU;
    hash ^= hash >> 31U;
  }
  return hash;
}

/// Appends the bytes of `file` to `text`. What starts with the gzip magic (1f 8b: .gz, and .dz of
/// dictzip) is decompressed, everything else is taken as it is.
/// Throws data_error if the file is missing, a directory, unreadable, empty, corrupt or cut short.
inline void append_file(std::filesystem::path const& file, std::vector<std::uint8_t>& text) {
  auto const fail = [&file](std::string const& rule) {
    throw data_error{file.string() + ": " + rule};
  };
  std::error_code status_error;
  auto const status = std::filesystem::status(file, status_error);
  if (status.type() == std::filesystem::file_type::not_found) {
    fail("no such file");
  }
  if (std::filesystem::is_directory(status)) {
    fail("is a directory; the text must be a file");
  }

  struct closer {
    void operator()(gzFile opened) const noexcept { gzclose_r(opened); }
  };
  std::unique_ptr<gzFile_s, closer> const opened{gzopen(file.c_str(), "rb")};
  if (!opened) {
    fail("cannot be opened for reading");
  }
  auto const size_before = text.size();
  std::vector<std::uint8_t> chunk(std::size_t{1} << 20U);
  for (;;) {
    int const count = gzread(opened.get(), chunk.data(), static_cast<unsigned>(chunk.size()));
    int code = Z_OK;
    char const* const message = gzerror(opened.get(), &code);
    if (code == Z_BUF_ERROR) {
      fail("the gzip data ends early (truncated)");
    }
    if (code == Z_DATA_ERROR) {
      fail(std::string{"the gzip data is corrupt ("} + message + ")");
    }
    if (count < 0) {
      fail(std::string{"cannot be read ("} + message + ")");
    }
    if (count == 0) {
      break;
    }
    text.insert(text.end(), chunk.begin(), chunk.begin() + count);
  }
  if (text.size() == size_before) {
    fail("is empty; the text must hold at least one byte");
  }
}

/// Cross entropy, in nats per byte, of `held_out` under the byte frequencies of `training` (each
/// count plus one): what a model that ignores all context would reach.
inline double byte_frequency_loss(std::span<std::uint8_t const> training,
                                  std::span<std::uint8_t const> held_out) {
  std::array<double, 256> counts{};
  counts.fill(1.0);
  for (auto const byte : training) {
    counts[byte] += 1.0;
  }
  double const total = static_cast<double>(training.size()) + static_cast<double>(counts.size());
  double loss = 0.0;
  for (auto const byte : held_out) {
    loss -= std::log(counts[byte] / total);
  }
  return loss / static_cast<double>(held_out.size());
}

/// The text of a run: the last tenth is held out, the rest is cut into one contiguous shard per
/// worker, so that workers see different text (non-iid, as in the paper).
class corpus {
 public:
  /// Cuts `text`; `origin` names it in errors. Throws data_error unless the held-out tenth and each
  /// shard hold at least `context` + 1 bytes.
  corpus(std::vector<std::uint8_t> text, std::size_t workers, std::size_t context,
         std::string const& origin)
      : text_(std::move(text)),
        workers_(workers),
        training_size_(text_.size() - text_.size() / 10) {
    auto const fail = [&](std::string const& part, std::size_t size) {
      throw data_error{origin + ": " + std::to_string(text_.size()) + " bytes are too few: " +
                       part + " has " + std::to_string(size) + ", and must have at least " +
                       std::to_string(context + 1) + " (--context + 1)"};
    };
    if (held_out().size() < context + 1) {
      fail("the held-out tenth", held_out().size());
    }
    for (std::size_t worker = 0; worker < workers; ++worker) {
      if (shard(worker).size() < context + 1) {
        fail("the shard of one of " + std::to_string(workers) + " workers", shard(worker).size());
      }
    }
  }

  /// Reads `files`, in their order, as one text.
  static corpus read(std::span<std::filesystem::path const> files, std::size_t workers,
                     std::size_t context) {
    std::vector<std::uint8_t> text;
    std::string origin;
    for (auto const& file : files) {
      append_file(file, text);
      origin += (origin.empty() ? "" : " + ") + file.string();
    }
    return corpus{std::move(text), workers, context, origin};
  }

  std::span<std::uint8_t const> training() const noexcept {
    return std::span{text_}.first(training_size_);
  }

  std::span<std::uint8_t const> held_out() const noexcept {
    return std::span{text_}.subspan(training_size_);
  }

  /// The part of the training text that `worker` alone sees.
  std::span<std::uint8_t const> shard(std::size_t worker) const noexcept {
    auto const begin = training_size_ * worker / workers_;
    auto const end = training_size_ * (worker + 1) / workers_;
    return training().subspan(begin, end - begin);
  }

  /// Fills `result` with the samples of `worker` at `step`, drawn uniformly from its shard. Sample
  /// i is a function of (seed, worker, step, i) alone.
  void training_batch(std::uint64_t seed, std::size_t worker, std::size_t step,
                      sample_batch& result) const {
    auto const source = shard(worker);
    for (std::size_t index = 0; index < result.sequences; ++index) {
      auto const start = keyed_hash(seed, worker, step, index) % (source.size() - result.context);
      copy_sequence(source, start, index, result);
    }
  }

  /// Fills `result` with the sequences `first`, `first` + 1, ... of the `total` evaluation
  /// sequences. They are a function of (seed, total) alone and lie evenly over the held-out text,
  /// one at a random place in each of `total` equal stretches.
  void held_out_batch(std::uint64_t seed, std::size_t first, std::size_t total,
                      sample_batch& result) const {
    auto const source = held_out();
    auto const starts = source.size() - result.context;
    for (std::size_t index = 0; index < result.sequences; ++index) {
      auto const number = first + index;
      auto const begin = starts * number / total;
      auto const end = starts * (number + 1) / total;
      auto const width = end > begin ? end - begin : 1;
      copy_sequence(source, begin + keyed_hash(seed, number, 0, 0) % width, index, result);
    }
  }

 private:
  static void copy_sequence(std::span<std::uint8_t const> source, std::size_t start,
                            std::size_t index, sample_batch& result) {
    auto const place = static_cast<std::ptrdiff_t>(index * result.context);
    auto const sequence = source.subspan(start, result.context + 1);
    std::copy(sequence.begin(), sequence.end() - 1, result.inputs.begin() + place);
    std::copy(sequence.begin() + 1, sequence.end(), result.targets.begin() + place);
  }

  std::vector<std::uint8_t> text_;
  std::size_t workers_;
  std::size_t training_size_;
};

}  // namespace train_gpt
