// One query of MMR with quality bias and of VRSD, by the dense rule. Included once per instruction set, after
// simd.inl. The mathematics is in ragsys_kernels/selection/README.md.

// Squared norms outside this range lose precision or overflow in float32.
constexpr float kNorm2Min = 1e-30f, kNorm2Max = 1e30f;

// VRSD recomputes |s + e|^2 in double where it is below 1/32 of |s|^2 + |e|^2: there the float32 terms cancel.
constexpr float kCancellation = 1.0f / 32;
// A sum shorter than this share of its terms' lengths is zero to the precision of float32 data.
constexpr double kZeroSum = 1e-6;

static inline std::int64_t slot_of(const IdSet& set, std::int64_t id) {
  // Fibonacci hashing: consecutive ids spread over the table.
  std::int64_t slot = std::int64_t((std::uint64_t(id) * 0x9e3779b97f4a7c15u) >> 32) & set.mask;
  while (set.slots[slot] >= 0 && set.slots[slot] != id) slot = (slot + 1) & set.mask;
  return slot;
}
static inline bool contains(const IdSet& set, std::int64_t id) { return set.slots[slot_of(set, id)] == id; }
static inline bool insert(const IdSet& set, std::int64_t id) {
  const std::int64_t slot = slot_of(set, id);
  if (set.slots[slot] == id) return false;
  set.slots[slot] = id;
  return true;
}
static inline void clear(const IdSet& set) {
  for (std::int64_t i = 0; i <= set.mask; ++i) set.slots[i] = -1;
}

static inline std::int64_t id_at(const void* ids, int bytes, std::int64_t i) {
  return bytes == 4 ? static_cast<const std::int32_t*>(ids)[i] : static_cast<const std::int64_t*>(ids)[i];
}

static inline float inverse_sqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

template <class T>
struct Query {
  const SelectArgs& args;
  Workspace& ws;
  std::int64_t q;
  std::int64_t items = 0;   // eligible items
  std::int64_t active = 0;  // of them, neither picked nor barred
  std::int64_t picked = 0;  // initial items and picks
  std::int64_t summed = 0;  // of them, those in ws.sum

  const T* row(std::int64_t r) const { return static_cast<const T*>(args.rows) + r * args.row_stride; }
  std::int64_t base() const { return q * args.pool_stride; }
  float lambda_d() const { return args.lambda_d[q]; }
  float lambda_b() const { return args.lambda_b[q]; }
  bool is_vrsd() const { return args.method == Method::vrsd; }

  // 1. Which items may be picked: ids in range and not repeated, not shown before, not of the query's own group.
  Status collect() {
    const std::int64_t ids = args.pool_stride ? args.pool : args.num_rows;
    if (args.num_initial) clear(ws.in_initial);
    for (std::int64_t i = 0; i < args.num_initial; ++i) {
      const std::int64_t id = id_at(args.initial, args.initial_bytes, q * args.num_initial + i);
      if (id < 0) continue;
      if (id >= ids) return Status::id_out_of_range;
      if (!insert(ws.in_initial, id)) return Status::id_repeated;
      ws.picked_row[picked++] = base() + id;
    }
    if (args.candidates) clear(ws.in_pool);
    for (std::int64_t i = 0; i < args.pool; ++i) {
      std::int64_t id = i;
      if (args.candidates) {
        id = id_at(args.candidates, args.id_bytes, q * args.pool + i);
        if (id < 0) continue;
        if (id >= ids) return Status::id_out_of_range;
        if (!insert(ws.in_pool, id)) return Status::id_repeated;
      }
      if (args.num_initial && contains(ws.in_initial, id)) continue;
      const std::int64_t r = base() + id;
      if (args.query_groups && args.groups[r] == args.query_groups[q]) continue;
      ws.row[items] = r;
      ws.position[items] = i;
      ws.active[items] = std::int32_t(items);
      ++items;
    }
    active = items;
    return Status::ok;
  }

