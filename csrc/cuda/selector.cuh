// The selection of one query by one block: its state, and where its parts are.
//
//   part                                            file
//   1. which items may be picked, their rows        select_pool.cuh
//   2. the query, relevance of the items            select_relevance.cuh
//   3. items meet a pick: similarities, the best    select_meet.cuh
//   4. the best of all warps, groups, outputs       select_picks.cuh
//   the order of all that: run()                    greedy_select.cu
#pragma once
#include "select_args.cuh"
#include "select_rows.cuh"

namespace rsk {

constexpr int kMaxThreads = 256;
constexpr int kMaxWarps = kMaxThreads / kWarp;
constexpr int kBestBytes = 2 * kMaxWarps * int(sizeof(float) + sizeof(int));
constexpr int kNone = 0x7fffffff;
// Squared norms of queries outside this range lose precision or overflow in float32; such queries are first multiplied
// by a power of two.
constexpr float kNorm2Min = 1e-30f, kNorm2Max = 1e30f;

template <class T, Op kOp, bool kResident>
struct Selector {
  static constexpr int kElements = kPack<T>;
  const SelectArgs& a;
  unsigned char* const shared;
  const long long q;
  const int warp, warps, lane;
  const int packs;  // of a row, the last one perhaps partial
  const int whole;  // of them, those that can be loaded with 16 bytes from global memory
  // The state of the selection.
  float* sum;                // VRSD: the sum of the picks, padded with zeros
  long long* picked_groups;  // the group of each pick
  // The bests of the warps and their items, an array each for even and for odd steps.
  __device__ float* bests(int step) const { return reinterpret_cast<float*>(shared) + (step & 1) * kMaxWarps; }
  __device__ int* their_items(int step) const {
    return reinterpret_cast<int*>(shared + kBestBytes / 2) + (step & 1) * kMaxWarps;
  }
  // Arrays of a number for each item: v (VRSD: relevance), which is NaN once the item can't be picked (any more);
  // the max similarity to the picks (MSD: the sum of those; VRSD: the length); the scale that makes the stored row the
  // vector of the formulas.
  float* values;
  __device__ float& value(int item) const { return values[item]; }
  __device__ float& aux(int item) const { return values[(long long)a.pool + item]; }
  __device__ float& scale(int item) const { return values[2ll * a.pool + item]; }
  float query_factor = 1.0f, query_scale = 1.0f;
  float best = -infinity();
  int at = kNone;

  __device__ Selector(const SelectArgs& args, unsigned char* dynamic)
      : a(args),
        shared(dynamic),
        q(args.first_query + blockIdx.x),
        warp(threadIdx.x / kWarp),
        warps(blockDim.x / kWarp),
        lane(threadIdx.x % kWarp),
        packs((args.dims + kElements - 1) / kElements),
        whole(aligned16(args.rows) && args.row_stride % kElements == 0 ? args.dims / kElements : 0) {
    // Resident kernels keep the state in shared memory always: known to the compiler, its loads are shorter.
    float* state = reinterpret_cast<float*>(shared + kBestBytes + (kResident ? a.pool : 0) * packs * 16);
    if (!kResident && a.workspace) state = a.workspace + blockIdx.x * a.workspace_stride;
    sum = state;
    if (kOp == kVrsd) state += packs * kElements;
    picked_groups = reinterpret_cast<long long*>(state);
    values = reinterpret_cast<float*>(a.max_per_group ? picked_groups + a.k : picked_groups);
  }

  __device__ const T* stored_row(long long row) const { return static_cast<const T*>(a.rows) + row * a.row_stride; }
  __device__ long long id_of(int item) const {
    return a.candidates ? id_at(a.candidates, a.id_bytes, q * a.pool + item) : item;
  }
  __device__ long long row_of(int item) const { return id_of(item) + q * a.pool_stride; }
  __device__ Row<T> global_row(long long row) const { return {stored_row(row), a.dims, whole}; }
  __device__ T* resident_row(int item) const { return reinterpret_cast<T*>(shared + kBestBytes + item * packs * 16); }
  // Padded with zeros to whole packs.
  __device__ Row<T> pool_row(int item, long long row) const {
    return kResident ? Row<T>{resident_row(item), a.dims, packs} : global_row(row);
  }

  // Items base + 4 u + lane / 8 meet a vector together; the lane owns the one of u = lane % 8 / 2 if it is even.
  __device__ int item_at(int base, int u) const { return base + kWarp / kLanes * u + lane / kLanes; }
  __device__ int own_item(int base) const { return item_at(base, lane % kLanes / 2); }
  __device__ bool owner() const { return lane % 2 == 0; }
  // Whether this lane owns the item.
  __device__ bool owns(int item) const {
    return owner() && item / kGroup % warps == warp && own_item(item / kGroup * kGroup) == item;
  }
  // Whether item_at(base, u) is open, from the owners' votes.
  __device__ static bool voted(unsigned votes, int lane, int u) {
    return votes >> (lane / kLanes * kLanes + 2 * u) & 1;
  }

  // select_pool.cuh
  __device__ long long initial_row(int s) const;
  __device__ long long eligible_row(int item) const;
  __device__ void collect();
  __device__ void find_rows(int base, unsigned votes, const T* any, const T* (&rows)[kRowsAtOnce]) const;

  // select_relevance.cuh
  __device__ void prepare_query();
  __device__ Floats<T> query() const;
  __device__ void meet_query(const Row<T>& row, float& product, float& norm2) const;
  __device__ float scale_of(long long row, float norm2) const;
  __device__ float length_of(float norm2, float its_scale) const;
  __device__ void relate();
  __device__ void settle(int item, float product, float norm2);

  // select_meet.cuh
  template <class Visitor>
  __device__ void walk(const T* const (&rows)[kRowsAtOnce], const Visitor& visitor) const;
  __device__ void restart();
  __device__ void consider(float w, int item);
  __device__ void score_by_relevance();
  __device__ bool still_open(int item, int pick, bool bars, long long barred);
  __device__ void meet_all(const Row<T>& vector, float its_scale, int taken, int pick, bool bars, long long barred);
  __device__ void add_all(float sum_query, float sum_lengths, int pick, bool bars, long long barred);
  __device__ void clear_sum();
  __device__ void add(const Row<T>& row, float its_scale);

  // select_picks.cuh
  __device__ void compare(int step);
  __device__ bool reaches_cap(long long group, int picks);
  __device__ void put(int slot, long long index, float score, float relevance, float redundancy);
  __device__ void write_pick(int slot, int pick, long long row, int taken);
  __device__ void finish(int made);

  __device__ void run();
};

}  // namespace rsk
