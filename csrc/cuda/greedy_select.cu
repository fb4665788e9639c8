// MMR with quality bias and VRSD, one block a query; the mathematics is in ragsys_kernels/selection/README.md, the
// rules for bad values and ties are those of every backend.
//
// Resident kernels bring the rows of the pool to shared memory once; streaming kernels read them again at every step,
// from the L2 cache as a rule. An item belongs to one warp, and in it to one lane, which alone reads and writes what is
// kept of the item; so a step needs one barrier, for the best of the warps to be compared (VRSD: one more, for its
// sum).
//
// Eight lanes share a row, 16 bytes of it at a time, and a lane takes part in four rows at once. Accumulation is in
// float32 in a fixed order and every rounding is written out, so a query's bits depend on no other query, neither on
// the size of the block nor on the kind of kernel.
#include "common.cuh"

namespace rsk {

enum Norm { kAsGiven = 0, kScaled = 1, kComputed = 2 };

// Sizes and strides in elements. Which pointers may be null is said in ragsys_kernels/_problem.py.
struct SelectArgs {
  long long first_query, num_ids, row_stride, pool_stride, max_per_group;
  int pool, dims, k, num_initial, norm, unit_queries, id_bytes, initial_bytes, bias_per_item;
  const void* rows;               // (N, D)
  const float* scales;            // (N,)
  const float* queries;           // (Q, D)
  const void* candidates;         // (Q, P) ids, anything out of range is padding
  const void* initial;            // (Q, S) ids, likewise
  const float* relevance;         // (Q, P)
  const float* bias;              // (N,) or, with bias_per_item, (Q, P)
  const float* lambda_d;          // (Q,)
  const float* lambda_b;          // (Q,)
  const long long* ks;            // (Q,)
  const long long* groups;        // (N,)
  const long long* query_groups;  // (Q,)
  float* workspace;               // the state of each block; null: it is in shared memory
  long long workspace_stride;     // from one block's to the next, in floats, a multiple of 4
  long long* indices;             // (Q, K), as all that follow but the lengths; every element is written
  float* scores;
  float* out_relevance;
  float* redundancy;
  int* lengths;  // (Q,)
};

constexpr int kLanes = 8;                             // that share a row
constexpr int kRowsAtOnce = 4;                        // that a lane takes part in
constexpr int kGroup = kWarp / kLanes * kRowsAtOnce;  // items of a warp that are treated together
constexpr int kMaxThreads = 256;
constexpr int kMaxWarps = kMaxThreads / kWarp;
constexpr int kBestBytes = 2 * kMaxWarps * int(sizeof(float) + sizeof(int));
constexpr int kNone = 0x7fffffff;
// A sum of vectors shorter than this share of its terms' lengths is zero to the precision of float32 data.
constexpr float kZeroSum = 1e-6f;
// Squared norms of queries outside this range lose precision or overflow in float32; such queries are first multiplied
// by a power of two.
constexpr float kNorm2Min = 1e-30f, kNorm2Max = 1e30f;

__device__ inline long long id_at(const void* ids, int bytes, long long i) {
  return bytes == 4 ? static_cast<const int*>(ids)[i] : static_cast<const long long*>(ids)[i];
}
__device__ inline bool is_nan(float x) { return x != x; }

// Four elements from p[first] on, zeros beyond the last dimension.
template <class T>
__device__ inline void load_four(const T* p, int first, int dims, float (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = first + i < dims ? widen(p[first + i]) : 0.0f;
}

// A vector that rows meet is taken four elements at a time, which spares registers. This is a stored row, of which the
// first `whole` packs can be loaded as such; kWhole says that this one can.
template <class T>
struct Row {
  const T* row;
  int dims, whole;
  template <bool kWhole>
  __device__ uint4 load(int pack) const {
    const bool can = kWhole || pack < whole;
    return can ? *reinterpret_cast<const uint4*>(row + pack * kPack<T>) : make_uint4(0, 0, 0, 0);
  }
  template <bool kWhole>
  __device__ void four(uint4 raw, int pack, int c, float (&out)[4]) const {
    if (kWhole || pack < whole)
      unpack_four(raw, c, out, T());
    else
      load_four(row, pack * kPack<T> + 4 * c, dims, out);
  }
};
// float32 in packs of T's size, times a factor.
template <class T>
struct Floats {
  const float* x;
  int dims, whole;
  float factor;
  template <bool>
  __device__ uint4 load(int) const {
    return make_uint4(0, 0, 0, 0);
  }
  template <bool>
  __device__ void four(uint4, int pack, int c, float (&out)[4]) const {
    const int first = pack * kPack<T> + 4 * c;
    if (pack < whole) {
      const float4 y = *reinterpret_cast<const float4*>(x + first);
      out[0] = y.x, out[1] = y.y, out[2] = y.z, out[3] = y.w;
    } else {
      load_four(x, first, dims, out);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = __fmul_rn(out[i], factor);
  }
};

// Sums over the eight lanes of a row for four rows: a lane gets that of row (lane % 8) / 2.
__device__ inline float sum_of_own(const float (&x)[kRowsAtOnce], int lane) {
  const bool upper = lane & 4, odd = lane & 2;
  const float a = __fadd_rn(upper ? x[2] : x[0], __shfl_xor_sync(kAll, upper ? x[0] : x[2], 4));
  const float b = __fadd_rn(upper ? x[3] : x[1], __shfl_xor_sync(kAll, upper ? x[1] : x[3], 4));
  const float c = __fadd_rn(odd ? b : a, __shfl_xor_sync(kAll, odd ? a : b, 2));
  return __fadd_rn(c, __shfl_xor_sync(kAll, c, 1));
}

template <class T, bool kVrsd, bool kResident>
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
  long long* picked_groups;  // of the picks
  // Of the warps, for even and odd steps.
  __device__ float* bests(int step) const { return reinterpret_cast<float*>(shared) + (step & 1) * kMaxWarps; }
  __device__ int* their_items(int step) const {
    return reinterpret_cast<int*>(shared + kBestBytes / 2) + (step & 1) * kMaxWarps;
  }
  // Three arrays of a number for each item: v (VRSD: relevance), which is NaN once the item can't be picked (any more);
  // the max similarity to the picks (VRSD: the length); the scale that makes the stored row the vector of the formulas.
  float* values;
  __device__ float& value(int item) const { return values[item]; }
  __device__ float& aux(int item) const { return values[a.pool + item]; }
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
    // Where the state is known to be in shared memory the compiler uses that.
    float* state = reinterpret_cast<float*>(shared + kBestBytes + (kResident ? a.pool * packs * 16 : 0));
    if (!kResident && a.workspace) state = a.workspace + blockIdx.x * a.workspace_stride;
    sum = state;
    if (kVrsd) state += packs * kElements;
    picked_groups = reinterpret_cast<long long*>(state);
    if (a.max_per_group) state += 2ll * a.k;
    values = state;
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

  // The row of initial item s, or -1.
  __device__ long long initial_row(int s) const {
    const long long id = id_at(a.initial, a.initial_bytes, q * a.num_initial + s);
    return id >= 0 && id < a.num_ids ? id + q * a.pool_stride : -1;
  }
  // The row of an item that may be picked, or -1.
  __device__ long long eligible_row(int item) const {
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

  // Items base + 4 u + lane / 8 meet a vector together; the lane owns the one of u = lane % 8 / 2 if it is even.
  __device__ int item_at(int base, int u) const { return base + kWarp / kLanes * u + lane / kLanes; }
  __device__ int own_item(int base) const { return item_at(base, lane % kLanes / 2); }
  __device__ bool owner() const { return lane % 2 == 0; }
  // Whether item_at(base, u) is open, from the owners' votes.
  __device__ static bool voted(unsigned votes, int lane, int u) {
    return votes >> (lane / kLanes * kLanes + 2 * u) & 1;
  }

  // The product of one row with the query and its squared norm, by a warp.
  __device__ void meet_query(const Row<T>& row, float& product, float& norm2) const {
    const Floats<T> q_vector = query();
    product = norm2 = 0.0f;
#pragma unroll 1
    for (int pack = lane; pack < packs; pack += kWarp) {
      const uint4 raw = row.template load<false>(pack);
#pragma unroll 1
      for (int c = 0; c < kElements / 4; ++c) {
        float x[4], y[4];
        row.template four<false>(raw, pack, c, x);
        q_vector.template four<false>({}, pack, c, y);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          product = __fmaf_rn(x[i], y[i], product);
          norm2 = __fmaf_rn(x[i], x[i], norm2);
        }
      }
    }
    product = warp_sum(product);
    norm2 = warp_sum(norm2);
  }
  // What makes a stored row with this squared norm the vector of the formulas. A norm out of range gives NaN, with
  // which no item is picked.
  __device__ float scale_of(long long row, float norm2) const {
    if (a.norm == kScaled) return a.scales[row];
    if (a.norm == kAsGiven) return 1.0f;
    if (norm2 == 0.0f) return 0.0f;
    return finite(norm2) ? __fdiv_rn(1.0f, __fsqrt_rn(norm2)) : nan();
  }
  __device__ float length_of(float norm2, float its_scale) const {
    if (a.norm == kComputed) return its_scale > 0.0f ? 1.0f : its_scale;
    return __fmul_rn(__fsqrt_rn(norm2), fabsf(its_scale));
  }

  // The factor and scale that make the query a unit vector; every warp computes them for itself.
  __device__ void prepare_query() {
    if (!a.queries || !a.unit_queries) return;
    const float* x = a.queries + q * a.dims;
#pragma unroll 1
    for (int attempt = 0; attempt < 2; ++attempt) {
      float norm2 = 0.0f;
#pragma unroll 1
      for (int d = lane; d < a.dims; d += kWarp) {
        const float y = __fmul_rn(x[d], query_factor);
        norm2 = __fmaf_rn(y, y, norm2);
      }
      norm2 = warp_sum(norm2);
      query_scale = norm2 > 0.0f ? __fdiv_rn(1.0f, __fsqrt_rn(norm2)) : 0.0f;
      if (norm2 >= kNorm2Min && norm2 <= kNorm2Max) return;
      query_factor = norm2 < 1.0f ? 1.2676506e30f : 7.888609e-31f;  // 2^100, 2^-100
    }
  }
  // Zeros where there is none.
  __device__ Floats<T> query() const {
    const float* x = a.queries ? a.queries + q * a.dims : nullptr;
    const int dims = x ? a.dims : 0;
    return {x, dims, aligned16(x) ? dims / kElements : 0, query_factor};
  }

  // Visitors of `walk`: what is done with four elements of each of the lane's four rows. Products with a vector and, if
  // kNorms, the rows' squared norms; partial sums of the lane.
  template <bool kNorms, class Vector>
  struct Products {
    const Vector& vector;
    float (&products)[kRowsAtOnce], (&norms2)[kRowsAtOnce];
    template <bool kWhole>
    __device__ uint4 load(int pack) const {
      return vector.template load<kWhole>(pack);
    }
    template <bool kWhole>
    __device__ void four(uint4 raw, int pack, int c, float (&y)[4]) const {
      vector.template four<kWhole>(raw, pack, c, y);
    }
    __device__ void use(int u, const float (&x)[4], const float (&y)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        products[u] = __fmaf_rn(x[i], y[i], products[u]);
        if (kNorms) norms2[u] = __fmaf_rn(x[i], x[i], norms2[u]);
      }
    }
  };
  // Squared lengths of VRSD's sum with each row, likewise.
  struct Lengths {
    const float* sum;
    const float (&scales)[kRowsAtOnce];
    float (&norms2)[kRowsAtOnce];
    template <bool>
    __device__ uint4 load(int) const {
      return make_uint4(0, 0, 0, 0);
    }
    template <bool>
    __device__ void four(uint4, int pack, int c, float (&y)[4]) const {
      const float4 s = *reinterpret_cast<const float4*>(sum + pack * kElements + 4 * c);
      y[0] = s.x, y[1] = s.y, y[2] = s.z, y[3] = s.w;
    }
    __device__ void use(int u, const float (&x)[4], const float (&y)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float z = __fmaf_rn(scales[u], x[i], y[i]);
        norms2[u] = __fmaf_rn(z, z, norms2[u]);
      }
    }
  };
  template <class Visitor>
  __device__ void walk(const T* const (&rows)[kRowsAtOnce], const Visitor& visitor) const {
    int pack = lane % kLanes;
#pragma unroll 1
    for (; pack < (kResident ? packs : whole); pack += kLanes) {
      uint4 raw[kRowsAtOnce];
#pragma unroll
      for (int u = 0; u < kRowsAtOnce; ++u) {
        raw[u] = make_uint4(0, 0, 0, 0);
        if (!kResident || rows[u]) raw[u] = *reinterpret_cast<const uint4*>(rows[u] + pack * kElements);
      }
      const uint4 its_raw = visitor.template load<!kResident>(pack);
#pragma unroll
      for (int c = 0; c < kElements / 4; ++c) {
        float y[4];
        visitor.template four<!kResident>(its_raw, pack, c, y);
#pragma unroll
        for (int u = 0; u < kRowsAtOnce; ++u) {
          float x[4];
          unpack_four(raw[u], c, x, T());
          visitor.use(u, x, y);
        }
      }
    }
    // Rows in shared memory have whole packs only.
#pragma unroll 1
    for (; !kResident && pack < packs; pack += kLanes) {
#pragma unroll 1
      for (int c = 0; c < kElements / 4; ++c) {
        float y[4];
        visitor.template four<false>({}, pack, c, y);
#pragma unroll
        for (int u = 0; u < kRowsAtOnce; ++u) {
          float x[4];
          load_four(rows[u], pack * kElements + 4 * c, a.dims, x);
          visitor.use(u, x, y);
        }
      }
    }
  }

