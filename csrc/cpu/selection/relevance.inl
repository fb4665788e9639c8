// The relevance of the items, and what the objective makes of it before the first pick.

template <class Objective>
inline Status Query<Objective>::prepare_query() {
  if (args.query_signs) {
    prepare(query_signs(), args.dims, row_scale, ws.query);
    return Status::ok;
  }
  float scale;
  const float* query = args.queries + q * args.dims;
  const Status status = scaled_query(&query, args.dims, args.unit_queries, ws.tail_mask, ws.unit, &scale);
  if (status != Status::ok) return status;
  prepare(query, args.dims, scale, ws.query);
  if constexpr (Objective::kCodes) code_query(query, scale);
  return Status::ok;
}

// The strategy, of the table in query.inl.
template <class Objective>
inline void Query<Objective>::find_strategy() {
  if (quotas) return;
  const bool many_picks = kCodesPay && coarse_pays(items, picks_wanted(), args.dims);
  coarse = Objective::kCodes && may_be_coarse(args) && (args.bounds == Bounds::coarse || many_picks);
  if (coarse) return;
  const bool automatic = args.bounds == Bounds::automatic, given = args.relevance && !args.stage.relevance_error;
  // Where values also rise every item meets every pick by codes: if most items are picked that spares little.
  const bool many = !Objective::kFalls && 2 * picks_wanted() > items;
  const bool codes_pay = kCodesPay && !many && items >= (given ? kPrunedPool : kCodedPool);
  const bool may_be_coded = Objective::kCodes && !packed &&
                            (Objective::kNearest || !(limited || args.limits.min_relevance)) && args.codes &&
                            args.unit_rows;
  coded = may_be_coded && (args.bounds == Bounds::coded || (automatic && codes_pay));
  const bool triangle_pays = Objective::kTrianglePays && !packed && items >= kPrunedPool;
  const bool may_be_pruned = Objective::kTriangle && args.unit_rows && !coded;
  triangle = may_be_pruned && (args.bounds == Bounds::pruned || (automatic && triangle_pays));
  limited = limited || (args.limits.min_relevance && estimated());
}

template <class Objective>
inline Status Query<Objective>::read_pool() {
  if constexpr (Objective::kCodes)
    if (coded) find_next_codes();
  prefetch_own();
  slack = (float(args.dims / (2 * W)) + 32.0f) * FLT_EPSILON;
  const bool query_needed = !pivot_is_pick() || Objective::kNeedsLength;  // or at least checked
  Status status = query_needed && has_query() ? prepare_query() : Status::ok;
  for (std::int64_t d = 0; !has_query() && d < prepared_floats(args.dims); d += W) store(ws.query + d, vf{});
  if (lazy()) {
    for (std::int64_t j = 0; j < items; j += W) store(ws.met + j, vi{} - 1);
    if (status != Status::ok) return status;
    if (!coded || args.relevance || args.stage.ceiling) return combine();
    if constexpr (Objective::kCodes)
      for (std::int64_t j = 0; j < items; j += kCodeBlock) bound_relevance(j);
    return all_finite ? Status::ok : Status::not_finite;
  }
  std::int64_t j = 0;
  for (; j + 4 <= items && status == Status::ok; j += 4) {
    look_up(j);
    for (std::int64_t next = j + 4; next < j + 8 && next < items; ++next) prefetch_row(ws.row[next]);
    status = read_rows<4>(j);
  }
  for (; j < items && status == Status::ok; ++j) status = read_rows<1>(j);
  if (status == Status::ok) status = combine();
  if (args.limits.min_relevance && status == Status::ok) leave_out_irrelevant();
  return status;
}

// The items of enough relevance become all there are.
template <class Objective>
void Query<Objective>::leave_out_irrelevant() {
  const float least = least_relevance();
  std::int64_t kept = 0;
  open = 0;
  for (std::int64_t j = 0; j < items; ++j) {
    if (ws.relevance[j] < least) continue;
    ws.row[kept] = ws.row[j];
    ws.position[kept] = ws.position[j];
    ws.met[kept] = ws.met[j];
    if constexpr (Objective::kNeedsLength) ws.norm2[kept] = ws.norm2[j];
    for (float* const values : {ws.scale, ws.relevance, ws.value, ws.pivot, ws.sine, ws.gate}) values[kept] = values[j];
    open += is_open(kept++);
  }
  items = kept;
  whole = false;
  for (std::int64_t j = items; j < padded(items); ++j) ws.gate[j] = -__builtin_inff();
}

// The relevance of an item, and with its bias, if it has one, the value.
template <class Objective>
inline void Query<Objective>::relevance_known(std::int64_t j, float relevance) {
  ws.relevance[j] = ws.value[j] = relevance;
  if (args.bias) {
    const std::int64_t item = args.bias_per_item ? q * args.pool + ws.position[j] : ws.row[j];
    ws.value[j] = lambda_b() * relevance + (1.0f - lambda_b()) * args.bias[item];
  }
  all_finite = all_finite && finite(ws.value[j]) && finite(relevance);
}

// The relevance given, where nothing is added to it.
template <class Objective>
inline Status Query<Objective>::copy_relevance() {
  const float* given = args.relevance + q * args.pool;
  vi finite = vi{} - 1;
  for (std::int64_t j = 0; j < items; j += W) {
    const vf relevance = j + W <= items ? load(given + j) : load_rest(given + j, items - j);
    finite &= relevance - relevance == vf{};
    store(ws.relevance + j, relevance);
    store(ws.value + j, relevance);
  }
  all_finite = hsum((vf)(finite & (vi)splat(1.0f))) == float(W);
  return all_finite ? Status::ok : Status::not_finite;
}

template <class Objective>
inline Status Query<Objective>::combine() {
  if (whole && lazy() && args.relevance && !estimated() && !args.bias) return copy_relevance();
  for (std::int64_t j = 0; j < items; ++j) {
    float given = args.relevance ? args.relevance[q * args.pool + ws.position[j]] : 0.0f;
    if (args.stage.ceiling) {
      ws.value[j] = FLT_MAX;  // the ceiling is all that is known
      continue;
    }
    if (lazy()) {
      if (estimated()) {
        ws.pivot[j] = given;
        given += args.stage.relevance_error[q];  // until the row is read the value is an upper bound
      }
      relevance_known(j, given);
      continue;
    }
    objective.relevance(*this, j, ws.pivot[j] * ws.scale[j], args.relevance ? &given : nullptr);
  }
  return all_finite ? Status::ok : Status::not_finite;
}