  Status prepare_query() {
    const float* query = args.queries + q * args.dims;
    float scale = 1.0f;
    if (args.unit_queries) {
      float norm2;
      norm2_block<1>(&query, args.dims, ws.tail_mask, &norm2);
      if (norm2 >= kNorm2Min && norm2 <= kNorm2Max) {
        scale = inverse_sqrt(norm2);
      } else {
        double exact = 0;
        for (std::int64_t d = 0; d < args.dims; ++d) exact += double(query[d]) * query[d];
        if (!(exact <= DBL_MAX)) return Status::not_finite;
        // Two steps, since the scale itself may leave the range of float32.
        const double inverse = exact > 0 ? 1 / __builtin_sqrt(exact) : 0;
        for (std::int64_t i = 0; i < prepared_floats(args.dims); ++i) ws.query[i] = 0.0f;
        const std::int64_t whole = args.dims / W * W;
        for (std::int64_t d = 0; d < args.dims; ++d) {
          const std::int64_t lane = args.dims >= W ? d - (args.dims - W) : d;
          ws.query[d < whole ? d : whole + lane] = float(query[d] * inverse);
        }
        return Status::ok;
      }
    }
    prepare(query, args.dims, scale, ws.query);
    return Status::ok;
  }

  // 2. The scale and squared norm of rows [r, r + R), and their product with the query.
  Status unusual_norm(const T* data) const {
    bool zero = true;
    for (std::int64_t d = 0; d < args.dims; ++d) {
      const float x = widen(data[d]);
      if (!finite(x)) return Status::not_finite;
      zero = zero && x == 0.0f;
    }
    return zero ? Status::ok : Status::norm_out_of_range;
  }

  // `norm2` is that of the stored row on entry, of the vector of the formulas on return.
  Status scale_row(std::int64_t r, float* norm2, float* scale) const {
    if (args.norm == Norm::computed) {
      if (*norm2 >= kNorm2Min && *norm2 <= kNorm2Max) {
        *scale = inverse_sqrt(*norm2);
        *norm2 = 1.0f;
        return Status::ok;
      }
      *scale = *norm2 = 0.0f;
      return unusual_norm(row(r));
    }
    *scale = args.norm == Norm::scaled ? args.scales[r] : 1.0f;
    if (is_vrsd()) {
      *norm2 = *norm2 * *scale * *scale;
      if (!finite(*norm2)) return Status::not_finite;
    }
    return Status::ok;
  }

  template <int R>
  Status read_rows(std::int64_t j) {
    const T* rows[R];
    float norm2[R] = {};
    for (int r = 0; r < R; ++r) rows[r] = row(ws.row[j + r]);
    if (!args.relevance) dot_block<R>(ws.query, rows, args.dims, ws.value + j);
    if (args.norm == Norm::computed || is_vrsd()) norm2_block<R>(rows, args.dims, ws.tail_mask, norm2);
    for (int r = 0; r < R; ++r) {
      const Status status = scale_row(ws.row[j + r], &norm2[r], &ws.scale[j + r]);
      if (status != Status::ok) return status;
      if (is_vrsd()) ws.norm2[j + r] = norm2[r];
    }
    return Status::ok;
  }

  Status read_pool() {
    if (args.queries) {
      const Status status = prepare_query();
      if (status != Status::ok) return status;
    }
    std::int64_t j = 0;
    Status status = Status::ok;
    for (; j + 4 <= items && status == Status::ok; j += 4) {
      for (std::int64_t next = j + 4; next < j + 8 && next < items; ++next) {
        const char* line = reinterpret_cast<const char*>(row(ws.row[next]));
        for (std::int64_t byte = 0; byte < args.dims * std::int64_t(sizeof(T)); byte += 64)
          __builtin_prefetch(line + byte);
      }
      status = read_rows<4>(j);
    }
    for (; j < items && status == Status::ok; ++j) status = read_rows<1>(j);
    return status == Status::ok ? combine() : status;
  }

