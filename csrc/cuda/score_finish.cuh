// What blocks leave of their parts of a slot, and the results that the last of them makes of it: the formulas of
// finish.py.
#pragma once
#include "answer_logprob.cuh"

namespace rsk {

// What is said of each pair for its answer.
constexpr int kCounted = 1;
constexpr int kMissed = 2;  // a column has more than the target, or log p is NaN

// Members as `_parts` of scoring/cuda/backend.py gives them.
struct Parts {
  float* sums;     // [slots][count][width]: the largest z of a part, the sum about it, and of width 3 the weighted sum
  int* above;      // [M][count]: columns whose z exceeds that of a target; null without ranks
  unsigned* done;  // zeros, one for all parts of a slot or a tile, and zeros after the launch; null of one part
  int count, width;

  __device__ void leave(long long slot, long long part, float top, float sum, float weighted) const {
    float* const p = sums + (slot * count + part) * width;
    publish(p, top);
    publish(p + 1, sum);
    if (width == 3) publish(p + 2, weighted);
  }

  // Whether this block is the last of those that count at `at`; its threads then see what all of them left.
  __device__ bool all_done(long long at, int* shared) const {
    SYNC(16);  // this block's part is there
    if (count == 1) return true;
    if (threadIdx.x == 0) {
      FENCE(17);  // what it left comes before its count
      *shared = atomicInc(done + at, unsigned(count - 1)) == unsigned(count - 1);
      FENCE(18);  // what others left comes after theirs
    }
    SYNC(19);
    return *shared;
  }
};

struct Merged {
  float top = -infinity();
  double total = 0.0, weighted = 0.0;
};

// What a warp makes of the parts of a slot, in each lane. The order of the sums does not depend on who was last.
__device__ inline Merged merged(const Parts& parts, long long slot, int lane) {
  const float* const first = parts.sums + slot * parts.count * parts.width;
  Merged all;
#pragma unroll 1
  for (int s = lane; s < parts.count; s += kWarp) {
    const float its_ref = first[s * parts.width];
    all.top = its_ref < infinity() ? fmaxf(all.top, its_ref) : all.top;
  }
  all.top = warp_max(all.top);
#pragma unroll 1
  for (int s = lane; s < parts.count; s += kWarp) {
    const float* const p = first + s * parts.width;
    // A part without a finite value has sum 0, or NaN, and no reference.
    const double d = finite(p[0]) ? double(p[0]) - double(all.top) : 0.0, scale = exp(d);
    const double terms = p[1];
    all.total += scale * terms;
    if (parts.width == 3) all.weighted += scale * (p[2] + d * terms);
  }
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) {
    all.total += __shfl_xor_sync(kAll, all.total, d);
    all.weighted += __shfl_xor_sync(kAll, all.weighted, d);
  }
  return all;
}

// Where results go; null: not wanted. Members as `_results` of scoring/cuda/backend.py gives them.
struct Results {
  long long* pair_of;  // [M] which pair has a place among those of the slots; null: each has its own
  // [M], and [T].
  float* logp;
  double* logp64;
  signed char* state;
  long long* rank;
  float *lse, *largest, *entropy;
  // Instead of log p and lse Partials, by place and slot; so are `rank` and `largest` then.
  float* target;
  float* ref;
  double *sum, *weighted;

  __device__ void pair(long long i, double value, bool is_top, bool ignored, long long above) const {
    const bool known = value == value;
    if (logp) logp[i] = float(value);
    if (logp64) logp64[i] = value;
    if (state) state[i] = (signed char)(ignored ? 0 : known && is_top ? kCounted : kCounted | kMissed);
    if (rank) rank[i] = known ? above : -1;
  }
  // A pair or a row without a slot, and a slot without a row.
  __device__ void no_pair(long long i, bool ignored) const { pair(i, ignored ? 0.0 : nan(), false, ignored, 0); }
  __device__ void no_row(long long row) const {
    if (lse) lse[row] = nan();
    if (largest) largest[row] = nan();
    if (entropy) entropy[row] = nan();
  }
  __device__ void no_slot(long long slot) const {
    if (!sum) return;
    ref[slot] = largest[slot] = -infinity();
    sum[slot] = 0.0;
    if (weighted) weighted[slot] = 0.0;
  }
};

