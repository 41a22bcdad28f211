/// A codec of one's own in an engine, with error feedback: what it loses goes into the next
/// message.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include <rivulet/rivulet.hpp>

/// -S, 0 or S, 4 values to a byte. S is the mean magnitude of a block; values within S / 2 go to 0.
struct ternary {
  static constexpr std::string_view name = "ternary";
  static constexpr std::uint16_t id = 0x8000;  // the library's own are below
  static constexpr std::size_t block_size = 64;
  static constexpr std::size_t code_bytes = block_size / 4;
  static constexpr std::size_t scale_bytes = 4;
  void encode_block(float const* values, std::byte* codes, std::byte* scale) const {
    float s = 0;
    for (std::size_t i = 0; i < block_size; ++i) s += std::fabs(values[i]) / block_size;
    std::memcpy(scale, &s, 4);
    std::memset(codes, 0, code_bytes);
    for (std::size_t i = 0; i < block_size; ++i) {
      unsigned const code = std::fabs(values[i]) <= s / 2 ? 0u : values[i] < 0 ? 2u : 1u;
      codes[i / 4] |= static_cast<std::byte>(code << (2 * (i % 4)));
    }
  }
  void accumulate_block(std::byte const* codes, std::byte const* scale, float w, float* x) const {
    float s;
    std::memcpy(&s, scale, 4);
    for (std::size_t i = 0; i < block_size; ++i) {
      auto const code = static_cast<unsigned>(codes[i / 4]) >> (2 * (i % 4)) & 3u;
      x[i] = std::fma(code == 1 ? 1.0f : code == 2 ? -1.0f : 0.0f, s * w, x[i]);
    }
  }
};
static_assert(rivulet::BlockCodec<ternary>);  // says what is missing, if anything is

int main() {
  std::vector weight(1000, 0.0f);
  rivulet::parameter_set params;
  params.add("weight", rivulet::layer(0), weight);
  rivulet::comm::local_group group(1);
  auto comm = group.communicator(0);
  rivulet::codec::error_feedback const codec{ternary{}};
  rivulet::outer::sgd const outer;  // Theta becomes the mean of the replicas
  rivulet::streaming_diloco sync{
      params, comm, {.sync_every = 10}, rivulet::partition::whole_model{}, codec, outer};
  for (int step = 0; step < 2000; ++step) {
    for (float& w : weight) w -= 0.02f * (w - 3.0f);
    sync.after_step();
  }
  sync.finish();
  sync.swap_outer();  // the model holds the outer parameters now
  std::printf("%.4f (should be 3), in messages of %zu bytes\n", weight[0], sync.message_bytes(0));
  return std::fabs(weight[0] - 3.0f) < 0.05f ? 0 : 1;
}
