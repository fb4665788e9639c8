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

// What the query is multiplied with before it is taken apart, a power of two by which its largest element is of the
// size of parts, and what a product with that is multiplied with; NaN where an element is not finite. By a warp.
struct QueryScale {
  float power, scale;
};
template <class T>
__device__ inline QueryScale scale_of_query(const SelectArgs& a, long long q, int lane) {
  const float* x = a.queries + q * a.dims;
  unsigned largest = 0;
#pragma unroll 1
  for (int d = lane; d < a.dims; d += kWarp) largest = max(largest, __float_as_uint(x[d]) & 0x7fffffffu);
  const unsigned of_largest = __reduce_max_sync(kAll, largest) >> 23;
  const unsigned exponent = min(max(of_largest, 1u + kTop<T>), 253u);
  const float power = __uint_as_float((254u + kTop<T> - exponent) << 23);
  if (of_largest == 255u) return {power, nan()};
  if (!a.unit_queries) return {power, __uint_as_float((exponent - kTop<T>) << 23)};
  float norm2 = 0.0f;
#pragma unroll 1
  for (int d = lane; d < a.dims; d += kWarp) {
    const float y = __fmul_rn(x[d], power);
    norm2 = __fmaf_rn(y, y, norm2);
  }
  norm2 = warp_sum(norm2);
  return {power, norm2 > 0.0f ? __fdiv_rn(1.0f, __fsqrt_rn(norm2)) : 0.0f};
}
// Elements of the query from dimension d on, as many as a word has, as words of its parts.
template <class T>
__device__ inline void take_apart(const SelectArgs& a, long long q, int d, float power, unsigned (&words)[kParts<T>]) {
  const float* x = a.queries + q * a.dims;
  float rest[kOfWord<T>];
#pragma unroll
  for (int e = 0; e < kOfWord<T>; ++e) rest[e] = d + e < a.dims ? __fmul_rn(x[d + e], power) : 0.0f;
#pragma unroll
  for (int part = 0; part < kParts<T>; ++part) {
    words[part] = 0;
#pragma unroll
    for (int e = 0; e < kOfWord<T>; ++e) {
      const T y = narrow(rest[e], T());
      words[part] |= element_bits(y) << 8 * int(sizeof(T)) * e;
      rest[e] = __fmul_rn(__fsub_rn(rest[e], widen(y)), kGrowth<T>);
    }
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

// Sets slot j from what its row has: |row|^2 and the product with the parts of the query. Returns what makes the stored
// row the vector of the formulas. `position`: in the pool, -1 for an initial item.
template <class Rule, int N>
__device__ inline float settle(const SelectArgs& a, long long q, int position, long long row, float norm2,
                               float product, float query_scale, Slots<N>& x, int j) {
  const float scale = a.norm == kScaled    ? a.scales[row]
                      : a.norm == kAsGiven ? 1.0f
                      : norm2 == 0.0f      ? 0.0f
                      : finite(norm2)      ? __fdiv_rn(1.0f, __fsqrt_rn(norm2))
                                           : nan();
  if (Rule::kVrsd)
    x.length[j] = a.norm != kComputed ? __fmul_rn(__fsqrt_rn(norm2), fabsf(scale)) : scale > 0.0f ? 1.0f : scale;
  float r = a.queries ? __fmul_rn(__fmul_rn(product, scale), query_scale) : 0.0f;
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
