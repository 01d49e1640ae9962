// The kernel against an independent scalar form, without Python, for sanitizer builds.
//
// The scalar form does every operation in double and rounds it to float. For + - * / and sqrt that
// is the correctly rounded fp32 result (double has more than twice the digits), whatever the
// compiler contracts or vectorises. Prints one line, or throws at the first difference.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <vector>

#include "adam/adam.h"
#include "common/check.h"
#include "common/half.h"

namespace mz {
namespace {

float rounded(double value) { return static_cast<float>(value); }
float times(float a, float b) { return rounded(static_cast<double>(a) * b); }
float plus(float a, float b) { return rounded(static_cast<double>(a) + b); }
float minus(float a, float b) { return rounded(static_cast<double>(a) - b); }
float over(float a, float b) { return rounded(static_cast<double>(a) / b); }
float root(float a) { return rounded(std::sqrt(static_cast<double>(a))); }
float flushed(float a) { return std::fabs(a) < std::numeric_limits<float>::min() ? 0.0f : a; }

struct State {
  std::vector<float> master, exp_avg, exp_avg_sq;
};

void scalar_step(State& state, const std::vector<float>& grad, const AdamScalars& s) {
  for (size_t i = 0; i < grad.size(); ++i) {
    const float g = times(grad[i], s.grad_scale);
    const float m = flushed(plus(times(s.beta1, state.exp_avg[i]), times(s.one_minus_beta1, g)));
    const float v =
        flushed(plus(times(s.beta2, state.exp_avg_sq[i]), times(s.one_minus_beta2, times(g, g))));
    const float d = plus(over(root(v), s.sqrt_bias_correction2), s.eps);
    state.exp_avg[i] = m;
    state.exp_avg_sq[i] = v;
    state.master[i] = minus(times(state.master[i], s.decay), times(s.step_size, over(m, d)));
  }
}

AdamScalars scalars_of(int step) {
  const double lr = 1e-3, beta1 = 0.9, beta2 = 0.95;
  AdamScalars s{};
  s.beta1 = rounded(beta1);
  s.one_minus_beta1 = rounded(1 - beta1);
  s.beta2 = rounded(beta2);
  s.one_minus_beta2 = rounded(1 - beta2);
  s.sqrt_bias_correction2 = rounded(std::sqrt(1 - std::pow(beta2, step)));
  s.eps = 1e-8f;
  s.decay = rounded(1 - lr * 0.1);
  s.step_size = rounded(lr / (1 - std::pow(beta1, step)));
  s.grad_scale = 0.37f;
  return s;
}

void check_same(const std::vector<float>& ours, const std::vector<float>& expected,
                const char* what, int64_t numel) {
  for (size_t i = 0; i < ours.size(); ++i) {
    MZ_CHECK(bits_of(ours[i]) == bits_of(expected[i]), what, "[", i, "] of ", numel, ": ", ours[i],
             " instead of ", expected[i]);
  }
}

template <typename Half>
void check_steps(int64_t numel, double grad_size, SimdLevel level, int num_threads, DType dtype) {
  std::mt19937 random(static_cast<unsigned>(numel));
  std::normal_distribution<double> normal;
  const auto count = static_cast<size_t>(numel);
  State ours{std::vector<float>(count), std::vector<float>(count), std::vector<float>(count)};
  for (float& value : ours.master) value = rounded(0.02 * normal(random));
  State expected = ours;
  std::vector<Half> grad(count), working(count);
  std::vector<float> grad_values(count);
  for (int step = 1; step <= 5; ++step) {
    for (size_t i = 0; i < count; ++i) {
      from_float(rounded(grad_size * normal(random)), grad[i]);
      grad_values[i] = to_float(grad[i]);
    }
    const AdamRange range{ours.master.data(),
                          ours.exp_avg.data(),
                          ours.exp_avg_sq.data(),
                          grad.data(),
                          dtype,
                          working.data(),
                          dtype,
                          numel};
    adamw_step(range, scalars_of(step), level, num_threads);
    scalar_step(expected, grad_values, scalars_of(step));
    check_same(ours.master, expected.master, "master", numel);
    check_same(ours.exp_avg, expected.exp_avg, "exp_avg", numel);
    check_same(ours.exp_avg_sq, expected.exp_avg_sq, "exp_avg_sq", numel);
    for (size_t i = 0; i < count; ++i) {
      Half wanted;
      from_float(expected.master[i], wanted);
      MZ_CHECK(working[i].bits == wanted.bits, "working[", i, "] of ", numel);
    }
  }
}

void check_level(SimdLevel level) {
  for (const int64_t numel : {0, 1, 7, 15, 16, 17, 1023, 4099}) {
    for (const double grad_size : {1e-3, 1e-22}) {
      check_steps<BFloat16>(numel, grad_size, level, 1, DType::kBFloat16);
      check_steps<Float16>(numel, grad_size, level, 1, DType::kFloat16);
    }
  }
  check_steps<BFloat16>(200003, 1e-3, level, 3, DType::kBFloat16);
}

// Every narrow value survives the way to fp32 and back, and the midpoint of two neighbours goes to
// the even one.
template <typename Half>
void check_rounding(uint16_t largest_finite) {
  for (uint16_t bits = 0; bits <= largest_finite; ++bits) {
    Half back;
    from_float(to_float(Half{bits}), back);
    MZ_CHECK(back.bits == bits, "value ", bits, " became ", back.bits);
    if (bits == largest_finite) break;
    const auto next = static_cast<uint16_t>(bits + 1);
    const float low = to_float(Half{bits}), high = to_float(Half{next});
    const float middle = rounded((static_cast<double>(low) + high) / 2);
    from_float(middle, back);
    MZ_CHECK(back.bits == (bits % 2 == 0 ? bits : next), "tie above ", bits, " went to ",
             back.bits);
    from_float(std::nextafter(middle, high), back);
    MZ_CHECK(back.bits == next, "just above the tie above ", bits, " went to ", back.bits);
    from_float(std::nextafter(middle, low), back);
    MZ_CHECK(back.bits == bits, "just below the tie above ", bits, " went to ", back.bits);
  }
}

}  // namespace
}  // namespace mz

int main() {
  mz::check_rounding<mz::BFloat16>(0x7f7f);
  mz::check_rounding<mz::Float16>(0x7bff);
  mz::check_level(mz::SimdLevel::kBaseline);
  const mz::SimdLevel native = mz::native_simd_level();
  if (native != mz::SimdLevel::kBaseline) mz::check_level(native);
  std::cout << "adam_vs_scalar: all equal (" << mz::simd_level_name(native) << ")\n";
}
