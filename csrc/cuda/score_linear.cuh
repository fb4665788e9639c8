// The linear form: x is a row of hidden states times a row of weights, in full float32 whatever is stored. Every
// product is one chain of multiply-adds along the dimensions, so that the targets' own kernel has the bits of the
// tiles, and tiles of 16 and of 64 slots have the same.
#pragma once
#include "score_finish.cuh"

namespace rsk {

constexpr int kDepth = 32;         // dimensions of a slice
constexpr int kTileColumns = 128;  // of a tile, eight to a thread
constexpr int kSlab = 512;         // columns of a part, of which there are fewer than 2^16

// Stored elements of a type known when the kernel runs: 0 float32, 1 float16, 2 bfloat16.
struct Matrix {
  const void* data;
  long long stride;
  int dtype;
  // Whether every row is whole packs at aligned addresses.
  __device__ bool even(long long dims) const {
    const int size = dtype == 0 ? 4 : 2;
    return aligned16(data) && stride * size % 16 == 0 && dims * size % 16 == 0;
  }
};

__device__ inline float element(const Matrix& matrix, long long row, long long k) {
  const long long at = row * matrix.stride + k;
  if (matrix.dtype == 0) return static_cast<const float*>(matrix.data)[at];
  const unsigned short bits = static_cast<const unsigned short*>(matrix.data)[at];
  return matrix.dtype == 1 ? widen(F16{bits}) : widen(BF16{bits});
}

// A slice of ROWS rows, kDepth dimensions deep, as [dimension][row] in shared memory: of whole packs through registers,
// of anything else element by element. The rows are swizzled in groups of four by the dimension, so that neither the
// stores of packs, which go along the dimensions, nor the loads of a warp meet in a bank.
template <int ROWS>
struct Slice {
  static constexpr int kGroups = ROWS / 4 < 8 ? ROWS / 4 : 8;
  static __device__ int place(int k, int row) { return k * ROWS + (row ^ (k / 4 % kGroups * 4)); }

  uint4 raw[(ROWS * kDepth / 4 + kThreads - 1) / kThreads];

  template <class T, bool STORE>
  __device__ void packs(const Matrix& matrix, const long long* ids, long long from, long long dims, float* tile) {
    constexpr int P = kPack<T>, kPacks = kDepth / P;
#pragma unroll
    for (int i = 0; i < (ROWS * kPacks + kThreads - 1) / kThreads; ++i) {
      const int at = int(threadIdx.x) + i * kThreads, row = at / kPacks, k = at % kPacks * P;
      if (at >= ROWS * kPacks) continue;
      if (STORE) {
        float x[P];
        unpack(raw[i], x, T());
#pragma unroll
        for (int j = 0; j < P; j += 4) {  // four dimensions have one swizzle, and so one address
          float* four = tile + place(k + j, row);
          four[0] = x[j], four[ROWS] = x[j + 1], four[2 * ROWS] = x[j + 2], four[3 * ROWS] = x[j + 3];
        }
        continue;
      }
      const T* p = static_cast<const T*>(matrix.data) + max(ids[row], 0ll) * matrix.stride + from + k;
      raw[i] = make_uint4(0, 0, 0, 0);
      if (ids[row] >= 0 && from + k < dims) raw[i] = *reinterpret_cast<const uint4*>(p);
    }
  }
  __device__ void load(const Matrix& matrix, const long long* ids, long long from, long long dims) {
    if (matrix.dtype == 0) return packs<float, false>(matrix, ids, from, dims, nullptr);
    packs<F16, false>(matrix, ids, from, dims, nullptr);
  }
  __device__ void store(const Matrix& matrix, float* tile) {
    if (matrix.dtype == 0) return packs<float, true>(matrix, nullptr, 0, 0, tile);
    if (matrix.dtype == 1) return packs<F16, true>(matrix, nullptr, 0, 0, tile);
    packs<BF16, true>(matrix, nullptr, 0, 0, tile);
  }
  static __device__ void copy(const Matrix& matrix, const long long* ids, long long from, long long dims, float* tile) {
#pragma unroll 1
    for (int at = int(threadIdx.x); at < ROWS * kDepth; at += kThreads) {
      const int row = at / kDepth, k = at % kDepth;
      const bool exists = ids[row] >= 0 && from + k < dims;
      tile[place(k, row)] = exists ? element(matrix, ids[row], from + k) : 0.0f;
    }
  }
};

// What is done to a product, the options being known when the kernel runs.
struct Linear {
  const float* head_bias;
  float logit_scale, softcap;
  __device__ float operator()(float x, long long column, float inverse_temperature) const {
    if (head_bias) x = __fadd_rn(x, head_bias[column]);
    if (softcap > 0.0f) return Change<true>(logit_scale, softcap, inverse_temperature)(x);
    return Change<false>(logit_scale, softcap, inverse_temperature)(x);
  }
};

// Sixteen threads share a row; each has its own reference until the part is done.
struct RowSums {
  float top, sum, weighted;
  __device__ void add(const float (&z)[8]) {
    float largest = top;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, z[i]);
    move(largest);
    const float ref = about(top);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float d = z[i] - ref, e = exp_of(d);
      sum += e;
      weighted += fmaxf(d, kFar) * e;
    }
  }
  __device__ void move(float to) {
    if (to == top) return;
    const float d = fmaxf(top - to, kFar), scale = exp_of(d);
    weighted = scale * (weighted + d * sum);
    sum *= scale;
    top = to;
  }
};

