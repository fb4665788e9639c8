// Folding a block of values into the running state of a row. The reference is a guess, the largest value of the first
// block with a finite one, and is raised only when a block's sum shows that it is far too low; so the block is read
// once, the exponents stay small, and float32 sums of a block stay exact enough. float64 across blocks.

constexpr std::int64_t kBlock = 4096;  // values of a block, 16 KB of float32
constexpr float kRaise = 0x1p14f;      // sum of a block above which the reference is raised

static inline vf infinite() { return splat(-__builtin_inff()); }
static inline float low(float) { return -__builtin_inff(); }
static inline f16 low(f16) { return {0xfc00}; }
static inline bf16 low(bf16) { return {0xff80}; }

// Two vectors of consecutive elements, in whatever order is quickest.
template <class T>
static inline void load_two(const T* p, vf* out) {
  out[0] = load(p);
  out[1] = load(p + W);
}
static inline void load_two(const bf16* p, vf* out) {
  const vu bits = (vu) * reinterpret_cast<const vi_u*>(p);
  out[0] = (vf)(bits << 16);
  out[1] = (vf)(bits & 0xffff0000u);
}

// How many elements of x are greater than those of y, lane by lane or all in lane 0.
static inline vi count_greater(vi count, vf x, vf y) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return (vi)_mm512_mask_sub_epi32((__m512i)count, _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_GT_OQ), (__m512i)count,
                                   _mm512_set1_epi32(-1));
#else
  return count - (vi)(x > y);
#endif
}

struct BlockSums {
  float sum, weighted, max;
  std::int64_t greater;
};

template <bool RANK, bool ENTROPY>
struct Sums {
  vf sum[4] = {}, weighted[2] = {}, max[2] = {infinite(), infinite()};
  vi greater = {};

  // GUARD: minus infinity enters the weighted sum as 0 too.
  template <bool GUARD>
  inline void add(const vf* x, vf ref, vf target) {
    for (int i = 0; i < 4; ++i) {
      const vf d = x[i] - ref, e = exponential(d);
      sum[i] += e;
      max[i % 2] = most(x[i], max[i % 2]);
      if (ENTROPY) weighted[i % 2] = fma(GUARD ? most(splat(-200.0f), d) : d, e, weighted[i % 2]);
      if (RANK) greater = count_greater(greater, x[i], target);
    }
  }
  inline BlockSums reduced() const {
    BlockSums out = {hsum((sum[0] + sum[1]) + (sum[2] + sum[3])), 0.0f, 0.0f, 0};
    if (ENTROPY) out.weighted = hsum(weighted[0] + weighted[1]);
    const vf top = most(max[0], max[1]);
    out.max = top[0];
    for (std::int64_t lane = 1; lane < W; ++lane) out.max = top[lane] > out.max ? top[lane] : out.max;
    if (RANK)
      for (std::int64_t lane = 0; lane < W; ++lane) out.greater += greater[lane];
    return out;
  }
};

template <class T, bool RANK, bool ENTROPY, bool GUARD>
static BlockSums sums(const T* x, std::int64_t n, float ref, float target) {
  Sums<RANK, ENTROPY> running;
  vf values[4];
  std::int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    load_two(x + i, values);
    load_two(x + i + 2 * W, values + 2);
    running.template add<GUARD>(values, splat(ref), splat(target));
  }
  if (i < n) {
    T rest[4 * W];
    for (std::int64_t lane = 0; lane < 4 * W; ++lane) rest[lane] = low(T());
    std::memcpy(rest, x + i, std::size_t(n - i) * sizeof(T));
    load_two(rest, values);
    load_two(rest + 2 * W, values + 2);
    running.template add<true>(values, splat(ref), splat(target));
  }
  return running.reduced();
}

// Largest element; NaN if one is NaN.
template <class T>
static float block_max(const T* x, std::int64_t n) {
  vf top = infinite();
  vi strange = {};
  std::int64_t i = 0;
  for (; i + W <= n; i += W) {
    const vf value = load(x + i);
    top = most(value, top);
    strange |= (vi)(value != value);
  }
  float out = top[0];
  for (std::int64_t lane = 0; lane < W; ++lane) {
    if (top[lane] > out) out = top[lane];
    if (strange[lane]) return __builtin_nanf("");
  }
  for (; i < n; ++i) {
    const float value = widen(x[i]);
    if (!(value <= out)) out = value;
    if (value != value) return value;
  }
  return out;
}

