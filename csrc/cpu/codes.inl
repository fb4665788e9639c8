// Rows of 8-bit codes, from which products are known to within an error that is stored with each row. Included once
// per instruction set, after simd.inl.
//
// A code row is D bytes, round(x / scale) + 128, zeros and a header in its last 12 bytes: |x - scale * code| is at
// most error. The other operand of a product is signed, so that products are exact integers: with c = u - 128,
// <c, s> = <u, s> - 128 sum(s).

static inline CodeHeader code_header(const std::uint8_t* code_row, std::int64_t stride) {
  CodeHeader header;
  std::memcpy(&header, code_row + stride - sizeof header, sizeof header);
  return header;
}

// Code row of row * norm_scale. The error is rounded upwards by more than float32 loses on the way.
template <class T>
static void encode(const T* row, std::int64_t dims, float norm_scale, std::uint8_t* out, std::int64_t stride) {
  typedef std::uint8_t bytes __attribute__((vector_size(W)));
  typedef std::uint8_t bytes_u __attribute__((vector_size(W), aligned(1), may_alias));
  const std::int64_t whole = dims / W * W;
  float last[W] = {};
  for (std::int64_t d = whole; d < dims; ++d) last[d - whole] = widen(row[d]);
  vf magnitude = load(last);
  magnitude = larger(magnitude, -magnitude);
  for (std::int64_t d = 0; d < whole; d += W) {
    const vf x = load(row + d);
    magnitude = larger(magnitude, larger(x, -x));
  }
  float largest = 0.0f;
  for (std::int64_t lane = 0; lane < W; ++lane) largest = magnitude[lane] > largest ? magnitude[lane] : largest;
  largest *= norm_scale;
  const float scale = largest / 127.0f, inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  // Added to a number below 2^22 in size, this leaves the nearest integer in the low bits.
  const float kRound = 0x1.8p23f;
  vf lost = {};
  std::memset(out + whole, 0, std::size_t(stride - whole));
  for (std::int64_t d = 0; d <= whole; d += W) {
    const vf x = (d < whole ? load(row + d) : load(last)) * splat(norm_scale);
    const vf rounded = x * splat(inverse) + splat(kRound);
    const vf difference = x - (rounded - splat(kRound)) * splat(scale);
    lost = fma(difference, difference, lost);
    const bytes codes = __builtin_convertvector((vi)rounded + 128, bytes);
    if (d < whole)
      *reinterpret_cast<bytes_u*>(out + d) = codes;
    else
      std::memcpy(out + d, &codes, std::size_t(dims - whole));
  }
  std::int32_t sum = 0;
  for (std::int64_t d = 0; d < dims; ++d) sum += std::int32_t(out[d]) - 128;
  const CodeHeader header = {scale, __builtin_sqrtf(hsum(lost)) * 1.0001f + 1e-6f, sum};
  std::memcpy(out + stride - sizeof header, &header, sizeof header);
}

static CodeVector signed_codes(const std::uint8_t* code_row, std::int64_t dims, std::int64_t stride, std::int8_t* out) {
  for (std::int64_t d = 0; d < dims; ++d) out[d] = std::int8_t(code_row[d] ^ 0x80);
  for (std::int64_t d = dims; d < code_bytes(dims); ++d) out[d] = 0;
  const CodeHeader header = code_header(code_row, stride);
  return {out, header.scale, header.error, 128 * header.sum};
}

// out[a][i] = <rows[i], vectors[a]> over `bytes` bytes, a multiple of 64, for i < n, n at most kCodeBlock. `rows` has
// whole fours.
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
// Four sums at once: the accumulators are transposed as they are added.
static inline __m128i sums_of(const __m512i* sum) {
  const __mmask16 all = 0xffff;
  __m512i pair[2];
  for (int h = 0; h < 2; ++h)
    pair[h] = _mm512_add_epi32(_mm512_maskz_unpacklo_epi32(all, sum[2 * h], sum[2 * h + 1]),
                               _mm512_maskz_unpackhi_epi32(all, sum[2 * h], sum[2 * h + 1]));
  const __m512i four = _mm512_add_epi32(_mm512_maskz_unpacklo_epi64(0xff, pair[0], pair[1]),
                                        _mm512_maskz_unpackhi_epi64(0xff, pair[0], pair[1]));
  const __m256i two =
      _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xf, four, 0), _mm512_maskz_extracti64x4_epi64(0xf, four, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}

