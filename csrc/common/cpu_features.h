// Which form of a kernel this processor can run.
#pragma once

#include <string>
#include <vector>

namespace mz {

enum class SimdLevel { kBaseline, kAvx512 };

const char* SimdLevelName(SimdLevel level);

// The level that a list of /proc/cpuinfo flag names allows, whoever made the processor. AVX-512 needs F, BW, DQ and VL.
SimdLevel SelectSimdLevel(const std::vector<std::string>& flags);

// What this processor and its operating system allow (saved registers included).
SimdLevel DetectSimdLevel();

}  // namespace mz
