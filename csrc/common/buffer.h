// A Python object's memory as a checked, typed, contiguous range, without a copy.
//
// BufferView holds the exporter's buffer for its lifetime: keep it alive while the pointer is used,
// and make and destroy it with the GIL held. A wrong dtype, more than one dimension, a stride, an
// unaligned address or a read-only buffer (where writing is asked) throws CheckError naming the
// argument.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "common/check.h"
#include "common/dtype.h"

namespace mz {

enum class Access { kRead, kWrite };

class BufferView {
 public:
  // name: the argument's name, for messages. dtype: what the elements mean; fp32 must be exported
  // as format "f", bf16 and fp16 as "H" (uint16).
  BufferView(const pybind11::buffer& object, const char* name, DType dtype, Access access)
      : info_(object.request(/*writable=*/false)), dtype_(dtype) {
    const auto address = reinterpret_cast<uintptr_t>(info_.ptr);
    MZ_CHECK(address % static_cast<uintptr_t>(info_.itemsize) == 0, name,
             ": address not aligned to ", info_.itemsize, " bytes");
    const std::string wanted = dtype == DType::kFloat32 ? "f" : "H";
    MZ_CHECK(info_.format == wanted, name, ": buffer format '", info_.format, "', expected '",
             wanted, "'");
    MZ_CHECK(info_.ndim == 1, name, ": ", info_.ndim, " dimensions, expected 1");
    MZ_CHECK(info_.size <= 1 || info_.strides[0] == info_.itemsize, name,
             ": not contiguous (stride ", info_.strides[0], " bytes, item ", info_.itemsize,
             " bytes)");
    MZ_CHECK(access == Access::kRead || !info_.readonly, name,
             ": the buffer is read-only, and is written here");
  }

  void* data() const { return info_.ptr; }
  int64_t numel() const { return info_.size; }
  DType dtype() const { return dtype_; }

 private:
  pybind11::buffer_info info_;
  DType dtype_;
};

}  // namespace mz
