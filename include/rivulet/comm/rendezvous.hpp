#pragma once

/// \file
/// How processes find out who they are, and where the others are: for comm::gloo.

#include <charconv>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <gloo/config.h>
#include <gloo/rendezvous/file_store.h>
#if GLOO_USE_REDIS && __has_include(<hiredis/hiredis.h>)
#define HIREDIS_NESTED_INCLUDE
#include <gloo/rendezvous/redis_store.h>
#define RIVULET_REDIS 1
#endif

#include <rivulet/comm/tcp_store.hpp>

namespace rivulet::comm {

/// What a launcher tells a process; -1 and "" where it says nothing.
struct launch {
  int rank = -1;
  int size = -1;
  std::string rendezvous{};
};

namespace detail {

inline std::string variable(char const* name) {
  char const* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Throws precondition_error unless `text` is a number from `least` to `most`.
inline int number(std::string_view what, std::string_view text, int least, int most) {
  int value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  rivulet::detail::require(
      error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most,
      what, " = '", text, "' must be a number from ", least, " to ", most);
  return value;
}

}  // namespace detail

/// Reads the environment of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), mpirun
/// (OMPI_COMM_WORLD_RANK and _SIZE, or PMI_RANK and PMI_SIZE) or Slurm (SLURM_PROCID,
/// SLURM_NTASKS): the first of these that names a rank. Where torchrun's own store listens at
/// MASTER_PORT, the port after it is taken. Throws precondition_error for what is no number.
[[nodiscard]] inline launch launch_from_environment() {
  launch found;
  for (auto const& [rank, size] : {std::pair{"RANK", "WORLD_SIZE"},
                                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                   {"PMI_RANK", "PMI_SIZE"},
                                   {"SLURM_PROCID", "SLURM_NTASKS"}}) {
    std::string const value = detail::variable(rank);
    if (value.empty()) continue;
    found.size = detail::number(size, detail::variable(size), 1, 1 << 24);
    found.rank = detail::number(rank, value, 0, found.size - 1);
    break;
  }
  std::string const host = detail::variable("MASTER_ADDR");
  std::string const port = detail::variable("MASTER_PORT");
  if (!host.empty() && !port.empty()) {
    bool const taken = detail::variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
    found.rendezvous = rivulet::detail::concat(
        "tcp:", host, ":", detail::number("MASTER_PORT", port, 1, 65534) + (taken ? 1 : 0));
  }
  return found;
}

/// Makes the place where ranks meet: "file:DIR" (a folder that all see, a fresh one for each run),
/// "redis:HOST:PORT" (keys stay there) or "tcp:HOST:PORT" (rank 0 listens there). Throws
/// precondition_error for anything else, comm_error or Gloo's exceptions if it cannot be used.
[[nodiscard]] inline std::shared_ptr<::gloo::rendezvous::Store> rendezvous(
    std::string_view where, int rank, int connect_timeout_ms = 60'000) {
  auto const starts = [&](std::string_view kind) { return where.substr(0, kind.size()) == kind; };
  std::string_view const rest = where.substr((std::min)(where.size(), where.find(':') + 1));
  if (starts("file:") && !rest.empty()) {
    return std::make_shared<::gloo::rendezvous::FileStore>(std::string(rest));
  }
  std::size_t const colon = rest.rfind(':');
  bool const address = colon != std::string_view::npos && colon > 0;
  rivulet::detail::require(address && (starts("redis:") || starts("tcp:")), "rendezvous '", where,
                           "' must be file:DIR, redis:HOST:PORT or tcp:HOST:PORT");
  std::string const host(rest.substr(0, colon));
  int const port = detail::number("rendezvous: the port", rest.substr(colon + 1), 1, 65535);
  if (starts("tcp:")) {
    return std::make_shared<tcp_store>(host, std::to_string(port), rank,
                                       std::chrono::milliseconds(connect_timeout_ms));
  }
#if defined(RIVULET_REDIS)
  return std::make_shared<::gloo::rendezvous::RedisStore>(host, port);
#else
  throw precondition_error("rivulet: rendezvous '" + std::string(where) +
                           "': this program was compiled without Redis");
#endif
}

}  // namespace rivulet::comm