  // 3. Relevance, and what the rule makes of it.
  Status combine() {
    bool all_finite = true;
    for (std::int64_t j = 0; j < items; ++j) {
      const std::int64_t item = q * args.pool + ws.position[j];
      const float norm = is_vrsd() ? __builtin_sqrtf(ws.norm2[j]) : 1.0f;
      float product = 0.0f;  // with the unit query
      if (!args.relevance) product = ws.value[j] * ws.scale[j];
      if (args.relevance)
        ws.relevance[j] = args.relevance[item];
      else
        ws.relevance[j] = norm > 0.0f ? product / norm : 0.0f;
      if (is_vrsd()) {
        ws.value[j] = args.relevance ? ws.relevance[j] * norm : product;
      } else if (args.bias) {
        const float bias = args.bias[args.bias_per_item ? item : ws.row[j]];
        ws.value[j] = lambda_b() * ws.relevance[j] + (1.0f - lambda_b()) * bias;
      } else {
        ws.value[j] = ws.relevance[j];
      }
      all_finite = all_finite && finite(ws.value[j]) && finite(ws.relevance[j]);
    }
    return all_finite ? Status::ok : Status::not_finite;
  }

  // The products of the active items with row r times its scale, folded into the running values.
  Status fold(std::int64_t r, float scale) {
    prepare(row(r), args.dims, 1.0f, ws.pick);
    bool all_finite = true;
    std::int64_t i = 0;
    for (; i + 4 <= active; i += 4) all_finite = fold_rows<4>(i, scale) && all_finite;
    for (; i < active; ++i) all_finite = fold_rows<1>(i, scale) && all_finite;
    return all_finite ? Status::ok : Status::not_finite;
  }

  template <int R>
  bool fold_rows(std::int64_t i, float scale) {
    const T* rows[R];
    float dots[R];
    for (int r = 0; r < R; ++r) rows[r] = row(ws.row[ws.active[i + r]]);
    dot_block<R>(ws.pick, rows, args.dims, dots);
    bool all_finite = true;
    for (int r = 0; r < R; ++r) {
      const std::int32_t j = ws.active[i + r];
      const float similarity = dots[r] * scale * ws.scale[j];
      all_finite = all_finite && finite(similarity);
      if (is_vrsd())
        ws.running[j] += similarity;
      else
        ws.running[j] = similarity > ws.running[j] ? similarity : ws.running[j];
    }
    return all_finite;
  }

