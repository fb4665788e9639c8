// Rows of 8-bit codes, from which products are known to within an error that is stored with each row. Included once
// per instruction set, after vectors.inl.
//
// A code row is D bytes, round(x / scale) + 128, zeros and a header in its last 12 bytes: |x - scale * code| is at
// most error. The other operand of a product is signed, so that products are exact integers: with c = u - 128,
// <c, s> = <u, s> - 128 sum(s). Of a query there is a second byte an element, so that next to all of a product's
// error is the row's.

static inline CodeHeader code_header(const std::uint8_t* code_row, std::int64_t stride) {
  CodeHeader header;
  std::memcpy(&header, code_row + stride - sizeof header, sizeof header);
  return header;
}

// Added to a number below 2^22 in size, this leaves the nearest integer in the low bits.
constexpr float kRound = 0x1.8p23f;

// The last n elements of a row, fewer than a vector, and zeros.
template <class T>
static inline vf load_rest(const T* row, std::int64_t n) {
  T lane[W] = {};
  std::memcpy(lane, row, std::size_t(n) * sizeof(T));
  return load(lane);
}

template <class T>
static inline float largest_size(const T* row, std::int64_t dims) {
  vf largest = {};
  for (std::int64_t d = 0; d < dims; d += W) {
    const vf x = d + W <= dims ? load(row + d) : load_rest(row + d, dims - d);
    largest = larger(largest, larger(x, -x));
  }
  return largest_lane(largest);
}

// Code row of row * norm_scale. The error is rounded upwards by more than float32 loses on the way.
template <class T>
static void encode(const T* row, std::int64_t dims, float norm_scale, std::uint8_t* out, std::int64_t stride) {
  typedef std::uint8_t bytes __attribute__((vector_size(W)));
  typedef std::uint8_t bytes_u __attribute__((vector_size(W), aligned(1), may_alias));
  const std::int64_t whole = dims / W * W;
  const float largest = largest_size(row, dims) * norm_scale;
  const float scale = largest / 127.0f, inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  vf lost = {};
  std::memset(out + whole, 0, std::size_t(stride - whole));
  for (std::int64_t d = 0; d < dims; d += W) {
    const vf x = (d < whole ? load(row + d) : load_rest(row + d, dims - d)) * splat(norm_scale);
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

static inline CodeVector signed_codes(const std::uint8_t* code_row, std::int64_t dims, std::int64_t stride,
                                      std::int8_t* out) {
  for (std::int64_t d = 0; d < dims; ++d) out[d] = std::int8_t(code_row[d] ^ 0x80);
  for (std::int64_t d = dims; d < code_bytes(dims); ++d) out[d] = 0;
  const CodeHeader header = code_header(code_row, stride);
  return {out, nullptr, 128 * header.sum, 0, header.scale, header.error};
}

// Adds to `lost`, of whole vectors, what row * norm_scale has and its codes have not. At least the norm of the sum.
template <class T>
static float add_lost(const CodeVector& codes, const T* row, std::int64_t dims, float norm_scale, float* lost) {
  const i8* const code = reinterpret_cast<const i8*>(codes.high);
  vf norm2 = {};
  for (std::int64_t d = 0; d < dims; d += W) {
    const vf x = d + W <= dims ? load(row + d) : load_rest(row + d, dims - d);
    const vf sum = load(lost + d) + (x * splat(norm_scale) - load(code + d) * splat(codes.scale));
    store(lost + d, sum);
    norm2 = fma(sum, sum, norm2);
  }
  return __builtin_sqrtf(hsum(norm2)) * 1.0001f + 1e-6f;
}

// The two bytes of the 16-bit codes of row * norm_scale, code_bytes(D) of each. An element is off by half a step, and
// by less than 1/50 of one by what float32 loses on the way.
template <class T>
static CodeVector encode_query(const T* row, std::int64_t dims, float norm_scale, std::int8_t* out) {
  typedef std::int8_t bytes __attribute__((vector_size(W)));
  typedef std::int8_t bytes_u __attribute__((vector_size(W), aligned(1), may_alias));
  const std::int64_t whole = dims / W * W;
  const float largest = largest_size(row, dims) * norm_scale;
  const float kSteps = 127.0f * 256.0f;
  const float inverse = largest > 0.0f ? kSteps / largest : 0.0f;
  std::int8_t *high = out, *low = out + code_bytes(dims);
  std::memset(high + whole, 0, std::size_t(code_bytes(dims) - whole));
  std::memset(low + whole, 0, std::size_t(code_bytes(dims) - whole));
  vi high_sum = {}, low_sum = {};
  for (std::int64_t d = 0; d < dims; d += W) {
    const vf x = (d < whole ? load(row + d) : load_rest(row + d, dims - d)) * splat(norm_scale);
    const vi code = (vi)(x * splat(inverse) + splat(kRound)) - (vi)splat(kRound);
    const vi upper = (code + 128) >> 8, lower = code - (upper << 8);
    high_sum += upper;
    low_sum += lower;
    const bytes high_bytes = __builtin_convertvector(upper, bytes), low_bytes = __builtin_convertvector(lower, bytes);
    if (d < whole) {
      *reinterpret_cast<bytes_u*>(high + d) = high_bytes;
      *reinterpret_cast<bytes_u*>(low + d) = low_bytes;
    } else {
      std::memcpy(high + d, &high_bytes, std::size_t(dims - d));
      std::memcpy(low + d, &low_bytes, std::size_t(dims - d));
    }
  }
  // Their sums are exact in float32: at most 128 for each of 65,536 dimensions.
  const std::int32_t high_total = std::int32_t(hsum(__builtin_convertvector(high_sum, vf)));
  const std::int32_t low_total = std::int32_t(hsum(__builtin_convertvector(low_sum, vf)));
  const float step = largest / kSteps;
  return {
      high, low, 128 * high_total, 128 * low_total, 256.0f * step, 0.52f * step * __builtin_sqrtf(float(dims)) + 1e-6f};
}

// Code rows that code_products prefetches, one for every four that are multiplied, and where in them the header is.
struct CodePrefetch {
  const std::uint8_t* const* rows;
  std::int64_t header;

  void begin(std::int64_t four) const { prefetch(rows[four] + header); }
  void line(std::int64_t four, std::int64_t byte) const { prefetch(rows[four] + byte); }
};

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

// Sums are gathered in registers and stored as whole vectors, which is how they are read again. Rows are
// prefetched one line at a time, no faster than they arrive.
#define RSK_CODE_PRODUCTS(STEP, LOAD_ROW, LOAD_VECTOR, ADD)                                             \
  __m512i all[A];                                                                                       \
  for (int a = 0; a < A; ++a) all[a] = _mm512_setzero_si512();                                          \
  for (std::int64_t four = 0; 4 * four < n; ++four, rows += 4) {                                        \
    prefetch.begin(four);                                                                               \
    __m512i sum[A][4];                                                                                  \
    for (int a = 0; a < A; ++a)                                                                         \
      for (int r = 0; r < 4; ++r) sum[a][r] = _mm512_setzero_si512();                                   \
    for (std::int64_t i = 0; i < bytes; i += STEP) {                                                    \
      __m512i x[A];                                                                                     \
      if (i % 64 == 0) prefetch.line(four, i);                                                          \
      for (int a = 0; a < A; ++a) x[a] = LOAD_VECTOR(vectors[a] + i);                                   \
      for (int r = 0; r < 4; ++r) {                                                                     \
        const __m512i y = LOAD_ROW(rows[r] + i);                                                        \
        for (int a = 0; a < A; ++a) ADD(sum[a][r], y, x[a]);                                            \
      }                                                                                                 \
    }                                                                                                   \
    const __mmask16 quarter = __mmask16(0xf << 4 * four);                                               \
    for (int a = 0; a < A; ++a) all[a] = _mm512_mask_broadcast_i32x4(all[a], quarter, sums_of(sum[a])); \
  }                                                                                                     \
  for (int a = 0; a < A; ++a) _mm512_storeu_si512(out[a], all[a]);

// Spelt out, since GCC 12 moves each accumulator twice around the intrinsic.
#define RSK_DPBUSD(SUM, Y, X) asm("vpdpbusd %2, %1, %0" : "+v"(SUM) : "v"(Y), "v"(X))
template <int A>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))) static void code_products_vnni(
    const std::uint8_t* const* rows, const std::int8_t* const* vectors, std::int64_t bytes, std::int64_t n,
    const CodePrefetch& prefetch, std::int32_t (*out)[kCodeBlock]) {
  RSK_CODE_PRODUCTS(64, _mm512_loadu_si512, _mm512_loadu_si512, RSK_DPBUSD)
}
#undef RSK_DPBUSD

