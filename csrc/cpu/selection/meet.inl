// Items meet picks, and the best is chosen: densely, or only those whose bounds can still win.

// Indices, ascending, of the values that are at least threshold.
static inline std::int64_t at_least(const float* values, std::int64_t n, float threshold, std::int32_t* out) {
  std::int64_t found = 0, i = 0;
  for (; i + W <= n; i += W)
    for (unsigned lanes = at_least_mask(load(values + i), threshold); lanes; lanes &= lanes - 1)
      out[found++] = std::int32_t(i + __builtin_ctz(lanes));
  for (; i < n; ++i)
    if (values[i] >= threshold) out[found++] = std::int32_t(i);
  return found;
}

// Lowest index of the largest of x[0..n); x is readable, and minus infinity, up to a whole vector.
static inline std::int32_t arg_max(const float* x, std::int64_t n) {
  if (n <= 16) {  // scalar loop: a vector load of elements just stored would stall
    std::int32_t index = 0;
    for (std::int32_t i = 1; i < n; ++i) index = x[i] > x[index] ? i : index;
    return index;
  }
  vf best = load(x);
  for (std::int64_t i = W; i < n; i += W) best = larger(best, load(x + i));
  const float value = largest_lane(best);
  for (std::int64_t i = 0;; i += W) {
    const std::int64_t lane = first_equal(load(x + i), value);
    if (lane < W) return std::int32_t(i + lane);
  }
}

// Every so many items a pass over a long pool looks for an interrupt.
template <class Objective>
inline void Query<Objective>::look_up(std::int64_t j) {
  if (j % (64 * kLongPool) == 0 && j > 0) interrupt_point();
}

// Items js[0..B) meet picks [p, p + A).
template <class Objective>
template <int A, int B>
inline void Query<Objective>::meet(std::int64_t p, const std::int32_t* js) {
  const void* rows[B];
  float dots[A * B];
  for (int b = 0; b < B; ++b) rows[b] = row(ws.row[js[b]]);
  if constexpr (Objective::kDirections) {
    meet_directions<A, B>(p, js, rows);
    if (!args.limits.max_similarity) return;
  }
  multiply_picks<A, B>(p, rows, dots);
  ws.products += A * B;
  const bool keep_nearest = !Objective::kNearest && args.limits.max_similarity;
  for (int b = 0; b < B; ++b) {
    const std::int32_t j = js[b];
    for (int a = 0; a < A; ++a) {
      const float similarity = dots[a * B + b] * ws.picked_scale[p + a] * ws.scale[j];
      all_finite = all_finite && finite(similarity);
      if constexpr (!Objective::kNearest)
        if (keep_nearest) ws.nearest[j] = similarity > ws.nearest[j] ? similarity : ws.nearest[j];
      if constexpr (Objective::kDirections || Objective::kAspects) continue;
      ws.running[j] = Objective::with(ws.running[j], similarity);
      if (triangle && p + a == 0 && pivot_is_pick()) {
        ws.pivot[j] = similarity;
        ws.sine[j] = sine(similarity);
      }
    }
    ws.met[j] = std::int32_t(p + A);
  }
}

// Items of these rows meet the directions of picks [p, p + A).
template <class Objective>
template <int A, int B>
inline void Query<Objective>::meet_directions(std::int64_t p, const std::int32_t* js, const void* const* rows) {
  const float* vectors[A];
  float dots[A * B];
  for (int a = 0; a < A; ++a) vectors[a] = ws.prepared_directions + (p + a) * prepared_floats(args.dims);
  (B == 1 ? type.of_vectors[A] : type.of_rows[B])(vectors, rows, args.dims, dots);
  ws.products += A * B;
  for (int b = 0; b < B; ++b) {
    for (int a = 0; a < A; ++a) objective.meet(ws, js[b], p + a, dots[a * B + b] * ws.scale[js[b]]);
    all_finite = all_finite && finite(ws.running[js[b]]);
    ws.met[js[b]] = std::int32_t(p + A);
  }
}

template <class Objective>
inline void Query<Objective>::catch_up(std::int32_t j) {
  std::int64_t p = ws.met[j];
  if (picked - p >= kLongPool) interrupt_point();
  for (; p + 4 <= picked; p += 4) meet<4, 1>(p, &j);
  if (p + 3 == picked) return meet<3, 1>(p, &j);
  if (p + 2 == picked) return meet<2, 1>(p, &j);
  if (p + 1 == picked) return meet<1, 1>(p, &j);
}

