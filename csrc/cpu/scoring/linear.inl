// Rows of hidden states against rows of a weight, a block of products at a time.
//
// Every product is computed in one order, however many tokens there are and wherever the two rows lie in a block: a
// chain of multiply-adds over each run of at most kRun dimensions, and the runs one after the other. So a target's
// logit, computed on its own, has the bits of the one that enters the sum.
//
// The lanes of a vector are columns. A run of a panel's columns is transposed into the first-level cache, and widened
// there if it is of 16 bits; then each element of a token, in all lanes, multiplies the panel's vectors: nothing is
// ever added across lanes. The tokens' elements of a run are copied side by side, since rows that are a power of two
// apart would drive each other out of the cache.

// A tile is kTokens tokens by kVectors vectors of columns: its sums nearly fill the registers.
#if RSK_VEC_BYTES == 64
constexpr int kTokens = 8;
#elif defined(__aarch64__)  // where multiply-adds take one lane of a register, every token has one of its own
constexpr int kTokens = 6;
#else
constexpr int kTokens = 4;
#endif
constexpr int kVectors = 3;
constexpr std::int64_t kPanel = kVectors * W;
constexpr std::int64_t kRun = 128;           // most units of a run: the sums of longer ones are less exact
constexpr std::int64_t kBlockColumns = 240;  // of a block: whole panels, for every instruction set
constexpr std::int64_t kMaxColumns = 256;    // from a row of products to the next
constexpr std::int64_t kDotSlots = 512;      // whose products with a block are kept before they are folded
static_assert(kBlockColumns % kPanel == 0 && kRun % W == 0, "pieces are whole");

// A unit is what a multiply-add takes of a row in a lane, four bytes: one element widened, or two of bfloat16.
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

// A run of the dimensions. The last unit may lack an element.
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

// Columns of a block, given by their ids or consecutive.
struct Columns {
  const std::int64_t* ids;
  std::int64_t first, count;
  std::int64_t operator[](std::int64_t i) const {
    const std::int64_t id = ids ? ids[first + i] : first + i;
    return id < 0 ? 0 : id;
  }
};

// Zeros at first.
struct LinearScratch {
  float tokens[kDotSlots * kRun];  // a run of every token; of few tokens, all runs one after the other.
  std::int64_t first, count;       // Those of these slots are packed already
  vf panel[kRun * kVectors];
  float products[kDotSlots * kMaxColumns];
};

// Points to element `begin` of the rows of N columns; beyond the last column, to that of the last.
template <int N, class T>
static inline void find_rows(const ScoreArgs& args, const Columns& columns, std::int64_t at, std::int64_t begin,
                             const T** rows) {
  const T* weight = static_cast<const T*>(args.weight) + begin;
  const std::int64_t last = at < columns.count ? columns.count - 1 : at + N - 1;
  for (std::int64_t i = 0; i < N; ++i) rows[i] = weight + columns[at + i < last ? at + i : last] * args.weight_stride;
}

// Units of W rows from the at-th element on, transposed. Prefetches those of `next`.
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
static inline const H* hidden_row(const ScoreArgs& args, const Slots& slots, std::int64_t slot, const Run& run) {
  return static_cast<const H*>(args.hidden) + args.rows[slots.first + slots.at + slot] * args.hidden_stride + run.begin;
}

// A run of the hidden rows of slots [begin, end), side by side. Prefetches those of the tile after them.
template <class K, class H>
static void pack_tokens_of(const ScoreArgs& args, const Slots& slots, std::int64_t begin, std::int64_t end,
                           const Run& run, float* tokens) {
  for (std::int64_t j = begin; j < end; ++j) {
    const H* row = hidden_row<H>(args, slots, j, run);
    for (std::int64_t u = 0; u < run.units; u += W)
      store(tokens + j * kRun + u, vector_of<K>(row + u * K::kElements, run.elements - u * K::kElements));
  }
  for (std::int64_t j = end; j < end + kTokens && j < slots.count; ++j) {
    const H* row = hidden_row<H>(args, slots, j, run);
    for (std::int64_t i = 0; i < run.elements; i += std::int64_t(64 / sizeof(H))) __builtin_prefetch(row + i, 0, 2);
  }
}

template <class K>
static void pack_tokens(const ScoreArgs& args, const Slots& slots, std::int64_t begin, std::int64_t end, const Run& run,
                        float* tokens) {
#ifndef RSK_BF16_DOT
  if (args.hidden_dtype == DType::f32) return pack_tokens_of<K, float>(args, slots, begin, end, run, tokens);
  if (args.hidden_dtype == DType::f16) return pack_tokens_of<K, f16>(args, slots, begin, end, run, tokens);
#endif
  pack_tokens_of<K, bf16>(args, slots, begin, end, run, tokens);
}

