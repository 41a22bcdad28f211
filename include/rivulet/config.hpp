#pragma once

/// \file
/// What the library needs from the compiler, decided before anything else is read.

#if !defined(__cpp_concepts) || __cplusplus < 202002L
#error "Rivulet needs C++20: compile with -std=c++20 or newer."
#endif

#if !defined(__cpp_exceptions)
#error "Rivulet reports errors by exceptions: compile without -fno-exceptions."
#endif

// Outer parameters stay bit-identical between workers only under IEEE arithmetic.
#if defined(__FAST_MATH__) && !defined(RIVULET_ALLOW_FAST_MATH)
#error \
    "Rivulet needs IEEE arithmetic for bit-identical replicas: compile without -ffast-math, \
or define RIVULET_ALLOW_FAST_MATH if all workers run one binary on one kind of processor."
#endif

#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 2
#error "Rivulet needs float arithmetic without excess precision: compile with -mfpmath=sse."
#endif

/// Marks the per-value arithmetic that host and device share.
#if defined(__CUDACC__)
#define RIVULET_HOST_DEVICE __host__ __device__
#else
#define RIVULET_HOST_DEVICE
#endif
