// What a region of path.cpp compiles, and its table: the lines of a query, and which of them is on top.

#include "selection/loop.inl"
#include "selection/objectives/mmr.inl"

static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline vd fma(vd a, vd b, vd c) {
#if RSK_VEC_BYTES == 64 && defined(__x86_64__)
  return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif RSK_VEC_BYTES == 32 && defined(__x86_64__)
  return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
  return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  for (std::int64_t lane = 0; lane < kDoubles; ++lane) c[lane] = fma(a[lane], b[lane], c[lane]);
  return c;
#endif
}
static inline vd splat(double x) { return x - vd{}; }
static inline vd larger(vd a, vd b) { return a > b ? a : b; }
static inline vd smaller(vd a, vd b) { return a < b ? a : b; }

static Status path_start(const SelectArgs& args, std::int64_t q, Workspace& ws, std::int64_t* items,
                         std::int64_t* initial) {
  prepare_tail_mask(args.dims, ws.tail_mask);
  Query<Mmr> query{args, ws, q};
  Status status = query.collect();
  *initial = query.picked;
  if (status == Status::ok) status = query.read_pool();
  *items = query.items;
  if (status != Status::ok) return status;
  query.start();
  for (std::int32_t j = 0; query.lazy() && j < query.items && status == Status::ok; ++j)
    status = query.scale_rows<1>(&j);
  if (status == Status::ok) status = query.keep_initial();
  if (status == Status::ok && query.picked > 0) status = query.catch_up_all();
  return status == Status::ok && !query.all_finite ? Status::not_finite : status;
}

static bool path_similarities(const SelectArgs& args, Workspace& ws, std::int64_t items, std::int64_t c, double* out) {
  const Query<Mmr> query{args, ws, 0};
  float* const scratch = ws.prepared_picks + args.limits.num_initial * prepared_floats(args.dims);
  const void* const own = query.row(ws.row[c]);
  const float* const pick = query.packed ? nullptr : query.prepared(own, scratch);
  const float scale = ws.scale[c];
  bool all_finite = true;
  for (std::int64_t j = 0; j < items; j += 4) {
    if (j % (64 * kLongPool) == 0 && j > 0) interrupt_point();
    const std::int64_t n = items - j < 4 ? items - j : 4;
    const void* rows[4];
    float dots[4];
    for (std::int64_t r = 0; r < 4; ++r) rows[r] = query.row(ws.row[j + (r < n ? r : 0)]);
    if (query.packed)
      sign_products_of<4>(static_cast<const bits8*>(own), rows, args.dims, dots);
    else
      query.type.of_rows[4](&pick, rows, args.dims, dots);
    for (std::int64_t r = 0; r < n; ++r) {
      const float similarity = dots[r] * scale * ws.scale[j + r];
      all_finite = all_finite && finite(similarity);
      out[j + r] = similarity;
    }
  }
  return all_finite;
}

static void path_meet(const double* v, const double* similarity, Lines before, std::int64_t pick, std::int64_t n,
                      Lines after) {
  for (std::int64_t j = 0; j < n; j += kDoubles) {
    const vd known = load(before.nearest + j), nearest = larger(known, load(similarity + j));
    store(after.rise + j, known < splat(kClosedNearest) ? load(v + j) + nearest : splat(kClosedRise));
    store(after.nearest + j, nearest);
  }
  after.rise[pick] = kClosedRise;
  after.nearest[pick] = kClosedNearest;
}