// Items js[0..n), n <= 4, meet the picks that they have not met yet.
template <class Objective>
inline Status Query<Objective>::catch_up(const std::int32_t* js, int n) {
  Status status = Status::ok;
  if (picked == 0 && !estimated()) return status;  // nothing to meet
  bool unread = true, one_behind = true;
  for (int i = 0; i < n; ++i) unread = unread && ws.met[js[i]] < 0;
  if (unread && n == 4) status = scale_rows<4>(js);
  for (int i = 0; i < n && status == Status::ok; ++i)
    if (ws.met[js[i]] < 0) status = scale_rows<1>(js + i);
  if (status != Status::ok) return status;
  for (int i = 0; i < n; ++i) one_behind = one_behind && ws.met[js[i]] == picked - 1;
  if (one_behind && n == 4)
    meet<1, 4>(picked - 1, js);
  else if (one_behind && n == 3)
    meet<1, 3>(picked - 1, js);
  else if (one_behind && n == 2)
    meet<1, 2>(picked - 1, js);
  else
    for (int i = 0; i < n; ++i) catch_up(js[i]);
  return Status::ok;
}

// Items [begin, end) meet pick p, all of them: signs are multiplied faster than items are looked at one by one. `begin`
// is a multiple of kSignBlock, and `end` another or the number of items.
template <class Objective>
inline void Query<Objective>::meet_block(std::int64_t p, std::int64_t begin, std::int64_t end) {
  const bits8* const pick = signs(ws.picked_row[p]);
  const vf scale = splat(row_scale), both = splat(ws.picked_scale[p]);
  alignas(64) float dots[kSignBlock];
  for (; begin < end; begin += kSignBlock) {
    const std::int64_t n = end - begin < kSignBlock ? end - begin : kSignBlock;
    const bits8* rows[kSignBlock];
    for (std::int64_t r = 0; r < kSignBlock; ++r) rows[r] = signs(ws.row[begin + (r < n ? r : 0)]);
    sign_products_of_block(pick, rows, n, args.dims, dots);
    for (std::int64_t i = 0; i < n; i += W) {
      const std::int64_t j = begin + i;
      const vf similarity = load(dots + i) * both * scale, running = load(ws.running + j);
      if constexpr (Objective::kNearest) {
        store(ws.running + j, larger(similarity, running));
      } else {
        store(ws.running + j, running + similarity);
        if (args.limits.max_similarity) store(ws.nearest + j, larger(similarity, load(ws.nearest + j)));
      }
      store(ws.scale + j, scale);
      store(ws.met + j, vi{} + std::int32_t(p + 1));
    }
    ws.products += n;
  }
}

// The best item where the values of signs only fall: a block of items meets the picks that it has not met only while
// one of them could still win.
template <class Objective>
inline Status Query<Objective>::choose_in_blocks(std::int64_t* best, float* best_score) {
  bound(0, items);
  std::int64_t block = arg_max(ws.bound, items) / kSignBlock * kSignBlock;
  if (!(ws.bound[arg_max(ws.bound, items)] > -FLT_MAX)) return Status::ok;
  float bar = -FLT_MAX;
  for (std::int64_t next = 0;; next += kSignBlock) {  // after the most promising one, which sets the bar
    const std::int64_t end = items - block < kSignBlock ? items : block + kSignBlock;
    vf most = load(ws.bound + block);
    for (std::int64_t j = block + W; j < end; j += W) most = larger(most, load(ws.bound + j));
    if (largest_lane(most) >= bar) {
      const std::int64_t met = ws.met[block] < 0 ? 0 : ws.met[block];
      for (std::int64_t p = met; p < picked; ++p) meet_block(p, block, end);
      if (met < picked) objective.bound(*this, block, end);
      most = load(ws.bound + block);
      for (std::int64_t j = block + W; j < end; j += W) most = larger(most, load(ws.bound + j));
      const float found = largest_lane(most);
      bar = found > bar ? found : bar;
    }
    if (next >= items) break;
    look_up(next);
    block = next;
  }
  const std::int64_t equals = at_least(ws.bound, items, bar, ws.survivors);
  for (std::int64_t i = 0; i < equals; ++i) consider(ws.survivors[i], best, best_score);
  return Status::ok;
}

template <class Objective>
inline Status Query<Objective>::catch_up_all() {
  if constexpr (!Objective::kDirections && !Objective::kAspects)
    if (packed && all_met >= 0 && all_met == picked - 1) {
      meet_block(picked - 1, 0, items);
      all_met = picked;
      return Status::ok;
    }
  std::int32_t js[4];
  int n = 0;
  Status status = Status::ok;
  for (std::int64_t j = 0; j < items && status == Status::ok; ++j) {
    look_up(j);
    if (!is_open(j) || ws.met[j] == picked) continue;
    js[n++] = std::int32_t(j);
    if (n < 4) continue;
    status = catch_up(js, 4);
    n = 0;
  }
  if (n && status == Status::ok) status = catch_up(js, n);
  all_met = picked;
  return status;
}

