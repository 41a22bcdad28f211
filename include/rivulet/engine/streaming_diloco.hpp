#pragma once

/// \file
/// Streaming DiLoCo (arXiv 2501.18512, algorithm 2): the hook that a training loop calls after each
/// inner step. DiLoCo (arXiv 2311.08105) is this engine with partition::whole_model and
/// overlap_steps = 0.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rivulet/codec/error_feedback.hpp>
#include <rivulet/codec/message.hpp>
#include <rivulet/comm/communicator.hpp>
#include <rivulet/engine/agreement.hpp>
#include <rivulet/engine/comm_link.hpp>
#include <rivulet/engine/in_flight.hpp>
#include <rivulet/engine/outer_state.hpp>
#include <rivulet/engine/report.hpp>
#include <rivulet/engine/residuals.hpp>
#include <rivulet/engine/saved_state.hpp>
#include <rivulet/engine/sync_config.hpp>
#include <rivulet/exec/host.hpp>
#include <rivulet/reduce/all_gather_mean.hpp>
#include <rivulet/reduce/all_to_all_mean.hpp>
#include <rivulet/schedule/streaming.hpp>

namespace rivulet {

/// Keeps the replicas of a model in sync. One object per worker; all workers construct it at the
/// same point with equal settings (tau, mixing, weight, timeout and executor may differ), and call
/// after_step after every inner step.
///
/// Memory beside the model: 4 * (1 + slots) bytes per parameter for outer parameters and optimizer
/// state, 8 more with error feedback, and schedule().max_in_flight() buffers of the reduction.
/// Bytes sent per worker and sync of fragment p: sent_bytes(p). Nothing is allocated after
/// construction but by swap_outer, save, load and rebuild.
///
/// Threads: all members are called by one thread, the one that trains; the communicator is used by
/// a thread of the engine. `parameters` and `comm` outlive the engine. Call finish() at the end:
/// what is still in flight when the engine is destroyed is lost, and if it is on the wire the
/// communicator is aborted. While the engine lives, nothing else uses its communicator.
template <Communicator Comm, SyncCodec C, OuterOptimizer O, Executor E>
class streaming_diloco {
 public:
  /// Collective: the ranks compare settings and initial parameters.
  /// Throws precondition_error for settings that break a rule or differ between ranks (the text
  /// names the first difference, on every rank); comm_error if the ranks cannot be reached.
  template <Partitioner P>
  streaming_diloco(parameter_set& parameters, Comm& comm, sync_config config, P const& partitioner,
                   C codec, O outer, E executor = {})
      : parameters_(&parameters),
        codec_(codec),
        outer_(outer),
        executor_(executor),
        config_(checked(std::move(config))),
        fragments_(checked(partitioner(parameters.parameters()), parameters)),
        schedule_(config_.sync_every, config_.overlap_steps, static_cast<int>(fragments_.size()),
                  config_.first_sync, config_.offsets),
        state_(parameters, fragments_, stages::sent(codec_), stages::mean(codec_), O::state_slots),
        residuals_(state_, stages::feeds_back),
        link_(comm, static_cast<std::size_t>(schedule_.max_in_flight()) + 1, config_.timeout_ms) {
    outer_.check();
    codec::check(codec_);
    report_.reserve(fragments_.size(), parameters.size());
    join();
  }

  streaming_diloco(streaming_diloco const&) = delete;
  streaming_diloco& operator=(streaming_diloco const&) = delete;

  ~streaming_diloco() {
    bool const unwinding = std::uncaught_exceptions() > exceptions_;
    if (on_the_wire() || unwinding) link_.abort();
  }

  /// Call after each inner step. Receives and applies what is due, then encodes and starts sending
  /// what is due. Waits only for a receive whose bytes are not here yet; when it returns the
  /// parameters may be used. The report is valid until the next call.
  ///
  /// Throws comm_error after a timeout, a transport error or a message that fails its checks: this
  /// rank applied nothing of it, the communicator is aborted, and every later call throws until
  /// rebuild().
  step_report const& after_step() {
    check_usable("after_step");
    failed_ = true;  // unless the step comes to its end
    ++step_;
    report_.restart(step_);
    // Of this step's receives, or earlier: a state saved under a longer overlap holds older ones.
    receive_until(step_ - (std::max)(1, schedule_.overlap_steps()));
    schedule_.for_each_event(step_, [this](sync_event event) {
      if (event.what == sync_event::kind::send) {
        send(event.fragment);
      } else {
        receive_until(event.sent_at);
      }
    });
    failed_ = false;
    return report_;
  }

