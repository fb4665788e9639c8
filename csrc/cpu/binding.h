// What the files that know Python share: arguments, and calls without the GIL. Arrays arrive checked
// (ragsys_kernels/*/validate.py); here sizes are compared once more where memory depends on them, and pointers are
// copied out.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "dtype.h"
#include "interrupt.h"

namespace py = pybind11;

namespace rsk {

template <class T>
using Array = py::array_t<T, py::array::c_style>;
// An argument's array is looked at where its memory is taken: to have pybind11 check it costs 0.1 to 0.2 us each.
using Optional = std::optional<py::array>;

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(std::string("_C: ") + what);
}

inline bool swapped(const py::array& array) { return array.dtype().byteorder() == '>'; }

// The memory of an array of so many elements, of the type that it is assigned to.
struct Memory {
  const Optional& array;
  std::int64_t size;
  const char* name;

  template <class T>
  operator const T*() const {
    if (!array) return nullptr;
    constexpr char kKind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
    const py::dtype dtype = array->dtype();
    require(dtype.kind() == kKind && array->itemsize() == sizeof(T) && !swapped(*array), name);
    require((array->flags() & py::array::c_style) && array->size() == size, name);
    return static_cast<const T*>(array->data());
  }
};
inline Memory pointer(const Optional& array, std::int64_t size, const char* name) { return {array, size, name}; }

// A matrix whose last axis is contiguous, of float32, float16 bits, bfloat16 bits, int8 or bytes of signs. `stride` is
// in elements.
struct Matrix {
  const void* data;
  std::int64_t rows, columns, stride;
  DType dtype;
};
inline Matrix matrix(const py::array& array, int dtype, const char* name) {
  require(dtype >= 0 && dtype <= 4, "dtype");
  const std::int64_t bytes = element_bytes(DType(dtype));
  require(array.ndim() == 2 && array.itemsize() == bytes && !swapped(array), name);
  require(array.strides(1) == bytes || array.shape(1) <= 1, name);
  require(array.strides(0) % bytes == 0, name);
  return {array.data(), array.shape(0), array.shape(1), array.strides(0) / bytes, DType(dtype)};
}

// Runs f without the GIL. Signals are seen while it runs: what their handlers raise, KeyboardInterrupt say, ends it.
template <class F>
void without_gil(const F& f) {
  Watch watch([] {
    const py::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
  });
  try {
    const py::gil_scoped_release nogil;
    f();
  } catch (const Interrupted&) {
    throw py::error_already_set();
  }
}

}  // namespace rsk
