// VRSD: the cosine of the query with the sum of the picks.

// VRSD recomputes |s + e|^2 in double where it is below 1/32 of |s|^2 + |e|^2: there the float32 terms cancel.
constexpr float kCancellation = 1.0f / 32;
// A sum shorter than this share of its terms' lengths is zero to the precision of float32 data.
constexpr double kZeroSum = 1e-6;

// Reads the row of item j: what it needs of its own, if it is read for the first time, and its products with the
// picks that it has not met, added in their order.
template <class T, Method kMethod>
inline void Query<T, kMethod>::refine_vrsd(std::int64_t j) {
  const T* data = row(ws.row[j]);
  const bool unread = ws.met[j] < 0, ask = unread && estimated();
  if (unread) {
    norm2_block<1>(&data, args.dims, ws.tail_mask, &ws.norm2[j]);
    all_finite = all_finite && scale_row(ws.row[j], &ws.norm2[j], &ws.scale[j]) == Status::ok;
    ws.met[j] = 0;
    ws.pivot[j] = 0.0f;
    ++ws.rows_read;
  }
  const float* vectors[kTile];
  float dots[kTile], product = 0.0f, sum = ws.exact[j];
  for (std::int64_t p = ask ? -1 : ws.met[j]; p < picked;) {  // -1: the query
    int n = 0;
    for (; n < kTile && p + n < picked; ++n) vectors[n] = p + n < 0 ? ws.query : pick(p + n);
    dot_some(vectors, n, data, args.dims, dots);
    ws.products += n;
    for (int i = 0; i < n; ++i, ++p) {
      if (p < 0) {
        product = dots[i] * ws.scale[j];
        continue;
      }
      const float similarity = dots[i] * ws.picked_scale[p] * ws.scale[j];
      all_finite = all_finite && finite(similarity);
      sum += similarity;
    }
  }
  if (unread) {
    const float length = __builtin_sqrtf(ws.norm2[j]);
    if (ask) ws.pivot[j] = length > 0.0f ? product / length : product;
    relevance_known(j, ask ? ws.pivot[j] : ws.relevance[j]);
    ws.value[j] = ask ? product : ws.relevance[j] * length;
  }
  ws.running[j] = ws.likely_most[j] = ws.exact[j] = sum;
  ws.met[j] = std::int32_t(picked);
}

template <class T, Method kMethod>
inline Reach Query<T, kMethod>::sum_reach() const {
  const double across2 = sum.norm2 - sum.along * sum.along;
  const float error = 8.0f * slack * float(1.0 + sum.lengths);
  const float across = __builtin_sqrtf(float(across2 > 0 ? across2 : 0) + error * float(sum.lengths));
  const float newest = ws.picked_pivot[picked - 1];
  return {splat(float(sum.along)), splat(across), splat(newest), splat(sine(newest)), splat(error)};
}

// Rounding of the quotient, whose denominator is known to within 3/32 of its square: this over the denominator.
template <class T, Method kMethod>
inline vf Query<T, kMethod>::vrsd_margin(vf value) const {
  return splat(128.0f * FLT_EPSILON) * (splat(__builtin_fabsf(float(sum.query))) + larger(value, -value));
}

// Where the sum may cancel, the value is computed in another way; the factors keep this side of the border.
template <class T, Method kMethod>
inline vi Query<T, kMethod>::vrsd_may_cancel(vf shortest, vf total) const {
  const float tiny = 200.0f * float(kZeroSum * (sum.lengths + 1.0));
  return (shortest <= splat(1.01f * kCancellation) * total) | (shortest <= splat(tiny * tiny));
}

template <class T, Method kMethod>
inline void Query<T, kMethod>::bound_vrsd() {
  const Reach reach = prune ? sum_reach() : Reach{};
  const vf norm2 = splat(float(sum.norm2)), query = splat(float(sum.query));
  for (std::int64_t j = 0; j < items; j += W) {
    const vf value = load(ws.value + j), product = query + value, total = norm2 + load(ws.norm2 + j);
    vf least = load(ws.running + j), most = least;
    if (prune) reach.range(ws, j, picked, &least, &most);
    // A positive cosine is largest with the shortest sum, a negative one with the longest.
    const vf shortest = total + splat(2.0f) * least;
    const vf length = square_root(product >= vf{} ? shortest : total + splat(2.0f) * most);
    vf bound = product / length + vrsd_margin(value) / length;
    bound = vrsd_may_cancel(shortest, total) ? splat(FLT_MAX) : bound;
    store(ws.bound + j, smaller(bound, load(ws.gate + j)));
  }
}

