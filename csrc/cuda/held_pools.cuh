// Pools of up to 1,024 rows of 16 bits, one cluster of blocks a query: the rows are read once and stay in registers, as
// operands of the matrix instructions, which multiply all of them with sixteen vectors, the columns, at the cost of
// one. A pick is met with the fifteen items that are the next best of their warps, so most later picks find that their
// products have been made. A lane owns a row and what the rule knows of it. Each warp tells all blocks its best item
// and waits until those of all warps have come, so each finds the same pick. The numbers of a query depend on no other
// query.
//
// A quad is four lanes, `group` its number. Lane 8 r + g owns the row of which quad g has the elements, as its row r.
// Position p of the pool is in warp p % kEntries of the cluster, so that the best items of a pool that comes best first
// are in different warps; the positions of a warp ascend with its lanes.
#pragma once
#include "cluster.cuh"
#include "pool_items.cuh"

namespace rsk {

constexpr int kColumns = 16;   // vectors that rows meet together
constexpr int kStepDims = 32;  // dimensions of two matrix instructions: 16 bytes of each lane of a quad

// kOfQuad: rows of each quad, four of up to 384 dimensions or two of up to 768.
template <class T, class Rule, int kOfQuad, int kBlocks>
struct HeldPool {
  static constexpr int kWarps = 16 / kOfQuad;  // of a block, which has 128 rows
  static constexpr int kSteps = 48 / kOfQuad;
  static constexpr int kDims = kSteps * kStepDims;
  static constexpr int kOfWarp = 8 * kOfQuad;
  static constexpr int kEntries = kBlocks * kWarps;  // warps of the cluster, each with its best item
  static constexpr int kOfLane = (kEntries + kWarp - 1) / kWarp;
  // Columns c and c + 8 lie together, word by word. Those of two quads that load together are in all banks.
  static constexpr int kPairStride = 4 * kDims + 16;
  static constexpr int kVectorBytes = kColumns / 2 * kPairStride;
  static constexpr int kProductStride = kOfWarp + 8;  // of a column's products with the rows of a warp
  static constexpr int kProductBytes = kWarps * kColumns * kProductStride * 4;
  static constexpr int kEntryBytes = int(sizeof(uint4)) * (Rule::kVrsd ? 2 : 1);
  static constexpr int kTableBytes = 2 * kEntries * int(sizeof(uint4));  // for even and for odd steps
  // What is in shared memory: the columns and their products; VRSD's sum; the bests of all warps (key, position, scale,
  // row), and what is told of them; for each of both tables which bytes of it have come; groups of picks.
  static constexpr int kSumAt = kVectorBytes + kProductBytes;
  static constexpr int kTableAt = kSumAt + (Rule::kVrsd ? 4 * kDims : 0);
  static constexpr int kToldAt = kTableAt + kTableBytes;
  static constexpr int kArrivalsAt = kToldAt + (Rule::kVrsd ? kTableBytes : 0);
  static constexpr int kGroupsAt = kArrivalsAt + 16;

  const SelectArgs& a;
  unsigned char* const shared;
  const long long q;
  const int lane, warp, group, member, entry;
  unsigned row = 0;  // while it is open
  bool open = false;
  float scale = 0.0f, relevance_scale = 0.0f;
  // Of lane c: the position of the item that is column c, -1 where it is none, and its row. Initial items come behind
  // the pool.
  int column = -1;
  unsigned column_row = 0;
  Slots<1> x;
  Rule rule;

  __device__ HeldPool(const SelectArgs& args, unsigned char* dynamic)
      : a(args),
        shared(dynamic),
        q(args.first_query + blockIdx.x / kBlocks),
        lane(threadIdx.x % kWarp),
        warp(threadIdx.x / kWarp),
        group(lane / 4),
        member(lane % 4),
        entry(cluster_rank() * kWarps + warp) {}

