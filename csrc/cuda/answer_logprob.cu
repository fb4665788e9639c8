// Log-sum-exp of jobs, a job being a row at a temperature, with what log p of its targets needs: ScoringProblem and
// Partials in ragsys_kernels/scoring/problem.py. A block takes one part of the columns of one job, and a second kernel
// merges the parts of a job in float64. Where the parts are cut, and which thread adds which columns in what order,
// depends on the number of columns alone, so that a row has its bits in any batch and at any address.
#include "answer_logprob.cuh"

namespace rsk {

// Logits. A block holds its columns in registers: one read, then the maximum, the sums about it, and the ranks.
constexpr int kThreads = 256;
constexpr int kColumns = 8192;
constexpr int kValues = kColumns / kThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPairs = 32;  // targets whose ranks are counted between two barriers

// A pack of elements from wherever they are: of the two aligned packs that they lie in.
template <class T>
__device__ inline void shifted_pack(const T* p, int shift, float (&out)[kPack<T>]) {
  const uint4* aligned = reinterpret_cast<const uint4*>(p - shift);
  const uint4 low = aligned[0], high = aligned[1];
  unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const int by = int(shift * sizeof(T));
  if (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 7; ++i)
      words[i] = unsigned(((unsigned long long)words[i + 1] << 32 | words[i]) >> 8 * (by & 2));
  }
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = by & 4 ? words[i + 1] : words[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = by & 8 ? words[i + 2] : words[i];
  unpack(make_uint4(words[0], words[1], words[2], words[3]), out, T());
}

// The column, less the part's first, of value i.
template <class T>
__device__ inline int offset_of(int i) {
  return (i / kPack<T> * kThreads + int(threadIdx.x)) * kPack<T> + i % kPack<T>;
}

// How the columns of a part are read: packs from aligned addresses; packs from addresses that are not, all of whose
// aligned packs but the first lie in the row; or whatever is in the row.
enum class Read { aligned, shifted, guarded };

template <class T, Read HOW>
__device__ inline void read(const T* row, long long begin, long long end, long long num_columns, int shift,
                            float (&x)[kValues]) {
  constexpr int P = kPack<T>;
#pragma unroll
  for (int i = 0; i < kValues; i += P) {
    const long long c = begin + offset_of<T>(i);
    const bool inside = HOW == Read::shifted ? i > 0 || c >= shift : c >= shift && c - shift + 2 * P <= num_columns;
    float pack[P];
    if (HOW == Read::aligned || (HOW == Read::guarded && shift == 0 && c + P <= end)) {
      load_pack(row + c, pack);
    } else if (inside) {
      shifted_pack(row + c, shift, pack);
    } else {
#pragma unroll
      for (int j = 0; j < P; ++j) pack[j] = c + j < end ? widen(row[c + j]) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < P; ++j) x[i + j] = pack[j];
  }
}

template <class T, bool CAPPED>
__device__ inline void score_logits(const T* logits, long long row_stride, long long num_rows, const long long* rows,
                                    const float* inverse_temperature, float logit_scale, float softcap,
                                    long long num_columns, const long long* allowed, long long num_allowed,
                                    const long long* pair_begin, const long long* columns, long long num_pairs,
                                    const float* target_logits, float* part_ref, float* part_sum, float* part_weighted,
                                    int* part_rank, float* target) {
  DYN_SHARED(float, shared);
  float* warp_max_of = shared;
  float* warp_sum_of = warp_max_of + kWarps;
  float* warp_weighted_of = warp_sum_of + kWarps;
  int* counts = reinterpret_cast<int*>(warp_weighted_of + kWarps);  // [kWarps][kPairs]

  const long long job = blockIdx.x, part = blockIdx.y, parts = gridDim.y;
  const int thread = int(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const long long id = rows[job];
  const bool there = id >= 0 && id < num_rows;
  const T* row = logits + (there ? id * row_stride : 0);
  const Change<CAPPED> change(logit_scale, softcap, inverse_temperature[job]);
  const long long first = max(pair_begin[job], 0ll), last = min(pair_begin[job + 1], num_pairs);
  const auto target_of = [&](long long pair) {
    const long long c = columns[pair];
    return there && c >= 0 && c < num_columns ? change(widen(row[c])) : -infinity();
  };
  if (part == 0)
    for (long long pair = first + thread; pair < last; pair += kThreads) target[pair] = target_of(pair);

  // 1. The values.
  const long long begin = part * kColumns;
  const long long entering = there ? (allowed ? num_allowed : num_columns) : 0;
  const long long end = min(begin + kColumns, entering);
  float z[kValues];
  if (allowed) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const long long at = begin + offset_of<T>(i);
      const long long c = at < end ? allowed[at] : -1;
      z[i] = c >= 0 && c < num_columns ? widen(row[c]) : -infinity();
    }
  } else {
    const int shift = int((reinterpret_cast<unsigned long long>(row) & 15) / sizeof(T));
    if (shift == 0 && end - begin == kColumns) {
      read<T, Read::aligned>(row, begin, end, num_columns, shift, z);
    } else if (end - begin == kColumns && end + kPack<T> <= num_columns) {
      read<T, Read::shifted>(row, begin, end, num_columns, shift, z);
    } else {
      read<T, Read::guarded>(row, begin, end, num_columns, shift, z);
    }
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) z[i] = change(z[i]);
  if (end - begin < kColumns) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) z[i] = begin + offset_of<T>(i) < end ? z[i] : -infinity();
  }

  // 2. Their maximum, which passes over NaN.
  float largest = z[0];