template <class T, Method kMethod>
inline void Query<T, kMethod>::vrsd_range(std::int64_t j, vf* least, vf* most) const {
  const vi unread = load(ws.met + j) < 0;
  const vf total = splat(float(sum.norm2)) + (unread ? splat(1.0f) : load(ws.norm2 + j));
  const vf rounding = splat(16.0f * slack * float(1.0 + sum.lengths)), query = splat(float(sum.query));
  // The errors of products with single picks add up. If all of t comes from codes, it is also off by no more than the
  // row's error times the sum's length and what the codes of the sum leave out, which is less.
  vf low_product = load(ws.running + j), high_product = load(ws.likely_most + j);
  const vf product = splat(0.5f) * (low_product + high_product), row_error = load(ws.code_error + j);
  const vf error = row_error * splat(__builtin_sqrtf(float(sum.norm2))) + (splat(1.0f) + row_error) * splat(lost);
  low_product = unread ? larger(low_product, product - error) : low_product;
  high_product = unread ? smaller(high_product, product + error) : high_product;
  const vf shortest = total + splat(2.0f) * low_product - rounding;
  const vf longest = total + splat(2.0f) * high_product + rounding;
  const vf over_shortest = splat(1.0f) / square_root(shortest), over_longest = splat(1.0f) / square_root(longest);
  const vf low = query + *least, high = query + *most, margin = vrsd_margin(*most) * over_shortest;
  *most = high * (high >= vf{} ? over_shortest : over_longest) + margin;
  *least = low * (low >= vf{} ? over_longest : over_shortest) - margin;
  // A zero row is no unit vector.
  const vi open = vrsd_may_cancel(shortest, total) | ((load(ws.code_scale + j) == vf{}) & unread);
  *most = open ? splat(FLT_MAX) : *most;
  *least = open ? splat(-FLT_MAX) : *least;
}

template <class T, Method kMethod>
inline void Query<T, kMethod>::start_sum() {
  double squares = 0;
  for (std::int64_t p = 0; p < picked; ++p) {
    sum.lengths += ws.picked_length[p];
    squares += double(ws.picked_length[p]) * ws.picked_length[p];
  }
  sum = exact_sum(sum, -1);
  sum.terms = sum.norm2 + squares;
  given_query = sum.query;
}

// s, or s + item j where j >= 0, from the rows themselves in double.
template <class T, Method kMethod>
inline Sum Query<T, kMethod>::exact_sum(const Sum& before, std::int64_t j) {
  if (summed == 0)
    for (std::int64_t d = 0; d < args.dims; ++d) ws.sum[d] = 0;
  for (; summed < picked; ++summed) {
    const double scale = exact_scale(ws.picked_row[summed]);
    for (std::int64_t d = 0; d < args.dims; ++d) ws.sum[d] += widen(row(ws.picked_row[summed])[d]) * scale;
  }
  const double scale = j >= 0 ? exact_scale(ws.row[j]) : 0;
  const float* query = args.queries + q * args.dims;
  double product = 0, query2 = 0, norm2 = 0;
  for (std::int64_t d = 0; d < args.dims; ++d) {
    const double s = ws.sum[d] + (j >= 0 ? widen(row(ws.row[j])[d]) * scale : 0);
    norm2 += s * s;
    product += s * query[d];
    query2 += double(query[d]) * query[d];
  }
  Sum after;
  after.lengths = before.lengths + (j >= 0 ? __builtin_sqrtf(ws.norm2[j]) : 0);
  after.along = query2 > 0 ? product / __builtin_sqrt(query2) : 0;
  after.query = args.relevance && j >= 0 ? before.query + ws.value[j] : after.along;
  const double zero = kZeroSum * after.lengths;
  after.norm2 = norm2 > zero * zero ? norm2 : 0;
  after.terms = terms_with(before, j);
  return after;
}

template <class T, Method kMethod>
inline double Query<T, kMethod>::terms_with(const Sum& before, std::int64_t j) const {
  return j < 0 ? before.terms : before.terms + 2.0 * __builtin_fabsf(ws.running[j]) + ws.norm2[j];
}

// The cosine that is reported for s + item j, the pick of this slot: from the rows and the relevance given, in
// double. Choosing goes by the float32 products all the same, which the bounds are made for.
template <class T, Method kMethod>
inline float Query<T, kMethod>::exact_cosine(const Sum& before, std::int64_t j, std::int64_t slot) {
  Sum exact = exact_sum(before, j);
  if (args.relevance) {
    const std::int64_t initial = picked - slot;
    for (; given_picks < slot; ++given_picks)
      given_query += args.out_relevance[q * args.k + given_picks] * exact_length(ws.picked_row[initial + given_picks]);
    exact.query = given_query + ws.relevance[j] * exact_length(ws.row[j]);
  }
  return cosine(exact);
}

template <class T, Method kMethod>
inline Sum Query<T, kMethod>::plus(const Sum& before, std::int64_t j) {
  const double norm2 = before.norm2 + (2.0 * ws.running[j] + ws.norm2[j]);
  const double cancelled = kCancellation * (before.norm2 + ws.norm2[j]);
  const double tiny = 100 * kZeroSum * before.lengths;
  if (norm2 <= cancelled || norm2 <= tiny * tiny) return exact_sum(before, j);
  const double length = __builtin_sqrtf(ws.norm2[j]);
  return {before.query + ws.value[j], before.along + ws.pivot[j] * length, norm2, before.lengths + length,
          terms_with(before, j)};
}