  /// Collective: receives and applies everything in flight. Training may go on afterwards.
  /// Throws as after_step does.
  step_report const& finish() {
    check_usable("finish");
    failed_ = true;
    report_.restart(step_);
    receive_until(step_);
    failed_ = false;
    return report_;
  }

  /// Copies the outer (FP32) values of a parameter to `values`; a frozen one has its own.
  /// Throws precondition_error for an unknown name or a span of another size.
  void copy_outer_to(std::string_view name, std::span<float> values) const {
    std::size_t const index = parameters_->find(name);
    parameter const& p = (*parameters_)[index];
    detail::require(values.size() == p.tensor.size, "copy_outer_to('", name, "'): the span has ",
                    values.size(), " elements, the parameter ", p.tensor.size);
    if (p.synced()) {
      std::size_t const copied = state_.copy_to(index, values);
      detail::require(copied == values.size(), "copy_outer_to('", name,
                      "'): the parameter was added after the engine was built");
      return;
    }
    detail::visit_element(p.tensor.element, [&](auto* type) {
      auto const* const own = static_cast<decltype(type)>(p.tensor.data);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_float(own[i]);
    });
  }

  /// Puts the outer parameters into the model, to evaluate or export it; the next call puts the
  /// local ones back, bit for bit. No step may be taken in between. The local parameters are kept
  /// meanwhile in a buffer of their size, allocated by the first call.
  void swap_outer() {
    state_.bind(*parameters_);
    std::size_t total = 0;
    state_.for_each_slice([&](std::byte*, std::size_t bytes) { total += bytes; });
    local_copy_.resize(total);
    std::byte* kept = local_copy_.data();
    state_.for_each_slice([&](std::byte* local, std::size_t bytes) {
      swapped_ ? std::copy_n(kept, bytes, local) : std::copy_n(local, bytes, kept);
      kept += bytes;
    });
    swapped_ = !swapped_;
    for (int p = 0; swapped_ && p < schedule_.fragments(); ++p) state_.mix(p, 0.0f, executor_);
  }

  /// Whether the model holds the outer parameters now.
  [[nodiscard]] bool swapped() const { return swapped_; }

  /// The outer learning rate of operations sent from now on. All workers must change it after the
  /// same step; a difference is found at the next sync. Throws precondition_error as O::check does.
  void set_outer_learning_rate(float learning_rate) {
    O changed = outer_;
    changed.learning_rate = learning_rate;
    changed.check();
    outer_ = changed;
  }

  /// The weight of this worker in operations sent from now on (tokens, say); 0 receives only.
  /// Throws precondition_error if it is negative or not finite.
  void set_weight(double weight) {
    sync_config::check_weight(weight);
    config_.weight = weight;
  }

  /// Collective, after an abort or to admit a joiner (which constructs its engine meanwhile): moves
  /// the engine to another communicator. What was in flight is dropped, so call finish() first
  /// where nothing has failed: dropping what is on the wire aborts the old communicator. Fragment
  /// by fragment the ranks adopt the highest version (of the lowest rank among equals), mixed into
  /// the local parameters as at a receive; a rank that has not taken a step yet takes it as it is.
  /// All go on from the highest step. report() tells what was written. Throws as the constructor
  /// does.
  void rebuild(Comm& comm) {
    detail::require(!link_.uses(comm),
                    "rebuild: the engine still uses this communicator; pass another object");
    detail::require(!swapped_, "rebuild: the model holds the outer parameters; call swap_outer()");
    if (on_the_wire()) link_.abort();
    link_.reset(comm);
    join();
  }

