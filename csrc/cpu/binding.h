// What the files that know Python share: arguments, by position or by name, and calls without the GIL. Arrays arrive
// checked (ragsys_kernels/*/validate.py); here sizes are compared once more where memory depends on them, and pointers
// are copied out.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

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
  Optional array;
  std::int64_t size;
  const char* name;

  template <class T>
  operator const T*() const {
    if (!array) return nullptr;
    constexpr char kKind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
    const py::dtype dtype = array->dtype();
    const bool flags = std::is_same_v<T, std::uint8_t> && dtype.kind() == 'b';
    require((dtype.kind() == kKind || flags) && array->itemsize() == sizeof(T) && !swapped(*array), name);
    require((array->flags() & py::array::c_style) && array->size() == size, name);
    return static_cast<const T*>(array->data());
  }
};
inline Memory pointer(const Optional& array, std::int64_t size, const char* name) { return {array, size, name}; }

// The name of an attribute. NAME("k") makes Python's string of it when the module is loaded: to make it for each call
// would take longer than the look-up.
struct Name {
  PyObject* string;
  const char* text;
};
template <class Text>
inline PyObject* const kString = PyUnicode_InternFromString(Text::text());
#define NAME(literal)                                         \
  [] {                                                        \
    struct Text {                                             \
      static constexpr const char* text() { return literal; } \
    };                                                        \
    return Name{kString<Text>, literal};                      \
  }()

using Held = std::vector<py::object>;

// An object of Python whose attributes are arguments, read by name. Arrays that are read are put into `held`, which
// must outlive the call.
class Fields {
 public:
  Fields(py::handle object, Held& held) : object_(py::reinterpret_borrow<py::object>(object)), held_(held) {}

  explicit operator bool() const { return !object_.is_none(); }
  py::object get(Name name) const {
    PyObject* const found = PyObject_GetAttr(object_.ptr(), name.string);
    if (!found) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }
  Fields of(Name name) const { return {get(name), held_}; }
  template <class T>
  T number(Name name) const {
    return get(name).cast<T>();
  }
  Optional array(Name name) const {
    py::object found = get(name);
    if (found.is_none()) return std::nullopt;
    require(py::isinstance<py::array>(found), name.text);
    held_.push_back(found);
    return py::reinterpret_steal<py::array>(found.release());
  }
  Memory pointer(Name name, std::int64_t size) const { return {array(name), size, name.text}; }

 private:
  py::object object_;
  Held& held_;
};

inline bool is_text(const py::object& given, const char* text) {
  return PyUnicode_Check(given.ptr()) && PyUnicode_CompareWithASCIIString(given.ptr(), text) == 0;
}

// The value of an enumeration by its name.
template <class Enum, std::size_t n>
Enum named(const py::object& given, const char* const (&names)[n], const char* what) {
  for (std::size_t i = 0; i < n; ++i)
    if (is_text(given, names[i])) return Enum(i);
  throw std::invalid_argument(std::string("_C: ") + what);
}

// A matrix whose last axis is contiguous, of float32, float16 bits, bfloat16 bits, int8 or bytes of signs. `stride` is
// in elements.
struct Matrix {
  const void* data;
  std::int64_t rows, columns, stride;
  DType dtype;
};
inline Matrix matrix(const py::array& array, const py::object& dtype, const char* name) {
  const DType type = named<DType>(dtype, kDTypes, "dtype");
  const std::int64_t bytes = element_bytes(type);
  require(array.ndim() == 2 && array.itemsize() == bytes && !swapped(array), name);
  require(array.strides(1) == bytes || array.shape(1) <= 1, name);
  require(array.strides(0) % bytes == 0, name);
  return {array.data(), array.shape(0), array.shape(1), array.strides(0) / bytes, type};
}

// What ends the calls of a thread from another: a number, by the array that holds it, and the error that they then
// raise. A thread that ends with one leaves it in memory.
struct Stop {
  PyObject* array = nullptr;
  PyObject* error = nullptr;
  const std::int32_t* number = nullptr;

  static Stop& current() {
    static thread_local Stop current;
    return current;
  }
};

// Lets the calls of this thread end once flag[0] is not 0; None: no longer.
inline void stop_on(const std::optional<py::array_t<std::int32_t>>& flag, const py::object& error) {
  require(!flag || (flag->size() >= 1 && PyExceptionClass_Check(error.ptr())), "flag");
  const Stop before = Stop::current();
  Stop::current() = flag ? Stop{flag->inc_ref().ptr(), error.inc_ref().ptr(), flag->data()} : Stop{};
  Py_XDECREF(before.array);
  Py_XDECREF(before.error);
}

// Runs f without the GIL. Signals are seen while it runs: what their handlers raise, KeyboardInterrupt say, ends it; so
// does `stop_on`.
template <class F>
void without_gil(const F& f) {
  const Stop& stop = Stop::current();
  Watch watch(
      [] {
        const py::gil_scoped_acquire gil;
        return PyErr_CheckSignals() != 0;
      },
      stop.number);
  try {
    const py::gil_scoped_release nogil;
    f();
  } catch (const Interrupted&) {
    if (!PyErr_Occurred()) PyErr_SetNone(stop.error);
    throw py::error_already_set();
  }
}

}  // namespace rsk
