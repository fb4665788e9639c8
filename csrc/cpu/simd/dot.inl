// Dot products of rows. Included once per instruction set, after vectors.inl.
//
// Every product of two vectors is computed in one order, whether rows are taken singly or four at a time, so that
// its bits do not depend on the blocking: two accumulators over alternating vectors, their sum, then halves added to
// halves. A prepared vector (prepare) is one operand, a stored row the other. The last D % W elements are covered
// by a load that ends at the row's last element, against a vector that is zero where elements were counted already.

// Floats that a prepared vector of dims elements takes: the whole vectors, and one for the last elements.
constexpr std::int64_t prepared_floats(std::int64_t dims) { return dims / W * W + W; }

// Last vector of a row; rows shorter than a vector are copied, so that nothing beyond them is read.
template <class T>
static inline vf load_tail(const T* row, std::int64_t dims) {
  if (dims >= W) return elements(row, dims - W);
  T lane[W] = {};
  std::memcpy(lane, row, std::size_t(dims) * sizeof(T));
  return load(lane);
}

static inline vf load_tail(const bits8* row, std::int64_t dims) {
  if (dims >= W) return elements(row, dims - W);
  float lane[W] = {};
  for (std::int64_t d = 0; d < dims; ++d) lane[d] = element(row, d);
  return load(lane);
}

template <class T>
static void prepare(const T* row, std::int64_t dims, float scale, float* out) {
  const std::int64_t whole = dims / W * W;
  for (std::int64_t i = 0; i < whole; i += W) store(out + i, elements(row, i) * splat(scale));
  for (std::int64_t lane = 0; lane < W; ++lane) {
    const std::int64_t i = dims >= W ? dims - W + lane : lane;
    out[whole + lane] = i >= whole && i < dims ? element(row, i) * scale : 0.0f;
  }
}

// Ones where load_tail gives elements not counted yet.
static inline void prepare_tail_mask(std::int64_t dims, float* out) {
  const std::int64_t whole = dims / W * W;
  for (std::int64_t lane = 0; lane < W; ++lane) {
    const std::int64_t i = dims >= W ? dims - W + lane : lane;
    out[lane] = i >= whole && i < dims ? 1.0f : 0.0f;
  }
}

// A value that several products need stays in a register: left alone, GCC 12 loads it for each.
template <bool kNeeded>
static inline void keep_in_register(vf& x) {
#if RSK_VEC_BYTES >= 32 && defined(__x86_64__)
  if constexpr (kNeeded) asm("" : "+v"(x));
#endif
  (void)x;
}

// out[a * B + b] = <vectors[a], rows[b]>; the vectors are prepared. With kFours sums of four rows are made together, to
// the same bits.
template <int A, int B, bool kFours = false, class T>
static inline void dot_tile(const float* const* vectors, const T* const* rows, std::int64_t dims, float* out) {
  vf even[A][B] = {}, odd[A][B] = {};
  vf x[A], y;
  std::int64_t i = 0;
  for (; i + 2 * W <= dims; i += 2 * W) {
    for (int a = 0; a < A; ++a) x[a] = load(vectors[a] + i);
    for (int b = 0; b < B; ++b) {
      y = elements(rows[b], i);
      keep_in_register<(A > 1 && B > 1)>(y);
      for (int a = 0; a < A; ++a) even[a][b] = fma(x[a], y, even[a][b]);
    }
    for (int a = 0; a < A; ++a) x[a] = load(vectors[a] + i + W);
    for (int b = 0; b < B; ++b) {
      y = elements(rows[b], i + W);
      keep_in_register<(A > 1 && B > 1)>(y);
      for (int a = 0; a < A; ++a) odd[a][b] = fma(x[a], y, odd[a][b]);
    }
  }
  if (i + W <= dims) {
    for (int a = 0; a < A; ++a) x[a] = load(vectors[a] + i);
    for (int b = 0; b < B; ++b) {
      y = elements(rows[b], i);
      keep_in_register<(A > 1 && B > 1)>(y);
      for (int a = 0; a < A; ++a) even[a][b] = fma(x[a], y, even[a][b]);
    }
    i += W;
  }
  if (i < dims) {
    for (int a = 0; a < A; ++a) x[a] = load(vectors[a] + i);
    for (int b = 0; b < B; ++b) {
      y = load_tail(rows[b], dims);
      for (int a = 0; a < A; ++a) odd[a][b] = fma(x[a], y, odd[a][b]);
    }
  }
  if constexpr (kFours) {
    static_assert(B == 4, "rows");
    for (int a = 0; a < A; ++a) {
      v4 quarters[4];
      for (int b = 0; b < 4; ++b) quarters[b] = quarter(even[a][b] + odd[a][b]);
      const v4 sums = sums_of_quarters(quarters[0], quarters[1], quarters[2], quarters[3]);
      std::memcpy(out + a * 4, &sums, sizeof sums);
    }
    return;
  }
  for (int a = 0; a < A; ++a)
    for (int b = 0; b < B; ++b) out[a * B + b] = hsum(even[a][b] + odd[a][b]);
}

