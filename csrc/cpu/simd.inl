// Vectors of RSK_VEC_BYTES and the dot products on them. Included once per instruction set, inside its target
// region: plain functions and templates only. AVX-512 conversions are in their zero-masked form, since GCC 12 warns of
// an uninitialised operand in the plain one.
//
// Every product of two vectors is computed in one order, whether rows are taken singly or four at a time, so that
// its bits do not depend on the blocking: two accumulators over alternating vectors, their sum, then halves added to
// halves. A prepared vector (prepare) is one operand, a stored row the other. The last D % W elements are covered
// by a load that ends at the row's last element, against a vector that is zero where elements were counted already.

typedef float vf __attribute__((vector_size(RSK_VEC_BYTES)));
typedef float vf_u __attribute__((vector_size(RSK_VEC_BYTES), aligned(4), may_alias));
typedef std::int32_t vi __attribute__((vector_size(RSK_VEC_BYTES)));
typedef std::int32_t vi_u __attribute__((vector_size(RSK_VEC_BYTES), aligned(4), may_alias));
typedef std::uint32_t vu __attribute__((vector_size(RSK_VEC_BYTES)));
typedef std::uint16_t vh __attribute__((vector_size(RSK_VEC_BYTES / 2)));
typedef std::int8_t vb_u __attribute__((vector_size(RSK_VEC_BYTES / 4), aligned(1), may_alias));
typedef std::uint16_t vh_u __attribute__((vector_size(RSK_VEC_BYTES / 2), aligned(2), may_alias));

constexpr std::int64_t W = RSK_VEC_BYTES / 4;  // floats in a vector

struct f16 {
  std::uint16_t bits;
};
struct bf16 {
  std::uint16_t bits;
};
struct i8 {
  std::int8_t value;
};

static inline vf splat(float x) { return x - vf{}; }  // x + 0 would be an addition: not -0 for -0
static inline vf load(const float* p) { return *reinterpret_cast<const vf_u*>(p); }
static inline vi load(const std::int32_t* p) { return *reinterpret_cast<const vi_u*>(p); }
static inline void store(float* p, vf v) { *reinterpret_cast<vf_u*>(p) = v; }
static inline void store(std::int32_t* p, vi v) { *reinterpret_cast<vi_u*>(p) = v; }
static inline vf larger(vf a, vf b) { return a > b ? a : b; }
static inline vf smaller(vf a, vf b) { return a < b ? a : b; }

static inline vf load(const bf16* p) {
  const vh h = *reinterpret_cast<const vh_u*>(p);
  return (vf)(__builtin_convertvector(h, vu) << 16);
}

static inline vf load(const i8* p) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (vf)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes));
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const vb_u*>(p), vi), vf);
#endif
}

static inline vf load(const f16* p) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return (vf)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  // Exponent and mantissa moved into place and rescaled by 2^112, which also normalises subnormals; an exponent of
  // all ones (inf, NaN) is set to all ones again.
  const vu h = __builtin_convertvector(*reinterpret_cast<const vh_u*>(p), vu);
  const vu magnitude = h & 0x7fffu;
  const vf scaled = (vf)(magnitude << 13) * 0x1p112f;
  const vu special = (vu)(magnitude >= 0x7c00u) & 0x7f800000u;
  return (vf)((vu)scaled | special | ((h & 0x8000u) << 16));
#endif
}

// a * b + c, rounded once where the instruction set can.
static inline vf fma(vf a, vf b, vf c) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// Halves added to halves, down to one.
typedef float v4 __attribute__((vector_size(16)));
static inline float hsum4(v4 x) {
  const v4 y = x + __builtin_shufflevector(x, x, 2, 3, 0, 1);
  return y[0] + y[1];
}
#if RSK_VEC_BYTES == 16
static inline float hsum(vf x) { return hsum4(x); }
#elif RSK_VEC_BYTES == 32
static inline float hsum(vf x) {
  return hsum4(__builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7));
}
#else
typedef float v8 __attribute__((vector_size(32)));
static inline float hsum(vf x) {
  const v8 y = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  return hsum4(__builtin_shufflevector(y, y, 0, 1, 2, 3) + __builtin_shufflevector(y, y, 4, 5, 6, 7));
}
#endif