// The results of a slot by threads `index` of `step`, all lanes of each warp; `z_of` has z of the target at a place.
template <class Z>
__device__ inline void finish(const Parts& parts, const Results& to, long long slot, long long row, long long first,
                              long long last, int index, int step, const Z& z_of) {
  const int lane = index % kWarp;
  if (index >= kWarp && first + (index - lane) >= last) return;
  const Merged all = merged(parts, slot, lane);
  const double log_total = log(all.total);

#pragma unroll 1
  for (long long warp_first = first + (index - lane); warp_first < last; warp_first += step) {
    const long long at = warp_first + lane;
    unsigned above = 0;
    if (to.rank) {
#pragma unroll 1
      for (int i = 0; i < min(last - warp_first, (long long)kWarp); ++i) {
        const int* const its = parts.above + (warp_first + i) * parts.count;
        unsigned count = 0;
#pragma unroll 1
        for (int s = lane; s < parts.count; s += kWarp) count += unsigned(its[s]);
        count = lanes_sum(kAll, count);
        if (lane == i) above = count;
      }
    }
    if (at >= last) continue;
    const float z = z_of(at);
    if (to.sum) {
      if (to.target) to.target[at] = z;
      if (to.rank) to.rank[at] = above;
      continue;
    }
    // z - lse would cancel where both are large. The bound: the sum has the target's own term in it, but rounded.
    const double value = (double(z) - double(all.top)) - log_total;
    to.pair(to.pair_of ? to.pair_of[at] : at, value > 0.0 ? 0.0 : value, z >= all.top, false, above);
  }

  if (index != 0) return;
  const float largest = all.total == all.total ? all.top : nan();
  if (to.sum) {
    to.ref[slot] = all.top;
    to.largest[slot] = largest;
    to.sum[slot] = all.total;
    if (to.weighted) to.weighted[slot] = all.weighted;
  } else {
    if (to.lse) to.lse[row] = float(double(all.top) + log_total);
    if (to.largest) to.largest[row] = largest;
    if (to.entropy) {
      const double value = log_total - all.weighted / all.total;
      to.entropy[row] = float(value < 0.0 ? 0.0 : value);
    }
  }
}

}  // namespace rsk

// A warp has an answer: its lanes every 32nd pair, and a tree over them. Atomic sums would have other bits at every
// run.
extern "C" __global__ void __launch_bounds__(256)
    rsk_score_answers(const double* __restrict__ values, const signed char* __restrict__ state,
                      const long long* __restrict__ begin, const long long* __restrict__ order, long long num_pairs,
                      long long num_answers, double* __restrict__ sums, double* __restrict__ means,
                      long long* __restrict__ counts, signed char* __restrict__ greedy) {
  using namespace rsk;
  const long long answer = (long long)blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  if (answer >= num_answers) return;
  const long long first = begin ? max(begin[answer], 0ll) : 0;
  const long long last = begin ? min(begin[answer + 1], num_pairs) : num_pairs;
  double total = 0.0;
  unsigned counted = 0, missed = 0;
  for (long long at = first + lane; at < last; at += kWarp) {
    const long long pair = order ? order[at] : at;
    if (values) total += values[pair];
    if (state) {
      counted += unsigned(state[pair] & kCounted);
      missed += unsigned(state[pair] & kMissed);
    }
  }
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) total += __shfl_xor_sync(kAll, total, d);
  counted = lanes_sum(kAll, counted);
  missed = lanes_sum(kAll, missed);
  if (lane != 0) return;
  if (sums) sums[answer] = total;
  if (means) means[answer] = total / double(counted);
  if (counts) counts[answer] = counted;
  if (greedy) greedy[answer] = missed == 0;
}
