// The types of stored elements, by the numbers that Python passes (ragsys_kernels/_arrays.py).
#pragma once

#include <cstdint>

namespace rsk {

enum class DType : int { f32 = 0, f16 = 1, bf16 = 2, i8 = 3 };

// A function for each type, in their order. RSK_EACH_TYPE makes one of a template, for a region's float, f16, bf16 and
// i8.
template <class Function>
struct EachType {
  Function* of[4];
  Function* operator[](DType dtype) const { return of[int(dtype)]; }
};
#define RSK_EACH_TYPE(name) {name<float>, name<f16>, name<bf16>, name<i8>}

constexpr std::int64_t element_bytes(DType dtype) { return dtype == DType::f32 ? 4 : dtype == DType::i8 ? 1 : 2; }

}  // namespace rsk
