#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/e3m0.hpp>
#include <rivulet/reduce/all_gather_mean.hpp>

#include "contract/block_codec_contract.hpp"

namespace {

using codec = rivulet::codec::e3m0<32>;
using rivulet::comm_status;
using rivulet::wire_check;
using rivulet::wire_header;
using rivulet::reduce::all_gather_mean;
using rivulet::reduce::verdict;

constexpr std::size_t blocks = 2;
constexpr std::size_t message_bytes =
    rivulet::header_bytes + blocks * rivulet::codec::block_bytes<codec>;

/// What a sender says in its header.
struct sender {
  double weight = 1;
  bool rejected = false;
};

/// The messages of all ranks, one after the other.
std::vector<std::byte> gathered(std::vector<sender> const& senders) {
  std::vector<std::byte> buffer(senders.size() * message_bytes);
  for (std::size_t r = 0; r < senders.size(); ++r) {
    auto const message = std::span(buffer).subspan(r * message_bytes, message_bytes);
    auto const payload = message.subspan(rivulet::header_bytes);
    rivulet::codec::encode(codec{}, rivulet_test::normal_values(blocks * 32, r), payload);
    wire_header header;
    header.codec = codec::id;
    header.payload_bytes = payload.size();
    header.weight = senders[r].weight;
    header.flags = senders[r].rejected ? wire_header::rejected : 0;
    header.payload_sum = rivulet::codec::detail::payload_sum<codec>(payload.data(), blocks);
    header.write(message.data());
  }
  return buffer;
}

/// A communicator that returns `status` and, if that is done, the bytes of `all`.
struct canned {
  static constexpr rivulet::memory_space payload_space = rivulet::memory_space::host;
  int own;
  int world;
  std::vector<std::byte> all;
  comm_status status = comm_status::done;
  std::vector<std::byte> sent = {};

