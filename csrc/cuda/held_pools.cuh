// Pools of up to 1,024 rows of 16 bits, one cluster of blocks a query: the rows are read once and stay in registers, as
// operands of the matrix instructions, which multiply all of them with eight vectors at the cost of one. A pick is met
// with the seven items that are the next best of their warps, so most later picks find that their products have been
// made. A lane owns a row and what the rule knows of it. Each warp tells all blocks its best item and waits until those
// of all warps have come, so each finds the same pick. The numbers of a query depend on no other query.
//
// A quad is four lanes, `group` its number; it has kOfQuad rows, of each of its lanes the first of which own one each.
// Position p of the pool is in warp p % kEntries of the cluster, so that the best items of a pool that comes best first
// are in different warps; the positions of a warp ascend with the lanes that own them.
#pragma once
#include "cluster.cuh"
#include "pool_items.cuh"

namespace rsk {

constexpr int kColumns = 8;    // vectors that rows meet together
constexpr int kStepDims = 32;  // dimensions of two matrix instructions: 16 bytes of each lane of a quad

// kTiles: of 16 rows, in a warp. Two have 384 dimensions, one has 768.
template <class T, class Rule, int kTiles, int kBlocks>
struct HeldPool {
  static constexpr int kWarps = 8 / kTiles;  // of a block
  static constexpr int kSteps = 24 / kTiles;
  static constexpr int kDims = kSteps * kStepDims;
  static constexpr int kOfQuad = 2 * kTiles;
  static constexpr int kOfWarp = 16 * kTiles;
  static constexpr int kEntries = kBlocks * kWarps;  // warps of the cluster, each with its best item
  static constexpr int kOfLane = (kEntries + kWarp - 1) / kWarp;
  static constexpr int kStride =
      2 * kDims + 64;  // bytes of a vector: those of two quads that load together are in all banks
  static constexpr int kVectorBytes = kColumns * kStride;
  static constexpr int kEntryBytes = int(sizeof(uint4)) * (Rule::kVrsd ? 2 : 1);
  static constexpr int kTableBytes = 2 * kEntries * int(sizeof(uint4));  // for even and for odd steps
  // What is in shared memory: the vectors; VRSD's sum; the bests of all warps (key, position, scale, row), and what is
  // told of them; for each of both tables which bytes of it have come; groups of picks.
  static constexpr int kSumAt = kVectorBytes;
  static constexpr int kTableAt = kSumAt + (Rule::kVrsd ? 4 * kDims : 0);
  static constexpr int kToldAt = kTableAt + kTableBytes;
  static constexpr int kArrivalsAt = kToldAt + (Rule::kVrsd ? kTableBytes : 0);
  static constexpr int kGroupsAt = kArrivalsAt + 16;

  const SelectArgs& a;
  unsigned char* const shared;
  const unsigned block;
  const long long q;
  const int lane, warp, group, member, entry;
  int position = 0;
  unsigned row = 0;  // while it is open
  bool open = false;
  float scale = 0.0f, relevance_scale = 0.0f;
  // Of lane c: the position of the item that is column c, -1 where it is none, and its row.
  int column = -1;
  unsigned column_row = 0;
  float products[kColumns];
  Slots<1> x;
  Rule rule;

  __device__ HeldPool(const SelectArgs& args, unsigned char* dynamic)
      : a(args),
        shared(dynamic),
        block(cluster_rank()),
        q(args.first_query + blockIdx.x / kBlocks),
        lane(threadIdx.x % kWarp),
        warp(threadIdx.x / kWarp),
        group(lane / 4),
        member(lane % 4),
        entry(block * kWarps + warp) {}

