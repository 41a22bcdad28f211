#pragma once

/// \file
/// The concepts that models of the core roles meet. (Tensor stands in tensor_traits.hpp,
/// Communicator in comm/communicator.hpp.)

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <rivulet/fragment.hpp>

namespace rivulet {

/// Splits the parameters into fragments. A pure value: the same descriptions give the same
/// fragments on every worker, without clock, I/O or random numbers. Used once, when an engine is
/// built; the engine checks the result (check_partition).
template <class P>
concept Partitioner = requires(P const& partitioner, std::span<parameter const> parameters) {
  { partitioner(parameters) } -> std::same_as<std::vector<fragment>>;
};

/// What is due after an inner step.
struct sync_event {
  enum class kind : std::uint8_t { send, receive };
  kind what = kind::send;
  int fragment = 0;
  std::int64_t sent_at = 0;  ///< the step of the send, for a receive too

  friend bool operator==(sync_event const&, sync_event const&) = default;
};

/// Which events are due after a step (1, 2, ...), in order. A pure value.
template <class S>
concept SyncSchedule = requires(S const& schedule, void (&visit)(sync_event)) {
  { schedule.fragments() } -> std::same_as<int>;
  { schedule.max_in_flight() } -> std::same_as<int>;  // the engine reserves that many buffers
  schedule.for_each_event(std::int64_t{}, visit);
};

/// The part of a codec that names it on the wire.
template <class C>
concept NamedCodec = requires {
  { C::name } -> std::convertible_to<std::string_view>;
  { C::id } -> std::convertible_to<std::uint16_t>;  // below 0x8000 for the library's own
};

/// Codes blocks of `block_size` values to `code_bytes` of codes and `scale_bytes` of scale each, a
/// block at a time: all that a codec of one's own needs. Tiles, arrays, fragments and checksums
/// come from codec/tile.hpp, codec/array.hpp and codec/passes.hpp. `block_size` divides 4096, so
/// that a block never straddles a cut; a tail shorter than a block is padded with zeros.
/// `accumulate_block` does acc = fma(value, scale * weight, acc) and must be total: any bytes
/// decode to something. Options that change codes or values are hashed by a fingerprint().
template <class C>
concept BlockCodec = NamedCodec<C> && requires(C const& codec, float const* values, float* sums,
                                               std::byte* out, std::byte const* in) {
  { C::block_size } -> std::convertible_to<std::size_t>;
  { C::code_bytes } -> std::convertible_to<std::size_t>;
  { C::scale_bytes } -> std::convertible_to<std::size_t>;
  codec.encode_block(values, out, out);        // values, codes, scale
  codec.accumulate_block(in, in, 1.0f, sums);  // codes, scale, weight, sums
  requires cut_elements % C::block_size == 0;
};

/// Codes tiles of 1 to 4096 values, each by itself, where blocks are not enough: `key` is the
/// tile's own, for random numbers. `accumulate_tile` must be total, as above.
template <class C>
concept TileCodec = NamedCodec<C> &&
    requires(C const& codec, float const* values, float* sums, std::size_t count, std::byte* out,
             std::byte const* in, std::uint64_t key) {
  { codec.tile_bytes(count) } -> std::same_as<std::size_t>;  // exact encoded size
  codec.encode_tile(values, count, out, key);
  codec.accumulate_tile(in, count, 1.0f, sums);
};

/// A codec whose tiles are independent of each other: of blocks or of tiles, not both at once.
template <class C>
concept Codec = BlockCodec<C>
!= TileCodec<C>;

/// A codec that looks at a whole message before it writes a byte: an encoder is offered the values
/// in order, tile by tile, and writes at the end. `accumulate` adds the values first .. first +
/// count - 1 of a message of n; it must be total.
template <class C>
concept MessageCodec = NamedCodec<C> &&
    requires(C const& codec, typename C::encoder& encoder, float const* values, float* sums,
             std::size_t n, std::byte* out, std::byte const* in) {
  { codec.message_bytes(n) } -> std::same_as<std::size_t>;  // exact encoded size
  encoder.reserve(codec, n);                                // the only place that allocates
  encoder.begin(codec, n);
  encoder.offer(values, n);
  encoder.finish(codec, out);
  codec.accumulate(in, n, n, n, 1.0f, sums);  // bytes, n, first, count, weight, sums
};

/// What an engine sends fragments by.
template <class C>
concept FragmentCodec = Codec<C> || MessageCodec<C>;

/// One element-wise step on FP32: from the outer parameter, the mean outer gradient and the state
/// slots to the new outer parameter. Arithmetic must be exact IEEE with explicit fma: the result is
/// compared bit for bit between workers.
template <class O>
concept OuterOptimizer = requires(O& optimizer, O const& frozen, float value, float* slots) {
  { O::state_slots } -> std::convertible_to<std::size_t>;
  { optimizer.learning_rate } -> std::convertible_to<float>;
  { frozen.step(value, value, slots) } -> std::same_as<float>;  // outer, mean, slots
  { frozen.fingerprint() } -> std::same_as<std::uint64_t>;      // of name and constants
  frozen.check();                                               // throws precondition_error
};

/// Where kernels run: `for_each_tile(n, f)` calls f(0) ... f(n - 1), each once, in any order and
/// possibly at once, and returns when all are done.
template <class E>
concept Executor = requires(E const& executor, void (&tile)(std::size_t)) {
  executor.for_each_tile(std::size_t{}, tile);
};

}  // namespace rivulet
