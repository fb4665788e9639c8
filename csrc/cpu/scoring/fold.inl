// Folding a block of values into the running state of a row. The reference is a guess, the largest of the first values,
// and is raised only when a block's sum shows that it is far too low; so a block is read once, the exponents stay
// small, and float32 sums of a block are exact enough. float64 across blocks.
//
// Where multiply-adds are fused, 2^(x log2(e) - origin) takes one operation less than exp(x - ref) and is as accurate,
// since the product is not rounded. `settle` corrects once for the rounding of the origin.

constexpr std::int64_t kBlock = 512 * W;  // values of a block: 128 for each lane of four accumulators
constexpr std::int64_t kProbe = 512;      // values that the reference is guessed from
constexpr std::int64_t kAhead = 2048;     // bytes from what is read to what is prefetched
constexpr float kRaise = 0x1p14f;         // sum of a block above which the reference is raised; at least kBlock
constexpr float kFar = 0x1p20f;  // references beyond it are subtracted first: the rounding of an origin would show

#if (RSK_VEC_BYTES > 16 && defined(__x86_64__)) || defined(__aarch64__)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

// y = (x - minus) * log2(e) - exponent.
struct Origin {
  float minus, exponent;
};
static inline Origin origin_of(float ref) {
  if (!kFused || __builtin_fabsf(ref) > kFar) return {ref, 0.0f};
  return {0.0f, ref * kLog2e};
}
// What an origin subtracts from x log2(e), exactly; and y of ref itself, without the rounding of y.
static inline double exact_origin(const Origin& origin) {
  return double(origin.minus) * double(kLog2e) + double(origin.exponent);
}
static inline double shift_of(float ref) { return double(ref) * double(kLog2e) - exact_origin(origin_of(ref)); }

// ANY: for every origin; otherwise for those that subtract nothing first.
template <bool ANY>
static inline vf exponent(vf x, vf minus, vf exponent) {
  if (!kFused) return (x - minus) * splat(kLog2e);
  return fma(ANY ? x - minus : x, splat(kLog2e), -exponent);
}

// 16-bit elements, two a lane.
typedef std::uint32_t vp_u __attribute__((vector_size(RSK_VEC_BYTES), aligned(2), may_alias));

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
  const vu bits = *reinterpret_cast<const vp_u*>(p);
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

// CAREFUL: for every origin, and minus infinity enters the weighted sum as 0 too.
template <bool RANK, bool ENTROPY>
struct Sums {
  vf sum[4], weighted[2], max[2];
  vi greater;

  // Written out: the constructor that a compiler makes of initial values belongs to no target region, and calls
  // infinite() as baseline code.
  inline Sums() : sum{}, weighted{}, max{infinite(), infinite()}, greater{} {}

  template <bool CAREFUL>
  inline void add(const vf* x, const Origin& origin, float target) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const vf y = exponent<CAREFUL>(x[i], splat(origin.minus), splat(origin.exponent)), e = exp2_of(y);
      sum[i] += e;
      max[i % 2] = most(x[i], max[i % 2]);
      if (ENTROPY) weighted[i % 2] = fma(CAREFUL ? most(splat(-300.0f), y) : y, e, weighted[i % 2]);
      if (RANK) greater = count_greater(greater, x[i], splat(target));
    }
  }
  inline BlockSums reduced() const {
    BlockSums out = {hsum((sum[0] + sum[1]) + (sum[2] + sum[3])), 0.0f, 0.0f, 0};
    if (ENTROPY) out.weighted = hsum(weighted[0] + weighted[1]);
    float lane[W];
    store(lane, most(max[0], max[1]));
    for (std::int64_t half = W / 2; half > 0; half /= 2)
      for (std::int64_t i = 0; i < half; ++i) lane[i] = lane[i + half] > lane[i] ? lane[i + half] : lane[i];
    out.max = lane[0];
    if (RANK) out.greater = std::int64_t(hsum(__builtin_convertvector(greater, vf)));
    return out;
  }
};

