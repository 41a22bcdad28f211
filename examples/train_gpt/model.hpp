/// The reference transformer: parameters, forward and backward pass, data parallel over a few
/// threads.
///
///   x = wte[inputs]
///   per layer:  x += proj(attention(rotary(qk_norm(qkv(norm1(x))))));  x +=
///   proj(gelu(fc(norm2(x)))) logits = norm_f(x) * wte^T
///
/// No biases; the embedding serves as input and output. The math of each step is in layers.hpp.
#pragma once

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "layers.hpp"

namespace train_gpt {

/// Sizes of the model. `width` is a multiple of `heads`, width / heads is even, all are at least 1,
/// and vocabulary is at most 256: a token is a byte.
struct model_config {
  int layers;
  int heads;
  int width;
  int context;
  int vocabulary = 256;
};

/// Throws std::invalid_argument that names the member of `config` (or the pair) that breaks a rule.
inline void check(model_config const& config) {
  auto const at_least_one = [](char const* name, int value) {
    if (value < 1)
      throw std::invalid_argument(std::string{"model_config: "} + name + " is " +
                                  std::to_string(value) + ", but must be at least 1");
  };
  at_least_one("layers", config.layers);
  at_least_one("heads", config.heads);
  at_least_one("width", config.width);
  at_least_one("context", config.context);
  at_least_one("vocabulary", config.vocabulary);
  if (config.vocabulary > 256)
    throw std::invalid_argument("model_config: vocabulary is " + std::to_string(config.vocabulary) +
                                ", but tokens are bytes, so it must be at most 256");
  std::string const sizes = "model_config: width " + std::to_string(config.width) + " and heads " +
                            std::to_string(config.heads);
  if (config.width % config.heads != 0)
    throw std::invalid_argument(sizes + ": width must be a multiple of heads");
  if (config.width / config.heads % 2 != 0)
    throw std::invalid_argument(sizes + ": rotary positions need an even head size, not " +
                                std::to_string(config.width / config.heads));
}

/// vocabulary * d + layers * (12 d^2 + 2 d + 2 head_size) + d with d = width.
inline dim parameter_count(model_config const& config) {
  dim const d = config.width;
  return config.vocabulary * d + config.layers * (12 * d * d + 2 * d + 2 * (d / config.heads)) + d;
}

enum class tensor_role : std::uint8_t { embedding, layer, final_norm };

/// One parameter tensor; the spans live as long as the model.
template <class Real>
struct parameter_tensor {
  std::string name;
  tensor_role role;
  int layer;  ///< of role `layer`, from 0; else -1
  std::span<Real> values;
  std::span<Real> gradient;
  bool decay;  ///< matrices (the embedding too) decay, the gains of norms do not
};

/// Zeros on a cache line's boundary.
template <class Real>
class aligned_buffer {
 public:
  explicit aligned_buffer(dim count)
      : size_{static_cast<std::size_t>(count)},
        data_{new (std::align_val_t{64}) Real[static_cast<std::size_t>(count)]()} {}
  Real* data() const { return data_.get(); }
  std::span<Real> elements() const { return {data_.get(), size_}; }

 private:
  struct release {
    void operator()(Real* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::size_t size_;
  std::unique_ptr<Real[], release> data_;
};

/// Threads that wait for work; rank 0 is the caller, so a team of one starts none.
class thread_team {
 public:
  explicit thread_team(int size) : size_{size}, barrier_{size} {
    try {
      for (int rank = 1; rank < size; ++rank) helpers_.emplace_back([this, rank] { serve(rank); });
    } catch (...) {
      // The helpers wait for those that are missing, and end without a task.
      static_cast<void>(barrier_.arrive(size - static_cast<dim>(helpers_.size())));
      for (std::thread& helper : helpers_) helper.join();
      throw;
    }
  }
  ~thread_team() {
    task_ = nullptr;
    barrier_.arrive_and_wait();
    for (std::thread& helper : helpers_) helper.join();
  }
  thread_team(thread_team const&) = delete;
  thread_team& operator=(thread_team const&) = delete;

