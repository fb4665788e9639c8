// Products of bfloat16 rows by the matrix unit: 16 rows of the weight by 16 tokens by 32 dimensions an instruction.
//
// An element of a tile is a chain of additions over the steps of a run, each a sum of fixed order, and depends on
// nothing but its two rows: not on their places in the tiles, not on what the other rows hold. The runs are added one
// after the other. So all products of two rows have the same bits.
//
// Rows of the weight are read where they lie: a row of a tile is a piece of one. Hidden rows are packed once a batch,
// pairs of dimensions side by side; a run of 32 tokens stays in the first-level cache while a block of the weight
// passes. A weight's last dimensions, and rows that are not consecutive, are copied and padded with zeros: nothing is
// read past a row.

constexpr std::int64_t kTileRows = 16;  // rows of a tile
constexpr std::int64_t kStep = 32;      // dimensions of a tile of bfloat16
constexpr std::int64_t kTileElements = kTileRows * kStep;
constexpr std::int64_t kTileFloats = kTileRows * kTileRows;
// Most steps of a run. Short runs stay in the cache and are exact: the error of one chain over 4,096 dimensions is more
// than twice as large.
constexpr std::int64_t kTileRun = 16;
// Size of a block of the weight: half of it takes a fifth more time for 512 tokens and D = 2,048.
constexpr std::int64_t kTileBytes = 512 << 10;

struct alignas(64) TileConfig {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
// All eight tiles are 16 rows of 64 bytes. 0 to 3: sums; 4, 5: rows of the weight; 6, 7: tokens.
static const TileConfig kTileConfig = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// Configures the thread's tiles while it lives, and leaves no state of the unit behind.
struct TileUnit {
  TileUnit() { _tile_loadconfig(&kTileConfig); }
  ~TileUnit() { _tile_release(); }
};

// To the compiler the tile instructions are assembly: it does not see that they read memory.
static inline void memory_is_read() { __asm__ volatile("" ::: "memory"); }

struct TileScratch {
  bf16 rows[2 * kTileRows * kTileRun * kStep];  // copied rows of the weight, a run of them
  float sums[4 * kTileFloats];                  // of a run: tiles of 16 columns by 16 tokens
  float totals[2 * kTileRows * kMaxColumns];    // such tiles for all columns, summed over the runs so far
  float products[2 * kTileRows * kMaxColumns];  // tokens by columns
};

static inline std::int64_t steps_of(const ScoreArgs& args) { return (args.dims + kStep - 1) / kStep; }

// Copies n elements of a row, and zeros up to a whole step.
static inline void copy_row(const bf16* from, std::int64_t n, bf16* to) {
  for (; n > 0; n -= kStep, from += kStep, to += kStep) {
    const __mmask32 some = n < kStep ? (1u << n) - 1 : ~0u;
    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(some, from));
  }
}

// What to prefetch: rows [begin, end) of the 32 that lie `bytes` after the current ones.
struct Ahead {
  std::int64_t bytes, begin, end;
};

