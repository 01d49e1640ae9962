// megatron_zero._C_dataset: the Python face of index_builders.h. Arrays come as flat uint8 buffers
// (a block of a mapped .idx has no alignment that another format could promise) with the bytes of an
// element beside them where several are allowed. Checks run with the GIL held, the loops without it.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "common/check.h"
#include "dataset/index_builders.h"

namespace py = pybind11;

namespace mz {
namespace {

// A uint8 buffer as a checked range of elements. It holds the exporter's buffer: make and destroy it
// with the GIL held.
class Elements {
 public:
  Elements(const py::buffer& object, const char* name, int64_t item_bytes, int64_t alignment,
           bool write)
      : info_(object.request(/*writable=*/false)), numel_(info_.size / item_bytes) {
    MZ_CHECK(info_.format == "B" && info_.ndim == 1, name, ": a flat uint8 buffer is wanted");
    MZ_CHECK(info_.size <= 1 || info_.strides[0] == 1, name, ": not contiguous");
    MZ_CHECK(info_.size % item_bytes == 0, name, ": ", info_.size, " bytes are no whole number of ",
             item_bytes, "-byte elements");
    MZ_CHECK(reinterpret_cast<uintptr_t>(info_.ptr) % static_cast<uintptr_t>(alignment) == 0, name,
             ": address not aligned to ", alignment, " bytes");
    MZ_CHECK(!write || !info_.readonly, name, ": the buffer is read-only, and is written here");
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(info_.ptr);
  }
  int64_t numel() const { return numel_; }

 private:
  py::buffer_info info_;
  int64_t numel_;
};

void check_item_bytes(int64_t item_bytes, const char* name) {
  MZ_CHECK(item_bytes == 4 || item_bytes == 8, name, ": elements of ", item_bytes,
           " bytes; they have 4 or 8");
}

void py_build_sample_index(const py::buffer& lengths, const py::buffer& documents,
                           int64_t id_bytes, int64_t seq_length, const py::buffer& out,
                           int64_t out_bytes, int num_threads) {
  check_item_bytes(id_bytes, "documents");
  check_item_bytes(out_bytes, "out");
  const Elements sizes(lengths, "lengths", 4, 1, false);
  const Elements ids(documents, "documents", id_bytes, id_bytes, false);
  const Elements rows(out, "out", out_bytes, out_bytes, true);
  MZ_CHECK(rows.numel() % 2 == 0, "out: ", rows.numel(), " elements are no rows of two");
  const auto build = [&](auto id, auto element) {
    using Id = decltype(id);
    using Out = decltype(element);
    const py::gil_scoped_release release;
    build_sample_index(sizes.as<const unsigned char>(), sizes.numel(), ids.as<const Id>(),
                       ids.numel(), seq_length, rows.as<Out>(), rows.numel() / 2, num_threads);
  };
  if (id_bytes == 4 && out_bytes == 4) build(int32_t{}, int32_t{});
  if (id_bytes == 4 && out_bytes == 8) build(int32_t{}, int64_t{});
  if (id_bytes == 8 && out_bytes == 4) build(int64_t{}, int32_t{});
  if (id_bytes == 8 && out_bytes == 8) build(int64_t{}, int64_t{});
}

int py_shuffle(const py::buffer& items, int64_t item_bytes, const py::buffer& key, int position) {
  check_item_bytes(item_bytes, "items");
  const Elements elements(items, "items", item_bytes, item_bytes, true);
  const Elements words(key, "key", 4, 4, true);
  MZ_CHECK(words.numel() == 624, "key: ", words.numel(), " words; MT19937 has 624");
  MersenneTwister random{words.as<uint32_t>(), position};
  const py::gil_scoped_release release;
  if (item_bytes == 4) {
    shuffle(elements.as<uint32_t>(), elements.numel(), random);
  } else {
    shuffle(elements.as<uint64_t>(), elements.numel(), random);
  }
  return random.position;
}

void py_build_blend_index(const py::buffer& weights, const py::buffer& limits,
                          const py::buffer& dataset, const py::buffer& sample) {
  const Elements shares(weights, "weights", 8, 8, false);
  const Elements most(limits, "limits", 8, 8, false);
  const Elements sets(dataset, "dataset", 2, 2, true);
  const Elements samples(sample, "sample", 8, 8, true);
  MZ_CHECK(shares.numel() == most.numel(), shares.numel(), " weights, but ", most.numel(),
           " limits");
  MZ_CHECK(sets.numel() == samples.numel(), sets.numel(), " entries for data sets, but ",
           samples.numel(), " for samples");
  const py::gil_scoped_release release;
  build_blend_index(shares.as<const double>(), most.as<const int64_t>(), shares.numel(),
                    sets.numel(), sets.as<int16_t>(), samples.as<int64_t>());
}

}  // namespace
}  // namespace mz

PYBIND11_MODULE(_C_dataset, module) {
  using namespace mz;
  module.doc() = "Builders of data indices; the contract is csrc/dataset/index_builders.h.";
  module.def("build_sample_index", &py_build_sample_index, py::kw_only(), py::arg("lengths"),
             py::arg("documents"), py::arg("id_bytes"), py::arg("seq_length"), py::arg("out"),
             py::arg("out_bytes"), py::arg("num_threads"));
  module.def("shuffle", &py_shuffle, py::kw_only(), py::arg("items"), py::arg("item_bytes"),
             py::arg("key"), py::arg("position"));
  module.def("build_blend_index", &py_build_blend_index, py::kw_only(), py::arg("weights"),
             py::arg("limits"), py::arg("dataset"), py::arg("sample"));
}
