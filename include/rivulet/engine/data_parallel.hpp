#pragma once

/// \file
/// The baseline: the mean of the workers' gradients before every optimizer step.

#include <span>
#include <utility>
#include <vector>

#include <rivulet/codec/error_feedback.hpp>
#include <rivulet/engine/report.hpp>
#include <rivulet/engine/sync_config.hpp>
#include <rivulet/exec/host.hpp>
#include <rivulet/partition/whole_model.hpp>
#include <rivulet/reduce/all_to_all_mean.hpp>

namespace rivulet {

/// Replaces registered gradients by their weighted mean over the workers, through the same codecs
/// and the same reductions as streaming_diloco (without error feedback). Bytes sent per worker and
/// step: sent_bytes(); memory: the buffer of the reduction. The set and the communicator outlive
/// this object; one thread uses both.
template <Communicator Comm, SyncCodec C, Executor E>
class data_parallel {
  using stages = codec::detail::stages<C>;
  static_assert(!stages::feeds_back,
                "rivulet: data_parallel keeps no residuals; give it the codec within "
                "error_feedback");

 public:
  /// `gradients`: tensors of the same names and sizes on all workers. Not collective.
  /// Throws precondition_error if nothing in the set is trainable, timeout_ms is not positive, or
  /// an option of the codec breaks a rule.
  data_parallel(parameter_set& gradients, Comm& comm, C codec, E executor = {},
                int timeout_ms = 600'000, reduce::method reduction = reduce::method::automatic)
      : gradients_(&gradients),
        comm_(&comm),
        codec_(codec),
        executor_(executor),
        timeout_ms_(timeout_ms),
        layout_(everything(gradients), gradients, stages::sent(codec_), stages::mean(codec_)),
        reduction_(reduce::choose(reduction, stages::sent(codec_), stages::mean(codec_), layout_,
                                  comm.size())) {
    detail::require(timeout_ms > 0, "timeout_ms = ", timeout_ms, " must be positive");
    codec::check(codec_);
    with_reduction([&](auto chosen) {
      buffer_.resize(
          chosen.buffer_bytes(stages::sent(codec_), stages::mean(codec_), layout_, comm.size()));
    });
    encoder_.reserve(stages::sent(codec_), layout_.values());
    mean_encoder_.reserve(stages::mean(codec_), layout_.values());
    senders_.reserve(static_cast<std::size_t>(comm.size()));
    report_.reserve(1, gradients.size());
  }

  /// Collective: call between the backward pass and the optimizer. The mean is bit-identical on all
  /// workers. If any worker has NaN or infinity in its gradients, all leave theirs as they are and
  /// report `skipped`: every worker must then leave out its optimizer step.
  /// Throws comm_error if the exchange fails; the communicator is aborted then. Throws
  /// precondition_error for a weight that is negative or not finite.
  step_report const& average_gradients(double weight = 1.0) {
    sync_config::check_weight(weight);
    report_.restart(++step_);
    layout_.bind(*gradients_);
    with_reduction([&](auto reduction) { average(reduction, weight); });
    return report_;
  }

  /// Bytes of a message of all gradients.
  [[nodiscard]] std::size_t message_bytes() const {
    return rivulet::message_bytes(stages::sent(codec_), layout_, layout_.all());
  }
  /// Bytes that a worker sends in a step; see the reductions.
  [[nodiscard]] std::uint64_t sent_bytes() const {
    return with_reduction([&](auto reduction) {
      return reduction.sent_bytes(stages::sent(codec_), stages::mean(codec_), layout_,
                                  comm_->size());
    });
  }

 private:
  template <class F>
  auto with_reduction(F const& f) const {
    return reduction_ == reduce::method::all_to_all ? f(reduce::all_to_all_mean{})
                                                    : f(reduce::all_gather_mean{});
  }

  template <class Reduction>
  void average(Reduction reduction, double weight) {
    auto const& sent_codec = stages::sent(codec_);
    auto const& mean_codec = stages::mean(codec_);
    int const rank = comm_->rank();
    int const world = comm_->size();
    wire_header header;
    header.step = step_;
    header.weight = weight;
    encode_options options;
    options.key = detail::hash{}
                      .add(static_cast<std::uint64_t>(rank))
                      .add(static_cast<std::uint64_t>(step_))
                      .value();
    auto const start = std::chrono::steady_clock::now();
    int const rejected = reduction.encode(sent_codec, encoder_, executor_, pass::local_values{},
                                          layout_, options, header, buffer_, rank, world);
    report_.encode_seconds = detail::seconds_since(start);
    report_.bytes_sent = sent_bytes();

    auto const sent = std::chrono::steady_clock::now();
    options.key = ~options.key;
    reduce::exchange_result const result =
        reduction.exchange(sent_codec, mean_codec, mean_encoder_, layout_, options, *comm_,
                           std::span(buffer_), senders_, detail::within(timeout_ms_));
    if (!result.good()) {
      comm_->abort();
      throw detail::exchange_error(result, "mean of gradients", -1, step_);
    }
    double const waited = detail::seconds_since(sent);
    report_.add_wait(waited, waited);

    auto const messages =
        std::span(buffer_).last(reduction.result_bytes(sent_codec, mean_codec, layout_, world));
    reduce::verdict const verdict = reduction.open(messages, world, senders_);
    if (verdict.what != reduce::verdict::kind::apply) {
      report_.skipped.push_back({0, step_, verdict, rejected});
      return;
    }
    auto const arrived = std::chrono::steady_clock::now();
    auto const mean = reduction.mean(sent_codec, mean_codec, layout_, senders_);
    executor_.for_each_tile(layout_.tiles(), pass::receive{mean, pass::store_mean{}, &layout_});
    report_.decode_seconds = detail::seconds_since(arrived);
    report_.applied.push_back(0);
    report_.note_written(layout_);
  }

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
  reduce::method reduction_;
  std::vector<std::byte> buffer_;
  message_encoder<typename stages::sent_codec> encoder_;
  message_encoder<typename stages::mean_codec> mean_encoder_;
  std::vector<codec::weighted_codes> senders_;
  std::int64_t step_ = 0;
  step_report report_;
};

template <class Comm, class C>
data_parallel(parameter_set&, Comm&, C) -> data_parallel<Comm, C, exec::host>;
template <class Comm, class C, class E>
data_parallel(parameter_set&, Comm&, C, E) -> data_parallel<Comm, C, E>;
template <class Comm, class C, class E>
data_parallel(parameter_set&, Comm&, C, E, int) -> data_parallel<Comm, C, E>;
template <class Comm, class C, class E>
data_parallel(parameter_set&, Comm&, C, E, int, reduce::method) -> data_parallel<Comm, C, E>;

}  // namespace rivulet
