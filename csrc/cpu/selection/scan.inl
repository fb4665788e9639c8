// All rows of a corpus against few or many vectors, by the rows themselves or, for few vectors, by their codes as they
// lie. Included once per instruction set, after simd/codes.inl and rows.inl; code_scan.inl has the scan for many
// vectors by codes.
//
// Products of rows are those of dot_tile and have its bits.

// Of n scores from row `first` of the block on those whose values are at least the query's threshold.
template <bool kBias>
static inline void keep(const ScanBlock& block, const ScanGroup& group, std::int64_t g, std::int64_t first,
                        std::int64_t n, const float* scores) {
  for (std::int64_t i = 0; i < n; i += W) {
    const vf score = load(scores + i);
    const vf value =
        kBias ? score * splat(group.score_weight[g]) + load(block.bias + first + i) * splat(group.bias_weight[g])
              : score;
    unsigned found = at_least_mask(value, group.threshold[g]);
    if (n - i < W) found &= (1u << (n - i)) - 1;
    for (; found; found &= found - 1) {
      const int lane = __builtin_ctz(found);
      group.found[g][group.count[g]++] = {value[lane], score[lane], first + i + lane};
    }
  }
}

static inline void keep(const ScanBlock& block, const ScanGroup& group, std::int64_t g, std::int64_t first,
                        std::int64_t n, const float* scores) {
  block.bias ? keep<true>(block, group, g, first, n, scores) : keep<false>(block, group, g, first, n, scores);
}

// Code rows as they lie, with vectors of 16 bits an element.
static void scan_codes(const ScanBlock& block, const ScanGroup& group) {
  const std::int64_t bytes = code_bytes(block.dims), stride = code_stride(block.dims);
  const std::uint8_t* rows[kCodeBlock];
  alignas(64) std::int32_t products[2][kCodeBlock];
  alignas(64) float scales[kCodeBlock], scores[kCodeBlock] = {};
  // Prefetched as far ahead as memory takes to answer: four rows at a time are no stream that a processor would follow.
  std::int64_t ahead = 0;
  for (std::int64_t first = 0; first < block.rows; first += kCodeBlock) {
    const std::int64_t until = (first + 3 * kCodeBlock < block.rows ? first + 3 * kCodeBlock : block.rows) * stride;
    for (; ahead < until; ahead += 64) prefetch(block.codes + ahead);
    const std::int64_t n = block.rows - first < kCodeBlock ? block.rows - first : kCodeBlock;
    for (std::int64_t i = 0; i < kCodeBlock; ++i) rows[i] = block.codes + (first + (i < n ? i : n - 1)) * stride;
    // Some lines are prefetched a second time, as the products come to them: 1 % less time on 19,000 rows.
    const CodePrefetch again = {rows, stride - kCodeHeader};
    for (std::int64_t i = 0; i < kCodeBlock; ++i) scales[i] = code_header(rows[i], stride).scale;
    for (std::int64_t g = 0; g < group.queries; ++g) {
      for (std::int64_t t = 0; t < group.terms_each; ++t) {
        const CodeVector& vector = group.codes[g * group.terms_each + t];
        const std::int8_t* const parts[2] = {vector.high, vector.low};
        code_products<2>(rows, parts, bytes, n, again, products);
        for (std::int64_t i = 0; i < kCodeBlock; i += W) {
          const vf high = __builtin_convertvector(load(products[0] + i) - vector.high_offset, vf);
          const vf low = __builtin_convertvector(load(products[1] + i) - vector.low_offset, vf);
          const vf score = (high + low * splat(1.0f / 256)) * (load(scales + i) * splat(vector.scale));
          store(scores + i, t ? smaller(score, load(scores + i)) : score);
        }
      }
      keep(block, group, g, first, n, scores);
    }
  }
}

// Of a tile, vectors and rows whose sums fit the registers: 32 of them with AVX-512 and NEON.
#if RSK_VEC_BYTES == 64 || defined(__aarch64__)
constexpr int kTileVectors = 3, kTileRows = 4;
#else
constexpr int kTileVectors = W == 8 ? 3 : 2, kTileRows = 2;
#endif

