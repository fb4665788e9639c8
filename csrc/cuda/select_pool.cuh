// Which items may be picked, and where their rows are.
#pragma once
#include "selector.cuh"

namespace rsk {

// The row of initial item s, or -1.
template <class T, Op kOp, bool kResident>
__device__ inline long long Selector<T, kOp, kResident>::initial_row(int s) const {
  const long long id = id_at(a.initial, a.initial_bytes, q * a.num_initial + s);
  return id >= 0 && id < a.num_ids ? id + q * a.pool_stride : -1;
}

// The row of an item that may be picked, or -1.
template <class T, Op kOp, bool kResident>
__device__ inline long long Selector<T, kOp, kResident>::eligible_row(int item) const {
  if (item >= a.pool) return -1;
  const long long id = id_of(item);
  if (id < 0 || id >= a.num_ids) return -1;
  const long long row = id + q * a.pool_stride;
#pragma unroll 1
  for (int s = 0; s < a.num_initial; ++s)
    if (initial_row(s) == row) return -1;
  if (!a.groups) return row;
  const long long group = a.groups[row];
  if (a.query_groups && group == a.query_groups[q]) return -1;
  if (!a.max_per_group) return row;
  long long count = 0;
#pragma unroll 1
  for (int s = 0; s < a.num_initial; ++s) {
    const long long other = initial_row(s);
    count += other >= 0 && a.groups[other] == group;
  }
  return count >= a.max_per_group ? -1 : row;
}

// Marks which items may be picked; brings their rows into shared memory.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::collect() {
#pragma unroll 1
  for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
    const long long of_lane = eligible_row(base + lane % kGroup);  // so that ids are waited for once
#pragma unroll 1
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const int item = item_at(base, u);
      const long long row = __shfl_sync(kAll, of_lane, item - base);
      if (item < a.pool && lane % kLanes == 2 * u) value(item) = row < 0 ? nan() : 0.0f;
      if (!kResident || row < 0) continue;
      const T* from = stored_row(row);
      T* to = resident_row(item);
      int pack = lane % kLanes;
      for (; pack < whole; pack += kLanes) copy16(to + pack * kElements, from + pack * kElements);
      for (; pack < packs; pack += kLanes)
        *reinterpret_cast<uint4*>(to + pack * kElements) =
            gather_pack(from + pack * kElements, a.dims - pack * kElements);
    }
  }
  if (kResident) copies_done();
}

// The four rows of the lane. The row of a closed item is not read from shared memory, where another warp may still be
// storing it; from global memory any row is read in its place, which takes fewer registers than reading none.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::find_rows(int base, unsigned votes, const T* any,
                                                              const T* (&rows)[kRowsAtOnce]) const {
#pragma unroll
  for (int u = 0; u < kRowsAtOnce; ++u) {
    const int item = item_at(base, u);
    const bool open = voted(votes, lane, u);
    if (kResident)
      rows[u] = open ? resident_row(item) : nullptr;
    else
      rows[u] = open ? stored_row(row_of(item)) : any;
  }
}

}  // namespace rsk
