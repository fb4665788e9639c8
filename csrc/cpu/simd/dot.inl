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

// Left to itself, GCC 12 unrolls these loops too late to keep sums in registers.
#define RSK_UNROLL _Pragma("GCC unroll 8")

// A value that several products need stays in a register: left alone, GCC 12 loads it for each.
template <bool kNeeded>
static inline void keep_in_register(vf& x) {
#if RSK_VEC_BYTES >= 32 && defined(__x86_64__)
  if constexpr (kNeeded) asm("" : "+v"(x));
#endif
  (void)x;
}

// Adds to sums the products of the vectors' elements from i on with those of each row, which `row` loads.
template <int A, int B, class Row>
__attribute__((always_inline)) static inline void add_products(vf (&sums)[A][B], const float* const* vectors,
                                                               std::int64_t i, Row row) {
  vf x[A];
  RSK_UNROLL
  for (int a = 0; a < A; ++a) x[a] = load(vectors[a] + i);
  RSK_UNROLL
  for (int b = 0; b < B; ++b) {
    vf y = row(b);
    keep_in_register<(A > 1 && B > 1)>(y);
    RSK_UNROLL
    for (int a = 0; a < A; ++a) sums[a][b] = fma(x[a], y, sums[a][b]);
  }
}

// out[a * B + b] = <vectors[a], rows[b]>; the vectors are prepared, the rows pointers to T or void. With kFours sums of
// four rows are made together, to the same bits.
template <class T, int A, int B, bool kFours = false, class Rows>
static inline void dot_tile(const float* const* vectors, Rows rows, std::int64_t dims, float* out) {
  vf even[A][B] = {}, odd[A][B] = {};
  std::int64_t i = 0;
  const auto here = [&](int b) __attribute__((always_inline)) { return elements(static_cast<const T*>(rows[b]), i); };
  for (; i + 2 * W <= dims; i += W) {
    add_products(even, vectors, i, here);
    i += W;
    add_products(odd, vectors, i, here);
  }
  if (i + W <= dims) {
    add_products(even, vectors, i, here);
    i += W;
  }
  if (i < dims)
    add_products(odd, vectors, i,
                 [&](int b) __attribute__((always_inline)) { return load_tail(static_cast<const T*>(rows[b]), dims); });
  RSK_UNROLL
  for (int a = 0; a < A; ++a) {
    vf sums[B];
    RSK_UNROLL
    for (int b = 0; b < B; ++b) sums[b] = even[a][b] + odd[a][b];
    if constexpr (kFours) {
      static_assert(B == 4, "rows");
      const v4 four = sums_of_quarters(quarter(sums[0]), quarter(sums[1]), quarter(sums[2]), quarter(sums[3]));
      std::memcpy(out + a * 4, &four, sizeof four);
    } else {
      RSK_UNROLL
      for (int b = 0; b < B; ++b) out[a * B + b] = hsum(sums[b]);
    }
  }
}

// Prepared vectors that one row meets at once, at most; and of coverage, aspects that meet rows: as many as the
// registers of a region hold the sums of.
constexpr int kTile = W == 16 ? 8 : 4;
constexpr int kAspectRows = 4, kAspectVectors = W == 16 ? 3 : 1;

// out[r] = <rows[r], rows[r]>, in the order of dot_tile.
template <class T, int R, class Rows>
static inline void norm2_block(Rows rows, std::int64_t dims, const float* tail_mask, float* out) {
  if constexpr (kPacked<T>) {  // as long as they are wide
    for (int r = 0; r < R; ++r) out[r] = float(dims);
    return;
  }
  vf even[R], odd[R];
  for (int r = 0; r < R; ++r) even[r] = odd[r] = vf{};
  std::int64_t i = 0;
  for (; i + 2 * W <= dims; i += 2 * W)
    for (int r = 0; r < R; ++r) {
      const vf a = elements(static_cast<const T*>(rows[r]), i), b = elements(static_cast<const T*>(rows[r]), i + W);
      even[r] = fma(a, a, even[r]);
      odd[r] = fma(b, b, odd[r]);
    }
  if (i + W <= dims) {
    for (int r = 0; r < R; ++r) {
      const vf a = elements(static_cast<const T*>(rows[r]), i);
      even[r] = fma(a, a, even[r]);
    }
    i += W;
  }
  if (i < dims)
    for (int r = 0; r < R; ++r) {
      const vf a = load_tail(static_cast<const T*>(rows[r]), dims);
      odd[r] = fma(a * load(tail_mask), a, odd[r]);
    }
  for (int r = 0; r < R; ++r) out[r] = hsum(even[r] + odd[r]);
}
