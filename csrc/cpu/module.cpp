// The extension ragsys_kernels._C. All that knows Python is one translation unit: each takes six seconds for pybind11.
#include "ids/bindings.h"
#include "isa.h"
#include "scoring/bindings.h"
#include "selection/near_bindings.h"

PYBIND11_MODULE(_C, m, py::mod_gil_not_used()) {
  m.doc() = "Compiled CPU kernels of ragsys_kernels; the public functions check what is passed here.";
  py::list names, supported;
  for (int isa = 0; isa < rsk::isa_count(); ++isa) {
    names.append(rsk::isa_name(isa));
    if (rsk::isa_supported(isa)) supported.append(rsk::isa_name(isa));
  }
  m.attr("ISAS") = py::tuple(names);
  m.attr("SUPPORTED_ISAS") = py::tuple(supported);
  m.def("stop_on", &rsk::stop_on, py::arg("flag").noconvert().none(true), py::arg("error"));
  rsk::bind_ids(m);
  rsk::bind_selection(m);
  rsk::bind_near(m);
  rsk::bind_scoring(m);
}