static inline float largest_lane4(v4 x) {
  const v4 y = __builtin_shufflevector(x, x, 2, 3, 0, 1), z = x > y ? x : y;
  return z[0] > z[1] ? z[0] : z[1];
}
#if RSK_VEC_BYTES == 16
static inline float largest_lane(vf x) { return largest_lane4(x); }
#elif RSK_VEC_BYTES == 32
static inline float largest_lane(vf x) {
  const v4 a = __builtin_shufflevector(x, x, 0, 1, 2, 3), b = __builtin_shufflevector(x, x, 4, 5, 6, 7);
  return largest_lane4(a > b ? a : b);
}
#else
static inline float largest_lane(vf x) {
  const v8 a = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
  const v8 b = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15), y = a > b ? a : b;
  const v4 c = __builtin_shufflevector(y, y, 0, 1, 2, 3), d = __builtin_shufflevector(y, y, 4, 5, 6, 7);
  return largest_lane4(c > d ? c : d);
}
#endif

// First lane that equals value, or W.
static inline std::int64_t first_equal(vf x, float value) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return __builtin_ctz(_mm512_cmp_ps_mask((__m512)x, (__m512)splat(value), _CMP_EQ_OQ) | 1u << W);
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return __builtin_ctz(unsigned(_mm256_movemask_ps((__m256)(x == splat(value)))) | 1u << W);
#else
  std::int64_t lane = 0;
  while (lane < W && x[lane] != value) ++lane;
  return lane;
#endif
}

// Whether a lane is greater than value.
static inline bool any_greater(vf x, float value) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return _mm512_cmp_ps_mask((__m512)x, (__m512)splat(value), _CMP_GT_OQ) != 0;
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return _mm256_movemask_ps((__m256)(x > splat(value))) != 0;
#else
  return largest_lane(x) > value;
#endif
}

// Lanes that are at least value, a bit each.
static inline unsigned at_least_mask(vf x, float value) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return _mm512_cmp_ps_mask((__m512)x, (__m512)splat(value), _CMP_GE_OQ);
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return unsigned(_mm256_movemask_ps((__m256)(x >= splat(value))));
#else
  unsigned mask = 0;
  for (std::int64_t lane = 0; lane < W; ++lane) mask |= unsigned(x[lane] >= value) << lane;
  return mask;
#endif
}

// Asks for the line at p. In the eyes of GCC a function that does nothing else has no effect, and calls of it may be
// dropped: hence the second statement.
static inline void ask_for(const void* p) {
  __builtin_prefetch(p, 0, 2);
  asm volatile("");
}

