// The query, and what each item is to it.
#pragma once
#include "selector.cuh"

namespace rsk {

// The factor and scale that make the query a unit vector; every warp computes them for itself.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::prepare_query() {
  if (!a.queries || !a.unit_queries) return;
  const float* x = a.queries + q * a.dims;
#pragma unroll 1
  for (int attempt = 0; attempt < 2; ++attempt) {
    float norm2 = 0.0f;
#pragma unroll 1
    for (int d = lane; d < a.dims; d += kWarp) {
      const float y = __fmul_rn(x[d], query_factor);
      norm2 = __fmaf_rn(y, y, norm2);
    }
    norm2 = warp_sum(norm2);
    query_scale = norm2 > 0.0f ? __fdiv_rn(1.0f, __fsqrt_rn(norm2)) : 0.0f;
    if (norm2 >= kNorm2Min && norm2 <= kNorm2Max) return;
    query_factor = norm2 < 1.0f ? 1.2676506e30f : 7.888609e-31f;  // 2^100, 2^-100
  }
}

// The query in packs; zeros where the call has none.
template <class T, Op kOp, bool kResident>
__device__ inline Floats<T> Selector<T, kOp, kResident>::query() const {
  const float* x = a.queries ? a.queries + q * a.dims : nullptr;
  const int dims = x ? a.dims : 0;
  return {x, dims, aligned16(x) ? dims / kElements : 0, query_factor};
}

// The product of one row with the query and its squared norm, by a warp.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::meet_query(const Row<T>& row, float& product, float& norm2) const {
  const Floats<T> q_vector = query();
  product = norm2 = 0.0f;
#pragma unroll 1
  for (int pack = lane; pack < packs; pack += kWarp) {
    const uint4 raw = row.template load<false>(pack);
#pragma unroll 1
    for (int c = 0; c < kElements / 4; ++c) {
      float x[4], y[4];
      row.template four<false>(raw, pack, c, x);
      q_vector.template four<false>({}, pack, c, y);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        product = __fmaf_rn(x[i], y[i], product);
        norm2 = __fmaf_rn(x[i], x[i], norm2);
      }
    }
  }
  product = warp_sum(product);
  norm2 = warp_sum(norm2);
}

// What makes a stored row with this squared norm the vector of the formulas. A norm out of range gives NaN, with
// which no item is picked.
template <class T, Op kOp, bool kResident>
__device__ inline float Selector<T, kOp, kResident>::scale_of(long long row, float norm2) const {
  if (a.norm == kScaled) return a.scales[row];
  if (a.norm == kAsGiven) return 1.0f;
  if (norm2 == 0.0f) return 0.0f;
  return finite(norm2) ? __fdiv_rn(1.0f, __fsqrt_rn(norm2)) : nan();
}

template <class T, Op kOp, bool kResident>
__device__ inline float Selector<T, kOp, kResident>::length_of(float norm2, float its_scale) const {
  if (a.norm == kComputed) return its_scale > 0.0f ? 1.0f : its_scale;
  return __fmul_rn(__fsqrt_rn(norm2), fabsf(its_scale));
}

// The state of an item from what its row gave: relevance, what the rule makes of it, the scale.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::settle(int item, float product, float norm2) {
  const long long row = row_of(item);
  const float its_scale = scale_of(row, norm2), length = kOp == kVrsd ? length_of(norm2, its_scale) : 1.0f;
  float relevance = __fmul_rn(__fmul_rn(product, query_scale), its_scale);
  if (kOp == kVrsd && a.norm != kComputed) relevance = length == 0.0f ? 0.0f : __fdiv_rn(relevance, length);
  if (a.relevance) relevance = a.relevance[q * a.pool + item];
  if (kOp != kVrsd && a.bias) {
    const float bias = a.bias[a.bias_per_item ? q * a.pool + item : row], lambda_b = a.lambda_b[q];
    relevance = __fadd_rn(__fmul_rn(lambda_b, relevance), __fmul_rn(__fsub_rn(1.0f, lambda_b), bias));
  }
  value(item) = relevance;
  aux(item) = kOp == kVrsd ? length : kOp == kMsd ? 0.0f : -infinity();
  scale(item) = its_scale;
}

// All items meet the query.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::relate() {
#pragma unroll 1
  for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
    const int item = own_item(base);
    const bool open = owner() && item < a.pool && !is_nan(value(item));
    const unsigned votes = __ballot_sync(kAll, open);
    if (!votes) continue;
    const T* rows[kRowsAtOnce];
    find_rows(base, votes, static_cast<const T*>(a.rows), rows);
    float products[kRowsAtOnce] = {}, norms2[kRowsAtOnce] = {};
    if (kOp == kVrsd || a.queries || a.norm == kComputed) {
      const Floats<T> vector = query();
      walk(rows, Products<true, Floats<T>>{vector, products, norms2});
    }
    const float product = sum_of_own(products, lane), norm2 = sum_of_own(norms2, lane);
    if (open) settle(item, product, norm2);
  }
}

}  // namespace rsk
