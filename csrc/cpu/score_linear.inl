// Rows of hidden states against rows of a weight, a block of products at a time.
//
// Every product is computed in one order, however many tokens there are and wherever the two rows lie in a block: one
// accumulator of whole vectors for each run of kRunBytes of the hidden row, the lanes of which are added by sum4, and
// the runs one after the other. So a target's logit, computed on its own, has the bits of the one that enters the sum.
//
// A tile is R tokens by four rows of the weight. The tokens' run is packed, so that it lies in one piece of the
// first-level cache: rows that are a power of two apart would drive each other out. A block of the weight stays in the
// second level while all tokens meet it.

#if RSK_VEC_BYTES == 64
constexpr int kTokens = 6;
#elif RSK_VEC_BYTES == 32
constexpr int kTokens = 3;
#elif defined(__aarch64__)
constexpr int kTokens = 6;
#else
constexpr int kTokens = 2;
#endif
constexpr std::int64_t kRunBytes = 2560;
constexpr std::int64_t kRunSteps = kRunBytes / RSK_VEC_BYTES;
constexpr std::int64_t kWeightBytes = 256 << 10;  // of a block of the weight
constexpr std::int64_t kMaxColumns = 256, kMinColumns = 16;
constexpr std::int64_t kDotJobs = 48;  // that meet a block before their products are folded

typedef float v4_u __attribute__((vector_size(16), aligned(4), may_alias));

// The sums of four vectors, each by the same tree.
static inline v4 sum4(vf a, vf b, vf c, vf d) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  const __m512 ab = _mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, (__m512)a, (__m512)b),
                                  _mm512_maskz_unpackhi_ps(0xffff, (__m512)a, (__m512)b));
  const __m512 cd = _mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, (__m512)c, (__m512)d),
                                  _mm512_maskz_unpackhi_ps(0xffff, (__m512)c, (__m512)d));
  const vf sums = (vf)_mm512_add_ps((__m512)_mm512_maskz_unpacklo_pd(0xff, (__m512d)ab, (__m512d)cd),
                                    (__m512)_mm512_maskz_unpackhi_pd(0xff, (__m512d)ab, (__m512d)cd));
  const v8 half = __builtin_shufflevector(sums, sums, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(sums, sums, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  const vf ab = (vf)_mm256_hadd_ps((__m256)a, (__m256)b), cd = (vf)_mm256_hadd_ps((__m256)c, (__m256)d);
  const vf sums = (vf)_mm256_hadd_ps((__m256)ab, (__m256)cd);
  return __builtin_shufflevector(sums, sums, 0, 1, 2, 3) + __builtin_shufflevector(sums, sums, 4, 5, 6, 7);
#else
  const v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const v4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
#endif
}

// What a product does with a vector of the packed run and as many elements of a row of the weight.
#ifdef RSK_BF16_DOT
// Two elements a lane: products of bfloat16 are exact in float32.
struct Bf16Dot {
  typedef bf16 Weight;
  static constexpr std::int64_t step = 2 * W;
  static vf packed(const bf16* p) { return (vf) * reinterpret_cast<const vp_u*>(p); }
  static vf weight(const bf16* p) { return packed(p); }
  static vf multiply(vf sum, vf hidden, vf weight) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)hidden, (__m512bh)weight);
  }
};
#else
template <class T>
struct Widening {
  typedef T Weight;
  static constexpr std::int64_t step = W;
  template <class H>
  static vf packed(const H* p) {
    return load(p);
  }
  static vf weight(const T* p) { return load(p); }
  static vf multiply(vf sum, vf hidden, vf weight) { return fma(hidden, weight, sum); }
};
#endif

// A run of D: whole steps and the elements after them.
struct Run {
  std::int64_t begin, steps, rest;
};

template <class K, class T, vf (*LOAD)(const T*)>
static inline vf load_rest(const T* p, std::int64_t n) {
  T lane[K::step] = {};
  std::memcpy(lane, p, std::size_t(n) * sizeof(T));
  return LOAD(lane);
}

// PREFETCHED rows are called for `ahead` elements from where they are read.
template <class K, int R, int PREFETCHED>
static inline void tile(const vf* hidden, const typename K::Weight* const* rows, const Run& run, std::int64_t ahead,
                        float* out, std::int64_t stride, bool more) {
  vf sum[R][4], rest[4];
  if (run.rest)
    for (int c = 0; c < 4; ++c)
      rest[c] = load_rest<K, typename K::Weight, K::weight>(rows[c] + run.steps * K::step, run.rest);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) sum[r][c] = vf{};
  for (std::int64_t step = 0; step < run.steps; ++step) {
    vf x[R];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) x[r] = hidden[step * R + r];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const vf y = K::weight(rows[c] + step * K::step);
      if (c < PREFETCHED) __builtin_prefetch(rows[c] + ahead + step * K::step, 0, 2);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) sum[r][c] = K::multiply(sum[r][c], x[r], y);
    }
  }
  if (run.rest) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const vf x = hidden[run.steps * R + r];
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) sum[r][c] = K::multiply(sum[r][c], x, rest[c]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    v4_u* to = reinterpret_cast<v4_u*>(out + r * stride);
    const v4 total = sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    *to = more ? *to + total : total;
  }
}