  __device__ int position() const { return lane * kEntries + entry; }
  __device__ long long row_at(int p) const { return row_of_id(a, q, id_in_pool(a, q, p)); }
  __device__ const T* stored(long long its_row) const { return static_cast<const T*>(a.rows) + its_row * a.row_stride; }
  // Elements 2 i and 2 i + 1 of a column.
  __device__ unsigned* word_of(int c, int i) const {
    return reinterpret_cast<unsigned*>(shared + c % 8 * kPairStride + i / 4 * 32 + i % 4 * 8 + c / 8 * 4);
  }
  // Of the rows of this warp with a column.
  __device__ float* products(int c) const {
    return reinterpret_cast<float*>(shared + kVectorBytes) + (warp * kColumns + c) * kProductStride;
  }
  __device__ float* sum() const { return reinterpret_cast<float*>(shared + kSumAt); }
  __device__ uint4* table(int step) const { return reinterpret_cast<uint4*>(shared + kTableAt) + step % 2 * kEntries; }
  __device__ uint4* told_of(int step) const { return reinterpret_cast<uint4*>(shared + kToldAt) + step % 2 * kEntries; }
  __device__ Arrivals* arrivals(int step) const { return reinterpret_cast<Arrivals*>(shared + kArrivalsAt) + step % 2; }
  __device__ long long* groups() const { return reinterpret_cast<long long*>(shared + kGroupsAt); }

  // Finds the item of this lane, and reads the rows of the quad: of each, a lane has 16 bytes of every 64.
  using Rows = uint4[kOfQuad][kSteps];
  __device__ void load(Rows& rows) {
    const long long found = lane < kOfWarp && position() < a.pool ? row_at(position()) : -1;
    open = found >= 0;
    row = unsigned(found);
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) {
      const T* const from = stored(__shfl_sync(kAll, row, 8 * r + group)) + 8 * member;
      const int dims = (__shfl_sync(kAll, int(open), 8 * r + group) ? a.dims : 0) - 8 * member;
#pragma unroll
      for (int j = 0; j < kSteps; ++j)
        rows[r][j] = kStepDims * j < dims ? load16(from + kStepDims * j) : make_uint4(0, 0, 0, 0);
    }
  }

  // Starts to copy the rows of the columns; a warp copies a part of them, of each row two elements a lane at a time.
  __device__ void copy_columns(int first) const {
#pragma unroll
    for (int i = 0; i < kColumns / kWarps; ++i) {
      const int c = kColumns / kWarps * warp + i, p = __shfl_sync(kAll, column, c);
      const T* const from = stored(__shfl_sync(kAll, column_row, c)) + 2 * lane;
      const Place to = place_of(reinterpret_cast<unsigned char*>(word_of(c, lane)));
      const int left = c < first || p < 0 ? 0 : a.dims - 2 * lane;
      copy_elements<0>(to, from, left);
    }
  }
  template <int D>
  __device__ void copy_elements(Place to, const T* from, int left) const {
    if (D < left) copy4<4 * D, 2 * D>(to, from);
    if constexpr (D + 2 * kWarp < kDims) copy_elements<D + 2 * kWarp>(to, from, left);
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
    for (int i = threadIdx.x; i < kVectorBytes / 16; i += kWarp * kWarps)
      if (i % (kPairStride / 16) * 4 >= a.dims) reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
    copy_columns(kParts<T>);
    if (a.queries) {
      const QueryScale by = scale_of_query<T>(a, q, lane);
      relevance_scale = by.scale;
#pragma unroll 1
      for (int two = threadIdx.x; 2 * two < a.dims; two += kWarp * kWarps) {
        unsigned words[kParts<T>];
        take_apart<T>(a, q, 2 * two, by.power, words);
#pragma unroll
        for (int part = 0; part < kParts<T>; ++part) *word_of(part, two) = words[part];
      }
    }
    if constexpr (Rule::kVrsd)
#pragma unroll 1
      for (int d = threadIdx.x; d < kDims; d += kWarp * kWarps) sum()[d] = 0.0f;
    copies_done();
  }

