#pragma once

/// \file
/// Signal-to-noise ratios of the codecs: on known distributions against the values that their
/// formats reach, or on values of one's own.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>

#include "codec_bench/codecs.hpp"
#include "codec_bench/samples.hpp"

namespace codec_bench {

/// The decibels that a format reaches.
struct format_accuracy {
  char const* codec;  ///< its label
  double normal_db;
  double student_db;
};

inline constexpr format_accuracy format_accuracies[] = {
    {"e3m0<32>", 14.9, 16.6},
    {"e3m0<64>", 14.5, 16.0},
    {"e3m0<256>", 14.2, 15.2},
    {"refit<e3m0<32>, 8>", 15.9, 17.5},
    {"refit<e3m0<64>, 8>", 15.4, 16.7},
    {"refit<e3m0<256>, 8>", 14.8, 15.6},
    {"stochastic<e3m0<32>>", 11.7, 13.4},
    {"stochastic<e3m0<64>>", 11.3, 12.8},
    {"stochastic<e3m0<256>>", 11.0, 11.9},
    {"mxfp4", 18.8, 17.0},
    {"nvfp4", 20.4, 20.9},
    {"int4<32>", 21.3, 17.9},
    {"int4<64>", 20.5, 15.9},
    {"int4<256>", 19.1, 12.3},
    {"nf4<32>", 21.2, 19.9},
    {"nf4<64>", 20.7, 18.2},
    {"nf4<256>", 20.1, 14.9},
    {"lloyd_max4<32>", 21.4, 20.4},
    {"lloyd_max4<64>", 20.6, 19.2},
    {"int8<64>", 44.5, 39.4},
};

inline double decibels(any_codec const& codec, std::span<float const> values) {
  buffer<std::byte> codes{codec.bytes(values.size())};
  buffer<float> decoded{values.size()};
  codec.encode(values, codes.all());
  codec.decode(codes.all(), decoded.all());
  return signal_to_noise_db(values, decoded.all());
}

/// Prints what a codec reaches, the reference and the difference; false if it is worse by more than
/// `tolerance`.
inline bool print_decibels(double reached, double reference, double tolerance) {
  std::printf(" %7.2f %6.1f %+6.2f", reached, reference, reached - reference);
  return reached > reference - tolerance;
}

/// Prints the table for N(0, 1) and Student's t with 3 degrees of freedom, 2^22 values of each.
/// Returns whether all formats reach what they can. Student's tails are so heavy that another
/// sample can differ by 0.3 dB.
inline bool print_accuracy() {
  buffer<float> normal{std::size_t{1} << 22};
  buffer<float> student{std::size_t{1} << 22};
  random_values normals{1};
  random_values students{1};
  for (float& x : normal.all()) x = static_cast<float>(normals.normal());
  for (float& x : student.all()) x = static_cast<float>(students.student_t3());
  std::printf("%-28s %5s  %22s  %22s\n", "", "", "N(0, 1), dB", "Student-t(3), dB");
  std::printf("%-28s %5s  %7s %6s %6s  %7s %6s %6s\n", "codec", "bits", "reached", "format", "",
              "reached", "format", "");
  std::size_t good = 0;
  for (any_codec const& codec : all_codecs()) {
    double const normal_db = decibels(codec, normal.all());
    double const student_db = decibels(codec, student.all());
    std::printf("%-28s %5.2f ", codec.label.c_str(), codec.bits_per_value());
    auto const* const format =
        std::ranges::find(format_accuracies, codec.label, &format_accuracy::codec);
    if (format == std::end(format_accuracies)) {
      std::printf(" %7.2f %15s %7.2f\n", normal_db, "", student_db);
      continue;
    }
    bool const normal_good = print_decibels(normal_db, format->normal_db, 0.1);
    std::printf(" ");
    bool const student_good = print_decibels(student_db, format->student_db, 0.3);
    std::printf("  %s\n", normal_good && student_good ? "ok" : "WORSE");
    good += normal_good && student_good ? 1 : 0;
  }
  std::printf("%zu of %zu formats reach what they can\n", good, std::size(format_accuracies));
  return good == std::size(format_accuracies);
}

/// The values of a file of 32-bit floats. Throws std::runtime_error, which names the file, where
/// there are none, not all of them are finite, or all are zero.
inline buffer<float> read_values(std::string const& path) {
  auto const refuse = [&](char const* why) { throw std::runtime_error{path + ": " + why}; };
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) refuse("is a directory, not a file of values");
  std::ifstream file{path, std::ios::binary | std::ios::ate};
  if (!file) refuse("cannot be opened");
  auto const bytes = static_cast<std::streamoff>(file.tellg());
  if (bytes == 0) refuse("is empty");
  if (bytes < 0 || bytes % 4 != 0) refuse("its size is no multiple of 4 bytes, a 32-bit float");
  buffer<float> values{static_cast<std::size_t>(bytes) / 4};
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(values.data()), bytes)) refuse("cannot be read");
  auto const finite = [](float x) { return std::isfinite(x); };
  auto const zero = [](float x) { return x == 0; };
  if (!std::ranges::all_of(values.all(), finite)) refuse("holds NaN or infinity");
  if (std::ranges::all_of(values.all(), zero)) refuse("holds zeros only");
  return values;
}

/// The same for the values of a file. Throws as read_values.
inline void print_accuracy(std::string const& path) {
  buffer<float> const values = read_values(path);
  std::printf("%zu values of %s\n%-28s %5s %8s\n", values.all().size(), path.c_str(), "codec",
              "bits", "dB");
  for (any_codec const& codec : all_codecs()) {
    std::printf("%-28s %5.2f %8.2f\n", codec.label.c_str(), codec.bits_per_value(),
                decibels(codec, values.all()));
  }
}

}  // namespace codec_bench
