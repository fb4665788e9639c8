// Pools of up to 128 rows of 16 or 8 bits, one block a query. The slots of a block are the items of the pool, the
// initial items, and the query as parts of their type. Their rows come to shared memory in slices, each once, the upper
// triangle of all their products by the matrix instructions; the products lie in shared memory where the slices were,
// and one warp picks, with no barrier. The numbers of a query depend on no other query.
#pragma once
#include "pool_items.cuh"

namespace rsk {

constexpr int kRowBytes = 128;  // of a row in a slice: eight chunks of 16
constexpr int kChunks = 8;
constexpr int kStages = 3;  // slices in shared memory

template <class T, class Rule, int kTiles>
struct GramPool {
  static constexpr int kSlots = 16 * kTiles;
  static constexpr int kWarps = kTiles == 2 ? 1 : kTiles == 4 ? 2 : 4;
  static constexpr int kRowsAtOnce = 4 * kWarps;  // that the block copies from, a thread for each chunk
  static constexpr int kTurns = kSlots / kRowsAtOnce;
  static constexpr int kChunkDims = kPack<T>, kSliceDims = kChunks * kChunkDims;
  static constexpr int kSliceBytes = kSlots * kRowBytes;
  static constexpr int kStride = kSlots + 1;  // of the matrix, so that its columns lie in all banks
  static constexpr int kGramBytes = kSlots * kStride * 4;
  static constexpr int kScaleAt =
      ((kGramBytes > kStages * kSliceBytes ? kGramBytes : kStages * kSliceBytes) + 15) & ~15;
  static constexpr int kPartsAt = kScaleAt + 16;
  static_assert(kParts<T> * kRowBytes >= 4 * kSliceDims, "VRSD has its sum where the parts were");
  static constexpr int kOfLane = (kSlots + kWarp - 1) / kWarp;

  const SelectArgs& a;
  unsigned char* const shared;
  const long long q;
  const int lane, warp, slices;

  __device__ GramPool(const SelectArgs& args, unsigned char* dynamic)
      : a(args),
        shared(dynamic),
        q(args.first_query + blockIdx.x),
        lane(threadIdx.x % kWarp),
        warp(threadIdx.x / kWarp),
        slices((args.dims + kSliceDims - 1) / kSliceDims) {}

  // Chunk c of a slot lies at chunk c ^ slot % 8: eight slots of one chunk are in all banks.
  __device__ static int at(int slot, int chunk) { return slot * kRowBytes + ((chunk ^ (slot & 7)) << 4); }
  __device__ int first_part() const { return a.pool + a.num_initial; }
  // Parts of the query in shared memory, slices one after another. Once they are used VRSD has its sum there.
  __device__ uint4& part_chunk(int part, int chunk) const {
    return reinterpret_cast<uint4*>(shared + kPartsAt)[part * slices * kChunks + chunk];
  }

  __device__ float& query_scale() const { return *reinterpret_cast<float*>(shared + kScaleAt); }

  __device__ long long id_of(int slot) const {
    if (slot < a.pool) return id_in_pool(a, q, slot);
    return slot < first_part() ? id_at(a.initial, a.initial_bytes, q * a.num_initial + slot - a.pool) : -1;
  }
  // The row of a slot, or -1.
  __device__ long long row_of(int slot) const { return row_of_id(a, q, id_of(slot)); }
  __device__ const T* stored(long long row) const { return static_cast<const T*>(a.rows) + row * a.row_stride; }

  // The first slices of the parts go to where they are multiplied, the others wait for their turn.
  __device__ void split_query() const {
    const QueryScale by = scale_of_query<T>(a, q, lane);
    if (threadIdx.x == 0) query_scale() = by.scale;  // for the warp that picks
#pragma unroll 1
    for (int word = threadIdx.x; word < slices * kRowBytes / 4; word += kWarp * kWarps) {
      unsigned words[kParts<T>];
      take_apart<T>(a, q, kOfWord<T> * word, by.power, words);
      const int chunk = word / 4, slice = chunk / kChunks;
#pragma unroll
      for (int part = 0; part < kParts<T>; ++part) {
        unsigned char* const to = slice < kStages - 1
                                      ? shared + slice * kSliceBytes + at(first_part() + part, chunk % kChunks)
                                      : reinterpret_cast<unsigned char*>(&part_chunk(part, chunk));
        reinterpret_cast<unsigned*>(to)[word % 4] = words[part];
      }
    }
  }

