// Which instruction set the kernels use. The choice rests on the processor's features alone, never
// on its vendor, and every level asks for all the features that its functions are compiled for
// (MZ_TARGET_*), so that the two cannot disagree.

#pragma once

#include <string>
#include <vector>

// An AVX-512 copy of a kernel exists where one compilation can target several instruction sets.
#if defined(__GNUC__) && defined(__x86_64__)
#define MZ_HAVE_AVX512 1
#define MZ_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#else
#define MZ_HAVE_AVX512 0
#endif

namespace mz {

enum class SimdLevel { kBaseline, kAvx512 };

// "baseline" or "avx512".
const char* simd_level_name(SimdLevel level);

// The inverse. Throws CheckError for any other name.
SimdLevel simd_level_from_name(const std::string& name);

// The best level that a processor with these features can run. Pure. Names are Linux's (avx512f,
// avx512bw, ...); others count for nothing. AVX-512 needs f, bw, vl and dq together.
SimdLevel select_simd_level(const std::vector<std::string>& features);

// Those features known to select_simd_level that this processor has and its operating system has
// enabled. Empty in a build without wider levels, so native_simd_level() is then the baseline.
std::vector<std::string> detect_cpu_features();

// select_simd_level(detect_cpu_features()).
SimdLevel native_simd_level();

}  // namespace mz
