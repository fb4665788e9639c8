// All rows of a corpus against many vectors, by their codes. Included in the avx512 region, after codes.inl:
// it needs AVX512-VNNI, which code_scan_supported asks for at run time.
//
// Rows are taken in blocks that stay in the second-level cache, laid out anew so that a vector register holds the same
// four elements of 16 rows: products then need no sums across lanes.

// Sixteen rows by sixteen groups of four elements.
static void pack_rows(const std::uint8_t* codes, std::int64_t stride, std::int64_t rows, std::int64_t steps,
                      std::uint8_t* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint8_t* row = codes + r * stride;
    std::uint8_t* to = out + (r / 16 * steps * 16 + r % 16) * 4;
    for (std::int64_t step = 0; step < steps; ++step) std::memcpy(to + step * 64, row + step * 4, 4);
  }
}

// out[v][i] = start[v] + <row i, vector v> for 32 packed rows and kScanVectors packed vectors. Accumulators have names
// of their own and the instruction is spelt out: GCC 12 keeps arrays of them in memory, or moves each twice around the
// intrinsic.
#define RSK_EACH_VECTOR(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))) static void scan_tile(
    const std::uint8_t* rows, const std::int32_t* vectors, std::int64_t steps, const std::int32_t* start,
    std::int32_t (*out)[32]) {
  static_assert(kScanVectors == 8, "one name for each");
#define RSK_DECLARE(v) __m512i low##v = _mm512_set1_epi32(start[v]), high##v = low##v;
  RSK_EACH_VECTOR(RSK_DECLARE)
  const std::uint8_t* next = rows + steps * 64;
  for (std::int64_t step = 0; step < steps; ++step, rows += 64, next += 64, vectors += kScanVectors) {
    const __m512i a = _mm512_loadu_si512(rows), b = _mm512_loadu_si512(next);
#define RSK_ADD(v)                                                              \
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(low##v) : "v"(a), "m"(vectors[v])); \
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(high##v) : "v"(b), "m"(vectors[v]));
    RSK_EACH_VECTOR(RSK_ADD)
  }
#define RSK_STORE(v)                   \
  _mm512_storeu_si512(out[v], low##v); \
  _mm512_storeu_si512(out[v] + 16, high##v);
  RSK_EACH_VECTOR(RSK_STORE)
#undef RSK_DECLARE
#undef RSK_ADD
#undef RSK_STORE
}
#undef RSK_EACH_VECTOR

template <bool kBias>
static void scan_packed_rows(const ScanBlock& block, const ScanGroup& group) {
  std::int32_t products[kScanVectors][32];
  for (std::int64_t first = 0; first < block.rows; first += 32) {
    scan_tile(block.packed + first * block.steps * 4, group.vectors, block.steps, group.start, products);
    for (std::int64_t i = first; i < first + 32; i += W) {
      const vf row_scale = load(block.scales + i), bias = kBias ? load(block.bias + i) : vf{};
      for (std::int64_t g = 0; g < group.queries; ++g) {
        const std::int64_t v = g * group.terms_each;
        vi least = load(products[v] + (i - first));
        for (std::int64_t t = v + 1; t < v + group.terms_each; ++t) {
          const vi other = load(products[t] + (i - first));
          least = other < least ? other : least;
        }
        const vf score = __builtin_convertvector(least, vf) * (row_scale * splat(group.scale[g]));
        const vf value = kBias ? score * splat(group.score_weight[g]) + bias * splat(group.bias_weight[g]) : score;
        unsigned found = _mm512_cmp_ps_mask((__m512)value, (__m512)splat(group.threshold[g]), _CMP_GE_OQ);
        for (; found; found &= found - 1) {
          const int lane = __builtin_ctz(found);
          group.found[g][group.count[g]++] = {value[lane], score[lane], i + lane};
        }
      }
    }
  }
}

// Rows of a packed block whose value for a query is at least the query's threshold.
static void scan_packed(const ScanBlock& block, const ScanGroup& group) {
  return block.bias ? scan_packed_rows<true>(block, group) : scan_packed_rows<false>(block, group);
}
