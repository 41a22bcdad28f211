/// The per-value arithmetic is the same code on host and device: each function is called in a
/// kernel, and its bits are compared with the host's.

#include <cstdint>
#include <vector>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <rivulet/rivulet.hpp>

#include "contract/deduction.hpp"

namespace {

constexpr int values = 1 << 16;

/// What is computed from a value and its neighbour, as bits.
struct results {
  std::uint32_t code;
  std::uint32_t decoded;
  std::uint32_t bf16;
  std::uint32_t fp16;
  std::uint32_t theta;
  std::uint32_t momentum;
  std::uint64_t word;
};

RIVULET_HOST_DEVICE results compute(float value, float neighbour, std::uint64_t index) {
  namespace codec = rivulet::codec::detail;
  results r{};
  r.code = codec::e3m0_code(value, neighbour);
  r.decoded = rivulet::detail::bits_of(codec::e3m0_value(r.code));
  r.bf16 = rivulet::detail::bits_of(to_float(rivulet::to_bf16(value)));
  r.fp16 = rivulet::detail::bits_of(to_float(rivulet::to_fp16(value)));
  float slot = neighbour;
  rivulet::outer::nesterov const outer{0.7f, 0.9f};
  r.theta = rivulet::detail::bits_of(outer.step(value, neighbour, &slot));
  r.momentum = rivulet::detail::bits_of(slot);
  r.word = rivulet::detail::mixed_word(r.bf16, index);
  return r;
}

/// Values of all magnitudes and both signs, without NaN.
std::vector<float> sample() {
  std::vector<float> numbers;
  for (std::uint64_t i = 0; numbers.size() < values; ++i) {
    float const x = rivulet::detail::float_of(static_cast<std::uint32_t>(rivulet::detail::mix(i)));
    if (rivulet::detail::is_finite(x)) numbers.push_back(x);
  }
  return numbers;
}

__global__ void compute_all(float const* numbers, results* out) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < values) {
    out[i] = compute(numbers[i], numbers[(i + 1) % values], static_cast<std::uint64_t>(i));
  }
}

}  // namespace

TEST_CASE("arithmetic: host and device give the same bits") {
  std::vector<float> const numbers = sample();
  float* device_numbers = nullptr;
  results* device_out = nullptr;
  REQUIRE(cudaMalloc(&device_numbers, values * sizeof(float)) == cudaSuccess);
  REQUIRE(cudaMalloc(&device_out, values * sizeof(results)) == cudaSuccess);
  REQUIRE(cudaMemcpy(device_numbers, numbers.data(), values * sizeof(float),
                     cudaMemcpyHostToDevice) == cudaSuccess);
  compute_all<<<values / 256, 256>>>(device_numbers, device_out);
  std::vector<results> out(values);
  REQUIRE(cudaMemcpy(out.data(), device_out, values * sizeof(results), cudaMemcpyDeviceToHost) ==
          cudaSuccess);
  CHECK(cudaFree(device_numbers) == cudaSuccess);
  CHECK(cudaFree(device_out) == cudaSuccess);
  int different = 0;
  for (int i = 0; i < values; ++i) {
    auto const at = static_cast<std::size_t>(i);
    results const host = compute(numbers[at], numbers[(at + 1) % values], at);
    different += host.code != out[at].code || host.decoded != out[at].decoded ||
                 host.bf16 != out[at].bf16 || host.fp16 != out[at].fp16 ||
                 host.theta != out[at].theta || host.momentum != out[at].momentum ||
                 host.word != out[at].word;
  }
  CHECK(different == 0);
}