  // Starts to copy a slice of all rows. Parts of the query that have waited come with it.
  __device__ void fill(int slice, const T* const (&rows)[kTurns], bool parts) const {
    unsigned char* const to = shared + slice % kStages * kSliceBytes;
    const int chunk = threadIdx.x % kChunks, slot = threadIdx.x / kChunks, d = slice * kSliceDims + chunk * kChunkDims;
    const bool whole = aligned16(a.rows) && a.row_stride % kChunkDims == 0;
    if (whole && (slice + 1) * kSliceDims <= a.dims) {
#pragma unroll
      for (int i = 0; i < kTurns; ++i)
        if (rows[i]) copy16(to + at(slot + kRowsAtOnce * i, chunk), rows[i] + d);
    } else {
#pragma unroll 1
      for (int s = slot; s < kSlots; s += kRowsAtOnce) {
        const long long row = row_of(s);
        if (row < 0) continue;
        const T* const x = stored(row) + d;
        if (whole && d + kChunkDims <= a.dims) {
          copy16(to + at(s, chunk), x);
          continue;
        }
        T* const its = reinterpret_cast<T*>(to + at(s, chunk));
#pragma unroll 1
        for (int e = 0; e < kChunkDims; ++e) its[e] = d + e < a.dims ? x[e] : T{0};
      }
    }
    if (parts && threadIdx.x < kParts<T> * kChunks)
      *reinterpret_cast<uint4*>(to + at(first_part() + slot, chunk)) = part_chunk(slot, slice * kChunks + chunk);
  }

  // Products of tiles of 16 slots: each of rows FIRST and SECOND with all from the diagonal on.
  template <int FIRST, int SECOND>
  __device__ static constexpr int products() {
    return 2 * (kTiles - FIRST) + (SECOND >= 0 ? 2 * (kTiles - SECOND) : 0);
  }
  template <int FIRST, int SECOND>
  __device__ void meet(Sum<T> (&sums)[products<FIRST, SECOND>()][4], Place slice) const {
    const int row = lane % 16, half = lane / 16, column = lane % 8 + lane / 16 * 8, column_half = lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < kChunks / 2; ++k) {
      unsigned x[4], x2[4], y[4];
      load_matrices(x, slice + at(16 * FIRST + row, 2 * k + half));
      if constexpr (SECOND >= 0) load_matrices(x2, slice + at(16 * SECOND + row, 2 * k + half));
#pragma unroll
      for (int n = FIRST; n < kTiles; ++n) {
        load_matrices(y, slice + at(16 * n + column, 2 * k + column_half));
        multiply(sums[2 * (n - FIRST)], x, y[0], y[1], T());
        multiply(sums[2 * (n - FIRST) + 1], x, y[2], y[3], T());
        if constexpr (SECOND >= 0) {
          if (n < SECOND) continue;
          multiply(sums[2 * (kTiles - FIRST) + 2 * (n - SECOND)], x2, y[0], y[1], T());
          multiply(sums[2 * (kTiles - FIRST) + 2 * (n - SECOND) + 1], x2, y[2], y[3], T());
        }
      }
    }
  }
  template <int TILE, int FROM, int N>
  __device__ void keep(const Sum<T> (&sums)[N][4]) const {
    Sum<T>* const gram = reinterpret_cast<Sum<T>*>(shared);
#pragma unroll
    for (int j = 0; j < 2 * (kTiles - TILE); ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 16 * TILE + lane / 4 + i / 2 * 8, c = 16 * TILE + 8 * j + 2 * (lane % 4) + i % 2;
        const Sum<T> x = sums[FROM + j][i];
        gram[r * kStride + c] = x;
        if (j >= 2) gram[c * kStride + r] = x;  // of a tile on the diagonal both halves are computed
      }
    }
  }
  template <int FIRST, int SECOND>
  __device__ void multiply_all() const {
    const T* rows[kTurns];
    const int chunk = threadIdx.x % kChunks, slot = threadIdx.x / kChunks;
    const bool has_query = a.queries != nullptr;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int s = slot + kRowsAtOnce * i;
      const long long row = row_of(s);
      rows[i] = row >= 0 ? stored(row) : nullptr;
      const bool part = has_query && s >= first_part() && s < first_part() + kParts<T>;
      if (!rows[i] && !part)
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage)
          *reinterpret_cast<uint4*>(shared + stage * kSliceBytes + at(s, chunk)) = make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (s < slices) fill(s, rows, false);
      copies_end();
    }
    if (has_query) split_query();
    Sum<T> sums[products<FIRST, SECOND>()][4] = {};
