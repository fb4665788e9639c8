// MMR and MSD with quality bias, and VRSD, one block a query; the mathematics is in ragsys_kernels/selection/README.md,
// the rules for bad values and ties are those of every backend.
//
// Resident kernels bring the rows of the pool to shared memory once; streaming kernels read them again, from memory, as
// the pools of all blocks at work do not fit in the L2 cache together, at every step. An item belongs to one lane,
// which alone reads and writes what is kept of the item; so a step needs one barrier, before the bests of the warps are
// compared (VRSD: one more, for its sum).
//
// Eight lanes share a row, 16 bytes of it at a time, and a lane takes part in four rows at once. Accumulation is in
// float32 in a fixed order and every rounding is written out, so a query's bits depend on no other query, neither on
// the size of the block nor on the kind of kernel.
#include "select_meet.cuh"
#include "select_picks.cuh"
#include "select_pool.cuh"
#include "select_relevance.cuh"

namespace rsk {

// All open items meet the initial items one after another, then each pick.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::run() {
  collect();
  prepare_query();
  relate();
  float sum_query = 0.0f, sum_lengths = 0.0f;
  int taken = 0;  // initial items, then picks
  if (kOp == kVrsd) clear_sum();
  const int wanted = a.ks ? int(min(max(a.ks[q], 0ll), (long long)a.k)) : a.k;
  int made = 0;
#pragma unroll 1
  for (int step = -a.num_initial; step < wanted; ++step) {
    Row<T> vector;
    long long row, group = 0;
    int pick = -1;
    float its_scale;
    bool bars = false;
    if (step < 0) {
      row = initial_row(a.num_initial + step);
      if (row >= 0) {
        ++taken;
        vector = global_row(row);
        float product, norm2;
        meet_query(vector, product, norm2);
        its_scale = scale_of(row, norm2);
        if (kOp == kVrsd) {
          sum_query = __fadd_rn(sum_query, __fmul_rn(__fmul_rn(product, query_scale), its_scale));
          sum_lengths = __fadd_rn(sum_lengths, length_of(norm2, its_scale));
        }
      } else if (kOp != kVrsd || !taken || step < -1) {
        continue;
      }
    } else {
      if (!taken) score_by_relevance();
      compare(step);
      pick = at;
      if (pick == kNone) break;
      row = row_of(pick);
      write_pick(step, pick, row, taken);
      ++taken;
      made = step + 1;
      if (made == wanted) break;
      vector = pool_row(pick, row);
      its_scale = scale(pick);
      if (a.max_per_group) {
        group = a.groups[row];
        bars = reaches_cap(group, step);
      }
      if (kOp == kVrsd) {
        sum_query = __fadd_rn(sum_query, __fmul_rn(value(pick), aux(pick)));
        sum_lengths = __fadd_rn(sum_lengths, aux(pick));
      }
    }
    if (kOp != kVrsd) {
      meet_all(vector, its_scale, taken, pick, bars, group);
    } else {
      if (row >= 0) add(vector, its_scale);
      if (step < -1) continue;
      // The sum, of which each thread has made a part, is whole; all have read the pick's value, which its owner is
      // about to overwrite. The barrier of compare() keeps the sum from changing while it is read.
      SYNC(2);
      add_all(sum_query, sum_lengths, pick, bars, group);
    }
  }
  finish(made);
}

}  // namespace rsk

#define RSK_SELECT(name, T, op, resident, blocks)                        \
  extern "C" __global__ void __launch_bounds__(rsk::kMaxThreads, blocks) \
      name(const __grid_constant__ rsk::SelectArgs args) {               \
    DYN_SHARED(unsigned char, shared);                                   \
    rsk::Selector<T, op, resident>(args, shared).run();                  \
  }

// Blocks that a multiprocessor has registers for: resident, streaming MMR, streaming VRSD and MSD.
#define RSK_SELECT_ALL(name, T, resident_blocks, mmr_blocks, other_blocks)   \
  RSK_SELECT(rsk_mmr_resident_##name, T, rsk::kMmr, true, resident_blocks)   \
  RSK_SELECT(rsk_mmr_streaming_##name, T, rsk::kMmr, false, mmr_blocks)      \
  RSK_SELECT(rsk_vrsd_resident_##name, T, rsk::kVrsd, true, resident_blocks) \
  RSK_SELECT(rsk_vrsd_streaming_##name, T, rsk::kVrsd, false, other_blocks)  \
  RSK_SELECT(rsk_msd_resident_##name, T, rsk::kMsd, true, resident_blocks)   \
  RSK_SELECT(rsk_msd_streaming_##name, T, rsk::kMsd, false, other_blocks)

// Which element types are compiled, as bits; tests compile one, which is quicker.
#ifndef RSK_SELECT_TYPES
#define RSK_SELECT_TYPES 15
#endif
#if RSK_SELECT_TYPES & 1
// Shared memory leaves room for no more blocks of most pools.
RSK_SELECT_ALL(float32, float, 2, 3, 3)
#endif
#if RSK_SELECT_TYPES & 2
RSK_SELECT_ALL(float16, rsk::F16, 3, 3, 3)
#endif
#if RSK_SELECT_TYPES & 4
RSK_SELECT_ALL(bfloat16, rsk::BF16, 3, 3, 3)
#endif
#if RSK_SELECT_TYPES & 8
// A pack of 16 elements takes more registers.
RSK_SELECT_ALL(int8, rsk::I8, 2, 2, 2)
#endif
