#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/reduce/mean.hpp>

namespace {

using rivulet::comm_status;
using rivulet::wire_check;
using rivulet::wire_header;
using rivulet::reduce::exchange_result;
using rivulet::reduce::verdict;

constexpr std::size_t message_bytes = rivulet::header_bytes + 13;

/// What a sender says in its header.
struct sender {
  double weight = 1;
  std::uint32_t flags = 0;
};
constexpr std::uint32_t rejects = wire_header::rejected;

/// The messages of all ranks, one after the other.
std::vector<std::byte> gathered(std::vector<sender> const& senders) {
  std::vector<std::byte> buffer(senders.size() * message_bytes);
  for (std::size_t r = 0; r < senders.size(); ++r) {
    wire_header header;
    header.weight = senders[r].weight;
    header.flags = senders[r].flags;
    header.write(buffer.data() + r * message_bytes);
  }
  return buffer;
}

TEST_CASE("mean: pieces of a buffer") {
  std::vector<std::byte> buffer(400);
  for (int i = 0; i < 4; ++i) {
    auto const piece = rivulet::reduce::detail::piece(std::span(buffer), 100, i);
    CHECK(piece.data() == buffer.data() + 100 * i);
    CHECK(piece.size() == 100);
  }
}

TEST_CASE("mean: weights are float(w / sum of w) in the order of ranks") {
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
      {{{0, rejects}, {2}}, {1}, {1.0f}},               // what is not counted cannot reject
      {{{1e-200}, {1}}, {1}, {1.0f}},                   // vanishes in float
      {{{1, 2}, {1, 1u << 8}}, {0, 1}, {0.5f, 0.5f}}};  // other flags are not of a sender
  for (auto const& c : cases) {
    std::vector<std::byte> const buffer = gathered(c.senders);
    std::vector<rivulet::codec::weighted_codes> list(7);  // of an earlier operation
    int const world = static_cast<int>(c.senders.size());
    verdict const found = rivulet::reduce::detail::open(buffer, world, list);
    CHECK(found.what == verdict::kind::apply);
    CHECK(found.rank == -1);
    REQUIRE(list.size() == c.ranks.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      CHECK(list[i].bytes.data() ==
            buffer.data() + c.ranks[i] * message_bytes + rivulet::header_bytes);
      CHECK(list[i].bytes.size() == 13);
      CHECK(list[i].weight == c.weights[i]);
    }
  }
}

TEST_CASE("mean: what skips a fragment on all ranks") {
  struct {
    std::vector<sender> senders;
    verdict::kind what;
    int rank;
  } const cases[] = {{{{0}}, verdict::kind::no_weight, -1},
                     {{{0}, {0}, {0}}, verdict::kind::no_weight, -1},
                     {{{0, rejects}, {0}}, verdict::kind::no_weight, -1},
                     {{{1e308}, {1e308}}, verdict::kind::no_weight, -1},  // the sum is infinite
                     {{{1, rejects}}, verdict::kind::rejected, 0},
                     {{{1e308}, {1e308}, {1, rejects}}, verdict::kind::rejected, 2},
                     {{{1}, {0, rejects}, {1, rejects}, {1, rejects}}, verdict::kind::rejected, 2}};
  for (auto const& c : cases) {
    std::vector<std::byte> const buffer = gathered(c.senders);
    std::vector<rivulet::codec::weighted_codes> list(7);
    verdict const found =
        rivulet::reduce::detail::open(buffer, static_cast<int>(c.senders.size()), list);
    CHECK(found.what == c.what);
    CHECK(found.rank == c.rank);
    CHECK(list.empty());
  }
}

TEST_CASE("mean: an exchange is good if it is done and every message is") {
  CHECK(exchange_result{}.good());
  CHECK(exchange_result{}.peer == -1);
  CHECK_FALSE(exchange_result{comm_status::timeout, wire_check::good, -1}.good());
  CHECK_FALSE(exchange_result{comm_status::done, wire_check::step, 2}.good());
}

}  // namespace