template <int EACH>
__device__ inline void multiply(const float* a_tile, const float* b_tile, int x, int y, float (&z)[EACH][8]) {
#pragma unroll 1
  for (int k4 = 0; k4 < kDepth; k4 += 4) {
    const float* a = a_tile + Slice<16 * EACH>::place(k4, EACH * y);
    const float* b = b_tile + Slice<kTileColumns>::place(k4, 4 * x);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float left[EACH], right[8];
      if (EACH == 4) {
        const float4 four = *reinterpret_cast<const float4*>(a + k * 16 * EACH);
        left[0] = four.x, left[1 % EACH] = four.y, left[2 % EACH] = four.z, left[3 % EACH] = four.w;
      } else {
        left[0] = a[k * 16];
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 four = *reinterpret_cast<const float4*>(b + k * kTileColumns + 64 * h);
        right[4 * h] = four.x, right[4 * h + 1] = four.y, right[4 * h + 2] = four.z, right[4 * h + 3] = four.w;
      }
#pragma unroll
      for (int r = 0; r < EACH; ++r)
#pragma unroll
        for (int i = 0; i < 8; ++i) z[r][i] = __fmaf_rn(left[r], right[i], z[r][i]);
    }
  }
}

// A block has 16 EACH slots and a slab of the columns; thread (x, y) of 16 by 16 has slots EACH y and after, and of
// each tile columns 4x to 4x + 3 and 64 on from there.
template <int EACH>
__device__ inline void score_hidden(Matrix hidden, Matrix weight, long long dims, long long num_rows,
                                    const long long* rows, long long num_slots, const float* inverse_temperature,
                                    Linear linear, long long num_columns, const long long* allowed,
                                    long long num_allowed, const long long* pair_begin, long long num_pairs,
                                    const float* target, const float* than, const Parts& parts,
                                    const Results& results) {
  constexpr int kSlots = 16 * EACH;
  DYN_SHARED(float, shared);
  float* a_tile = shared;                                                             // [kDepth][kSlots]
  float* b_tile = a_tile + kDepth * kSlots;                                           // [kDepth][kTileColumns]
  long long* row_ids = reinterpret_cast<long long*>(b_tile + kDepth * kTileColumns);  // [kSlots]
  long long* column_ids = row_ids + kSlots;                                           // [kTileColumns]
  // A thread's own; in registers they would be in the way of the products.
  RowSums* sums = reinterpret_cast<RowSums*>(column_ids + kTileColumns);  // [EACH][kThreads]

  const int thread = int(threadIdx.x), x = thread % 16, y = thread / 16;
  const long long slot0 = (long long)blockIdx.x * kSlots;
  const int part = int(blockIdx.y), begin = part * kSlab;
  const int end = int(min((long long)begin + kSlab, allowed ? num_allowed : num_columns));
  const unsigned half = 0xffffu << (thread & 16);
  const bool a_even = hidden.even(dims), b_even = weight.even(dims);

  if (thread < kSlots) {
    const long long id = slot0 + thread < num_slots ? rows[slot0 + thread] : -1;
    row_ids[thread] = id < num_rows ? id : -1;
  }
#pragma unroll
  for (int r = 0; r < EACH; ++r) sums[r * kThreads + thread] = {-infinity(), 0.0f, 0.0f};

  for (int first = begin; first == begin || first < end; first += kTileColumns) {
    if (thread < kTileColumns) {
      const int at = first + thread;
      const long long c = at >= end ? -1 : allowed ? allowed[at] : at;
      column_ids[thread] = c < num_columns ? c : -1;
    }
    SYNC(5);
    float z[EACH][8] = {};
    Slice<kSlots> a;
    Slice<kTileColumns> b;
    // A slice is on its way while the one before it is multiplied.
    for (long long from = -kDepth; from < dims; from += kDepth) {
      const bool more = from + kDepth < dims;
      if (more && a_even) a.load(hidden, row_ids, from + kDepth, dims);
      if (more && b_even) b.load(weight, column_ids, from + kDepth, dims);
      if (from >= 0) multiply<EACH>(a_tile, b_tile, x, y, z);
      if (!more) break;
      SYNC(6);  // before the tiles that others still read
      a_even ? a.store(hidden, a_tile) : a.copy(hidden, row_ids, from + kDepth, dims, a_tile);
      b_even ? b.store(weight, b_tile) : b.copy(weight, column_ids, from + kDepth, dims, b_tile);
      SYNC(7);
    }
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
      const long long slot = slot0 + y * EACH + r;
      const bool exists = row_ids[y * EACH + r] >= 0;
      const float inverse = exists ? inverse_temperature[slot] : 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const long long c = column_ids[i / 4 * 64 + 4 * x + i % 4];
        z[r][i] = exists && c >= 0 ? linear(z[r][i], c, inverse) : -infinity();
      }
      RowSums mine = sums[r * kThreads + thread];
      mine.add(z[r]);
      sums[r * kThreads + thread] = mine;
      if (!parts.above || slot >= num_slots) continue;
      const long long last = min(pair_begin[slot + 1], num_pairs);
      for (long long pair = max(pair_begin[slot], 0ll); pair < last; ++pair) {
        unsigned count = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) count += z[r][i] > than[pair];
        count = lanes_sum(half, count);
        if (x != 0) continue;  // before the address, which would take registers of all
        int* const above = parts.above + pair * parts.count + part;
        publish(above, int(count) + (first > begin ? *above : 0));
      }
    }
    SYNC(8);  // before the ids of the next tile
  }

