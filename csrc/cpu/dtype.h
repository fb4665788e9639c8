// The types of stored elements, by the numbers that Python passes (ragsys_kernels/_arrays.py).
#pragma once

#include <cstdint>

namespace rsk {

enum class DType : int { f32 = 0, f16 = 1, bf16 = 2, i8 = 3 };

constexpr std::int64_t element_bytes(DType dtype) { return dtype == DType::f32 ? 4 : dtype == DType::i8 ? 1 : 2; }

}  // namespace rsk
