#pragma once

/// \file
/// The weighted mean of encoded fragments by shards: every worker gets the codes of its shard from
/// all, averages them in FP32, encodes the mean again and sends it to all. For many workers this
/// sends W / 2 times fewer bytes than an all-gather; values are quantized twice.

#include <algorithm>

#include <rivulet/exec/host.hpp>
#include <rivulet/reduce/all_gather_mean.hpp>

namespace rivulet::reduce {

/// Steps: 2 collectives. A shard is a range of tiles, ceil(T / W) of T at most. For W workers, a
/// longest message s of a shard and a longest message t of a shard's mean: bytes sent per worker
/// (W - 1) * (s + t); buffer W * (2 s + t). Every worker applies the same encoded mean, also to its
/// own shard.
///
/// `part` in the headers: 1 + shard for what is sent to its owner, mean_part + shard for its mean.
/// If the senders' headers say that nothing is to be applied, the mean's header says so.
struct all_to_all_mean {
  static constexpr std::string_view name = "all_to_all_mean";
  static constexpr std::uint32_t mean_part = 0x80000000u;

  /// The longest message of a shard.
  template <FragmentCodec C>
  [[nodiscard]] static std::size_t piece_bytes(C const& codec, fragment_layout const& layout,
                                               int world) {
    std::size_t longest = 0;
    for (int r = 0; r < world; ++r) {
      longest = (std::max)(longest, message_bytes(codec, layout, layout.shard(r, world)));
    }
    return longest;
  }

  template <FragmentCodec C, FragmentCodec M>
  [[nodiscard]] static std::size_t buffer_bytes(C const& codec, M const& mean_codec,
                                                fragment_layout const& layout, int world) {
    return static_cast<std::size_t>(world) *
           (2 * piece_bytes(codec, layout, world) + piece_bytes(mean_codec, layout.mean(), world));
  }
  template <FragmentCodec C, FragmentCodec M>
  [[nodiscard]] static std::uint64_t sent_bytes(C const& codec, M const& mean_codec,
                                                fragment_layout const& layout, int world) {
    return static_cast<std::uint64_t>(world - 1) *
           (piece_bytes(codec, layout, world) + piece_bytes(mean_codec, layout.mean(), world));
  }
  /// Size of the end of the buffer that the mean is decoded from, once the exchange is done.
  template <FragmentCodec C, FragmentCodec M>
  [[nodiscard]] static std::size_t result_bytes(C const&, M const& mean_codec,
                                                fragment_layout const& layout, int world) {
    return static_cast<std::size_t>(world) * piece_bytes(mean_codec, layout.mean(), world);
  }

  /// Encodes this rank's message to every owner of a shard; see encode_message. NaN or infinity in
  /// any shard rejects all of them.
  template <FragmentCodec C, class Source, Executor E>
  static int encode(C const& codec, message_encoder<C>& encoder, E const& executor,
                    Source const& source, fragment_layout const& layout, encode_options options,
                    wire_header header, std::span<std::byte> buffer, int, int world) {
    std::size_t const bytes = piece_bytes(codec, layout, world);
    int rejected = -1;
    for (int r = 0; r < world; ++r) {
      tile_range const shard = layout.shard(r, world);
      header.part = 1 + static_cast<std::uint32_t>(r);
      int const found = encode_message(codec, encoder, executor, source, layout, shard, options,
                                       header, message_in(codec, layout, shard, buffer, bytes, r));
      if (rejected < 0) rejected = found;
    }
    if (rejected < 0) return rejected;
    for (int r = 0; r < world; ++r) {
      std::byte* const message = detail::piece(buffer, bytes, r).data();
      wire_header sent = wire_header::read(message);
      sent.flags |= wire_header::rejected;
      sent.write(message);
    }
    return rejected;
  }