  // 1. Which items may be picked; their rows into shared memory.
  __device__ void collect() {
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

  // The four rows of the lane. Those of closed items are not read from shared memory, where another warp's may not be
  // there yet; from global memory any row is read instead, which takes fewer registers than none.
  __device__ void find_rows(int base, unsigned votes, const T* any, const T* (&rows)[kRowsAtOnce]) const {
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

  // 2. Relevance of the items, what the rule makes of it, their scales.
  __device__ void relate() {
    const float lambda_b = a.lambda_b[q];
#pragma unroll 1
    for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
      const int item = own_item(base);
      const bool open = owner() && item < a.pool && !is_nan(value(item));
      const unsigned votes = __ballot_sync(kAll, open);
      if (!votes) continue;
      const T* rows[kRowsAtOnce];
      find_rows(base, votes, static_cast<const T*>(a.rows), rows);
      float products[kRowsAtOnce] = {}, norms2[kRowsAtOnce] = {};
      if (kVrsd || a.queries || a.norm == kComputed) {
        const Floats<T> vector = query();
        walk(rows, Products<true, Floats<T>>{vector, products, norms2});
      }
      const float product = sum_of_own(products, lane), norm2 = sum_of_own(norms2, lane);
      if (!open) continue;
      const long long row = row_of(item);
      const float its_scale = scale_of(row, norm2), length = kVrsd ? length_of(norm2, its_scale) : 1.0f;
      float relevance = __fmul_rn(__fmul_rn(product, query_scale), its_scale);
      if (kVrsd && a.norm != kComputed) relevance = length == 0.0f ? 0.0f : __fdiv_rn(relevance, length);
      if (a.relevance) relevance = a.relevance[q * a.pool + item];
      if (!kVrsd && a.bias) {
        const float bias = a.bias[a.bias_per_item ? q * a.pool + item : row];
        relevance = __fadd_rn(__fmul_rn(lambda_b, relevance), __fmul_rn(__fsub_rn(1.0f, lambda_b), bias));
      }
      value(item) = relevance;
      aux(item) = kVrsd ? length : -infinity();
      scale(item) = its_scale;
    }
  }

  // 3. The best item.
  __device__ void restart() {
    best = -infinity();
    at = kNone;
  }
  __device__ void consider(float w, int item) {
    if (comes_before(w, item, best, at)) {
      best = w;
      at = item;
    }
  }

  // The first pick goes by relevance alone.
  __device__ void score_by_relevance() {
    restart();
#pragma unroll 1
    for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
      const int item = own_item(base);
      if (owner() && item < a.pool) consider(value(item), item);
    }
  }

