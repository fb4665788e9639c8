// Rows of the corpus: the scale and the squared norm of each, and prefetches of those that will be read.

// Squared norms outside this range lose precision or overflow in float32.
constexpr float kNorm2Min = 1e-30f, kNorm2Max = 1e30f;

static inline float inverse_sqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

// The scale that makes a query the vector of the formulas. A query of unusual norm is replaced by that vector, in
// `unit` (D), with scale 1.
static inline Status scaled_query(const float** query, std::int64_t dims, bool make_unit, const float* tail_mask,
                                  float* unit, float* scale) {
  float norm2 = 1.0f;
  if (make_unit) norm2_block<float, 1>(query, dims, tail_mask, &norm2);
  *scale = make_unit ? inverse_sqrt(norm2) : 1.0f;
  if (norm2 >= kNorm2Min && norm2 <= kNorm2Max) return Status::ok;
  double exact = 0;
  for (std::int64_t d = 0; d < dims; ++d) exact += double((*query)[d]) * (*query)[d];
  if (!(exact <= DBL_MAX)) return Status::not_finite;
  // The scale itself may leave the range of float32, so the elements are scaled in double.
  const double exact_scale = exact > 0 ? 1 / __builtin_sqrt(exact) : 0;
  for (std::int64_t d = 0; d < dims; ++d) unit[d] = float((*query)[d] * exact_scale);
  *query = unit;
  *scale = 1.0f;
  return Status::ok;
}

// Products of R rows of signs.
template <int R>
static inline void sign_products_of(const bits8* vector, const void* const* rows, std::int64_t dims, float* out) {
  const bits8* signs[R];
  for (int r = 0; r < R; ++r) signs[r] = static_cast<const bits8*>(rows[r]);
  sign_products<R>(vector, signs, dims, out);
}

// Candidates of a call's first query that are prefetched at once.
constexpr std::int64_t kPrefetchedAtOnce = 32;

// Why a row has no scale: a norm whose square leaves the range of float32, or no norm; a zero row has the scale 0.
template <class Objective>
inline Status Query<Objective>::unusual_norm(std::int64_t r) const {
  const double norm2 = type.exact_norm2(row(r), args.dims);
  return !(norm2 <= DBL_MAX) ? Status::not_finite : norm2 > 0 ? Status::norm_out_of_range : Status::ok;
}

// `norm2` is that of the stored row on entry, of the vector of the formulas on return.
template <class Objective>
inline Status Query<Objective>::scale_row(std::int64_t r, float* norm2, float* scale) const {
  if (args.norm == Norm::computed) {
    if (*norm2 >= kNorm2Min && *norm2 <= kNorm2Max) {
      *scale = inverse_sqrt(*norm2);
      *norm2 = 1.0f;
      return Status::ok;
    }
    *scale = *norm2 = 0.0f;
    return unusual_norm(r);
  }
  *scale = args.norm == Norm::scaled ? args.scales[r] : row_scale;
  if constexpr (Objective::kNeedsLength) {
    *norm2 = *norm2 * *scale * *scale;
    if (*norm2 >= kNorm2Min && *norm2 <= kNorm2Max) return Status::ok;
    *norm2 = 0.0f;
    return unusual_norm(r);
  }
  return Status::ok;
}

// Reads what rows need of their own: scales and, where relevance was only estimated, relevance.
template <class Objective>
template <int R>
inline Status Query<Objective>::scale_rows(const std::int32_t* js) {
  const void* rows[R];
  float norm2[R] = {};
  for (int r = 0; r < R; ++r) rows[r] = row(ws.row[js[r]]);
  if (args.norm == Norm::computed || Objective::kNeedsLength) type.norms2[R](rows, args.dims, ws.tail_mask, norm2);
  for (int r = 0; r < R; ++r) {
    const Status status = scale_row(ws.row[js[r]], &norm2[r], &ws.scale[js[r]]);
    if (status != Status::ok) return status;
    if constexpr (Objective::kNeedsLength) ws.norm2[js[r]] = norm2[r];
    ws.met[js[r]] = 0;
  }
  ws.rows_read += R;
  if (!estimated()) return Status::ok;
  float dots[R];
  multiply_query<R>(rows, dots);
  ws.products += R;
  for (int r = 0; r < R; ++r) {
    const float cosine = dots[r] * ws.scale[js[r]];
    objective.relevance(*this, js[r], cosine, nullptr);
    ws.sine[js[r]] = sine(cosine);
  }
  return all_finite ? Status::ok : Status::not_finite;
}

