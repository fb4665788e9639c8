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
// The totals of four vectors of eight counts below 2^32, which are interleaved before they are added.
static inline __m128i totals_of(const __m512i* counts) {
  const __m512i front = _mm512_or_si512(counts[0], _mm512_maskz_slli_epi64(0xff, counts[1], 32));
  const __m512i back = _mm512_or_si512(counts[2], _mm512_maskz_slli_epi64(0xff, counts[3], 32));
  const __m512i four =
      _mm512_add_epi32(_mm512_maskz_unpacklo_epi64(0xff, front, back), _mm512_maskz_unpackhi_epi64(0xff, front, back));
  const __m256i two =
      _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xf, four, 0), _mm512_maskz_extracti64x4_epi64(0xf, four, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}

// Of whole vectors of 64 bytes.
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
  return totals_of(sum);
}

// By a table of half bytes. The upper halves of both are shifted down before they are compared, the vector's once. V is
// the number of whole vectors, or 0 if they are more than two. A function of its own: inlined, GCC 12 spills registers.
template <int V, int R>
__attribute__((noinline)) static __m128i differing_vectors(const bits8* vector, const bits8* const* rows,
                                                           std::int64_t bytes) {
  const __m512i counts = _mm512_set4_epi32(0x04030302, 0x03020201, 0x03020201, 0x02010100);
  const __m512i low = _mm512_set1_epi8(15), zero = _mm512_setzero_si512();
  constexpr int kDifferAndLow = 0x28;  // (y ^ x) & low, as a truth table
  __m512i sum[4], part[R];
  for (int r = 0; r < 4; ++r) sum[r] = zero;
  for (int r = 0; r < R; ++r) part[r] = zero;
  const auto count = [&](std::int64_t i) {
    const __m512i x = _mm512_loadu_si512(vector + i), x_upper = _mm512_srli_epi16(x, 4);
    for (int r = 0; r < R; ++r) {
      const __m512i y = _mm512_loadu_si512(rows[r] + i);
      const __m512i upper = _mm512_ternarylogic_epi64(_mm512_srli_epi16(y, 4), x_upper, low, kDifferAndLow);
      const __m512i lower = _mm512_ternarylogic_epi64(y, x, low, kDifferAndLow);
      const __m512i found = _mm512_add_epi8(_mm512_shuffle_epi8(counts, lower), _mm512_shuffle_epi8(counts, upper));
      part[r] = _mm512_add_epi8(part[r], found);
    }
  };
  if (V) {
    for (int v = 0; v < V; ++v) count(v * 64);
    for (int r = 0; r < R; ++r) sum[r] = _mm512_sad_epu8(part[r], zero);
    return totals_of(sum);
  }
  for (std::int64_t begin = 0; begin < bytes; begin += 31 * 64) {  // a byte holds the counts of so many vectors
    for (std::int64_t i = begin; i < bytes && i < begin + 31 * 64; i += 64) count(i);
    for (int r = 0; r < R; ++r) {
      sum[r] = _mm512_add_epi64(sum[r], _mm512_sad_epu8(part[r], zero));
      part[r] = zero;
    }
  }
  return totals_of(sum);
}

template <int R>
static inline __m128i differing_vectors(const bits8* vector, const bits8* const* rows, std::int64_t bytes) {
  static const bool vpopcnt = has_vpopcnt();
  if (vpopcnt) return differing_vectors_vpopcnt<R>(vector, rows, bytes);
  if (bytes == 64) return differing_vectors<1, R>(vector, rows, bytes);
  return bytes == 128 ? differing_vectors<2, R>(vector, rows, bytes) : differing_vectors<0, R>(vector, rows, bytes);
}
#endif

// out[r] = <vector, rows[r]>, R at most 4
template <int R>
static inline void sign_products(const bits8* vector, const bits8* const* rows, std::int64_t dims, float* out) {
  const std::int64_t bytes = dims / 8;
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  const std::int64_t whole = bytes / 64 * 64;
  __m128i counts = differing_vectors<R>(vector, rows, whole);
  if (whole < bytes) {
    alignas(16) std::int32_t rest[4] = {};
    for (int r = 0; r < R; ++r) rest[r] = std::int32_t(differing(vector + whole, rows[r] + whole, bytes - whole));
    counts = _mm_add_epi32(counts, _mm_load_si128(reinterpret_cast<const __m128i*>(rest)));
  }
  const __m128 products = _mm_cvtepi32_ps(_mm_sub_epi32(_mm_set1_epi32(int(dims)), _mm_slli_epi32(counts, 1)));
  if constexpr (R == 4)
    _mm_storeu_ps(out, products);
  else
    for (int r = 0; r < R; ++r) out[r] = products[r];
#else
  for (int r = 0; r < R; ++r) out[r] = float(dims - 2 * differing(vector, rows[r], bytes));
#endif
}

constexpr std::int64_t kSignBlock = 16;  // rows of signs that meet a vector at once

// out[r] = <vector, rows[r]> of n rows, at most kSignBlock. Pointers and outputs are there for a whole block.
static inline void sign_products_of_block(const bits8* vector, const bits8* const* rows, std::int64_t n,
                                          std::int64_t dims, float* out) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  if (dims % 512 == 0) {  // gathered in a register: a load does not wait for four stores
    __m512i counts = _mm512_setzero_si512();
    for (std::int64_t r = 0; r < n; r += 4)
      counts =
          _mm512_mask_broadcast_i32x4(counts, __mmask16(0xf << r), differing_vectors<4>(vector, rows + r, dims / 8));
    const __m512i products = _mm512_sub_epi32(_mm512_set1_epi32(int(dims)), _mm512_add_epi32(counts, counts));
    _mm512_storeu_ps(out, _mm512_maskz_cvtepi32_ps(0xffff, products));
    return;
  }
#endif
  for (std::int64_t r = 0; r < n; r += 4) sign_products<4>(vector, rows + r, dims, out + r);
}
