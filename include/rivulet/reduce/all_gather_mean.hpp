#pragma once

/// \file
/// The weighted mean of encoded fragments by one all-gather: every worker receives all codes and
/// adds them up in FP32, so values are quantized once.

#include <cstdint>
#include <span>
#include <vector>

#include <rivulet/codec/passes.hpp>
#include <rivulet/comm/communicator.hpp>

namespace rivulet::reduce {

/// How an exchange ended on this rank.
struct exchange_result {
  comm_status status = comm_status::done;
  wire_check check = wire_check::good;
  int peer = -1;  ///< whose message failed the check

  [[nodiscard]] bool good() const {
    return status == comm_status::done && check == wire_check::good;
  }
};

/// What the gathered headers say; the same on every rank, because all read the same bytes.
struct verdict {
  enum class kind : std::uint8_t { apply, rejected, no_weight };
  kind what = kind::apply;
  int rank = -1;  ///< the first sender that rejected its values
};

/// Steps: 1 collective. Bytes sent per worker: (W - 1) * message; buffer: W * message.
struct all_gather_mean {
  static constexpr std::string_view name = "all_gather_mean";

  [[nodiscard]] static constexpr std::size_t buffer_bytes(std::size_t message, int world) {
    return message * static_cast<std::size_t>(world);
  }
  [[nodiscard]] static constexpr std::uint64_t sent_bytes(std::size_t message, int world) {
    return std::uint64_t{message} * static_cast<std::uint64_t>(world - 1);
  }
  /// Where rank `rank` encodes its message.
  [[nodiscard]] static std::span<std::byte> slot(std::span<std::byte> buffer, std::size_t message,
                                                 int rank) {
    return buffer.subspan(static_cast<std::size_t>(rank) * message, message);
  }

  /// Gathers the messages of all ranks into `buffer`, this rank's being in its slot, and checks
  /// them.
  template <BlockCodec C, Communicator Comm>
  [[nodiscard]] static exchange_result exchange(Comm& comm, std::span<std::byte> buffer,
                                                std::size_t blocks, deadline until) {
    std::size_t const message = buffer.size() / static_cast<std::size_t>(comm.size());
    exchange_result result;
    result.status = comm.all_gather(slot(buffer, message, comm.rank()), buffer, until);
    if (result.status != comm_status::done) return result;
    return check<C>(buffer, blocks, comm.rank(), comm.size());
  }

  /// Checks all messages against this rank's own.
  template <BlockCodec C>
  [[nodiscard]] static exchange_result check(std::span<std::byte> buffer, std::size_t blocks,
                                             int rank, int world) {
    std::size_t const message = buffer.size() / static_cast<std::size_t>(world);
    wire_header const own = wire_header::read(slot(buffer, message, rank).data());
    for (int r = 0; r < world; ++r) {
      wire_check const found = check_message<C>(slot(buffer, message, r), own, blocks);
      if (found != wire_check::good) return {comm_status::done, found, r};
    }
    return {};
  }

  /// Reads the headers, and lists in rank order what the mean consists of: c_m = float(w_m / W),
  /// W the sum of the weights in double. Senders of weight 0 are left out. `contributions` has
  /// room for all ranks.
  [[nodiscard]] static verdict open(std::span<std::byte> buffer, int world,
                                    std::vector<contribution>& contributions) {
    std::size_t const message = buffer.size() / static_cast<std::size_t>(world);
    contributions.clear();
    double total = 0;
    for (int r = 0; r < world; ++r) {
      wire_header const header = wire_header::read(slot(buffer, message, r).data());
      if ((header.flags & wire_header::rejected) != 0 && header.weight > 0) {
        return {verdict::kind::rejected, r};
      }
      total += header.weight;
    }
    if (total == 0 || !detail::is_finite(total)) return {verdict::kind::no_weight, -1};
    for (int r = 0; r < world; ++r) {
      std::byte const* const bytes = slot(buffer, message, r).data();
      auto const weight = static_cast<float>(wire_header::read(bytes).weight / total);
      if (weight > 0) contributions.push_back({bytes + header_bytes, weight});
    }
    return {};
  }
};

}  // namespace rivulet::reduce