// Adds the products of consecutive steps to the sums. `a` is 32 rows of the weight, `bytes` apart.
template <int TOKENS>
static inline void multiply(const bf16* a, std::int64_t bytes, const bf16* tokens, std::int64_t other,
                            std::int64_t steps, const Ahead& ahead) {
  const char* row = reinterpret_cast<const char*>(a);
  memory_is_read();
  for (std::int64_t s = 0; s < steps; ++s, row += kStep * sizeof(bf16), tokens += kTileElements) {
    _tile_loadd(6, tokens, 64);
    _tile_loadd(4, row, bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (TOKENS == 2) {
      _tile_loadd(7, tokens + other, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    _tile_loadd(5, row + kTileRows * bytes, bytes);
    _tile_dpbf16ps(2, 5, 6);
    if (TOKENS == 2) _tile_dpbf16ps(3, 5, 7);
    for (std::int64_t r = ahead.begin; r < ahead.end; ++r) __builtin_prefetch(row + ahead.bytes + r * bytes, 0, 2);
  }
}

// The sums of 32 columns from the i-th on over the steps [begin, end).
template <int TOKENS>
static void panel(const ScoreArgs& args, const Columns& columns, std::int64_t i, std::int64_t begin, std::int64_t end,
                  const bf16* tokens, const Ahead& ahead, TileScratch& scratch) {
  const bf16* weight = static_cast<const bf16*>(args.weight) + begin * kStep;
  const std::int64_t other = steps_of(args) * kTileElements;
  const std::int64_t rows = columns.count - i < 2 * kTileRows ? columns.count - i : 2 * kTileRows;
  const std::int64_t length = (end * kStep < args.dims ? end * kStep : args.dims) - begin * kStep;
  std::int64_t steps = 0;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (!columns.ids && rows == 2 * kTileRows) {
    steps = length / kStep;
    multiply<TOKENS>(weight + columns[i] * args.weight_stride, args.weight_stride * std::int64_t(sizeof(bf16)), tokens,
                     other, steps, ahead);
  }
  const std::int64_t rest = end - begin - steps;
  if (rest) {
    for (std::int64_t row = 0; row < rows; ++row)
      copy_row(weight + columns[i + row] * args.weight_stride + steps * kStep, length - steps * kStep,
               scratch.rows + row * rest * kStep);
    multiply<TOKENS>(scratch.rows, rest * kStep * std::int64_t(sizeof(bf16)), tokens + steps * kTileElements, other,
                     rest, Ahead{});
  }
  _tile_stored(0, scratch.sums, 64);
  _tile_stored(2, scratch.sums + 2 * kTileFloats, 64);
  if (TOKENS == 2) {
    _tile_stored(1, scratch.sums + kTileFloats, 64);
    _tile_stored(3, scratch.sums + 3 * kTileFloats, 64);
  }
}

// Adds the sums of a run to the totals, or after the last run writes both to the products.
template <int TOKENS>
static void add_run(std::int64_t i, bool first, bool last, TileScratch& scratch) {
  for (int tile = 0; tile < 4; tile += 3 - TOKENS) {
    vf x[16];
    float* totals = scratch.totals + (i / kTileRows * 2 + tile) * kTileFloats;
#pragma GCC unroll 16
    for (int row = 0; row < 16; ++row) {
      const vf sum = load(scratch.sums + tile * kTileFloats + row * kTileRows);
      x[row] = first ? sum : load(totals + row * kTileRows) + sum;
    }
    float* out = totals;
    std::int64_t stride = kTileRows;
    if (last) {
      transpose(x);
      out = scratch.products + tile % 2 * kTileRows * kMaxColumns + i + tile / 2 * kTileRows;
      stride = kMaxColumns;
    }
#pragma GCC unroll 16
    for (int row = 0; row < 16; ++row) store(out + row * stride, x[row]);
  }
}

template <int TOKENS>
static void panels(const ScoreArgs& args, const Columns& columns, const bf16* tokens, const Ahead& ahead,
                   TileScratch& scratch) {
  const std::int64_t steps = steps_of(args), runs = (steps + kTileRun - 1) / kTileRun;
  for (std::int64_t run = 0; run < runs; ++run) {
    const std::int64_t begin = steps * run / runs, end = steps * (run + 1) / runs;
    for (std::int64_t i = 0; i < columns.count; i += 2 * kTileRows) {
      panel<TOKENS>(args, columns, i, begin, end, tokens + begin * kTileElements, ahead, scratch);
      add_run<TOKENS>(i, begin == 0, end == steps, scratch);
    }
  }
}

struct Tiles {
  typedef TileScratch Scratch;
  static constexpr std::int64_t kSlots = 2 * kTileRows, kTargetSlots = kTileRows, kColumns = kMaxColumns;
  static void multiply(const ScoreArgs& args, const Slots& slots, const Columns& columns, std::int64_t passes,
                       Scratch& scratch) {
    const bf16* tokens = static_cast<const bf16*>(slots.packed) + slots.at / kTileRows * steps_of(args) * kTileElements;
    // The first pass over a block is bound by memory, and the processor's own prefetching does it best. Each later pass
    // prefetches a share of the next block; of two passes the second prefetches half.
    const std::int64_t pass = slots.at / kSlots;
    Ahead ahead = {};
    if (passes > 2 || (passes == 2 && pass == 1))
      ahead = {columns.count * args.weight_stride * std::int64_t(sizeof(bf16)), 2 * kTileRows * pass / passes,
               2 * kTileRows * (pass + 1) / passes};
    (slots.count > kTileRows ? panels<2> : panels<1>)(args, columns, tokens, ahead, scratch);
  }
};

static std::size_t packed_bytes(const ScoreArgs& args, std::int64_t num_slots) {
  return std::size_t((num_slots + kTileRows - 1) / kTileRows * steps_of(args) * kTileElements) * sizeof(bf16);
}

// A tile of tokens: a step's pairs of dimensions are its rows, tokens its columns.
static void pack(const ScoreArgs& args, const Slots& slots, void* packed) {
  bf16* to = static_cast<bf16*>(packed) + slots.at / kTileRows * steps_of(args) * kTileElements;
  for (std::int64_t d = 0; d < args.dims; d += kStep, to += kTileElements) {
    vf pairs[16] = {};
    for (std::int64_t token = 0; token < slots.count; ++token) {
      const std::int64_t row = args.rows[slots.first + slots.at + token];
      copy_row(static_cast<const bf16*>(args.hidden) + row * args.hidden_stride + d,
               args.dims - d < kStep ? args.dims - d : kStep, reinterpret_cast<bf16*>(pairs + token));
    }
    transpose(pairs);
    for (int i = 0; i < 16; ++i) store(reinterpret_cast<float*>(to) + i * kTileRows, pairs[i]);
  }
}

// Positions of a block, as linear_block, in whole panels.
static std::int64_t tile_block(const ScoreArgs& args) {
  const std::int64_t rows = kTileBytes / (args.dims * 2) / (2 * kTileRows) * (2 * kTileRows);
  return rows < 2 * kTileRows ? 2 * kTileRows : rows > kMaxColumns ? kMaxColumns : rows;
}