#pragma unroll 1
  for (int r = 0; r < EACH; ++r) {
    const long long slot = slot0 + y * EACH + r;
    RowSums mine = sums[r * kThreads + thread];
    float top = mine.top;
#pragma unroll
    for (int d = 8; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, d));
    mine.move(top);
#pragma unroll
    for (int d = 8; d > 0; d /= 2) {
      mine.sum += __shfl_xor_sync(kAll, mine.sum, d);
      mine.weighted += __shfl_xor_sync(kAll, mine.weighted, d);
    }
    if (x == 0 && slot < num_slots) parts.leave(slot, part, top, mine.sum, mine.weighted);
  }

  // The results of a slot, by a warp of the last part.
  if (!parts.all_done(blockIdx.x, reinterpret_cast<int*>(shared))) return;
  const auto target_of = [&](long long pair) { return target[pair]; };
  for (int i = thread / kWarp; i < kSlots && slot0 + i < num_slots; i += kWarps) {
    const long long first = max(pair_begin[slot0 + i], 0ll), last = min(pair_begin[slot0 + i + 1], num_pairs);
    if (row_ids[i] >= 0)
      finish(parts, results, slot0 + i, row_ids[i], first, last, thread % kWarp, kWarp, target_of);
    else if (thread % kWarp == 0)
      results.no_slot(slot0 + i);
  }
}

}  // namespace rsk