template <class T, bool RANK, bool ENTROPY, bool CAREFUL>
static BlockSums sums(const T* x, std::int64_t n, const Origin& origin, float target) {
  Sums<RANK, ENTROPY> running;
  vf values[4];
  std::int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    // The processor's own prefetching ends at the page. Into the second level: into the first, which can wait for few
    // lines at a time, a stream takes up to twice as long.
    for (std::int64_t ahead = 0; ahead < 4 * W * std::int64_t(sizeof(T)); ahead += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(x + i) + kAhead + ahead, 0, 2);
    load_two(x + i, values);
    load_two(x + i + 2 * W, values + 2);
    running.template add<CAREFUL>(values, origin, target);
  }
  if (i < n) {
    T rest[4 * W];
    for (std::int64_t lane = 0; lane < 4 * W; ++lane) rest[lane] = low(T());
    std::memcpy(rest, x + i, std::size_t(n - i) * sizeof(T));
    load_two(rest, values);
    load_two(rest + 2 * W, values + 2);
    running.template add<true>(values, origin, target);
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

// Moves the sums, which are of 2^y and of y 2^y while a row is folded, to the origin of another reference.
static inline void raise(ScoreState& state, float ref) {
  const double change = exact_origin(origin_of(state.ref)) - exact_origin(origin_of(ref));
  const double factor = __builtin_exp2(change);
  state.weighted = (state.weighted + change * state.sum) * factor;
  state.sum *= factor;
  state.ref = ref;
}

// Turns the sums into those of exp(x - ref) and of (x - ref) exp(x - ref), once all blocks are folded. The reference is
// one of the values, and its own term becomes exactly 1: the only value of a row has probability 1, and none has more.
static inline void settle(ScoreState& state) {
  if (state.ref == -__builtin_inff()) return;
  const Origin origin = origin_of(state.ref);
  const vf own = exp2_of(exponent<true>(splat(state.ref), splat(origin.minus), splat(origin.exponent)));
  const double shift = shift_of(state.ref), factor = __builtin_exp2(-shift);
  state.weighted = (state.weighted - shift * state.sum) * factor / double(kLog2e);
  state.sum = (state.sum - double(own[0])) * factor + 1.0;
}

template <class T, bool RANK, bool ENTROPY>
static BlockSums fold(ScoreState& state, const T* x, std::int64_t n, float target) {
  if (state.ref == -__builtin_inff()) {
    float top = block_max(x, n < kProbe ? n : kProbe);
    if (top < -FLT_MAX) top = block_max(x, n);
    if (!finite(top)) {
      if (!(top < 0)) state.sum = __builtin_nan("");
      return {0.0f, 0.0f, top, 0};
    }
    state.ref = top;
  }
  Origin origin = origin_of(state.ref);
  BlockSums block = origin.minus != 0 && kFused ? sums<T, RANK, ENTROPY, true>(x, n, origin, target)
                                                : sums<T, RANK, ENTROPY, false>(x, n, origin, target);
  if (!(block.sum < kRaise)) {
    if (block.max > state.ref && finite(block.max)) {
      raise(state, block.max);
      origin = origin_of(state.ref);
      block = sums<T, RANK, ENTROPY, true>(x, n, origin, target);
    }
    if (!finite(block.sum)) block.sum = __builtin_nanf("");
  }
  if (ENTROPY && block.weighted != block.weighted && block.sum == block.sum)
    block = sums<T, RANK, ENTROPY, true>(x, n, origin, target);
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

// A block of one slot: the state, and the ranks of the slot's targets. Threads that have other blocks of the same row
// add to the same ranks. Returns the largest value.
template <class T>
static float fold_block(const ScoreArgs& args, std::int64_t slot, ScoreState& state, const T* x, std::int64_t n) {
  const std::int64_t first = args.pair_begin[slot], last = args.pair_begin[slot + 1];
  if (!args.rank || first == last)
    return (args.weighted ? fold<T, false, true>(state, x, n, 0.0f) : fold<T, false, false>(state, x, n, 0.0f)).max;
  const float* z = args.target_logits ? args.target_logits : args.target;
  const BlockSums block =
      args.weighted ? fold<T, true, true>(state, x, n, z[first]) : fold<T, true, false>(state, x, n, z[first]);
  if (block.greater) __atomic_fetch_add(args.rank + first, block.greater, __ATOMIC_RELAXED);
  for (std::int64_t pair = first + 1; pair < last; ++pair)
    if (block.max > z[pair]) __atomic_fetch_add(args.rank + pair, greater_than(x, n, z[pair]), __ATOMIC_RELAXED);
  return block.max;
}

// What turns a logit into z.
struct Change {
  float scale, softcap, inverse_temperature;
  bool plain;  // nothing does
};

static inline Change change_of(const ScoreArgs& args, std::int64_t slot) {
  const float inverse_temperature = args.inverse_temperature[slot];
  const bool plain = args.logit_scale == 1.0f && args.softcap == 0.0f && inverse_temperature == 1.0f;
  return {args.logit_scale, args.softcap, inverse_temperature, plain};
}

// An infinite or NaN logit stays: a masked entry is masked under a softcap too. What the scale makes infinite is
// capped.
static inline vf transformed(vf x, const Change& change) {
  vf z = x * splat(change.scale);
  if (change.softcap != 0.0f) {
    const vf cap = splat(change.softcap);
    const vi bounded = (vi)((vf)((vu)x & 0x7fffffffu) <= splat(FLT_MAX));
    z = bounded ? cap * tanh_of(z / cap) : z;
  }
  return z * splat(change.inverse_temperature);
}

// In place, in whole vectors: the memory extends to one.
static void transform(float* x, std::int64_t n, const Change& change) {
  if (change.plain) return;
  for (std::int64_t i = 0; i < n; i += W) store(x + i, transformed(load(x + i), change));
}