  /// The whole reduction: shards to their owners, means to all. `senders` has room for all ranks.
  template <FragmentCodec C, FragmentCodec M, Communicator Comm>
  [[nodiscard]] static exchange_result exchange(
      C const& codec, M const& mean_codec, message_encoder<M>& encoder,
      fragment_layout const& layout, encode_options const& options, Comm& comm,
      std::span<std::byte> buffer, std::vector<codec::weighted_codes>& senders, deadline until) {
    int const world = comm.size();
    int const rank = comm.rank();
    std::size_t const bytes = piece_bytes(codec, layout, world);
    auto const out = buffer.first(bytes * static_cast<std::size_t>(world));
    auto const in = buffer.subspan(out.size(), out.size());
    auto const means = buffer.subspan(2 * out.size());
    std::size_t const mean_bytes = means.size() / static_cast<std::size_t>(world);
    tile_range const mine = layout.shard(rank, world);

    comm_status status = comm.all_to_all(out, in, until);
    if (status != comm_status::done) return {status, wire_check::good, -1};
    wire_header header = wire_header::read(detail::piece(out, bytes, rank).data());
    for (int r = 0; r < world; ++r) {
      wire_check const found =
          check_message(codec, layout, mine, message_in(codec, layout, mine, in, bytes, r), header);
      if (found != wire_check::good) return {comm_status::done, found, r};
    }

    verdict const senders_say = detail::open(in, world, senders);
    header.part = mean_part + static_cast<std::uint32_t>(rank);
    header.flags = 0;
    header.weight = senders_say.what == verdict::kind::apply ? 1 : 0;
    auto const own = message_in(mean_codec, layout.mean(), mine, means, mean_bytes, rank);
    if (senders_say.what == verdict::kind::apply) {
      encode_message(mean_codec, encoder, exec::host{},
                     pass::sum_of<C>{codec, &layout, mine, senders}, layout.mean(), mine, options,
                     header, own);
    } else {
      header.flags =
          senders_say.what == verdict::kind::no_weight
              ? wire_header::no_weight
              : wire_header::rejected | ((1u + static_cast<unsigned>(senders_say.rank)) << 8);
      header.codec = codec::wire_id(mean_codec);
      header.payload_bytes = own.size() - header_bytes;
      std::fill(own.begin(), own.end(), std::byte{0});
      header.write(own.data());
    }

    status = comm.all_gather(detail::piece(means, mean_bytes, rank), means, until);
    if (status != comm_status::done) return {status, wire_check::good, -1};
    for (int r = 0; r < world; ++r) {
      tile_range const shard = layout.shard(r, world);
      wire_header expected = wire_header::read(detail::piece(out, bytes, r).data());
      expected.part = mean_part + static_cast<std::uint32_t>(r);
      wire_check const found = check_message(
          mean_codec, layout.mean(), shard,
          message_in(mean_codec, layout.mean(), shard, means, mean_bytes, r), expected);
      if (found != wire_check::good) return {comm_status::done, found, r};
    }
    return {};
  }

  /// Reads the headers of a result and lists the shards in order. A shard whose mean has overflowed
  /// counts as rejected by its owner.
  [[nodiscard]] static verdict open(std::span<std::byte const> result, int world,
                                    std::vector<codec::weighted_codes>& shards) {
    std::size_t const bytes = result.size() / static_cast<std::size_t>(world);
    shards.clear();
    for (int r = 0; r < world; ++r) {
      auto const message = detail::piece(result, bytes, r);
      wire_header const header = wire_header::read(message.data());
      if ((header.flags & wire_header::rejected) != 0) {
        auto const sender = static_cast<int>(header.flags >> 8);
        return {verdict::kind::rejected, sender > 0 ? sender - 1 : r};
      }
      if ((header.flags & wire_header::no_weight) != 0) return {verdict::kind::no_weight, -1};
      shards.push_back({message.subspan(header_bytes), 1.0f});
    }
    return {};
  }

  /// The source of the mean.
  template <FragmentCodec C, FragmentCodec M>
  [[nodiscard]] static pass::shards_of<M> mean(C const&, M const& mean_codec,
                                               fragment_layout const& layout,
                                               std::span<codec::weighted_codes const> shards) {
    return {mean_codec, &layout.mean(), shards};
  }

 private:
  /// The message about `range` at the beginning of piece `index`.
  template <FragmentCodec C>
  [[nodiscard]] static std::span<std::byte> message_in(C const& codec,
                                                       fragment_layout const& layout,
                                                       tile_range range,
                                                       std::span<std::byte> pieces,
                                                       std::size_t bytes, int index) {
    return detail::piece(pieces, bytes, index).first(message_bytes(codec, layout, range));
  }
};

/// What `chosen` comes to for a fragment: all_to_all_mean if it sends fewer bytes.
template <FragmentCodec C, FragmentCodec M>
[[nodiscard]] method choose(method chosen, C const& codec, M const& mean_codec,
                            fragment_layout const& layout, int world) {
  if (chosen != method::automatic) return chosen;
  bool const fewer = all_to_all_mean::sent_bytes(codec, mean_codec, layout, world) <
                     all_gather_mean::sent_bytes(codec, mean_codec, layout, world);
  return fewer ? method::all_to_all : method::all_gather;
}

}  // namespace rivulet::reduce
