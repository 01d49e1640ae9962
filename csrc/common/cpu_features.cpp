#include "cpu_features.h"

#include <algorithm>

namespace mz {

const char* SimdLevelName(SimdLevel level) {
  return level == SimdLevel::kAvx512 ? "avx512" : "baseline";
}

SimdLevel SelectSimdLevel(const std::vector<std::string>& flags) {
  for (const char* needed : {"avx512f", "avx512bw", "avx512dq", "avx512vl"}) {
    if (std::find(flags.begin(), flags.end(), needed) == flags.end()) return SimdLevel::kBaseline;
  }
  return SimdLevel::kAvx512;
}

SimdLevel DetectSimdLevel() {
  std::vector<std::string> flags;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) flags.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) flags.emplace_back("avx512bw");
  if (__builtin_cpu_supports("avx512dq")) flags.emplace_back("avx512dq");
  if (__builtin_cpu_supports("avx512vl")) flags.emplace_back("avx512vl");
#endif
  return SelectSimdLevel(flags);
}

}  // namespace mz
