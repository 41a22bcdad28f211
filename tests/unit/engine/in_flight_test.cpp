#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/engine/in_flight.hpp>

namespace {

using rivulet::in_flight_queue;
using rivulet::operation;

/// Adds an operation of 3 + step bytes, the last two being its messages.
void push(in_flight_queue& queue, int fragment, std::int64_t step) {
  operation& op = queue.push();
  op.fragment = fragment;
  op.rejected_parameter = fragment - 1;
  op.sent_at = step;
  op.ticket = 99;
  op.bytes = static_cast<std::size_t>(3 + step);
  op.message_bytes = 2;
  std::ranges::fill(op.in_use(), static_cast<std::byte>(step));
}

TEST_CASE("in_flight: first in, first out, around the ring many times") {
  int engine = 0;
  in_flight_queue queue;
  queue.reserve(3, 100, &engine);
  CHECK(queue.capacity() == 3);
  CHECK(queue.empty());
  std::int64_t next = 0;
  std::int64_t oldest = 0;
  for (std::size_t const wanted : {1u, 3u, 2u, 0u, 3u, 0u, 2u, 1u, 3u, 1u}) {
    while (queue.size() < wanted) push(queue, 7, next++);
    while (queue.size() > wanted) {
      CHECK(queue.oldest().sent_at == oldest++);
      queue.pop();
    }
    CHECK(queue.empty() == (wanted == 0));
    for (std::size_t i = 0; i < wanted; ++i) {
      CHECK(queue[i].sent_at == oldest + static_cast<std::int64_t>(i));
      CHECK(queue[i].engine == &engine);
      CHECK(queue[i].buffer.size() == 100);
    }
    if (wanted > 0) CHECK(queue.newest().sent_at == next - 1);
  }
  queue.reserve(5, 10, &engine);
  CHECK(queue.empty());
  CHECK(queue.capacity() == 5);
  CHECK(queue.push().buffer.size() == 10);
}

TEST_CASE("in_flight: the messages are the end of what is in use") {
  in_flight_queue queue;
  queue.reserve(1, 100, nullptr);
  push(queue, 0, 20);
  operation& op = queue.oldest();
  CHECK(op.in_use().data() == op.buffer.data());
  CHECK(op.in_use().size() == 23);
  CHECK(op.messages().data() == op.buffer.data() + 21);
  CHECK(op.messages().size() == 2);
}

TEST_CASE("in_flight: what was saved is done, in the order of sending") {
  std::vector<rivulet::detail::saved_state::operation> saved(3);
  std::vector<std::byte> messages[3];
  for (std::size_t i = 0; i < 3; ++i) {
    messages[i].resize(10 + i, static_cast<std::byte>(40 + i));
    saved[i].header.fragment = static_cast<int>(i);
    saved[i].header.rejected_parameter = static_cast<int>(i) - 1;
    saved[i].header.sent_at = 100 + static_cast<std::int64_t>(i);
    saved[i].header.bytes = messages[i].size();
    saved[i].messages = messages[i];
  }
  in_flight_queue queue;
  queue.reserve(4, 64, nullptr);
  for (int i = 0; i < 4; ++i) {  // what earlier operations leave behind
    push(queue, 9, 50);
    queue.newest().result = {rivulet::comm_status::failed, rivulet::wire_check::step, 2};
    queue.newest().wire_seconds = 1;
  }
  while (!queue.empty()) queue.pop();
  for (auto const& operation : saved) queue.push(operation);
  REQUIRE(queue.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    operation& op = queue[i];
    CHECK(op.fragment == static_cast<int>(i));
    CHECK(op.rejected_parameter == op.fragment - 1);
    CHECK(op.sent_at == 100 + static_cast<std::int64_t>(i));
    CHECK(op.ticket == 0);
    CHECK(op.result.good());
    CHECK(op.result.peer == -1);
    CHECK(op.wire_seconds == 0);
    CHECK(op.buffer.size() == 64);
    CHECK(op.in_use().size() == 10 + i);
    CHECK(std::ranges::equal(op.messages(), messages[i]));
  }
}

}  // namespace