static inline float widen(float x) { return x; }
static inline float widen(i8 x) { return float(x.value); }
static inline float widen(bf16 x) {
  const std::uint32_t bits = std::uint32_t(x.bits) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
static inline float widen(f16 x) {
  f16 lane[W] = {x};
  return load(lane)[0];
}

// Floats that a prepared vector of dims elements takes: the whole vectors, and one for the last elements.
constexpr std::int64_t prepared_floats(std::int64_t dims) { return dims / W * W + W; }

// Last vector of a row; rows shorter than a vector are copied, so that nothing beyond them is read.
template <class T>
static inline vf load_tail(const T* row, std::int64_t dims) {
  if (dims >= W) return load(row + dims - W);
  T lane[W] = {};
  std::memcpy(lane, row, std::size_t(dims) * sizeof(T));
  return load(lane);
}

template <class T>
static void prepare(const T* row, std::int64_t dims, float scale, float* out) {
  const std::int64_t whole = dims / W * W;
  for (std::int64_t i = 0; i < whole; i += W) store(out + i, load(row + i) * splat(scale));
  for (std::int64_t lane = 0; lane < W; ++lane) {
    const std::int64_t i = dims >= W ? dims - W + lane : lane;
    out[whole + lane] = i >= whole && i < dims ? widen(row[i]) * scale : 0.0f;
  }
}

// Ones where load_tail gives elements not counted yet.
static inline void prepare_tail_mask(std::int64_t dims, float* out) {
  const std::int64_t whole = dims / W * W;
  for (std::int64_t lane = 0; lane < W; ++lane) {
    const std::int64_t i = dims >= W ? dims - W + lane : lane;
    out[lane] = i >= whole && i < dims ? 1.0f : 0.0f;
  }
}

// A value that several products need stays in a register: left alone, GCC 12 loads it for each.
template <bool kNeeded>
static inline void keep_in_register(vf& x) {
#if RSK_VEC_BYTES >= 32 && defined(__x86_64__)
  if constexpr (kNeeded) asm("" : "+v"(x));
#endif
  (void)x;
}

// out[a * B + b] = <vectors[a], rows[b]>; the vectors are prepared.
template <int A, int B, class T>
static inline void dot_tile(const float* const* vectors, const T* const* rows, std::int64_t dims, float* out) {
  vf even[A][B] = {}, odd[A][B] = {};
  vf x[A], y;
  std::int64_t i = 0;
  for (; i + 2 * W <= dims; i += 2 * W) {
    for (int a = 0; a < A; ++a) x[a] = load(vectors[a] + i);
    for (int b = 0; b < B; ++b) {
      y = load(rows[b] + i);
      keep_in_register<(A > 1 && B > 1)>(y);
      for (int a = 0; a < A; ++a) even[a][b] = fma(x[a], y, even[a][b]);
    }
    for (int a = 0; a < A; ++a) x[a] = load(vectors[a] + i + W);
    for (int b = 0; b < B; ++b) {
      y = load(rows[b] + i + W);
      keep_in_register<(A > 1 && B > 1)>(y);
      for (int a = 0; a < A; ++a) odd[a][b] = fma(x[a], y, odd[a][b]);
    }
  }
  if (i + W <= dims) {
    for (int a = 0; a < A; ++a) x[a] = load(vectors[a] + i);
    for (int b = 0; b < B; ++b) {
      y = load(rows[b] + i);
      keep_in_register<(A > 1 && B > 1)>(y);
      for (int a = 0; a < A; ++a) even[a][b] = fma(x[a], y, even[a][b]);
    }
    i += W;
  }
  if (i < dims) {
    for (int a = 0; a < A; ++a) x[a] = load(vectors[a] + i);
    for (int b = 0; b < B; ++b) {
      y = load_tail(rows[b], dims);
      for (int a = 0; a < A; ++a) odd[a][b] = fma(x[a], y, odd[a][b]);
    }
  }
  for (int a = 0; a < A; ++a)
    for (int b = 0; b < B; ++b) out[a * B + b] = hsum(even[a][b] + odd[a][b]);
}

// The prepared form of a row, in `out` unless the row is its own.
static inline const float* prepared(const float* row, std::int64_t dims, float* out) {
  if (dims % W == 0) return row;
  prepare(row, dims, 1.0f, out);
  return out;
}
template <class T>
static inline const float* prepared(const T* row, std::int64_t dims, float* out) {
  prepare(row, dims, 1.0f, out);
  return out;
}

// n prepared vectors, at most kTile, with one row.
constexpr int kTile = W == 16 ? 8 : 4;
template <class T>
static inline void dot_some(const float* const* vectors, int n, const T* row, std::int64_t dims, float* out) {
  switch (n) {
    case 1:
      return dot_tile<1, 1>(vectors, &row, dims, out);
    case 2:
      return dot_tile<2, 1>(vectors, &row, dims, out);
    case 3:
      return dot_tile<3, 1>(vectors, &row, dims, out);
    case 4:
      return dot_tile<4, 1>(vectors, &row, dims, out);
  }
  if constexpr (kTile > 4) switch (n) {
      case 5:
        return dot_tile<5, 1>(vectors, &row, dims, out);
      case 6:
        return dot_tile<6, 1>(vectors, &row, dims, out);
      case 7:
        return dot_tile<7, 1>(vectors, &row, dims, out);
      case 8:
        return dot_tile<8, 1>(vectors, &row, dims, out);
    }
}

// One prepared vector with R rows.
template <int R, class T>
static inline void dot_block(const float* vector, const T* const* rows, std::int64_t dims, float* out) {
  dot_tile<1, R>(&vector, rows, dims, out);
}

// out[r] = <rows[r], rows[r]>, in the order of dot_block.
template <int R, class T>
static inline void norm2_block(const T* const* rows, std::int64_t dims, const float* tail_mask, float* out) {
  vf even[R], odd[R];
  for (int r = 0; r < R; ++r) even[r] = odd[r] = vf{};
  std::int64_t i = 0;
  for (; i + 2 * W <= dims; i += 2 * W)
    for (int r = 0; r < R; ++r) {
      const vf a = load(rows[r] + i), b = load(rows[r] + i + W);
      even[r] = fma(a, a, even[r]);
      odd[r] = fma(b, b, odd[r]);
    }
  if (i + W <= dims) {
    for (int r = 0; r < R; ++r) {
      const vf a = load(rows[r] + i);
      even[r] = fma(a, a, even[r]);
    }
    i += W;
  }
  if (i < dims)
    for (int r = 0; r < R; ++r) {
      const vf a = load_tail(rows[r], dims);
      odd[r] = fma(a * load(tail_mask), a, odd[r]);
    }
  for (int r = 0; r < R; ++r) out[r] = hsum(even[r] + odd[r]);
}

static inline vf square_root(vf x) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return (vf)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return (vf)_mm256_sqrt_ps((__m256)x);
#else
  for (std::int64_t lane = 0; lane < W; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
#endif
}

static inline bool finite(float x) { return __builtin_fabsf(x) <= FLT_MAX; }