#pragma unroll 1
    for (int s = 0; s < slices; ++s) {
      copies_wait<kStages - 2>();
      // Slice s is there, and all have done with the one before, in whose place the next comes.
      SYNC(6);
      if (s + kStages - 1 < slices) fill(s + kStages - 1, rows, has_query);
      copies_end();
      meet<FIRST, SECOND>(sums, place_of(shared) + s % kStages * kSliceBytes);
    }
    // The slices give way to the matrix.
    SYNC(7);
    keep<FIRST, 0>(sums);
    if constexpr (SECOND >= 0) keep<SECOND, 2 * (kTiles - FIRST)>(sums);
  }

  // --- One warp picks. Slot 32 j + lane is the lane's j-th.
  template <class X>
  __device__ static X of_slot(const X (&x)[kOfLane], int slot) {
    X mine = x[0];
#pragma unroll
    for (int j = 1; j < kOfLane; ++j) {
      const X its = x[j];
      mine = slot / kWarp == j ? its : mine;
    }
    return __shfl_sync(kAll, mine, slot % kWarp);
  }
  __device__ float product(int slot, int other) const {
    return float(reinterpret_cast<const Sum<T>*>(shared)[slot * kStride + other]);
  }

  // |s + e|^2 of the slots in question out of the rows themselves; a lane has every 32nd element of s.
  __device__ void sum_again(const bool (&cancels)[kOfLane], const bool (&taken)[kOfLane],
                            const float (&scales)[kOfLane], float (&squares)[kOfLane]) const {
    float* const sum = reinterpret_cast<float*>(shared + kPartsAt);
#pragma unroll 1
    for (int d = lane; d < a.dims; d += kWarp) sum[d] = 0.0f;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass)
#pragma unroll 1
      for (int slot = 0; slot < first_part(); ++slot) {
        const bool is_taken = of_slot(taken, slot), is_asked = of_slot(cancels, slot);
        if (!(pass ? is_asked : is_taken)) continue;
        const T* const x = stored(row_of(slot));
        const float its_scale = of_slot(scales, slot);
        float square = 0.0f;
#pragma unroll 1
        for (int d = lane; d < a.dims; d += kWarp) {
          const float z = __fmaf_rn(its_scale, widen(x[d]), sum[d]);
          if (pass == 0) sum[d] = z;
          square = __fmaf_rn(z, z, square);
        }
        square = warp_sum(square);
#pragma unroll
        for (int j = 0; j < kOfLane; ++j)
          if (pass && slot == kWarp * j + lane) squares[j] = square;
      }
  }

  __device__ void pick() const {
    Slots<kOfLane> x;
    float scales[kOfLane];
    bool open[kOfLane], taken[kOfLane];
    long long groups[kOfLane];
    x.lambda_d = a.lambda_d ? a.lambda_d[q] : 0.0f;
    x.far = a.far;
    bool any = false;
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      const int slot = kWarp * j + lane;
      const long long row = slot < first_part() ? row_of(slot) : -1;
      const bool shown = slot >= a.pool;
      open[j] = row >= 0 && !shown;
      taken[j] = row >= 0 && shown;
      any |= taken[j];
      x.v[j] = x.length[j] = scales[j] = 0.0f;
      groups[j] = 0;
      if (row < 0) continue;
      if (a.groups) {
        groups[j] = a.groups[row];
        if (a.query_groups) open[j] &= groups[j] != a.query_groups[q];
      }
      float of_query = 0.0f;
      if (a.queries) {
        float of_parts[kParts<T>];
#pragma unroll
        for (int part = 0; part < kParts<T>; ++part) of_parts[part] = product(slot, first_part() + part);
        of_query = put_together<T>(of_parts);
      }
      scales[j] = settle<Rule>(a, q, shown ? -1 : slot, row, product(slot, slot), of_query, query_scale(), x, j);
    }
