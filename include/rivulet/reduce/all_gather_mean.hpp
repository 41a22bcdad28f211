#pragma once

/// \file
/// The weighted mean of encoded fragments by one all-gather: every worker receives all codes and
/// adds them up in FP32, so values are quantized once.

#include <rivulet/reduce/mean.hpp>

namespace rivulet::reduce {

/// Steps: 1 collective. For W workers and messages of m = message_bytes(codec, layout, all): bytes
/// sent per worker (W - 1) * m; buffer W * m.
struct all_gather_mean {
  static constexpr std::string_view name = "all_gather_mean";

  template <FragmentCodec C, FragmentCodec M>
  [[nodiscard]] static std::size_t buffer_bytes(C const& codec, M const&,
                                                fragment_layout const& layout, int world) {
    return message_bytes(codec, layout, layout.all()) * static_cast<std::size_t>(world);
  }
  template <FragmentCodec C, FragmentCodec M>
  [[nodiscard]] static std::uint64_t sent_bytes(C const& codec, M const&,
                                                fragment_layout const& layout, int world) {
    return std::uint64_t{message_bytes(codec, layout, layout.all())} *
           static_cast<std::uint64_t>(world - 1);
  }
  /// Size of the end of the buffer that the mean is decoded from, once the exchange is done.
  template <FragmentCodec C, FragmentCodec M>
  [[nodiscard]] static std::size_t result_bytes(C const& codec, M const& mean_codec,
                                                fragment_layout const& layout, int world) {
    return buffer_bytes(codec, mean_codec, layout, world);
  }

  /// Encodes this rank's message into its place in the buffer; see encode_message.
  template <FragmentCodec C, class Source, Executor E>
  static int encode(C const& codec, message_encoder<C>& encoder, E const& executor,
                    Source const& source, fragment_layout const& layout, encode_options options,
                    wire_header header, std::span<std::byte> buffer, int rank, int world) {
    std::size_t const bytes = buffer.size() / static_cast<std::size_t>(world);
    return encode_message(codec, encoder, executor, source, layout, layout.all(), options, header,
                          detail::piece(buffer, bytes, rank));
  }

  /// Gathers the messages of all ranks and checks them against this rank's own.
  template <FragmentCodec C, FragmentCodec M, Communicator Comm>
  [[nodiscard]] static exchange_result exchange(C const& codec, M const&, message_encoder<M>&,
                                                fragment_layout const& layout,
                                                encode_options const&, Comm& comm,
                                                std::span<std::byte> buffer,
                                                std::vector<codec::weighted_codes>&,
                                                deadline until) {
    std::size_t const bytes = buffer.size() / static_cast<std::size_t>(comm.size());
    auto const own = detail::piece(buffer, bytes, comm.rank());
    comm_status const status = comm.all_gather(own, buffer, until);
    if (status != comm_status::done) return {status, wire_check::good, -1};
    wire_header const expected = wire_header::read(own.data());
    for (int r = 0; r < comm.size(); ++r) {
      wire_check const found =
          check_message(codec, layout, layout.all(), detail::piece(buffer, bytes, r), expected);
      if (found != wire_check::good) return {comm_status::done, found, r};
    }
    return {};
  }

  /// Reads the headers of a result; see detail::open.
  [[nodiscard]] static verdict open(std::span<std::byte const> result, int world,
                                    std::vector<codec::weighted_codes>& senders) {
    return detail::open(result, world, senders);
  }

  /// The source of the mean.
  template <FragmentCodec C, FragmentCodec M>
  [[nodiscard]] static pass::sum_of<C> mean(C const& codec, M const&, fragment_layout const& layout,
                                            std::span<codec::weighted_codes const> senders) {
    return {codec, &layout, layout.all(), senders};
  }
};

}  // namespace rivulet::reduce
