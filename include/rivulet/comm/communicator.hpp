#pragma once

/// \file
/// What a transport offers: three collectives on bytes, bound by a deadline.

#include <chrono>
#include <concepts>
#include <cstddef>
#include <span>

#include <rivulet/element.hpp>
#include <rivulet/error.hpp>

namespace rivulet {

using deadline = std::chrono::steady_clock::time_point;

/// The intersection of what threads, MPI, Gloo and NCCL can do. Collectives block, are called by
/// one thread at a time, by all ranks in the same order and with the same sizes; statuses other
/// than `done` are final, and the communicator serves no more. `abort` may be called from any
/// thread and wakes all ranks within a second.
///
///   all_gather(mine, all, d): rank r's bytes lie at all[r * mine.size()] on every rank. `mine` may
///     be that place itself. Each rank sends (size - 1) * mine.size() bytes.
///   all_to_all(out, in, d): part r of `out` goes to rank r; part r of `in` came from rank r. The
///     spans must not overlap. Each rank sends (1 - 1/size) * out.size() bytes.
///   broadcast(data, root, d): the root's bytes on every rank. The root sends (size - 1) *
///     data.size() bytes.
///
/// Wrong sizes of the caller's own spans throw precondition_error.
template <class C>
concept Communicator = requires(C& comm, C const& frozen, std::span<std::byte const> out,
                                std::span<std::byte> in, deadline until) {
  { C::payload_space } -> std::convertible_to<memory_space>;
  { frozen.rank() } -> std::same_as<int>;
  { frozen.size() } -> std::same_as<int>;
  { comm.all_gather(out, in, until) } -> std::same_as<comm_status>;
  { comm.all_to_all(out, in, until) } -> std::same_as<comm_status>;
  { comm.broadcast(in, int{}, until) } -> std::same_as<comm_status>;
  { comm.abort() }
  noexcept;
};

}  // namespace rivulet
