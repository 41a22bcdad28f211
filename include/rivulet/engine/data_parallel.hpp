#pragma once

/// \file
/// The baseline: the mean of the workers' gradients before every optimizer step.

#include <span>
#include <utility>
#include <vector>

#include <rivulet/engine/report.hpp>
#include <rivulet/engine/sync_config.hpp>
#include <rivulet/exec/host.hpp>
#include <rivulet/partition/whole_model.hpp>

namespace rivulet {

/// Replaces registered gradients by their weighted mean over the workers, through the same codecs
/// and the same reduction as streaming_diloco. Bytes sent per worker and step: (W - 1) *
/// message_bytes(); memory: W messages. The set and the communicator outlive this object; one
/// thread uses both.
template <Communicator Comm, BlockCodec C, Executor E>
class data_parallel {
 public:
  /// `gradients`: tensors of the same names and sizes on all workers. Not collective.
  /// Throws precondition_error if nothing in the set is trainable, or timeout_ms is not positive.
  data_parallel(parameter_set& gradients, Comm& comm, C codec, E executor = {},
                int timeout_ms = 600'000)
      : gradients_(&gradients),
        comm_(&comm),
        codec_(codec),
        executor_(executor),
        timeout_ms_(timeout_ms),
        layout_(everything(gradients), gradients, C::block_size),
        buffer_(reduce::all_gather_mean::buffer_bytes(message_bytes(), comm.size())) {
    detail::require(timeout_ms > 0, "timeout_ms = ", timeout_ms, " must be positive");
    contributions_.reserve(static_cast<std::size_t>(comm.size()));
    report_.reserve(1, gradients.size());
  }

  /// Collective: call between the backward pass and the optimizer. The mean is bit-identical on all
  /// workers. If any worker has NaN or infinity in its gradients, all leave theirs as they are and
  /// report `skipped`: every worker must then leave out its optimizer step.
  /// Throws comm_error if the exchange fails; the communicator is aborted then. Throws
  /// precondition_error for a weight that is negative or not finite.
  step_report const& average_gradients(double weight = 1.0) {
    using reduction = reduce::all_gather_mean;
    sync_config::check_weight(weight);
    report_.restart(++step_);
    layout_.bind(*gradients_);
    wire_header header;
    header.step = step_;
    header.weight = weight;
    auto const start = std::chrono::steady_clock::now();
    int const rejected =
        encode_message(codec_, executor_, pass::local_values{}, layout_, nonfinite_policy::reject,
                       header, reduction::slot(buffer_, message_bytes(), comm_->rank()));
    report_.encode_seconds = detail::seconds_since(start);
    report_.bytes_sent = reduction::sent_bytes(message_bytes(), comm_->size());

    auto const sent = std::chrono::steady_clock::now();
    reduce::exchange_result const result =
        reduction::exchange<C>(*comm_, buffer_, layout_.blocks(), detail::within(timeout_ms_));
    if (!result.good()) {
      comm_->abort();
      throw detail::exchange_error(result, "mean of gradients", -1, step_);
    }
    double const waited = detail::seconds_since(sent);
    report_.add_wait(waited, waited);

    reduce::verdict const verdict = reduction::open(buffer_, comm_->size(), contributions_);
    if (verdict.what != reduce::verdict::kind::apply) {
      report_.skipped.push_back({0, step_, verdict, rejected});
      return report_;
    }
    auto const arrived = std::chrono::steady_clock::now();
    executor_.for_each_tile(layout_.tiles(), pass::decode_mean<C, pass::store_mean>{
                                                 codec_, {}, &layout_, contributions_});
    report_.decode_seconds = detail::seconds_since(arrived);
    report_.applied.push_back(0);
    report_.note_written(layout_);
    return report_;
  }

  /// Bytes of one worker's message.
  [[nodiscard]] std::size_t message_bytes() const { return rivulet::message_bytes<C>(layout_); }

 private:
  static fragment everything(parameter_set const& gradients) {
    auto const fragments = partition::whole_model{}(gradients.parameters());
    check_partition(fragments, gradients.parameters());
    return fragments.front();
  }

  parameter_set* gradients_;
  Comm* comm_;
  C codec_;
  E executor_;
  int timeout_ms_;
  fragment_layout layout_;
  std::vector<std::byte> buffer_;
  std::vector<contribution> contributions_;
  std::int64_t step_ = 0;
  step_report report_;
};

template <class Comm, class C>
data_parallel(parameter_set&, Comm&, C) -> data_parallel<Comm, C, exec::host>;
template <class Comm, class C, class E>
data_parallel(parameter_set&, Comm&, C, E) -> data_parallel<Comm, C, E>;
template <class Comm, class C, class E>
data_parallel(parameter_set&, Comm&, C, E, int) -> data_parallel<Comm, C, E>;

}  // namespace rivulet