  void bar_group(std::int64_t group) {
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < active; ++i)
      if (args.groups[ws.row[ws.active[i]]] != group) ws.active[kept++] = ws.active[i];
    active = kept;
  }

  // Bars the group of pick number `index` once it has reached the cap.
  void cap_group(std::int64_t index) {
    if (!args.max_per_group) return;
    const std::int64_t group = args.groups[ws.picked_row[index]];
    std::int64_t count = 0;
    for (std::int64_t i = 0; i <= index; ++i) count += args.groups[ws.picked_row[i]] == group;
    if (count == args.max_per_group) bar_group(group);
  }

  void take(std::int64_t i, std::int64_t slot, float score, float relevance, float redundancy) {
    const std::int32_t j = ws.active[i];
    const std::int64_t out = q * args.k + slot;
    args.indices[out] = ws.row[j] - base();
    args.scores[out] = score;
    args.out_relevance[out] = relevance;
    args.redundancy[out] = redundancy;
    args.lengths[q] = std::int32_t(slot + 1);
    for (std::int64_t rest = i + 1; rest < active; ++rest) ws.active[rest - 1] = ws.active[rest];
    --active;
    ws.picked_row[picked] = ws.row[j];
    cap_group(picked++);
  }

  std::int64_t picks_wanted() const { return args.ks ? args.ks[q] : args.k; }

  // 4. The initial items: picks made before the first.
  Status start(float running) {
    for (std::int64_t j = 0; j < items; ++j) ws.running[j] = running;
    for (std::int64_t p = 0; p < picked; ++p) {
      const T* data = row(ws.picked_row[p]);
      float norm2 = 0.0f;
      norm2_block<1>(&data, args.dims, ws.tail_mask, &norm2);
      float scale;
      Status status = scale_row(ws.picked_row[p], &norm2, &scale);
      if (status == Status::ok) status = fold(ws.picked_row[p], scale);
      if (status != Status::ok) return status;
      ws.picked_length[p] = __builtin_sqrtf(norm2);
      cap_group(p);
    }
    return Status::ok;
  }

  Status mmr() {
    Status status = start(-FLT_MAX);
    const float relevance_weight = lambda_d(), redundancy_weight = 1.0f - relevance_weight;
    for (std::int64_t slot = 0; slot < picks_wanted() && active > 0 && status == Status::ok; ++slot) {
      const bool first = picked == 0;
      std::int64_t best = -1;
      float best_score = 0.0f;
      for (std::int64_t i = 0; i < active; ++i) {
        const std::int32_t j = ws.active[i];
        const float score = first ? ws.value[j] : relevance_weight * ws.value[j] - redundancy_weight * ws.running[j];
        if (best < 0 || score > best_score) best = i, best_score = score;
      }
      const std::int32_t j = ws.active[best];
      take(best, slot, first ? relevance_weight * ws.value[j] : best_score, ws.value[j], first ? 0.0f : ws.running[j]);
      if (slot + 1 < picks_wanted()) status = fold(ws.row[j], ws.scale[j]);
    }
    return status;
  }

  // VRSD's sum s over the initial items and the picks.
  struct Sum {
    double query = 0;    // <s, unit query>
    double norm2 = 0;    // |s|^2
    double lengths = 0;  // lengths of its terms, added
  };

  double exact_scale(std::int64_t r) const {
    if (args.norm != Norm::computed) return args.norm == Norm::scaled ? args.scales[r] : 1.0;
    double norm2 = 0;
    for (std::int64_t d = 0; d < args.dims; ++d) norm2 += double(widen(row(r)[d])) * widen(row(r)[d]);
    return norm2 > 0 ? 1 / __builtin_sqrt(norm2) : 0;
  }

  // s, or s + item j where j >= 0, from the rows themselves in double.
  Sum exact_sum(const Sum& before, std::int64_t j) {
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
    Sum sum;
    sum.lengths = before.lengths + (j >= 0 ? __builtin_sqrtf(ws.norm2[j]) : 0);
    if (args.relevance && j >= 0)
      sum.query = before.query + ws.value[j];
    else
      sum.query = query2 > 0 ? product / __builtin_sqrt(query2) : 0;
    const double zero = kZeroSum * sum.lengths;
    sum.norm2 = norm2 > zero * zero ? norm2 : 0;
    return sum;
  }

  Sum plus(const Sum& sum, std::int64_t j) {
    const double norm2 = sum.norm2 + (2.0 * ws.running[j] + ws.norm2[j]);
    const double cancelled = kCancellation * (sum.norm2 + ws.norm2[j]);
    const double tiny = 100 * kZeroSum * sum.lengths;
    if (norm2 <= cancelled || norm2 <= tiny * tiny) return exact_sum(sum, j);
    return {sum.query + ws.value[j], norm2, sum.lengths + __builtin_sqrtf(ws.norm2[j])};
  }

  static float cosine(const Sum& sum) { return sum.norm2 > 0 ? float(sum.query / __builtin_sqrt(sum.norm2)) : 0.0f; }

  Status vrsd() {
    Status status = start(0.0f);
    if (status != Status::ok) return status;
    Sum sum;
    if (picked > 0) {
      for (std::int64_t p = 0; p < picked; ++p) sum.lengths += ws.picked_length[p];
      sum = exact_sum(sum, -1);
    }
    for (std::int64_t slot = 0; slot < picks_wanted() && active > 0 && status == Status::ok; ++slot) {
      const bool first = picked == 0;
      std::int64_t best = -1;
      float best_score = 0.0f;
      for (std::int64_t i = 0; i < active; ++i) {
        const std::int32_t j = ws.active[i];
        const float score = first ? ws.relevance[j] : cosine(plus(sum, j));
        if (best < 0 || score > best_score) best = i, best_score = score;
      }
      const std::int32_t j = ws.active[best];
      sum = plus(sum, j);
      take(best, slot, best_score, ws.relevance[j], __builtin_nanf(""));
      if (slot + 1 < picks_wanted()) status = fold(ws.row[j], ws.scale[j]);
    }
    return status;
  }
};

