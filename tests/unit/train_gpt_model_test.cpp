#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "examples/train_gpt/adamw.hpp"
#include "examples/train_gpt/model.hpp"

namespace {

using namespace train_gpt;
using vector = std::vector<double>;
using bytes = std::vector<std::uint8_t>;

std::size_t to_size(dim count) { return static_cast<std::size_t>(count); }

/// Equal within a relative error (doctest's own default is absolute for small values).
doctest::Approx approx(double value, double relative = 1e-6) {
  return doctest::Approx(value).scale(0).epsilon(relative);
}

/// Normal deviates of their own for each `seed`.
template <class Real = double>
std::vector<Real> noise(std::uint64_t seed, dim count, double mean = 0, double spread = 1) {
  std::vector<Real> values(to_size(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<Real>(mean + spread * normal_deviate(seed, i));
  return values;
}

/// A text with some structure and no symmetry.
bytes text(std::size_t count, std::size_t start = 0, unsigned below = 256) {
  bytes result(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t const j = i + start;
    result[i] = static_cast<std::uint8_t>((j * j + 3 * j + j / 7) % 251 % below);
  }
  return result;
}

double dot(vector const& a, vector const& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// d loss / d x by central differences, of fourth order: the error is step^4, so that 1e-7 is
/// reached before rounding takes over.
double numeric_derivative(double& x, std::function<double()> const& loss, double step = 1e-3) {
  double const at = x;
  auto const shifted = [&](double by) {
    x = at + by;
    double const value = loss();
    x = at;
    return value;
  };
  return (8 * (shifted(step) - shifted(-step)) - (shifted(2 * step) - shifted(-2 * step))) /
         (12 * step);
}

/// `gradient` against differences of `loss` in every element of `x`, relative to the largest
/// element.
void check_gradient(vector& x, vector const& gradient, std::function<double()> const& loss) {
  REQUIRE(x.size() == gradient.size());
  double largest_element = 0;
  for (double const g : gradient) largest_element = std::max(largest_element, std::abs(g));
  REQUIRE(largest_element > 0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(gradient[i] - numeric_derivative(x[i], loss)) <= 1e-8 * largest_element);
  }
}

constexpr attention_shape small_shape{.sequences = 2, .context = 5, .heads = 2, .head_size = 6};
/// More than one block of rows, the last one short.
constexpr attention_shape two_blocks{
    .sequences = 1, .context = attention_rows + 3, .heads = 1, .head_size = 2};

template <class Real>
void check_products(double tolerance) {
  openblas_set_num_threads(1);
  dim const sizes[][3] = {{1, 1, 1},    {3, 5, 2},      {32, 64, 32},   {64, 32, 64},
                          {64, 64, 32}, {35, 2, 35},    {64, 384, 128}, {384, 128, 64},
                          {17, 31, 13}, {256, 128, 70}, {48, 16, 200}};
  for (auto const& size : sizes)
    for (bool const a_transposed : {false, true})
      for (bool const b_transposed : {false, true})
        for (Real const keep : {Real{0}, Real{1}}) {
          dim const rows = size[0];
          dim const columns = size[1];
          dim const inner = size[2];
          dim const margin = 3;  // strides beyond the width
          dim const a_stride = (a_transposed ? rows : inner) + margin;
          dim const b_stride = (b_transposed ? inner : columns) + margin;
          dim const out_stride = columns + margin;
          auto const a = noise<Real>(1, (a_transposed ? inner : rows) * a_stride);
          auto const b = noise<Real>(2, (b_transposed ? columns : inner) * b_stride);
          auto const before = noise<Real>(3, rows * out_stride);
          auto out = before;
          if (keep == 0)  // must not be read
            for (dim r = 0; r < rows; ++r)
              std::fill_n(out.data() + r * out_stride, columns,
                          std::numeric_limits<Real>::quiet_NaN());
          matmul(rows, columns, inner, Real{0.5}, {a.data(), a_stride, a_transposed},
                 {b.data(), b_stride, b_transposed}, keep, out.data(), out_stride);

          double worst = 0;
          for (dim r = 0; r < rows; ++r)
            for (dim c = 0; c < out_stride; ++c) {
              auto const at = to_size(r * out_stride + c);
              double wanted = static_cast<double>(before[at]);
              if (c < columns) {
                wanted *= static_cast<double>(keep);
                for (dim i = 0; i < inner; ++i)
                  wanted += 0.5 *
                            static_cast<double>(
                                a[to_size(a_transposed ? i * a_stride + r : r * a_stride + i)]) *
                            static_cast<double>(
                                b[to_size(b_transposed ? c * b_stride + i : i * b_stride + c)]);
              }
              double const error = std::abs(static_cast<double>(out[at]) - wanted);
              worst = error <= worst ? worst : error;  // NaN wins
            }
          CAPTURE(rows);
          CAPTURE(columns);
          CAPTURE(inner);
          CAPTURE(a_transposed);
          CAPTURE(b_transposed);
          CHECK(worst <= tolerance * std::sqrt(static_cast<double>(inner)));
        }
}

}  // namespace

TEST_CASE("train_gpt matmul equals three loops for all transposes, strides and both types") {
  check_products<float>(2e-6);
  check_products<double>(4e-15);
}

TEST_CASE("train_gpt exponential is exp within 2e-7") {
  for (float x = -87; x < 88; x += 0.0037f) {
    double const exact = std::exp(static_cast<double>(x));
    if (std::abs(static_cast<double>(exponential(x)) - exact) > 2e-7 * exact) FAIL_CHECK(x);
  }
  CHECK(exponential(0.0f) == 1.0f);
  CHECK(exponential(-88.0f) == 0.0f);
  CHECK(exponential(-std::numeric_limits<float>::infinity()) == 0.0f);
  CHECK(exponential(1000.0f) == exponential(88.0f));
  CHECK(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("train_gpt embedding picks rows, and its gradient adds up where a token repeats") {
  bytes const inputs{2, 0, 2};
  vector wte = noise(1, 3 * 4);
  vector const d_out = noise(2, 3 * 4);
  vector out(3 * 4);
  auto const loss = [&] {
    embedding_forward(out.data(), inputs.data(), wte.data(), 3, 4);
    return dot(out, d_out);
  };
  loss();
  CHECK(out[0] == wte[8]);
  CHECK(out[4] == wte[0]);
  vector d_wte(3 * 4);
  embedding_backward(d_wte.data(), d_out.data(), inputs.data(), 3, 4);
  check_gradient(wte, d_wte, loss);
}

TEST_CASE("train_gpt linear layer, its input and weight gradients") {
  vector in = noise(1, 3 * 4);
  vector weight = noise(2, 5 * 4);
  vector const d_out = noise(3, 3 * 5);
  vector out(3 * 5);
  auto const loss = [&] {
    linear_forward(out.data(), in.data(), weight.data(), 3, 4, 5);
    return dot(out, d_out);
  };
  vector d_in(3 * 4);
  vector d_weight(5 * 4);
  linear_backward(d_in.data(), d_weight.data(), d_out.data(), in.data(), weight.data(), 3, 4, 5);
  check_gradient(in, d_in, loss);
  check_gradient(weight, d_weight, loss);
  linear_backward(d_in.data(), d_weight.data(), d_out.data(), in.data(), weight.data(), 3, 4, 5);
  for (double& d : d_weight) d /= 2;  // adds to weights
  check_gradient(weight, d_weight, loss);
}

TEST_CASE("train_gpt RMS norm has unit mean square, and gradients of input and gain") {
  dim const tokens = 3;
  dim const width = 7;
  vector in = noise(1, tokens * width, 0.3, 2);
  vector gain(to_size(width), 1.0);
  vector out(to_size(tokens * width));
  vector rstd(to_size(tokens));
  rms_norm_forward(out.data(), rstd.data(), in.data(), gain.data(), tokens, width);
  CHECK(dot(out, out) == approx(tokens * width, 1e-5));

  gain = noise(2, width, 1, 0.5);
  vector const d_out = noise(3, tokens * width);
  auto const loss = [&] {
    rms_norm_forward(out.data(), rstd.data(), in.data(), gain.data(), tokens, width);
    return dot(out, d_out);
  };
  loss();
  vector d_in(to_size(tokens * width));
  vector d_gain(to_size(width));
  rms_norm_backward(d_in.data(), d_gain.data(), d_out.data(), in.data(), gain.data(), rstd.data(),
                    tokens, width);
  check_gradient(in, d_in, loss);
  check_gradient(gain, d_gain, loss);
  rms_norm_backward(d_in.data(), d_gain.data(), d_out.data(), in.data(), gain.data(), rstd.data(),
                    tokens, width);
  for (double& d : d_in) d /= 2;  // adds to both
  for (double& d : d_gain) d /= 2;
  check_gradient(in, d_in, loss);
  check_gradient(gain, d_gain, loss);
}

TEST_CASE("train_gpt rotary keeps lengths, depends on distances alone, and turns gradients back") {
  dim const context = 9;
  dim const half = 3;
  vector cosine(to_size(context * half));
  vector sine(to_size(context * half));
  rotary_table(cosine.data(), sine.data(), context, half);
  auto const rotated = [&](vector head, dim position) {
    rotate_row(head.data(), cosine.data() + position * half, sine.data() + position * half, half);
    return head;
  };
  vector q = noise(1, 2 * half);
  vector const k = noise(2, 2 * half);
  CHECK(rotated(q, 0) == q);
  CHECK(dot(rotated(q, 5), rotated(q, 5)) == approx(dot(q, q), 1e-12));
  CHECK(dot(rotated(q, 7), rotated(k, 4)) == approx(dot(rotated(q, 3), rotated(k, 0)), 1e-12));
  CHECK(dot(rotated(q, 7), rotated(k, 4)) != approx(dot(q, k), 1e-3));
  // The first pair turns by one radian per position.
  CHECK(rotated(q, 1)[0] == approx(q[0] * std::cos(1.0) - q[3] * std::sin(1.0)));

  vector d = k;
  rotate_row_backward(d.data(), cosine.data() + 5 * half, sine.data() + 5 * half, half);
  check_gradient(q, d, [&] { return dot(rotated(q, 5), k); });
}

TEST_CASE("train_gpt QK-norm with rotary, gradients of q, k and both gains") {
  attention_shape const s = small_shape;
  dim const half = s.head_size / 2;
  vector cosine(to_size(s.context * half));
  vector sine(to_size(s.context * half));
  rotary_table(cosine.data(), sine.data(), s.context, half);
  vector qkv = noise(1, s.tokens() * 3 * s.width());
  vector q_gain = noise(2, s.head_size, 1, 0.5);
  vector k_gain = noise(3, s.head_size, 1, 0.5);
  qk_weights<double> const weights{q_gain.data(), k_gain.data(), cosine.data(), sine.data()};
  vector const d_out = noise(4, s.tokens() * 2 * s.width());
  vector qk(d_out.size());
  vector rstd(to_size(s.tokens() * 2 * s.heads));
  auto const loss = [&] {
    qk_norm_rotary_forward(qk.data(), rstd.data(), qkv.data(), weights, s);
    return dot(qk, d_out);
  };
  loss();
  for (dim const head : {1, 3}) {  // q and k of head 1, of token 3 of sequence 1
    dim const token = s.context + 3;
    vector wanted(to_size(s.head_size));
    rms_norm_row(wanted.data(), qkv.data() + token * 3 * s.width() + head * s.head_size,
                 head == 1 ? q_gain.data() : k_gain.data(), s.head_size);
    rotate_row(wanted.data(), cosine.data() + 3 * half, sine.data() + 3 * half, half);
    for (dim i = 0; i < s.head_size; ++i)
      CHECK(qk[to_size(token * 2 * s.width() + head * s.head_size + i)] == wanted[to_size(i)]);
  }
  vector d_qkv(qkv.size());
  vector d_q_gain(q_gain.size());
  vector d_k_gain(k_gain.size());
  vector d_qk = d_out;
  qk_norm_rotary_backward(d_qkv.data(), d_q_gain.data(), d_k_gain.data(), d_qk.data(), qkv.data(),
                          rstd.data(), weights, s);
  check_gradient(qkv, d_qkv, loss);  // that of v stays 0 here
  check_gradient(q_gain, d_q_gain, loss);
  check_gradient(k_gain, d_k_gain, loss);
}

TEST_CASE("train_gpt attention equals its definition, hides the future, and has all gradients") {
  for (attention_shape const& s : {small_shape, two_blocks}) {
    CAPTURE(s.context);
    dim const d = s.width();
    vector qk = noise(1, s.tokens() * 2 * d);
    vector qkv = noise(2, s.tokens() * 3 * d);
    vector out(to_size(s.tokens() * d));
    vector probabilities(to_size(s.sequences * s.heads * s.context * s.context));
    attention_forward(out.data(), probabilities.data(), qk.data(), qkv.data(), s);
    for (dim b = 0; b < s.sequences; ++b)
      for (dim h = 0; h < s.heads; ++h)
        for (dim t = 0; t < s.context; ++t) {
          dim const token = b * s.context;
          double z = 0;
          vector mean(to_size(s.head_size));
          for (dim past = 0; past <= t; ++past) {
            double score = 0;
            for (dim i = 0; i < s.head_size; ++i)
              score += qk[to_size((token + t) * 2 * d + h * s.head_size + i)] *
                       qk[to_size((token + past) * 2 * d + d + h * s.head_size + i)];
            double const e = std::exp(score / std::sqrt(static_cast<double>(s.head_size)));
            z += e;
            for (dim i = 0; i < s.head_size; ++i)
              mean[to_size(i)] +=
                  e * qkv[to_size((token + past) * 3 * d + 2 * d + h * s.head_size + i)];
          }
          for (dim i = 0; i < s.head_size; ++i)
            CHECK(out[to_size((token + t) * d + h * s.head_size + i)] ==
                  approx(mean[to_size(i)] / z, 1e-12));
        }

    vector const d_out = noise(3, s.tokens() * d);
    auto const loss = [&] {
      attention_forward(out.data(), probabilities.data(), qk.data(), qkv.data(), s);
      return dot(out, d_out);
    };
    vector d_qk(qk.size(), 7.0);  // overwritten
    vector d_qkv(qkv.size());
    vector d_scores(to_size(attention_rows * s.context));
    attention_backward(d_qk.data(), d_qkv.data(), d_scores.data(), d_out.data(),
                       probabilities.data(), qk.data(), qkv.data(), s);
    check_gradient(qk, d_qk, loss);
    check_gradient(qkv, d_qkv, loss);
  }
}

TEST_CASE("train_gpt attention with scores beyond the range of exp stays finite") {
  attention_shape const s{.sequences = 1, .context = 2, .heads = 1, .head_size = 2};
  std::vector<float> const qkv = noise<float>(1, s.tokens() * 3 * s.width());
  for (float const sign : {1.0f, -1.0f}) {
    // q, k of both tokens: the second sees scores of sign * 300 and sign * 301.
    float const root = std::sqrt(2.0f);
    std::vector<float> const qk{0, 0, 300 * root, 0, sign, 0, 301 * root, 0};
    std::vector<float> out(4);
    std::vector<float> probabilities(4);
    attention_forward(out.data(), probabilities.data(), qk.data(), qkv.data(), s);
    CHECK(probabilities[3] == approx(1 / (1 + std::exp(-static_cast<double>(sign))), 1e-4));
    CHECK(probabilities[2] + probabilities[3] == approx(1));
    CHECK(std::ranges::all_of(out, [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE("train_gpt GELU equals its tanh form, and its gradient") {
  vector in = noise(1, 40, 0, 3);
  vector out(in.size());
  gelu_forward(out.data(), in.data(), 40);
  for (std::size_t i = 0; i < in.size(); ++i) {
    double const x = in[i];
    double const u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    CHECK(std::abs(out[i] - 0.5 * x * (1 + std::tanh(u))) < 1e-14);
  }
  vector const d_out = noise(2, 40);
  vector d = d_out;
  gelu_backward(d.data(), in.data(), 40);
  check_gradient(in, d, [&] {
    gelu_forward(out.data(), in.data(), 40);
    return dot(out, d_out);
  });
}

TEST_CASE("train_gpt MLP, gradients through both matrices and the GELU") {
  dim const tokens = 3;
  dim const d = 4;
  vector in = noise(1, tokens * d);
  vector fc = noise(2, 4 * d * d);
  vector proj = noise(3, 4 * d * d);
  vector const d_out = noise(4, tokens * d);
  vector hidden(to_size(tokens * 4 * d));
  vector gelu(hidden.size());
  vector out(in.size());
  auto const loss = [&] {
    linear_forward(hidden.data(), in.data(), fc.data(), tokens, d, 4 * d);
    gelu_forward(gelu.data(), hidden.data(), tokens * 4 * d);
    linear_forward(out.data(), gelu.data(), proj.data(), tokens, 4 * d, d);
    return dot(out, d_out);
  };
  loss();
  vector d_hidden(hidden.size());
  vector d_in(in.size());
  vector d_fc(fc.size());
  vector d_proj(proj.size());
  linear_backward(d_hidden.data(), d_proj.data(), d_out.data(), gelu.data(), proj.data(), tokens,
                  4 * d, d);
  gelu_backward(d_hidden.data(), hidden.data(), tokens * 4 * d);
  linear_backward(d_in.data(), d_fc.data(), d_hidden.data(), in.data(), fc.data(), tokens, d,
                  4 * d);
  check_gradient(in, d_in, loss);
  check_gradient(fc, d_fc, loss);
  check_gradient(proj, d_proj, loss);
}

TEST_CASE("train_gpt cross-entropy, and its gradient with the z-loss") {
  dim const tokens = 3;
  dim const vocabulary = 37;
  bytes const targets{4, 0, 36};
  vector logits = noise(1, tokens * vocabulary, 5, 3);  // far from 0, so that the z-loss weighs in
  vector log_z(to_size(tokens));
  auto const both = [&] {
    vector p = logits;
    double const entropy =
        cross_entropy_forward(p.data(), log_z.data(), targets.data(), tokens, vocabulary);
    return 0.25 * (entropy + z_loss * dot(log_z, log_z));
  };
  double wanted = 0;
  for (dim t = 0; t < tokens; ++t) {
    double z = 0;
    for (dim v = 0; v < vocabulary; ++v) z += std::exp(logits[to_size(t * vocabulary + v)]);
    wanted += std::log(z) - logits[to_size(t * vocabulary + targets[to_size(t)])];
  }
  vector p = logits;
  CHECK(cross_entropy_forward(p.data(), log_z.data(), targets.data(), tokens, vocabulary) ==
        approx(wanted, 1e-12));
  cross_entropy_backward(p.data(), log_z.data(), targets.data(), tokens, vocabulary, 0.25);
  check_gradient(logits, p, both);
}

// The whole model.

namespace {

constexpr model_config tiny{.layers = 2, .heads = 2, .width = 8, .context = 6};

/// Values far from the initial ones, so that every tensor has a gradient well above rounding.
template <class Real>
void shake(gpt<Real>& model) {
  for (auto const& tensor : model.tensors()) {
    auto const at = static_cast<std::uint64_t>(tensor.values.data() - model.values().data());
    for (std::size_t i = 0; i < tensor.values.size(); ++i)
      tensor.values[i] =
          static_cast<Real>((tensor.decay ? 0 : 1) + 0.3 * normal_deviate(77, at + i));
  }
}

template <class Real>
std::vector<Real> copy(std::span<Real> values) {
  return {values.begin(), values.end()};
}

/// Largest difference relative to the largest element of `b`.
template <class A, class B>
double difference(std::span<A> a, std::span<B> b) {
  double worst = 0;
  double scale = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    double const distance = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = distance <= worst ? worst : distance;  // NaN wins
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return worst / scale;
}

/// The message of the std::invalid_argument that `action` throws.
std::string refusal(std::function<void()> const& action) {
  try {
    action();
  } catch (std::invalid_argument const& error) {
    return error.what();
  }
  return "nothing thrown";
}

bool contains(std::string const& message, std::string const& part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("train_gpt model has all gradients of cross-entropy and z-loss") {
  for (int const threads : {1, 2}) {
    dim const sequences = 3;
    gpt<double> model{tiny, 4, threads, 1};
    shake(model);
    bytes const inputs = text(to_size(sequences * tiny.context), 0, 9);  // tokens repeat
    bytes const targets = text(to_size(sequences * tiny.context), 1, 9);
    std::ranges::fill(model.gradients(), 1e9);  // overwritten
    double const reported = model.loss_and_gradients(inputs, targets);
    CHECK(model.loss(inputs, targets) == reported);
    auto const training_loss = [&] { return model.loss(inputs, targets) + model.last_z_loss(); };
    vector const gradients = copy(model.gradients());

    for (auto const& tensor : model.tensors()) {
      auto const at = to_size(tensor.gradient.data() - model.gradients().data());
      std::span<double const> const gradient{gradients.data() + at, tensor.values.size()};
      auto const by_size = [](double a, double b) { return std::abs(a) < std::abs(b); };
      auto const top = std::ranges::max_element(gradient, by_size);
      std::vector<std::size_t> elements{to_size(top - gradient.begin())};
      for (std::size_t i = 1; i < 8; ++i) elements.push_back(i * (gradient.size() - 1) / 7);
      for (std::size_t const i : elements) {
        CAPTURE(tensor.name);
        CAPTURE(i);
        double const wanted = numeric_derivative(tensor.values[i], training_loss, 3e-4);
        double const scale = std::max(std::abs(wanted), 1e-3 * std::abs(*top));
        CHECK(std::abs(gradient[i] - wanted) < 1e-6 * scale);
      }
    }
  }
}

TEST_CASE("train_gpt model lists its tensors in order, without a gap") {
  model_config const config{.layers = 4, .heads = 4, .width = 128, .context = 64};
  gpt<float> model{config, 1, 1, 1};
  std::vector<std::string> names;
  float const* next = model.values().data();
  float const* next_gradient = model.gradients().data();
  for (auto const& tensor : model.tensors()) {
    CAPTURE(tensor.name);
    names.push_back(tensor.name);
    CHECK(tensor.values.data() == next);
    CHECK(tensor.gradient.data() == next_gradient);
    CHECK(tensor.values.size() == tensor.gradient.size());
    next += tensor.values.size();
    next_gradient += tensor.gradient.size();
    bool const gain = contains(tensor.name, "norm");
    CHECK(tensor.decay == !gain);
    if (gain) CHECK(std::ranges::all_of(tensor.values, [](float x) { return x == 1.0f; }));
    CHECK(tensor.layer == (tensor.name[0] == 'h' ? tensor.name[1] - '0' : -1));
    CHECK((tensor.role == tensor_role::layer) == (tensor.name[0] == 'h'));
  }
  CHECK(next == model.values().data() + model.values().size());
  CHECK(model.values().size() == 820'608);
  CHECK(model.gradients().size() == 820'608);
  REQUIRE(names.size() == 34);
  CHECK(std::vector(names.begin(), names.begin() + 10) ==
        std::vector<std::string>{"wte", "h0.norm1", "h0.attn.qkv", "h0.attn.q_norm",
                                 "h0.attn.k_norm", "h0.attn.proj", "h0.norm2", "h0.mlp.fc",
                                 "h0.mlp.proj", "h1.norm1"});
  CHECK(names.back() == "norm_f");
  CHECK(model.tensors().front().role == tensor_role::embedding);
  CHECK(model.tensors().back().role == tensor_role::final_norm);
}

TEST_CASE("train_gpt model draws its initial values from the seed alone") {
  model_config const config{.layers = 2, .heads = 2, .width = 64, .context = 8};
  gpt<float> one{config, 1, 1, 7};
  gpt<float> same{config, 5, 3, 7};
  gpt<float> other{config, 1, 1, 8};
  gpt<double> wide{config, 1, 1, 7};
  CHECK(std::ranges::equal(one.values(), same.values()));
  CHECK(!std::ranges::equal(one.values(), other.values()));
  CHECK(std::ranges::equal(one.values(), wide.values(), {}, {},
                           [](double x) { return static_cast<float>(x); }));
  auto const deviation = [&](std::size_t tensor) {
    double squares = 0;
    for (float const x : one.tensors()[tensor].values)
      squares += static_cast<double>(x) * static_cast<double>(x);
    return std::sqrt(squares / static_cast<double>(one.tensors()[tensor].values.size()));
  };
  CHECK(deviation(0) == approx(0.02, 0.03));  // wte
  CHECK(deviation(2) == approx(0.02, 0.03));  // h0.attn.qkv
  CHECK(deviation(5) == approx(0.01, 0.03));  // h0.attn.proj, / sqrt(2 * 2)
  CHECK(deviation(8) == approx(0.01, 0.03));  // h0.mlp.proj
}

TEST_CASE("train_gpt model in float follows the one in double") {
  model_config const config{.layers = 3, .heads = 2, .width = 32, .context = 40};
  gpt<float> narrow{config, 3, 1, 1};
  gpt<double> wide{config, 3, 1, 1};
  bytes const inputs = text(120);
  bytes const targets = text(120, 1);
  for (bool const shaken : {false, true}) {
    if (shaken) {
      shake(wide);
      std::ranges::copy(wide.values(), narrow.values().begin());
    }
    double const loss = wide.loss_and_gradients(inputs, targets);
    CHECK(static_cast<double>(narrow.loss_and_gradients(inputs, targets)) == approx(loss, 1e-5));
    for (std::size_t i = 0; i < wide.tensors().size(); ++i) {
      CAPTURE(wide.tensors()[i].name);
      CHECK(difference(narrow.tensors()[i].gradient, wide.tensors()[i].gradient) < 5e-5);
    }
  }
}

TEST_CASE("train_gpt model gives the same on 1, 2 and 3 threads, and the same bits twice") {
  model_config const config{.layers = 2, .heads = 2, .width = 32, .context = 16};
  gpt<float> one{config, 5, 1, 1};
  for (int const threads : {1, 2, 3}) {
    gpt<float> model{config, 5, threads, 1};
    for (std::size_t const sequences :
         {5u, 2u, 1u, 4u}) {  // fewer than threads, and then more again
      CAPTURE(threads);
      CAPTURE(sequences);
      bytes const inputs = text(sequences * 16, sequences);
      bytes const targets = text(sequences * 16, sequences + 1);
      float const wanted = one.loss_and_gradients(inputs, targets);
      float const loss = model.loss_and_gradients(inputs, targets);
      CHECK(loss == approx(wanted, 1e-6));
      CHECK(difference(model.gradients(), one.gradients()) < 1e-5);

      auto const first = copy(model.gradients());
      model.loss_and_gradients(text(80), text(80, 1));
      CHECK(model.loss_and_gradients(inputs, targets) == loss);
      CHECK(std::ranges::equal(model.gradients(), first));
      CHECK(model.loss(inputs, targets) == loss);
    }
  }
}

TEST_CASE("train_gpt models in threads of their own do not disturb each other") {
  model_config const config{.layers = 2, .heads = 2, .width = 32, .context = 16};
  bytes const inputs = text(64);
  bytes const targets = text(64, 1);
  gpt<float> alone{config, 4, 2, 1};
  float const loss = alone.loss_and_gradients(inputs, targets);
  std::vector<int> equal(4);
  std::vector<std::thread> workers;
  for (int& result : equal)
    workers.emplace_back([&] {
      gpt<float> model{config, 4, 2, 1};
      result = 1;
      for (int i = 0; i < 20; ++i)
        if (model.loss_and_gradients(inputs, targets) != loss ||
            !std::ranges::equal(model.gradients(), alone.gradients()))
          result = 0;
    });
  for (std::thread& worker : workers) worker.join();
  CHECK(equal == std::vector{1, 1, 1, 1});
}

TEST_CASE("train_gpt untrained model knows nothing, and cannot see the future") {
  model_config const config{.layers = 4, .heads = 4, .width = 128, .context = 64};
  gpt<float> model{config, 4, 2, 1};
  bytes const inputs = text(256);
  bytes targets = text(256, 1);
  CHECK(static_cast<double>(model.loss(inputs, targets)) == approx(std::log(256.0), 0.02));

  gpt<double> small{tiny, 1, 1, 1};
  shake(small);
  bytes sequence = text(6);
  bytes const wanted = text(6, 1);
  auto const total_loss = [&](std::uint8_t last_target) {
    bytes changed = wanted;
    changed.back() = last_target;
    return 6 * small.loss(sequence, changed);
  };
  // The last token's loss is log of the sum of p(v) / p(target) over v; the rest is that of the
  // others.
  auto const loss_of_first_five = [&] {
    double const with_0 = total_loss(0);
    double ratios = 0;
    for (int v = 0; v < 256; ++v)
      ratios += std::exp(with_0 - total_loss(static_cast<std::uint8_t>(v)));
    return with_0 - std::log(ratios);
  };
  double const before = total_loss(0);
  double const first_five = loss_of_first_five();
  sequence[5] ^= 1;
  CHECK(total_loss(0) != approx(before));
  CHECK(loss_of_first_five() == approx(first_five, 1e-12));
  sequence[4] ^= 1;
  CHECK(loss_of_first_five() != approx(first_five));
}

TEST_CASE("train_gpt model overfits one batch") {
  gpt<float> model{{.layers = 2, .heads = 2, .width = 32, .context = 16}, 4, 2, 1};
  adamw<float> optimizer{model.tensors()};
  bytes const inputs = text(64);
  bytes const targets = text(64, 1);
  float loss = 0;
  for (int step = 0; step < 150; ++step) {
    loss = model.loss_and_gradients(inputs, targets);
    clip_by_global_norm(model.gradients(), 1.0);
    optimizer.step(1e-2);
  }
  CHECK(loss < 0.1f);
}

TEST_CASE("train_gpt model refuses what breaks its rules, with the reason") {
  auto const message = [](model_config config, int sequences = 1, int threads = 1) {
    return refusal([&] { gpt<float>{config, sequences, threads, 1}; });
  };
  CHECK(contains(message({.layers = 0, .heads = 2, .width = 8, .context = 4}), "layers is 0"));
  CHECK(contains(message({.layers = 1, .heads = -1, .width = 8, .context = 4}), "heads is -1"));
  CHECK(contains(message({.layers = 1, .heads = 2, .width = 0, .context = 4}), "width is 0"));
  CHECK(contains(message({.layers = 1, .heads = 2, .width = 8, .context = 0}), "context is 0"));
  CHECK(contains(message({1, 2, 8, 4, 0}), "vocabulary is 0"));
  CHECK(contains(message({1, 2, 8, 4, 257}), "vocabulary is 257"));
  CHECK(contains(message({.layers = 1, .heads = 3, .width = 8, .context = 4}),
                 "width 8 and heads 3: width must be a multiple of heads"));
  CHECK(contains(message({.layers = 1, .heads = 2, .width = 6, .context = 4}),
                 "width 6 and heads 2: rotary positions need an even head size, not 3"));
  CHECK(contains(message(tiny, 0), "max_sequences is 0"));
  CHECK(contains(message(tiny, 1, 0), "threads is 0"));

  gpt<float> model{{1, 2, 8, 4, 10}, 2, 1, 1};
  auto const call = [&](std::size_t inputs, std::size_t targets, unsigned below = 10) {
    return refusal([&] { model.loss(text(inputs, 0, below), text(targets, 0, below)); });
  };
  CHECK(call(8, 8) == "nothing thrown");
  CHECK(contains(call(8, 4), "8 inputs and 4 targets"));
  CHECK(contains(call(0, 0), "0 inputs"));
  CHECK(contains(call(6, 6), "sequences of 4 tokens"));
  CHECK(contains(call(12, 12), "1 to 2 sequences"));
  CHECK(contains(call(8, 8, 100), "not below the vocabulary, 10"));
}

// The optimizer.

namespace {

struct plain_tensor {
  std::span<double> values;
  std::span<double> gradient;
  bool decay;
};

}  // namespace

TEST_CASE("train_gpt AdamW equals steps by hand, and decays only what is marked") {
  vector p{1.0, -2.0};
  vector g{0.5, -0.25};
  std::vector<plain_tensor> const tensors{{{p.data(), 1}, {g.data(), 1}, true},
                                          {{p.data() + 1, 1}, {g.data() + 1, 1}, false}};
  adamw<double> optimizer{tensors};
  optimizer.step(0.1);
  // m = .05, m^ = .5; v = .0025, v^ = .25; 1 - .1 * (.5 / .5 + .1 * 1) and -2 - .1 * (-1)
  CHECK(p[0] == approx(0.89, 1e-7));
  CHECK(p[1] == approx(-1.9, 1e-7));
  CHECK(optimizer.first_moment()[0] == approx(0.05));
  CHECK(optimizer.second_moment()[0] == approx(0.0025));
  CHECK(optimizer.steps() == 1);

  g[0] = -1.0;
  optimizer.step(0.1);
  double const m = 0.9 * 0.05 - 0.1;      // -0.055
  double const v = 0.99 * 0.0025 + 0.01;  // 0.012475
  double const m_hat = m / (1 - 0.81);
  double const v_hat = v / (1 - 0.9801);
  double const wanted = 0.89 - 0.1 * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * 0.89);
  CHECK(p[0] == approx(wanted, 1e-7));
}

TEST_CASE("train_gpt AdamW goes on bit for bit from saved state") {
  std::vector<float> p(50, 1.0f);
  std::vector<float> g = noise<float>(1, 50);
  struct tensor {
    std::span<float> values;
    std::span<float> gradient;
    bool decay;
  };
  std::vector<tensor> const tensors{{p, g, true}};
  adamw<float> first{tensors};
  for (int i = 0; i < 3; ++i) first.step(1e-2);
  auto const saved = p;
  adamw<float> second{tensors};
  std::ranges::copy(first.first_moment(), second.first_moment().begin());
  std::ranges::copy(first.second_moment(), second.second_moment().begin());
  second.set_steps(first.steps());
  first.step(1e-2);
  auto const wanted = p;
  p = saved;
  second.step(1e-2);
  CHECK(p == wanted);
  CHECK(second.steps() == 4);
}

TEST_CASE(
    "train_gpt clipping scales to the limit, leaves what is below it, and shows what is not "
    "finite") {
  vector g{3, -4};
  CHECK(clip_by_global_norm(std::span{g}, 10.0) == 5);
  CHECK(g == vector{3, -4});
  CHECK(clip_by_global_norm(std::span{g}, 1.0) == 5);
  CHECK(g[0] == approx(0.6));
  CHECK(g[1] == approx(-0.8));
  std::vector<float> large{3e30f, 4e30f};  // whose squares are beyond float
  CHECK(clip_by_global_norm(std::span{large}, 1.0) == approx(5e30));
  CHECK(large[0] == approx(0.6));
  vector broken{1, std::numeric_limits<double>::quiet_NaN()};
  CHECK(std::isnan(clip_by_global_norm(std::span{broken}, 1.0)));
  CHECK(std::isnan(broken[0]));
}

TEST_CASE("train_gpt learning rate warms up, peaks, and ends at a tenth") {
  learning_rate_schedule const rate{.peak = 1e-3, .warmup_steps = 100, .total_steps = 2001};
  CHECK(rate(0) == approx(1e-3 / 101));
  CHECK(rate(49) == approx(1e-3 * 50 / 101));
  CHECK(rate(100) == approx(1e-3));
  CHECK(rate(1050) == approx(0.55e-3));  // half way
  CHECK(rate(2000) == approx(1e-4));
  CHECK(rate(5000) == approx(1e-4));
  for (std::uint64_t step = 1; step <= 100; ++step) CHECK(rate(step) > rate(step - 1));
  for (std::uint64_t step = 101; step <= 2000; ++step) CHECK(rate(step) < rate(step - 1));
  learning_rate_schedule const no_warmup{.peak = 1, .warmup_steps = 0, .total_steps = 11};
  CHECK(no_warmup(0) == approx(1));
  CHECK(no_warmup(10) == approx(0.1));
  learning_rate_schedule const one_step{.peak = 1, .warmup_steps = 0, .total_steps = 1};
  CHECK(std::isfinite(one_step(0)));
}