template <int A, class T>
static inline void tile_rows(const float* const* vectors, const T* rows, std::int64_t row_stride, std::int64_t n,
                             std::int64_t dims, float (*out)[kRowBlock]) {
  float dots[A * kTileRows];
  const T* tile[kTileRows];
  std::int64_t i = 0;
  for (; i + kTileRows <= n; i += kTileRows) {
    for (int r = 0; r < kTileRows; ++r) tile[r] = rows + (i + r) * row_stride;
    dot_tile<T, A, kTileRows>(vectors, tile, dims, dots);
    for (int a = 0; a < A; ++a)
      for (int r = 0; r < kTileRows; ++r) out[a][i + r] = dots[a * kTileRows + r];
  }
  for (; i < n; ++i) {
    tile[0] = rows + i * row_stride;
    dot_tile<T, A, 1>(vectors, tile, dims, dots);
    for (int a = 0; a < A; ++a) out[a][i] = dots[a];
  }
  for (; i % W; ++i)  // lanes that are multiplied too
    for (int a = 0; a < A; ++a) out[a][i] = 0.0f;
}

static inline void tile_signs(const bits8* vector, const bits8* rows, std::int64_t row_stride, std::int64_t n,
                              std::int64_t dims, float* out) {
  const float scale = 1.0f / __builtin_sqrtf(float(dims));
  const bits8* block[kSignBlock];
  for (std::int64_t i = 0; i < n; i += kSignBlock) {
    for (std::int64_t r = 0; r < kSignBlock; ++r) block[r] = rows + (i + r < n ? i + r : i) * row_stride;
    sign_products_of_block(vector, block, n - i < kSignBlock ? n - i : kSignBlock, dims, out + i);
  }
  for (std::int64_t i = 0; i < n; i += W) store(out + i, load(out + i) * splat(scale));
  for (std::int64_t i = (n + 3) / 4 * 4; i % W; ++i) out[i] = 0.0f;
}

// The rows themselves, at most kRowBlock of them.
template <class T>
static void scan_rows(const ScanBlock& block, const ScanGroup& group) {
  alignas(64) float products[kRowVectors][kRowBlock];
  const float* vectors[kRowVectors];
  const std::int64_t all = group.queries * group.terms_each, n = block.rows, dims = block.dims;
  const T* const rows = static_cast<const T*>(block.data);
  for (std::int64_t v = 0; v < all; ++v) vectors[v] = group.prepared + v * prepared_floats(dims);
  std::int64_t v = 0;
  if constexpr (kPacked<T>)
    for (; group.signs && v < all; ++v)
      tile_signs(static_cast<const T*>(group.signs) + v * (dims / 8), rows, block.row_stride, n, dims, products[v]);
  for (; v + kTileVectors <= all; v += kTileVectors)
    tile_rows<kTileVectors>(vectors + v, rows, block.row_stride, n, dims, products + v);
  for (; v < all; ++v) tile_rows<1>(vectors + v, rows, block.row_stride, n, dims, products + v);
  for (std::int64_t g = 0; g < group.queries; ++g) {
    float* const scores = products[g * group.terms_each];
    for (std::int64_t i = 0; i < n; i += W) {
      vf least = load(scores + i);
      for (std::int64_t t = 1; t < group.terms_each; ++t) least = smaller(load(scores + t * kRowBlock + i), least);
      store(scores + i, least * load(block.scales + i));
    }
    keep(block, group, g, 0, n, scores);
  }
}