  [[nodiscard]] int rank() const { return own; }
  [[nodiscard]] int size() const { return world; }
  comm_status all_gather(std::span<std::byte const> mine, std::span<std::byte> out,
                         rivulet::deadline) {
    sent.assign(mine.begin(), mine.end());
    if (status == comm_status::done) std::ranges::copy(all, out.begin());
    return status;
  }
  comm_status all_to_all(std::span<std::byte const>, std::span<std::byte>, rivulet::deadline) {
    return comm_status::failed;
  }
  comm_status broadcast(std::span<std::byte>, int, rivulet::deadline) {
    return comm_status::failed;
  }
  void abort() noexcept {}
};
static_assert(rivulet::Communicator<canned>);

TEST_CASE("all_gather_mean: bytes and places") {
  CHECK(all_gather_mean::buffer_bytes(100, 1) == 100);
  CHECK(all_gather_mean::buffer_bytes(100, 4) == 400);
  CHECK(all_gather_mean::sent_bytes(100, 1) == 0);
  CHECK(all_gather_mean::sent_bytes(100, 4) == 300);
  CHECK(all_gather_mean::sent_bytes(std::size_t{1} << 31, 5) == std::uint64_t{1} << 33);
  std::vector<std::byte> buffer(400);
  auto const slot = all_gather_mean::slot(buffer, 100, 2);
  CHECK(slot.data() == buffer.data() + 200);
  CHECK(slot.size() == 100);
}

TEST_CASE("all_gather_mean: weights are float(w / sum of w) in the order of ranks") {
  struct {
    std::vector<sender> senders;
    std::vector<std::size_t> ranks;
    std::vector<float> weights;
  } const cases[] = {
      {{{1}}, {0}, {1.0f}},
      {{{5}}, {0}, {1.0f}},
      {{{1}, {1}}, {0, 1}, {0.5f, 0.5f}},
      {{{1}, {1}, {1}}, {0, 1, 2}, {1.0f / 3, 1.0f / 3, 1.0f / 3}},
      {{{1}, {3}}, {0, 1}, {0.25f, 0.75f}},
      {{{0}, {3}, {0}, {1}}, {1, 3}, {0.75f, 0.25f}},
      {{{-0.0}, {2}}, {1}, {1.0f}},
      {{{0.1}, {0.7}}, {0, 1}, {float(0.1 / (0.1 + 0.7)), float(0.7 / (0.1 + 0.7))}},
      {{{16777217}, {1}}, {0, 1}, {float(16777217.0 / 16777218.0), float(1.0 / 16777218.0)}},
      {{{0, true}, {2}}, {1}, {1.0f}},  // what is not counted cannot reject
      {{{1e-200}, {1}}, {1}, {1.0f}}};  // vanishes in float
  for (auto const& c : cases) {
    std::vector<std::byte> buffer = gathered(c.senders);
    std::vector<rivulet::contribution> list(7);
    int const world = static_cast<int>(c.senders.size());
    verdict const found = all_gather_mean::open(buffer, world, list);
    CHECK(found.what == verdict::kind::apply);
    CHECK(found.rank == -1);
    REQUIRE(list.size() == c.ranks.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      CHECK(list[i].payload == buffer.data() + c.ranks[i] * message_bytes + rivulet::header_bytes);
      CHECK(list[i].weight == c.weights[i]);
    }
  }
}

TEST_CASE("all_gather_mean: what skips a fragment on all ranks") {
  struct {
    std::vector<sender> senders;
    verdict::kind what;
    int rank;
  } const cases[] = {{{{0}}, verdict::kind::no_weight, -1},
                     {{{0}, {0}, {0}}, verdict::kind::no_weight, -1},
                     {{{0, true}, {0}}, verdict::kind::no_weight, -1},
                     {{{1e308}, {1e308}}, verdict::kind::no_weight, -1},  // the sum is infinite
                     {{{1, true}}, verdict::kind::rejected, 0},
                     {{{1}, {0, true}, {1, true}, {1, true}}, verdict::kind::rejected, 2}};
  for (auto const& c : cases) {
    std::vector<std::byte> buffer = gathered(c.senders);
    std::vector<rivulet::contribution> list(7);
    verdict const found = all_gather_mean::open(buffer, static_cast<int>(c.senders.size()), list);
    CHECK(found.what == c.what);
    CHECK(found.rank == c.rank);
    CHECK(list.empty());
  }
}

TEST_CASE("all_gather_mean: check names the first rank whose message is wrong") {
  std::vector<std::byte> const good = gathered({{1}, {2}, {0}, {4}});
  struct {
    std::size_t at;  // of the byte that is changed
    wire_check check;
    int peer;
  } const cases[] = {{1 * message_bytes, wire_check::magic, 1},
                     {2 * message_bytes + 9, wire_check::header_sum, 2},
                     {4 * message_bytes - 1, wire_check::payload_sum, 3},
                     {3 * message_bytes - 1, wire_check::good, -1}};  // weight 0: not decoded
  for (int rank = 0; rank < 4; ++rank) {
    for (auto const& c : cases) {
      std::vector<std::byte> buffer = good;
      buffer[c.at] ^= std::byte{0x10};
      auto const result = all_gather_mean::check<codec>(buffer, blocks, rank, 4);
      CHECK(result.status == comm_status::done);
      if (rank == c.peer) continue;  // compared with itself
      CHECK(result.check == c.check);
      CHECK(result.peer == c.peer);
      CHECK(result.good() == (c.check == wire_check::good));
    }
  }
}

TEST_CASE("all_gather_mean: exchange gathers from its slot, then checks") {
  std::vector<std::byte> const all = gathered({{1}, {2}, {3}});
  auto const until = std::chrono::steady_clock::now();
  for (int rank = 0; rank < 3; ++rank) {
    canned comm{rank, 3, all};
    std::vector<std::byte> buffer(all.size());
    auto const mine = all_gather_mean::slot(buffer, message_bytes, rank);
    std::ranges::copy(
        std::span(all).subspan(static_cast<std::size_t>(rank) * message_bytes, message_bytes),
        mine.begin());
    auto const result = all_gather_mean::exchange<codec>(comm, buffer, blocks, until);
    CHECK(result.good());
    CHECK(result.peer == -1);
    CHECK(buffer == all);
    CHECK(std::ranges::equal(comm.sent, mine));

    comm.all[message_bytes * ((static_cast<std::size_t>(rank) + 1) % 3)] ^= std::byte{1};
    auto const damaged = all_gather_mean::exchange<codec>(comm, buffer, blocks, until);
    CHECK_FALSE(damaged.good());
    CHECK(damaged.check == wire_check::magic);
    CHECK(damaged.peer == (rank + 1) % 3);
  }
}

TEST_CASE("all_gather_mean: a status other than done is passed on and nothing is read") {
  for (comm_status const status :
       {comm_status::timeout, comm_status::failed, comm_status::aborted}) {
    canned comm{0, 2, {}, status};
    std::vector<std::byte> buffer(2 * message_bytes);
    auto const result =
        all_gather_mean::exchange<codec>(comm, buffer, blocks, std::chrono::steady_clock::now());
    CHECK(result.status == status);
    CHECK(result.check == wire_check::good);
    CHECK_FALSE(result.good());
  }
}

}  // namespace
