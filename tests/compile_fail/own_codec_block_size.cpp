#include <cstddef>
#include <cstdint>
#include <string_view>

#include <rivulet/concepts.hpp>

struct codec {
  static constexpr std::string_view name = "own";
  static constexpr std::uint16_t id = 0x8000;
#ifdef RIVULET_COMPILE_FAIL
  static constexpr std::size_t block_size = 48;
#else
  static constexpr std::size_t block_size = 64;
#endif
  static constexpr std::size_t code_bytes = 64;
  static constexpr std::size_t scale_bytes = 0;
  void encode_block(float const*, std::byte*, std::byte*) const {}
  void accumulate_block(std::byte const*, std::byte const*, float, float*) const {}
};
// expect: cut_elements % C::block_size
static_assert(rivulet::BlockCodec<codec>);
