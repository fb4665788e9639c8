// Products by the matrix instructions of a warp, and copies to shared memory that are waited for in groups.
#pragma once
#include "common.cuh"

namespace rsk {

// Where something lies in shared memory.
#ifdef CUDA_ON_CPU
using Place = unsigned char*;
__device__ inline Place place_of(unsigned char* shared) { return shared; }
#else
using Place = unsigned;
__device__ inline Place place_of(unsigned char* shared) { return unsigned(__cvta_generic_to_shared(shared)); }
#endif

// Copies four bytes from global to shared memory, like copy16; the numbers of bytes from both addresses on are part of
// the instruction.
template <int kTo, int kFrom>
__device__ inline void copy4(Place shared, const void* global) {
  READS(static_cast<const char*>(global) + kFrom, 4);
#if defined(CUDA_ON_CPU)
  emu::copy_later(shared + kTo, static_cast<const char*>(global) + kFrom, 4);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0 + %2], [%1 + %3], 4;" ::"r"(shared), "l"(global), "n"(kTo), "n"(kFrom)
               : "memory");
#endif
}

// A group ends: all copies since the last end. copies_wait<N>() waits for all groups of this thread but the last N.
__device__ inline void copies_end() {
#if defined(CUDA_ON_CPU)
  emu::copies_end();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N>
__device__ inline void copies_wait() {
#if defined(CUDA_ON_CPU)
  emu::copies_wait(N);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// Four matrices of 8 x 8 elements of 16 bits: lane l names row l % 8 of matrix l / 8, 16 bytes.
__device__ inline void load_matrices(unsigned (&out)[4], Place row) {
#if defined(CUDA_ON_CPU)
  emu::load_matrices(out, row);
#elif __CUDA_ARCH__ >= 800
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row)
               : "memory");
#endif
}

// What products of elements add up to: those of int8 exactly, of up to 131,071 dimensions.
template <class T>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<I8> {
  using Type = int;
};
template <class T>
using Sum = typename SumOf<T>::Type;

// c += a b, of 16 x 16 and 16 x 8 elements, of 8 bits 16 x 32 and 32 x 8: 32 bytes of a row.
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, F16) {
#if defined(CUDA_ON_CPU)
  emu::multiply<2>(c, a, b0, b1, emu::half);
#elif __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, BF16) {
#if defined(CUDA_ON_CPU)
  emu::multiply<2>(c, a, b0, b1, emu::bfloat16);
#elif __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
__device__ inline void multiply(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, I8) {
#if defined(CUDA_ON_CPU)
  emu::multiply<4>(c, a, b0, b1, emu::int8);
#elif __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// The nearest element.
__device__ inline F16 narrow(float x, F16) {
  F16 y;
#ifdef CUDA_ON_CPU
  y.bits = emu::nearest_half(x);
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
  return y;
}
__device__ inline BF16 narrow(float x, BF16) {
  const unsigned bits = __float_as_uint(x);
  return {(unsigned short)(x != x ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}
__device__ inline I8 narrow(float x, I8) { return I8(__float2int_rn(x)); }

// A float32 as kParts<T> elements, each kGrowth<T> times as large as what it stands for beside the one before: the rest
// that float16 leaves would fall below its smallest numbers, and int8 has whole numbers, of up to 64 here.
template <class T>
constexpr int kParts = 3;
template <>
constexpr int kParts<F16> = 2;
template <>
constexpr int kParts<I8> = 4;
template <class T>
constexpr float kGrowth = 1.0f;
template <>
constexpr float kGrowth<F16> = 2048.0f;
template <>
constexpr float kGrowth<I8> = 128.0f;
// The largest element of what is taken apart is between 2^kTop<T> and four times that.
template <class T>
constexpr unsigned kTop = 0;
template <>
constexpr unsigned kTop<I8> = 4;
// Elements of a word.
template <class T>
constexpr int kOfWord = 4 / int(sizeof(T));

}  // namespace rsk