// The four quarters are stored as whole vectors, which is how they are read again.
static inline void store_sums(const __m128i* quarters, std::int32_t* out) {
  vi all;
  std::memcpy(&all, quarters, sizeof all);
  store(out, all);
}

#define RSK_CODE_PRODUCTS(STEP, LOAD_ROW, LOAD_VECTOR, ADD)              \
  __m128i quarters[A][4] = {};                                           \
  for (std::int64_t four = 0; 4 * four < n; ++four, rows += 4) {         \
    __m512i sum[A][4];                                                   \
    for (int a = 0; a < A; ++a)                                          \
      for (int r = 0; r < 4; ++r) sum[a][r] = _mm512_setzero_si512();    \
    for (std::int64_t i = 0; i < bytes; i += STEP) {                     \
      __m512i x[A];                                                      \
      for (int a = 0; a < A; ++a) x[a] = LOAD_VECTOR(vectors[a] + i);    \
      for (int r = 0; r < 4; ++r) {                                      \
        const __m512i y = LOAD_ROW(rows[r] + i);                         \
        for (int a = 0; a < A; ++a) sum[a][r] = ADD(sum[a][r], y, x[a]); \
      }                                                                  \
    }                                                                    \
    for (int a = 0; a < A; ++a) quarters[a][four] = sums_of(sum[a]);     \
  }                                                                      \
  for (int a = 0; a < A; ++a) store_sums(quarters[a], out[a]);

template <int A>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))) static void code_products_vnni(
    const std::uint8_t* const* rows, const std::int8_t* const* vectors, std::int64_t bytes, std::int64_t n,
    std::int32_t (*out)[kCodeBlock]) {
  RSK_CODE_PRODUCTS(64, _mm512_loadu_si512, _mm512_loadu_si512, _mm512_dpbusd_epi32)
}

static inline __m512i load_unsigned(const std::uint8_t* p) {
  return _mm512_maskz_cvtepu8_epi16(~0u, _mm256_loadu_si256((const __m256i*)p));
}
static inline __m512i load_signed(const std::int8_t* p) {
  return _mm512_maskz_cvtepi8_epi16(~0u, _mm256_loadu_si256((const __m256i*)p));
}
static inline __m512i add_products(__m512i sum, __m512i y, __m512i x) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(y, x));
}

template <int A>
static void code_products(const std::uint8_t* const* rows, const std::int8_t* const* vectors, std::int64_t bytes,
                          std::int64_t n, std::int32_t (*out)[kCodeBlock]) {
#ifdef RSK_NO_VNNI  // for tests: what runs on processors without it
  static const bool vnni = false;
#else
  static const bool vnni = __builtin_cpu_supports("avx512vnni");
#endif
  if (vnni) return code_products_vnni<A>(rows, vectors, bytes, n, out);
  RSK_CODE_PRODUCTS(32, load_unsigned, load_signed, add_products)
}
#undef RSK_CODE_PRODUCTS
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
template <int A>
static void code_products(const std::uint8_t* const* rows, const std::int8_t* const* vectors, std::int64_t bytes,
                          std::int64_t n, std::int32_t (*out)[kCodeBlock]) {
  for (std::int64_t four = 0; four < n; four += 4, rows += 4)
    for (int a = 0; a < A; ++a) {
      __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
      for (std::int64_t i = 0; i < bytes; i += 16) {
        const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(vectors[a] + i)));
        for (int r = 0; r < 4; ++r) {
          const __m256i y = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)(rows[r] + i)));
          sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(x, y));
        }
      }
      const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[1]), _mm256_hadd_epi32(sum[2], sum[3]));
      const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
      _mm_storeu_si128((__m128i*)(out[a] + four), sums);
    }
}
#else
template <int A>
static void code_products(const std::uint8_t* const* rows, const std::int8_t* const* vectors, std::int64_t bytes,
                          std::int64_t n, std::int32_t (*out)[kCodeBlock]) {
  for (std::int64_t r = 0; r < n; ++r)
    for (int a = 0; a < A; ++a) {
      std::int32_t sum = 0;
      for (std::int64_t i = 0; i < bytes; ++i) sum += std::int16_t(rows[r][i]) * std::int16_t(vectors[a][i]);
      out[a][r] = sum;
    }
}
#endif
