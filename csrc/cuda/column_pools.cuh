// Pools of up to 4,096 rows of 16 bits, one block or cluster of blocks a query. The matrix instructions multiply all
// rows with sixteen vectors, the columns, at the cost of one. A pick is met with the fifteen items that are the next
// best of their tiles, so most later picks find that their products have been made. Up to 1,024 rows stay in the
// registers of a cluster and are read once; others are read in each pass, with the same sums up to 384 dimensions. A
// lane owns a row of each tile of its warp and what the rule knows of it. All blocks are told the best item of each
// tile and wait until those of all tiles have come, so each finds the same pick. The numbers of a query depend on no
// other query.
//
// A quad is four lanes, `group` its number. Lane 8 r + g owns the row of which quad g has the elements, as its row r.
// Position p of the pool is in tile p % kEntries of the cluster, so that the best items of a pool that comes best first
// are in different tiles; the positions of a tile ascend with the lanes.
#pragma once
#include "cluster.cuh"
#include "pool_items.cuh"

namespace rsk {

constexpr int kColumns = 16;   // vectors that rows meet together
constexpr int kStepDims = 32;  // dimensions of two matrix instructions: 16 bytes of each lane of a quad

// kTiles: of a warp; one stays in its registers, more are read in each pass. kOfQuad: rows of each quad in a tile; one
// that stays in registers has four of up to 384 dimensions or two of up to 768.
template <class T, class Rule, int kTiles, int kOfQuad, int kBlocks>
struct ColumnPool {
  static constexpr bool kResident = kTiles == 1;
  static constexpr int kWarps = kResident ? 16 / kOfQuad : 8;  // of a block, which has 128 rows or 1,024
  static constexpr int kSteps = 48 / kOfQuad;                  // of rows in registers
  static constexpr int kOfTile = 8 * kOfQuad;
  static constexpr int kEntries = kBlocks * kWarps * kTiles;  // tiles of the cluster, each with its best item
  static constexpr int kOfLane = (kEntries + kWarp - 1) / kWarp;
  static constexpr int kProductStride = kOfTile + 8;  // of a column's products with a tile
  static constexpr int kProductBytes = kWarps * kTiles * kColumns * kProductStride * 4;
  static constexpr int kEntryBytes = int(sizeof(uint4)) * (Rule::kVrsd ? 2 : 1);
  static constexpr int kTableBytes = 2 * kEntries * int(sizeof(uint4));  // for even and for odd steps

  const SelectArgs& a;
  unsigned char* const shared;
  const long long q;
  const int lane, warp, group, member, first_entry;
  // Of the lane's items: the row while it is open, and what makes it the vector of the formulas.
  unsigned row[kTiles] = {};
  bool open[kTiles] = {};
  float scale[kTiles] = {}, relevance_scale = 0.0f;
  // Of lane c: the position of the item that is column c, -1 where it is none, and its row. Initial items come behind
  // the pool.
  int column = -1;
  unsigned column_row = 0;
  Slots<kTiles> x;
  Rule rule;

  __device__ ColumnPool(const SelectArgs& args, unsigned char* dynamic)
      : a(args),
        shared(dynamic),
        q(args.first_query + blockIdx.x / kBlocks),
        lane(threadIdx.x % kWarp),
        warp(threadIdx.x / kWarp),
        group(lane / 4),
        member(lane % 4),
        first_entry((rank() * kWarps + warp) * kTiles) {}

  __device__ static int rank() {
    if constexpr (kBlocks > 1) return cluster_rank();
    return 0;
  }
  __device__ int position(int tile) const { return lane * kEntries + first_entry + tile; }
  template <class X>
  __device__ static X of_tile(const X (&of)[kTiles], int tile) {
    X its = of[0];
#pragma unroll
    for (int t = 1; t < kTiles; ++t)
      if (t == tile) its = of[t];
    return its;
  }
  __device__ long long row_at(int p) const { return row_of_id(a, q, id_in_pool(a, q, p)); }
  __device__ const T* stored(long long its_row) const { return static_cast<const T*>(a.rows) + its_row * a.row_stride; }

