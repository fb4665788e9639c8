// The logits form. A block holds its columns in registers: one read, then the maximum, the sums about it, and the
// ranks. The last block of a slot has its results.
#pragma once
#include "score_pairs.cuh"

namespace rsk {

constexpr int kColumns = 8192;  // of a part, of which there are fewer than 2^16
constexpr int kValues = kColumns / kThreads;
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
__device__ inline void read(const T* row, int begin, int end, int num_columns, int shift, float (&x)[kValues]) {
  constexpr int P = kPack<T>;
#pragma unroll
  for (int i = 0; i < kValues; i += P) {
    const int c = begin + offset_of<T>(i);
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

// OWN: slot i is row i and has pair i, as `rules` say; else slots are given.
template <class T, bool CAPPED, bool OWN>
__device__ inline void score_logits(const T* logits, long long row_stride, long long num_rows, const Rules& rules,
                                    const long long* rows, const float* inverse_temperature, float logit_scale,
                                    float softcap, long long num_columns, const long long* allowed,
                                    long long num_allowed, const long long* pair_begin, const long long* columns,
                                    long long num_pairs, const float* target_logits, const Parts& parts,
                                    const Results& results) {
  DYN_SHARED(float, shared);
  float* warp_max_of = shared;
  float* warp_sum_of = warp_max_of + kWarps;
  float* warp_weighted_of = warp_sum_of + kWarps;
  int* counts = reinterpret_cast<int*>(warp_weighted_of + kWarps);  // [kWarps][kPairs]

  const long long slot = blockIdx.x;
  const int part = int(blockIdx.y);
  const int thread = int(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const long long id = !OWN ? rows[slot] : rules.counts(columns[slot]) ? slot : -1;
  if (id < 0 || id >= num_rows) {
    if (part > 0 || thread > 0) return;
    results.no_slot(slot);
    if (OWN) results.no_pair(slot, rules.ignored(columns[slot]));
    if (OWN) results.no_row(slot);
    return;
  }
  const T* row = logits + id * row_stride;
  const Change<CAPPED> change(logit_scale, softcap, OWN ? rules.inverse_of(slot) : inverse_temperature[slot]);
  const auto target_of = [&](long long pair) {
    const long long c = OWN ? rules.masked(columns[pair]) : columns[pair];
    return c >= 0 && c < num_columns ? change(widen(row[c])) : -infinity();
  };

  // 1. The values.
  const int begin = part * kColumns;
  const int end = int(min((long long)begin + kColumns, allowed ? num_allowed : num_columns));
  float z[kValues];
  if (allowed) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int at = begin + offset_of<T>(i);
      const long long c = at < end ? allowed[at] : -1;
      z[i] = c >= 0 && c < num_columns ? widen(row[c]) : -infinity();
    }
  } else {
    const int shift = int((reinterpret_cast<unsigned long long>(row) & 15) / sizeof(T));
    if (shift == 0 && end - begin == kColumns) {
      read<T, Read::aligned>(row, begin, end, int(num_columns), shift, z);
    } else if (end - begin == kColumns && end + kPack<T> <= num_columns) {
      read<T, Read::shifted>(row, begin, end, int(num_columns), shift, z);
    } else {
      read<T, Read::guarded>(row, begin, end, int(num_columns), shift, z);
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
    if (parts.width == 3) weights[i % 4] += fmaxf(d, kFar) * e;
  }
  const float sum = warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  const float weighted = parts.width == 3 ? warp_sum((weights[0] + weights[1]) + (weights[2] + weights[3])) : 0.0f;
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
    parts.leave(slot, part, largest, total, total_weighted);
  }

  // 4. What exceeds each target here.
  long long first = slot, last = slot + 1;
  if (!OWN) first = max(pair_begin[slot], 0ll), last = min(pair_begin[slot + 1], num_pairs);
  for (long long pair = first; parts.above && pair < last; pair += kPairs) {
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
      publish(parts.above + (pair + thread) * parts.count + part, count);
    }
    SYNC(4);  // before the counts of the next targets
  }

  // 5. The results, by the last part.
  if (!parts.all_done(slot, counts)) return;
  finish(parts, results, slot, id, first, last, thread, kThreads, target_of);
}

}  // namespace rsk

#define RSK_LOGITS(suffix, T, CAPPED, OWN)                                                                         \
  extern "C" __global__ void __launch_bounds__(rsk::kThreads) rsk_score_logits_##suffix(                           \
      const T* __restrict__ logits, long long row_stride, long long num_rows, rsk::Rules rules,                    \
      const long long* __restrict__ rows, const float* __restrict__ inverse_temperature, float logit_scale,        \
      float softcap, long long num_columns, const long long* __restrict__ allowed, long long num_allowed,          \
      const long long* __restrict__ pair_begin, const long long* __restrict__ columns, long long num_pairs,        \
      const float* __restrict__ target_logits, rsk::Parts parts, rsk::Results results) {                           \
    rsk::score_logits<T, CAPPED, OWN>(logits, row_stride, num_rows, rules, rows, inverse_temperature, logit_scale, \
                                      softcap, num_columns, allowed, num_allowed, pair_begin, columns, num_pairs,  \
                                      target_logits, parts, results);                                              \
  }
RSK_LOGITS(f32, float, false, false)
RSK_LOGITS(f16, rsk::F16, false, false)
RSK_LOGITS(bf16, rsk::BF16, false, false)
RSK_LOGITS(f32_softcap, float, true, false)
RSK_LOGITS(f16_softcap, rsk::F16, true, false)
RSK_LOGITS(bf16_softcap, rsk::BF16, true, false)
RSK_LOGITS(f32_own, float, false, true)
RSK_LOGITS(f16_own, rsk::F16, false, true)
RSK_LOGITS(bf16_own, rsk::BF16, false, true)
RSK_LOGITS(f32_softcap_own, float, true, true)
RSK_LOGITS(f16_softcap_own, rsk::F16, true, true)
RSK_LOGITS(bf16_softcap_own, rsk::BF16, true, true)