  __device__ long long row_at(int p) const { return row_of_id(a, q, id_in_pool(a, q, p)); }
  __device__ const T* stored(long long its_row) const { return static_cast<const T*>(a.rows) + its_row * a.row_stride; }
  __device__ unsigned char* vector(int c) const { return shared + c * kStride; }
  __device__ float* sum() const { return reinterpret_cast<float*>(shared + kSumAt); }
  __device__ uint4* table(int step) const { return reinterpret_cast<uint4*>(shared + kTableAt) + step % 2 * kEntries; }
  __device__ uint4* told_of(int step) const { return reinterpret_cast<uint4*>(shared + kToldAt) + step % 2 * kEntries; }
  __device__ Arrivals* arrivals(int step) const { return reinterpret_cast<Arrivals*>(shared + kArrivalsAt) + step % 2; }
  __device__ long long* groups() const { return reinterpret_cast<long long*>(shared + kGroupsAt); }

  // Finds the item of this lane, and reads the rows of the quad: of each, a lane has 16 bytes of every 64.
  using Rows = uint4[kOfQuad][kSteps];
  __device__ void load(Rows& rows) {
    position = (kOfQuad * group + member) * kEntries + entry;
    const long long found = member < kOfQuad && position < a.pool ? row_at(position) : -1;
    open = found >= 0;
    row = unsigned(found);
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) {
      const T* const from = stored(__shfl_sync(kAll, row, 4 * group + r)) + 8 * member;
      const int dims = (__shfl_sync(kAll, int(open), 4 * group + r) ? a.dims : 0) - 8 * member;
#pragma unroll
      for (int j = 0; j < kSteps; ++j)
        rows[r][j] = kStepDims * j < dims ? load16(from + kStepDims * j) : make_uint4(0, 0, 0, 0);
    }
  }

  // Starts to copy the rows of the columns; a warp copies a part of them.
  __device__ void copy_columns(int first) const {
#pragma unroll
    for (int i = 0; i < kColumns / kWarps; ++i) {
      const int c = kColumns / kWarps * warp + i, p = __shfl_sync(kAll, column, c);
      const T* const from = stored(__shfl_sync(kAll, column_row, c));
      if (c < first || p < 0) continue;
#pragma unroll 1
      for (int d = 8 * lane; d < a.dims; d += 8 * kWarp) copy16(vector(c) + 2 * d, from + d);
    }
  }

  // The first columns: the parts of the query, and the first items of the pool, often its best.
  __device__ void prepare() {
    const int p = lane - kParts<T>;
    if (lane < kColumns && p >= 0 && p < a.pool) {
      const long long its_row = row_at(p);
      if (its_row >= 0) column = p, column_row = unsigned(its_row);
    }
    // Beyond the dimensions of rows everything is zero, in all columns that will be.
#pragma unroll 1
    for (int i = threadIdx.x; i < kColumns * (kDims / 8); i += kWarp * kWarps) {
      const int c = i / (kDims / 8), d = i % (kDims / 8) * 8;
      if (d >= a.dims) *reinterpret_cast<uint4*>(vector(c) + 2 * d) = make_uint4(0, 0, 0, 0);
    }
    copy_columns(kParts<T>);
    if (a.queries) {
      const QueryScale by = scale_of_query(a, q, lane);
      relevance_scale = by.scale;
#pragma unroll 1
      for (int two = threadIdx.x; 2 * two < a.dims; two += kWarp * kWarps) {
        unsigned words[kParts<T>];
        take_apart<T>(a, q, 2 * two, by.power, words);
#pragma unroll
        for (int part = 0; part < kParts<T>; ++part) reinterpret_cast<unsigned*>(vector(part))[two] = words[part];
      }
    }
    if constexpr (Rule::kVrsd)
#pragma unroll 1
      for (int d = threadIdx.x; d < kDims; d += kWarp * kWarps) sum()[d] = 0.0f;
    copies_done();
  }

