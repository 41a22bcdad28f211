/// The layers of the reference transformer, each with its backward pass written by hand.
///
/// Conventions: matrices are row-major, their shape stands in the comment; `tokens` counts all
/// tokens at hand, sequence after sequence. d_x is the gradient of the training loss in x.
/// Gradients of weights are added to, gradients of activations are overwritten unless the comment
/// says "adds". Nothing allocates.
///
/// Sums carry `#pragma omp simd` (compile with -fopenmp-simd), so they vectorize without
/// -ffast-math.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "matmul.hpp"

namespace train_gpt {

/// Added to the mean square under the root of every RMS norm.
inline constexpr double norm_epsilon = 1e-6;
/// Weight of the z-loss: the training loss is cross-entropy + z_loss * (log Z)^2, in the mean over
/// tokens.
inline constexpr double z_loss = 1e-4;
/// Rows of the score matrix that attention handles at a time; blocks right of the diagonal are
/// skipped.
inline constexpr dim attention_rows = 32;

/// exp(x), relative error below 2e-7; 0 for x < -87, exp(88) for x > 88, NaN for NaN. A polynomial
/// that the compiler turns into vector code, which a call of std::exp is not.
inline float exponential(float x) {
  float const clamped = x > 88.0f ? 88.0f : x;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits.
  float const shifted = clamped * 1.44269504f + 12582912.0f;
  float const n = shifted - 12582912.0f;
  float const r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  float const power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  return x < -87.0f ? 0.0f : p * power;
}
inline double exponential(double x) { return std::exp(x); }

// ---------------------------------------------------------------------------------------------------
// Embedding: out[t] = wte[inputs[t]]

/// out (tokens, width) from wte (vocabulary, width).
template <class Real>
void embedding_forward(Real* out, std::uint8_t const* inputs, Real const* wte, dim tokens,
                       dim width) {
  for (dim t = 0; t < tokens; ++t) std::copy_n(wte + inputs[t] * width, width, out + t * width);
}

/// Adds d_out (tokens, width) to the rows of d_wte (vocabulary, width).
template <class Real>
void embedding_backward(Real* d_wte, Real const* d_out, std::uint8_t const* inputs, dim tokens,
                        dim width) {
  for (dim t = 0; t < tokens; ++t) {
    Real* const row = d_wte + inputs[t] * width;
    Real const* const d = d_out + t * width;
#pragma omp simd
    for (dim i = 0; i < width; ++i) row[i] += d[i];
  }
}

// ---------------------------------------------------------------------------------------------------
// Linear: out = in * weight^T, no bias

/// out (tokens, outputs) = in (tokens, inputs) * weight^T + keep * out, weight (outputs, inputs).
template <class Real>
void linear_forward(Real* out, Real const* in, Real const* weight, dim tokens, dim inputs,
                    dim outputs, Real keep = 0) {
  matmul(tokens, outputs, inputs, 1, {in, inputs}, {weight, inputs, true}, keep, out, outputs);
}

/// d_in = d_out * weight; d_weight += d_out^T * in. Shapes as in linear_forward.
template <class Real>
void linear_backward(Real* d_in, Real* d_weight, Real const* d_out, Real const* in,
                     Real const* weight, dim tokens, dim inputs, dim outputs) {
  matmul(tokens, inputs, outputs, 1, {d_out, outputs}, {weight, inputs}, 0, d_in, inputs);
  matmul(outputs, inputs, tokens, 1, {d_out, outputs, true}, {in, inputs}, 1, d_weight, inputs);
}

// ---------------------------------------------------------------------------------------------------
// RMS norm: out = in * rstd * gain, rstd = 1 / sqrt(mean(in^2) + epsilon)

/// One row of `width` elements; returns its rstd, which the backward pass takes.
template <class Real>
Real rms_norm_row(Real* out, Real const* in, Real const* gain, dim width) {
  Real squares = 0;
#pragma omp simd reduction(+ : squares)
  for (dim i = 0; i < width; ++i) squares += in[i] * in[i];
  Real const rstd =
      1 / std::sqrt(squares / static_cast<Real>(width) + static_cast<Real>(norm_epsilon));
#pragma omp simd
  for (dim i = 0; i < width; ++i) out[i] = in[i] * rstd * gain[i];
  return rstd;
}

/// d_in = rstd * (d_out * gain - n * mean(d_out * gain * n)) with n = in * rstd; d_gain += d_out *
/// n. With Add, d_in is added to.
template <bool Add, class Real>
void rms_norm_row_backward(Real* d_in, Real* d_gain, Real const* d_out, Real const* in,
                           Real const* gain, Real rstd, dim width) {
  Real dot = 0;
#pragma omp simd reduction(+ : dot)
  for (dim i = 0; i < width; ++i) dot += d_out[i] * gain[i] * in[i];
  Real const slope = dot * rstd * rstd * rstd / static_cast<Real>(width);
#pragma omp simd
  for (dim i = 0; i < width; ++i) {
    Real const scaled = d_out[i] * rstd;
    Real const d = scaled * gain[i] - in[i] * slope;
    d_gain[i] += scaled * in[i];
    if constexpr (Add)
      d_in[i] += d;
    else
      d_in[i] = d;
  }
}

/// out, in (tokens, width), gain (width); keeps rstd (tokens) for the backward pass.
template <class Real>
void rms_norm_forward(Real* out, Real* rstd, Real const* in, Real const* gain, dim tokens,
                      dim width) {
  for (dim t = 0; t < tokens; ++t)
    rstd[t] = rms_norm_row(out + t * width, in + t * width, gain, width);
}

/// Adds to d_in (tokens, width): the branch of a residual block joins the gradient that passes by
/// it.
template <class Real>
void rms_norm_backward(Real* d_in, Real* d_gain, Real const* d_out, Real const* in,
                       Real const* gain, Real const* rstd, dim tokens, dim width) {
  for (dim t = 0; t < tokens; ++t)
    rms_norm_row_backward<true>(d_in + t * width, d_gain, d_out + t * width, in + t * width, gain,
                                rstd[t], width);
}

// ---------------------------------------------------------------------------------------------------
// Rotary positions: elements i and i + half of a head turn by the angle position * 10000^(-i /
// half)

/// Fills cosine and sine (context, half).
template <class Real>
void rotary_table(Real* cosine, Real* sine, dim context, dim half) {
  for (dim t = 0; t < context; ++t)
    for (dim i = 0; i < half; ++i) {
      double const frequency =
          std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      double const angle = static_cast<double>(t) * frequency;
      cosine[t * half + i] = static_cast<Real>(std::cos(angle));
      sine[t * half + i] = static_cast<Real>(std::sin(angle));
    }
}

/// Turns one head (2 * half) in place by one row of the table.
template <class Real>
void rotate_row(Real* head, Real const* cosine, Real const* sine, dim half) {
#pragma omp simd
  for (dim i = 0; i < half; ++i) {
    Real const a = head[i];
    Real const b = head[i + half];
    head[i] = a * cosine[i] - b * sine[i];
    head[i + half] = a * sine[i] + b * cosine[i];
  }
}

/// The gradient turns back: the transpose of a rotation is its inverse.
template <class Real>
void rotate_row_backward(Real* d_head, Real const* cosine, Real const* sine, dim half) {
#pragma omp simd
  for (dim i = 0; i < half; ++i) {
    Real const a = d_head[i];
    Real const b = d_head[i + half];
    d_head[i] = a * cosine[i] + b * sine[i];
    d_head[i + half] = b * cosine[i] - a * sine[i];
  }
}

// ---------------------------------------------------------------------------------------------------
// Attention

/// (sequences, context) tokens, each with `heads` heads of `head_size` elements.
struct attention_shape {
  dim sequences;
  dim context;
  dim heads;
  dim head_size;
  dim width() const { return heads * head_size; }
  dim tokens() const { return sequences * context; }
};

/// The positions' table and the gains (head_size) that all heads share.
template <class Real>
struct qk_weights {
  Real const* q_gain;
  Real const* k_gain;
  Real const* cosine;  ///< (context, head_size / 2), as the next
  Real const* sine;
};

/// QK-norm, then rotary: qk (tokens, q and k, heads, head_size) from qkv (tokens, q k v, heads,
/// head_size). Keeps rstd (tokens, q and k, heads).
template <class Real>
void qk_norm_rotary_forward(Real* qk, Real* rstd, Real const* qkv, qk_weights<Real> weights,
                            attention_shape s) {
  dim const half = s.head_size / 2;
  for (dim t = 0; t < s.tokens(); ++t) {
    dim const position = (t % s.context) * half;
    for (dim h = 0; h < 2 * s.heads; ++h) {
      Real const* const in = qkv + t * 3 * s.width() + h * s.head_size;
      Real* const out = qk + t * 2 * s.width() + h * s.head_size;
      Real const* const gain = h < s.heads ? weights.q_gain : weights.k_gain;
      rstd[t * 2 * s.heads + h] = rms_norm_row(out, in, gain, s.head_size);
      rotate_row(out, weights.cosine + position, weights.sine + position, half);
    }
  }
}

/// Writes the q and k parts of d_qkv, adds to d_q_gain and d_k_gain (head_size); turns d_qk in
/// place.
template <class Real>
void qk_norm_rotary_backward(Real* d_qkv, Real* d_q_gain, Real* d_k_gain, Real* d_qk,
                             Real const* qkv, Real const* rstd, qk_weights<Real> weights,
                             attention_shape s) {
  dim const half = s.head_size / 2;
  for (dim t = 0; t < s.tokens(); ++t) {
    dim const position = (t % s.context) * half;
    for (dim h = 0; h < 2 * s.heads; ++h) {
      dim const at = t * 3 * s.width() + h * s.head_size;
      Real* const d_out = d_qk + t * 2 * s.width() + h * s.head_size;
      bool const is_q = h < s.heads;
      rotate_row_backward(d_out, weights.cosine + position, weights.sine + position, half);
      rms_norm_row_backward<false>(d_qkv + at, is_q ? d_q_gain : d_k_gain, d_out, qkv + at,
                                   is_q ? weights.q_gain : weights.k_gain,
                                   rstd[t * 2 * s.heads + h], s.head_size);
    }
  }
}

/// The largest of `count` >= 1 elements. Sixteen running maxima, since compilers do not reorder a
/// single one (NaN forbids it); NaN is skipped.
template <class Real>
Real largest(Real const* row, dim count) {
  constexpr dim lanes = 16;
  Real running[lanes];
  std::fill_n(running, lanes, row[0]);
  dim const whole = count / lanes * lanes;
  for (dim i = 0; i < whole; i += lanes)
    for (dim l = 0; l < lanes; ++l) running[l] = row[i + l] > running[l] ? row[i + l] : running[l];
  for (dim i = whole; i < count; ++i) running[0] = row[i] > running[0] ? row[i] : running[0];
  return *std::max_element(running, running + lanes);
}

/// Softmax in place; returns log(sum(exp(row))).
template <class Real>
Real softmax_row(Real* row, dim count) {
  Real const highest = largest(row, count);
  for (dim c = 0; c < count; ++c) row[c] = exponential(row[c] - highest);
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (dim c = 0; c < count; ++c) sum += row[c];
  Real const scale = 1 / sum;
#pragma omp simd
  for (dim c = 0; c < count; ++c) row[c] *= scale;
  return highest + std::log(sum);
}

/// Softmax of each row of a block of scores, in place. Row r belongs to position first + r and sees
/// the columns up to it; the others become 0.
template <class Real>
void causal_softmax(Real* scores, dim first, dim rows, dim columns, dim stride) {
  for (dim r = 0; r < rows; ++r) {
    Real* const row = scores + r * stride;
    for (dim c = first + r + 1; c < columns; ++c) row[c] = -std::numeric_limits<Real>::infinity();
    softmax_row(row, columns);
  }
}

/// out (tokens, heads, head_size) = softmax(q * k^T / sqrt(head_size)) * v, each token over itself
/// and those before it. q and k come from qk, v from the last third of qkv. Keeps probabilities
/// (sequences, heads, context, context); what lies right of a block on the diagonal is never
/// touched.
template <class Real>
void attention_forward(Real* out, Real* probabilities, Real const* qk, Real const* qkv,
                       attention_shape s) {
  dim const width = s.width();
  Real const scale = 1 / std::sqrt(static_cast<Real>(s.head_size));
  for (dim b = 0; b < s.sequences; ++b)
    for (dim h = 0; h < s.heads; ++h) {
      dim const token = b * s.context;
      Real const* const q = qk + token * 2 * width + h * s.head_size;
      Real const* const k = q + width;
      Real const* const v = qkv + token * 3 * width + 2 * width + h * s.head_size;
      Real* const o = out + token * width + h * s.head_size;
      Real* const p = probabilities + (b * s.heads + h) * s.context * s.context;
      for (dim first = 0; first < s.context; first += attention_rows) {
        dim const rows = std::min(attention_rows, s.context - first);
        dim const columns = first + rows;
        Real* const block = p + first * s.context;
        matmul(rows, columns, s.head_size, scale, {q + first * 2 * width, 2 * width},
               {k, 2 * width, true}, 0, block, s.context);
        causal_softmax(block, first, rows, columns, s.context);
        matmul(rows, s.head_size, columns, 1, {block, s.context}, {v, 3 * width}, 0,
               o + first * width, width);
      }
    }
}

/// Writes d_qk and the v part of d_qkv. d_scores is scratch of (attention_rows, context).
template <class Real>
void attention_backward(Real* d_qk, Real* d_qkv, Real* d_scores, Real const* d_out,
                        Real const* probabilities, Real const* qk, Real const* qkv,
                        attention_shape s) {
  dim const width = s.width();
  Real const scale = 1 / std::sqrt(static_cast<Real>(s.head_size));
  for (dim b = 0; b < s.sequences; ++b)
    for (dim h = 0; h < s.heads; ++h) {
      dim const token = b * s.context;
      dim const qk_at = token * 2 * width + h * s.head_size;
      dim const v_at = token * 3 * width + 2 * width + h * s.head_size;
      Real const* const q = qk + qk_at;
      Real const* const k = q + width;
      Real const* const d_o = d_out + token * width + h * s.head_size;
      Real const* const p = probabilities + (b * s.heads + h) * s.context * s.context;
      Real* const d_q = d_qk + qk_at;
      Real* const d_k = d_q + width;
      Real* const d_v = d_qkv + v_at;
      // The last block sees all columns, so it writes d_k and d_v and the earlier ones add to them.
      Real keep = 0;
      for (dim first = (s.context - 1) / attention_rows * attention_rows; first >= 0;
           first -= attention_rows) {
        dim const rows = std::min(attention_rows, s.context - first);
        dim const columns = first + rows;
        Real const* const block = p + first * s.context;
        Real const* const d_o_block = d_o + first * width;
        matmul(columns, s.head_size, rows, 1, {block, s.context, true}, {d_o_block, width}, keep,
               d_v, 3 * width);
        matmul(rows, columns, s.head_size, 1, {d_o_block, width}, {qkv + v_at, 3 * width, true}, 0,
               d_scores, columns);
        for (dim r = 0; r < rows; ++r) {  // through the softmax: p * (d_p - sum(p * d_p))
          Real const* const p_row = block + r * s.context;
          Real* const d_row = d_scores + r * columns;
          Real dot = 0;
#pragma omp simd reduction(+ : dot)
          for (dim c = 0; c < columns; ++c) dot += p_row[c] * d_row[c];
#pragma omp simd
          for (dim c = 0; c < columns; ++c) d_row[c] = p_row[c] * (d_row[c] - dot);
        }
        matmul(rows, s.head_size, columns, scale, {d_scores, columns}, {k, 2 * width}, 0,
               d_q + first * 2 * width, 2 * width);
        matmul(columns, s.head_size, rows, scale, {d_scores, columns, true},
               {q + first * 2 * width, 2 * width}, keep, d_k, 2 * width);
        keep = 1;
      }
    }
}

// ---------------------------------------------------------------------------------------------------
// GELU, tanh form: 0.5 x (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x^3)

inline constexpr double gelu_scale = 0.79788456080286535588;  // sqrt(2 / pi)
inline constexpr double gelu_cubic = 0.044715;

template <class Real>
void gelu_forward(Real* out, Real const* in, dim count) {
  constexpr auto linear = static_cast<Real>(-2 * gelu_scale);
  constexpr auto cubic = static_cast<Real>(-2 * gelu_scale * gelu_cubic);
  for (dim i = 0; i < count; ++i) {
    Real const x = in[i];
    out[i] = x / (1 + exponential(x * (linear + cubic * x * x)));
  }
}

/// Turns the gradient of the output into that of the input, in place.
template <class Real>
void gelu_backward(Real* d, Real const* in, dim count) {
  constexpr auto linear = static_cast<Real>(-2 * gelu_scale);
  constexpr auto cubic = static_cast<Real>(-2 * gelu_scale * gelu_cubic);
  for (dim i = 0; i < count; ++i) {
    Real const x = in[i];
    Real const sigmoid = 1 / (1 + exponential(x * (linear + cubic * x * x)));
    Real const slope = x * (linear + 3 * cubic * x * x);  // -x * d(2u)/dx
    d[i] *= sigmoid - sigmoid * (1 - sigmoid) * slope;
  }
}

// ---------------------------------------------------------------------------------------------------
// Cross-entropy and z-loss: log Z - logit[target] + z_loss * (log Z)^2, Z = sum(exp(logits))

/// Turns logits (tokens, vocabulary) into probabilities, keeps log_z (tokens), and returns the sum
/// over tokens of the cross-entropy (z-loss apart).
template <class Real>
double cross_entropy_forward(Real* logits, Real* log_z, std::uint8_t const* targets, dim tokens,
                             dim vocabulary) {
  double total = 0;
  for (dim t = 0; t < tokens; ++t) {
    Real* const row = logits + t * vocabulary;
    Real const wanted = row[targets[t]];
    log_z[t] = softmax_row(row, vocabulary);
    total += static_cast<double>(log_z[t] - wanted);
  }
  return total;
}

/// Turns probabilities into the gradient of weight * sum over tokens of (cross-entropy + z-loss) in
/// the logits: weight * (p * (1 + 2 z_loss log Z) - [v == target]).
template <class Real>
void cross_entropy_backward(Real* probabilities, Real const* log_z, std::uint8_t const* targets,
                            dim tokens, dim vocabulary, Real weight) {
  for (dim t = 0; t < tokens; ++t) {
    Real* const row = probabilities + t * vocabulary;
    Real const factor = weight * (1 + static_cast<Real>(2 * z_loss) * log_z[t]);
#pragma omp simd
    for (dim v = 0; v < vocabulary; ++v) row[v] *= factor;
    row[targets[t]] -= weight;
  }
}

}  // namespace train_gpt
