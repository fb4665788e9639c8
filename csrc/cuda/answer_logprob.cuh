// What the forms of scoring share: z from x, and stores for other blocks.
#pragma once
#include "common.cuh"

#ifndef CUDA_ON_CPU
// Fences are numbered as barriers are.
#define FENCE(n) __threadfence()
#endif

namespace rsk {

constexpr int kThreads = 256;  // of a block
constexpr int kWarps = kThreads / kWarp;
constexpr float kLog2e = 1.44269504088896341f;
constexpr float kFar = -128.0f;  // exp of it is 0 in float32, where -inf * 0 would be NaN

// z = softcap_(logit_scale x) inverse_temperature. The product without a softcap is not to be fused with what follows,
// so that a target has the very bits that entered the sum.
template <bool CAPPED>
struct Change {
  float in, out;
  __device__ Change(float logit_scale, float softcap, float inverse_temperature)
      : in(CAPPED ? __fdiv_rn(logit_scale, softcap) : __fmul_rn(logit_scale, inverse_temperature)),
        out(CAPPED ? __fmul_rn(softcap, inverse_temperature) : 1.0f) {}
  __device__ float operator()(float x) const {
    if (!CAPPED) return __fmul_rn(x, in);
    if (fabsf(x) == infinity()) return x;  // a masked entry stays masked
    return __fmul_rn(out, tanhf(__fmul_rn(x, in)));
  }
};

__device__ inline float exp_of(float d) { return exp2f(d * kLog2e); }

// What z is compared with about; finite unless z has an infinity, which then makes the sum NaN.
__device__ inline float about(float largest) { return largest == -infinity() ? 0.0f : largest; }

// The sum over the lanes of a warp, or of half of one, in each of them.
__device__ inline unsigned lanes_sum(unsigned lanes, unsigned x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int d = lanes == kAll ? 16 : 8; d > 0; d /= 2) x += __shfl_xor_sync(lanes, x, d);
  return x;
#else
  return __reduce_add_sync(lanes, x);
#endif
}

// A store that other blocks are to see: after a fence that follows it, an atomic operation here and one there, and a
// fence there.
template <class T>
__device__ inline void publish(T* p, T x) {
#ifdef CUDA_ON_CPU
  emu::publish(p, x);
#else
  *p = x;
#endif
}

}  // namespace rsk
