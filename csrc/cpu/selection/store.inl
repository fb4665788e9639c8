// Rows of a corpus in their storage type: checked, normalised and rounded. Included once per instruction set, after
// codes.inl. Norms are double sums in an order that no instruction set changes: element d is added to sum d % 8.

static inline bool any_lane(vi x) {
  for (std::int64_t lane = 0; lane < W; ++lane)
    if (x[lane]) return true;
  return false;
}

// Widens a row into whole vectors of `out`; false where it has NaN or inf.
template <class T>
static bool widen_row(const T* row, std::int64_t dims, float* out) {
  vi bad = {};
  for (std::int64_t d = 0; d < dims; d += W) {
    const vf x = d + W <= dims ? load(row + d) : load_rest(row + d, dims - d);
    bad |= ((vi)x & 0x7f800000) == 0x7f800000;
    store(out + d, x);
  }
  return !any_lane(bad);
}

// `x` has zeros up to a multiple of eight.
static double norm_of_row(const float* x, std::int64_t dims) {
  constexpr std::int64_t kParts = 8 / kDoubles;
  vd sums[kParts] = {};
  for (std::int64_t d = 0; d < dims; d += 8)
    for (std::int64_t part = 0; part < kParts; ++part) {
      const vd element = load_widened(x + d + part * kDoubles);
      sums[part] += element * element;
    }
  double sum[8];
  for (std::int64_t part = 0; part < kParts; ++part) store(sum + part * kDoubles, sums[part]);
  return __builtin_sqrt(((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])));
}

// x / length in double, rounded to float, or zeros for a row of length 0.
static void divide_row(float* x, std::int64_t dims, double length) {
  for (std::int64_t d = 0; d < dims; d += kDoubles)
    store_narrowed(x + d, length > 0.0 ? load_widened(x + d) / (length - vd{}) : vd{});
}

#if RSK_VEC_BYTES == 64
// The same bits into `out` by products with 1 / length, which take a fifth of the time of divisions. A product is less
// than four units in the last place of a double from the quotient: if none lies so near to where rounding to float
// turns, or below the normal floats, where that is elsewhere. False otherwise.
static bool multiply_row(const float* x, std::int64_t dims, double length, float* out) {
  const vd reciprocal = 1.0 / length - vd{};
  constexpr std::int64_t kTurn = 1 << 28, kNear = 4;  // of the 29 bits that a float lacks
  const vl tiny = (vl)(double(FLT_MIN) * 1.001 - vd{}), size = (vl)(-0.0 - vd{}) ^ -1;
  vl near = {};
  for (std::int64_t d = 0; d < dims; d += kDoubles) {
    const vd element = load_widened(x + d), product = element * reciprocal;
    const vl bits = (vl)product;
    near |= ((bits - (kTurn - kNear)) & (2 * kTurn - 1)) <= 2 * kNear;
    near |= ((bits & size) < tiny) & (element != 0.0);
    store_narrowed(out + d, product);
  }
  for (std::int64_t lane = 0; lane < kDoubles; ++lane)
    if (near[lane]) return false;
  return true;
}
#endif

// Float16 bits, to nearest with ties to even; inf beyond its range.
static inline vh half_bits(vf x) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return (vh)_mm512_maskz_cvtps_ph(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const vi bits = (vi)x, size = bits & 0x7fffffff;
  // The exponent moved by 112; a carry out of the mantissa goes into it.
  const vi moved = (size + 0xfff + ((size >> 13) & 1) - 0x38000000) >> 13;
  const vi whole = moved > 0x7c00 ? 0x7c00 - vi{} : moved;
  // Below 2^-14 elements are multiples of 2^-24, to which the sum with 1/2 is rounded.
  const vi tiny = (vi)((vf)size + 0.5f) - 0x3f000000;
  const vi found = (size < 0x38800000 ? tiny : whole) | ((bits >> 16) & 0x8000);
  return __builtin_convertvector((vu)found, vh);
#endif
}