  __device__ int steps() const { return kResident ? kSteps : (a.dims + kStepDims - 1) / kStepDims; }
  __device__ int dims() const { return steps() * kStepDims; }
  // What is in shared memory: the columns and their products; VRSD's sum; the bests of all tiles (key, position, scale,
  // row), and what is told of them; for each of both tables which bytes of it have come; groups of picks.
  // Columns c and c + 8 lie together, word by word. Those of two quads that load together are in all banks.
  __device__ int pair_stride() const { return 4 * dims() + 16; }
  __device__ int vector_bytes() const { return kColumns / 2 * pair_stride(); }
  __device__ unsigned char* sum_at() const { return shared + vector_bytes() + kProductBytes; }
  __device__ unsigned char* table_at() const { return sum_at() + (Rule::kVrsd ? 4 * dims() : 0); }
  __device__ unsigned char* arrivals_at() const { return table_at() + (Rule::kVrsd ? 2 : 1) * kTableBytes; }
  // Elements 2 i and 2 i + 1 of a column.
  __device__ unsigned* word_of(int c, int i) const {
    return reinterpret_cast<unsigned*>(shared + c % 8 * pair_stride() + i / 4 * 32 + i % 4 * 8 + c / 8 * 4);
  }
  // Of the rows of a tile of this warp with a column.
  __device__ float* products(int tile, int c) const {
    return reinterpret_cast<float*>(shared + vector_bytes()) + ((warp * kTiles + tile) * kColumns + c) * kProductStride;
  }
  __device__ float* sum() const { return reinterpret_cast<float*>(sum_at()); }
  __device__ uint4* table(int step) const { return reinterpret_cast<uint4*>(table_at()) + step % 2 * kEntries; }
  __device__ uint4* told_of(int step) const { return table(step) + 2 * kEntries; }
  __device__ Arrivals* arrivals(int step) const { return reinterpret_cast<Arrivals*>(arrivals_at()) + step % 2; }
  __device__ long long* groups() const { return reinterpret_cast<long long*>(arrivals_at() + 16); }

  // Where a quad has the open rows of a tile: of each, a lane has 16 bytes of every 64.
  struct Places {
    const T* from[kOfQuad];
    int dims[kOfQuad];
    __device__ uint4 operator()(int r, int j) const {
      return kStepDims * j < dims[r] ? load16(from[r] + kStepDims * j) : make_uint4(0, 0, 0, 0);
    }
  };
  __device__ Places places(int tile) const {
    const unsigned its_row = of_tile(row, tile);
    const int is_open = of_tile(open, tile);
    Places its;
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) {
      its.from[r] = stored(__shfl_sync(kAll, its_row, 8 * r + group)) + 8 * member;
      its.dims[r] = (__shfl_sync(kAll, is_open, 8 * r + group) ? a.dims : 0) - 8 * member;
    }
    return its;
  }
  // The rows of a tile in registers.
  struct Rows {
    uint4 rows[kResident ? kOfQuad : 1][kResident ? kSteps : 1];
    __device__ uint4 operator()(int r, int j) const { return rows[r][j]; }
  };

