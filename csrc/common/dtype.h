// The element types that cross from Python. Python's buffer protocol has no bfloat16, so 16-bit
// floats travel as raw uint16 beside one of these names.

#pragma once

#include <cstdint>
#include <string>

#include "common/check.h"

namespace mz {

enum class DType { kFloat32, kBFloat16, kFloat16 };

inline DType dtype_from_name(const std::string& name) {
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16") return DType::kFloat16;
  throw_check_error("dtype '", name, "' is not one of float32, bfloat16, float16");
}

inline int64_t item_bytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

}  // namespace mz