#define RSK_HIDDEN(slots, EACH)                                                                                      \
  extern "C" __global__ void __launch_bounds__(rsk::kThreads, 2) rsk_score_hidden_##slots(                           \
      const void* __restrict__ hidden, long long hidden_stride, int hidden_dtype, const void* __restrict__ weight,   \
      long long weight_stride, int weight_dtype, long long dims, long long num_rows,                                 \
      const long long* __restrict__ rows, long long num_slots, const float* __restrict__ inverse_temperature,        \
      const float* __restrict__ head_bias, float logit_scale, float softcap, long long num_columns,                  \
      const long long* __restrict__ allowed, long long num_allowed, const long long* __restrict__ pair_begin,        \
      long long num_pairs, const float* __restrict__ target, const float* __restrict__ than, rsk::Parts parts,       \
      rsk::Results results) {                                                                                        \
    rsk::score_hidden<EACH>({hidden, hidden_stride, hidden_dtype}, {weight, weight_stride, weight_dtype}, dims,      \
                            num_rows, rows, num_slots, inverse_temperature, {head_bias, logit_scale, softcap},       \
                            num_columns, allowed, num_allowed, pair_begin, num_pairs, target, than, parts, results); \
  }
RSK_HIDDEN(16, 1)
RSK_HIDDEN(64, 4)

// z of the targets, a warp to a slot; a block has eight. All lanes go along the same chain of multiply-adds.
extern "C" __global__ void __launch_bounds__(256)
    rsk_score_targets(const void* __restrict__ hidden, long long hidden_stride, int hidden_dtype,
                      const void* __restrict__ weight, long long weight_stride, int weight_dtype, long long dims,
                      long long num_rows, const long long* __restrict__ rows, long long num_slots,
                      const float* __restrict__ inverse_temperature, const float* __restrict__ head_bias,
                      float logit_scale, float softcap, long long num_columns, const long long* __restrict__ pair_begin,
                      const long long* __restrict__ columns, long long num_pairs, float* __restrict__ target) {
  using namespace rsk;
  const long long slot = (long long)blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  if (slot >= num_slots) return;
  const Matrix left = {hidden, hidden_stride, hidden_dtype}, right = {weight, weight_stride, weight_dtype};
  const Linear linear = {head_bias, logit_scale, softcap};
  const long long row = rows[slot], last = min(pair_begin[slot + 1], num_pairs);
  for (long long pair = max(pair_begin[slot], 0ll); pair < last; ++pair) {
    const long long c = columns[pair];
    float z = -infinity();
    if (row >= 0 && row < num_rows && c >= 0 && c < num_columns) {
      float x = 0.0f;
      float a = lane < dims ? element(left, row, lane) : 0.0f, b = lane < dims ? element(right, c, lane) : 0.0f;
      for (long long from = 0; from < dims; from += kWarp) {
        const long long next = from + kWarp + lane;
        const float next_a = next < dims ? element(left, row, next) : 0.0f;
        const float next_b = next < dims ? element(right, c, next) : 0.0f;
#pragma unroll 8
        for (int k = 0; k < kWarp; ++k) x = __fmaf_rn(__shfl_sync(kAll, a, k), __shfl_sync(kAll, b, k), x);
        a = next_a;
        b = next_b;
      }
      z = linear(x, c, inverse_temperature[slot]);
    }
    if (lane == 0) target[pair] = z;
  }
}