// Columns of a block, the ids of which are given or consecutive.
struct Columns {
  const std::int64_t* ids;
  std::int64_t first, count;
  std::int64_t operator[](std::int64_t i) const {
    const std::int64_t id = ids ? ids[first + i] : first + i;
    return id < 0 ? 0 : id;
  }
};

// R tokens with a block of columns, in fours: the last four end with the last column, again and again. Of each four
// rows PREFETCHED ones of the next block are called for, from the `skipped`-th on.
template <class K, int R, int PREFETCHED>
static void strip(const ScoreArgs& args, const vf* hidden, const Columns& columns, const Run& run, int skipped,
                  float* out, bool more) {
  typedef typename K::Weight Weight;
  const Weight* weight = static_cast<const Weight*>(args.weight) + run.begin;
  const std::int64_t ahead = (columns.count + skipped) * args.weight_stride;
  for (std::int64_t i = 0; i < columns.count; i += 4) {
    const Weight* rows[4];
    for (std::int64_t c = 0; c < 4; ++c)
      rows[c] = weight + columns[i + c < columns.count ? i + c : columns.count - 1] * args.weight_stride;
    tile<K, R, PREFETCHED>(hidden, rows, run, ahead, out + i, kMaxColumns, more);
  }
}

template <class K, int R>
static void strip_of(int tokens, int prefetched, const ScoreArgs& args, const vf* hidden, const Columns& columns,
                     const Run& run, int skipped, float* out, bool more) {
  if constexpr (R > 1) {
    if (tokens < R) return strip_of<K, R - 1>(tokens, prefetched, args, hidden, columns, run, skipped, out, more);
  }
  (prefetched == 4   ? strip<K, R, 4>
   : prefetched == 2 ? strip<K, R, 2>
                     : strip<K, R, 0>)(args, hidden, columns, run, skipped, out, more);
}

struct LinearScratch {
  vf packed[(kRunSteps + 1) * kTokens];
  float products[kDotJobs * kMaxColumns];
};

// products[j][i] = hidden[rows[first + j]] . weight[columns[i]]. With `next` the first two tiles call for the block
// after this one.
template <class K, class H>
static void products(const ScoreArgs& args, std::int64_t first, std::int64_t num_jobs, const Columns& columns,
                     bool next, LinearScratch& scratch) {
  const std::int64_t steps = (args.dims + K::step - 1) / K::step;
  const std::int64_t runs = (steps + kRunSteps - 1) / kRunSteps, tiles = (num_jobs + kTokens - 1) / kTokens;
  for (std::int64_t r = 0; r < runs; ++r) {
    const std::int64_t begin = steps * r / runs * K::step, end = steps * (r + 1) / runs * K::step;
    const std::int64_t length = (end < args.dims ? end : args.dims) - begin;
    const Run run = {begin, length / K::step, length % K::step};
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t job = num_jobs * t / tiles;
      const int tokens = int(num_jobs * (t + 1) / tiles - job);
      for (int token = 0; token < tokens; ++token) {
        const H* row = static_cast<const H*>(args.hidden) + args.rows[first + job + token] * args.hidden_stride + begin;
        for (std::int64_t s = 0; s < run.steps; ++s) scratch.packed[s * tokens + token] = K::packed(row + s * K::step);
        if (run.rest)
          scratch.packed[run.steps * tokens + token] = load_rest<K, H, K::packed>(row + run.steps * K::step, run.rest);
      }
      const int prefetched = !next || t > 1 ? 0 : tiles == 1 ? 4 : 2;
      strip_of<K, kTokens>(tokens, prefetched, args, scratch.packed, columns, run, t == 1 ? 2 : 0,
                           scratch.products + job * kMaxColumns, r > 0);
    }
  }
}

// Hidden rows as they are, none packed before.
template <class K, class H>
struct Dots {
  typedef LinearScratch Scratch;
  static constexpr std::int64_t kJobs = kDotJobs, kTargetJobs = 1;
  static void multiply(const ScoreArgs& args, const Jobs& jobs, const Columns& columns, std::int64_t passes,
                       Scratch& scratch) {
    products<K, H>(args, jobs.first + jobs.at, jobs.count, columns, passes > 0 && jobs.at == 0, scratch);
  }
};

static void add_bias(const ScoreArgs& args, const Columns& columns, float* x) {
  if (!args.head_bias) return;
  for (std::int64_t i = 0; i < columns.count; ++i) x[i] += args.head_bias[columns[i]];
}