  int size() const { return size_; }

  /// Calls f(rank) once on each thread and returns when all are done. f must not throw.
  template <class F>
  void run(F f) {
    argument_ = &f;
    task_ = [](void* argument, int rank) { (*static_cast<F*>(argument))(rank); };
    barrier_.arrive_and_wait();
    f(0);
    barrier_.arrive_and_wait();
  }

 private:
  void serve(int rank) {
    for (;;) {
      barrier_.arrive_and_wait();
      if (task_ == nullptr) return;
      task_(argument_, rank);
      barrier_.arrive_and_wait();
    }
  }

  int size_;
  void (*task_)(void*, int) = nullptr;
  void* argument_ = nullptr;
  std::barrier<> barrier_;
  std::vector<std::thread> helpers_;
};

/// Part `rank` of [0, count) in `parts`, as equal as possible, longer parts first.
struct share {
  dim begin;
  dim end;
  share(dim count, int rank, int parts)
      : begin{rank * (count / parts) + std::min<dim>(rank, count % parts)},
        end{begin + count / parts + (rank < count % parts ? 1 : 0)} {}
  bool empty() const { return begin == end; }
};

/// Two words in, one normal deviate out: a function of its arguments alone (splitmix64,
/// Box-Muller).
inline double normal_deviate(std::uint64_t seed, std::uint64_t counter) {
  auto const mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  auto const uniform = [&](std::uint64_t i) {  // in (0, 1)
    std::uint64_t const bits = mix(mix(seed + 0x9e3779b97f4a7c15u) + i * 0x9e3779b97f4a7c15u);
    return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
  };
  return std::sqrt(-2 * std::log(uniform(2 * counter))) *
         std::cos(2 * std::numbers::pi * uniform(2 * counter + 1));
}

/// What one thread needs for the forward and backward pass of its sequences. T = tokens, d = width.
template <class Real>
struct workspace {
  struct layer {
    Real* input;          // (T, d), the residual stream before the layer
    Real* norm1;          // (T, d)
    Real* norm1_rstd;     // (T)
    Real* qkv;            // (T, 3 d)
    Real* qk;             // (T, 2 d), after QK-norm and rotary
    Real* qk_rstd;        // (T, 2 heads)
    Real* probabilities;  // (sequences, heads, context, context)
    Real* attention;      // (T, d)
    Real* middle;         // (T, d), the residual stream between attention and MLP
    Real* norm2;          // (T, d)
    Real* norm2_rstd;     // (T)
    Real* fc;             // (T, 4 d)
    Real* gelu;           // (T, 4 d)
  };
  std::vector<layer> layers;
  Real* output;       // (T, d), the residual stream after the last layer
  Real* norm_f;       // (T, d)
  Real* norm_f_rstd;  // (T)
  Real* logits;       // (T, vocabulary), then probabilities, then their gradient
  Real* log_z;        // (T)

  Real* d_residual;  // (T, d)
  Real* d_branch;    // (T, d), gradient of a norm's or the attention's output
  Real* d_fc;        // (T, 4 d)
  Real* d_qkv;       // (T, 3 d)
  Real* d_qk;        // (T, 2 d)
  Real* d_scores;    // (attention_rows, context)

  // Of the last call:
  dim tokens = 0;
  double loss = 0;  // sum of cross-entropies

  workspace(model_config const& c, dim sequences) : layers(static_cast<std::size_t>(c.layers)) {
    lay_out(nullptr, c, sequences);
    memory_ = std::make_unique<aligned_buffer<Real>>(used_);
    lay_out(memory_->data(), c, sequences);
  }

 private:
  std::unique_ptr<aligned_buffer<Real>> memory_;
  dim used_ = 0;

