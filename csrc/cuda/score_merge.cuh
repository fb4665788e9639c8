// The parts of a slot put together, in float64.
#pragma once
#include "answer_logprob.cuh"

namespace rsk {

struct Merged {
  float top = -infinity();
  double total = 0.0, weighted = 0.0;
};

// What a warp makes of the parts of a slot, in each lane.
__device__ inline Merged merged(long long slot, long long parts, const float* part_ref, const float* part_sum,
                                const float* part_weighted, int lane) {
  Merged all;
  for (long long s = lane; s < parts; s += kWarp) {
    const float its_ref = part_ref[slot * parts + s];
    all.top = its_ref < infinity() ? fmaxf(all.top, its_ref) : all.top;
  }
  all.top = warp_max(all.top);
  for (long long s = lane; s < parts; s += kWarp) {
    // A part without a finite value has sum 0, or NaN, and no reference.
    const float its_ref = part_ref[slot * parts + s];
    const double d = finite(its_ref) ? double(its_ref) - double(all.top) : 0.0, scale = exp(d);
    const double terms = part_sum[slot * parts + s];
    all.total += scale * terms;
    if (part_weighted) all.weighted += scale * (part_weighted[slot * parts + s] + d * terms);
  }
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) {
    all.total += __shfl_xor_sync(kAll, all.total, d);
    all.weighted += __shfl_xor_sync(kAll, all.weighted, d);
  }
  return all;
}

}  // namespace rsk

// A warp merges the parts of a slot; a block has eight.
extern "C" __global__ void __launch_bounds__(256)
    rsk_score_merge(long long num_slots, long long parts, const float* __restrict__ part_ref,
                    const float* __restrict__ part_sum, const float* __restrict__ part_weighted,
                    const int* __restrict__ part_rank, const long long* __restrict__ pair_begin, long long num_pairs,
                    float* __restrict__ ref, float* __restrict__ largest, double* __restrict__ sum,
                    double* __restrict__ weighted, long long* __restrict__ rank) {
  using namespace rsk;
  const long long slot = (long long)blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  if (slot >= num_slots) return;

  const Merged all = merged(slot, parts, part_ref, part_sum, part_weighted, lane);
  if (lane == 0) {
    ref[slot] = all.top;
    largest[slot] = all.total == all.total ? all.top : nan();
    sum[slot] = all.total;
    if (weighted) weighted[slot] = all.weighted;
  }
  if (!rank) return;
  const long long first = max(pair_begin[slot], 0ll), last = min(pair_begin[slot + 1], num_pairs);
  for (long long pair = first; pair < last; ++pair) {
    unsigned count = 0;
    for (long long s = lane; s < parts; s += kWarp) count += unsigned(part_rank[pair * parts + s]);
    count = lanes_sum(kAll, count);
    if (lane == 0) rank[pair] = count;
  }
}