  // |row|^2 of this lane's row. Element k of an instruction is one of the same dimension in both operands, whichever
  // that is: so 16 bytes of a lane, as they lie in memory, are four registers. Here they are two rows of the first
  // operand, each with half of the dimensions; quad g's row with itself is in one lane of the quad.
  __device__ float norm2(const Rows& rows) const {
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) {
      float half[4] = {}, other_half[4] = {};
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const uint4& x = rows[r][j];
        multiply(half, {x.x, x.y, x.z, x.w}, x.x, x.z, T());
        multiply(other_half, {x.x, x.y, x.z, x.w}, x.y, x.w, T());
      }
      const float whole = group % 2 ? __fadd_rn(half[1], other_half[3]) : __fadd_rn(half[0], other_half[2]);
      const float its = __shfl_sync(kAll, whole, lane % 8 * 4 + lane % 8 / 2);
      if (lane / 8 == r) mine = its;
    }
    return mine;
  }

  // The products of the columns with the rows of this warp: the columns are the first operand.
  __device__ void meet(const Rows& rows) const {
    constexpr int kChains = 4 / kOfQuad;  // of sums for each row, so that four go on at once
    float sums[kOfQuad][kChains][4] = {};
    const uint4* const from = reinterpret_cast<const uint4*>(word_of(group, 4 * member));
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const uint4 x = from[8 * j], y = from[8 * j + 1];
#pragma unroll
      for (int r = 0; r < kOfQuad; ++r) {
        multiply(sums[r][0], {x.x, x.y, x.z, x.w}, rows[r][j].x, rows[r][j].y, T());
        multiply(sums[r][kChains - 1], {y.x, y.y, y.z, y.w}, rows[r][j].z, rows[r][j].w, T());
      }
    }
    // A lane has columns g and g + 8 of two rows.
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          two[e] = sums[r][0][2 * i + e];
          if (kChains > 1) two[e] = __fadd_rn(two[e], sums[r][kChains - 1][2 * i + e]);
        }
        *reinterpret_cast<float2*>(products(group + 8 * i) + 8 * r + 2 * member) = make_float2(two[0], two[1]);
      }
    __syncwarp();
  }
  __device__ float product_with(int c) const { return products(c)[lane % kOfWarp]; }

  // |s + e|^2 of this lane's item out of its row, where float32 loses it in sums of products.
  __device__ float sum_again(const Rows& rows) const {
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) {
      const float its_scale = __shfl_sync(kAll, scale, 8 * r + group);
      float square = 0.0f;
#pragma unroll
      for (int j = 0; j < kSteps; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float4 s = *reinterpret_cast<const float4*>(sum() + kStepDims * j + 8 * member + 4 * c);
          float y[4];
          unpack_four(rows[r][j], c, y, T());
          const float z[4] = {__fmaf_rn(its_scale, y[0], s.x), __fmaf_rn(its_scale, y[1], s.y),
                              __fmaf_rn(its_scale, y[2], s.z), __fmaf_rn(its_scale, y[3], s.w)};
#pragma unroll
          for (int i = 0; i < 4; ++i) square = __fmaf_rn(z[i], z[i], square);
        }
      square = __fadd_rn(square, __shfl_xor_sync(kAll, square, 1));
      square = __fadd_rn(square, __shfl_xor_sync(kAll, square, 2));
      square = __shfl_sync(kAll, square, lane % 8 * 4);
      if (lane / 8 == r) mine = square;
      __syncwarp();  // so that s is read again: there are no registers to keep it in
    }
    return mine;
  }
  // Adds column c to s; each thread has elements of its own.
  __device__ void add(int c, float its_scale) const {
#pragma unroll
    for (int i = 0; i < kDims / 2 / (kWarp * kWarps) + (kDims / 2 % (kWarp * kWarps) > 0); ++i) {
      const int two = threadIdx.x + kWarp * kWarps * i;
      if (two >= kDims / 2) break;
      const unsigned words = *word_of(c, two);
      float2& s = reinterpret_cast<float2*>(sum())[two];
      s.x = __fmaf_rn(its_scale, widen(T{(unsigned short)words}), s.x);
      s.y = __fmaf_rn(its_scale, widen(T{(unsigned short)(words >> 16)}), s.y);
    }
  }

  // MMR and MSD: takes the initial items, which are columns that the rows meet before the first pick; returns how many
  // there are. VRSD, which has to know more of them, has no registers for that.
  __device__ int take_initial(const Rows& rows) {
    int taken = 0;
#pragma unroll 1
    for (int first = 0; first < a.num_initial; first += kColumns) {
      column = -1;
      if (lane < kColumns && first + lane < a.num_initial) {
        const long long its_row = row_of_id(a, q, id_at(a.initial, a.initial_bytes, q * a.num_initial + first + lane));
        if (its_row >= 0) column = a.pool + first + lane, column_row = unsigned(its_row);
      }
      // All warps of the block have done with the columns before.
      SYNC(15);
      copy_columns(0);
      copies_done();
      // The initial items are there before they are met.
      SYNC(16);
      meet(rows);
#pragma unroll 1
      for (int c = 0; c < kColumns; ++c) {
        if (__shfl_sync(kAll, column, c) < 0) continue;
        const unsigned its_row = __shfl_sync(kAll, column_row, c);
        if (row == its_row) open = false;
        float norm2 = 0.0f;
#pragma unroll 1
        for (int two = lane; 2 * two < a.dims; two += kWarp) {
          const unsigned words = *word_of(c, two);
          const float y = widen(T{(unsigned short)words}), y2 = widen(T{(unsigned short)(words >> 16)});
          norm2 = __fmaf_rn(y, y, __fmaf_rn(y2, y2, norm2));
        }
        Slots<1> its;
        const float its_scale = settle<Rule>(a, q, -1, its_row, warp_sum(norm2), 0.0f, 0.0f, its, 0);
        const float similarity[1] = {__fmul_rn(__fmul_rn(product_with(c), its_scale), scale)};
        rule.take(similarity, {});
        if (a.max_per_group) {
          const long long barred = a.groups[its_row];
          if (reaches_cap(barred, taken)) open = open && a.groups[row] != barred;
          // The group is there before others are compared with it.
          SYNC(17);
        }
        ++taken;
      }
    }
    return taken;
  }

  // The best items of warps, best first, ties by position: the first is the pick. Each has the place that as many come
  // before it, which takes less time than to look for one after the other.
  __device__ void choose_columns(int step) {
    const uint4* const bests = table(step);
    int* const order = reinterpret_cast<int*>(products(0));  // which are about to be made anew
    if (lane < kColumns) order[lane] = -1;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int its_entry = kWarp * i + lane;
      if (its_entry >= kEntries) break;
      const uint2 its = *reinterpret_cast<const uint2*>(bests + its_entry);
      int before = 0;
#pragma unroll 4
      for (int e = 0; e < kEntries; ++e) {
        const uint2 other = *reinterpret_cast<const uint2*>(bests + e);
        before += other.x > its.x || (other.x == its.x && other.y < its.y);
      }
      if (before < kColumns && its.x) order[before] = its_entry;
    }
    __syncwarp();
    const int chosen = order[lane % kColumns];
    const uint4 its = bests[max(chosen, 0)];
    column = chosen < 0 ? -1 : int(its.y);
    column_row = its.w;
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
    const uint4 its = make_uint4(best, unsigned(who * kEntries + entry), of(scale), __shfl_sync(kAll, row, who));
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
      for (int part = 0; part < kParts<T>; ++part) of_parts[part] = product_with(part);
      scale = settle<Rule>(a, q, position(), row, square, put_together<T>(of_parts), relevance_scale, x, 0);
      if (a.query_groups) open = a.groups[row] != a.query_groups[q];
    } else {
      x.v[0] = x.length[0] = 0.0f;
    }
    x.lambda_d = a.lambda_d ? a.lambda_d[q] : 0.0f;
    x.far = a.far;
    rule.start();
    // Every block of the cluster has begun before others write to it. None ends before all have told it of the last
    // step.
    CLUSTER_SYNC(10);
    int taken = 0;
    if constexpr (!Rule::kVrsd)
      if (a.num_initial) taken = take_initial(rows);
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
      const bool first = made + taken == 0;
      const float w = rule.value(x, 0, first);
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
      if (open && position() == int(pick)) {
        put(a, q, made, (long long)row - q * a.pool_stride, rule.score(x, 0, w, first), x.v[0],
            rule.redundancy(0, first));
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
        if (reaches_cap(barred, taken + made - 1)) open = open && a.groups[row] != barred;
      }
      if constexpr (Rule::kVrsd) {
        add(c, its_scale);
        // The row is added before the sum is read.
        SYNC(13);
      }
    }
    if (cluster_rank() > 0) return;
#pragma unroll 1
    for (int slot = made + threadIdx.x; slot < a.k; slot += kWarp * kWarps)
      put(a, q, slot, -1, -infinity(), nan(), nan());
    if (threadIdx.x == 0) a.lengths[q] = made;
  }
};

}  // namespace rsk

// Two blocks of four warps share a multiprocessor, or one of eight.
#define RSK_HELD(name, T, rule, of_quad, blocks)                                                   \
  extern "C" __global__ void __cluster_dims__(blocks, 1, 1)                                        \
      __launch_bounds__(rsk::HeldPool<T, rsk::rule<1>, of_quad, blocks>::kWarps * 32, of_quad / 2) \
          name(const __grid_constant__ rsk::SelectArgs args) {                                     \
    DYN_SHARED(unsigned char, shared);                                                             \
    rsk::HeldPool<T, rsk::rule<1>, of_quad, blocks>(args, shared).run();                           \
  }