  /// Cuts the pieces from `base`; with nullptr it only counts.
  void lay_out(Real* base, model_config const& c, dim sequences) {
    dim const T = sequences * c.context;
    dim const d = c.width;
    used_ = 0;
    auto const take = [&](dim count) {
      dim const at = used_;
      used_ += (count + 15) / 16 * 16;
      return base == nullptr ? nullptr : base + at;
    };
    for (layer& l : layers)
      l = {.input = take(T * d),
           .norm1 = take(T * d),
           .norm1_rstd = take(T),
           .qkv = take(T * 3 * d),
           .qk = take(T * 2 * d),
           .qk_rstd = take(T * 2 * c.heads),
           .probabilities = take(T * c.heads * c.context),
           .attention = take(T * d),
           .middle = take(T * d),
           .norm2 = take(T * d),
           .norm2_rstd = take(T),
           .fc = take(T * 4 * d),
           .gelu = take(T * 4 * d)};
    output = take(T * d);
    norm_f = take(T * d);
    norm_f_rstd = take(T);
    logits = take(T * c.vocabulary);
    log_z = take(T);
    d_residual = take(T * d);
    d_branch = take(T * d);
    d_fc = take(T * 4 * d);
    d_qkv = take(T * 3 * d);
    d_qk = take(T * 2 * d);
    d_scores = take(std::min<dim>(attention_rows, c.context) * c.context);
  }
};

/// The model of one worker. All values lie in one buffer and all gradients in another, in the order
/// of tensors(): wte, then per layer i h<i>.norm1, h<i>.attn.qkv, h<i>.attn.q_norm,
/// h<i>.attn.k_norm, h<i>.attn.proj, h<i>.norm2, h<i>.mlp.fc, h<i>.mlp.proj, then norm_f. Matrices
/// are (outputs, inputs).
///
/// A step runs on `threads` threads, the calling one among them: each takes whole sequences and its
/// own gradient buffer, and the buffers are added in the order of the threads. Same data, values
/// and number of threads: same bits. A step allocates nothing. One object is driven by one thread
/// at a time; several objects are independent.
///
/// Constructing one sets OpenBLAS to one thread, for the whole process.
template <class Real>
class gpt {
 public:
  using tensor = parameter_tensor<Real>;

  /// Initial values depend on `seed` alone (and are those of double, rounded): normal with
  /// deviation 0.02, that of the residual projections divided by sqrt(2 layers); gains are 1.
  /// Throws std::invalid_argument if `config` breaks a rule or a count is below 1.
  gpt(model_config config, int max_sequences, int threads, std::uint64_t seed)
      : config_{checked(config, max_sequences, threads)},
        max_sequences_{max_sequences},
        rotary_{static_cast<dim>(config.context) * (config.width / config.heads)},
        values_{parameter_count(config)},
        gradients_{parameter_count(config)},
        team_{threads} {
    openblas_set_num_threads(1);
    dim const half = config.width / config.heads / 2;
    rotary_table(rotary_.data(), rotary_.data() + config.context * half, config.context, half);
    make_tensors(seed);
    for (int rank = 0; rank < threads; ++rank) {
      share const sequences{max_sequences, rank, threads};
      workspaces_.emplace_back(config, sequences.end - sequences.begin);
      if (rank > 0) thread_gradients_.emplace_back(parameter_count(config));
    }
  }

  model_config const& config() const { return config_; }
  int max_sequences() const { return max_sequences_; }
  std::span<tensor const> tensors() const { return tensors_; }
  std::span<Real> values() const { return values_.elements(); }
  std::span<Real> gradients() const { return gradients_.elements(); }

  /// Mean cross-entropy over the tokens of inputs and targets, both (sequences, context) with
  /// 1 <= sequences <= max_sequences. Throws std::invalid_argument for other sizes or tokens.
  Real loss(std::span<std::uint8_t const> inputs, std::span<std::uint8_t const> targets) {
    dim const sequences = count_sequences(inputs, targets);
    team_.run([&](int rank) {
      workspace<Real>& w = workspace_of(rank);
      share const mine{sequences, rank, team_.size()};
      forward(w, inputs.data(), targets.data(), mine);
    });
    return mean_loss(sequences);
  }

