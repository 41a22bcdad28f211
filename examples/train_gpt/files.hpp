#pragma once

/// \file
/// Files that are written whole or not at all.

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace train_gpt {

/// A result cannot be written; the message names the file.
class report_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct stream_closer {
  void operator()(std::FILE* stream) const noexcept { std::fclose(stream); }
};

/// Opens `file` as std::fopen does. Throws report_error.
inline std::unique_ptr<std::FILE, stream_closer> open_file(std::filesystem::path const& file,
                                                           char const* mode) {
  std::unique_ptr<std::FILE, stream_closer> stream{std::fopen(file.c_str(), mode)};
  if (!stream) {
    throw report_error{fmt::format("{}: cannot be opened for writing ({})", file.string(),
                                   std::generic_category().message(errno))};
  }
  return stream;
}

/// Where write_whole writes what becomes `file`.
inline std::filesystem::path part_of(std::filesystem::path file) { return file += ".part"; }

/// Tries whether write_whole could write `file`, which stays as it is. Throws report_error.
inline void check_writable(std::filesystem::path const& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    throw report_error{fmt::format("{}: is a directory", file.string())};
  }
  open_file(part_of(file), "wb");
  std::filesystem::remove(part_of(file), error);
}

/// Writes `content` beside `file` and renames it, so that `file` is never seen half written. Throws
/// report_error.
inline void write_whole(std::filesystem::path const& file, std::string_view content) {
  auto const aside = part_of(file);
  auto const fail = [&file](std::string_view what) {
    throw report_error{fmt::format("{}: {}", file.string(), what)};
  };
  auto stream = open_file(aside, "wb");
  bool const written =
      std::fwrite(content.data(), 1, content.size(), stream.get()) == content.size();
  std::error_code error;
  if (std::fclose(stream.release()) != 0 || !written) {
    std::filesystem::remove(aside, error);
    fail("cannot be written (disk full?)");
  }
  std::filesystem::rename(aside, file, error);
  if (error) {
    auto const reason = error.message();
    std::filesystem::remove(aside, error);
    fail(reason);
  }
}

}  // namespace train_gpt
