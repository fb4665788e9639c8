// The types of stored elements, by the names of Python (ragsys_kernels/_base/arrays.py).
#pragma once

#include <cstdint>
#include <type_traits>

namespace rsk {

// Of `bits` an element is a byte: eight signs, the most significant bit first.
enum class DType : int { f32 = 0, f16 = 1, bf16 = 2, i8 = 3, bits = 4 };
constexpr const char* kDTypes[] = {"float32", "float16", "bfloat16", "int8", "binary"};

// A function for each type, in their order. RSK_EACH_TYPE makes one of a template, for a region's float, f16, bf16, i8
// and bits8; RSK_EACH_NUMBER has none for the last.
template <class Function>
struct EachType {
  Function* of[5];
  Function* operator[](DType dtype) const { return of[int(dtype)]; }
};
#define RSK_EACH_TYPE(name) {name<float>, name<f16>, name<bf16>, name<i8>, name<bits8>}
#define RSK_EACH_NUMBER(name) {name<float>, name<f16>, name<bf16>, name<i8>, nullptr}

constexpr std::int64_t element_bytes(DType dtype) {
  return dtype == DType::f32 ? 4 : dtype == DType::f16 || dtype == DType::bf16 ? 2 : 1;
}

// Dimensions of a row of so many elements, and its bytes.
constexpr std::int64_t dims_of(DType dtype, std::int64_t elements) {
  return dtype == DType::bits ? 8 * elements : elements;
}
constexpr std::int64_t row_bytes(DType dtype, std::int64_t dims) {
  return dtype == DType::bits ? dims / 8 : dims * element_bytes(dtype);
}

}  // namespace rsk
