// The pairs of a call as they were given, the rules for them, and their slots: Pairs in
// ragsys_kernels/scoring/problem.py.
#pragma once
#include "score_finish.cuh"

namespace rsk {

// How many elements of an ascending array are less than x.
__device__ inline long long below(long long x, const long long* ascending, long long size) {
  long long low = 0, high = size;
  while (low < high) {
    const long long middle = (low + high) / 2;
    if (ascending[middle] < x)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Members as `_rules` of scoring/cuda/backend.py gives them.
struct Rules {
  const long long* allowed;  // ascending; null: all columns enter
  const void* temperature;   // null: all have that of `inverse`
  const long long* begin;    // [A + 1] the pairs of each answer; null without temperatures of answers
  const long long* answers;  // [M] the answer of each pair, or null
  long long num_columns, num_allowed, num_answers, ignore;
  int ignores, per_pair, doubles;
  float inverse;

  __device__ bool ignored(long long target) const { return ignores && target == ignore; }
  // Whether a pair has a column to read.
  __device__ bool counts(long long target) const { return target >= 0 && target < num_columns && !ignored(target); }
  // The column of a target that counts; -1 where it does not enter.
  __device__ long long masked(long long column) const {
    if (!allowed) return column;
    const long long at = below(column, allowed, num_allowed);
    return at < num_allowed && allowed[at] == column ? column : -1;
  }
  __device__ float inverse_of(long long pair) const {
    if (!temperature) return inverse;
    long long at = 0;
    if (per_pair) {
      at = pair;
    } else if (answers) {
      at = min(max(answers[pair], 0ll), num_answers - 1);
    } else if (begin) {  // the answers that end at or before the pair
      at = min(below(pair + 1, begin + 1, num_answers), num_answers - 1);
    }
    const double t = doubles ? static_cast<const double*>(temperature)[at] : static_cast<const float*>(temperature)[at];
    return float(1.0 / t);
  }
};

constexpr int kSlotThreads = 1024;  // of the block that finds the slots

// The sum of x over the threads of a block before this one, and over all of them.
__device__ inline int block_before(int x, int* warps, int& total) {
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  int sum = x;
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const int other = __shfl_up_sync(kAll, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == kWarp - 1) warps[warp] = sum;
  SYNC(10);
  int before = sum - x;
  total = 0;
  for (int w = 0; w < kSlotThreads / kWarp; ++w) {
    if (w < warp) before += warps[w];
    total += warps[w];
  }
  SYNC(11);  // before the sums of the next call
  return before;
}

}  // namespace rsk

// The slots of pairs that name their rows, by one block: each step needs the one before for all pairs. An element of
// `leader` is read only if a pair has written it. Slots, and the pairs of a slot, come in any order, which no result
// depends on. Pairs and rows without a slot have their results here.
extern "C" __global__ void __launch_bounds__(1024)
    rsk_score_slots(const long long* __restrict__ targets, const long long* __restrict__ row_of, rsk::Rules rules,
                    long long num_pairs, long long num_rows, long long num_slots, int* leader, int* size,
                    long long* slot_of, long long* place, long long* rows, float* inverse_temperature,
                    long long* pair_begin, long long* columns, rsk::Results results) {
  using namespace rsk;
  DYN_SHARED(int, warps);  // [kSlotThreads / kWarp]
  const long long thread = threadIdx.x;
  for (long long row = thread; row < num_rows; row += kSlotThreads) results.no_row(row);
  const auto row_of_pair = [&](long long i) {
    const long long row = row_of[i];
    return row >= 0 && row < num_rows && rules.counts(targets[i]) ? row : -1ll;
  };
  // 1. A pair of each row: whichever comes last.
  for (long long i = thread; i < num_pairs; i += kSlotThreads) {
    const long long row = row_of_pair(i);
    place[i] = row;
    slot_of[i] = -1;
    if (row >= 0) atomicExch(leader + row, int(i));
  }
  SYNC(12);
  // 2. A slot for each.
  const float inverse = rules.inverse_of(0);
  int found = 0;
  for (long long start = 0; start < num_pairs; start += kSlotThreads) {
    const long long i = start + thread, row = i < num_pairs ? place[i] : -1;
    const int leads = row >= 0 && leader[row] == int(i);
    int total;
    const int before = block_before(leads, warps, total);
    if (leads) {
      const int slot = found + before;
      rows[slot] = row;
      slot_of[i] = slot;
      inverse_temperature[slot] = inverse;
      size[slot] = 0;
    }
    found += total;
  }
  for (long long slot = found + thread; slot < num_slots; slot += kSlotThreads) {
    rows[slot] = -1;
    inverse_temperature[slot] = inverse;
  }
  SYNC(13);
  // 3. A place for each pair.
  for (long long i = thread; i < num_pairs; i += kSlotThreads) {
    if (place[i] < 0) continue;
    const int leads = leader[place[i]];
    const long long slot = slot_of[leads];
    if (leads != int(i)) slot_of[i] = slot;
    place[i] = atomicAdd(size + slot, 1);
  }
  SYNC(14);
  int held = 0;
  for (long long start = 0; start < num_slots; start += kSlotThreads) {
    const long long slot = start + thread;
    const int own = slot < found ? size[slot] : 0;
    int total;
    const int before = block_before(own, warps, total);
    if (slot < num_slots) pair_begin[slot] = held + before;
    held += total;
  }
  if (thread == 0) pair_begin[num_slots] = held;
  SYNC(15);
  for (long long i = thread; i < num_pairs; i += kSlotThreads) {
    if (i >= held) columns[i] = -1;
    if (slot_of[i] < 0) {
      results.no_pair(i, rules.ignored(targets[i]));
      continue;
    }
    const long long at = pair_begin[slot_of[i]] + place[i];
    columns[at] = rules.masked(targets[i]);
    results.pair_of[at] = i;
  }
}

// Slot i is row i, and has pair i: what the linear form reads.
extern "C" __global__ void __launch_bounds__(256)
    rsk_score_aligned_slots(const long long* __restrict__ targets, rsk::Rules rules, long long num_pairs,
                            long long* __restrict__ rows, float* __restrict__ inverse_temperature,
                            long long* __restrict__ pair_begin, long long* __restrict__ columns, rsk::Results results) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= num_pairs) pair_begin[i] = i;
  if (i >= num_pairs) return;
  const bool counts = rules.counts(targets[i]);
  rows[i] = counts ? i : -1;
  columns[i] = counts ? rules.masked(targets[i]) : -1;
  inverse_temperature[i] = rules.inverse_of(i);
  if (counts) return;
  results.no_pair(i, rules.ignored(targets[i]));
  results.no_row(i);
}