// The prepared form of a row, in `out` unless the row is its own.
static inline const float* prepared(const float* row, std::int64_t dims, float* out) {
  if (dims % W == 0) return row;
  prepare(row, dims, 1.0f, out);
  return out;
}
template <class T>
static inline const float* prepared(const T* row, std::int64_t dims, float* out) {
  prepare(row, dims, 1.0f, out);
  return out;
}

// n prepared vectors, at most kTile, with one row.
constexpr int kTile = W == 16 ? 8 : 4;
template <class T>
static inline void dot_some(const float* const* vectors, int n, const T* row, std::int64_t dims, float* out) {
  switch (n) {
    case 1:
      return dot_tile<1, 1>(vectors, &row, dims, out);
    case 2:
      return dot_tile<2, 1>(vectors, &row, dims, out);
    case 3:
      return dot_tile<3, 1>(vectors, &row, dims, out);
    case 4:
      return dot_tile<4, 1>(vectors, &row, dims, out);
  }
  if constexpr (kTile > 4) switch (n) {
      case 5:
        return dot_tile<5, 1>(vectors, &row, dims, out);
      case 6:
        return dot_tile<6, 1>(vectors, &row, dims, out);
      case 7:
        return dot_tile<7, 1>(vectors, &row, dims, out);
      case 8:
        return dot_tile<8, 1>(vectors, &row, dims, out);
    }
}

// One prepared vector with R rows.
template <int R, class T>
static inline void dot_block(const float* vector, const T* const* rows, std::int64_t dims, float* out) {
  dot_tile<1, R>(&vector, rows, dims, out);
}

// Rows of signs are as long as they are wide.
template <int R>
static inline void norm2_block(const bits8* const*, std::int64_t dims, const float*, float* out) {
  for (int r = 0; r < R; ++r) out[r] = float(dims);
}

// out[r] = <rows[r], rows[r]>, in the order of dot_block.
template <int R, class T>
static inline void norm2_block(const T* const* rows, std::int64_t dims, const float* tail_mask, float* out) {
  vf even[R], odd[R];
  for (int r = 0; r < R; ++r) even[r] = odd[r] = vf{};
  std::int64_t i = 0;
  for (; i + 2 * W <= dims; i += 2 * W)
    for (int r = 0; r < R; ++r) {
      const vf a = load(rows[r] + i), b = load(rows[r] + i + W);
      even[r] = fma(a, a, even[r]);
      odd[r] = fma(b, b, odd[r]);
    }
  if (i + W <= dims) {
    for (int r = 0; r < R; ++r) {
      const vf a = load(rows[r] + i);
      even[r] = fma(a, a, even[r]);
    }
    i += W;
  }
  if (i < dims)
    for (int r = 0; r < R; ++r) {
      const vf a = load_tail(rows[r], dims);
      odd[r] = fma(a * load(tail_mask), a, odd[r]);
    }
  for (int r = 0; r < R; ++r) out[r] = hsum(even[r] + odd[r]);
}