  /// As loss(), and overwrites gradients() with the gradient of the mean over tokens of
  /// cross-entropy + z-loss. The value returned leaves out the z-loss.
  Real loss_and_gradients(std::span<std::uint8_t const> inputs,
                          std::span<std::uint8_t const> targets) {
    dim const sequences = count_sequences(inputs, targets);
    team_.run([&](int rank) {
      workspace<Real>& w = workspace_of(rank);
      Real* const gradient = gradient_of(rank);
      share const mine{sequences, rank, team_.size()};
      forward(w, inputs.data(), targets.data(), mine);
      if (mine.empty()) return;
      std::fill_n(gradient, values_.elements().size(), Real{0});
      backward(w, gradient, inputs.data(), targets.data(), mine,
               1 / static_cast<Real>(sequences * config_.context));
    });
    add_thread_gradients(static_cast<int>(std::min<dim>(team_.size(), sequences)));
    return mean_loss(sequences);
  }

  /// The z-loss of the last call, in the mean over tokens: what training adds to the value
  /// returned.
  Real last_z_loss() const {
    double squares = 0;
    dim tokens = 0;
    for (workspace<Real> const& w : workspaces_) {
      for (dim t = 0; t < w.tokens; ++t)
        squares += static_cast<double>(w.log_z[t]) * static_cast<double>(w.log_z[t]);
      tokens += w.tokens;
    }
    return tokens == 0 ? Real{0}
                       : static_cast<Real>(z_loss * squares / static_cast<double>(tokens));
  }

 private:
  /// Where the tensors of a layer begin in the buffers of values and gradients.
  struct layer_offsets {
    dim norm1, qkv, q_norm, k_norm, proj, norm2, fc, mlp_proj;
  };

  static model_config checked(model_config const& config, int max_sequences, int threads) {
    check(config);
    if (max_sequences < 1)
      throw std::invalid_argument("gpt: max_sequences is " + std::to_string(max_sequences) +
                                  ", but must be at least 1");
    if (threads < 1)
      throw std::invalid_argument("gpt: threads is " + std::to_string(threads) +
                                  ", but must be at least 1");
    return config;
  }

  void make_tensors(std::uint64_t seed) {
    dim const d = config_.width;
    dim const head_size = d / config_.heads;
    double const deviation = 0.02;
    double const residual = deviation / std::sqrt(2.0 * config_.layers);
    double const gain = 0;  // not drawn, but 1
    dim used = 0;
    auto const add = [&](std::string name, tensor_role role, int layer, dim count, double spread) {
      dim const at = std::exchange(used, used + count);
      auto const n = static_cast<std::size_t>(count);
      tensors_.push_back({std::move(name),
                          role,
                          layer,
                          {values_.data() + at, n},
                          {gradients_.data() + at, n},
                          spread != gain});
      for (dim i = at; i < used; ++i)
        values_.data()[i] = static_cast<Real>(
            spread == gain ? 1 : spread * normal_deviate(seed, static_cast<std::uint64_t>(i)));
      return at;
    };
    wte_ = add("wte", tensor_role::embedding, -1, config_.vocabulary * d, deviation);
    for (int i = 0; i < config_.layers; ++i) {
      auto const layer = [&](char const* name, dim count, double spread) {
        std::string full_name = "h";  // g++ 12 warns of operator+ here
        full_name.append(std::to_string(i)).append(".").append(name);
        return add(std::move(full_name), tensor_role::layer, i, count, spread);
      };
      layers_.push_back({.norm1 = layer("norm1", d, gain),
                         .qkv = layer("attn.qkv", 3 * d * d, deviation),
                         .q_norm = layer("attn.q_norm", head_size, gain),
                         .k_norm = layer("attn.k_norm", head_size, gain),
                         .proj = layer("attn.proj", d * d, residual),
                         .norm2 = layer("norm2", d, gain),
                         .fc = layer("mlp.fc", 4 * d * d, deviation),
                         .mlp_proj = layer("mlp.proj", 4 * d * d, residual)});
    }
    norm_f_ = add("norm_f", tensor_role::final_norm, -1, d, gain);
  }

