#include <functional>
#include <utility>

#include "adam/adam.h"
#include "adam/adam_kernel.h"
#include "common/check.h"
#include "common/float_mode.h"
#include "common/parallel_for.h"

namespace mz {
namespace {

using RangeFunction = void (*)(const AdamRange&, const AdamScalars&, int64_t begin, int64_t end);

template <typename Grad, typename Working>
void run_baseline(const AdamRange& r, const AdamScalars& scalars, int64_t begin, int64_t end) {
  adamw_loop(r.master, r.exp_avg, r.exp_avg_sq, static_cast<const Grad*>(r.grad),
             static_cast<Working*>(r.working), begin, end, scalars);
}

#if MZ_HAVE_AVX512
template <typename Grad, typename Working>
MZ_TARGET_AVX512 void run_avx512(const AdamRange& r, const AdamScalars& scalars, int64_t begin,
                                 int64_t end) {
  adamw_loop(r.master, r.exp_avg, r.exp_avg_sq, static_cast<const Grad*>(r.grad),
             static_cast<Working*>(r.working), begin, end, scalars);
}
#endif

template <typename Grad, typename Working>
RangeFunction for_level(SimdLevel level) {
#if MZ_HAVE_AVX512
  if (level == SimdLevel::kAvx512) return run_avx512<Grad, Working>;
#endif
  (void)level;
  return run_baseline<Grad, Working>;
}

template <typename Grad>
RangeFunction for_working(const AdamRange& range, SimdLevel level) {
  if (range.working == nullptr) return for_level<Grad, NoWorking>(level);
  switch (range.working_dtype) {
    case DType::kFloat32:
      return for_level<Grad, float>(level);
    case DType::kBFloat16:
      return for_level<Grad, BFloat16>(level);
    case DType::kFloat16:
      return for_level<Grad, Float16>(level);
  }
  throw_check_error("unknown working dtype");
}

RangeFunction choose(const AdamRange& range, SimdLevel level) {
  switch (range.grad_dtype) {
    case DType::kFloat32:
      return for_working<float>(range, level);
    case DType::kBFloat16:
      return for_working<BFloat16>(range, level);
    case DType::kFloat16:
      return for_working<Float16>(range, level);
  }
  throw_check_error("unknown gradient dtype");
}

struct NamedSpan {
  const char* name;
  const char* begin;
  const char* end;
};

NamedSpan span(const char* name, const void* data, int64_t numel, DType dtype) {
  const char* begin = static_cast<const char*>(data);
  return {name, begin, begin + numel * item_bytes(dtype)};
}

// The loop promises the compiler that no array aliases another (__restrict).
void check_disjoint(const AdamRange& r) {
  const int64_t working_numel = r.working == nullptr ? 0 : r.numel;
  const NamedSpan spans[] = {span("master", r.master, r.numel, DType::kFloat32),
                             span("exp_avg", r.exp_avg, r.numel, DType::kFloat32),
                             span("exp_avg_sq", r.exp_avg_sq, r.numel, DType::kFloat32),
                             span("grad", r.grad, r.numel, r.grad_dtype),
                             span("working", r.working, working_numel, r.working_dtype)};
  const std::less<const char*> before;
  for (const NamedSpan* a = std::begin(spans); a != std::end(spans); ++a) {
    for (const NamedSpan* b = a + 1; b != std::end(spans); ++b) {
      MZ_CHECK(!(before(a->begin, b->end) && before(b->begin, a->end)), a->name, " and ", b->name,
               " overlap in memory");
    }
  }
}

}  // namespace

void adamw_step(const AdamRange& range, const AdamScalars& scalars, SimdLevel level,
                int num_threads) {
  MZ_CHECK(num_threads >= 1, "num_threads is ", num_threads, ", must be at least 1");
  MZ_CHECK(level == SimdLevel::kBaseline || native_simd_level() == level, "simd level '",
           simd_level_name(level), "' cannot run here; this processor and build support '",
           simd_level_name(native_simd_level()), "'");
  check_disjoint(range);
  const RangeFunction run = choose(range, level);
  parallel_for(range.numel, num_threads, [&](int64_t begin, int64_t end) {
    const IeeeFloatMode mode;
    run(range, scalars, begin, end);
  });
}

}  // namespace mz
