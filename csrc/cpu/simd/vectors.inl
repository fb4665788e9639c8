// Vectors of RSK_VEC_BYTES, and what an instruction set has of its own: loads of narrow elements, multiply-adds, sums
// and comparisons across lanes. Included once per instruction set, inside its target region: plain functions and
// templates only. AVX-512 conversions are in their zero-masked form, since GCC 12 warns of an uninitialised operand in
// the plain one.

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
struct bits8 {  // eight dimensions of a row of signs: 1 for a bit that is set, else -1, the most significant bit first
  std::uint8_t byte;
};
template <class T>
constexpr bool kPacked = std::is_same<T, bits8>::value;  // a specialization would be a definition in each unit

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

// The four sums of a whole vector each, in the order of hsum.
static inline v4 sums_of_quarters(v4 a, v4 b, v4 c, v4 d) {
  const v4 ab = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  const v4 cd = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}
static inline v4 quarter(v4 x) { return x; }
#if RSK_VEC_BYTES >= 32
typedef float v8_half __attribute__((vector_size(32)));
static inline v4 quarter(v8_half x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
}
#endif
#if RSK_VEC_BYTES == 64
static inline v4 quarter(vf x) {
  return quarter(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
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

// Prefetches the line at p. In the eyes of GCC a function that does nothing else has no effect, and calls of it may be
// dropped: hence the second statement.
static inline void prefetch(const void* p) {
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

// W elements of a stored row from dimension d on, a multiple of W or of 8.
template <class T>
static inline vf elements(const T* row, std::int64_t d) {
  return load(row + d);
}
static inline vf elements(const bits8* row, std::int64_t d) {
#if RSK_VEC_BYTES == 64
  const vi lanes = {1 << 15, 1 << 14, 1 << 13, 1 << 12, 1 << 11, 1 << 10, 1 << 9, 1 << 8, 128, 64, 32, 16, 8, 4, 2, 1};
  const std::int32_t word = row[d / 8].byte << 8 | row[d / 8 + 1].byte;
#elif RSK_VEC_BYTES == 32
  const vi lanes = {128, 64, 32, 16, 8, 4, 2, 1};
  const std::int32_t word = row[d / 8].byte;
#else
  const vi lanes = {8, 4, 2, 1};
  const std::int32_t word = row[d / 8].byte >> (4 - d % 8);
#endif
  return ((vi{} + word) & lanes) != 0 ? splat(1.0f) : splat(-1.0f);
}

// One element.
template <class T>
static inline float element(const T* row, std::int64_t d) {
  return widen(row[d]);
}
static inline float element(const bits8* row, std::int64_t d) {
  return row[d / 8].byte >> (7 - d % 8) & 1 ? 1.0f : -1.0f;
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