  // Whether the item of this lane is open after `pick` and the items of group `barred` have been closed.
  __device__ bool still_open(int item, int pick, bool bars, long long barred) {
    if (!owner() || item >= a.pool || is_nan(value(item))) return false;
    if (item != pick && !(bars && a.groups[row_of(item)] == barred)) return true;
    value(item) = nan();
    return false;
  }

  // MMR: all open items meet a pick, or an initial item; which of them is then the best.
  __device__ void meet_all(const Row<T>& vector, float its_scale, int pick, bool bars, long long barred) {
    const float lambda_d = a.lambda_d[q];
    restart();
#pragma unroll 1
    for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
      const int item = own_item(base);
      const bool open = still_open(item, pick, bars, barred);
      const unsigned votes = __ballot_sync(kAll, open);
      if (!votes) continue;
      const T* rows[kRowsAtOnce];
      find_rows(base, votes, vector.row, rows);
      float products[kRowsAtOnce] = {}, unused[kRowsAtOnce];
      walk(rows, Products<false, Row<T>>{vector, products, unused});
      const float product = sum_of_own(products, lane);
      if (!open) continue;
      const float similarity = __fmul_rn(__fmul_rn(product, its_scale), scale(item));
      // A similarity that is NaN stays: the item is never picked.
      const float running = is_nan(similarity) || similarity > aux(item) ? similarity : aux(item);
      if (is_nan(similarity)) value(item) = similarity;
      aux(item) = running;
      consider(__fsub_rn(__fmul_rn(lambda_d, value(item)), __fmul_rn(__fsub_rn(1.0f, lambda_d), running)), item);
    }
  }

  // VRSD: which open item has the sum with the largest cosine.
  __device__ void add_all(float sum_query, float sum_lengths, int pick, bool bars, long long barred) {
    restart();
#pragma unroll 1
    for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
      const int item = own_item(base);
      const bool open = still_open(item, pick, bars, barred);
      const unsigned votes = __ballot_sync(kAll, open);
      if (!votes) continue;
      const T* rows[kRowsAtOnce];
      find_rows(base, votes, static_cast<const T*>(a.rows), rows);
      float scales[kRowsAtOnce], norms2[kRowsAtOnce] = {};
#pragma unroll
      for (int u = 0; u < kRowsAtOnce; ++u) scales[u] = voted(votes, lane, u) ? scale(item_at(base, u)) : 0.0f;
      walk(rows, Lengths{sum, scales, norms2});
      const float norm = __fsqrt_rn(sum_of_own(norms2, lane));
      if (!open) continue;
      const float product = __fadd_rn(sum_query, __fmul_rn(value(item), aux(item)));
      const bool zero = norm <= __fmul_rn(kZeroSum, __fadd_rn(sum_lengths, aux(item)));
      consider(zero ? 0.0f : __fdiv_rn(product, norm), item);
    }
  }

  // VRSD's sum; each thread has elements of its own.
  __device__ void clear_sum() {
#pragma unroll 1
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x)
      for (int i = 0; i < kElements; ++i) sum[pack * kElements + i] = 0.0f;
  }
  __device__ void add(const Row<T>& row, float its_scale) {
#pragma unroll 1
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      const uint4 raw = row.template load<false>(pack);
#pragma unroll
      for (int c = 0; c < kElements / 4; ++c) {
        float x[4], *s = sum + pack * kElements + 4 * c;
        row.template four<false>(raw, pack, c, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) s[i] = __fmaf_rn(its_scale, x[i], s[i]);
      }
    }
  }

  // The best item of all warps, in every thread.
  __device__ void compare(int step) {
    warp_arg_max(best, at);
    if (lane == 0) {
      bests(step)[warp] = best;
      their_items(step)[warp] = at;
    }
    // The bests of all warps are there; also resident rows and scales, before the first pick's are used. Even and odd
    // steps take turns, so nobody overwrites what a slower warp still reads.
    SYNC(1);
    best = lane < warps ? bests(step)[lane] : -infinity();
    at = lane < warps ? their_items(step)[lane] : kNone;
    warp_arg_max(best, at);
  }

  // Whether the pick's group has now reached its cap; the group is noted.
  __device__ bool reaches_cap(long long group, int picks) {
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

  __device__ void put(int slot, long long index, float score, float relevance, float redundancy) {
    const long long out = q * a.k + slot;
    a.indices[out] = index;
    a.scores[out] = score;
    a.out_relevance[out] = relevance;
    a.redundancy[out] = redundancy;
  }

  __device__ void write_pick(int slot, int pick, long long row, bool first) {
    if (!owner() || pick / kGroup % warps != warp || own_item(pick / kGroup * kGroup) != pick) return;
    const float v = value(pick);
    const float score = !kVrsd && first ? __fmul_rn(a.lambda_d[q], v) : best;
    put(slot, row - q * a.pool_stride, score, v, kVrsd ? nan() : first ? 0.0f : aux(pick));
  }

  // All open items meet the initial items one after another, then each pick.
  __device__ void run() {
    collect();
    prepare_query();
    relate();
    float sum_query = 0.0f, sum_lengths = 0.0f;
    bool first = true;
    if (kVrsd) clear_sum();
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
          first = false;
          vector = global_row(row);
          float product, norm2;
          meet_query(vector, product, norm2);
          its_scale = scale_of(row, norm2);
          if (kVrsd) {
            sum_query = __fadd_rn(sum_query, __fmul_rn(__fmul_rn(product, query_scale), its_scale));
            sum_lengths = __fadd_rn(sum_lengths, length_of(norm2, its_scale));
          }
        } else if (!kVrsd || first || step < -1) {
          continue;
        }
      } else {
        if (first) score_by_relevance();
        compare(step);
        pick = at;
        if (pick == kNone) break;
        row = row_of(pick);
        write_pick(step, pick, row, first);
        first = false;
        made = step + 1;
        if (made == wanted) break;
        vector = pool_row(pick, row);
        its_scale = scale(pick);
        if (a.max_per_group) {
          group = a.groups[row];
          bars = reaches_cap(group, step);
        }
        if (kVrsd) {
          sum_query = __fadd_rn(sum_query, __fmul_rn(value(pick), aux(pick)));
          sum_lengths = __fadd_rn(sum_lengths, aux(pick));
        }
      }
      if (!kVrsd) {
        meet_all(vector, its_scale, pick, bars, group);
      } else {
        if (row >= 0) add(vector, its_scale);
        if (step < -1) continue;
        // The sum, of which each thread has made a part, is whole; all have read the pick's value, which its owner is
        // about to overwrite. That nobody reads the sum while it changes is seen to by the barrier of compare().
        SYNC(2);
        add_all(sum_query, sum_lengths, pick, bars, group);
      }
    }
    for (int slot = made + threadIdx.x; slot < a.k; slot += blockDim.x) put(slot, -1, -infinity(), nan(), nan());
    if (threadIdx.x == 0) a.lengths[q] = made;
  }
};

}  // namespace rsk