// R tokens by a panel; `more`: added to the products of the runs before. On the way it prefetches the first rows of
// `next`, a line of each at a time, so that no more lines are on their way than memory serves.
template <class K, int R>
static void tile(const float* tokens, const vf* panel, std::int64_t units, const typename K::Weight* const* next,
                 std::int64_t prefetched, float* out, bool more) {
  constexpr std::int64_t kLine = 64 / std::int64_t(sizeof(typename K::Weight)), kUnits = kLine / K::kElements;
  vf sum[R][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = vf{};
  for (std::int64_t line = 0; line * kUnits < units; ++line) {
    for (std::int64_t i = 0; i < prefetched; ++i) __builtin_prefetch(next[i] + line * kLine, 0, 2);
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

// Adds the products of a unit of W columns with that of R tokens.
template <class K, int R>
static inline void add_unit(const float* tokens, vf x, vf* sum) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = K::multiply(sum[r], splat(tokens[r * kRun]), x);
}

// A tile's tokens by all columns of a block, W columns at a time, whose units stay in registers.
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

// The tile, or the stream, for `count` tokens, at most R.
template <class K, int R>
static void tile_of(std::int64_t count, const float* tokens, const vf* panel, std::int64_t units,
                    const typename K::Weight* const* next, std::int64_t prefetched, float* out, bool more) {
  if constexpr (R > 1) {
    if (count < R) return tile_of<K, R - 1>(count, tokens, panel, units, next, prefetched, out, more);
  }
  tile<K, R>(tokens, panel, units, next, prefetched, out, more);
}
template <class K, int R>
static void stream_of(std::int64_t count, const ScoreArgs& args, const Columns& columns, bool follows,
                      const float* tokens, float* out) {
  if constexpr (R > 1) {
    if (count < R) return stream_of<K, R - 1>(count, args, columns, follows, tokens, out);
  }
  stream<K, R>(args, columns, follows, tokens, out);
}

// products[j][i] of slot j and columns[i]. `follows`: a block of consecutive columns comes after this one.
//
// Few tokens are packed once and multiply all runs of a panel, which reads the weight in its order. Many are packed a
// run at a time, which multiplies all panels before the next one is packed.
template <class K>
static void products(const ScoreArgs& args, const Slots& slots, const Columns& columns, bool follows,
                     LinearScratch& scratch) {
  const std::int64_t runs = runs_of<K>(args.dims);
  const std::int64_t tiles = (slots.count + kTokens - 1) / kTokens;
  const bool few = slots.count * runs <= kDotSlots;
  const bool packed = few && scratch.first == slots.first + slots.at && scratch.count == slots.count;
  scratch.first = slots.first + slots.at;
  scratch.count = few ? slots.count : 0;
  if (few && tiles == 1) {
    for (std::int64_t r = 0; r < runs && !packed; ++r)
      pack_tokens<K>(args, slots, 0, slots.count, run_of<K>(args.dims, r, runs),
                     scratch.tokens + r * slots.count * kRun);
    return stream_of<K, kTokens>(slots.count, args, columns, follows, scratch.tokens, scratch.products);
  }
  const std::int64_t group = few ? kPanel : kBlockColumns;
  const typename K::Weight *rows[kPanel], *next[kPanel];
  for (std::int64_t begin = 0; begin < columns.count; begin += group) {
    const std::int64_t end = begin + group < columns.count ? begin + group : columns.count;
    for (std::int64_t r = 0; r < runs; ++r) {
      const Run run = run_of<K>(args.dims, r, runs);
      float* tokens = scratch.tokens + (few ? r * slots.count * kRun : 0);
      for (std::int64_t at = begin; at < end; at += kPanel) {
        std::int64_t then = at + kPanel, then_run = r;
        if (then >= end) then = begin, ++then_run;
        if (then_run == runs) then = end, then_run = 0;
        if (then >= columns.count && !follows) then = at, then_run = r;
        find_rows<kPanel>(args, columns, at, run.begin, rows);
        find_rows<kPanel>(args, columns, then, run_of<K>(args.dims, then_run, runs).begin, next);
        pack_panel<K>(rows, run, scratch.panel);
        for (std::int64_t t = 0; t < tiles; ++t) {
          const std::int64_t slot = slots.count * t / tiles, last = slots.count * (t + 1) / tiles;
          if (at == begin && !packed && (!few || begin == 0)) pack_tokens<K>(args, slots, slot, last, run, tokens);
          const std::int64_t from = kPanel * t / tiles, prefetched = kPanel * (t + 1) / tiles - from;
          tile_of<K, kTokens>(last - slot, tokens + slot * kRun, scratch.panel, run.units, next + from, prefetched,
                              scratch.products + slot * kMaxColumns + at, r > 0);
        }
      }
    }
  }
}

// Products of hidden rows read where they lie: nothing is packed before.
template <class K>
struct Dots {
  typedef LinearScratch Scratch;
  static constexpr std::int64_t kSlots = kDotSlots, kTargetSlots = kTokens, kColumns = kBlockColumns;
  static void multiply(const ScoreArgs& args, const Slots& slots, const Columns& columns, std::int64_t passes,
                       Scratch& scratch) {
    products<K>(args, slots, columns, passes > 0, scratch);
  }
};

// Positions of a block: whole panels, and few of them where the vocabulary is small, for threads to share.
[[maybe_unused]] static std::int64_t linear_block(const ScoreArgs& args) {
  const std::int64_t columns = args.num_columns / 16 / kPanel * kPanel;
  return columns < kPanel ? kPanel : columns > kBlockColumns ? kBlockColumns : columns;
}