// What makes rows [first, first + n) the vectors of the formulas; NaN for those that are none, which makes it false.
static bool row_scales(const SelectArgs& args, std::int64_t first, std::int64_t n, float* out) {
  float tail_mask[W];
  if (args.norm == Norm::computed) prepare_tail_mask(args.dims, tail_mask);
  Workspace none = {};
  const Query<Mmr> query{args, none, 0};
  bool well = true;
  for (std::int64_t i = 0; i < n; ++i) {
    float norm2 = 0.0f;
    const void* const row = query.row(first + i);
    if (args.norm == Norm::computed) query.type.norms2[1](&row, args.dims, tail_mask, &norm2);
    if (query.scale_row(first + i, &norm2, out + i) == Status::ok) continue;
    out[i] = __builtin_nanf("");
    well = false;
  }
  return well;
}

static bool code_rows(const SelectArgs& args, std::int64_t first, std::int64_t n, std::uint8_t* out) {
  float scales[kRowBlock];
  const bool well = row_scales(args, first, n, scales);
  const std::int64_t dims = args.dims, stride = code_stride(dims);
  const std::uint8_t* row = static_cast<const std::uint8_t*>(args.rows) + first * args.row_stride;
  for (std::int64_t r = 0; r < n; ++r, row += args.row_stride, out += stride) {
    std::int64_t d = 0;
    for (std::uint64_t eight; d + 8 <= dims; d += 8) {
      std::memcpy(&eight, row + d, 8);
      eight ^= 0x8080808080808080;
      std::memcpy(out + d, &eight, 8);
    }
    for (; d < dims; ++d) out[d] = row[d] ^ 0x80;
    const CodeHeader header = {scales[r], 0.0f, 0};  // scans need no sum
    std::memcpy(out + stride - sizeof header, &header, sizeof header);
  }
  return well;
}

// The values of some rows for a query whose prepared vector is given: relevance with bias, with the bits of a
// selection.
static void row_values(const SelectArgs& args, std::int64_t q, const float* vector, ScanEntry* entries,
                       std::int64_t n) {
  Workspace none = {};
  const Query<Mmr> query{args, none, q};
  float dots[4];
  const void* rows[4];
  for (std::int64_t i = 0; i < n; i += 4) {
    const int some = n - i < 4 ? int(n - i) : 4;
    for (std::int64_t next = i + 4; next < i + 8 && next < n; ++next) query.prefetch_row(entries[next].row);
    for (int r = 0; r < 4; ++r) rows[r] = query.row(entries[i + (r < some ? r : 0)].row);
    query.type.of_rows[4](&vector, rows, args.dims, dots);
    for (int r = 0; r < some; ++r) {
      ScanEntry& entry = entries[i + r];
      entry.score = entry.value = dots[r] * (args.norm == Norm::scaled ? args.scales[entry.row] : 1.0f);
      if (args.bias) entry.value = args.lambda_b[q] * entry.score + (1.0f - args.lambda_b[q]) * args.bias[entry.row];
    }
  }
}

// The vector of the formulas that a query stands for; (D) floats.
static Status unit_query(const SelectArgs& args, std::int64_t q, float* out) {
  if (args.query_signs) {
    const bits8* const signs = static_cast<const bits8*>(args.query_signs) + q * (args.dims / 8);
    for (std::int64_t d = 0; d < args.dims; ++d) out[d] = element(signs, d) / __builtin_sqrtf(float(args.dims));
    return Status::ok;
  }
  float tail_mask[W], scale;
  const float* query = args.queries + q * args.dims;
  prepare_tail_mask(args.dims, tail_mask);
  Status status = scaled_query(&query, args.dims, args.unit_queries, tail_mask, out, &scale);
  for (std::int64_t d = 0; status == Status::ok && d < args.dims; ++d) {
    out[d] = query[d] * scale;
    if (!finite(out[d])) status = Status::not_finite;
  }
  return status;
}

static CodeVector code_vector(const float* vector, std::int64_t dims, std::int8_t* out) {
  return encode_query(vector, dims, 1.0f, out);
}

static void prepare_vector(const float* vector, std::int64_t dims, float* out) { prepare(vector, dims, 1.0f, out); }

constexpr ScanKernels kScanKernels = {
    scan_codes,  RSK_EACH_TYPE(scan_rows), row_scales, code_rows, row_values, unit_query,
    code_vector, prepare_vector,           kCodesPay};
