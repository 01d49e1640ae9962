#include "common/cpu_features.h"

#include <algorithm>

#include "common/check.h"

namespace mz {

const char* simd_level_name(SimdLevel level) {
  return level == SimdLevel::kAvx512 ? "avx512" : "baseline";
}

SimdLevel simd_level_from_name(const std::string& name) {
  if (name == "baseline") return SimdLevel::kBaseline;
  if (name == "avx512") return SimdLevel::kAvx512;
  throw_check_error("simd level '", name, "' is not one of baseline, avx512");
}

SimdLevel select_simd_level(const std::vector<std::string>& features) {
  const auto has = [&features](const char* name) {
    return std::find(features.begin(), features.end(), name) != features.end();
  };
  const bool avx512 = has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512dq");
  return avx512 ? SimdLevel::kAvx512 : SimdLevel::kBaseline;
}

std::vector<std::string> detect_cpu_features() {
  std::vector<std::string> features;
#if MZ_HAVE_AVX512
  // Asks cpuid, and also whether the operating system saves the wide registers.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) features.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) features.emplace_back("avx512bw");
  if (__builtin_cpu_supports("avx512vl")) features.emplace_back("avx512vl");
  if (__builtin_cpu_supports("avx512dq")) features.emplace_back("avx512dq");
#endif
  return features;
}

SimdLevel native_simd_level() { return select_simd_level(detect_cpu_features()); }

}  // namespace mz
