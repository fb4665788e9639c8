// What the CUDA kernels share. Compiles with NVRTC and nvcc without any header, and with g++ after
// tests/cuda_on_cpu/cuda_on_cpu.hpp, which runs kernels on the CPU.
#pragma once

#ifndef CUDA_ON_CPU
// Barriers are numbered, so that tests can remove one.
#define SYNC(n) __syncthreads()
#define DYN_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char rsk_shared[]; \
  T* name = reinterpret_cast<T*>(rsk_shared)
// Tests count the bytes that are read from here.
#define READS(address, bytes)
#endif

namespace rsk {

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;

__device__ inline float infinity() { return __int_as_float(0x7f800000); }
__device__ inline float nan() { return __int_as_float(0x7fc00000); }
__device__ inline bool is_nan(float x) { return x != x; }
__device__ inline bool finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// Stored elements. The 16-bit ones are their bits.
struct F16 {
  unsigned short bits;
};
struct BF16 {
  unsigned short bits;
};
using I8 = signed char;

__device__ inline float half_bits(unsigned short bits) {
#ifdef CUDA_ON_CPU
  return emu::half(bits);
#else
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#endif
}
__device__ inline float widen(F16 x) { return half_bits(x.bits); }
__device__ inline float widen(BF16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ inline float widen(I8 x) { return float(x); }

__device__ inline unsigned element_bits(F16 x) { return x.bits; }
__device__ inline unsigned element_bits(BF16 x) { return x.bits; }
__device__ inline unsigned element_bits(I8 x) { return (unsigned char)x; }

// Elements of a 16-byte load.
template <class T>
constexpr int kPack = 16 / int(sizeof(T));

// Elements 4 c to 4 c + 3 of a pack; c is a constant once its loop is unrolled.
__device__ inline unsigned word(uint4 raw, int i) { return i == 0 ? raw.x : i == 1 ? raw.y : i == 2 ? raw.z : raw.w; }
__device__ inline void unpack_four(uint4 raw, int c, float (&out)[4], F16) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = half_bits((unsigned short)(word(raw, 2 * c + i / 2) >> 16 * (i % 2)));
}
__device__ inline void unpack_four(uint4 raw, int c, float (&out)[4], BF16) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned two = word(raw, 2 * c + i / 2);
    out[i] = __uint_as_float(i % 2 ? two & 0xffff0000u : two << 16);
  }
}

__device__ inline bool aligned16(const void* p) { return (reinterpret_cast<unsigned long long>(p) & 15) == 0; }

// 16 bytes of a stored row.
__device__ inline uint4 load16(const void* p) {
  READS(p, 16);
  return *static_cast<const uint4*>(p);
}

// Copies 16 bytes from global to shared memory, both aligned: complete after copies_done() of the same thread, visible
// to other threads after a barrier that follows it.
__device__ inline void copy16(void* shared, const void* global) {
  READS(global, 16);
#if defined(CUDA_ON_CPU)
  emu::copy_later(shared, global, 16);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(unsigned(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}
__device__ inline void copies_done() {
#if defined(CUDA_ON_CPU)
  emu::copies_done();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// The sum over a warp, the same bits in every lane.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) x += __shfl_xor_sync(kAll, x, d);
  return x;
}

}  // namespace rsk
