// exp2 and tanh on the vectors of vectors.inl. exp2(0) is 1 and exp2(-inf) is 0, exactly; NaN stays NaN.

#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
static inline vf most(vf a, vf b) { return (vf)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }
static inline vf least(vf a, vf b) { return (vf)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b); }
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
static inline vf most(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
static inline vf least(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#elif defined(__x86_64__)
static inline vf most(vf a, vf b) { return (vf)_mm_max_ps((__m128)a, (__m128)b); }
static inline vf least(vf a, vf b) { return (vf)_mm_min_ps((__m128)a, (__m128)b); }
#else
// b where either is NaN, as the instructions above.
static inline vf most(vf a, vf b) { return a > b ? a : b; }
static inline vf least(vf a, vf b) { return a < b ? a : b; }
#endif

constexpr float kLog2e = 1.44269504088896341f;

// 2^y. On the fraction a polynomial, minimax in relative error with the value 1 at 0: of the fraction in [0, 1) where
// the instruction set has the floor of an exponent, else in [-1/2, 1/2]. The error is below 1e-7.
static inline vf exp2_of(vf y) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  // y - floor(y), 0 for an infinity; scalef multiplies by 2^floor(y), down to 0 and up to infinity.
  const vf f = (vf)_mm512_maskz_reduce_ps(0xffff, (__m512)y, 0x09);
  vf p = splat(1.8669526325538754e-3f);
  p = fma(p, f, splat(9.017480537295341e-3f));
  p = fma(p, f, splat(5.5799514055252075e-2f));
  p = fma(p, f, splat(0.2401645928621292f));
  p = fma(p, f, splat(0.6931512951850891f));
  p = fma(p, f, splat(1.0f));
  // A subnormal result is 0: the instruction takes a hundred times as long over one.
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)y, (__m512)splat(-126.0f), _CMP_NLT_UQ);
  return (vf)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)y);
#else
  // 2^-127 and 2^128 get the bits of 0 and of infinity.
  const vf clamped = least(splat(128.0f), most(splat(-127.0f), y));
  const vf magic = splat(0x1.8p23f), shifted = clamped + magic;
  const vf f = clamped - (shifted - magic);
  vf p = splat(1.3269555056467652e-3f);
  p = fma(p, f, splat(9.671293199062347e-3f));
  p = fma(p, f, splat(5.55071085691452e-2f));
  p = fma(p, f, splat(0.24022246897220612f));
  p = fma(p, f, splat(0.6931470036506653f));
  p = fma(p, f, splat(1.0f));
  return p * (vf)(((vi)shifted << 23) + 0x3f800000);
#endif
}

// An odd polynomial near 0, where the quotient would cancel.
static inline vf tanh_of(vf x) {
  const vf magnitude = (vf)((vu)x & 0x7fffffffu), square = x * x;
  vf p = splat(-5.704985931515694e-3f);
  p = fma(p, square, splat(2.063908614218235e-2f));
  p = fma(p, square, splat(-5.373971536755562e-2f));
  p = fma(p, square, splat(0.13331441581249237f));
  p = fma(p, square, splat(-0.3333328068256378f));
  const vf small = fma(p * square, x, x);
  const vf large = splat(1.0f) - splat(2.0f) / (exp2_of(magnitude * splat(2 * kLog2e)) + splat(1.0f));
  return magnitude < splat(0.625f) ? small : (vf)((vu)large | ((vu)x & 0x80000000u));
}