// The sign of lambda (rise_j - rise_i) - (m_j - m_i), exactly: an expansion of Shewchuk's, of which no two parts
// overlap, grows by the six parts of that sum, and its last part that is not zero has the sign.
static int path_above(Lines lines, double lambda, std::int64_t j, std::int64_t i) {
  double parts[6], sum[6] = {};
  const auto* const r = lines.rise;
  const auto* const m = lines.nearest;
  const double rise = r[j] - r[i], back = rise - r[j], rise_error = (r[j] - (rise - back)) - (r[i] + back);
  const double gap = m[j] - m[i], gone = gap - m[j], gap_error = (m[j] - (gap - gone)) - (m[i] + gone);
  // Next to 0 products would leave the range of doubles; a power of two on both sides changes nothing else.
  const double power = lambda < 0x1p-400 ? 0x1p600 : 1.0, weight = lambda * power;
  parts[0] = weight * rise;
  parts[1] = fma(weight, rise, -parts[0]);
  parts[2] = weight * rise_error;
  parts[3] = fma(weight, rise_error, -parts[2]);
  parts[4] = -gap * power;
  parts[5] = -gap_error * power;
  for (int p = 0; p < 6; ++p) {
    double carry = parts[p];
    for (int s = 0; s < p; ++s) {
      const double x = carry + sum[s], b = x - carry;
      sum[s] = (carry - (x - b)) + (sum[s] - b);
      carry = x;
    }
    sum[p] = carry;
  }
  for (int s = 5; s >= 0; --s)
    if (sum[s] != 0) return sum[s] > 0 ? 1 : -1;
  return 0;
}

// Whether line j is picked before line i.
static bool path_beats(Lines lines, double lambda, std::int64_t j, std::int64_t i) {
  const int sign = path_above(lines, lambda, j, i);
  return sign > 0 || (sign == 0 && j < i);
}

static double path_largest(vd x) {
  double largest = x[0];
  for (std::int64_t lane = 1; lane < kDoubles; ++lane) largest = x[lane] > largest ? x[lane] : largest;
  return largest;
}

static bool path_any(vd x, double value) {
  typedef std::int64_t vl __attribute__((vector_size(RSK_VEC_BYTES)));
  const vl equal = x == splat(value);
  std::int64_t any = 0;
  for (std::int64_t lane = 0; lane < kDoubles; ++lane) any |= equal[lane];
  return any != 0;
}

// A value is rounded once, and rounding keeps the order: the line on top is one of those whose rounded value is
// largest.
static std::int64_t path_top(Lines lines, std::int64_t n, double lambda, double largest) {
  std::int64_t top = -1;
  for (std::int64_t j = 0; j < n; j += kDoubles) {
    const vd value = fma(splat(lambda), load(lines.rise + j), -load(lines.nearest + j));
    if (!path_any(value, largest)) continue;
    for (std::int64_t i = j; i < j + kDoubles; ++i)
      if (value[i - j] == largest && (top < 0 || path_beats(lines, lambda, i, top))) top = i;
  }
  return top;
}

static Ends path_ends(Lines lines, std::int64_t n, double low, double high) {
  vd at_low = splat(-DBL_MAX), at_high = at_low;
  for (std::int64_t j = 0; j < n; j += kDoubles) {
    const vd rise = load(lines.rise + j), nearest = -load(lines.nearest + j);
    at_low = larger(at_low, fma(splat(low), rise, nearest));
    at_high = larger(at_high, fma(splat(high), rise, nearest));
  }
  return {path_top(lines, n, low, path_largest(at_low)), path_top(lines, n, high, path_largest(at_high))};
}

static double path_overtaken(Lines lines, std::int64_t n, std::int64_t i, double low) {
  const vd rise_i = splat(lines.rise[i]), nearest_i = splat(lines.nearest[i]), none = splat(DBL_MAX);
  vd least = none;
  for (std::int64_t j = 0; j < n; j += kDoubles) {
    const vd rise = load(lines.rise + j) - rise_i, gap = load(lines.nearest + j) - nearest_i;
    least = smaller(least, rise > vd{} ? gap / rise : none);
  }
  // A quotient is off by less than three roundings; those so near to the least are looked at exactly.
  const double about = -path_largest(-least), most = about + 0x1p-50 * about;
  double found = DBL_MAX;
  for (std::int64_t j = 0; j < n; ++j) {
    const double rise = lines.rise[j] - lines.rise[i];
    if (!(rise > 0)) continue;
    double at = (lines.nearest[j] - lines.nearest[i]) / rise;
    if (!(at <= most)) continue;
    while (!path_beats(lines, at, j, i)) at = __builtin_nextafter(at, DBL_MAX);
    for (double before; at > low && path_beats(lines, before = __builtin_nextafter(at, -DBL_MAX), j, i);) at = before;
    found = at < found ? at : found;
  }
  return found;
}

constexpr PathKernels kPath = {
    int(W), path_start, path_similarities, path_meet, path_ends, path_overtaken,
};
