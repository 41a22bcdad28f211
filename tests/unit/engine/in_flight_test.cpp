#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/engine/in_flight.hpp>

namespace {

using rivulet::in_flight_queue;
using rivulet::operation;

/// Adds an operation of 3 + step bytes.
void push(in_flight_queue& queue, int fragment, std::int64_t step) {
  operation& op = queue.push();
  op.fragment = fragment;
  op.rejected_parameter = fragment - 1;
  op.sent_at = step;
  op.ticket = 99;
  op.bytes = static_cast<std::size_t>(3 + step);
  std::ranges::fill(op.messages(), static_cast<std::byte>(step));
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

/// A sink as state_writer takes it.
struct writer {
  std::vector<std::byte> bytes;
  void put(std::span<std::byte const> part) { std::ranges::copy(part, std::back_inserter(bytes)); }
  template <class T>
  void put_value(T const& value) {
    put(std::as_bytes(std::span(&value, 1)));
  }
};

TEST_CASE("in_flight: what was saved is loaded as done, in the order of sending") {
  in_flight_queue queue;
  queue.reserve(3, 100, nullptr);
  push(queue, 0, 1);
  push(queue, 0, 2);
  queue.pop();  // so that the oldest is not the first of the ring
  push(queue, 1, 4);
  push(queue, 2, 5);
  writer saved;
  queue.save(saved);

  std::vector<rivulet::detail::saved_state::operation> operations(3);
  std::span<std::byte const> rest(saved.bytes);
  for (auto& [header, messages] : operations) {
    std::copy_n(rest.begin(), sizeof header, std::as_writable_bytes(std::span(&header, 1)).begin());
    messages = rest.subspan(sizeof header, header.bytes);
    rest = rest.subspan(sizeof header + header.bytes);
  }
  CHECK(rest.empty());

  in_flight_queue other;
  other.reserve(4, 64, nullptr);
  for (int i = 0; i < 4; ++i) {  // what earlier operations leave behind
    push(other, 9, 50);
    other.newest().result.status = rivulet::comm_status::failed;
    other.newest().wire_seconds = 1;
  }
  while (!other.empty()) other.pop();
  other.load(operations);
  REQUIRE(other.size() == 3);
  std::int64_t const steps[] = {2, 4, 5};
  for (std::size_t i = 0; i < 3; ++i) {
    operation& op = other[i];
    CHECK(op.fragment == static_cast<int>(i));
    CHECK(op.rejected_parameter == op.fragment - 1);
    CHECK(op.sent_at == steps[i]);
    CHECK(op.ticket == 0);
    CHECK(op.result.good());
    CHECK(op.wire_seconds == 0);
    CHECK(op.messages().size() == static_cast<std::size_t>(3 + steps[i]));
    for (std::byte const b : op.messages()) CHECK(b == static_cast<std::byte>(steps[i]));
  }
}

}  // namespace
