// MMR out of pools that stay in memory: an item meets the picks only when its bound calls for it.
//
// Scores only fall as picks are added, so the score of an item that has not met the newest picks is a bound of its true
// one. Groups of eight lanes go through their items from the largest bound down and let each meet what it lacks, until
// no bound comes before the best score that is known to the block. An item meets its turns, initial items and then
// picks, in their order and by one sum of products, so its score has the same bits whenever that happens; and which
// items do is no part of the answer, so warps need not wait for one another.
//
// The pass that finds the relevance also lets items meet the best one known by then, which in a pool that comes best
// first is the first pick. In a pool in any order half of the items, on average, are read before that, and once more in
// the first step: no order of reading spares them.
#pragma once
#include "select_meet.cuh"
#include "select_picks.cuh"
#include "select_relevance.cuh"

namespace rsk {

// A step looks for the largest bounds so often; then all items have their turn, as looking takes a scan of the bounds.
constexpr int kRounds = 16;
// What an item has met in the first pass, other than an item of the pool: the first initial item, or nothing.
constexpr int kInitial = -1;
// The similarity of what has not been met. Finite, as its product with 1 - lambda_d = 0 must be a number.
constexpr float kLowest = -3.4028235e38f;

// A number that is larger for what comes before, so that a maximum of it is one of both; 0 is below all.
__device__ inline unsigned long long key_of(float w, int item) {
  const unsigned bits = __float_as_uint(__fadd_rn(w, 0.0f));  // one zero
  return (unsigned long long)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | unsigned(kNone - item);
}
__device__ inline void read_key(unsigned long long key, float& w, int& item) {
  const unsigned bits = unsigned(key >> 32);
  w = key ? __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits) : -infinity();
  item = key ? kNone - int(unsigned(key)) : kNone;
}

// The turn takes a row: lanes or threads, `me` of `all`, bring it into shared memory if there is room for it.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::take(int turn, long long row, float its_scale, int me, int all) {
  if (me == 0) {
    turn_rows[turn] = row;
    turn_scales[turn] = its_scale;
  }
  if (turn >= a.kept) return;
  const T* const from = stored_row(row);
  int pack = me;
#pragma unroll 1
  for (; pack < whole; pack += all) copy16(resident_row(turn) + pack * kElements, from + pack * kElements);
#pragma unroll 1
  for (; pack < packs; pack += all)
    *reinterpret_cast<uint4*>(resident_row(turn) + pack * kElements) =
        gather_pack(from + pack * kElements, a.dims - pack * kElements);
  copies_done();
}

// Initial items, padding left out; how many there are.
template <class T, Op kOp, bool kResident>
__device__ inline int Selector<T, kOp, kResident>::start() {
  if (threadIdx.x < 3) top(threadIdx.x) = 0;
  int turns = 0;
#pragma unroll 1
  for (int s = 0; s < a.num_initial; ++s) {
    const long long row = initial_row(s);
    if (row < 0) continue;
    if (turns % warps == warp) {
      float product, norm2 = 0.0f;
      if (a.norm == kComputed) meet_query(global_row(row), product, norm2);
      take(turns, row, scale_of(row, norm2), lane, kWarp);
    }
    ++turns;
  }
  return turns;
}

// Tells the block the best of this warp, and this warp the best of the block, on request after all have told it.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::share(int step, bool waits, float& w, int& item) {
  w = best, item = at;
  warp_arg_max(w, item);
  unsigned long long key = item == kNone ? 0 : key_of(w, item);
  if (lane == 0) atomicMax(&top(step), key);
  if (waits) SYNC(5);
  if (lane == 0) key = atomicMax(&top(step), 0ull);
  read_key(__shfl_sync(kAll, key, 0), w, item);
}

// All items meet the query, and the first turn if there is one, else the best item that is known, at first that of
// position 0. What they have met is noted, and the product, until the first pick is made. The best by relevance.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::relate_and_meet(int turns) {
  const bool reads = a.queries || a.norm == kComputed;
  restart();
