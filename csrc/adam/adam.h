// One AdamW step (decoupled weight decay) over a flat range, in one pass.
//
// For every element, each operation rounded to fp32 on its own (no fma), in this order:
//
//   g = grad * grad_scale
//   m = (beta1 * m) + (one_minus_beta1 * g)            then 0 if |m| < 2^-126
//   v = (beta2 * v) + (one_minus_beta2 * (g * g))      then 0 if |v| < 2^-126
//   d = (sqrt(v) / sqrt_bias_correction2) + eps
//   w = (w * decay) - (step_size * (m / d))
//   working = w rounded to nearest even
//
// with correctly rounded square root and division. An element's result depends on that element
// alone: not on the instruction set, the number of threads, or where a range was cut.
// megatron_zero/ops/cpu_adam.py has the same formula in plain torch; tests hold the two to bit
// equality.

#pragma once

#include <cstdint>

#include "common/cpu_features.h"
#include "common/dtype.h"

namespace mz {

// Constants of one step, each computed in double by the caller and rounded once.
struct AdamScalars {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float sqrt_bias_correction2;  // sqrt(1 - beta2^t)
  float eps;
  float decay;      // 1 - lr * weight_decay
  float step_size;  // lr / (1 - beta1^t)
  float grad_scale;
};

// The memory of one call: owned by the caller, naturally aligned, pairwise disjoint.
struct AdamRange {
  float* master;      // read and written
  float* exp_avg;     // read and written
  float* exp_avg_sq;  // read and written
  const void* grad;   // read
  DType grad_dtype;
  void* working;  // written; null: no working copy
  DType working_dtype;
  int64_t numel;
};

// Updates the range in place, on up to num_threads threads if it is large. Ranges that do not
// overlap may be stepped from several threads at once. Throws CheckError, before anything is
// written, if num_threads < 1, if this processor cannot run `level`, or if two of the arrays
// overlap.
void adamw_step(const AdamRange& range, const AdamScalars& scalars, SimdLevel level,
                int num_threads);

}  // namespace mz