// The parameters are the fields of SelectArgs.
#define RSK_SELECT(name, T, vrsd, resident, blocks)                                                              \
  extern "C" __global__ void __launch_bounds__(rsk::kMaxThreads, blocks)                                         \
      name(long long first_query, long long num_ids, long long row_stride, long long pool_stride,                \
           long long max_per_group, int pool, int dims, int k, int num_initial, int norm, int unit_queries,      \
           int id_bytes, int initial_bytes, int bias_per_item, const void* rows, const float* scales,            \
           const float* queries, const void* candidates, const void* initial, const float* relevance,            \
           const float* bias, const float* lambda_d, const float* lambda_b, const long long* ks,                 \
           const long long* groups, const long long* query_groups, float* workspace, long long workspace_stride, \
           long long* indices, float* scores, float* out_relevance, float* redundancy, int* lengths) {           \
    DYN_SHARED(unsigned char, shared);                                                                           \
    const rsk::SelectArgs args = {first_query,   num_ids,       row_stride,    pool_stride,                      \
                                  max_per_group, pool,          dims,          k,                                \
                                  num_initial,   norm,          unit_queries,  id_bytes,                         \
                                  initial_bytes, bias_per_item, rows,          scales,                           \
                                  queries,       candidates,    initial,       relevance,                        \
                                  bias,          lambda_d,      lambda_b,      ks,                               \
                                  groups,        query_groups,  workspace,     workspace_stride,                 \
                                  indices,       scores,        out_relevance, redundancy,                       \
                                  lengths};                                                                      \
    rsk::Selector<T, vrsd, resident>(args, shared).run();                                                        \
  }

#define RSK_SELECT_ALL(name, T, blocks, resident_blocks)               \
  RSK_SELECT(rsk_mmr_resident_##name, T, false, true, resident_blocks) \
  RSK_SELECT(rsk_mmr_streaming_##name, T, false, false, blocks)        \
  RSK_SELECT(rsk_vrsd_resident_##name, T, true, true, resident_blocks) \
  RSK_SELECT(rsk_vrsd_streaming_##name, T, true, false, blocks)

// Which element types are compiled, as bits: all of them take NVRTC a while, a call needs one.
#ifndef RSK_SELECT_TYPES
#define RSK_SELECT_TYPES 15
#endif
#if RSK_SELECT_TYPES & 1
// Shared memory leaves room for no more blocks of most pools.
RSK_SELECT_ALL(float32, float, 3, 2)
#endif
#if RSK_SELECT_TYPES & 2
RSK_SELECT_ALL(float16, rsk::F16, 3, 3)
#endif
#if RSK_SELECT_TYPES & 4
RSK_SELECT_ALL(bfloat16, rsk::BF16, 3, 3)
#endif
#if RSK_SELECT_TYPES & 8
// A pack of 16 elements takes more registers.
RSK_SELECT_ALL(int8, rsk::I8, 2, 2)
#endif