#pragma unroll 1
  for (int base = kGroup * warp; base < a.pool; base += kGroup * warps) {
    const int item = own_item(base);
    const bool open = owner() && item < a.pool && !is_nan(value(item));
    const unsigned votes = __ballot_sync(kAll, open);
    if (!votes) continue;
    float products[kRowsAtOnce] = {}, norms2[kRowsAtOnce] = {}, nears[kRowsAtOnce] = {};
    const int guess = !reads ? kNone : turns ? kInitial : at != kNone ? at : eligible_row(0) >= 0 ? 0 : kNone;
    if (reads) {
      const T* rows[kRowsAtOnce];
      find_rows(base, votes, static_cast<const T*>(a.rows), rows);
      const Floats<T> vector = query();
      const Row<T> other = global_row(guess == kNone ? 0 : guess == kInitial ? turn_rows[0] : row_of(guess));
      walk(rows, Meets<T>{vector, other, products, norms2, nears});
    }
    const float product = sum_of_own(products, lane), norm2 = sum_of_own(norms2, lane);
    const float near = sum_of_own(nears, lane);
    if (open) {
      settle(item, product, norm2);
      aux(item) = near;
      met(item) = guess;
      if (!turns) consider(value(item), item);
    }
    if (!turns) share(2, false, best, at);
  }
}

// The first turn, an item of the pool or kInitial, is known: what it is to the items that have met it.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::after_the_first(int first, float its_scale) {
#pragma unroll 1
  for (int item = first_dealt(); item < a.pool; item += blockDim.x) {
    if (is_nan(value(item))) continue;
    float similarity = kLowest;
    const bool has_met = met(item) == first;
    if (has_met) {
      similarity = __fmul_rn(__fmul_rn(aux(item), its_scale), scale(item));
      if (is_nan(similarity)) value(item) = similarity;
    }
    aux(item) = similarity;
    met(item) = has_met;
  }
}

// w, or its bound.
template <class T, Op kOp, bool kResident>
__device__ inline float Selector<T, kOp, kResident>::score(int item) const {
  const float lambda_d = a.lambda_d[q];
  return __fsub_rn(__fmul_rn(lambda_d, value(item)), __fmul_rn(__fsub_rn(1.0f, lambda_d), aux(item)));
}

// Of the items of this lane the best score that is known, and the largest bound.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::look(int turns, float& bound, int& bound_at) {
  bound = -infinity();
  bound_at = kNone;
#pragma unroll 1
  for (int item = first_dealt(); item < a.pool; item += blockDim.x) {
    const float w = score(item);
    if (met(item) == turns) {
      consider(w, item);
    } else if (comes_before(w, item, bound, bound_at)) {
      bound = w;
      bound_at = item;
    }
  }
}

// Closes a pick, and all items of a group that is full.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::close(int pick, bool bars, long long barred) {
  if (owns(pick)) value(pick) = nan();
#pragma unroll 1
  for (int item = first_dealt(); bars && item < a.pool; item += blockDim.x)
    if (!is_nan(value(item)) && a.groups[row_of(item)] == barred) value(item) = nan();
}

// The products of one row with up to four others, so many elements apart: partial sums of the lane, in the order of
// `walk`.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::meet_turns(const T* row, const T* others, int stride, int many,
                                                               float (&products)[kRowsAtOnce]) const {
  int pack = lane % kLanes;
  uint4 ahead = pack < whole ? load16(row + pack * kElements) : make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (; pack < whole; pack += kLanes) {
    const uint4 raw = ahead;
    if (pack + kLanes < whole) ahead = load16(row + (pack + kLanes) * kElements);
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      if (u >= many) break;
      const uint4 its_raw = load16(others + u * stride + pack * kElements);
#pragma unroll
      for (int c = 0; c < kElements / 4; ++c) {
        float x[4], y[4];
        unpack_four(raw, c, x, T());
        unpack_four(its_raw, c, y, T());
#pragma unroll
        for (int j = 0; j < 4; ++j) products[u] = __fmaf_rn(x[j], y[j], products[u]);
      }
    }
  }
  // What cannot be loaded 16 bytes at a time.
#pragma unroll 1
  for (; pack < packs; pack += kLanes) {
#pragma unroll 1
    for (int c = 0; c < kElements / 4; ++c) {
      float x[4], y[4];
      load_four(row, pack * kElements + 4 * c, a.dims, x);
#pragma unroll
      for (int u = 0; u < kRowsAtOnce; ++u) {
        if (u >= many) break;
        load_four(others + u * stride, pack * kElements + 4 * c, a.dims, y);
#pragma unroll
        for (int j = 0; j < 4; ++j) products[u] = __fmaf_rn(x[j], y[j], products[u]);
      }
    }
  }
}

