// megatron_zero._C_adam: the Python face of adam.h. Arrays come as buffers (ops/buffers.py), 16-bit
// floats as uint16 with a dtype name beside them. Checks run with the GIL held, the step without
// it.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "adam/adam.h"
#include "common/buffer.h"
#include "common/cpu_features.h"

namespace py = pybind11;

namespace mz {
namespace {

void check_numel(const BufferView& view, const char* name, int64_t numel) {
  MZ_CHECK(view.numel() == numel, name, " has ", view.numel(), " elements, master has ", numel);
}

void py_adamw_step(const py::buffer& master, const py::buffer& exp_avg,
                   const py::buffer& exp_avg_sq, const py::buffer& grad,
                   const std::string& grad_dtype, const std::optional<py::buffer>& working,
                   const std::string& working_dtype, const AdamScalars& scalars, int num_threads,
                   const std::string& simd) {
  const BufferView master_view(master, "master", DType::kFloat32, Access::kWrite);
  const BufferView exp_avg_view(exp_avg, "exp_avg", DType::kFloat32, Access::kWrite);
  const BufferView exp_avg_sq_view(exp_avg_sq, "exp_avg_sq", DType::kFloat32, Access::kWrite);
  const BufferView grad_view(grad, "grad", dtype_from_name(grad_dtype), Access::kRead);
  std::optional<BufferView> working_view;
  if (working)
    working_view.emplace(*working, "working", dtype_from_name(working_dtype), Access::kWrite);

  const int64_t numel = master_view.numel();
  check_numel(exp_avg_view, "exp_avg", numel);
  check_numel(exp_avg_sq_view, "exp_avg_sq", numel);
  check_numel(grad_view, "grad", numel);
  if (working_view) check_numel(*working_view, "working", numel);

  AdamRange range{};
  range.master = static_cast<float*>(master_view.data());
  range.exp_avg = static_cast<float*>(exp_avg_view.data());
  range.exp_avg_sq = static_cast<float*>(exp_avg_sq_view.data());
  range.grad = grad_view.data();
  range.grad_dtype = grad_view.dtype();
  range.working = working_view ? working_view->data() : nullptr;
  range.working_dtype = working_view ? working_view->dtype() : DType::kFloat32;
  range.numel = numel;

  const SimdLevel level = simd_level_from_name(simd);
  const py::gil_scoped_release release;
  adamw_step(range, scalars, level, num_threads);
}

}  // namespace
}  // namespace mz

PYBIND11_MODULE(_C_adam, module) {
  using namespace mz;
  module.doc() = "AdamW on flat host arrays; the contract is csrc/adam/adam.h.";

  py::class_<AdamScalars>(module, "AdamScalars")
      .def(py::init([](float beta1, float one_minus_beta1, float beta2, float one_minus_beta2,
                       float sqrt_bias_correction2, float eps, float decay, float step_size,
                       float grad_scale) {
             return AdamScalars{
                 beta1, one_minus_beta1, beta2,     one_minus_beta2, sqrt_bias_correction2,
                 eps,   decay,           step_size, grad_scale};
           }),
           py::kw_only(), py::arg("beta1"), py::arg("one_minus_beta1"), py::arg("beta2"),
           py::arg("one_minus_beta2"), py::arg("sqrt_bias_correction2"), py::arg("eps"),
           py::arg("decay"), py::arg("step_size"), py::arg("grad_scale"));

  module.def("adamw_step", &py_adamw_step, py::kw_only(), py::arg("master"), py::arg("exp_avg"),
             py::arg("exp_avg_sq"), py::arg("grad"), py::arg("grad_dtype"), py::arg("working"),
             py::arg("working_dtype"), py::arg("scalars"), py::arg("num_threads"), py::arg("simd"));

  module.def("native_simd_level", [] { return std::string(simd_level_name(native_simd_level())); });
  module.def("select_simd_level", [](const std::vector<std::string>& features) {
    return std::string(simd_level_name(select_simd_level(features)));
  });
}