// Sum and weighted sum as they are with another reference.
static inline void rebase(ScoreState& state, float ref) {
  const double change = double(state.ref) - double(ref), factor = __builtin_exp(change);
  state.weighted = (state.weighted + change * state.sum) * factor;
  state.sum *= factor;
  state.ref = ref;
}

template <class T, bool RANK, bool ENTROPY>
static BlockSums fold(ScoreState& state, const T* x, std::int64_t n, float target) {
  if (state.ref == -__builtin_inff()) {
    const float top = block_max(x, n);
    if (!finite(top)) {
      if (!(top < 0)) state.sum = __builtin_nan("");
      return {0.0f, 0.0f, top, 0};
    }
    state.ref = top;
  }
  BlockSums block = sums<T, RANK, ENTROPY, false>(x, n, state.ref, target);
  if (!(block.sum < kRaise)) {
    if (block.max > state.ref && finite(block.max)) {
      rebase(state, block.max);
      block = sums<T, RANK, ENTROPY, false>(x, n, state.ref, target);
    }
    if (!finite(block.sum)) block.sum = __builtin_nanf("");
  }
  if (ENTROPY && block.weighted != block.weighted && block.sum == block.sum)
    block = sums<T, RANK, ENTROPY, true>(x, n, state.ref, target);
  state.sum += double(block.sum);
  if (ENTROPY) state.weighted += double(block.weighted);
  state.max = block.max > state.max ? block.max : state.max;
  return block;
}

template <class T>
static std::int64_t greater_than(const T* x, std::int64_t n, float target) {
  vi greater = {};
  std::int64_t i = 0, count = 0;
  for (; i + W <= n; i += W) greater = count_greater(greater, load(x + i), splat(target));
  for (std::int64_t lane = 0; lane < W; ++lane) count += greater[lane];
  for (; i < n; ++i) count += widen(x[i]) > target;
  return count;
}

// A block of one job: the state, and the ranks of the job's targets. Threads that have other blocks of the same row add
// to the same ranks.
template <class T>
static void fold_block(const ScoreArgs& args, std::int64_t job, ScoreState& state, const T* x, std::int64_t n) {
  const std::int64_t first = args.pair_begin[job], last = args.pair_begin[job + 1];
  if (!args.rank || first == last) {
    args.weighted ? fold<T, false, true>(state, x, n, 0.0f) : fold<T, false, false>(state, x, n, 0.0f);
    return;
  }
  const float* z = args.target_logits ? args.target_logits : args.target;
  const BlockSums block =
      args.weighted ? fold<T, true, true>(state, x, n, z[first]) : fold<T, true, false>(state, x, n, z[first]);
  if (block.greater) __atomic_fetch_add(args.rank + first, block.greater, __ATOMIC_RELAXED);
  for (std::int64_t pair = first + 1; pair < last; ++pair)
    if (block.max > z[pair]) __atomic_fetch_add(args.rank + pair, greater_than(x, n, z[pair]), __ATOMIC_RELAXED);
}

// What turns a logit into z.
struct Change {
  float scale, softcap, inverse_temperature;
  bool plain;  // nothing does
};

static inline Change change_of(const ScoreArgs& args, std::int64_t job) {
  const float inverse_temperature = args.inverse_temperature[job];
  const bool plain = args.logit_scale == 1.0f && args.softcap == 0.0f && inverse_temperature == 1.0f;
  return {args.logit_scale, args.softcap, inverse_temperature, plain};
}

// Infinity and NaN stay: a masked entry is masked under a softcap too.
static inline vf transformed(vf x, const Change& change) {
  vf z = x * splat(change.scale);
  if (change.softcap != 0.0f) {
    const vf cap = splat(change.softcap);
    const vi bounded = (vi)((vf)((vu)z & 0x7fffffffu) <= splat(FLT_MAX));
    z = bounded ? cap * tanh_of(z / cap) : z;
  }
  return z * splat(change.inverse_temperature);
}

// In place; the memory goes on to a whole vector.
static void transform(float* x, std::int64_t n, const Change& change) {
  if (change.plain) return;
  for (std::int64_t i = 0; i < n; i += W) store(x + i, transformed(load(x + i), change));
}
