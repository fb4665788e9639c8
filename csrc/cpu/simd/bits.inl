// Products of rows of signs with one another: D less twice the number of bits that differ, exact integers. Included
// once per instruction set, after codes.inl.

#if defined(__x86_64__) && RSK_VEC_BYTES == 16
// SSE2 has no instruction that counts bits.
static inline std::int64_t bits_of(std::uint64_t x) {
  x -= x >> 1 & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
  return std::int64_t(((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}
#else
static inline std::int64_t bits_of(std::uint64_t x) { return __builtin_popcountll(x); }
#endif

static inline std::uint64_t differing_word(const bits8* a, const bits8* b) {
  std::uint64_t x, y;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  return x ^ y;
}

// Bits of a few bytes that differ, or of many where no instruction takes more than a word of them.
static inline std::int64_t differing(const bits8* a, const bits8* b, std::int64_t bytes) {
  std::int64_t i = 0, count[4] = {};
#if defined(__aarch64__)
  for (; i + 16 <= bytes; i += 16)
    count[0] += vaddlvq_u8(vcntq_u8(veorq_u8(vld1q_u8(&a[i].byte), vld1q_u8(&b[i].byte))));
#endif
  for (; i + 32 <= bytes; i += 32)
    for (int word = 0; word < 4; ++word) count[word] += bits_of(differing_word(a + i + 8 * word, b + i + 8 * word));
  for (; i + 8 <= bytes; i += 8) count[0] += bits_of(differing_word(a + i, b + i));
  for (; i < bytes; ++i) count[1] += __builtin_popcount(unsigned(a[i].byte ^ b[i].byte));
  return (count[0] + count[1]) + (count[2] + count[3]);
}

#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
// Of whole vectors of 64 bytes; the four sums are returned together.
template <int R>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq"))) static inline __m128i
differing_vectors_vpopcnt(const bits8* vector, const bits8* const* rows, std::int64_t bytes) {
  __m512i sum[4];
  for (int r = 0; r < 4; ++r) sum[r] = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < bytes; i += 64) {
    const __m512i x = _mm512_loadu_si512(vector + i);
    for (int r = 0; r < R; ++r)
      sum[r] = _mm512_add_epi64(sum[r], _mm512_popcnt_epi64(_mm512_xor_si512(x, _mm512_loadu_si512(rows[r] + i))));
  }
  return sums_of(sum);
}

// By a table of half bytes.
template <int R>
static inline __m128i differing_vectors(const bits8* vector, const bits8* const* rows, std::int64_t bytes) {
  const __m512i counts = _mm512_set4_epi32(0x04030302, 0x03020201, 0x03020201, 0x02010100);
  const __m512i low = _mm512_set1_epi8(15), zero = _mm512_setzero_si512();
  __m512i sum[4];
  for (int r = 0; r < 4; ++r) sum[r] = zero;
  for (std::int64_t begin = 0; begin < bytes; begin += 31 * 64) {  // a byte holds the counts of so many vectors
    const std::int64_t end = bytes < begin + 31 * 64 ? bytes : begin + 31 * 64;
    __m512i part[R];
    for (int r = 0; r < R; ++r) part[r] = zero;
    for (std::int64_t i = begin; i < end; i += 64) {
      const __m512i x = _mm512_loadu_si512(vector + i);
      for (int r = 0; r < R; ++r) {
        const __m512i y = _mm512_xor_si512(x, _mm512_loadu_si512(rows[r] + i));
        const __m512i upper = _mm512_shuffle_epi8(counts, _mm512_and_si512(_mm512_srli_epi16(y, 4), low));
        part[r] = _mm512_add_epi8(part[r], upper);
        part[r] = _mm512_add_epi8(part[r], _mm512_shuffle_epi8(counts, _mm512_and_si512(y, low)));
      }
    }
    for (int r = 0; r < R; ++r) sum[r] = _mm512_add_epi64(sum[r], _mm512_sad_epu8(part[r], zero));
  }
  return sums_of(sum);
}
#endif

// out[r] = <vector, rows[r]>, R at most 4
template <int R>
static inline void sign_products(const bits8* vector, const bits8* const* rows, std::int64_t dims, float* out) {
  const std::int64_t bytes = dims / 8;
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  static const bool vpopcnt = has_vpopcnt();
  const std::int64_t whole = bytes / 64 * 64;
  alignas(16) std::int32_t counts[4];
  const __m128i found =
      vpopcnt ? differing_vectors_vpopcnt<R>(vector, rows, whole) : differing_vectors<R>(vector, rows, whole);
  _mm_store_si128(reinterpret_cast<__m128i*>(counts), found);
  for (int r = 0; r < R; ++r) {
    const std::int64_t rest = whole < bytes ? differing(vector + whole, rows[r] + whole, bytes - whole) : 0;
    out[r] = float(dims - 2 * (counts[r] + rest));
  }
#else
  for (int r = 0; r < R; ++r) out[r] = float(dims - 2 * differing(vector, rows[r], bytes));
#endif
}