#pragma unroll
  for (int i = 1; i < kValues; ++i) largest = fmaxf(largest, z[i]);
  largest = warp_max(fmaxf(largest, -infinity()));
  if (lane == 0) warp_max_of[warp] = largest;
  SYNC(1);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, warp_max_of[w]);

  // 3. Sums about it: NaN if a value is NaN or +inf.
  const float ref = about(largest);
  float sums[4] = {}, weights[4] = {};
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const float d = z[i] - ref, e = exp_of(d);
    sums[i % 4] += e;
    if (part_weighted) weights[i % 4] += fmaxf(d, kFar) * e;
  }
  const float sum = warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  const float weighted = part_weighted ? warp_sum((weights[0] + weights[1]) + (weights[2] + weights[3])) : 0.0f;
  if (lane == 0) {
    warp_sum_of[warp] = sum;
    warp_weighted_of[warp] = weighted;
  }
  SYNC(2);
  if (thread == 0) {
    float total = 0.0f, total_weighted = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total += warp_sum_of[w];
      total_weighted += warp_weighted_of[w];
    }
    part_ref[job * parts + part] = largest;
    part_sum[job * parts + part] = total;
    if (part_weighted) part_weighted[job * parts + part] = total_weighted;
  }
  if (!part_rank) return;

  // 4. What exceeds each target here.
  for (long long pair = first; pair < last; pair += kPairs) {
    const int some = int(min(last - pair, (long long)kPairs));
    for (int k = 0; k < some; ++k) {
      const float than = target_logits ? target_logits[pair + k] : target_of(pair + k);
      unsigned count = 0;
#pragma unroll
      for (int i = 0; i < kValues; ++i) count += z[i] > than;
      count = lanes_sum(kAll, count);
      if (lane == 0) counts[warp * kPairs + k] = int(count);
    }
    SYNC(3);
    if (thread < some) {
      int count = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) count += counts[w * kPairs + thread];
      part_rank[(pair + thread) * parts + part] = count;
    }
    SYNC(4);  // before the counts of the next targets
  }
}

}  // namespace rsk

#define RSK_LOGITS(suffix, T, CAPPED)                                                                              \
  extern "C" __global__ void __launch_bounds__(rsk::kThreads) rsk_score_logits_##suffix(                           \
      const T* __restrict__ logits, long long row_stride, long long num_rows, const long long* __restrict__ rows,  \
      const float* __restrict__ inverse_temperature, float logit_scale, float softcap, long long num_columns,      \
      const long long* __restrict__ allowed, long long num_allowed, const long long* __restrict__ pair_begin,      \
      const long long* __restrict__ columns, long long num_pairs, const float* __restrict__ target_logits,         \
      float* __restrict__ part_ref, float* __restrict__ part_sum, float* __restrict__ part_weighted,               \
      int* __restrict__ part_rank, float* __restrict__ target) {                                                   \
    rsk::score_logits<T, CAPPED>(logits, row_stride, num_rows, rows, inverse_temperature, logit_scale, softcap,    \
                                 num_columns, allowed, num_allowed, pair_begin, columns, num_pairs, target_logits, \
                                 part_ref, part_sum, part_weighted, part_rank, target);                            \
  }
RSK_LOGITS(f32, float, false)
RSK_LOGITS(f16, rsk::F16, false)
RSK_LOGITS(bf16, rsk::BF16, false)
RSK_LOGITS(f32_softcap, float, true)
RSK_LOGITS(f16_softcap, rsk::F16, true)
RSK_LOGITS(bf16_softcap, rsk::BF16, true)