  /// Collective: passes the whole state (outer parameters, optimizer state, step, versions, what is
  /// in flight) to sink(std::span<std::byte const>), piece by piece. Waits until the messages in
  /// flight have arrived, and applies none. The model's local parameters are the caller's to save,
  /// and to restore after the engine is built: its constructor takes what it finds as initial.
  /// Throws as after_step does.
  template <class Sink>
  void save(Sink&& sink) {
    check_usable("save");
    for (std::size_t i = 0; i < queue_.size(); ++i) wait_for(queue_[i]);
    detail::state_writer writer(sink);
    detail::state_header header = make_header();
    header.step = step_;
    header.learning_rate = outer_.learning_rate;
    header.world = link_.size();
    header.in_flight = queue_.size();
    writer.put_value(header);
    for (int p = 0; p < schedule_.fragments(); ++p) writer.put_value(state_.version(p));
    writer.put(std::as_bytes(state_.all_theta()));
    writer.put(std::as_bytes(state_.all_slots()));
    std::vector<float> left_over;  // in one piece, as it is read
    for (int p = 0; residuals_.enabled() && p < schedule_.fragments(); ++p) {
      left_over.insert(left_over.end(), residuals_.kept(p).begin(), residuals_.kept(p).end());
    }
    writer.put(std::as_bytes(std::span(left_over)));
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      operation& op = queue_[i];
      auto const residual =
          residuals_.is_pending(op.fragment) ? residuals_.pending(op.fragment) : std::span<float>{};
      writer.put_value(detail::operation_header{op.fragment, op.rejected_parameter, op.sent_at,
                                                op.messages().size(), residual.size()});
      writer.put(op.messages());
      writer.put(std::as_bytes(residual));
    }
    writer.finish();
  }

  /// Collective: takes over a saved state, so that training goes on with the same bits. tau, mixing
  /// and weight may be others than before, the number of workers too if nothing is in flight. The
  /// outer learning rate is the saved one; set_outer_learning_rate changes it.
  /// Throws on all ranks, with nothing changed: state_error if any rank's bytes are damaged or
  /// belong to other settings, or it has operations in flight; precondition_error if the ranks'
  /// states are of different steps.
  void load(std::span<std::byte const> bytes) {
    check_usable("load");
    detail::saved_state saved;
    std::string problem;
    try {
      if (!queue_.empty()) {
        throw state_error(
            "rivulet: load: operations are in flight; load after construction, or "
            "call finish() first");
      }
      saved = detail::saved_state::read(bytes);
      check_loadable(saved);
    } catch (state_error const& error) {
      problem = error.what();
    }
    check_loaded_alike(problem, saved.header.step);

    auto const copy = [](std::span<std::byte const> from, std::span<float> to) {
      std::copy(from.begin(), from.end(), std::as_writable_bytes(to).begin());
    };
    copy(saved.theta, state_.all_theta());
    copy(saved.slots, state_.all_slots());
    for (int p = 0; p < schedule_.fragments(); ++p) {
      state_.version(p) = saved.versions[static_cast<std::size_t>(p)];
    }
    step_ = saved.header.step;
    outer_.learning_rate = saved.header.learning_rate;
    std::span<std::byte const> left_over = saved.residuals;
    for (int p = 0; residuals_.enabled() && p < schedule_.fragments(); ++p) {
      std::size_t const size = residuals_.kept(p).size_bytes();
      copy(left_over.first(size), residuals_.kept(p));
      left_over = left_over.subspan(size);
    }
    reserve_queue((std::max)(queue_.capacity(), saved.in_flight.size()));
    for (detail::saved_state::operation const& op : saved.in_flight) {
      queue_.push(op);
      if (op.residual.empty()) continue;
      copy(op.residual, residuals_.pending(op.header.fragment));
      residuals_.sent(op.header.fragment, state_.version(op.header.fragment));
    }
  }

  /// Hash of the whole outer state: outer parameters, optimizer state, versions. Equal on all
  /// workers that have applied the same syncs. (Every sync compares the outer parameters by
  /// itself.)
  [[nodiscard]] std::uint64_t outer_fingerprint() const { return state_.fingerprint(); }

