// Rows of hidden states against rows of a weight, a block of products at a time.
//
// Every product is computed in one order, however many tokens there are and wherever the two rows lie in a block: a
// chain of multiply-adds over each run of at most kRun dimensions, and the runs one after the other. So a target's
// logit, computed on its own, has the bits of the one that enters the sum.
//
// The lanes of a vector are columns. For a run, the rows of a panel of columns are transposed into the first-level
// cache, widened there if they are of 16 bits, and the tokens' elements meet it one by one, each in all lanes: nothing
// is ever added across lanes. The tokens' elements of a run lie side by side in the second level, since rows that are
// a power of two apart would drive each other out.

// A tile is kTokens by kVectors vectors of columns, the sums of which nearly fill the registers.
#if RSK_VEC_BYTES == 64
constexpr int kTokens = 8;
#elif defined(__aarch64__)  // where multiply-adds take one lane of a register, every token has one of its own
constexpr int kTokens = 6;
#else
constexpr int kTokens = 4;
#endif
constexpr int kVectors = 3;
constexpr std::int64_t kPanel = kVectors * W;
constexpr std::int64_t kRun = 128;           // units of four bytes, at most: the sums of longer ones are less exact
constexpr std::int64_t kBlockColumns = 240;  // whole panels, whatever the instruction set
constexpr std::int64_t kMaxColumns = 256;    // from a row of products to the next
constexpr std::int64_t kDotJobs = 512;       // that meet a block before their products are folded
static_assert(kBlockColumns % kPanel == 0 && kRun % W == 0, "pieces are whole");

// What a row's elements are in multiply-adds: units of four bytes, one a lane.
#ifdef RSK_BF16_DOT
// Two elements: products of bfloat16 are exact in float32.
struct Bf16Dot {
  typedef bf16 Weight;
  static constexpr std::int64_t kElements = 2;
  static vf vector(const bf16* p) { return (vf) * reinterpret_cast<const vp_u*>(p); }
  static vf multiply(vf sum, vf hidden, vf weight) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)hidden, (__m512bh)weight);
  }
};
#else
template <class T>
struct Widening {
  typedef T Weight;
  static constexpr std::int64_t kElements = 1;
  template <class H>
  static vf vector(const H* p) {
    return load(p);
  }
  static vf multiply(vf sum, vf hidden, vf weight) { return fma(hidden, weight, sum); }
};
#endif

// A run of D: so many elements in so many units, of which the last may lack an element.
struct Run {
  std::int64_t begin, elements, units;
};
template <class K>
static inline std::int64_t runs_of(std::int64_t dims) {
  return (dims + kRun * K::kElements - 1) / (kRun * K::kElements);
}
template <class K>
static inline Run run_of(std::int64_t dims, std::int64_t run, std::int64_t runs) {
  const std::int64_t units = (dims + K::kElements - 1) / K::kElements;
  const std::int64_t begin = units * run / runs, end = units * (run + 1) / runs;
  const std::int64_t left = dims - begin * K::kElements, whole = (end - begin) * K::kElements;
  return {begin * K::kElements, left < whole ? left : whole, end - begin};
}

// A vector of units, zeros after the n-th element.
template <class K, class T>
static inline vf vector_of(const T* p, std::int64_t n) {
  constexpr std::int64_t kWhole = W * K::kElements;
  if (n >= kWhole) return K::vector(p);
  T some[kWhole] = {};
  std::memcpy(some, p, std::size_t(n) * sizeof(T));
  return K::vector(some);
}