static inline __m512i load_unsigned(const std::uint8_t* p) {
  return _mm512_maskz_cvtepu8_epi16(~0u, _mm256_loadu_si256((const __m256i*)p));
}
static inline __m512i load_signed(const std::int8_t* p) {
  return _mm512_maskz_cvtepi8_epi16(~0u, _mm256_loadu_si256((const __m256i*)p));
}
static inline void add_products(__m512i& sum, __m512i y, __m512i x) {
  sum = _mm512_add_epi32(sum, _mm512_madd_epi16(y, x));
}

template <int A>
static void code_products(const std::uint8_t* const* rows, const std::int8_t* const* vectors, std::int64_t bytes,
                          std::int64_t n, const CodePrefetch& prefetch, std::int32_t (*out)[kCodeBlock]) {
#ifdef RSK_NO_VNNI  // for tests: what runs on processors without it
  static const bool vnni = false;
#else
  static const bool vnni = has_vnni();
#endif
  if (vnni) return code_products_vnni<A>(rows, vectors, bytes, n, prefetch, out);
  RSK_CODE_PRODUCTS(32, load_unsigned, load_signed, add_products)
}
#undef RSK_CODE_PRODUCTS
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
template <int A>
static void code_products(const std::uint8_t* const* rows, const std::int8_t* const* vectors, std::int64_t bytes,
                          std::int64_t n, const CodePrefetch& prefetch, std::int32_t (*out)[kCodeBlock]) {
  for (std::int64_t four = 0; four < n; four += 4, rows += 4) {
    prefetch.begin(four / 4);  // all of the row: products take longer here than lines
    for (std::int64_t i = 0; i < bytes; i += 64) prefetch.line(four / 4, i);
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
}
#else
template <int A>
static void code_products(const std::uint8_t* const* rows, const std::int8_t* const* vectors, std::int64_t bytes,
                          std::int64_t n, const CodePrefetch&, std::int32_t (*out)[kCodeBlock]) {
  for (std::int64_t r = 0; r < n; ++r)
    for (int a = 0; a < A; ++a) {
      std::int32_t sum = 0;
      for (std::int64_t i = 0; i < bytes; ++i) sum += std::int16_t(rows[r][i]) * std::int16_t(vectors[a][i]);
      out[a][r] = sum;
    }
}
#endif