// The group's item meets the turns that it lacks, four at a time. Only the lane that owns the item touches its state.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::catch_up(int item, bool active, int turns) {
  const bool own = active && owns(item);
  const int group = lane / kLanes * kLanes, source = group + (active ? dealt_to(item) % kLanes : 0);
  const T* const row = stored_row(active ? row_of(item) : 0);
  // All of the row is on its way at once; registers hold two packs of it.
  for (int line = lane % kLanes; active && line < packs * 16 / kLine; line += kLanes)
    prefetch(reinterpret_cast<const char*>(row) + line * kLine);
  int turn = __shfl_sync(kAll, own ? met(item) : turns, source);
  float running = own && turn ? aux(item) : -infinity();
#pragma unroll 1
  while (__any_sync(kAll, turn < turns)) {
    float products[kRowsAtOnce] = {};
    const bool kept = turn < a.kept;
    const int many = min(kept ? min(turns, a.kept) - turn : turns - turn, kept ? kRowsAtOnce : 1);
    if (many > 0)
      meet_turns(row, kept ? resident_row(turn) : stored_row(turn_rows[turn]), packs * kElements, many, products);
    const float product = sum_of_own(products, lane);
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const float x = __shfl_sync(kAll, product, group + 2 * u);
      if (!own || u >= many) continue;
      const float similarity = __fmul_rn(__fmul_rn(x, turn_scales[turn + u]), scale(item));
      // A similarity that is NaN stays: the item is never picked.
      if (!is_nan(running) && (is_nan(similarity) || similarity > running)) running = similarity;
    }
    turn += many;
  }
  if (!own) return;
  if (is_nan(running)) value(item) = running;
  aux(item) = running;
  met(item) = turns;
  consider(score(item), item);
}

// The items that may be the best of all meet the turns. In the first round it is one item of a warp, whose score then
// spares others, once all warps know it.
template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::meet_best(int step, int turns) {
  int next = first_dealt();
  restart();
#pragma unroll 1
  for (int round = 0;; ++round) {
    float bound = -infinity(), w;
    int item = kNone, known;
    if (round < kRounds) look(turns, bound, item);
    share(step, round == 1, w, known);
#pragma unroll 1
    for (; round >= kRounds && next < a.pool; next += blockDim.x) {
      const float its = score(next);
      if (met(next) == turns || !comes_before(its, next, w, known)) continue;
      bound = its;
      item = next;
      break;
    }
#pragma unroll
    for (int d = kWarp / 2; d > 0; d /= 2) {
      if (round && d >= kLanes) continue;
      const float other = __shfl_xor_sync(kAll, bound, d);
      const int its = __shfl_xor_sync(kAll, item, d);
      if (comes_before(other, its, bound, item)) bound = other, item = its;
    }
    bool active = comes_before(bound, item, w, known);
    if (!round) active &= dealt_to(item) / kLanes == threadIdx.x / kLanes;
    if (__any_sync(kAll, active))
      catch_up(item, active, turns);
    else if (round)
      return;
  }
}

template <class T, Op kOp, bool kResident>
__device__ inline void Selector<T, kOp, kResident>::run_by_bounds() {
  collect();
  prepare_query();
  int turns = start();
  // The initial items and the empty bests are there before they are read.
  SYNC(3);
  relate_and_meet(turns);
  const int wanted = a.ks ? int(min(max(a.ks[q], 0ll), (long long)a.k)) : a.k;
  int made = 0;
#pragma unroll 1
  for (int step = 0; step < wanted; ++step) {
    if (turns) {
      // The newest turn, and at first what is known of the items, is there before others read it.
      SYNC(4);
      if (!step) after_the_first(kInitial, turn_scales[0]);
      meet_best(step, turns);
    }
    compare(step);
    const int pick = at;
    if (pick == kNone) break;
    // No warp is at the step before any more, none at the one after the next.
    if (threadIdx.x == 0) top(step + 2) = 0;
    const long long row = row_of(pick);
    write_pick(step, pick, row, turns);
    made = step + 1;
    if (made == wanted) break;
    const float its_scale = scale(pick);
    long long group = 0;
    bool bars = false;
    if (a.max_per_group) {
      group = a.groups[row];
      bars = reaches_cap(group, step);
    }
    if (!turns) after_the_first(pick, its_scale);
    close(pick, bars, group);
    take(turns, row, its_scale, threadIdx.x, blockDim.x);
    ++turns;
  }
  finish(made);
}

}  // namespace rsk
