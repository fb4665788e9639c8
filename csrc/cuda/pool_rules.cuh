// What a rule knows of the slots of a pool, of which a lane has N. `start`: nothing is taken. `value`: of slot j of
// this lane. `told`: what others have to know of it when it is taken. `take`: an item with these similarities to the
// slots is taken. The formulas are those of ragsys_kernels/selection/README.md.
#pragma once
#include "select_args.cuh"

namespace rsk {

// The slots of a lane: relevance with bias (VRSD: relevance), the length of the vector.
template <int N>
struct Slots {
  float v[N], length[N];
  float lambda_d, far;
};

// Of an item that VRSD takes: its product with the unit query, its length, the sizes of what it adds to |s|^2, and
// |s|^2 with it.
struct Told {
  float product, length, added, square;
};

// MMR: the largest similarity of each slot to what was taken. NaN stays, so the item is never picked.
template <int N>
struct PoolMmr {
  static constexpr bool kVrsd = false, kBias = true;
  float most[N];
  __device__ void start() {
#pragma unroll
    for (int j = 0; j < N; ++j) most[j] = -infinity();
  }
  __device__ float value(const Slots<N>& x, int j, bool first) const {
    if (first) return x.v[j];
    return __fsub_rn(__fmul_rn(x.lambda_d, x.v[j]), __fmul_rn(__fsub_rn(1.0f, x.lambda_d), most[j]));
  }
  __device__ Told told(const Slots<N>&, int) const { return {}; }
  __device__ void take(const float (&similarity)[N], Told) {
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (is_nan(similarity[j]) || similarity[j] > most[j]) most[j] = similarity[j];
  }
  __device__ float score(const Slots<N>& x, int j, float w, bool first) const {
    return first ? __fmul_rn(x.lambda_d, x.v[j]) : w;
  }
  __device__ float redundancy(int j, bool first) const { return first ? 0.0f : most[j]; }
};

// MSD: the sum of the similarities of each slot to what was taken, and how many that is.
template <int N>
struct PoolMsd {
  static constexpr bool kVrsd = false, kBias = true;
  float sum[N], taken;
  __device__ void start() {
    taken = 0.0f;
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = 0.0f;
  }
  __device__ float value(const Slots<N>& x, int j, bool first) const {
    if (first) return x.v[j];
    const float near = __fsub_rn(sum[j], __fmul_rn(x.far, taken));
    return __fsub_rn(__fmul_rn(x.lambda_d, x.v[j]), __fmul_rn(__fsub_rn(1.0f, x.lambda_d), near));
  }
  __device__ Told told(const Slots<N>&, int) const { return {}; }
  __device__ void take(const float (&similarity)[N], Told) {
    taken += 1.0f;
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = __fadd_rn(sum[j], similarity[j]);
  }
  __device__ float score(const Slots<N>& x, int j, float w, bool first) const {
    return first ? __fmul_rn(x.lambda_d, x.v[j]) : w;
  }
  __device__ float redundancy(int j, bool first) const { return first ? 0.0f : __fdiv_rn(sum[j], taken); }
};

// VRSD, of which s is the sum of what was taken: t = s e of each slot e; of s itself |s|^2, its product with the unit
// query, the lengths of what it is a sum of, and the sizes of all that was added to |s|^2, whose rounding stays in it.
template <int N>
struct PoolVrsd {
  static constexpr bool kVrsd = true, kBias = false;
  // Where |s + e|^2 is below this share of its terms they cancel.
  static constexpr float kCancels = 1.0f / 32.0f;
  float t[N], square[N], sum_square, sum_query, sum_lengths, terms;
  __device__ void start() {
    sum_square = sum_query = sum_lengths = terms = 0.0f;
#pragma unroll
    for (int j = 0; j < N; ++j) t[j] = square[j] = 0.0f;
  }
  // Sets |s + e|^2 of a slot; returns whether it is of no use.
  __device__ bool cancels(const Slots<N>& x, int j) {
    const float own = __fmul_rn(x.length[j], x.length[j]);
    square[j] = __fadd_rn(__fadd_rn(sum_square, __fmul_rn(2.0f, t[j])), own);
    return square[j] < kCancels * (terms + 2.0f * fabsf(t[j]) + own);
  }
  __device__ float value(const Slots<N>& x, int j, bool first) const {
    if (first) return x.v[j];
    const float norm = __fsqrt_rn(fmaxf(square[j], 0.0f)),
                product = __fadd_rn(sum_query, __fmul_rn(x.v[j], x.length[j]));
    if (norm <= __fmul_rn(kZeroSum, __fadd_rn(sum_lengths, x.length[j]))) return is_nan(square[j]) ? nan() : 0.0f;
    return is_nan(square[j]) ? nan() : __fdiv_rn(product, norm);
  }
  // `square` of the slot is |s + e|^2, unless an initial item is taken, after which |s|^2 is the sum of its t.
  __device__ Told told(const Slots<N>& x, int j) const {
    return {__fmul_rn(x.v[j], x.length[j]), x.length[j], 2.0f * fabsf(t[j]) + x.length[j] * x.length[j], square[j]};
  }
  __device__ void take(const float (&similarity)[N], Told of) {
#pragma unroll
    for (int j = 0; j < N; ++j) t[j] = __fadd_rn(t[j], similarity[j]);
    terms += of.added;
    sum_query = __fadd_rn(sum_query, of.product);
    sum_lengths = __fadd_rn(sum_lengths, of.length);
    sum_square = of.square;
  }
  __device__ float score(const Slots<N>&, int, float w, bool) const { return w; }
  __device__ float redundancy(int, bool) const { return nan(); }
};

}  // namespace rsk