template <class T>
static void select_typed(const SelectArgs& args, std::int64_t q, Workspace& ws) {
  for (std::int64_t out = q * args.k; out < (q + 1) * args.k; ++out) {
    args.indices[out] = -1;
    args.scores[out] = -__builtin_inff();
    args.out_relevance[out] = args.redundancy[out] = __builtin_nanf("");
  }
  args.lengths[q] = 0;
  prepare_tail_mask(args.dims, ws.tail_mask);
  Query<T> query{args, ws, q};
  Status status = query.collect();
  if (status == Status::ok) status = query.read_pool();
  if (status == Status::ok) status = query.is_vrsd() ? query.vrsd() : query.mmr();
  args.status[q] = std::uint8_t(status);
}

template <class T>
static void relevance_typed(const RelevanceArgs& args, std::int64_t q, Workspace& ws) {
  const SelectArgs& pool = args.pool;
  for (std::int64_t i = 0; i < pool.pool; ++i) args.out[q * pool.pool + i] = -__builtin_inff();
  prepare_tail_mask(pool.dims, ws.tail_mask);
  Query<T> query{pool, ws, q};
  Status status = query.collect();
  if (status == Status::ok) status = query.read_pool();
  if (status == Status::ok)
    for (std::int64_t j = 0; j < query.items; ++j) args.out[q * pool.pool + ws.position[j]] = ws.value[j];
  pool.status[q] = std::uint8_t(status);
}

static void select_query(const SelectArgs& args, std::int64_t q, Workspace& ws) {
  switch (args.dtype) {
    case DType::f32:
      return select_typed<float>(args, q, ws);
    case DType::f16:
      return select_typed<f16>(args, q, ws);
    case DType::bf16:
      return select_typed<bf16>(args, q, ws);
  }
}

static void relevance_query(const RelevanceArgs& args, std::int64_t q, Workspace& ws) {
  switch (args.pool.dtype) {
    case DType::f32:
      return relevance_typed<float>(args, q, ws);
    case DType::f16:
      return relevance_typed<f16>(args, q, ws);
    case DType::bf16:
      return relevance_typed<bf16>(args, q, ws);
  }
}

// Indices, ascending, of the values (lambda_b * score + (1 - lambda_b) * bias) that are at least threshold.
static std::int64_t at_least(const float* scores, const float* bias, float lambda_b, std::int64_t n, float threshold,
                             std::int32_t* out) {
  const float weight = 1.0f - lambda_b;
  std::int64_t found = 0, i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    vi any = {};
    for (int b = 0; b < 4; ++b) {
      vf value = load(scores + i + b * W);
      if (bias) value = value * splat(lambda_b) + load(bias + i + b * W) * splat(weight);
      any |= value >= splat(threshold);
    }
    if (hsum((vf)(any & (vi)splat(1.0f))) == 0.0f) continue;
    for (std::int64_t b = i; b < i + 4 * W; ++b) {
      const float value = bias ? scores[b] * lambda_b + bias[b] * weight : scores[b];
      if (value >= threshold) out[found++] = std::int32_t(b);
    }
  }
  for (; i < n; ++i) {
    const float value = bias ? scores[i] * lambda_b + bias[i] * weight : scores[i];
    if (value >= threshold) out[found++] = std::int32_t(i);
  }
  return found;
}