// The linear form: x is a row of hidden states times a row of weights, in full float32 whatever is stored. Every
// product is one chain of multiply-adds along the dimensions, so that the targets' own kernel has the bits of the
// tiles, and tiles of 16 and of 64 jobs have the same.
namespace rsk {

constexpr int kDepth = 32;         // dimensions of a slice
constexpr int kTileColumns = 128;  // of a tile, eight to a thread
constexpr int kSlab = 512;         // columns of a part

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
      const bool there = ids[row] >= 0 && from + k < dims;
      tile[place(k, row)] = there ? element(matrix, ids[row], from + k) : 0.0f;
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

// A block has 16 EACH jobs and a slab of the columns; thread (x, y) of 16 by 16 has jobs EACH y and after, and of each
// tile columns 4x to 4x + 3 and 64 on from there.
template <int EACH>
__device__ inline void score_hidden(Matrix hidden, Matrix weight, long long dims, long long num_rows,
                                    const long long* rows, long long num_jobs, const float* inverse_temperature,
                                    Linear linear, long long num_columns, const long long* allowed,
                                    long long num_allowed, const long long* pair_begin, long long num_pairs,
                                    const float* than, float* part_ref, float* part_sum, float* part_weighted,
                                    int* part_rank) {
  constexpr int kJobs = 16 * EACH;
  DYN_SHARED(float, shared);
  float* a_tile = shared;                                                             // [kDepth][kJobs]
  float* b_tile = a_tile + kDepth * kJobs;                                            // [kDepth][kTileColumns]
  long long* row_ids = reinterpret_cast<long long*>(b_tile + kDepth * kTileColumns);  // [kJobs]
  long long* column_ids = row_ids + kJobs;                                            // [kTileColumns]
  // A thread's own; in registers they would be in the way of the products.
  RowSums* sums = reinterpret_cast<RowSums*>(column_ids + kTileColumns);  // [EACH][kThreads]

  const int thread = int(threadIdx.x), x = thread % 16, y = thread / 16;
  const long long job0 = (long long)blockIdx.x * kJobs, part = blockIdx.y, parts = gridDim.y;
  const long long entering = allowed ? num_allowed : num_columns;
  const long long begin = part * kSlab, end = min(begin + kSlab, entering);
  const unsigned half = 0xffffu << (thread & 16);
  const bool a_even = hidden.even(dims), b_even = weight.even(dims);

  if (thread < kJobs) {
    const long long id = job0 + thread < num_jobs ? rows[job0 + thread] : -1;
    row_ids[thread] = id < num_rows ? id : -1;
  }
#pragma unroll
  for (int r = 0; r < EACH; ++r) sums[r * kThreads + thread] = {-infinity(), 0.0f, 0.0f};

  for (long long first = begin; first == begin || first < end; first += kTileColumns) {
    if (thread < kTileColumns) {
      const long long at = first + thread;
      const long long c = at >= end ? -1 : allowed ? allowed[at] : at;
      column_ids[thread] = c < num_columns ? c : -1;
    }
    SYNC(5);
    float z[EACH][8] = {};
    Slice<kJobs> a;
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
      const long long job = job0 + y * EACH + r;
      const bool there = row_ids[y * EACH + r] >= 0;
      const float inverse = there ? inverse_temperature[job] : 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const long long c = column_ids[i / 4 * 64 + 4 * x + i % 4];
        z[r][i] = there && c >= 0 ? linear(z[r][i], c, inverse) : -infinity();
      }
      RowSums mine = sums[r * kThreads + thread];
      mine.add(z[r]);
      sums[r * kThreads + thread] = mine;
      if (!part_rank || job >= num_jobs) continue;
      const long long last = min(pair_begin[job + 1], num_pairs);
      for (long long pair = max(pair_begin[job], 0ll); pair < last; ++pair) {
        unsigned count = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) count += z[r][i] > than[pair];
        count = lanes_sum(half, count);
        if (x == 0) part_rank[pair * parts + part] = int(count) + (first > begin ? part_rank[pair * parts + part] : 0);
      }
    }
    SYNC(8);  // before the ids of the next tile
  }

#pragma unroll
  for (int r = 0; r < EACH; ++r) {
    const long long job = job0 + y * EACH + r;
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
    if (x == 0 && job < num_jobs) {
      part_ref[job * parts + part] = top;
      part_sum[job * parts + part] = mine.sum;
      if (part_weighted) part_weighted[job * parts + part] = mine.weighted;
    }
  }
}

}  // namespace rsk