// What a row that its codes stood for needs of its own. Rows with codes have scales or are unit vectors.
template <class Objective>
inline void Query<Objective>::read_scale(std::int64_t j) {
  if constexpr (Objective::kNeedsLength) {
    const void* data = row(ws.row[j]);
    type.norms2[1](&data, args.dims, ws.tail_mask, &ws.norm2[j]);
    all_finite = all_finite && scale_row(ws.row[j], &ws.norm2[j], &ws.scale[j]) == Status::ok;
  } else {
    ws.scale[j] = args.norm == Norm::scaled ? args.scales[ws.row[j]] : 1.0f;
  }
  ws.met[j] = 0;
  ++ws.rows_read;
}

template <class Objective>
template <int R>
inline Status Query<Objective>::read_rows(std::int64_t j) {
  const void* rows[R];
  std::int32_t js[R];
  for (int r = 0; r < R; ++r) {
    js[r] = std::int32_t(j + r);
    rows[r] = row(ws.row[j + r]);
  }
  if (Objective::kNeedsProduct || !args.relevance) {
    multiply_query<R>(rows, ws.pivot + j);
    ws.products += R;
  } else {
    for (int r = 0; r < R; ++r) ws.pivot[j + r] = 0.0f;
  }
  return scale_rows<R>(js);
}

// Products of rows with the query.
template <class Objective>
template <int R>
inline void Query<Objective>::multiply_query(const void* const* rows, float* out) const {
  if (!args.query_signs) return type.of_rows[R](&ws.query, rows, args.dims, out);
  sign_products_of<R>(query_signs(), rows, args.dims, out);
  for (int r = 0; r < R; ++r) out[r] *= row_scale;
}

// out[a * B + b]: products of picks [p, p + A) with rows.
template <class Objective>
template <int A, int B>
inline void Query<Objective>::multiply_picks(std::int64_t p, const void* const* rows, float* out) const {
  static_assert(A == 1 || B == 1, "kernels that there are");
  if (!packed) return (B == 1 ? type.of_vectors[A] : type.of_rows[B])(ws.picks + p, rows, args.dims, out);
  if constexpr (B > 1) return sign_products_of<B>(signs(ws.picked_row[p]), rows, args.dims, out);
  const void* picks[A];
  for (int a = 0; a < A; ++a) picks[a] = row(ws.picked_row[p + a]);
  sign_products_of<A>(static_cast<const bits8*>(rows[0]), picks, args.dims, out);
}

template <class Objective>
inline void Query<Objective>::prefetch_row(std::int64_t r) const {
  const char* line = static_cast<const char*>(row(r));
  const std::int64_t bytes = row_bytes(args.dtype, args.dims);
  for (std::int64_t byte = 0; byte < bytes; byte += 64) prefetch(line + byte);
}

// Prefetches the next query's rows, so that they arrive while this query is decided. Where relevance is only estimated
// few rows will be read.
template <class Objective>
inline void Query<Objective>::prefetch_next(std::int64_t end) {
  if (!args.candidates || coded || estimated() || q + 1 >= args.num_queries) return;
  for (; ahead < end && ahead < args.pool; ++ahead) prefetch_candidate(q + 1, ahead);
  ws.prefetched = q + 1;
}

// The first rows of the pool, unless the query before has prefetched them.
template <class Objective>
inline void Query<Objective>::prefetch_own() {
  if (!args.candidates || lazy() || ws.prefetched == q) return;
  for (std::int64_t i = 0; i < args.pool && i < kPrefetchedAtOnce; ++i) prefetch_candidate(q, i);
}

template <class Objective>
inline void Query<Objective>::prefetch_candidate(std::int64_t query, std::int64_t i) const {
  const std::int64_t id = id_at(args.candidates, args.id_bytes, query * args.pool + i);
  if (id >= 0 && id < args.num_rows) prefetch_row(id);
}

// The prepared form of a row, in `out` unless the row is its own.
template <class Objective>
inline const float* Query<Objective>::prepared(const void* data, float* out) const {
  if (args.dtype == DType::f32 && args.dims % W == 0) return static_cast<const float*>(data);
  type.prepare(data, args.dims, out);
  return out;
}

// The elements of a row: its own, or in `out`.
template <class Objective>
inline const float* Query<Objective>::widened(std::int64_t r, float* out) const {
  if (args.dtype == DType::f32) return static_cast<const float*>(row(r));
  type.widen(row(r), args.dims, out);
  return out;
}

// In double: what makes a stored row the vector of the formulas, and the length of that.
template <class Objective>
inline double Query<Objective>::exact_scale(std::int64_t r) const {
  if (packed) return 1 / __builtin_sqrt(double(args.dims));
  if (args.norm != Norm::computed) return args.norm == Norm::scaled ? args.scales[r] : 1.0;
  const double norm2 = type.exact_norm2(row(r), args.dims);
  return norm2 > 0 ? 1 / __builtin_sqrt(norm2) : 0;
}

template <class Objective>
inline double Query<Objective>::exact_length(std::int64_t r) const {
  return __builtin_sqrt(type.exact_norm2(row(r), args.dims)) * exact_scale(r);
}
