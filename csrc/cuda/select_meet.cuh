// Items meet a pick, or an initial item: what that changes for each, and which of them is then the best.
#pragma once
#include "selector.cuh"

namespace rsk {

// Gives the visitor four elements of each of the lane's four rows at a time.
template <class T, Op kOp, bool kResident>
template <class Visitor>
__device__ inline void Selector<T, kOp, kResident>::walk(const T* const (&rows)[kRowsAtOnce],
                                                         const Visitor& visitor) const {
  int pack = lane % kLanes;
#pragma unroll 1
  for (; pack < (kResident ? packs : whole); pack += kLanes) {
    uint4 raw[kRowsAtOnce];
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      raw[u] = make_uint4(0, 0, 0, 0);
      if (!kResident || rows[u]) raw[u] = load16(rows[u] + pack * kElements);
    }
    const uint4 its_raw = visitor.template load<!kResident>(pack);
#pragma unroll
    for (int c = 0; c < kElements / 4; ++c) {
      float y[Visitor::kNumbers];
      visitor.template four<!kResident>(its_raw, pack, c, y);
#pragma unroll
      for (int u = 0; u < kRowsAtOnce; ++u) {
        float x[4];
        unpack_four(raw[u], c, x, T());
        visitor.use(u, x, y);
      }
    }
  }
  // Rows in shared memory have whole packs only.
#pragma unroll 1
  for (; !kResident && pack < packs; pack += kLanes) {
#pragma unroll 1
    for (int c = 0; c < kElements / 4; ++c) {
      float y[Visitor::kNumbers];
      visitor.template four<false>({}, pack, c, y);
#pragma unroll
      for (int u = 0; u < kRowsAtOnce; ++u) {
        float x[4];
        load_four(rows[u], pack * kElements + 4 * c, a.dims, x);
        visitor.use(u, x, y);
      }
    }
  }
}

// The best item of this lane.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::restart() {
  best = -infinity();
  at = kNone;
}

template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::consider(float w, int item) {
  if (comes_before(w, item, best, at)) {
    best = w;
    at = item;
  }
}

// The first pick goes by relevance alone.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::score_by_relevance() {
  restart();
#pragma unroll 1
  for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
    const int item = own_item(base);
    if (owner() && item < a.pool) consider(value(item), item);
  }
}

// Whether the item of this lane is open after `pick` and the items of group `barred` have been closed.
template <class T, Op kOp, bool kResident>
__device__ inline bool Selector<T, kOp, kResident>::still_open(int item, int pick, bool bars, long long barred) {
  if (!owner() || item >= a.pool || is_nan(value(item))) return false;
  if (item != pick && !(bars && a.groups[row_of(item)] == barred)) return true;
  value(item) = nan();
  return false;
}

// MMR and MSD: all open items meet a pick, or an initial item, and then so many are taken; which is the best now.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::meet_all(const Row<T>& vector, float its_scale, int taken, int pick,
                                                             bool bars, long long barred) {
  const float lambda_d = a.lambda_d[q];
  restart();
#pragma unroll 1
  for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
    const int item = own_item(base);
    const bool open = still_open(item, pick, bars, barred);
    const unsigned votes = __ballot_sync(kAll, open);
    if (!votes) continue;
    const T* rows[kRowsAtOnce];
    find_rows(base, votes, vector.row, rows);
    float products[kRowsAtOnce] = {}, unused[kRowsAtOnce];
    walk(rows, Products<false, Row<T>>{vector, products, unused});
    const float product = sum_of_own(products, lane);
    if (!open) continue;
    const float similarity = __fmul_rn(__fmul_rn(product, its_scale), scale(item));
    // A similarity that is NaN stays: the item is never picked.
    const float running = kOp == kMsd                                    ? __fadd_rn(aux(item), similarity)
                          : is_nan(similarity) || similarity > aux(item) ? similarity
                                                                         : aux(item);
    if (is_nan(similarity)) value(item) = similarity;
    aux(item) = running;
    const float near = kOp == kMsd ? __fsub_rn(running, __fmul_rn(a.far, float(taken))) : running;
    consider(__fsub_rn(__fmul_rn(lambda_d, value(item)), __fmul_rn(__fsub_rn(1.0f, lambda_d), near)), item);
  }
}

// VRSD: which open item has the sum with the largest cosine.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::add_all(float sum_query, float sum_lengths, int pick, bool bars,
                                                            long long barred) {
  restart();
#pragma unroll 1
  for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
    const int item = own_item(base);
    const bool open = still_open(item, pick, bars, barred);
    const unsigned votes = __ballot_sync(kAll, open);
    if (!votes) continue;
    const T* rows[kRowsAtOnce];
    find_rows(base, votes, static_cast<const T*>(a.rows), rows);
    float scales[kRowsAtOnce], norms2[kRowsAtOnce] = {};
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) scales[u] = voted(votes, lane, u) ? scale(item_at(base, u)) : 0.0f;
    walk(rows, Lengths<T>{sum, scales, norms2});
    const float norm = __fsqrt_rn(sum_of_own(norms2, lane));
    if (!open) continue;
    const float product = __fadd_rn(sum_query, __fmul_rn(value(item), aux(item)));
    const bool zero = norm <= __fmul_rn(kZeroSum, __fadd_rn(sum_lengths, aux(item)));
    consider(zero ? 0.0f : __fdiv_rn(product, norm), item);
  }
}

// VRSD's sum; each thread has elements of its own.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::clear_sum() {
#pragma unroll 1
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x)
    for (int i = 0; i < kElements; ++i) sum[pack * kElements + i] = 0.0f;
}

template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::add(const Row<T>& row, float its_scale) {
#pragma unroll 1
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    const uint4 raw = row.template load<false>(pack);
#pragma unroll
    for (int c = 0; c < kElements / 4; ++c) {
      float x[4], *s = sum + pack * kElements + 4 * c;
      row.template four<false>(raw, pack, c, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] = __fmaf_rn(its_scale, x[i], s[i]);
    }
  }
}

}  // namespace rsk