  // Products of 16 rows with the eight that y holds, by two instructions. Element k of an instruction is one of the
  // same dimension in both operands, whichever that is: so 16 bytes of a lane, as they lie in memory, are four
  // registers.
  struct Sums {
    float even[4] = {}, odd[4] = {};
    __device__ void add(const uint4& upper, const uint4& lower, const uint4& y) {
      multiply(even, {upper.x, lower.x, upper.y, lower.y}, y.x, y.y, T());
      multiply(odd, {upper.z, lower.z, upper.w, lower.w}, y.z, y.w, T());
    }
    __device__ float operator[](int i) const { return __fadd_rn(even[i], odd[i]); }
  };

  // |row|^2 of this lane's row: the products of rows with themselves, of which each quad has those of its own in one
  // lane.
  __device__ float norm2(const Rows& rows) const {
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) {
      Sums sums;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) sums.add(rows[r / 2 * 2][j], rows[r / 2 * 2 + 1][j], rows[r][j]);
      const float even = sums[2 * (r % 2)], odd = sums[2 * (r % 2) + 1];
      const float its = __shfl_sync(kAll, group % 2 ? odd : even, 4 * group + group / 2);
      if (member == r) mine = its;
    }
    return mine;
  }

  // The products of this lane's row with the columns.
  __device__ void meet(const Rows& rows) {
    Sums sums[kTiles];
    const uint4* const from = reinterpret_cast<const uint4*>(vector(group)) + member;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const uint4 y = from[4 * j];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) sums[i].add(rows[2 * i][j], rows[2 * i + 1][j], y);
    }
    // A lane has two columns of all rows of its quad, and wants all columns of its own: from the lane whose number
    // differs by the bits of s it gets that lane's columns.
    float two[kOfQuad][2];
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r)
#pragma unroll
      for (int e = 0; e < 2; ++e) two[r][e] = sums[r / 2][2 * (r % 2) + e];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int other = member ^ s;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float give = two[0][e];
#pragma unroll
        for (int r = 1; r < kOfQuad; ++r) give = other == r ? two[r][e] : give;
        const float got = __shfl_xor_sync(kAll, give, s);
