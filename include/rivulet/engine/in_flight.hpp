#pragma once

/// \file
/// The operations in flight, first in, first out.

#include <cstdint>
#include <span>
#include <vector>

#include <rivulet/engine/comm_thread.hpp>
#include <rivulet/engine/saved_state.hpp>
#include <rivulet/reduce/mean.hpp>

namespace rivulet {

/// A fragment on its way: written by the caller, then by the communication thread, then read by the
/// caller; the ticket separates the three.
struct operation {
  void* engine = nullptr;
  int fragment = 0;
  int rejected_parameter = -1;  ///< where this rank found NaN or infinity
  std::int64_t sent_at = 0;
  comm_thread::ticket ticket = 0;
  std::vector<std::byte> buffer;
  std::size_t bytes = 0;          ///< of the buffer in use
  std::size_t message_bytes = 0;  ///< at its end: the messages that the mean is decoded from
  reduce::exchange_result result;
  double wire_seconds = 0;

  [[nodiscard]] std::span<std::byte> in_use() { return std::span(buffer).first(bytes); }
  [[nodiscard]] std::span<std::byte> messages() { return in_use().last(message_bytes); }
};

/// A ring of operations, whose buffers are reserved beforehand.
class in_flight_queue {
 public:
  /// Room for `count` operations of up to `bytes` bytes each; drops what is in the queue.
  void reserve(std::size_t count, std::size_t bytes, void* engine) {
    ring_.resize(count);
    for (operation& op : ring_) {
      op.engine = engine;
      op.buffer.resize(bytes);
    }
    oldest_ = size_ = 0;
  }

  [[nodiscard]] std::size_t capacity() const { return ring_.size(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  /// Operation `i`, 0 being the oldest.
  [[nodiscard]] operation& operator[](std::size_t i) { return ring_[(oldest_ + i) % ring_.size()]; }
  [[nodiscard]] operation& oldest() { return (*this)[0]; }
  [[nodiscard]] operation& newest() { return (*this)[size_ - 1]; }

  /// Adds an operation, with what an earlier one left in its fields.
  [[nodiscard]] operation& push() { return (*this)[size_++]; }
  void pop() {
    oldest_ = (oldest_ + 1) % ring_.size();
    --size_;
  }

  /// Adds a saved operation, whose exchange is done. The queue has room.
  void push(detail::saved_state::operation const& saved) {
    operation& op = push();
    op.fragment = saved.header.fragment;
    op.rejected_parameter = saved.header.rejected_parameter;
    op.sent_at = saved.header.sent_at;
    op.ticket = 0;
    op.result = {};
    op.wire_seconds = 0;
    op.bytes = op.message_bytes = saved.messages.size();
    std::copy(saved.messages.begin(), saved.messages.end(), op.buffer.begin());
  }

 private:
  std::vector<operation> ring_;
  std::size_t oldest_ = 0;
  std::size_t size_ = 0;
};

}  // namespace rivulet
