// Results of pairs, rows and answers from the parts of their slots: the formulas of finish.py.
#pragma once
#include "score_merge.cuh"
#include "score_pairs.cuh"

namespace rsk {

// What is said of each pair for its answer.
constexpr int kCounted = 1;
constexpr int kMissed = 2;  // a column has more than the target, or log p is NaN

}  // namespace rsk

// A warp has a pair, or after the pairs a row; a block has eight.
extern "C" __global__ void __launch_bounds__(256)
    rsk_score_finish(const long long* __restrict__ targets, rsk::Rules rules, long long num_pairs, long long num_rows,
                     long long num_slots, long long parts, const long long* __restrict__ rows,
                     const long long* __restrict__ slot_of, const long long* __restrict__ slot_of_row,
                     const long long* __restrict__ place, const float* __restrict__ target,
                     const float* __restrict__ part_ref, const float* __restrict__ part_sum,
                     const float* __restrict__ part_weighted, const int* __restrict__ part_rank,
                     float* __restrict__ logp, double* __restrict__ logp64, signed char* __restrict__ state,
                     long long* __restrict__ rank, float* __restrict__ lse, float* __restrict__ largest,
                     float* __restrict__ entropy, long long programs) {
  using namespace rsk;
  const long long i = (long long)blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  if (i >= programs) return;

  const bool is_pair = i < num_pairs;
  const long long row = i - num_pairs;
  // Where pairs have rows of their own, pair, row and slot have one number.
  long long slot = is_pair ? i : row;
  bool live;
  if (!slot_of) {
    live = rules.counts(targets[slot]);
  } else if (is_pair) {
    slot = slot_of[i];
    live = slot >= 0;
  } else {
    slot = slot_of_row[row];  // memory that no pair of the row has written may hold anything
    live = slot >= 0 && slot < num_slots && rows[slot] == row;
  }
  const Merged slots = live ? merged(slot, parts, part_ref, part_sum, part_weighted, lane) : Merged();

  if (is_pair) {
    const long long at = slot_of && live ? place[i] : i;
    unsigned above = 0;
    if (rank && live) {
      for (long long s = lane; s < parts; s += kWarp) above += unsigned(part_rank[at * parts + s]);
      above = lanes_sum(kAll, above);
    }
    if (lane != 0) return;
    const bool ignored = rules.ignored(targets[i]);
    const float z = live ? target[at] : -infinity();
    double value = double(nan());
    if (ignored) {
      value = 0.0;
    } else if (live) {
      // z - lse would cancel where both are large. The bound: the sum has the target's own term in it, but rounded.
      value = (double(z) - double(slots.top)) - log(slots.total);
      value = value > 0.0 ? 0.0 : value;
    }
    const bool known = value == value;
    if (logp) logp[i] = float(value);
    if (logp64) logp64[i] = value;
    if (state) state[i] = (signed char)(ignored ? 0 : known && z >= slots.top ? kCounted : kCounted | kMissed);
    if (rank) rank[i] = known ? (long long)above : -1;
    return;
  }
  if (lane != 0) return;
  const double log_total = log(slots.total);
  if (lse) lse[row] = live ? float(double(slots.top) + log_total) : nan();
  if (largest) largest[row] = live && slots.total == slots.total ? slots.top : nan();
  if (entropy) {
    const double value = log_total - slots.weighted / slots.total;
    entropy[row] = live ? float(value < 0.0 ? 0.0 : value) : nan();
  }
}

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