// In fours, within each 16 bytes: rows to lanes.
template <std::size_t... L>
static inline void transpose_fours(vf* x, std::index_sequence<L...>) {
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < W; i += 4) {
    const vf a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];
    const vf ab = __builtin_shufflevector(a, b, int(L / 4 * 4 + L % 4 / 2 + L % 2 * W)...);
    const vf ba = __builtin_shufflevector(a, b, int(L / 4 * 4 + L % 4 / 2 + L % 2 * W + 2)...);
    const vf cd = __builtin_shufflevector(c, d, int(L / 4 * 4 + L % 4 / 2 + L % 2 * W)...);
    const vf dc = __builtin_shufflevector(c, d, int(L / 4 * 4 + L % 4 / 2 + L % 2 * W + 2)...);
    x[i] = __builtin_shufflevector(ab, cd, int(L / 4 * 4 + L % 2 + L % 4 / 2 * W)...);
    x[i + 1] = __builtin_shufflevector(ab, cd, int(L / 4 * 4 + L % 2 + L % 4 / 2 * W + 2)...);
    x[i + 2] = __builtin_shufflevector(ba, dc, int(L / 4 * 4 + L % 2 + L % 4 / 2 * W)...);
    x[i + 3] = __builtin_shufflevector(ba, dc, int(L / 4 * 4 + L % 2 + L % 4 / 2 * W + 2)...);
  }
}

