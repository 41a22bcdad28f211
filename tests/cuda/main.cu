#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

int main(int argc, char** argv) {
  int devices = 0;
  cudaError_t const status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("skipped: running the CUDA tests needs a GPU (%s)\n", cudaGetErrorString(status));
    return 77;  // SKIP_RETURN_CODE in CMakeLists.txt
  }
  return doctest::Context(argc, argv).run();
}
