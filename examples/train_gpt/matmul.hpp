/// Matrix products of the reference trainer: one function over OpenBLAS for float and double.
#pragma once

#include <cstddef>
#include <type_traits>

#include <cblas.h>

namespace train_gpt {

/// Counts and indices: signed, so that loops over them vectorize.
using dim = std::ptrdiff_t;

/// A row-major matrix to read: rows lie `stride` elements apart; `transposed` reads columns as
/// rows.
template <class Real>
struct operand {
  Real const* data;
  dim stride;
  bool transposed = false;
};

/// out = scale * a * b + keep * out, with a (rows, inner), b (inner, columns), out (rows, columns)
/// of stride `out_stride`. With keep = 0 `out` is not read. Runs on the calling thread only,
/// provided that openblas_set_num_threads(1) was called.
template <class Real>
void matmul(dim rows, dim columns, dim inner, std::type_identity_t<Real> scale,
            operand<std::type_identity_t<Real>> a, operand<std::type_identity_t<Real>> b,
            std::type_identity_t<Real> keep, Real* out, dim out_stride) {
  static_assert(std::is_same_v<Real, float> || std::is_same_v<Real, double>,
                "matmul: OpenBLAS multiplies float or double");
  auto const op = [](operand<Real> const& x) { return x.transposed ? CblasTrans : CblasNoTrans; };
  auto const n = [](dim count) { return static_cast<blasint>(count); };
  if constexpr (std::is_same_v<Real, float>)
    cblas_sgemm(CblasRowMajor, op(a), op(b), n(rows), n(columns), n(inner), scale, a.data,
                n(a.stride), b.data, n(b.stride), keep, out, n(out_stride));
  else
    cblas_dgemm(CblasRowMajor, op(a), op(b), n(rows), n(columns), n(inner), scale, a.data,
                n(a.stride), b.data, n(b.stride), keep, out, n(out_stride));
}

}  // namespace train_gpt