  // Finds the items of this lane, and reads the rows that stay in registers.
  __device__ void load(Rows& held) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const long long found = lane < kOfTile && position(t) < a.pool ? row_at(position(t)) : -1;
      open[t] = found >= 0;
      row[t] = unsigned(found);
    }
    if constexpr (kResident) {
      const Places from = places(0);
#pragma unroll
      for (int r = 0; r < kOfQuad; ++r)
#pragma unroll
        for (int j = 0; j < kSteps; ++j) held.rows[r][j] = from(r, j);
    } else {
      held.rows[0][0] = make_uint4(0, 0, 0, 0);
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
      if constexpr (kResident)
        copy_elements<0>(to, from, left);
      else
#pragma unroll 1
        for (int d = 0; d < left; d += 2 * kWarp) copy4<0, 0>(to + 4 * d, from + d);
    }
  }
  template <int D>
  __device__ void copy_elements(Place to, const T* from, int left) const {
    if (D < left) copy4<4 * D, 2 * D>(to, from);
    if constexpr (D + 2 * kWarp < kSteps * kStepDims) copy_elements<D + 2 * kWarp>(to, from, left);
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
    for (int i = threadIdx.x; i < vector_bytes() / 16; i += kWarp * kWarps)
      if (i % (pair_stride() / 16) * 4 >= a.dims) reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
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
      for (int d = threadIdx.x; d < dims(); d += kWarp * kWarps) sum()[d] = 0.0f;
    copies_done();
  }

  // |row|^2. Element k of an instruction is one of the same dimension in both operands, whichever that is: so 16 bytes
  // of a lane, as they lie in memory, are four registers. Here they are two rows of the first operand, each with half
  // of the dimensions; quad g's row with itself is in one lane of the quad.
  struct Squares {
    float half[4] = {}, other_half[4] = {};
    __device__ void add(const uint4& x) {
      multiply(half, {x.x, x.y, x.z, x.w}, x.x, x.z, T());
      multiply(other_half, {x.x, x.y, x.z, x.w}, x.y, x.w, T());
    }
    // Lane l gets that of quad l % 8.
    __device__ float of(int lane) const {
      const bool odd = lane / 4 % 2;
      const float whole = odd ? __fadd_rn(half[1], other_half[3]) : __fadd_rn(half[0], other_half[2]);
      return __shfl_sync(kAll, whole, lane % 8 * 4 + lane % 8 / 2);
    }
  };
  __device__ float norm2(const Rows& held) const {
    float mine = 0.0f;
    if constexpr (kResident)
#pragma unroll
      for (int r = 0; r < kOfQuad; ++r) {
        Squares squares;
#pragma unroll
        for (int j = 0; j < kSteps; ++j) squares.add(held(r, j));
        const float its = squares.of(lane);
        if (lane / 8 == r) mine = its;
      }
    return mine;
  }

  // The products of the columns with the rows of a tile: the columns are the first operand. Rows that are read have
  // their squares made with them, at first; these lie behind the products of the first columns.
  template <bool kSquares, class Source>
  __device__ void meet(int tile, const Source& rows) const {
    constexpr int kChains = kResident ? 4 / kOfQuad : 1;  // of sums for each row, so that four go on at once
    constexpr int kAtOnce = kResident ? kSteps : 2;
    float sums[kOfQuad][kChains][4] = {};
    Squares squares[kSquares ? kOfQuad : 1];
    const uint4* const from = reinterpret_cast<const uint4*>(word_of(group, 4 * member));
#pragma unroll kAtOnce
    for (int j = 0; j < steps(); ++j) {
      const uint4 x = from[8 * j], y = from[8 * j + 1];
#pragma unroll
      for (int r = 0; r < kOfQuad; ++r) {
        const uint4 its = rows(r, j);
        multiply(sums[r][0], {x.x, x.y, x.z, x.w}, its.x, its.y, T());
        multiply(sums[r][kChains - 1], {y.x, y.y, y.z, y.w}, its.z, its.w, T());
        if constexpr (kSquares) squares[r].add(its);
      }
    }
    // A lane has columns g and g + 8 of two rows.
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          two[e] = sums[r][0][2 * i + e];
          if (kChains > 1) two[e] = __fadd_rn(two[e], sums[r][kChains - 1][2 * i + e]);
        }
        *reinterpret_cast<float2*>(products(tile, group + 8 * i) + 8 * r + 2 * member) = make_float2(two[0], two[1]);
      }
      if constexpr (kSquares) {
        const float its = squares[r].of(lane);
        if (lane < 8) products(tile, r)[kOfTile + lane] = its;
      }
    }
  }
  template <bool kSquares>
  __device__ void meet_all(const Rows& held) const {
    if constexpr (kResident)
      meet<false>(0, held);
    else
#pragma unroll 1
      for (int tile = 0; tile < kTiles; ++tile) meet<kSquares>(tile, places(tile));
    __syncwarp();
  }
  __device__ float product_with(int tile, int c) const { return products(tile, c)[lane % kOfTile]; }

  // |s + e|^2 of this lane's item of a tile out of its row, where float32 loses it in sums of products.
  template <class Source>
  __device__ float sum_again(int tile, const Source& rows) const {
    constexpr int kAtOnce = kResident ? kSteps : 1;
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < kOfQuad; ++r) {
      const float its_scale = __shfl_sync(kAll, of_tile(scale, tile), 8 * r + group);
      float square = 0.0f;
#pragma unroll kAtOnce
      for (int j = 0; j < steps(); ++j) {
        const uint4 its = rows(r, j);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float4 s = *reinterpret_cast<const float4*>(sum() + kStepDims * j + 8 * member + 4 * c);
          float y[4];
          unpack_four(its, c, y, T());
          const float z[4] = {__fmaf_rn(its_scale, y[0], s.x), __fmaf_rn(its_scale, y[1], s.y),
                              __fmaf_rn(its_scale, y[2], s.z), __fmaf_rn(its_scale, y[3], s.w)};
#pragma unroll
          for (int i = 0; i < 4; ++i) square = __fmaf_rn(z[i], z[i], square);
        }
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
    constexpr int kAtOnce = kResident ? (kSteps * kStepDims / 2 + kWarp * kWarps - 1) / (kWarp * kWarps) : 1;
#pragma unroll kAtOnce
    for (int i = 0; !kResident || i < kAtOnce; ++i) {
      const int two = threadIdx.x + kWarp * kWarps * i;
      if (two >= dims() / 2) break;
      const unsigned words = *word_of(c, two);
      float2& s = reinterpret_cast<float2*>(sum())[two];
      s.x = __fmaf_rn(its_scale, widen(T{(unsigned short)words}), s.x);
      s.y = __fmaf_rn(its_scale, widen(T{(unsigned short)(words >> 16)}), s.y);
    }
  }

  // Column c is taken.
  __device__ void take(int c, float its_scale, Told told) {
    float similarity[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) similarity[t] = __fmul_rn(__fmul_rn(product_with(t, c), its_scale), scale[t]);
    rule.take(similarity, told);
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
      meet_all<false>(rows);
#pragma unroll 1
      for (int c = 0; c < kColumns; ++c) {
        if (__shfl_sync(kAll, column, c) < 0) continue;
        const unsigned its_row = __shfl_sync(kAll, column_row, c);
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          if (row[t] == its_row) open[t] = false;
        float norm2 = 0.0f;
#pragma unroll 1
        for (int two = lane; 2 * two < a.dims; two += kWarp) {
          const unsigned words = *word_of(c, two);
          const float y = widen(T{(unsigned short)words}), y2 = widen(T{(unsigned short)(words >> 16)});
          norm2 = __fmaf_rn(y, y, __fmaf_rn(y2, y2, norm2));
        }
        Slots<1> its;
        const float its_scale = settle<Rule>(a, q, -1, its_row, warp_sum(norm2), 0.0f, 0.0f, its, 0);
        take(c, its_scale, {});
        if (a.max_per_group) {
          close_group(a.groups[its_row], taken);
          // The group is there before others are compared with it.
          SYNC(17);
        }
        ++taken;
      }
    }
    return taken;
  }

  // The best items of tiles, best first, ties by position: the first is the pick. Each has the place that as many come
  // before it, which takes less time than to look for one after the other.
  __device__ void choose_columns(int step) {
    const uint4* const bests = table(step);
    int* const order = reinterpret_cast<int*>(products(0, 0));  // which are about to be made anew
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

  // Tells all blocks the best items of this warp's tiles.
  __device__ void tell(int step, const unsigned (&keys)[kTiles]) const {
    if constexpr (kBlocks > 1)
      if (threadIdx.x == 0) expect(arrivals(step), kEntries * kEntryBytes);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const unsigned best = __reduce_max_sync(kAll, keys[t]);
      const int who = __ffs(int(__ballot_sync(kAll, keys[t] == best))) - 1;  // the lowest position
      const auto of = [&](float y) { return __float_as_uint(__shfl_sync(kAll, y, who)); };
      const int its_entry = first_entry + t;
      const uint4 its =
          make_uint4(best, unsigned(who * kEntries + its_entry), of(scale[t]), __shfl_sync(kAll, row[t], who));
      uint4 more = make_uint4(0, 0, 0, 0);
      if constexpr (Rule::kVrsd) {
        const Told told = rule.told(x, t);
        more = make_uint4(of(told.product), of(told.length), of(told.added), of(told.square));
      }
      if (lane < kBlocks) {
        store(step, table(step) + its_entry, its);
        if constexpr (Rule::kVrsd) store(step, told_of(step) + its_entry, more);
      }
      __syncwarp();
    }
  }
  // By a lane for each block.
  __device__ void store(int step, uint4* own, uint4 x) const {
    if constexpr (kBlocks > 1)
      store_in(lane, own, x, arrivals(step));
    else
      *own = x;
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
  __device__ void close_group(long long its_group, int picks) {
    if (!reaches_cap(its_group, picks)) return;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) open[t] = open[t] && a.groups[row[t]] != its_group;
  }

  __device__ void run() {
    if constexpr (kBlocks > 1) {
      if (threadIdx.x == 0) begin(arrivals(0)), begin(arrivals(1));
      cluster_arrive();
    }
    Rows rows;
    load(rows);
    prepare();
    const float square = kResident && (Rule::kVrsd || a.norm == kComputed) ? norm2(rows) : 0.0f;
    // The first columns are there before they are met, and VRSD's sum is empty.
    SYNC(9);
    meet_all<true>(rows);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (open[t]) {
        float of_parts[kParts<T>];
#pragma unroll
        for (int part = 0; part < kParts<T>; ++part) of_parts[part] = product_with(t, part);
        const float its_square = kResident ? square : products(t, lane / 8)[kOfTile + lane % 8];
        scale[t] =
            settle<Rule>(a, q, position(t), row[t], its_square, put_together<T>(of_parts), relevance_scale, x, t);
        if (a.query_groups) open[t] = a.groups[row[t]] != a.query_groups[q];
      } else {
        x.v[t] = x.length[t] = 0.0f;
      }
    }
    x.lambda_d = a.lambda_d ? a.lambda_d[q] : 0.0f;
    x.far = a.far;
    rule.start();
    // Every block of the cluster has begun before others write to it. None ends before all have told it of the last
    // step.
    if constexpr (kBlocks > 1) CLUSTER_SYNC(10);
    int taken = 0;
    if constexpr (!Rule::kVrsd)
      if (a.num_initial) taken = take_initial(rows);
    const int wanted = a.ks ? int(min(max(a.ks[q], 0ll), (long long)a.k)) : a.k;
    int made = 0;