// z of the targets of jobs. P computes the products of kTargetJobs jobs, or of kJobs in so many passes over a block
// where the next block may be called for.
template <class P>
static void targets_by(const ScoreArgs& args, const Jobs& all, typename P::Scratch& scratch) {
  for (std::int64_t done = 0; done < all.count; done += P::kTargetJobs) {
    const Jobs jobs = all.part(done, P::kTargetJobs);
    const std::int64_t* begins = args.pair_begin + jobs.first + jobs.at;
    for (std::int64_t pair = begins[0]; pair < begins[jobs.count]; pair += kMaxColumns) {
      const std::int64_t left = begins[jobs.count] - pair, count = left < kMaxColumns ? left : kMaxColumns;
      const Columns columns = {args.columns, pair, count};
      P::multiply(args, jobs, columns, 0, scratch);
      for (std::int64_t j = 0; j < jobs.count; ++j) {
        const std::int64_t begin = begins[j] > pair ? begins[j] : pair;
        const std::int64_t end = begins[j + 1] < pair + count ? begins[j + 1] : pair + count;
        if (begin >= end) continue;
        float* z = scratch.products + j * kMaxColumns;
        add_bias(args, columns, z);
        transform(z, count, change_of(args, jobs.first + jobs.at + j));
        for (std::int64_t i = begin; i < end; ++i)
          args.target[i] = args.columns[i] < 0 ? -__builtin_inff() : z[i - pair];
      }
    }
  }
}

// Folds positions [begin, end) into the states of jobs, a block at a time.
template <class P>
static void chunk_by(const ScoreArgs& args, const Jobs& all, std::int64_t block, std::int64_t begin, std::int64_t end,
                     ScoreState* states, typename P::Scratch& scratch) {
  for (; begin < end; begin += block) {
    const Columns columns = {args.allowed, begin, end - begin < block ? end - begin : block};
    const bool next = !args.allowed && begin + 2 * block <= args.num_columns;
    for (std::int64_t done = 0; done < all.count; done += P::kJobs) {
      const Jobs jobs = all.part(done, P::kJobs);
      P::multiply(args, jobs, columns, next ? (all.count + P::kJobs - 1) / P::kJobs : 0, scratch);
      for (std::int64_t j = 0; j < jobs.count; ++j) {
        const std::int64_t job = jobs.first + jobs.at + j;
        float* z = scratch.products + j * kMaxColumns;
        add_bias(args, columns, z);
        transform(z, columns.count, change_of(args, job));
        fold_block(args, job, states[done + j], z, columns.count);
      }
    }
  }
  for (std::int64_t j = 0; j < all.count; ++j) settle(states[j]);
}

// Positions of a block: as many rows of the weight as stay in the second-level cache.
[[maybe_unused]] static std::int64_t linear_block(const ScoreArgs& args) {
  const std::int64_t rows = kWeightBytes / (args.dims * (args.weight_dtype == DType::f32 ? 4 : 2)) / 16 * 16;
  return rows < kMinColumns ? kMinColumns : rows > kMaxColumns ? kMaxColumns : rows;
}

// No states: the targets.
template <class P>
static void score_hidden_by(const ScoreArgs& args, const Jobs& jobs, std::int64_t block, std::int64_t begin,
                            std::int64_t end, ScoreState* states, void* memory) {
  typename P::Scratch& scratch = *static_cast<typename P::Scratch*>(memory);
  if (states) return chunk_by<P>(args, jobs, block, begin, end, states, scratch);
  targets_by<P>(args, jobs, scratch);
}

#if defined(RSK_AMX)

#include "score_amx.inl"

static void score_hidden(const ScoreArgs& args, const Jobs& jobs, std::int64_t begin, std::int64_t end,
                         ScoreState* states, void* memory) {
  const TileUnit unit;
  score_hidden_by<Tiles>(args, jobs, tile_block(args), begin, end, states, memory);
}

#elif defined(RSK_BF16_DOT)

static void score_hidden(const ScoreArgs& args, const Jobs& jobs, std::int64_t begin, std::int64_t end,
                         ScoreState* states, void* memory) {
  score_hidden_by<Dots<Bf16Dot, bf16> >(args, jobs, linear_block(args), begin, end, states, memory);
}

#else

template <class H>
static void score_hidden_of(const ScoreArgs& args, const Jobs& jobs, std::int64_t begin, std::int64_t end,
                            ScoreState* states, void* memory) {
  const std::int64_t block = linear_block(args);
  switch (args.weight_dtype) {
    case DType::f32:
      return score_hidden_by<Dots<Widening<float>, H> >(args, jobs, block, begin, end, states, memory);
    case DType::f16:
      return score_hidden_by<Dots<Widening<f16>, H> >(args, jobs, block, begin, end, states, memory);
    default:
      return score_hidden_by<Dots<Widening<bf16>, H> >(args, jobs, block, begin, end, states, memory);
  }
}

static void score_hidden(const ScoreArgs& args, const Jobs& jobs, std::int64_t begin, std::int64_t end,
                         ScoreState* states, void* memory) {
  switch (args.hidden_dtype) {
    case DType::f32:
      return score_hidden_of<float>(args, jobs, begin, end, states, memory);
    case DType::f16:
      return score_hidden_of<f16>(args, jobs, begin, end, states, memory);
    default:
      return score_hidden_of<bf16>(args, jobs, begin, end, states, memory);
  }
}

#endif

static void score_hidden_targets(const ScoreArgs& args, const Jobs& jobs, void* memory) {
  score_hidden(args, jobs, 0, 0, nullptr, memory);
}
