// Doubles: vectors of them, sums of products. Included after vectors.inl; lengths are whole vectors.

typedef double vd __attribute__((vector_size(RSK_VEC_BYTES)));
typedef double vd_u __attribute__((vector_size(RSK_VEC_BYTES), aligned(8), may_alias));
typedef std::int64_t vl __attribute__((vector_size(RSK_VEC_BYTES)));
typedef float vf_half __attribute__((vector_size(RSK_VEC_BYTES / 2), aligned(4), may_alias));
constexpr std::int64_t kDoubles = RSK_VEC_BYTES / 8;  // in a vector; 8 of them in every region's

static inline vd load(const double* p) { return *reinterpret_cast<const vd_u*>(p); }
static inline void store(double* p, vd v) { *reinterpret_cast<vd_u*>(p) = v; }
static inline vd load_widened(const float* p) {
  return __builtin_convertvector(*reinterpret_cast<const vf_half*>(p), vd);
}
static inline void store_narrowed(float* p, vd v) {
  *reinterpret_cast<vf_half*>(p) = __builtin_convertvector(v, vf_half);
}

static inline bool any_at_least(vd x, double least) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return _mm512_cmp_pd_mask((__m512d)x, (__m512d)(least - vd{}), _CMP_GE_OQ) != 0;
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)x, (__m256d)(least - vd{}), _CMP_GE_OQ)) != 0;
#else
  bool any = false;
  for (std::int64_t lane = 0; lane < kDoubles; ++lane) any = any || x[lane] >= least;
  return any;
#endif
}

// A little more than the square root: by float32, in which it takes a third of the time.
static inline vd root_above(vd x) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  const vd root = (vd)_mm512_maskz_cvtps_pd(0xff, _mm256_sqrt_ps(_mm512_maskz_cvtpd_ps(0xff, (__m512d)x)));
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  const vd root = (vd)_mm256_cvtps_pd(_mm_sqrt_ps(_mm256_cvtpd_ps((__m256d)x)));
#else
  vd root = x;
  for (std::int64_t lane = 0; lane < kDoubles; ++lane) root[lane] = __builtin_sqrt(x[lane]);
#endif
  return root * (1 + 4 * double(FLT_EPSILON));
}

static inline double product_of(const double* a, const double* b, std::int64_t n) {
  vd sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kDoubles <= n; i += 4 * kDoubles)
    for (int s = 0; s < 4; ++s) sums[s] += load(a + i + s * kDoubles) * load(b + i + s * kDoubles);
  for (; i < n; i += kDoubles) sums[0] += load(a + i) * load(b + i);
  const vd sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0;
  for (std::int64_t lane = 0; lane < kDoubles; ++lane) total += sum[lane];
  return total;
}

// a -= factor * b
static inline void take_away(double* a, double factor, const double* b, std::int64_t n) {
  const vd f = factor - vd{};
  for (std::int64_t i = 0; i < n; i += kDoubles) store(a + i, load(a + i) - f * load(b + i));
}