#pragma unroll 1
    for (int s = a.pool; s < first_part(); ++s) {
      const long long id = id_of(s);
#pragma unroll
      for (int j = 0; j < kOfLane; ++j)
        if (open[j] && id_of(kWarp * j + lane) == id) open[j] = false;
    }
    Rule rule;
    rule.start();
    bool first = !__any_sync(kAll, any);
    // The slots of an item that is taken: what the rule makes of it, and which it closes by the cap of its group.
    const auto take = [&](int slot) {
      float similarity[kOfLane];
      Told told = {};
      const float its_scale = of_slot(scales, slot);
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) {
        const int other = min(kWarp * j + lane, kSlots - 1);
        const bool mine = slot == kWarp * j + lane;
        taken[j] |= mine;
        if (mine) told = rule.told(x, j);
        similarity[j] = __fmul_rn(__fmul_rn(product(slot, other), its_scale), scales[j]);
      }
      if constexpr (Rule::kVrsd)
        told = {warp_sum(told.product), warp_sum(told.length), warp_sum(told.added), warp_sum(told.square)};
      rule.take(similarity, told);
    };
    const auto close_group = [&](int slot) {
      const long long group = of_slot(groups, slot);
      int count = 0;
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) count += __popc(__ballot_sync(kAll, taken[j] && groups[j] == group));
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) open[j] &= count < a.max_per_group || groups[j] != group;
    };
#pragma unroll 1
    for (int slot = a.pool; slot < first_part(); ++slot) {
      if (row_of(slot) < 0) continue;
      take(slot);
      if (a.max_per_group) close_group(slot);
      if constexpr (Rule::kVrsd) {  // |s|^2 = s s, a product with each item of the sum
        float square = 0.0f;
#pragma unroll
        for (int j = 0; j < kOfLane; ++j)
          if (taken[j] && kWarp * j + lane <= slot) square = __fadd_rn(square, rule.t[j]);
        rule.sum_square = warp_sum(square);
      }
    }
    const int wanted = a.ks ? int(min(max(a.ks[q], 0ll), (long long)a.k)) : a.k;
    int made = 0;
#pragma unroll 1
    for (; made < wanted; ++made) {
      if constexpr (Rule::kVrsd) {
        bool cancels[kOfLane], some = false;
#pragma unroll
        for (int j = 0; j < kOfLane; ++j) some |= cancels[j] = rule.cancels(x, j) && open[j];
        if (__any_sync(kAll, some)) sum_again(cancels, taken, scales, rule.square);
      }
      float w[kOfLane];
      unsigned keys[kOfLane], best = 0;
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) {
        w[j] = rule.value(x, j, first);
        keys[j] = open[j] && w[j] > -infinity() ? key_of(w[j]) : 0u;  // never for NaN
        best = max(best, keys[j]);
      }
      best = __reduce_max_sync(kAll, best);
      if (best == 0) break;
      int slot = 0;
#pragma unroll
      for (int j = kOfLane - 1; j >= 0; --j) {
        const unsigned has = __ballot_sync(kAll, keys[j] == best);
        if (has) slot = kWarp * j + __ffs(int(has)) - 1;
      }
#pragma unroll
      for (int j = 0; j < kOfLane; ++j)
        if (slot == kWarp * j + lane) {
          put(a, q, made, id_in_pool(a, q, slot), rule.score(x, j, w[j], first), x.v[j], rule.redundancy(j, first));
          open[j] = false;
        }
      first = false;
      if (made + 1 == wanted) continue;
      take(slot);
      if (a.max_per_group) close_group(slot);
    }
#pragma unroll 1
    for (int slot = made + lane; slot < a.k; slot += kWarp) put(a, q, slot, -1, -infinity(), nan(), nan());
    if (lane == 0) a.lengths[q] = made;
  }

  // Each warp has two rows of tiles, with equally many from the diagonal on.
  template <int WARP = 0>
  __device__ void multiply_mine() const {
    constexpr int kSecond = kTiles % 2 == 0 ? kTiles - 1 - WARP : WARP == 0 ? -1 : kTiles - WARP;
    if (warp == WARP)
      multiply_all<WARP, kSecond>();
    else if constexpr (WARP + 1 < kWarps)
      multiply_mine<WARP + 1>();
  }
  __device__ void run() const {
    multiply_mine();
    // The matrix is whole before one warp reads it.
    SYNC(8);
    if (warp == 0) pick();
  }
};

}  // namespace rsk

#define RSK_GRAM(name, T, rule, tiles, blocks)                                                          \
  extern "C" __global__ void __launch_bounds__(rsk::GramPool<T, rsk::rule, tiles>::kWarps * 32, blocks) \
      name(const __grid_constant__ rsk::SelectArgs args) {                                              \
    DYN_SHARED(unsigned char, shared);                                                                  \
    rsk::GramPool<T, rsk::rule, tiles>(args, shared).run();                                             \
  }
