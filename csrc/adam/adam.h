// One AdamW step over a range, in one pass: read gradient, master and moments; write master, moments, working copy.
//
// Per element, every operation rounded on its own (no fused multiply-add anywhere), all in fp32:
//   g = grad * grad_scale
//   m = (beta1 * m) + (one_minus_beta1 * g)              |m| < 2^-126 is stored and used as 0
//   v = (beta2 * v) + (one_minus_beta2 * (g * g))        |v| < 2^-126 is stored and used as 0
//   d = (sqrt(v) / sqrt_bias_correction2) + eps
//   w = (w * decay) - (step_size * (m / d))
// The result of an element depends on nothing but that element, so it is the same for any cut of the range, any
// number of threads and any SIMD level, and equal to the plain-torch form (ops/cpu_adam.py) bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../common/cpu_features.h"

namespace mz {

enum class DType { kFloat32, kBFloat16, kFloat16 };

// Computed in double by the caller and rounded once.
struct AdamScalars {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, sqrt_bias_correction2, eps, decay, step_size, grad_scale;
};

// numel elements each, any alignment that their type allows, none overlapping another.
// working may be null: then no working copy is written.
struct AdamRange {
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  const void* grad;
  DType grad_dtype;
  void* working;
  DType working_dtype;
  std::size_t numel;
};

// Thread-safe on disjoint ranges. num_threads: at most this many threads work; small ranges use fewer.
// Throws std::invalid_argument for num_threads < 1 or a level that this build does not have.
void AdamStep(const AdamRange& range, const AdamScalars& scalars, SimdLevel level, int num_threads);

// The two forms of the one loop.
void AdamStepBaseline(const AdamRange& range, const AdamScalars& scalars);
void AdamStepAvx512(const AdamRange& range, const AdamScalars& scalars);

}  // namespace mz