  /// The report of the last call; after construction and rebuild, of what these wrote and sent.
  [[nodiscard]] step_report const& report() const { return report_; }
  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] std::size_t in_flight() const { return queue_.size(); }
  [[nodiscard]] std::vector<fragment> const& fragments() const { return fragments_; }
  [[nodiscard]] schedule::streaming const& schedule() const { return schedule_; }
  /// Syncs applied to fragment `p`.
  [[nodiscard]] std::uint64_t version(int p) const { return state_.version(p); }
  /// Bytes of a message of the whole fragment `p`: header + sum over slices of
  /// ceil(n / block) * block_bytes (the latter for block codecs).
  [[nodiscard]] std::size_t message_bytes(int p) const {
    return rivulet::message_bytes(stages::sent(codec_), state_.layout(p), state_.layout(p).all());
  }
  /// Bytes that a worker sends in one sync of fragment `p`; see the reductions.
  [[nodiscard]] std::uint64_t sent_bytes(int p) const {
    return with_reduction(p, [&](auto reduction) {
      return reduction.sent_bytes(stages::sent(codec_), stages::mean(codec_), state_.layout(p),
                                  link_.size());
    });
  }
  /// The reduction of fragment `p`: config.reduction, or what it comes to.
  [[nodiscard]] reduce::method reduction_of(int p) const {
    return reduce::choose(config_.reduction, stages::sent(codec_), stages::mean(codec_),
                          state_.layout(p), link_.size());
  }

 private:
  using stages = codec::detail::stages<C>;
  using sent_codec = typename stages::sent_codec;
  using mean_codec = typename stages::mean_codec;

  /// f(the reduction of fragment `p`)
  template <class F>
  auto with_reduction(int p, F const& f) const {
    return reduction_of(p) == reduce::method::all_to_all ? f(reduce::all_to_all_mean{})
                                                         : f(reduce::all_gather_mean{});
  }
  [[nodiscard]] std::size_t buffer_bytes(int p) const {
    return with_reduction(p, [&](auto reduction) {
      return reduction.buffer_bytes(stages::sent(codec_), stages::mean(codec_), state_.layout(p),
                                    link_.size());
    });
  }

  [[nodiscard]] std::size_t result_bytes(int p) const {
    return with_reduction(p, [&](auto reduction) {
      return reduction.result_bytes(stages::sent(codec_), stages::mean(codec_), state_.layout(p),
                                    link_.size());
    });
  }
  [[nodiscard]] float feedback() const {
    if constexpr (stages::feeds_back) return codec_.beta;
    return 0.0f;
  }

  static sync_config checked(sync_config config) {
    config.check();
    return config;
  }

  static std::vector<fragment> checked(std::vector<fragment> fragments,
                                       parameter_set const& parameters) {
    check_partition(fragments, parameters.parameters());
    return fragments;
  }

  void check_usable(char const* call) const {
    if (failed_) {
      throw comm_error(
          detail::concat("rivulet: ", call,
                         ": an earlier operation failed; rebuild() the engine on a new "
                         "communicator to go on"),
          comm_status::aborted, -1, -1, step_);
    }
    detail::require(!swapped_, call,
                    ": the model holds the outer parameters; call swap_outer() first");
  }

  // --- send and receive ---

  [[nodiscard]] bool on_the_wire() {
    return !queue_.empty() && !link_.thread().test(queue_.newest().ticket);
  }

  void send(int p) {
    fragment_layout& layout = state_.layout(p);
    operation& op = queue_.push();
    op.fragment = p;
    op.sent_at = step_;
    op.bytes = buffer_bytes(p);
    op.message_bytes = result_bytes(p);
    wire_header header;
    header.fragment = static_cast<std::uint32_t>(p);
    header.step = step_;
    header.version = state_.version(p);
    header.weight = config_.weight;
    header.learning_rate = outer_.learning_rate;
    auto const start = std::chrono::steady_clock::now();
    layout.bind(*parameters_);
    pass::outer_gradient const gradient{state_.theta(p).data()};
    if constexpr (stages::feeds_back) {
      encode(op,
             pass::with_residual<pass::outer_gradient>{gradient, residuals_.kept(p).data(),
                                                       feedback()},
             header);
      if (header.weight > 0) residuals_.sent(p, header.version);
    } else {
      encode(op, gradient, header);
    }
    report_.encode_seconds += detail::seconds_since(start);
    op.ticket = link_.thread().submit(
        [](void* context) noexcept {
          auto& sent = *static_cast<operation*>(context);
          static_cast<streaming_diloco*>(sent.engine)->exchange(sent);
        },
        &op);
    report_.sent.push_back(p);
    report_.bytes_sent += sent_bytes(p);
  }

  template <class Source>
  void encode(operation& op, Source const& source, wire_header const& header) {
    int const p = op.fragment;
    pass::remainder left_over;
    if constexpr (stages::feeds_back) left_over.values = residuals_.pending(p).data();
    encode_options const options{config_.nonfinite, message_key(op), left_over};
    with_reduction(p, [&](auto reduction) {
      fragment_layout const& layout = state_.layout(p);
      op.rejected_parameter =
          reduction.encode(stages::sent(codec_), encoder_, executor_, source, layout, options,
                           header, op.in_use(), link_.rank(), link_.size());
    });
  }

  /// The key of the random numbers of this rank's messages in an operation.
  [[nodiscard]] std::uint64_t message_key(operation const& op) const {
    return detail::hash{}
        .add(static_cast<std::uint64_t>(link_.rank()))
        .add(static_cast<std::uint64_t>(op.sent_at))
        .value();
  }

  /// On the communication thread: the whole reduction of a fragment.
  void exchange(operation& op) noexcept {
    auto const start = std::chrono::steady_clock::now();
    encode_options const options{config_.nonfinite, ~message_key(op), {}};
    op.result = with_reduction(op.fragment, [&](auto reduction) {
      return link_.run([&](Comm& comm, deadline until) {
        return reduction.exchange(stages::sent(codec_), stages::mean(codec_), mean_encoder_,
                                  state_.layout(op.fragment), options, comm, op.in_use(),
                                  exchanged_, until);
      });
    });
    op.wire_seconds = detail::seconds_since(start);
  }

  /// Receives what was sent at step `sent_at` or before, in the order of sending.
  void receive_until(std::int64_t sent_at) {
    while (!queue_.empty() && queue_.oldest().sent_at <= sent_at) {
      receive(queue_.oldest());
      queue_.pop();
    }
  }

  void wait_for(operation& op) {
    bool const done = link_.wait(op.ticket);
    reduce::exchange_result const late{comm_status::timeout, wire_check::good, -1};
    reduce::exchange_result const result = done ? op.result : late;
    if (result.good()) return;
    failed_ = true;  // what only this rank may know: it applies nothing more and wakes the others
    link_.abort();
    throw detail::exchange_error(
        result,
        detail::concat("fragment ", op.fragment, " ('",
                       fragments_[static_cast<std::size_t>(op.fragment)].name, "') sent at step ",
                       op.sent_at),
        op.fragment, op.sent_at);
  }

  void receive(operation& op) {
    auto const start = std::chrono::steady_clock::now();
    wait_for(op);
    report_.add_wait(op.wire_seconds, detail::seconds_since(start));
    with_reduction(op.fragment, [&](auto reduction) { apply(op, reduction); });
  }

  template <class Reduction>
  void apply(operation& op, Reduction reduction) {
    int const p = op.fragment;
    reduce::verdict const verdict = reduction.open(op.messages(), link_.size(), senders_);
    if (verdict.what != reduce::verdict::kind::apply) {
      report_.skipped.push_back({p, op.sent_at, verdict, op.rejected_parameter});
      residuals_.received(p, state_.version(p));
      return;
    }
    auto const arrived = std::chrono::steady_clock::now();
    O outer = outer_;
    outer.learning_rate = wire_header::read(op.messages().data()).learning_rate;
    fragment_layout& layout = state_.layout(p);
    layout.bind(*parameters_);
    pass::outer_step<O> const sink{outer, state_.theta(p).data(), state_.slots(p), state_.values(),
                                   config_.mixing};
    auto const mean = reduction.mean(stages::sent(codec_), stages::mean(codec_), layout, senders_);
    executor_.for_each_tile(layout.tiles(), pass::receive{mean, sink, &layout});
    residuals_.received(p, ++state_.version(p));
    report_.decode_seconds += detail::seconds_since(arrived);
    report_.applied.push_back(p);
    report_.note_written(layout);
  }

  // --- start ---

  void reserve_queue(std::size_t count) {
    std::size_t largest = 0;
    std::size_t values = 0;
    for (int p = 0; p < schedule_.fragments(); ++p) {
      largest = (std::max)(largest, buffer_bytes(p));
      values = (std::max)(values, state_.layout(p).values());
    }
    queue_.reserve(count, largest, this);
    encoder_.reserve(stages::sent(codec_), values);
    mean_encoder_.reserve(stages::mean(codec_), values);
    senders_.reserve(static_cast<std::size_t>(link_.size()));
    exchanged_.reserve(static_cast<std::size_t>(link_.size()));
  }

  [[nodiscard]] detail::setting_hashes settings() const {
    return detail::hash_settings(*parameters_, fragments_, schedule_, config_, codec_, outer_);
  }

  /// Makes the ranks agree on settings, versions and step; the engine is usable only afterwards.
  void join() {
    failed_ = true;
    report_.restart(step_);
    std::uint64_t const sent_before = link_.bytes_sent();
    reserve_queue(static_cast<std::size_t>(schedule_.max_in_flight()));
    detail::start_record const mine{settings(), step_};
    auto const starts = link_.template gather<detail::start_record>(
        "comparing the settings of the ranks", {&mine, 1});
    detail::check_settings(starts);
    bool const trains = step_ > 0;
    detail::agree_on_versions(link_, state_, fragments_, config_.initial, trains, [&](int p) {
      state_.layout(p).bind(*parameters_);
      state_.mix(p, trains ? config_.mixing : 0.0f, executor_);
      report_.note_written(state_.layout(p));
    });
    for (int p = 0; p < schedule_.fragments(); ++p) residuals_.received(p, state_.version(p));
    for (detail::start_record const& start : starts) step_ = (std::max)(step_, start.step);
    report_.bytes_sent = link_.bytes_sent() - sent_before;
    failed_ = false;
  }

  // --- saved states ---

  /// The part of the header that saved states of the same settings have in common.
  [[nodiscard]] detail::state_header make_header() const {
    detail::state_header header;
    detail::setting_hashes const hashes = settings();
    detail::hash sum;
    for (std::size_t i = 0; i < detail::saved_settings; ++i) sum.add(hashes[i]);
    header.settings = sum.value();
    header.values = state_.values();
    header.fragments = static_cast<std::uint32_t>(schedule_.fragments());
    header.slots = static_cast<std::uint32_t>(O::state_slots);
    header.residual_values = stages::feeds_back ? state_.values() : 0;
    return header;
  }

  void check_loadable(detail::saved_state const& saved) const {
    detail::state_header const mine = make_header();
    auto const refuse = [](std::string const& why) { throw state_error("rivulet: load: " + why); };
    if (saved.header.settings != mine.settings || saved.header.values != mine.values ||
        saved.header.fragments != mine.fragments || saved.header.slots != mine.slots ||
        saved.header.residual_values != mine.residual_values) {
      refuse(
          "the state was saved with another model, partition, schedule, codec or outer optimizer");
    }
    if (!saved.in_flight.empty() && saved.header.world != link_.size()) {
      refuse(detail::concat("the state has operations in flight between ", saved.header.world,
                            " workers, but there are ", link_.size()));
    }
    for (detail::saved_state::operation const& op : saved.in_flight) {
      int const p = op.header.fragment;
      bool const known = p >= 0 && p < schedule_.fragments();
      if (!known || op.messages.size() != result_bytes(p) ||
          (op.header.residual_values > 0 &&
           (!residuals_.enabled() || op.residual.size() != state_.theta(p).size_bytes()))) {
        refuse("the state holds an operation of another size");
      }
    }
  }

  /// All ranks load or none does.
  void check_loaded_alike(std::string const& problem, std::int64_t step) {
    std::int64_t const mine = problem.empty() ? step : -1;
    failed_ = true;
    auto const steps = link_.template gather<std::int64_t>("load", {&mine, 1});
    failed_ = false;
    if (!problem.empty()) throw state_error(problem);
    for (std::size_t r = 0; r < steps.size(); ++r) {
      if (steps[r] < 0) {
        throw state_error(detail::concat("rivulet: load: rank ", r, " cannot load its state"));
      }
      detail::require(steps[r] == steps[0], "load: rank 0 loads step ", steps[0], ", rank ", r,
                      " step ", steps[r], "; all must load the same");
    }
  }

  parameter_set* parameters_;
  C codec_;
  O outer_;
  E executor_;
  sync_config config_;
  std::vector<fragment> fragments_;
  schedule::streaming schedule_;
  outer_state state_;
  residuals residuals_;
  in_flight_queue queue_;
  message_encoder<sent_codec> encoder_;
  message_encoder<mean_codec> mean_encoder_;  // of the communication thread
  std::vector<codec::weighted_codes> senders_;
  std::vector<codec::weighted_codes> exchanged_;  // of the communication thread
  std::int64_t step_ = 0;
  step_report report_;
  std::vector<std::byte> local_copy_;  // while the model holds the outer parameters
  bool swapped_ = false;
  bool failed_ = true;
  int exceptions_ = std::uncaught_exceptions();
  comm_link<Comm> link_;  // last: its thread uses what stands above
};

// Explicit guides: the codec is deduced, never defaulted.
template <class Comm, class P, class C, class O>
streaming_diloco(parameter_set&, Comm&, sync_config, P, C, O)
    -> streaming_diloco<Comm, C, O, exec::host>;
template <class Comm, class P, class C, class O, class E>
streaming_diloco(parameter_set&, Comm&, sync_config, P, C, O, E) -> streaming_diloco<Comm, C, O, E>;

}  // namespace rivulet