static inline vh bfloat_bits(vf x) {
  const vu bits = (vu)x;
  return __builtin_convertvector((bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16, vh);
}

// What the elements of a vector are rounded to, by types of storage.
static inline vf rounded(vf x, float) { return x; }
static inline vh rounded(vf x, f16) { return half_bits(x); }
static inline vh rounded(vf x, bf16) { return bfloat_bits(x); }

// Rounds a row of whole vectors, and widens it again into `held`; false where it is beyond the range of the type.
template <class Out>
static bool round_row(const float* x, std::int64_t dims, Out* out, float* held) {
  vi beyond = {};
  for (std::int64_t d = 0; d < dims; d += W) {
    const auto bits = rounded(load(x + d), Out());
    Out lane[W];
    std::memcpy(lane, &bits, sizeof lane);
    const vf element = load(lane);
    beyond |= ((vi)element & 0x7f800000) == 0x7f800000;
    store(held + d, element);
    if (d + W <= dims)
      std::memcpy(out + d, lane, sizeof lane);
    else
      std::memcpy(out + d, lane, std::size_t(dims - d) * sizeof(Out));
  }
  return !any_lane(beyond);
}

static bool round_row(const float* x, std::int64_t dims, i8* out, float* held) {
  typedef std::int8_t bytes __attribute__((vector_size(W)));
  const float largest = largest_size(x, dims);
  for (std::int64_t d = 0; d < dims; d += W) {
    const vf steps = largest > 0.0f ? 127.0f * load(x + d) / splat(largest) : vf{};
    const vi code = (vi)(steps + splat(kRound)) - (vi)splat(kRound);
    const bytes lanes = __builtin_convertvector(code, bytes);
    store(held + d, __builtin_convertvector(code, vf));
    if (d + W <= dims)
      std::memcpy(out + d, &lanes, sizeof lanes);
    else
      std::memcpy(out + d, &lanes, std::size_t(dims - d));
  }
  return true;
}

static bool round_row(const float* x, const StoreArgs& args, std::int64_t row, float* held) {
  const std::int64_t dims = args.dims;
  char* const out = static_cast<char*>(args.out) + row * dims * element_bytes(args.dtype);
  switch (args.dtype) {
    case DType::f32:
      return round_row(x, dims, reinterpret_cast<float*>(out), held);
    case DType::f16:
      return round_row(x, dims, reinterpret_cast<f16*>(out), held);
    case DType::bf16:
      return round_row(x, dims, reinterpret_cast<bf16*>(out), held);
    default:
      return round_row(x, dims, reinterpret_cast<i8*>(out), held);
  }
}

// Stores a row; `x` and `held` have room for it in whole vectors, and eights, of zeros.
template <class T>
static StoreStatus store_row(const StoreArgs& args, std::int64_t row, float* x, float* held, double* norm) {
  const std::int64_t dims = args.dims;
  if (!widen_row(static_cast<const T*>(args.rows) + row * args.row_stride, dims, x)) return StoreStatus::not_finite;
  const bool cosine = args.cosine, bytes = args.dtype == DType::i8;
  double length = 1.0;
  if (cosine || bytes) length = norm_of_row(x, dims);
#if RSK_VEC_BYTES == 64
  const bool multiplied = cosine && length > 0.0 && multiply_row(x, dims, length, held);
#else
  const bool multiplied = false;
#endif
  if (multiplied) {  // the two change places
    float* const given = x;
    x = held;
    held = given;
  } else if (cosine) {
    divide_row(x, dims, length);
  }
  if (!round_row(x, args, row, held)) return StoreStatus::beyond;
  *norm = cosine ? 1.0 : bytes ? length : norm_of_row(held, dims);
  if (args.scales && cosine) {
    const double held_norm = norm_of_row(held, dims);
    args.scales[row] = held_norm > 0.0 ? float(1.0 / held_norm) : 0.0f;
  } else if (args.scales) {
    args.scales[row] = float(double(largest_size(x, dims)) / 127.0);
  }
  return StoreStatus::ok;
}
