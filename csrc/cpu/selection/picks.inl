// What a pick changes: the outputs, which items stay open, and what the others meet.

// No item has met a pick.
template <class Objective>
inline void Query<Objective>::start() {
  if (triangle && args.stage.relevance_error) slack += args.stage.relevance_error[q];
  for (std::int64_t j = items; j < padded(items); ++j) {
    ws.pivot[j] = ws.sine[j] = ws.value[j] = 0.0f;
    if constexpr (Objective::kNeedsLength) ws.norm2[j] = 1.0f;
    ws.met[j] = 0;
  }
  const vf none = splat(Objective::none(triangle || coded || in_blocks(), slack));
  for (std::int64_t j = 0; j < items; j += W) store(ws.running + j, none);
  if (args.limits.max_similarity && !Objective::kNearest)
    for (std::int64_t j = 0; j < items; j += W) store(ws.nearest + j, splat(-FLT_MAX));
  if (quotas) find_minima();
  if constexpr (Objective::kDirections || Objective::kAspects) objective.prepare(*this);
  if constexpr (Objective::kCodes)
    if (coded) return start_codes();
  if constexpr (Objective::kTriangle)
    if (triangle) start_triangle();
}

// Rows of signs meet one another as they are.
template <class Objective>
inline void Query<Objective>::prepare_pick(std::int64_t p, const void* data) {
  if (!packed) ws.picks[p] = prepared(data, ws.prepared_picks + p * prepared_floats(args.dims));
}

// Picks made before the first.
template <class Objective>
inline Status Query<Objective>::keep_initial() {
  const std::int64_t initial = picked;
  for (picked = 0; picked < initial; ++picked) {
    const std::int64_t r = ws.picked_row[picked];
    const void* data = row(r);
    float norm2, product = 0.0f;
    type.norms2[1](&data, args.dims, ws.tail_mask, &norm2);
    const Status status = scale_row(r, &norm2, &ws.picked_scale[picked]);
    if (status != Status::ok) return status;
    prepare_pick(picked, data);
    if (pivot_is_pick())
      multiply_picks<1, 1>(0, &data, &product);
    else
      multiply_query<1>(&data, &product);
    if (pivot_is_pick()) product *= ws.picked_scale[0];
    ws.picked_length[picked] = __builtin_sqrtf(norm2);
    keep_codes(picked, r);
    ws.picked_pivot[picked] = product * ws.picked_scale[picked];
    all_finite = all_finite && finite(ws.picked_pivot[picked]);
    if constexpr (Objective::kDirections) {
      const Status added = objective.add(*this, picked, r, ws.picked_pivot[picked]);
      if (added != Status::ok) return added;
    }
    cap_group(picked);
  }
  return all_finite ? Status::ok : Status::not_finite;
}

// A pick that is known: the item of row r.
template <class Objective>
inline Status Query<Objective>::follow(std::int64_t r, std::int64_t* best, float* best_score) {
  std::int32_t j = 0, end = args.candidates ? 0 : std::int32_t(items);
  while (j < end) {  // the rows of a whole corpus ascend
    const std::int32_t middle = j + (end - j) / 2;
    ws.row[middle] < r ? j = middle + 1 : end = middle;
  }
  while (args.candidates && j < items && ws.row[j] != r) ++j;
  if (j == items || ws.row[j] != r) return Status::id_out_of_range;
  Status status = Status::ok;
  if constexpr (kAdds)
    if (coded) objective.read(*this, j);  // what it remembers may come from codes, to which nothing exact is added
  if (!(kAdds && coded)) status = catch_up(&j, 1);
  *best = -1;
  consider(j, best, best_score);
  return status;
}

template <class Objective>
inline void Query<Objective>::take(std::int64_t j, std::int64_t slot, float score, float relevance, float redundancy) {
  const std::int64_t out = q * args.k + slot;
  args.indices[out] = ws.row[j] - base();
  args.scores[out] = score;
  args.out_relevance[out] = relevance;
  args.redundancy[out] = redundancy;
  args.lengths[q] = std::int32_t(slot + 1);
  close(j);
  ws.picked_row[picked] = ws.row[j];
  cap_group(picked);
  if (!args.limits.costs) return;
  spent += cost(j);
  close_unaffordable();
}

// Closes the items that cost more than what is left.
template <class Objective>
void Query<Objective>::close_unaffordable() {
  const double budget = args.limits.budget[q];
  for (std::int64_t j = 0; j < items; ++j)
    if (is_open(j) && !(spent + cost(j) <= budget)) close(j);
}

// What is reported of item j, the next pick, by rules that have no redundancy of their own.
template <class Objective>
inline float Query<Objective>::redundancy(std::int64_t j) const {
  return !args.limits.max_similarity ? __builtin_nanf("") : picked == 0 ? 0.0f : nearest()[j];
}

template <class Objective>
inline void Query<Objective>::close(std::int64_t j) {
  ws.gate[j] = -__builtin_inff();
  if constexpr (kAdds)
    if (coarse) ws.coarse_error[j] = -__builtin_inff();
  --open;
}

