// What the files that know Python share.
#pragma once

#include <pybind11/pybind11.h>

#include "interrupt.h"

namespace rsk {

// Runs f without the GIL. Signals are seen while it runs: what their handlers raise, KeyboardInterrupt say, ends it.
template <class F>
void without_gil(const F& f) {
  Watch watch([] {
    const pybind11::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
  });
  try {
    const pybind11::gil_scoped_release nogil;
    f();
  } catch (const Interrupted&) {
    throw pybind11::error_already_set();
  }
}

}  // namespace rsk
