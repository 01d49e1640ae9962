// The loop of adam.h in plain C++, vectorised by the compiler. adam_dispatch.cpp inlines it into
// one function for each instruction set. So nothing here may call a function that is not inlined:
// that call would stop the vectorisation.

#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "adam/adam.h"
#include "common/half.h"

#if defined(__FAST_MATH__)
#error "results must be bit-exact: build without -ffast-math"
#endif
static_assert(FLT_EVAL_METHOD == 0 && std::numeric_limits<float>::is_iec559,
              "float arithmetic must be IEEE single precision without excess (on 32-bit x86: "
              "-mfpmath=sse -msse2)");

namespace mz {

constexpr float kSmallestNormal = 0x1p-126f;

MZ_ALWAYS_INLINE float flush_denormal(float value) {
  return std::fabs(value) < kSmallestNormal ? 0.0f : value;
}

// Stands for "no working copy" as a working type.
struct NoWorking {};

template <typename Working>
MZ_ALWAYS_INLINE void store_working(Working* working, int64_t i, float value) {
  from_float(value, working[i]);
}
MZ_ALWAYS_INLINE void store_working(NoWorking*, int64_t, float) {}

template <typename Grad, typename Working>
MZ_ALWAYS_INLINE void adamw_loop(float* __restrict master, float* __restrict exp_avg,
                                 float* __restrict exp_avg_sq, const Grad* __restrict grad,
                                 Working* __restrict working, int64_t begin, int64_t end,
                                 const AdamScalars s) {
  for (int64_t i = begin; i < end; ++i) {
    const float g = to_float(grad[i]) * s.grad_scale;
    const float m = flush_denormal((s.beta1 * exp_avg[i]) + (s.one_minus_beta1 * g));
    const float v = flush_denormal((s.beta2 * exp_avg_sq[i]) + (s.one_minus_beta2 * (g * g)));
    const float d = (std::sqrt(v) / s.sqrt_bias_correction2) + s.eps;
    const float w = (master[i] * s.decay) - (s.step_size * (m / d));
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] = w;
    store_working(working, i, w);
  }
}

}  // namespace mz
