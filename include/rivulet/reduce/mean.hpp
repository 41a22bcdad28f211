#pragma once

/// \file
/// What the reductions have in common: how an exchange ends, and what the gathered headers say.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <rivulet/codec/message.hpp>
#include <rivulet/comm/communicator.hpp>

namespace rivulet::reduce {

/// How the mean of a fragment is formed.
enum class method : std::uint8_t {
  automatic,   ///< by whichever sends fewer bytes per worker; all_gather_mean if they send the same
  all_gather,  ///< all_gather_mean: every worker gets all codes; values are quantized once
  all_to_all   ///< all_to_all_mean: every worker averages its shard; values are quantized twice
};

/// How an exchange ended on this rank.
struct exchange_result {
  comm_status status = comm_status::done;
  wire_check check = wire_check::good;
  int peer = -1;  ///< whose message failed the check

  [[nodiscard]] bool good() const {
    return status == comm_status::done && check == wire_check::good;
  }
};

/// What the gathered headers say; the same on every rank, because all read the same headers.
struct verdict {
  enum class kind : std::uint8_t { apply, rejected, no_weight };
  kind what = kind::apply;
  int rank = -1;  ///< the first sender that rejected its values
};

namespace detail {

/// Piece `index` of a buffer of pieces of equal size.
template <class Byte>
[[nodiscard]] std::span<Byte> piece(std::span<Byte> buffer, std::size_t bytes, int index) {
  return buffer.subspan(static_cast<std::size_t>(index) * bytes, bytes);
}

/// Reads the headers of `world` messages in pieces of equal size, and lists in rank order what the
/// mean consists of: c_m = float(w_m / W), W the sum of the weights in double. Senders of weight 0
/// are left out. `senders` has room for all ranks.
[[nodiscard]] inline verdict open(std::span<std::byte const> messages, int world,
                                  std::vector<codec::weighted_codes>& senders) {
  std::size_t const bytes = messages.size() / static_cast<std::size_t>(world);
  senders.clear();
  double total = 0;
  for (int r = 0; r < world; ++r) {
    wire_header const header = wire_header::read(piece(messages, bytes, r).data());
    if ((header.flags & wire_header::rejected) != 0 && header.weight > 0) {
      return {verdict::kind::rejected, r};
    }
    total += header.weight;
  }
  if (total == 0 || !rivulet::detail::is_finite(total)) return {verdict::kind::no_weight, -1};
  for (int r = 0; r < world; ++r) {
    auto const message = piece(messages, bytes, r);
    auto const weight = static_cast<float>(wire_header::read(message.data()).weight / total);
    if (weight > 0) senders.push_back({message.subspan(header_bytes), weight});
  }
  return {};
}

}  // namespace detail
}  // namespace rivulet::reduce