#pragma unroll
        for (int m = 0; m < 4; ++m)
          if (other == m) products[2 * m + e] = got;
      }
    }
  }
  __device__ float product_with(int c) const {
    float y = products[0];
#pragma unroll
    for (int i = 1; i < kColumns; ++i) y = c == i ? products[i] : y;
    return y;
  }

  // |s + e|^2 of this lane's item out of its row, where float32 loses it in sums of products.
  __device__ float sum_again(const Rows& rows) const {
    float squares[kOfQuad] = {}, scales[kOfQuad];
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) scales[r] = __shfl_sync(kAll, scale, 4 * group + r);
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float4 s = *reinterpret_cast<const float4*>(sum() + kStepDims * j + 8 * member + 4 * c);
#pragma unroll
        for (int r = 0; r < kOfQuad; ++r) {
          float y[4];
          unpack_four(rows[r][j], c, y, T());
          const float z[4] = {__fmaf_rn(scales[r], y[0], s.x), __fmaf_rn(scales[r], y[1], s.y),
                              __fmaf_rn(scales[r], y[2], s.z), __fmaf_rn(scales[r], y[3], s.w)};
#pragma unroll
          for (int i = 0; i < 4; ++i) squares[r] = __fmaf_rn(z[i], z[i], squares[r]);
        }
      }
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) {
      float whole = __fadd_rn(squares[r], __shfl_xor_sync(kAll, squares[r], 1));
      whole = __fadd_rn(whole, __shfl_xor_sync(kAll, whole, 2));
      if (member == r) mine = whole;
    }
    return mine;
  }
  // Adds column c to s; each thread has elements of its own.
  __device__ void add(int c, float its_scale) const {
#pragma unroll
    for (int i = 0; i < kDims / 2 / (kWarp * kWarps) + (kDims / 2 % (kWarp * kWarps) > 0); ++i) {
      const int two = threadIdx.x + kWarp * kWarps * i;
      if (two >= kDims / 2) break;
      const unsigned words = reinterpret_cast<const unsigned*>(vector(c))[two];
      float2& s = reinterpret_cast<float2*>(sum())[two];
      s.x = __fmaf_rn(its_scale, widen(T{(unsigned short)words}), s.x);
      s.y = __fmaf_rn(its_scale, widen(T{(unsigned short)(words >> 16)}), s.y);
    }
  }

  // The best items of warps, best first, ties by position; the first is the pick.
  __device__ void choose_columns(int step) {
    unsigned keys[kOfLane], positions[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int other = kWarp * i + lane;
      const uint4 its = other < kEntries ? table(step)[other] : make_uint4(0, 0, 0, 0);
      keys[i] = its.x, positions[i] = its.y;
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      unsigned best, at;
      best_of(keys, positions, best, at);
      if (lane == c) {
        column = best ? int(at) : -1;
        column_row = table(step)[at % kEntries].w;
      }
#pragma unroll
      for (int i = 0; i < kOfLane; ++i)
        if (positions[i] == at) keys[i] = 0;
    }
  }
  __device__ static void best_of(const unsigned (&keys)[kOfLane], const unsigned (&positions)[kOfLane], unsigned& best,
                                 unsigned& at) {
    unsigned mine = keys[0];
#pragma unroll
    for (int i = 1; i < kOfLane; ++i) mine = max(mine, keys[i]);
    best = __reduce_max_sync(kAll, mine);
    unsigned lowest = kAll;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i)
      if (keys[i] == best) lowest = min(lowest, positions[i]);
    at = __reduce_min_sync(kAll, lowest);
  }

  // Tells all blocks the best item of this warp.
  __device__ void tell(int step, unsigned key) const {
    const unsigned best = __reduce_max_sync(kAll, key);
    const int who = __ffs(int(__ballot_sync(kAll, key == best))) - 1;  // the lowest position
    const auto of = [&](float y) { return __float_as_uint(__shfl_sync(kAll, y, who)); };
    const uint4 its =
        make_uint4(best, unsigned(__shfl_sync(kAll, position, who)), of(scale), __shfl_sync(kAll, row, who));
    uint4 more = make_uint4(0, 0, 0, 0);
    if constexpr (Rule::kVrsd) {
      const Told told = rule.told(x, 0);
      more = make_uint4(of(told.product), of(told.length), of(told.added), of(told.square));
    }
    if (threadIdx.x == 0) expect(arrivals(step), kEntries * kEntryBytes);
    if (lane < kBlocks) {
      store_in(lane, table(step) + entry, its, arrivals(step));
      if constexpr (Rule::kVrsd) store_in(lane, told_of(step) + entry, more, arrivals(step));
    }
    __syncwarp();
  }

  // Whether the group of a pick has now reached its cap; remembers the group.
  __device__ bool reaches_cap(long long its_group, int picks) const {
    long long count = 1;
#pragma unroll 1
    for (int s = 0; s < picks; s += kWarp)
      count += __popc(__ballot_sync(kAll, s + lane < picks && groups()[s + lane] == its_group));
    if (threadIdx.x == 0) groups()[picks] = its_group;  // read in the next step
    return count >= a.max_per_group;
  }

  __device__ void run() {
    if (threadIdx.x == 0) begin(arrivals(0)), begin(arrivals(1));
    cluster_arrive();
    Rows rows;
    load(rows);
    prepare();
    const float square = Rule::kVrsd || a.norm == kComputed ? norm2(rows) : 0.0f;
    // The first columns are there before they are met, and VRSD's sum is empty.
    SYNC(9);
    meet(rows);
    if (open) {
      float of_parts[kParts<T>];
#pragma unroll
      for (int part = 0; part < kParts<T>; ++part) of_parts[part] = products[part];
      scale = settle<Rule>(a, q, position, row, square, __fmul_rn(put_together<T>(of_parts), relevance_scale), x, 0);
      if (a.query_groups) open = a.groups[row] != a.query_groups[q];
    } else {
      x.v[0] = x.length[0] = 0.0f;
    }
    x.lambda_d = a.lambda_d ? a.lambda_d[q] : 0.0f;
    rule.start();
    // Every block of the cluster has begun before others write to it. None ends before all have told it of the last
    // step.
    CLUSTER_SYNC(10);
    const int wanted = a.ks ? int(min(max(a.ks[q], 0ll), (long long)a.k)) : a.k;
    int made = 0;
#pragma unroll 1
    while (made < wanted) {
      if constexpr (Rule::kVrsd) {
        const bool cancels = rule.cancels(x, 0) && open;
        if (__any_sync(kAll, cancels)) {
          const float whole = sum_again(rows);
          if (cancels) rule.square[0] = whole;
        }
      }
      const float w = rule.value(x, 0, made == 0);
      tell(made, open && w > -infinity() ? key_of(w) : 0u);  // never NaN
      // The bests of all warps are there. Even and odd steps have tables of their own: a warp that tells of the next
      // step but one has heard from all of the next, and they had read this step's table before.
      AWAIT(11, arrivals(made), made / 2 % 2);
      // All warps of the block have done with the columns, the sum and the groups of the last step.
      SYNC(14);
      unsigned keys[kOfLane], positions[kOfLane], best, pick;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const int other = kWarp * i + lane;
        const uint4 its = other < kEntries ? table(made)[other] : make_uint4(0, 0, 0, 0);
        keys[i] = its.x, positions[i] = its.y;
      }
      best_of(keys, positions, best, pick);
      if (best == 0) break;
      if (open && position == int(pick)) {
        put(a, q, made, (long long)row - q * a.pool_stride, rule.score(x, 0, w, made == 0), x.v[0],
            rule.redundancy(0, made == 0));
        open = false;
      }
      if (++made == wanted) break;
      unsigned has = __ballot_sync(kAll, lane < kColumns && column == int(pick));
      if (!has) {
        choose_columns(made - 1);
        copy_columns(0);
        copies_done();
        // The columns are there before they are met.
        SYNC(12);
        meet(rows);
        has = 1;
      }
      const int c = __ffs(int(has)) - 1, its_entry = int(pick) % kEntries;
      const uint4 its = table(made - 1)[its_entry];
      const float its_scale = __uint_as_float(its.z);
      const float similarity[1] = {__fmul_rn(__fmul_rn(product_with(c), its_scale), scale)};
      Told told = {};
      if constexpr (Rule::kVrsd) {
        const uint4 more = told_of(made - 1)[its_entry];
        told = {__uint_as_float(more.x), __uint_as_float(more.y), __uint_as_float(more.z), __uint_as_float(more.w)};
      }
      rule.take(similarity, told);
      if (a.max_per_group) {
        const long long barred = a.groups[its.w];
        if (reaches_cap(barred, made - 1)) open = open && a.groups[row] != barred;
      }
      if constexpr (Rule::kVrsd) {
        add(c, its_scale);
        // The row is added before the sum is read.
        SYNC(13);
      }
    }
    if (block > 0) return;
#pragma unroll 1
    for (int slot = made + threadIdx.x; slot < a.k; slot += kWarp * kWarps)
      put(a, q, slot, -1, -infinity(), nan(), nan());
    if (threadIdx.x == 0) a.lengths[q] = made;
  }
};

}  // namespace rsk

// Two blocks of four warps share a multiprocessor, or one of eight.
#define RSK_HELD(name, T, rule, tiles, blocks)                                             \
  extern "C" __global__ void __cluster_dims__(blocks, 1, 1)                                \
      __launch_bounds__(rsk::HeldPool<T, rsk::rule<1>, tiles, blocks>::kWarps * 32, tiles) \
          name(const __grid_constant__ rsk::SelectArgs args) {                             \
    DYN_SHARED(unsigned char, shared);                                                     \
    rsk::HeldPool<T, rsk::rule<1>, tiles, blocks>(args, shared).run();                     \
  }
