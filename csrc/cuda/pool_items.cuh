// What the items of a pool are to the query, out of products by matrix instructions, and the order of their values.
#pragma once
#include "matrix.cuh"
#include "pool_rules.cuh"

namespace rsk {

// An unsigned integer in the order of floats; the zeros are one. Never 0.
__device__ inline unsigned key_of(float x) {
  const unsigned bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits ^ (unsigned(int(bits) >> 31) | 0x80000000u);
}

// Where an item of the pool may be found: its position in the pool to its id, and that to its row; -1 where it is none.
__device__ inline long long id_in_pool(const SelectArgs& a, long long q, int position) {
  return a.candidates ? id_at(a.candidates, a.id_bytes, q * a.pool + position) : position;
}
__device__ inline long long row_of_id(const SelectArgs& a, long long q, long long id) {
  return id >= 0 && id < a.num_ids ? id + q * a.pool_stride : -1;
}

// What the query is multiplied with before it is taken apart, a power of two by which its largest element is between 1
// and 4, and what a product with that is multiplied with. By a warp.
struct QueryScale {
  float power, scale;
};
__device__ inline QueryScale scale_of_query(const SelectArgs& a, long long q, int lane) {
  const float* x = a.queries + q * a.dims;
  unsigned largest = 0;
#pragma unroll 1
  for (int d = lane; d < a.dims; d += kWarp) largest = max(largest, __float_as_uint(x[d]) & 0x7fffffffu);
  const unsigned exponent = min(max(__reduce_max_sync(kAll, largest) >> 23, 1u), 253u);
  const float power = __uint_as_float((254u - exponent) << 23);
  if (!a.unit_queries) return {power, __uint_as_float(exponent << 23)};
  float norm2 = 0.0f;
#pragma unroll 1
  for (int d = lane; d < a.dims; d += kWarp) {
    const float y = __fmul_rn(x[d], power);
    norm2 = __fmaf_rn(y, y, norm2);
  }
  norm2 = warp_sum(norm2);
  return {power, norm2 > 0.0f ? __fdiv_rn(1.0f, __fsqrt_rn(norm2)) : 0.0f};
}
// Two neighbouring elements of the query as words of its parts, from dimension d on.
template <class T>
__device__ inline void take_apart(const SelectArgs& a, long long q, int d, float power, unsigned (&words)[kParts<T>]) {
  const float* x = a.queries + q * a.dims;
  float rest = d < a.dims ? __fmul_rn(x[d], power) : 0.0f;
  float rest2 = d + 1 < a.dims ? __fmul_rn(x[d + 1], power) : 0.0f;
#pragma unroll
  for (int part = 0; part < kParts<T>; ++part) {
    const T y = narrow(rest, T()), y2 = narrow(rest2, T());
    words[part] = unsigned(y2.bits) << 16 | y.bits;
    rest = __fmul_rn(__fsub_rn(rest, widen(y)), kGrowth<T>);
    rest2 = __fmul_rn(__fsub_rn(rest2, widen(y2)), kGrowth<T>);
  }
}
// The product with the query out of those with its parts.
template <class T>
__device__ inline float put_together(const float (&of_parts)[kParts<T>]) {
  float x = 0.0f;
#pragma unroll
  for (int part = kParts<T> - 1; part >= 0; --part) x = __fmaf_rn(x, 1.0f / kGrowth<T>, of_parts[part]);
  return x;
}

// Sets slot j from what its row has: |row|^2 and the product with the unit query. Returns what makes the stored row the
// vector of the formulas. `position`: in the pool, -1 for an initial item.
template <class Rule, int N>
__device__ inline float settle(const SelectArgs& a, long long q, int position, long long row, float norm2,
                               float product, Slots<N>& x, int j) {
  const float scale = a.norm == kScaled    ? a.scales[row]
                      : a.norm == kAsGiven ? 1.0f
                      : norm2 == 0.0f      ? 0.0f
                      : finite(norm2)      ? __fdiv_rn(1.0f, __fsqrt_rn(norm2))
                                           : nan();
  if (Rule::kVrsd)
    x.length[j] = a.norm != kComputed ? __fmul_rn(__fsqrt_rn(norm2), fabsf(scale)) : scale > 0.0f ? 1.0f : scale;
  float r = a.queries ? __fmul_rn(product, scale) : 0.0f;
  if (Rule::kVrsd && a.norm != kComputed) r = x.length[j] == 0.0f ? 0.0f : __fdiv_rn(r, x.length[j]);
  if (a.relevance && position >= 0) r = a.relevance[q * a.pool + position];
  if (Rule::kBias && a.bias && position >= 0) {
    const float bias = a.bias[a.bias_per_item ? q * a.pool + position : row], lambda_b = a.lambda_b[q];
    r = __fadd_rn(__fmul_rn(lambda_b, r), __fmul_rn(__fsub_rn(1.0f, lambda_b), bias));
  }
  x.v[j] = r;
  return scale;
}

// A slot of the results.
__device__ inline void put(const SelectArgs& a, long long q, int slot, long long id, float score, float relevance,
                           float redundancy) {
  const long long out = q * a.k + slot;
  a.indices[out] = id;
  a.scores[out] = score;
  a.out_relevance[out] = relevance;
  a.redundancy[out] = redundancy;
}

}  // namespace rsk