template <class Objective>
inline Status Query<Objective>::catch_up_and_consider(const std::int32_t* js, int* n, std::int64_t* best,
                                                      float* best_score) {
  const Status status = catch_up(js, *n);
  for (int i = 0; i < *n && status == Status::ok; ++i) consider(js[i], best, best_score);
  *n = 0;
  return status;
}

template <class Objective>
inline void Query<Objective>::consider(std::int64_t j, std::int64_t* best, float* best_score) {
  if (__builtin_expect(limited, 0) && unfit(j)) {
    // What the picks in a window span is held back for this step: it may be picked once they have left the window.
    if (Objective::kDirections && args.options.window && objective.unfit(ws, j))
      ws.gate[j] = kHeldBack;
    else
      close(j);
    ws.bound[j] = -__builtin_inff();
    return;
  }
  const bool first = picked == 0 && !Objective::kDirections;
  const float value = first ? objective.first_values(ws)[j] : objective.value_of(*this, j);
  if (*best >= 0 && value == *best_score && (ws.row[j] < ws.row[*best]) != (j < *best)) tied_value = value;
  const bool tie_won = *best >= 0 && (args.stage.best_first ? ws.row[j] < ws.row[*best] : j < *best);
  if (*best < 0 || value > *best_score || (value == *best_score && tie_won)) {
    *best = j;
    *best_score = value;
  }
}

template <class Objective>
bool Query<Objective>::unfit(std::int64_t j) const {
  const bool similar = args.limits.max_similarity && picked > 0 && nearest()[j] > most_similarity();
  return similar || ws.relevance[j] < least_relevance() || objective.unfit(ws, j);
}

// Closes what is too similar to the picks that it has met, or by the triangle inequality.
template <class Objective>
void Query<Objective>::close_similar() {
  const vf most = splat(most_similarity()), closed = splat(-__builtin_inff());
  for (std::int64_t j = 0; j < items && picked > 0; j += W) {
    const vi over = load(nearest() + j) > most;
    store(ws.gate + j, over ? closed : load(ws.gate + j));
    store(ws.bound + j, over ? closed : load(ws.bound + j));
  }
}

// Upper bounds of the values, minus infinity for closed items; the first pick goes by relevance alone.
template <class Objective>
inline void Query<Objective>::bound(std::int64_t begin, std::int64_t end) {
  if (picked > 0 || Objective::kDirections) return objective.bound(*this, begin, end);
  const float* values = objective.first_values(ws);
  for (std::int64_t j = begin; j < end; j += W) store(ws.bound + j, smaller(load(values + j), load(ws.gate + j)));
}

// The best open item, which has then met all picks, and its value. Ties go to the lowest position or, with
// best_first, row.
template <class Objective>
inline Status Query<Objective>::choose(std::int64_t* best, float* best_score) {
  *best = -1;
  if constexpr (Objective::kAspects) return objective.choose(*this, best, best_score);
  if constexpr (Objective::kCodes)
    if (coded) return choose_by_codes(best, best_score);
  if constexpr (Objective::kNearest)
    if (picked > 0 && in_blocks()) return choose_in_blocks(best, best_score);
  if constexpr (kAdds)
    if (coarse && picked > 0) return choose_by_coarse(best, best_score);
  Status status = triangle || objective.lags(*this) ? Status::ok : catch_up_all();
  if (status != Status::ok) return status;
  bound(0, items);
  if (args.limits.max_similarity) close_similar();
  // The most promising item sets the bar for the others.
  std::int32_t top;
  do {
    top = arg_max(ws.bound, items);
    if (limited && !(ws.bound[top] > -FLT_MAX)) return status;
    status = catch_up(&top, 1);
    consider(top, best, best_score);
  } while (*best < 0 && status == Status::ok);
  return consider_others(top, at_least(ws.bound, items, *best_score, ws.survivors), best, best_score);
}

// The survivors but for `top` meet the picks that they have not met while they could still win.
template <class Objective>
inline Status Query<Objective>::consider_others(std::int32_t top, std::int64_t survivors, std::int64_t* best,
                                                float* best_score) {
  std::int32_t js[4] = {};  // unread, or one behind: four of them meet a pick together
  int n = 0;
  Status status = Status::ok;
  for (std::int64_t i = 0; i < survivors && status == Status::ok; ++i) {
    const std::int32_t j = ws.survivors[i];
    if (j == top || ws.bound[j] < *best_score) continue;
    if (ws.met[j] < 0 || ws.met[j] == picked - 1) {
      js[n++] = j;
      if (n == 4) status = catch_up_and_consider(js, &n, best, best_score);
    } else {
      catch_up(j);
      consider(j, best, best_score);
    }
  }
  return status == Status::ok ? catch_up_and_consider(js, &n, best, best_score) : status;
}
