// Scores of all rows of a corpus against many vectors, from the codes. Included in the avx512 region, after codes.inl:
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

// out[v][i] = <row i, vector v> for 32 packed rows and kScanVectors packed vectors.
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))) static void scan_tile(
    const std::uint8_t* rows, const std::int32_t* vectors, std::int64_t steps, std::int32_t (*out)[32]) {
  __m512i low[kScanVectors], high[kScanVectors];
  for (int v = 0; v < kScanVectors; ++v) low[v] = high[v] = _mm512_setzero_si512();
  const std::uint8_t* next = rows + steps * 64;
  for (std::int64_t step = 0; step < steps; ++step) {
    const __m512i a = _mm512_loadu_si512(rows + step * 64), b = _mm512_loadu_si512(next + step * 64);
    for (int v = 0; v < kScanVectors; ++v) {
      const __m512i x = _mm512_set1_epi32(vectors[step * kScanVectors + v]);
      low[v] = _mm512_dpbusd_epi32(low[v], a, x);
      high[v] = _mm512_dpbusd_epi32(high[v], b, x);
    }
  }
  for (int v = 0; v < kScanVectors; ++v) {
    _mm512_storeu_si512(out[v], low[v]);
    _mm512_storeu_si512(out[v] + 16, high[v]);
  }
}

// Rows of a packed block whose value for a query is at least the query's threshold.
static void scan_block(const ScanBlock& block, const ScanGroup& group) {
  std::int32_t products[kScanVectors][32];
  for (std::int64_t first = 0; first < block.rows; first += 32) {
    scan_tile(block.packed + first * block.steps * 4, group.vectors, block.steps, products);
    for (std::int64_t g = 0; g < group.queries; ++g) {
      const CodeVector* terms = group.terms + g * group.terms_each;
      for (std::int64_t i = first; i < first + 32; i += W) {
        const vf row_scale = load(block.scales + i);
        vf score = splat(FLT_MAX);
        for (std::int64_t t = 0; t < group.terms_each; ++t) {
          const vi product = load(products[g * group.terms_each + t] + (i - first)) - terms[t].offset;
          score = smaller(score, __builtin_convertvector(product, vf) * (row_scale * splat(terms[t].scale)));
        }
        vf value = score;
        if (block.bias) value = score * splat(group.score_weight[g]) + load(block.bias + i) * splat(group.bias_weight[g]);
        unsigned found = _mm512_cmp_ps_mask((__m512)value, (__m512)splat(group.threshold[g]), _CMP_GE_OQ);
        for (; found; found &= found - 1) {
          const int lane = __builtin_ctz(found);
          group.found[g][group.count[g]++] = {value[lane], score[lane], i + lane};
        }
      }
    }
  }
}