#define RSK_HIDDEN(jobs, EACH)                                                                                         \
  extern "C" __global__ void __launch_bounds__(rsk::kThreads, 2) rsk_score_hidden_##jobs(                              \
      const void* __restrict__ hidden, long long hidden_stride, int hidden_dtype, const void* __restrict__ weight,     \
      long long weight_stride, int weight_dtype, long long dims, long long num_rows,                                   \
      const long long* __restrict__ rows, long long num_jobs, const float* __restrict__ inverse_temperature,           \
      const float* __restrict__ head_bias, float logit_scale, float softcap, long long num_columns,                    \
      const long long* __restrict__ allowed, long long num_allowed, const long long* __restrict__ pair_begin,          \
      long long num_pairs, const float* __restrict__ than, float* __restrict__ part_ref, float* __restrict__ part_sum, \
      float* __restrict__ part_weighted, int* __restrict__ part_rank) {                                                \
    rsk::score_hidden<EACH>({hidden, hidden_stride, hidden_dtype}, {weight, weight_stride, weight_dtype}, dims,        \
                            num_rows, rows, num_jobs, inverse_temperature, {head_bias, logit_scale, softcap},          \
                            num_columns, allowed, num_allowed, pair_begin, num_pairs, than, part_ref, part_sum,        \
                            part_weighted, part_rank);                                                                 \
  }
RSK_HIDDEN(16, 1)
RSK_HIDDEN(64, 4)

// z of the targets, a warp to a job; a block has eight. All lanes go along the same chain of multiply-adds.
extern "C" __global__ void __launch_bounds__(256)
    rsk_score_targets(const void* __restrict__ hidden, long long hidden_stride, int hidden_dtype,
                      const void* __restrict__ weight, long long weight_stride, int weight_dtype, long long dims,
                      long long num_rows, const long long* __restrict__ rows, long long num_jobs,
                      const float* __restrict__ inverse_temperature, const float* __restrict__ head_bias,
                      float logit_scale, float softcap, long long num_columns, const long long* __restrict__ pair_begin,
                      const long long* __restrict__ columns, long long num_pairs, float* __restrict__ target) {
  using namespace rsk;
  const long long job = (long long)blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  if (job >= num_jobs) return;
  const Matrix left = {hidden, hidden_stride, hidden_dtype}, right = {weight, weight_stride, weight_dtype};
  const Linear linear = {head_bias, logit_scale, softcap};
  const long long row = rows[job], last = min(pair_begin[job + 1], num_pairs);
  for (long long pair = max(pair_begin[job], 0ll); pair < last; ++pair) {
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
      z = linear(x, c, inverse_temperature[job]);
    }
    if (lane == 0) target[pair] = z;
  }
}

// A warp merges the parts of a job; a block has eight.
extern "C" __global__ void __launch_bounds__(256)
    rsk_score_merge(long long num_jobs, long long parts, const float* __restrict__ part_ref,
                    const float* __restrict__ part_sum, const float* __restrict__ part_weighted,
                    const int* __restrict__ part_rank, const long long* __restrict__ pair_begin, long long num_pairs,
                    float* __restrict__ ref, float* __restrict__ largest, double* __restrict__ sum,
                    double* __restrict__ weighted, long long* __restrict__ rank) {
  using namespace rsk;
  const long long job = (long long)blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  if (job >= num_jobs) return;

  float top = -infinity();
  for (long long s = lane; s < parts; s += kWarp) {
    const float there = part_ref[job * parts + s];
    top = there < infinity() ? fmaxf(top, there) : top;
  }
  top = warp_max(top);
  double total = 0.0, total_weighted = 0.0;
  for (long long s = lane; s < parts; s += kWarp) {
    // A part without a finite value has sum 0, or NaN, and no reference.
    const float there = part_ref[job * parts + s];
    const double d = finite(there) ? double(there) - double(top) : 0.0, scale = exp(d);
    const double terms = part_sum[job * parts + s];
    total += scale * terms;
    if (part_weighted) total_weighted += scale * (part_weighted[job * parts + s] + d * terms);
  }
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) {
    total += __shfl_xor_sync(kAll, total, d);
    total_weighted += __shfl_xor_sync(kAll, total_weighted, d);
  }
  if (lane == 0) {
    ref[job] = top;
    largest[job] = total == total ? top : nan();
    sum[job] = total;
    if (weighted) weighted[job] = total_weighted;
  }
  if (!rank) return;
  const long long first = max(pair_begin[job], 0ll), last = min(pair_begin[job + 1], num_pairs);
  for (long long pair = first; pair < last; ++pair) {
    unsigned count = 0;
    for (long long s = lane; s < parts; s += kWarp) count += unsigned(part_rank[pair * parts + s]);
    count = lanes_sum(kAll, count);
    if (lane == 0) rank[pair] = count;
  }
}
