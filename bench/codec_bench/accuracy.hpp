#pragma once

/// \file
/// Signal-to-noise ratios of the codecs: on known distributions against the values that their
/// formats reach, or on values of one's own.

#include <cmath>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "codec_bench/codecs.hpp"
#include "codec_bench/samples.hpp"

namespace codec_bench {

/// A codec, and the decibels that its format reaches; 0 where none are known.
struct accuracy_row {
  any_codec codec;
  double normal_db = 0;
  double student_db = 0;
};

inline std::vector<accuracy_row> accuracy_rows() {
  using namespace rivulet::codec;
  std::vector<accuracy_row> rows{
      {erase(e3m0<32>{}), 14.9, 16.6},
      {erase(e3m0<64>{}), 14.5, 16.0},
      {erase(e3m0<256>{}), 14.2, 15.2},
      {erase(refit<e3m0<32>, 8>{}), 15.9, 17.5},
      {erase(refit<e3m0<64>, 8>{}), 15.4, 16.7},
      {erase(refit<e3m0<256>, 8>{}), 14.8, 15.6},
      {erase(stochastic<e3m0<32>>{}), 11.7, 13.4},
      {erase(stochastic<e3m0<64>>{}), 11.3, 12.8},
      {erase(stochastic<e3m0<256>>{}), 11.0, 11.9},
      {erase(mxfp4{}), 18.8, 17.0},
      {erase(nvfp4{}), 20.4, 20.9},
      {erase(int4<32>{}), 21.3, 17.9},
      {erase(int4<64>{}), 20.5, 15.9},
      {erase(int4<256>{}), 19.1, 12.3},
      {erase(nf4<32>{}), 21.2, 19.9},
      {erase(nf4<64>{}), 20.7, 18.2},
      {erase(nf4<256>{}), 20.1, 14.9},
      {erase(lloyd_max4<32>{}), 21.4, 20.4},
      {erase(lloyd_max4<64>{}), 20.6, 19.2},
      {erase(int8<64>{}), 44.5, 39.4},
  };
  for (any_codec const& codec :
       {erase(bf16{}), erase(fp16{}), erase(fp8<128>{}), erase(mxfp8{}), erase(int2<64>{}),
        erase(sign<256>{}), erase(chunked_top_k<int2<64>>{}), top_1_percent()}) {
    rows.push_back({codec});
  }
  return rows;
}

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
  if (reference == 0) {
    std::printf(" %7.2f %6s %6s", reached, "", "");
    return true;
  }
  std::printf(" %7.2f %6.1f %+6.2f", reached, reference, reached - reference);
  return reached > reference - tolerance;
}

/// Prints the table for N(0, 1) and Student's t with 3 degrees of freedom, 2^22 values of each.
/// Returns whether all is well. The latter has tails so heavy that another sample can differ by 0.3
/// dB.
inline bool print_accuracy(std::span<accuracy_row const> rows) {
  buffer<float> normal{std::size_t{1} << 22};
  buffer<float> student{std::size_t{1} << 22};
  random_values normals{1};
  random_values students{1};
  for (float& x : normal.all()) x = static_cast<float>(normals.normal());
  for (float& x : student.all()) x = static_cast<float>(students.student_t3());
  std::printf("%-28s %5s  %22s  %22s\n", "", "", "N(0, 1), dB", "Student-t(3), dB");
  std::printf("%-28s %5s  %7s %6s %6s  %7s %6s %6s\n", "codec", "bits", "reached", "format", "",
              "reached", "format", "");
  bool all_good = true;
  for (accuracy_row const& row : rows) {
    std::printf("%-28s %5.2f ", row.codec.label.c_str(), row.codec.bits_per_value());
    bool good = print_decibels(decibels(row.codec, normal.all()), row.normal_db, 0.1);
    std::printf(" ");
    good = print_decibels(decibels(row.codec, student.all()), row.student_db, 0.3) && good;
    std::printf("  %s\n", good ? "ok" : "WORSE");
    all_good = all_good && good;
  }
  return all_good;
}

/// The same for the 32-bit floats in a file. Returns whether it could be read.
inline bool print_accuracy(std::span<accuracy_row const> rows, std::string const& path) {
  std::ifstream file{path, std::ios::binary | std::ios::ate};
  std::streamoff const bytes = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (bytes <= 0 || bytes % 4 != 0) {
    std::fprintf(stderr, "codec_bench: %s: no file of 32-bit floats\n", path.c_str());
    return false;
  }
  buffer<float> const values{static_cast<std::size_t>(bytes) / 4};
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), bytes);
  if (!file || !std::ranges::all_of(values.all(), [](float x) { return std::isfinite(x); })) {
    std::fprintf(stderr, "codec_bench: %s: unreadable, or not all values are finite\n",
                 path.c_str());
    return false;
  }
  std::printf("%zu values of %s\n%-28s %5s %8s\n", values.all().size(), path.c_str(), "codec",
              "bits", "dB");
  for (accuracy_row const& row : rows) {
    std::printf("%-28s %5.2f %8.2f\n", row.codec.label.c_str(), row.codec.bits_per_value(),
                decibels(row.codec, values.all()));
  }
  return true;
}

}  // namespace codec_bench
