#pragma once

/// \file
/// A foreign communicator for tests: it forwards to comm::local, counts, and disturbs on command.

#include <cstdint>
#include <functional>
#include <span>
#include <thread>

#include <rivulet/rivulet.hpp>

namespace rivulet_test {

/// One rank. Its hooks are called around every collective of this rank, numbered from 0: a new
/// engine compares settings (0) and versions (1); where nothing is adopted, its syncs follow.
class faulty {
 public:
  static constexpr rivulet::memory_space payload_space = rivulet::memory_space::host;

  struct hooks {
    /// May wait. Any status but `done` is what the collective returns without taking place.
    std::function<rivulet::comm_status(int number)> before = {};
    /// May damage what has arrived.
    std::function<void(int number, std::span<std::byte> arrived)> after = {};
  };

  explicit faulty(rivulet::comm::local inner) : inner_(std::move(inner)) {}
  faulty(rivulet::comm::local inner, hooks what)
      : inner_(std::move(inner)), hooks_(std::move(what)) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }

  rivulet::comm_status all_gather(std::span<std::byte const> mine, std::span<std::byte> all,
                                  rivulet::deadline until) {
    return around(all, mine.size() * peers(), [&] { return inner_.all_gather(mine, all, until); });
  }
  rivulet::comm_status all_to_all(std::span<std::byte const> out, std::span<std::byte> in,
                                  rivulet::deadline until) {
    return around(in, out.size() / (peers() + 1) * peers(),
                  [&] { return inner_.all_to_all(out, in, until); });
  }
  rivulet::comm_status broadcast(std::span<std::byte> data, int root, rivulet::deadline until) {
    return around(data, root == rank() ? data.size() * peers() : 0,
                  [&] { return inner_.broadcast(data, root, until); });
  }
  void abort() noexcept { inner_.abort(); }

  /// Collectives that took place, and the bytes this rank sent by them, as communicator.hpp counts.
  [[nodiscard]] int collectives() const { return number_; }
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  [[nodiscard]] std::size_t peers() const { return static_cast<std::size_t>(size() - 1); }

  template <class F>
  rivulet::comm_status around(std::span<std::byte> arrived, std::size_t sent, F const& collective) {
    int const number = number_++;
    if (hooks_.before) {
      rivulet::comm_status const status = hooks_.before(number);
      if (status != rivulet::comm_status::done) return status;
    }
    rivulet::comm_status const status = collective();
    if (status != rivulet::comm_status::done) return status;
    bytes_sent_ += sent;
    if (hooks_.after) hooks_.after(number, arrived);
    return status;
  }

  rivulet::comm::local inner_;
  hooks hooks_;
  int number_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

static_assert(rivulet::Communicator<faulty>);

/// Waits `milliseconds` before each collective from number `from` on.
[[nodiscard]] inline faulty::hooks delayed(int milliseconds, int from = 2) {
  return {.before = [=](int number) {
    if (number >= from) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return rivulet::comm_status::done;
  }};
}

/// Collective `number` fails on this rank, as when its link is cut.
[[nodiscard]] inline faulty::hooks cut_at(int number) {
  return {.before = [=](int at) {
    return at == number ? rivulet::comm_status::failed : rivulet::comm_status::done;
  }};
}

/// What arrives by collective `number` goes through damage(message of rank `sender`).
template <class Damage>
[[nodiscard]] faulty::hooks damaged_at(int number, int sender, int world, Damage damage) {
  return {.before = {}, .after = [=](int at, std::span<std::byte> arrived) {
            if (at != number) return;
            std::size_t const each = arrived.size() / static_cast<std::size_t>(world);
            damage(arrived.subspan(static_cast<std::size_t>(sender) * each, each));
          }};
}

}  // namespace rivulet_test