  qk_weights<Real> qk_weights_of(layer_offsets const& at) const {
    dim const table = static_cast<dim>(config_.context) * (config_.width / config_.heads / 2);
    return {values_.data() + at.q_norm, values_.data() + at.k_norm, rotary_.data(),
            rotary_.data() + table};
  }
  attention_shape shape_of(share mine) const {
    return {mine.end - mine.begin, config_.context, config_.heads, config_.width / config_.heads};
  }

  /// Fills the activations of `w` for the sequences of `mine`, and w.loss.
  void forward(workspace<Real>& w, std::uint8_t const* inputs, std::uint8_t const* targets,
               share mine) const {
    attention_shape const shape = shape_of(mine);
    dim const T = shape.tokens();
    dim const d = config_.width;
    dim const first_token = mine.begin * config_.context;
    Real const* const p = values_.data();
    w.tokens = T;
    w.loss = 0;
    if (mine.empty()) return;

    embedding_forward(w.layers[0].input, inputs + first_token, p + wte_, T, d);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layer_offsets const& at = layers_[i];
      auto const& a = w.layers[i];
      Real* const out = i + 1 < layers_.size() ? w.layers[i + 1].input : w.output;

      rms_norm_forward(a.norm1, a.norm1_rstd, a.input, p + at.norm1, T, d);
      linear_forward(a.qkv, a.norm1, p + at.qkv, T, d, 3 * d);
      qk_norm_rotary_forward(a.qk, a.qk_rstd, a.qkv, qk_weights_of(at), shape);
      attention_forward(a.attention, a.probabilities, a.qk, a.qkv, shape);
      std::copy_n(a.input, T * d, a.middle);
      linear_forward(a.middle, a.attention, p + at.proj, T, d, d, Real{1});

      rms_norm_forward(a.norm2, a.norm2_rstd, a.middle, p + at.norm2, T, d);
      linear_forward(a.fc, a.norm2, p + at.fc, T, d, 4 * d);
      gelu_forward(a.gelu, a.fc, T * 4 * d);
      std::copy_n(a.middle, T * d, out);
      linear_forward(out, a.gelu, p + at.mlp_proj, T, 4 * d, d, Real{1});
    }
    rms_norm_forward(w.norm_f, w.norm_f_rstd, w.output, p + norm_f_, T, d);
    linear_forward(w.logits, w.norm_f, p + wte_, T, d, config_.vocabulary);
    w.loss = cross_entropy_forward(w.logits, w.log_z, targets + first_token, T, config_.vocabulary);
  }