#pragma unroll 1
    while (made < wanted) {
      if constexpr (Rule::kVrsd)
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const bool cancels = rule.cancels(x, t) && open[t];
          if (!__any_sync(kAll, cancels)) continue;
          float whole;
          if constexpr (kResident)
            whole = sum_again(t, rows);
          else
            whole = sum_again(t, places(t));
          if (cancels) rule.square[t] = whole;
        }
      const bool first = made + taken == 0;
      float w[kTiles];
      unsigned of_tiles[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        w[t] = rule.value(x, t, first);
        of_tiles[t] = open[t] && w[t] > -infinity() ? key_of(w[t]) : 0u;  // never NaN
      }
      tell(made, of_tiles);
      // The bests of all tiles are there. Even and odd steps have tables of their own: a warp that tells of the next
      // step but one has heard from all of the next, and they had read this step's table before.
      if constexpr (kBlocks > 1) AWAIT(11, arrivals(made), made / 2 % 2);
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
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        if (open[t] && position(t) == int(pick)) {
          put(a, q, made, (long long)row[t] - q * a.pool_stride, rule.score(x, t, w[t], first), x.v[t],
              rule.redundancy(t, first));
          open[t] = false;
        }
      if (++made == wanted) break;
      unsigned has = __ballot_sync(kAll, lane < kColumns && column == int(pick));
      if (!has) {
        choose_columns(made - 1);
        copy_columns(0);
        copies_done();
        // The columns are there before they are met.
        SYNC(12);
        meet_all<false>(rows);
        has = 1;
      }
      const int c = __ffs(int(has)) - 1, its_entry = int(pick) % kEntries;
      const uint4 its = table(made - 1)[its_entry];
      const float its_scale = __uint_as_float(its.z);
      Told told = {};
      if constexpr (Rule::kVrsd) {
        const uint4 more = told_of(made - 1)[its_entry];
        told = {__uint_as_float(more.x), __uint_as_float(more.y), __uint_as_float(more.z), __uint_as_float(more.w)};
      }
      take(c, its_scale, told);
      if (a.max_per_group) close_group(a.groups[its.w], taken + made - 1);
      if constexpr (Rule::kVrsd) {
        add(c, its_scale);
        // The row is added before the sum is read.
        SYNC(13);
      }
    }
    if (rank() > 0) return;
#pragma unroll 1
    for (int slot = made + threadIdx.x; slot < a.k; slot += kWarp * kWarps)
      put(a, q, slot, -1, -infinity(), nan(), nan());
    if (threadIdx.x == 0) a.lengths[q] = made;
  }
};

}  // namespace rsk

// `cluster` says that there is one, of as many blocks; `resident` are those that a multiprocessor has registers for.
#define RSK_COLUMNS(name, T, rule, tiles, of_quad, blocks, cluster, resident)              \
  extern "C" __global__ void cluster __launch_bounds__(                                    \
      rsk::ColumnPool<T, rsk::rule<tiles>, tiles, of_quad, blocks>::kWarps * 32, resident) \
      name(const __grid_constant__ rsk::SelectArgs args) {                                 \
    DYN_SHARED(unsigned char, shared);                                                     \
    rsk::ColumnPool<T, rsk::rule<tiles>, tiles, of_quad, blocks>(args, shared).run();      \
  }
