// The extension ragsys_kernels._C.
#include <pybind11/pybind11.h>

#include "isa.h"

namespace py = pybind11;

namespace rsk {
void bind_ids(py::module_& m);        // ids/bindings.cpp
void bind_selection(py::module_& m);  // selection/bindings.cpp
void bind_scoring(py::module_& m);    // scoring/bindings.cpp
}  // namespace rsk

PYBIND11_MODULE(_C, m, py::mod_gil_not_used()) {
  m.doc() = "Compiled CPU kernels of ragsys_kernels; the public functions check what is passed here.";
  py::list names, supported;
  for (int isa = 0; isa < rsk::isa_count(); ++isa) {
    names.append(rsk::isa_name(isa));
    if (rsk::isa_supported(isa)) supported.append(rsk::isa_name(isa));
  }
  m.attr("ISAS") = py::tuple(names);
  m.attr("SUPPORTED_ISAS") = py::tuple(supported);
  rsk::bind_ids(m);
  rsk::bind_selection(m);
  rsk::bind_scoring(m);
}
