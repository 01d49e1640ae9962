// The one loop, compiled several times: a translation unit defines MZ_ADAM_TARGET and includes this file.
// Function target attributes do not reach into other inline functions, so everything the loop calls is in here or is
// forced inline.
#pragma once

#include <cmath>
#include <cstddef>

#include "../common/check.h"
#include "../common/half.h"
#include "adam.h"

namespace mz {

constexpr float kSmallestNormal = 1.17549435e-38f;  // 2^-126

inline float FlushDenormal(float value) { return std::fabs(value) < kSmallestNormal ? 0.0f : value; }

template <typename Grad, typename Working, bool kWritesWorking>
void AdamLoop(const AdamRange& range, const AdamScalars& s) {
  float* __restrict master = range.master;
  float* __restrict exp_avg = range.exp_avg;
  float* __restrict exp_avg_sq = range.exp_avg_sq;
  const Grad* __restrict grad = static_cast<const Grad*>(range.grad);
  Working* __restrict working = static_cast<Working*>(range.working);
  const AdamScalars k = s;
  const std::size_t numel = range.numel;
  for (std::size_t i = 0; i < numel; ++i) {
    const float g = ToFloat(grad[i]) * k.grad_scale;
    const float m = FlushDenormal((k.beta1 * exp_avg[i]) + (k.one_minus_beta1 * g));
    const float v = FlushDenormal((k.beta2 * exp_avg_sq[i]) + (k.one_minus_beta2 * (g * g)));
    const float d = (std::sqrt(v) / k.sqrt_bias_correction2) + k.eps;
    const float w = (master[i] * k.decay) - (k.step_size * (m / d));
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] = w;
    if constexpr (kWritesWorking) FromFloat(w, &working[i]);
  }
}

template <typename Grad>
void AdamLoopOfGrad(const AdamRange& range, const AdamScalars& s) {
  if (range.working == nullptr) return AdamLoop<Grad, float, false>(range, s);
  switch (range.working_dtype) {
    case DType::kFloat32: return AdamLoop<Grad, float, true>(range, s);
    case DType::kBFloat16: return AdamLoop<Grad, BFloat16, true>(range, s);
    case DType::kFloat16: return AdamLoop<Grad, Float16, true>(range, s);
  }
}

inline void AdamLoopOfRange(const AdamRange& range, const AdamScalars& s) {
  switch (range.grad_dtype) {
    case DType::kFloat32: return AdamLoopOfGrad<float>(range, s);
    case DType::kBFloat16: return AdamLoopOfGrad<BFloat16>(range, s);
    case DType::kFloat16: return AdamLoopOfGrad<Float16>(range, s);
  }
}

}  // namespace mz