// W vectors, rows to columns.
static inline void transpose(vf* x) {
  transpose_fours(x, std::make_index_sequence<std::size_t(W)>());
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < 4 && W > 4; ++i) {
#if RSK_VEC_BYTES == 32
    const vf a = x[i], b = x[i + 4];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
#elif RSK_VEC_BYTES == 64
    const vf a = x[i], b = x[i + 4], c = x[i + 8], d = x[i + 12];
    const vf ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const vf cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const vf ba = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    const vf dc = __builtin_shufflevector(c, d, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    x[i] = __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    x[i + 8] = __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    x[i + 4] = __builtin_shufflevector(ba, dc, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    x[i + 12] = __builtin_shufflevector(ba, dc, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
#endif
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

// Begins as zeros.
struct LinearScratch {
  float tokens[kDotJobs * kRun];  // a run of every token; of few tokens, all runs one after the other,
  std::int64_t first, count;      // which stay for as long as these jobs come again
  vf panel[kRun * kVectors];
  float products[kDotJobs * kMaxColumns];
};

// Where element `begin` of N columns' rows is. After the last column it comes again.
template <int N, class T>
static inline void find_rows(const ScoreArgs& args, const Columns& columns, std::int64_t at, std::int64_t begin,
                             const T** rows) {
  const T* weight = static_cast<const T*>(args.weight) + begin;
  const std::int64_t last = at < columns.count ? columns.count - 1 : at + N - 1;
  for (std::int64_t i = 0; i < N; ++i) rows[i] = weight + columns[at + i < last ? at + i : last] * args.weight_stride;
}

// Units of W rows, from the at-th element on; those of others are called for.
template <class K, class T>
static inline void units_of(const T* const* rows, const T* const* next, std::int64_t at, std::int64_t elements, vf* x) {
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < W; ++i) {
    x[i] = vector_of<K>(rows[i] + at, elements - at);
    if (next && at * std::int64_t(sizeof(T)) % 64 == 0) __builtin_prefetch(next[i] + at, 0, 2);
  }
  transpose(x);
}

// A run of a panel's rows, transposed.
template <class K, class T>
static void pack_panel(const T* const* rows, const Run& run, vf* panel) {
  for (int v = 0; v < kVectors; ++v, rows += W)
    for (std::int64_t u = 0; u < run.units; u += W) {
      vf x[W];
      units_of<K, T>(rows, nullptr, u * K::kElements, run.elements, x);
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < W; ++i) panel[(u + i) * kVectors + v] = x[i];
    }
}

template <class H>
static inline const H* hidden_row(const ScoreArgs& args, const Jobs& jobs, std::int64_t job, const Run& run) {
  return static_cast<const H*>(args.hidden) + args.rows[jobs.first + jobs.at + job] * args.hidden_stride + run.begin;
}

// A run of the hidden rows of jobs [begin, end), side by side; those of a tile after them are called for.
template <class K, class H>
static void pack_tokens(const ScoreArgs& args, const Jobs& jobs, std::int64_t begin, std::int64_t end, const Run& run,
                        float* tokens) {
  for (std::int64_t j = begin; j < end; ++j) {
    const H* row = hidden_row<H>(args, jobs, j, run);
    for (std::int64_t u = 0; u < run.units; u += W)
      store(tokens + j * kRun + u, vector_of<K>(row + u * K::kElements, run.elements - u * K::kElements));
  }
  for (std::int64_t j = end; j < end + kTokens && j < jobs.count; ++j) {
    const H* row = hidden_row<H>(args, jobs, j, run);
    for (std::int64_t i = 0; i < run.elements; i += std::int64_t(64 / sizeof(H))) __builtin_prefetch(row + i, 0, 2);
  }
}

// R tokens by a panel, added to what the runs before made of them. Lines of some rows are called for on the way, so
// many at a time as can be under way.
template <class K, int R>
static void tile(const float* tokens, const vf* panel, std::int64_t units, const typename K::Weight* const* next,
                 std::int64_t asked, float* out, bool more) {
  constexpr std::int64_t kLine = 64 / std::int64_t(sizeof(typename K::Weight)), kUnits = kLine / K::kElements;
  vf sum[R][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = vf{};
  for (std::int64_t line = 0; line * kUnits < units; ++line) {
    for (std::int64_t i = 0; i < asked; ++i) __builtin_prefetch(next[i] + line * kLine, 0, 2);
    const std::int64_t end = (line + 1) * kUnits < units ? (line + 1) * kUnits : units;
    for (std::int64_t u = line * kUnits; u < end; ++u, panel += kVectors) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const vf x = splat(tokens[r * kRun + u]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] = K::multiply(sum[r][v], x, panel[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* to = out + r * kMaxColumns + v * W;
      store(to, more ? load(to) + sum[r][v] : sum[r][v]);
    }
}

// A unit of W columns meets that of R tokens.
template <class K, int R>
static inline void add_unit(const float* tokens, vf x, vf* sum) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = K::multiply(sum[r], splat(tokens[r * kRun]), x);
}

// A tile's tokens by all columns of a block: a vector of columns at a time, the units of which stay in registers.
template <class K, int R>
static void stream(const ScoreArgs& args, const Columns& columns, bool follows, const float* tokens, float* out) {
  const std::int64_t runs = runs_of<K>(args.dims);
  const typename K::Weight *rows[W], *next[W];
  for (std::int64_t at = 0; at < columns.count; at += W) {
    for (std::int64_t r = 0; r < runs; ++r) {
      const Run run = run_of<K>(args.dims, r, runs);
      const std::int64_t then = r + 1 < runs || (at + W >= columns.count && !follows) ? at : at + W;
      find_rows<W>(args, columns, at, run.begin, rows);
      find_rows<W>(args, columns, then, r + 1 < runs ? run_of<K>(args.dims, r + 1, runs).begin : 0, next);
      vf sum[R];
#pragma GCC unroll 8
      for (int t = 0; t < R; ++t) sum[t] = vf{};
      for (std::int64_t u = 0; u < run.units; u += W) {
        vf x[W];
        units_of<K>(rows, next, u * K::kElements, run.elements, x);
        const float* unit = tokens + r * R * kRun + u;
        if (u + W <= run.units) {
#pragma GCC unroll 16
          for (std::int64_t i = 0; i < W; ++i) add_unit<K, R>(unit + i, x[i], sum);
        } else {
          for (std::int64_t i = 0; i < run.units - u; ++i) add_unit<K, R>(unit + i, x[i], sum);
        }
      }
#pragma GCC unroll 8
      for (int t = 0; t < R; ++t) {
        float* to = out + t * kMaxColumns + at;
        store(to, r > 0 ? load(to) + sum[t] : sum[t]);
      }
    }
  }
}

// As many tokens as there are, of the tiles of up to R.
template <class K, int R>
static void tile_of(std::int64_t count, const float* tokens, const vf* panel, std::int64_t units,
                    const typename K::Weight* const* next, std::int64_t asked, float* out, bool more) {
  if constexpr (R > 1) {
    if (count < R) return tile_of<K, R - 1>(count, tokens, panel, units, next, asked, out, more);
  }
  tile<K, R>(tokens, panel, units, next, asked, out, more);
}
template <class K, int R>
static void stream_of(std::int64_t count, const ScoreArgs& args, const Columns& columns, bool follows,
                      const float* tokens, float* out) {
  if constexpr (R > 1) {
    if (count < R) return stream_of<K, R - 1>(count, args, columns, follows, tokens, out);
  }
  stream<K, R>(args, columns, follows, tokens, out);
}

// products[j][i] of job j and columns[i]. With `follows`, a block of consecutive columns comes after this one.
//
// Few tokens are packed once and meet all runs of a panel, which reads the weight in its order. Many are packed a run
// at a time, and all panels meet them before the next run is.
template <class K, class H>
static void products(const ScoreArgs& args, const Jobs& jobs, const Columns& columns, bool follows,
                     LinearScratch& scratch) {
  const std::int64_t runs = runs_of<K>(args.dims);
  const std::int64_t tiles = (jobs.count + kTokens - 1) / kTokens;
  const bool few = jobs.count * runs <= kDotJobs;
  const bool packed = few && scratch.first == jobs.first + jobs.at && scratch.count == jobs.count;
  scratch.first = jobs.first + jobs.at;
  scratch.count = few ? jobs.count : 0;
  if (few && tiles == 1) {
    for (std::int64_t r = 0; r < runs && !packed; ++r)
      pack_tokens<K, H>(args, jobs, 0, jobs.count, run_of<K>(args.dims, r, runs),
                        scratch.tokens + r * jobs.count * kRun);
    return stream_of<K, kTokens>(jobs.count, args, columns, follows, scratch.tokens, scratch.products);
  }
  const std::int64_t group = few ? kPanel : kBlockColumns;
  const typename K::Weight *rows[kPanel], *next[kPanel];
  for (std::int64_t begin = 0; begin < columns.count; begin += group) {
    const std::int64_t end = begin + group < columns.count ? begin + group : columns.count;
    for (std::int64_t r = 0; r < runs; ++r) {
      const Run run = run_of<K>(args.dims, r, runs);
      float* tokens = scratch.tokens + (few ? r * jobs.count * kRun : 0);
      for (std::int64_t at = begin; at < end; at += kPanel) {
        std::int64_t then = at + kPanel, then_run = r;
        if (then >= end) then = begin, ++then_run;
        if (then_run == runs) then = end, then_run = 0;
        if (then >= columns.count && !follows) then = at, then_run = r;
        find_rows<kPanel>(args, columns, at, run.begin, rows);
        find_rows<kPanel>(args, columns, then, run_of<K>(args.dims, then_run, runs).begin, next);
        pack_panel<K>(rows, run, scratch.panel);
        for (std::int64_t t = 0; t < tiles; ++t) {
          const std::int64_t job = jobs.count * t / tiles, last = jobs.count * (t + 1) / tiles;
          if (at == begin && !packed && (!few || begin == 0)) pack_tokens<K, H>(args, jobs, job, last, run, tokens);
          const std::int64_t ask = kPanel * t / tiles, asked = kPanel * (t + 1) / tiles - ask;
          tile_of<K, kTokens>(last - job, tokens + job * kRun, scratch.panel, run.units, next + ask, asked,
                              scratch.products + job * kMaxColumns + at, r > 0);
        }
      }
    }
  }
}

// Hidden rows as they are, none packed before.
template <class K, class H>
struct Dots {
  typedef LinearScratch Scratch;
  static constexpr std::int64_t kJobs = kDotJobs, kTargetJobs = kTokens, kColumns = kBlockColumns;
  static void multiply(const ScoreArgs& args, const Jobs& jobs, const Columns& columns, std::int64_t passes,
                       Scratch& scratch) {
    products<K, H>(args, jobs, columns, passes > 0, scratch);
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
    for (std::int64_t pair = begins[0]; pair < begins[jobs.count]; pair += P::kColumns) {
      const std::int64_t left = begins[jobs.count] - pair, count = left < P::kColumns ? left : P::kColumns;
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

// Positions of a block: whole panels, and few of a small vocabulary, for threads to share.
[[maybe_unused]] static std::int64_t linear_block(const ScoreArgs& args) {
  const std::int64_t columns = args.num_columns / 16 / kPanel * kPanel;
  return columns < kPanel ? kPanel : columns > kBlockColumns ? kBlockColumns : columns;
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

#include "scoring/amx.inl"

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
