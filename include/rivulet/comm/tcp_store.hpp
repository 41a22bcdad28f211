#pragma once

/// \file
/// Where ranks find each other without a file system or a server of their own: rank 0 keeps the
/// addresses of all and hands them out by TCP. For POSIX systems; needs Gloo's headers.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/rendezvous/store.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rivulet/error.hpp>

namespace rivulet::comm {

namespace detail {

/// A socket, closed at its end. Sends and receives whole buffers, or says false.
class tcp_socket {
 public:
  explicit tcp_socket(int handle = -1) : handle_(handle) {}
  tcp_socket(tcp_socket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  tcp_socket& operator=(tcp_socket&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~tcp_socket() {
    if (handle_ >= 0) ::close(handle_);
  }

  [[nodiscard]] int handle() const { return handle_; }

  /// No call blocks for more than `seconds`.
  void limit(int seconds) const {
    timeval const most{.tv_sec = seconds, .tv_usec = 0};
    ::setsockopt(handle_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    ::setsockopt(handle_, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
  }
  [[nodiscard]] bool send(std::span<char const> bytes) const {
    while (!bytes.empty()) {
      auto const sent = ::send(handle_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }
  [[nodiscard]] bool receive(std::span<char> bytes) const {
    while (!bytes.empty()) {
      auto const got = ::recv(handle_, bytes.data(), bytes.size(), 0);
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }

  // Byte strings with their length before them, at most `longest`.
  static constexpr std::uint32_t longest = 1u << 20;
  static constexpr std::uint32_t absent = ~std::uint32_t{0};

  [[nodiscard]] bool send_text(std::span<char const> text) const {
    return send_size(static_cast<std::uint32_t>(text.size())) && send(text);
  }
  [[nodiscard]] bool send_size(std::uint32_t size) const {
    return send({reinterpret_cast<char const*>(&size), sizeof size});
  }
  /// False if there is none; `text` is untouched if its absence was sent.
  [[nodiscard]] bool receive_text(std::optional<std::vector<char>>& text) const {
    std::uint32_t size = 0;
    if (!receive({reinterpret_cast<char*>(&size), sizeof size})) return false;
    if (size == absent) return true;
    return size <= longest && receive(text.emplace(size));
  }

 private:
  int handle_;
};

}  // namespace detail

/// A store of Gloo's, of which rank 0 holds the contents: it must live until all have connected,
/// and a group cannot be rebuilt without it. Requests are one connection each: a key, and a value
/// or its absence for a question, which is answered alike.
class tcp_store : public ::gloo::rendezvous::Store {
  using clock = std::chrono::steady_clock;
  using socket = detail::tcp_socket;

 public:
  /// Rank 0 listens at that address of its machine. Nothing waits for longer than `timeout`.
  /// Throws comm_error if the address is unknown, or if rank 0 cannot listen there.
  tcp_store(std::string host, std::string port, int rank, std::chrono::milliseconds timeout)
      : host_(std::move(host)), port_(std::move(port)), timeout_(timeout) {
    if (rank != 0) return;
    listening_ = open([](int handle, addrinfo const& at) {
      int const on = 1;
      ::setsockopt(handle, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      return ::bind(handle, at.ai_addr, at.ai_addrlen) == 0 && ::listen(handle, SOMAXCONN) == 0;
    });
    if (listening_.handle() < 0) fail("rank 0 cannot listen there");
    if (::pipe(stop_) != 0) fail("no pipe can be made");
    server_ = std::thread([this] { serve(); });
  }

  tcp_store(tcp_store const&) = delete;
  tcp_store& operator=(tcp_store const&) = delete;

  ~tcp_store() override {
    if (!server_.joinable()) return;
    ::close(stop_[1]);
    server_.join();
    ::close(stop_[0]);
  }

  void set(std::string const& key, std::vector<char> const& value) override {
    ask(key, &value, clock::now() + timeout_);
  }

  std::vector<char> get(std::string const& key) override {
    wait({key}, timeout_);
    return *ask(key, nullptr, clock::now() + timeout_);
  }

  void wait(std::vector<std::string> const& keys) override { wait(keys, timeout_); }

  void wait(std::vector<std::string> const& keys,
            std::chrono::milliseconds const& timeout) override {
    auto const until = clock::now() + timeout;
    for (std::string const& key : keys) {
      while (!ask(key, nullptr, until)) {
        if (clock::now() >= until) fail("not all ranks have come in time");
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }

 private:
  [[noreturn]] void fail(char const* why) const {
    throw comm_error(
        rivulet::detail::concat("rivulet: rendezvous tcp:", host_, ":", port_, ": ", why),
        comm_status::failed, 0, -1, 0);
  }

  /// The first socket that use(handle, address) accepts; none if there is no such.
  template <class F>
  [[nodiscard]] socket open(F const& use) const {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host_.c_str(), port_.c_str(), &hints, &found) != 0) {
      fail("no such address");
    }
    socket result;
    for (addrinfo* at = found; at != nullptr && result.handle() < 0; at = at->ai_next) {
      socket attempt(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
      attempt.limit(5);
      if (attempt.handle() >= 0 && use(attempt.handle(), *at)) result = std::move(attempt);
    }
    ::freeaddrinfo(found);
    return result;
  }

  /// Sets a value, or asks for one. Tries until rank 0 listens.
  std::optional<std::vector<char>> ask(std::string const& key, std::vector<char> const* value,
                                       clock::time_point until) {
    for (;;) {
      socket const server = open([](int handle, addrinfo const& at) {
        return ::connect(handle, at.ai_addr, at.ai_addrlen) == 0;
      });
      std::optional<std::vector<char>> answer;
      if (server.handle() >= 0 && server.send_text(key) &&
          (value != nullptr ? server.send_text(*value) : server.send_size(socket::absent)) &&
          server.receive_text(answer)) {
        return answer;
      }
      if (clock::now() >= until) fail("rank 0 does not answer");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  void serve() {
    std::map<std::vector<char>, std::vector<char>> values;
    for (;;) {
      pollfd ready[2] = {{listening_.handle(), POLLIN, 0}, {stop_[0], POLLIN, 0}};
      ::poll(ready, 2, -1);
      if (ready[1].revents != 0) return;
      socket const client(::accept(listening_.handle(), nullptr, nullptr));
      client.limit(1);
      std::optional<std::vector<char>> key;
      std::optional<std::vector<char>> value;
      if (client.handle() < 0 || !client.receive_text(key) || !key) continue;
      if (!client.receive_text(value)) continue;
      if (value) values[*key] = *value;
      auto const at = values.find(*key);
      (void)(at == values.end() ? client.send_size(socket::absent) : client.send_text(at->second));
    }
  }

  std::string host_;
  std::string port_;
  std::chrono::milliseconds timeout_;
  socket listening_;
  int stop_[2] = {-1, -1};  // a pipe whose end ends the server
  std::thread server_;
};

}  // namespace rivulet::comm