// Bars the group of pick number `index` once it has reached the cap.
template <class Objective>
inline void Query<Objective>::cap_group(std::int64_t index) {
  if (!args.limits.max_per_group) {
    if (args.limits.quotas.num_levels) close_full(index);
    return;
  }
  const std::int64_t group = args.limits.groups[ws.picked_row[index]];
  std::int64_t count = 0;
  for (std::int64_t i = 0; i <= index; ++i) count += args.limits.groups[ws.picked_row[i]] == group;
  if (count != args.limits.max_per_group) return;
  for (std::int64_t j = 0; j < items; ++j)
    if (is_open(j) && args.limits.groups[ws.row[j]] == group) close(j);
}

// Bars the groups of pick number `index` that have reached their caps, and counts it for the minimum of its group.
template <class Objective>
void Query<Objective>::close_full(std::int64_t index) {
  const Quotas& limits = args.limits.quotas;
  for (std::int64_t level = 0; level < limits.num_levels; ++level) {
    const std::int64_t* const groups = limits.of_level(level);
    const std::int64_t group = groups[ws.picked_row[index]];
    std::int64_t count = 0;
    for (std::int64_t i = 0; i <= index; ++i) count += groups[ws.picked_row[i]] == group;
    const std::int64_t place = limits.find(level, group);
    if (quotas && place >= 0) --ws.lacks[place];
    if (count < limits.cap(level, group)) continue;
    for (std::int64_t j = 0; j < items; ++j)
      if (is_open(j) && groups[ws.row[j]] == group) close(j);
  }
}

// Bars the groups with a cap of 0.
template <class Objective>
void Query<Objective>::close_barred() {
  const Quotas& limits = args.limits.quotas;
  for (std::int64_t level = 0; level < limits.num_levels; ++level)
    for (std::int64_t j = 0; j < items; ++j)
      if (is_open(j) && limits.cap(level, limits.of_level(level)[ws.row[j]]) == 0) close(j);
}

// The groups of the items, and what they lack before the first pick.
template <class Objective>
void Query<Objective>::find_minima() {
  const Quotas& limits = args.limits.quotas;
  for (std::int64_t i = 0; i < limits.size(); ++i) {
    ws.lacks[i] = std::int32_t(limits.minima[i] < INT32_MAX ? limits.minima[i] : INT32_MAX);
    ws.found[i] = 0;
  }
  for (std::int64_t j = 0; j < items; ++j) ws.quota[j] = std::int32_t(limits.find(0, limits.groups[ws.row[j]]));
}

// Where groups lack as many picks as are left, or more, closes the items of all others until `let_in`. A group lacks no
// more than it has items that may be picked: only items that have met all picks are known to be fit.
template <class Objective>
Status Query<Objective>::hold_back(std::int64_t left) {
  if (limited || !objective.lags(*this)) {
    const Status status = catch_up_all();
    if (status != Status::ok) return status;
  }
  std::int64_t lacking = 0;
  for (std::int64_t j = 0; j < items; ++j) {
    const std::int32_t place = ws.quota[j];
    if (place < 0 || !is_open(j) || unfit(j)) continue;
    if constexpr (Objective::kDirections)
      if (objective.ends(objective.value_of(*this, j))) continue;
    lacking += ws.found[place]++ < ws.lacks[place];
  }
  for (std::int64_t j = 0; j < items; ++j) {
    const std::int32_t place = ws.quota[j];
    if (place >= 0) ws.found[place] = 0;
    if (lacking >= left && is_open(j) && (place < 0 || ws.lacks[place] <= 0)) ws.gate[j] = kHeldBack;
  }
  return Status::ok;
}

// Before what the pick closes for good.
template <class Objective>
void Query<Objective>::let_in() {
  for (std::int64_t j = 0; j < items; ++j)
    if (ws.gate[j] == kHeldBack) ws.gate[j] = __builtin_inff();
}

// The item that was taken becomes pick number `picked`, to be met by the others.
template <class Objective>
inline Status Query<Objective>::keep(std::int64_t j) {
  const std::int32_t js = std::int32_t(j);
  if (ws.met[j] < 0 && coded) {
    if constexpr (Objective::kCodes) objective.read(*this, j);
  } else if (ws.met[j] < 0) {
    const Status status = scale_rows<1>(&js);
    if (status != Status::ok) return status;
    if (picked == 0 && pivot_is_pick()) ws.pivot[j] = 1.0f;
  }
  ws.picked_scale[picked] = ws.scale[j];
  ws.picked_pivot[picked] = ws.pivot[j];
  prepare_pick(picked, row(ws.row[j]));
  keep_codes(picked, ws.row[j]);
  Status status = Status::ok;
  if constexpr (Objective::kDirections) status = objective.add(*this, picked, ws.row[j], ws.relevance[j]);
  ++picked;
  return status;
}