  /// Adds to `gradient` (one element per parameter) that of weight * sum over the tokens of `mine`
  /// of the training loss, after forward() of the same sequences.
  void backward(workspace<Real>& w, Real* gradient, std::uint8_t const* inputs,
                std::uint8_t const* targets, share mine, Real weight) const {
    attention_shape const shape = shape_of(mine);
    dim const T = shape.tokens();
    dim const d = config_.width;
    dim const first_token = mine.begin * config_.context;
    Real const* const p = values_.data();
    Real* const g = gradient;

    cross_entropy_backward(w.logits, w.log_z, targets + first_token, T, config_.vocabulary, weight);
    linear_backward(w.d_branch, g + wte_, w.logits, w.norm_f, p + wte_, T, d, config_.vocabulary);
    std::fill_n(w.d_residual, T * d, Real{0});
    rms_norm_backward(w.d_residual, g + norm_f_, w.d_branch, w.output, p + norm_f_, w.norm_f_rstd,
                      T, d);
    for (std::size_t i = layers_.size(); i-- > 0;) {
      layer_offsets const& at = layers_[i];
      auto const& a = w.layers[i];

      linear_backward(w.d_fc, g + at.mlp_proj, w.d_residual, a.gelu, p + at.mlp_proj, T, 4 * d, d);
      gelu_backward(w.d_fc, a.fc, T * 4 * d);
      linear_backward(w.d_branch, g + at.fc, w.d_fc, a.norm2, p + at.fc, T, d, 4 * d);
      rms_norm_backward(w.d_residual, g + at.norm2, w.d_branch, a.middle, p + at.norm2,
                        a.norm2_rstd, T, d);

      linear_backward(w.d_branch, g + at.proj, w.d_residual, a.attention, p + at.proj, T, d, d);
      attention_backward(w.d_qk, w.d_qkv, w.d_scores, w.d_branch, a.probabilities, a.qk, a.qkv,
                         shape);
      qk_norm_rotary_backward(w.d_qkv, g + at.q_norm, g + at.k_norm, w.d_qk, a.qkv, a.qk_rstd,
                              qk_weights_of(at), shape);
      linear_backward(w.d_branch, g + at.qkv, w.d_qkv, a.norm1, p + at.qkv, T, d, 3 * d);
      rms_norm_backward(w.d_residual, g + at.norm1, w.d_branch, a.input, p + at.norm1, a.norm1_rstd,
                        T, d);
    }
    embedding_backward(g + wte_, w.d_residual, inputs + first_token, T, d);
  }

  /// Adds the buffers of threads 1 to active - 1 to that of thread 0, each thread over its
  /// elements.
  void add_thread_gradients(int active) {
    if (active == 1) return;
    team_.run([&](int rank) {
      share const mine{parameter_count(config_), rank, team_.size()};
      for (int other = 1; other < active; ++other) {
        Real* const sum = gradients_.data();
        Real const* const part = gradient_of(other);
#pragma omp simd
        for (dim i = mine.begin; i < mine.end; ++i) sum[i] += part[i];
      }
    });
  }

  dim count_sequences(std::span<std::uint8_t const> inputs,
                      std::span<std::uint8_t const> targets) const {
    auto const context = static_cast<std::size_t>(config_.context);
    auto const most = static_cast<std::size_t>(max_sequences_);
    if (inputs.size() != targets.size() || inputs.empty() || inputs.size() % context != 0 ||
        inputs.size() / context > most)
      throw std::invalid_argument("gpt: " + std::to_string(inputs.size()) + " inputs and " +
                                  std::to_string(targets.size()) +
                                  " targets, but both must be 1 to " + std::to_string(most) +
                                  " sequences of " + std::to_string(context) + " tokens");
    auto const unknown = [&](std::uint8_t token) { return token >= config_.vocabulary; };
    if (config_.vocabulary < 256 &&
        (std::ranges::any_of(inputs, unknown) || std::ranges::any_of(targets, unknown)))
      throw std::invalid_argument("gpt: a token is not below the vocabulary, " +
                                  std::to_string(config_.vocabulary));
    return static_cast<dim>(inputs.size() / context);
  }

  Real mean_loss(dim sequences) const {
    double sum = 0;
    for (workspace<Real> const& w : workspaces_) sum += w.loss;
    return static_cast<Real>(sum / static_cast<double>(sequences * config_.context));
  }

  workspace<Real>& workspace_of(int rank) { return workspaces_[static_cast<std::size_t>(rank)]; }
  Real* gradient_of(int rank) const {
    return rank == 0 ? gradients_.data()
                     : thread_gradients_[static_cast<std::size_t>(rank - 1)].data();
  }

  model_config config_;
  int max_sequences_;
  aligned_buffer<Real> rotary_;  // cosine (context, head_size / 2), then sine
  aligned_buffer<Real> values_;
  aligned_buffer<Real> gradients_;
  std::vector<aligned_buffer<Real>> thread_gradients_;
  std::vector<workspace<Real>> workspaces_;
  std::vector<tensor> tensors_;
  dim wte_ = 0;
  std::vector<layer_offsets> layers_;
  dim norm_f_ = 0;
  thread_team team_;
};

}  // namespace train_gpt
