// The best item of the block, the cap of its group, and the outputs.
#pragma once
#include "selector.cuh"

namespace rsk {

// The best item of all warps, in every thread.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::compare(int step) {
  warp_arg_max(best, at);
  if (lane == 0) {
    bests(step)[warp] = best;
    their_items(step)[warp] = at;
  }
  // From here on every warp sees the bests of all warps, and the resident rows and scales. Even and odd steps have
  // arrays of their own, so no warp overwrites what a slower one still reads.
  SYNC(1);
  best = lane < warps ? bests(step)[lane] : -infinity();
  at = lane < warps ? their_items(step)[lane] : kNone;
  warp_arg_max(best, at);
}

// Whether the pick's group has now reached its cap; remembers the group.
template <class T, Op kOp, bool kResident>
__device__ inline bool Selector<T, kOp, kResident>::reaches_cap(long long group, int picks) {
  long long count = 1;
#pragma unroll 1
  for (int s = 0; s < a.num_initial; s += kWarp) {
    const long long row = s + lane < a.num_initial ? initial_row(s + lane) : -1;
    count += __popc(__ballot_sync(kAll, row >= 0 && a.groups[row] == group));
  }
#pragma unroll 1
  for (int s = 0; s < picks; s += kWarp)
    count += __popc(__ballot_sync(kAll, s + lane < picks && picked_groups[s + lane] == group));
  if (threadIdx.x == 0) picked_groups[picks] = group;  // read after the next barrier
  return count >= a.max_per_group;
}

template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::put(int slot, long long index, float score, float relevance,
                                                        float redundancy) {
  const long long out = q * a.k + slot;
  a.indices[out] = index;
  a.scores[out] = score;
  a.out_relevance[out] = relevance;
  a.redundancy[out] = redundancy;
}

template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::write_pick(int slot, int pick, long long row, int taken) {
  if (!owns(pick)) return;
  const float v = value(pick);
  const float score = kOp != kVrsd && !taken ? __fmul_rn(a.lambda_d[q], v) : best;
  const float redundancy = kOp == kVrsd  ? nan()
                           : !taken      ? 0.0f
                           : kOp == kMsd ? __fdiv_rn(aux(pick), float(taken))
                                         : aux(pick);
  put(slot, row - q * a.pool_stride, score, v, redundancy);
}

// Marks the rest of the slots as empty.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::finish(int made) {
  for (int slot = made + threadIdx.x; slot < a.k; slot += blockDim.x) put(slot, -1, -infinity(), nan(), nan());
  if (threadIdx.x == 0) a.lengths[q] = made;
}

}  // namespace rsk
