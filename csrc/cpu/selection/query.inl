// One query of MMR with quality bias and of VRSD. Included once per instruction set, after simd.inl. The mathematics,
// with the bounds and their rounding, is in ragsys_kernels/selection/README.md.
//
// Items are scored against bounds first and meet a pick (a dot product) only while their bound could still win. The
// dense rule is the same code with every item meeting every pick.

// Squared norms outside this range lose precision or overflow in float32.
constexpr float kNorm2Min = 1e-30f, kNorm2Max = 1e30f;

// Items between two looks for an interrupt; smaller pools are looked after between queries.
constexpr std::int64_t kLongPool = 1024;

// VRSD recomputes |s + e|^2 in double where it is below 1/32 of |s|^2 + |e|^2: there the float32 terms cancel.
constexpr float kCancellation = 1.0f / 32;
// A sum shorter than this share of its terms' lengths is zero to the precision of float32 data.
constexpr double kZeroSum = 1e-6;
// VRSD reports the cosine of a sum in double where |s|^2 is below 1/8 of the terms that it was made of.
constexpr double kDoubtful = 1.0 / 8;

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

// Pools smaller than this are taken densely: bounds would cost more than they save.
constexpr std::int64_t kPrunedPool = 16;
// Candidates of a call's first query that are asked for at once.
constexpr std::int64_t kAskedFor = 32;
// Pools smaller than this are not bounded by codes: products of them would take longer than reading the rows. Measured
// with D = 384; only wide vectors multiply bytes fast enough.
constexpr std::int64_t kCodedPool = W == 16 ? 16 : 48;
constexpr bool kCodesPay = W > 4;

static inline float inverse_sqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

// The scale that makes a query the vector of the formulas. A query of unusual norm is replaced by that vector, in
// `unit` (D), with scale 1.
static inline Status scaled_query(const float** query, std::int64_t dims, bool make_unit, const float* tail_mask,
                                  float* unit, float* scale) {
  float norm2 = 1.0f;
  if (make_unit) norm2_block<1>(query, dims, tail_mask, &norm2);
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

// Indices, ascending, of the values that are at least threshold.
static std::int64_t at_least(const float* values, std::int64_t n, float threshold, std::int32_t* out) {
  std::int64_t found = 0, i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    vi any = {};
    for (int b = 0; b < 4; ++b) any |= load(values + i + b * W) >= splat(threshold);
    if (hsum((vf)(any & (vi)splat(1.0f))) == 0.0f) continue;
    for (std::int64_t b = i; b < i + 4 * W; ++b)
      if (values[b] >= threshold) out[found++] = std::int32_t(b);
  }
  for (; i < n; ++i)
    if (values[i] >= threshold) out[found++] = std::int32_t(i);
  return found;
}

// Lowest index of the largest of x[0..n); x is readable, and minus infinity, up to a whole vector.
static std::int32_t arg_max(const float* x, std::int64_t n) {
  if (n <= 16) {  // elements written just now are not to be had as a vector yet
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

template <class T, Method kMethod>
struct Query {
  const SelectArgs& args;
  Workspace& ws;
  std::int64_t q;
  std::int64_t items = 0;                           // eligible items
  std::int64_t open = 0;                            // of them, neither picked nor barred
  std::int64_t picked = 0;                          // initial items and picks
  std::int64_t summed = 0;                          // of them, those in ws.sum
  std::int64_t bounded = 0;                         // of them, those in the bounds of the running max similarities
  std::int64_t ahead = 0;                           // rows of the next query's pool asked for
  std::int64_t next_codes = 0, next_codes_end = 0;  // of its code rows
  bool whole = false;                               // candidate i is item i
  bool all_finite = true;
  bool prune = false;
  bool coded = false;  // bounds from the 8-bit codes of the rows
  CodeVector query_code = {};
  std::int64_t choices = 0;  // picks chosen by codes
  float lost = 0.0f;         // at least the norm of what the codes of VRSD's sum leave out
  // VRSD's sum s over the initial items and the picks.
  struct Sum {
    double query = 0;    // <s, unit query>, by the given relevance if there is one
    double along = 0;    // <s, unit query>, by the rows
    double norm2 = 0;    // |s|^2
    double lengths = 0;  // lengths of its terms, added
    double terms = 0;    // sizes of what was added to norm2: their rounding stays in it
  };
  Sum sum = {};
  double given_query = 0;        // <s, unit query> by the relevance given, in double: of the initial items
  std::int64_t given_picks = 0;  // and of so many picks
  float slack = 0.0f;            // by how much a computed cosine of unit vectors may be off

  const T* row(std::int64_t r) const { return static_cast<const T*>(args.rows) + r * args.row_stride; }
  std::int64_t base() const { return q * args.pool_stride; }
  float lambda_d() const { return args.lambda_d[q]; }
  float lambda_b() const { return args.lambda_b[q]; }
  static constexpr bool is_vrsd() { return kMethod == Method::vrsd; }
  // Rows are read only as they are needed.
  bool lazy() const { return coded || ((args.relevance || args.ceiling) && !is_vrsd()); }
  // Relevance is not known before a row is read.
  bool estimated() const { return args.relevance_error || args.ceiling || (coded && !args.relevance); }
  bool is_open(std::int64_t j) const { return ws.gate[j] > -FLT_MAX; }
  std::int64_t picks_wanted() const { return args.ks ? args.ks[q] : args.k; }
  std::int64_t padded(std::int64_t n) const { return (n + W - 1) / W * W; }
  const float* pick(std::int64_t p) const { return ws.picks[p]; }

  // Whether no two candidates share their last bits, which is quickly seen.
  template <class Id>
  bool surely_distinct(const Id* ids) const {
    std::uint64_t* const seen = ws.seen;
    const std::uint64_t mask = ws.seen_mask;
    std::uint64_t repeated = 0;
    for (std::int64_t i = 0; i < args.pool; ++i) {
      const std::uint64_t id = std::uint64_t(std::int64_t(ids[i])), bit = std::uint64_t(ids[i] != -1) << (id & 63);
      const std::uint64_t word = seen[id / 64 & mask];
      repeated |= word & bit;
      seen[id / 64 & mask] = word | bit;
    }
    for (std::int64_t i = 0; i < args.pool; ++i) seen[std::uint64_t(std::int64_t(ids[i])) / 64 & mask] = 0;
    return repeated == 0;
  }

  // Makes all candidates items, if all ids are in range.
  template <class Id>
  void take_all(const Id* ids, std::int64_t limit) {
    std::int64_t* const rows = ws.row;
    std::int32_t* const positions = ws.position;
    const std::int64_t n = args.pool, first = base();
    std::uint64_t signs = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t id = std::uint64_t(std::int64_t(ids[i]));
      signs |= id | (std::uint64_t(limit - 1) - id);
      rows[i] = first + std::int64_t(id);
    }
    whole = signs >> 63 == 0;
    for (std::int64_t i = 0; whole && i < n; ++i) positions[i] = std::int32_t(i);
    items = whole ? n : 0;
  }

  template <class Id>
  bool collect_distinct(std::int64_t limit) {
    const Id* ids = static_cast<const Id*>(args.candidates) + q * args.pool;
    if (!args.best_first && !surely_distinct(ids)) return false;
    if (!args.num_initial && !args.query_groups) take_all(ids, limit);
    return true;
  }

  // 1. Which items may be picked: ids in range and not repeated, not shown before, not of the query's own group.
  Status collect() {
    const std::int64_t ids = args.pool_stride ? args.pool : args.num_rows;
    if (args.num_initial) clear(ws.in_initial);
    for (std::int64_t i = 0; i < args.num_initial; ++i) {
      const std::int64_t id = id_at(args.initial, args.initial_bytes, q * args.num_initial + i);
      if (id == -1) continue;
      if (id < 0 || id >= ids) return Status::id_out_of_range;
      if (!insert(ws.in_initial, id)) return Status::id_repeated;
      ws.picked_row[picked++] = base() + id;
    }
    bool distinct = true;
    if (args.candidates)
      distinct = args.id_bytes == 4 ? collect_distinct<std::int32_t>(ids) : collect_distinct<std::int64_t>(ids);
    if (!distinct) clear(ws.in_pool);
    for (std::int64_t i = 0; !whole && i < args.pool; ++i) {
      std::int64_t id = i;
      if (args.candidates) {
        id = id_at(args.candidates, args.id_bytes, q * args.pool + i);
        if (id == -1) continue;
        if (id < 0 || id >= ids) return Status::id_out_of_range;
        if (!distinct && !insert(ws.in_pool, id)) return Status::id_repeated;
      }
      if (args.num_initial && contains(ws.in_initial, id)) continue;
      const std::int64_t r = base() + id;
      if (args.query_groups && args.groups[r] == args.query_groups[q]) continue;
      ws.row[items] = r;
      ws.position[items] = std::int32_t(i);
      ++items;
    }
    open = items;
    for (std::int64_t j = 0; j < items; j += W) store(ws.gate + j, splat(__builtin_inff()));
    for (std::int64_t j = 0; args.ceiling && j < items; ++j) ws.gate[j] = args.ceiling[q * args.pool + ws.position[j]];
    for (std::int64_t j = items; j < padded(items); ++j) ws.gate[j] = -__builtin_inff();
    return Status::ok;
  }

  Status prepare_query() {
    float scale;
    const float* query = args.queries + q * args.dims;
    const Status status = scaled_query(&query, args.dims, args.unit_queries, ws.tail_mask, ws.unit, &scale);
    if (status != Status::ok) return status;
    prepare(query, args.dims, scale, ws.query);
    code_query(query, scale);
    return Status::ok;
  }

  void code_query(const float* query, float scale) {
    if (!coded || args.relevance) return;
    query_code = encode_query(query, args.dims, scale, ws.query_code_bytes);
  }

  // 2. The scale and squared norm of a row, its product with the query.
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
  Status scale_rows(const std::int32_t* js) {
    const T* rows[R];
    float norm2[R] = {};
    for (int r = 0; r < R; ++r) rows[r] = row(ws.row[js[r]]);
    if (args.norm == Norm::computed || is_vrsd()) norm2_block<R>(rows, args.dims, ws.tail_mask, norm2);
    for (int r = 0; r < R; ++r) {
      const Status status = scale_row(ws.row[js[r]], &norm2[r], &ws.scale[js[r]]);
      if (status != Status::ok) return status;
      if (is_vrsd()) ws.norm2[js[r]] = norm2[r];
      ws.met[js[r]] = 0;
    }
    ws.rows_read += R;
    if (!estimated()) return Status::ok;
    float dots[R];
    dot_block<R>(ws.query, rows, args.dims, dots);
    ws.products += R;
    for (int r = 0; r < R; ++r) {
      const float cosine = dots[r] * ws.scale[js[r]];
      relevance_known(js[r], cosine);
      ws.pivot[js[r]] = cosine;
      ws.sine[js[r]] = sine(cosine);
    }
    return all_finite ? Status::ok : Status::not_finite;
  }

  template <int R>
  Status read_rows(std::int64_t j) {
    const T* rows[R];
    std::int32_t js[R];
    for (int r = 0; r < R; ++r) {
      js[r] = std::int32_t(j + r);
      rows[r] = row(ws.row[j + r]);
    }
    dot_block<R>(ws.query, rows, args.dims, ws.pivot + j);
    ws.products += R;
    return scale_rows<R>(js);
  }

  void prefetch_row(std::int64_t r) const {
    const char* line = reinterpret_cast<const char*>(row(r));
    const std::int64_t bytes = args.dims * std::int64_t(sizeof(T));
    for (std::int64_t byte = 0; byte < bytes; byte += 64) ask_for(line + byte);
  }

  const std::uint8_t* code_row(std::int64_t r) const { return args.codes + r * code_stride(args.dims); }

  // Finds the next query's codes, for `code_products` to ask for. Whether its ids are in range is not known yet.
  template <class Id>
  void find_next_codes() {
    const std::int64_t stride = code_stride(args.dims), n = args.pool;
    const std::uint64_t limit = std::uint64_t(args.num_rows);
    const Id* ids = static_cast<const Id*>(args.candidates) + (q + 1) * n;
    const std::uint8_t *const codes = args.codes, **const next_codes = ws.next_codes;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t id = std::uint64_t(std::int64_t(ids[i]));
      next_codes[i] = codes + std::int64_t(id < limit ? id : 0) * stride;
    }
    next_codes_end = n;
  }

  void find_next_codes() {
    if (args.candidates && q + 1 < args.num_queries)
      args.id_bytes == 4 ? find_next_codes<std::int32_t>() : find_next_codes<std::int64_t>();
    for (std::int64_t i = 0; i < kCodeBlock / 4; ++i) ws.next_codes[next_codes_end + i] = args.codes;
  }

  // Multiplies the codes of n items from j on and asks for code rows of the next query, one for every four of them.
  template <int A>
  void multiply_codes(std::int64_t j, std::int64_t n, const std::int8_t* const* vectors,
                      std::int32_t (*products)[kCodeBlock]) {
    const CodePrefetch next = {ws.next_codes + next_codes, code_stride(args.dims) - kCodeHeader};
    code_products<A>(ws.code_rows + j, vectors, code_bytes(args.dims), n, next, products);
    next_codes += (n + 3) / 4;
    if (next_codes > next_codes_end) next_codes = next_codes_end;
  }

  // Asks for the next query's rows, so that they arrive while this query is decided. Where relevance is only estimated
  // few rows will be read.
  void prefetch_next(std::int64_t end) {
    if (!args.candidates || coded || estimated() || q + 1 >= args.num_queries) return;
    for (; ahead < end && ahead < args.pool; ++ahead) prefetch_candidate(q + 1, ahead);
    ws.asked_for = q + 1;
  }

  // No query before this one has asked for its rows.
  void prefetch_own() {
    if (!args.candidates || lazy() || ws.asked_for == q) return;
    for (std::int64_t i = 0; i < args.pool && i < kAskedFor; ++i) prefetch_candidate(q, i);
  }

  void prefetch_candidate(std::int64_t query, std::int64_t i) const {
    const std::int64_t id = id_at(args.candidates, args.id_bytes, query * args.pool + i);
    if (id >= 0 && id < args.num_rows) prefetch_row(id);
  }

  // Every so many items a pass over a long pool asks whether to go on.
  static void look(std::int64_t j) {
    if (j % (64 * kLongPool) == 0 && j > 0) interrupt_point();
  }

  Status read_pool() {
    const bool possible = args.codes && args.unit_rows;
    const bool given = args.relevance && !args.relevance_error;
    // VRSD meets every item by codes at every pick: where most items are picked that spares little.
    const bool many = is_vrsd() && 2 * picks_wanted() > items;
    const bool pays = kCodesPay && !many && items >= (given ? kPrunedPool : kCodedPool);
    coded = possible && (args.rule == Rule::coded || (args.rule == Rule::automatic && pays));
    if (coded) find_next_codes();
    prefetch_own();
    slack = (float(args.dims / (2 * W)) + 32.0f) * FLT_EPSILON;
    // Without need of the query MMR may have none. VRSD has one, which is checked.
    Status status = lazy() && !estimated() && !is_vrsd() ? Status::ok : prepare_query();
    if (lazy()) {
      for (std::int64_t j = 0; j < items; j += W) store(ws.met + j, vi{} - 1);
      if (status != Status::ok) return status;
      if (!coded || args.relevance || args.ceiling) return combine();
      for (std::int64_t j = 0; j < items; j += kCodeBlock) bound_relevance(j);
      return all_finite ? Status::ok : Status::not_finite;
    }
    std::int64_t j = 0;
    for (; j + 4 <= items && status == Status::ok; j += 4) {
      look(j);
      for (std::int64_t next = j + 4; next < j + 8 && next < items; ++next) prefetch_row(ws.row[next]);
      status = read_rows<4>(j);
    }
    for (; j < items && status == Status::ok; ++j) status = read_rows<1>(j);
    return status == Status::ok ? combine() : status;
  }

  // 3. Relevance, and what the rule makes of it.
  void relevance_known(std::int64_t j, float relevance) {
    ws.relevance[j] = ws.value[j] = relevance;
    if (!is_vrsd() && args.bias) {
      const std::int64_t item = args.bias_per_item ? q * args.pool + ws.position[j] : ws.row[j];
      ws.value[j] = lambda_b() * relevance + (1.0f - lambda_b()) * args.bias[item];
    }
    all_finite = all_finite && finite(ws.value[j]) && finite(relevance);
  }

  // The relevance given, where nothing is added to it.
  Status copy_relevance() {
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

  Status combine() {
    if (whole && lazy() && args.relevance && !estimated() && !args.bias) return copy_relevance();
    for (std::int64_t j = 0; j < items; ++j) {
      float given = args.relevance ? args.relevance[q * args.pool + ws.position[j]] : 0.0f;
      if (args.ceiling) {
        ws.value[j] = FLT_MAX;  // the ceiling is all that is known
        continue;
      }
      if (lazy()) {
        if (estimated()) {
          ws.pivot[j] = given;
          given += args.relevance_error[q];  // until the row is read the value is an upper bound
        }
        relevance_known(j, given);
        continue;
      }
      const float product = ws.pivot[j] * ws.scale[j];
      const float length = is_vrsd() ? __builtin_sqrtf(ws.norm2[j]) : 1.0f;
      ws.pivot[j] = is_vrsd() && length > 0.0f ? product / length : product;
      relevance_known(j, args.relevance ? given : ws.pivot[j]);
      if (is_vrsd()) ws.value[j] = args.relevance ? given * length : product;
    }
    return all_finite ? Status::ok : Status::not_finite;
  }

  std::int64_t block_items(std::int64_t j) const { return items - j < kCodeBlock ? items - j : kCodeBlock; }

  // What the codes leave open of a product with a unit vector, and what float32 rounding adds to it.
  vf code_error(std::int64_t j, const CodeVector& vector) const {
    const vf row = load(ws.code_error + j);
    return row + splat(vector.error) + row * splat(vector.error) + splat(4.0f * slack);
  }
  vf code_scale(std::int64_t j, const CodeVector& vector) const {
    return load(ws.code_scale + j) * splat(vector.scale);
  }

  // Finds the code rows of the n items from j on.
  void read_headers(std::int64_t j, std::int64_t n) {
    for (std::int64_t i = j; i < j + n; ++i) {
      ws.code_rows[i] = code_row(ws.row[i]);
      const CodeHeader header = code_header(ws.code_rows[i], code_stride(args.dims));
      ws.code_scale[i] = header.scale;
      ws.code_error[i] = header.error;
    }
    for (std::int64_t i = j + n; i < j + (n + 3) / 4 * 4; ++i) ws.code_rows[i] = ws.code_rows[j];
    // Lanes after the last item are multiplied too: a subnormal number left in one takes a hundred times as long.
    for (std::int64_t i = j + n; i < padded(j + n); ++i) ws.code_scale[i] = ws.code_error[i] = 0.0f;
  }

  // The value of an item of the block from j on becomes an upper bound.
  void bound_relevance(std::int64_t j) {
    std::int32_t products[2][kCodeBlock];
    const std::int8_t* vectors[2] = {query_code.high, query_code.low};
    const std::int64_t n = block_items(j);
    read_headers(j, n);
    multiply_codes<2>(j, n, vectors, products);
    ws.code_products += n;
    for (std::int64_t i = 0; i < n; i += W) {
      const vf high = __builtin_convertvector(load(products[0] + i) - query_code.high_offset, vf);
      const vf low = __builtin_convertvector(load(products[1] + i) - query_code.low_offset, vf);
      const vf product = (high + low * splat(1.0f / 256)) * code_scale(j + i, query_code);
      store(ws.value + j + i, product + code_error(j + i, query_code));
    }
    if (args.bias && !is_vrsd())
      for (std::int64_t i = j; i < j + n; ++i) relevance_known(i, ws.value[i]);
  }

  // Items of a block meet picks [p, p + A) by their codes.
  template <int A>
  void meet_by_codes(std::int64_t block_begin, std::int64_t p) {
    std::int32_t products[A][kCodeBlock];
    const std::int8_t* vectors[A];
    const std::int64_t n = block_items(block_begin);
    for (int a = 0; a < A; ++a) vectors[a] = ws.pick_codes[p + a].high;
    multiply_codes<A>(block_begin, n, vectors, products);
    ws.code_products += A * n;
    for (std::int64_t i = 0; i < n; i += W) {
      const std::int64_t j = block_begin + i;
      vf running = load(ws.running + j), likely_most = load(ws.likely_most + j), rival_most = load(ws.rival_most + j);
      vi likely = load(ws.likely + j);
      for (int a = 0; a < A; ++a) {
        const CodeVector& vector = ws.pick_codes[p + a];
        const vf product = __builtin_convertvector(load(products[a] + i) - vector.high_offset, vf);
        const vf similarity = product * code_scale(j, vector), error = code_error(j, vector);
        const vf least = similarity - error, most = similarity + error;
        if (is_vrsd()) {
          running = running + least;
          likely_most = likely_most + most;
          continue;
        }
        const vi nearest = least > running;
        rival_most = larger(rival_most, nearest ? likely_most : most);
        likely_most = nearest ? most : likely_most;
        running = nearest ? least : running;
        likely = nearest ? vi{} + std::int32_t(p + a) : likely;
      }
      store(ws.running + j, running);
      store(ws.likely_most + j, likely_most);
      if (is_vrsd()) continue;
      store(ws.rival_most + j, rival_most);
      store(ws.likely + j, likely);
    }
  }

  void catch_up_by_codes(std::int64_t block) {
    const std::int64_t j = block * kCodeBlock;
    std::int64_t p = ws.block_met[block];
    if (p < 0) {
      if (args.relevance)
        read_headers(j, block_items(j));
      else
        bound_relevance(j);
      p = 0;
    }
    for (; p + 4 <= picked; p += 4) meet_by_codes<4>(j, p);
    for (; p + 2 <= picked; p += 2) meet_by_codes<2>(j, p);
    if (p < picked) meet_by_codes<1>(j, p);
    ws.block_met[block] = std::int32_t(picked);
  }

  void bound_block(std::int64_t block) {
    const std::int64_t j = block * kCodeBlock;
    bound(j, j + block_items(j));
    ws.block_bound[block] = largest_bound(j);
  }

  // Reads the row of item j: its relevance, if that is not given, and its similarity to the pick that codes make out to
  // be the nearest; where another may be nearer, to all that it has not met.
  void refine(std::int64_t j) {
    if (is_vrsd()) return refine_vrsd(j);
    const bool unread = ws.met[j] < 0, ask = unread && estimated();
    if (unread) {
      ws.scale[j] = args.norm == Norm::scaled ? args.scales[ws.row[j]] : 1.0f;
      ws.met[j] = 0;
      ++ws.rows_read;
    }
    const T* data = row(ws.row[j]);
    const float* vectors[kTile];
    float dots[kTile];
    const std::int32_t likely = ws.likely[j];
    int n = 0;
    if (ask) vectors[n++] = ws.query;
    if (likely >= 0) vectors[n++] = pick(likely);
    if (n > 0) dot_some(vectors, n, data, args.dims, dots);
    ws.products += n;
    if (ask) relevance_known(j, ws.pivot[j] = dots[0] * ws.scale[j]);
    float nearest = likely >= 0 ? dots[n - 1] * ws.picked_scale[likely] * ws.scale[j] : ws.exact[j];
    if (!(nearest >= ws.rival_most[j])) {
      nearest = ws.exact[j];
      for (std::int64_t p = ws.met[j]; p < picked; p += n) {
        for (n = 0; n < kTile && p + n < picked; ++n) vectors[n] = pick(p + n);
        dot_some(vectors, n, data, args.dims, dots);
        ws.products += n;
        for (int i = 0; i < n; ++i) {
          const float similarity = dots[i] * ws.picked_scale[p + i] * ws.scale[j];
          nearest = similarity > nearest ? similarity : nearest;
        }
      }
    }
    settle(j, nearest);
  }

  // Reads the row of item j: what it needs of its own, if it is read for the first time, and its products with the
  // picks that it has not met, added in their order.
  void refine_vrsd(std::int64_t j) {
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

  // The largest similarity of item j to a pick is known.
  void settle(std::int64_t j, float similarity) {
    ws.running[j] = ws.likely_most[j] = ws.exact[j] = similarity;
    ws.rival_most[j] = -FLT_MAX;
    ws.likely[j] = -1;
    ws.met[j] = std::int32_t(picked);
  }

  void keep_codes(std::int64_t p, std::int64_t r) {
    if (!coded) return;
    std::int8_t* codes = ws.pick_code_bytes + p * code_bytes(args.dims);
    ws.pick_codes[p] = signed_codes(code_row(r), args.dims, code_stride(args.dims), codes);
    if (is_vrsd()) lost = add_lost(ws.pick_codes[p], row(r), args.dims, ws.picked_scale[p], ws.lost);
  }

  float sine(float cosine) const {
    const float square = 1.0f - cosine * cosine;
    return __builtin_sqrtf((square > 0.0f ? square : 0.0f) + 2.0f * slack);
  }

  // 4. Items meet picks.
  template <int A, int B>
  void meet(std::int64_t p, const std::int32_t* js) {
    const float* vectors[A];
    const T* rows[B];
    float dots[A * B];
    for (int a = 0; a < A; ++a) vectors[a] = pick(p + a);
    for (int b = 0; b < B; ++b) rows[b] = row(ws.row[js[b]]);
    dot_tile<A, B>(vectors, rows, args.dims, dots);
    ws.products += A * B;
    for (int b = 0; b < B; ++b) {
      const std::int32_t j = js[b];
      for (int a = 0; a < A; ++a) {
        const float similarity = dots[a * B + b] * ws.picked_scale[p + a] * ws.scale[j];
        all_finite = all_finite && finite(similarity);
        if (is_vrsd())
          ws.running[j] += similarity;
        else
          ws.running[j] = similarity > ws.running[j] ? similarity : ws.running[j];
        if (prune && p + a == 0 && lazy() && !estimated()) {  // the first pick is the pivot
          ws.pivot[j] = similarity;
          ws.sine[j] = sine(similarity);
        }
      }
      ws.met[j] = std::int32_t(p + A);
    }
  }

  void catch_up(std::int32_t j) {
    std::int64_t p = ws.met[j];
    for (; p + 4 <= picked; p += 4) meet<4, 1>(p, &j);
    if (p + 3 == picked) return meet<3, 1>(p, &j);
    if (p + 2 == picked) return meet<2, 1>(p, &j);
    if (p + 1 == picked) return meet<1, 1>(p, &j);
  }

  // Items js[0..n), n <= 4, meet the picks that they have not met yet.
  Status catch_up(const std::int32_t* js, int n) {
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

  Status catch_up_all() {
    std::int32_t js[4];
    int n = 0;
    Status status = Status::ok;
    for (std::int64_t j = 0; j < items && status == Status::ok; ++j) {
      look(j);
      if (!is_open(j) || ws.met[j] == picked) continue;
      js[n++] = std::int32_t(j);
      if (n < 4) continue;
      status = catch_up(js, 4);
      n = 0;
    }
    return n && status == Status::ok ? catch_up(js, n) : status;
  }

  void close(std::int64_t j) {
    ws.gate[j] = -__builtin_inff();
    --open;
  }

  // Bars the group of pick number `index` once it has reached the cap.
  void cap_group(std::int64_t index) {
    if (!args.max_per_group) return;
    const std::int64_t group = args.groups[ws.picked_row[index]];
    std::int64_t count = 0;
    for (std::int64_t i = 0; i <= index; ++i) count += args.groups[ws.picked_row[i]] == group;
    if (count != args.max_per_group) return;
    for (std::int64_t j = 0; j < items; ++j)
      if (is_open(j) && args.groups[ws.row[j]] == group) close(j);
  }

  void take(std::int64_t j, std::int64_t slot, float score, float relevance, float redundancy) {
    const std::int64_t out = q * args.k + slot;
    args.indices[out] = ws.row[j] - base();
    args.scores[out] = score;
    args.out_relevance[out] = relevance;
    args.redundancy[out] = redundancy;
    args.lengths[q] = std::int32_t(slot + 1);
    close(j);
    ws.picked_row[picked] = ws.row[j];
    cap_group(picked);
  }

  // The item that was taken becomes pick number `picked`, to be met by the others.
  Status keep(std::int64_t j) {
    const std::int32_t js = std::int32_t(j);
    if (ws.met[j] < 0 && coded) {
      refine(j);
    } else if (ws.met[j] < 0) {
      const Status status = scale_rows<1>(&js);
      if (status != Status::ok) return status;
      if (picked == 0 && !estimated()) ws.pivot[j] = 1.0f;
    }
    ws.picked_scale[picked] = ws.scale[j];
    ws.picked_pivot[picked] = ws.pivot[j];
    ws.picks[picked] = prepared(row(ws.row[j]), args.dims, ws.prepared_picks + picked * prepared_floats(args.dims));
    keep_codes(picked, ws.row[j]);
    ++picked;
    return Status::ok;
  }

  // Picks made before the first.
  Status keep_initial() {
    const std::int64_t initial = picked;
    for (picked = 0; picked < initial; ++picked) {
      const std::int64_t r = ws.picked_row[picked];
      const T* data = row(r);
      float norm2, product = 0.0f;
      norm2_block<1>(&data, args.dims, ws.tail_mask, &norm2);
      const Status status = scale_row(r, &norm2, &ws.picked_scale[picked]);
      if (status != Status::ok) return status;
      ws.picks[picked] = prepared(data, args.dims, ws.prepared_picks + picked * prepared_floats(args.dims));
      if (!lazy() || estimated())
        dot_block<1>(ws.query, &data, args.dims, &product);
      else
        dot_block<1>(pick(0), &data, args.dims, &product), product *= ws.picked_scale[0];
      ws.picked_length[picked] = __builtin_sqrtf(norm2);
      keep_codes(picked, r);
      ws.picked_pivot[picked] = product * ws.picked_scale[picked];
      all_finite = all_finite && finite(ws.picked_pivot[picked]);
      cap_group(picked);
    }
    return all_finite ? Status::ok : Status::not_finite;
  }

  void start() {
    // Without codes VRSD's bounds leave out next to nothing on real embeddings, see the README: automatic is dense.
    const bool pays = !is_vrsd() && items >= kPrunedPool;
    prune = args.unit_rows && !coded && (args.rule == Rule::pruned || (args.rule == Rule::automatic && pays));
    if (prune && args.relevance_error) slack += args.relevance_error[q];
    for (std::int64_t j = items; j < padded(items); ++j) {
      ws.pivot[j] = ws.sine[j] = ws.value[j] = 0.0f;
      if (is_vrsd()) ws.norm2[j] = 1.0f;
      ws.met[j] = 0;
    }
    if (coded) return start_codes();
    const vf none = splat(is_vrsd() ? 0.0f : -FLT_MAX);
    for (std::int64_t j = 0; j < items; j += W) store(ws.running + j, none);
    if (!prune) return;
    // Cosines with the pivot: the query, or, where other relevance is given, the first pick. No cosine is below -1; an
    // item that has not met its pivot has a sine that leaves it at that.
    for (std::int64_t j = 0; j < items; ++j) {
      if (!is_vrsd()) ws.running[j] = -1.0f - 4.0f * slack;
      const bool known = !lazy() || args.relevance_error;
      if (!known) ws.pivot[j] = 0.0f;
      ws.sine[j] = known ? sine(ws.pivot[j]) : FLT_MAX;
    }
  }

  void start_codes() {
    for (std::int64_t j = 0; j < items; j += W) {
      store(ws.running + j, is_vrsd() ? vf{} : splat(-1.0f - 4.0f * slack));
      store(ws.likely_most + j, is_vrsd() ? vf{} : splat(-FLT_MAX));
      store(ws.exact + j, is_vrsd() ? vf{} : splat(-FLT_MAX));
      if (is_vrsd()) continue;
      store(ws.rival_most + j, splat(-FLT_MAX));
      store(ws.likely + j, vi{} - 1);
    }
    for (std::int64_t d = 0; is_vrsd() && d < args.dims; d += W) store(ws.lost + d, vf{});
    const std::int64_t blocks = (items + kCodeBlock - 1) / kCodeBlock;
    const bool bounded_already = !args.relevance && !args.ceiling;
    for (std::int64_t block = 0; block < blocks; ++block) ws.block_met[block] = bounded_already ? 0 : -1;
    for (std::int64_t j = padded(items); j < blocks * kCodeBlock; ++j) ws.bound[j] = -__builtin_inff();
    for (std::int64_t block = blocks; block < padded(blocks); ++block) ws.block_bound[block] = -__builtin_inff();
  }

  // 5. The value of an item that has met all picks; the first pick goes by relevance alone.
  float score(std::int64_t j) {
    if (picked == 0) return is_vrsd() ? ws.relevance[j] : ws.value[j];
    if (is_vrsd()) return cosine(plus(sum, j));
    return lambda_d() * ws.value[j] - (1.0f - lambda_d()) * ws.running[j];
  }

  // Within what VRSD's t = <s, e> can lie: the sum has one component along the query and one across it.
  struct Reach {
    vf along, across, newest, newest_sine, error;

    void range(const Workspace& ws, std::int64_t j, std::int64_t picked, vf* least, vf* most) const {
      const vf pivot = load(ws.pivot + j), orthogonal = load(ws.sine + j), known = load(ws.running + j);
      const vi met = load(ws.met + j);
      vf low = pivot * along - orthogonal * across, high = pivot * along + orthogonal * across;
      // An item that lacks only the newest pick is known but for its product with that one.
      const vi one_behind = met == vi{} + std::int32_t(picked - 1), up_to_date = met == vi{} + std::int32_t(picked);
      low = one_behind ? larger(low, known + (pivot * newest - orthogonal * newest_sine)) : low;
      high = one_behind ? smaller(high, known + (pivot * newest + orthogonal * newest_sine)) : high;
      *least = up_to_date ? known : low - error;
      *most = up_to_date ? known : high + error;
    }
  };

  Reach sum_reach() const {
    const double across2 = sum.norm2 - sum.along * sum.along;
    const float error = 8.0f * slack * float(1.0 + sum.lengths);
    const float across = __builtin_sqrtf(float(across2 > 0 ? across2 : 0) + error * float(sum.lengths));
    const float newest = ws.picked_pivot[picked - 1];
    return {splat(float(sum.along)), splat(across), splat(newest), splat(sine(newest)), splat(error)};
  }

  // Upper bounds of the values, minus infinity for closed items. Each bound passes through the operations of the
  // value itself, which are monotone, so that rounding keeps it a bound.
  void bound_running() {
    for (; prune && bounded < picked; ++bounded) {
      const vf pivot = splat(ws.picked_pivot[bounded]), pick_sine = splat(sine(ws.picked_pivot[bounded]));
      for (std::int64_t j = 0; j < items; j += W) {
        const vf least = load(ws.pivot + j) * pivot - load(ws.sine + j) * pick_sine - splat(4.0f * slack);
        store(ws.running + j, larger(load(ws.running + j), least));
      }
    }
  }

  // Rounding of the quotient, whose denominator is known to within 3/32 of its square: this over the denominator.
  vf vrsd_margin(vf value) const {
    return splat(128.0f * FLT_EPSILON) * (splat(__builtin_fabsf(float(sum.query))) + larger(value, -value));
  }

  // Where the sum may cancel, the value is computed in another way; the factors keep this side of the border.
  vi vrsd_may_cancel(vf shortest, vf total) const {
    const float tiny = 200.0f * float(kZeroSum * (sum.lengths + 1.0));
    return (shortest <= splat(1.01f * kCancellation) * total) | (shortest <= splat(tiny * tiny));
  }

  void bound_vrsd() {
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

  void bound() {
    if (picked > 0 && is_vrsd()) return bound_vrsd();
    if (picked > 0) bound_running();
    bound(0, items);
  }

  // Of MMR's values, or of those of the first pick.
  void bound(std::int64_t begin, std::int64_t end) {
    const float* values = is_vrsd() ? ws.relevance : ws.value;
    const vf relevance_weight = splat(lambda_d()), redundancy_weight = splat(1.0f - lambda_d());
    for (std::int64_t j = begin; j < end; j += W) {
      vf bound = load(values + j);
      if (picked > 0) bound = relevance_weight * bound - redundancy_weight * load(ws.running + j);
      store(ws.bound + j, smaller(bound, load(ws.gate + j)));
    }
  }

  // Upper bound of the value of every row that is not in the pool, whose v is at most args.outside[q]. A row at angle
  // x to the query has v <= lambda_b cos x + (1 - lambda_b) max_bias and a similarity of at least cos(x + y) to a pick
  // at angle y, so its value is at most C + A cos x + B sin x, for the x that v leaves it.
  float outside_bound() const {
    const double relevance_weight = lambda_d(), redundancy_weight = 1 - relevance_weight;
    const double weight = args.bias ? lambda_b() : 1, bias = args.bias ? (1 - weight) * args.max_bias : 0;
    const double outside = args.outside[q], rounding = 1e-6 + 4 * slack;
    if (picked == 0 || outside < -FLT_MAX || args.ceiling) return float(outside + rounding);
    double least = relevance_weight * outside + redundancy_weight;
    for (std::int64_t p = 0; p < picked && weight > 0; ++p) {
      double x = (outside - bias) / weight;
      x = x > 1 ? 1 : x < -1 ? -1 : x;
      const double y = ws.picked_pivot[p], sin_x = __builtin_sqrt(1 - x * x), sin_y = sine(ws.picked_pivot[p]);
      const double a = relevance_weight * weight - redundancy_weight * y, b = redundancy_weight * sin_y;
      // With a bias a row nearer to the query than x may still have this v; opposite to the pick is nearer here.
      if (args.bias && x <= -y) continue;
      const bool rising = b * x >= a * sin_x;
      const double value = relevance_weight * bias + (rising ? __builtin_sqrt(a * a + b * b) : a * x + b * sin_x);
      least = value < least ? value : least;
    }
    return float(least + rounding);
  }

  // The best open item, which has then met all picks, and its value. Ties go to the lowest position or, with
  // best_first, row.
  Status choose(std::int64_t* best, float* best_score) {
    if (coded) return choose_by_codes(best, best_score);
    Status status = prune ? Status::ok : catch_up_all();
    if (status != Status::ok) return status;
    bound();
    // The most promising item sets the bar for the others.
    const std::int32_t top = arg_max(ws.bound, items);
    status = catch_up(&top, 1);
    *best = -1;
    consider(top, best, best_score);
    const std::int64_t survivors = at_least(ws.bound, items, *best_score, ws.survivors);
    std::int32_t js[4] = {};  // unread, or one behind: four of them meet a pick together
    int n = 0;
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

  // Codes leave few items that may be the best; the rows of these tell.
  Status choose_by_codes(std::int64_t* best, float* best_score) {
    const std::int64_t contenders = find_contenders();
    for (std::int64_t i = 0; i < contenders; ++i)
      if (ws.met[ws.survivors[i]] < 0) prefetch_row(ws.row[ws.survivors[i]]);
    // The most promising one goes first and spares others.
    for (std::int64_t i = 1; i < contenders; ++i) {
      const std::int32_t first = ws.survivors[0], other = ws.survivors[i];
      const bool better = ws.bound[other] > ws.bound[first];
      ws.survivors[0] = better ? other : first;
      ws.survivors[i] = better ? first : other;
    }
    *best = -1;
    for (std::int64_t i = 0; i < contenders; ++i) {
      const std::int32_t j = ws.survivors[i];
      if (*best >= 0 && ws.bound[j] < *best_score) continue;
      if (!known(j)) refine(j);
      consider(j, best, best_score);
    }
    return all_finite && *best >= 0 ? Status::ok : Status::not_finite;
  }

  // The items whose values may be the largest, to ws.survivors.
  std::int64_t find_contenders() {
    const std::int64_t blocks = (items + kCodeBlock - 1) / kCodeBlock;
    const float least = largest_lane(is_vrsd() ? look_at_all(blocks) : look_at_promising(blocks));
    std::int64_t contenders = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      if (!(ws.block_bound[block] >= least)) continue;
      for (std::int64_t j = block * kCodeBlock; j < (block + 1) * kCodeBlock; j += W)
        for (unsigned found = at_least_mask(load(ws.bound + j), least); found; found &= found - 1)
          ws.survivors[contenders++] = std::int32_t(j + __builtin_ctz(found));
    }
    return contenders;
  }

  // VRSD's values fall and rise: no bound outlives a pick.
  vf look_at_all(std::int64_t blocks) {
    vf leasts = splat(-FLT_MAX);
    for (std::int64_t block = 0; block < blocks; ++block) leasts = look(block, leasts);
    return leasts;
  }

  vf look_at_promising(std::int64_t blocks) {
    // From the second choice on a bound that is not renewed is still a bound.
    for (std::int64_t block = 0; choices < 2 && block < blocks; ++block) bound_block(block);
    ++choices;
    const std::int64_t top = arg_max(ws.block_bound, blocks);
    vf leasts = look(top, splat(-FLT_MAX));  // minus infinity is the bound of what cannot be picked
    for (std::int64_t block = 0; block < blocks; ++block)
      if (block != top && !any_greater(leasts, ws.block_bound[block])) leasts = look(block, leasts);
    return leasts;
  }

  // Renews the bounds of a block. The larger, lane by lane, of `leasts` and what the block's values are at least.
  vf look(std::int64_t block, vf leasts) {
    const std::int64_t begin = block * kCodeBlock, end = begin + block_items(begin);
    if (unseen(block) || (picked > 0 && ws.block_met[block] < picked)) catch_up_by_codes(block);
    vf bounds = splat(-__builtin_inff());
    for (std::int64_t j = begin; j < end; j += W) {
      const vf gate = load(ws.gate + j);
      vf most = load(ws.value + j), least = most - doubt(j);
      if (picked > 0) is_vrsd() ? vrsd_range(j, &least, &most) : mmr_range(j, &least, &most);
      most = smaller(most, gate);
      store(ws.bound + j, most);
      bounds = larger(bounds, most);
      leasts = larger(leasts, smaller(least, gate));
    }
    ws.block_bound[block] = largest_lane(bounds);
    return leasts;
  }

  // What items are worth at least and at most, from what their v, or VRSD's g, is.
  void mmr_range(std::int64_t j, vf* least, vf* most) const {
    const vf relevance_weight = splat(lambda_d()), redundancy_weight = splat(1.0f - lambda_d());
    const vf nearest = larger(load(ws.likely_most + j), load(ws.rival_most + j));
    *most = relevance_weight * *most - redundancy_weight * load(ws.running + j);
    *least = relevance_weight * *least - redundancy_weight * nearest;
  }

  void vrsd_range(std::int64_t j, vf* least, vf* most) const {
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

  // By how much the value of an item, an upper bound before its row is read, may exceed the relevance.
  vf doubt(std::int64_t j) const {
    if (!estimated()) return vf{};
    const vf value = load(ws.value + j), size = larger(value, -value);
    const vf error = args.relevance ? splat(args.relevance_error[q]) : code_error(j, query_code);
    const vi unread = load(ws.met + j) < 0;
    return unread ? splat(2.0f) * error + splat(slack) + splat(4.0f * FLT_EPSILON) * size : vf{};
  }

  // Whether the values of a block's items are not even bounded by their codes.
  bool unseen(std::int64_t block) const { return ws.block_met[block] < 0 && !args.relevance; }

  // Whether the value of an item is known: of the first pick, or after all picks so far.
  bool known(std::int64_t j) {
    if (is_vrsd()) return ws.met[j] == picked;
    if (picked == 0) return !estimated() || ws.met[j] >= 0;
    if (ws.met[j] < 0) return false;
    if (ws.likely[j] < 0 && ws.rival_most[j] <= ws.exact[j]) settle(j, ws.exact[j]);
    return ws.met[j] == picked;
  }

  // Of the block from item j on.
  float largest_bound(std::int64_t j) const {
    vf best = load(ws.bound + j);
    for (std::int64_t i = W; i < kCodeBlock; i += W) best = larger(best, load(ws.bound + j + i));
    return largest_lane(best);
  }

  Status catch_up_and_consider(const std::int32_t* js, int* n, std::int64_t* best, float* best_score) {
    const Status status = catch_up(js, *n);
    for (int i = 0; i < *n && status == Status::ok; ++i) consider(js[i], best, best_score);
    *n = 0;
    return status;
  }

  // A pick that is known: the item of row r.
  Status follow(std::int64_t r, std::int64_t* best, float* best_score) {
    std::int32_t j = 0;
    while (j < items && ws.row[j] != r) ++j;
    if (j == items) return Status::id_out_of_range;
    const Status status = catch_up(&j, 1);
    *best = -1;
    consider(j, best, best_score);
    return status;
  }

  void consider(std::int64_t j, std::int64_t* best, float* best_score) {
    const float value = score(j);
    const bool tie_won = *best >= 0 && (args.best_first ? ws.row[j] < ws.row[*best] : j < *best);
    if (*best < 0 || value > *best_score || (value == *best_score && tie_won)) {
      *best = j;
      *best_score = value;
    }
  }

  Status run() {
    start();
    Status status = keep_initial();
    if (is_vrsd() && picked > 0 && status == Status::ok) start_sum();
    const std::int64_t wanted = picks_wanted();
    const std::int64_t rows_ahead = args.pool / (wanted > 1 ? wanted - 1 : 1) + 1;
    for (std::int64_t slot = 0; slot < wanted && open > 0 && status == Status::ok; ++slot) {
      if (items >= kLongPool) interrupt_point();
      const bool first = picked == 0;
      std::int64_t best;
      float best_score;
      const bool forced = args.forced && args.forced[q * args.k + slot] >= 0;
      status = forced ? follow(args.forced[q * args.k + slot], &best, &best_score) : choose(&best, &best_score);
      if (status != Status::ok || !all_finite) break;
      if (args.outside && !forced && !(best_score > outside_bound())) return Status::pool_too_small;
      if (is_vrsd()) {
        const Sum before = sum;
        sum = plus(before, best);
        if (sum.norm2 < kDoubtful * sum.terms) best_score = exact_cosine(before, best, slot);
        take(best, slot, best_score, ws.relevance[best], __builtin_nanf(""));
      } else {
        take(best, slot, first ? lambda_d() * best_score : best_score, ws.value[best], first ? 0.0f : ws.running[best]);
      }
      if (slot + 1 < wanted) status = keep(best);
      prefetch_next((slot + 1) * rows_ahead);
    }
    const bool more_outside = args.outside && args.outside[q] > -FLT_MAX;
    if (status == Status::ok && more_outside && args.lengths[q] < wanted) return Status::pool_too_small;
    return status == Status::ok && !all_finite ? Status::not_finite : status;
  }

  // 6. VRSD's sum.
  void start_sum() {
    double squares = 0;
    for (std::int64_t p = 0; p < picked; ++p) {
      sum.lengths += ws.picked_length[p];
      squares += double(ws.picked_length[p]) * ws.picked_length[p];
    }
    sum = exact_sum(sum, -1);
    sum.terms = sum.norm2 + squares;
    given_query = sum.query;
  }

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
    Sum after;
    after.lengths = before.lengths + (j >= 0 ? __builtin_sqrtf(ws.norm2[j]) : 0);
    after.along = query2 > 0 ? product / __builtin_sqrt(query2) : 0;
    after.query = args.relevance && j >= 0 ? before.query + ws.value[j] : after.along;
    const double zero = kZeroSum * after.lengths;
    after.norm2 = norm2 > zero * zero ? norm2 : 0;
    after.terms = terms_with(before, j);
    return after;
  }

  double terms_with(const Sum& before, std::int64_t j) const {
    return j < 0 ? before.terms : before.terms + 2.0 * __builtin_fabsf(ws.running[j]) + ws.norm2[j];
  }

  // A row's length, in double.
  double exact_length(std::int64_t r) const {
    double norm2 = 0;
    for (std::int64_t d = 0; d < args.dims; ++d) norm2 += double(widen(row(r)[d])) * widen(row(r)[d]);
    return __builtin_sqrt(norm2) * exact_scale(r);
  }

  // The cosine that is reported for s + item j, the pick of this slot: from the rows and the relevance given, in
  // double. Choosing goes by the float32 products all the same, which the bounds are made for.
  float exact_cosine(const Sum& before, std::int64_t j, std::int64_t slot) {
    Sum exact = exact_sum(before, j);
    if (args.relevance) {
      const std::int64_t initial = picked - slot;
      for (; given_picks < slot; ++given_picks)
        given_query +=
            args.out_relevance[q * args.k + given_picks] * exact_length(ws.picked_row[initial + given_picks]);
      exact.query = given_query + ws.relevance[j] * exact_length(ws.row[j]);
    }
    return cosine(exact);
  }

  Sum plus(const Sum& before, std::int64_t j) {
    const double norm2 = before.norm2 + (2.0 * ws.running[j] + ws.norm2[j]);
    const double cancelled = kCancellation * (before.norm2 + ws.norm2[j]);
    const double tiny = 100 * kZeroSum * before.lengths;
    if (norm2 <= cancelled || norm2 <= tiny * tiny) return exact_sum(before, j);
    const double length = __builtin_sqrtf(ws.norm2[j]);
    return {before.query + ws.value[j], before.along + ws.pivot[j] * length, norm2, before.lengths + length,
            terms_with(before, j)};
  }

  static float cosine(const Sum& sum) { return sum.norm2 > 0 ? float(sum.query / __builtin_sqrt(sum.norm2)) : 0.0f; }
};

template <class T>
static void encode_typed(const EncodeArgs& args, std::int64_t row) {
  const std::int64_t stride = code_stride(args.dims);
  encode(static_cast<const T*>(args.rows) + row * args.row_stride, args.dims, args.scales ? args.scales[row] : 1.0f,
         args.out + row * stride, stride);
}

static void encode_row(const EncodeArgs& args, std::int64_t row) {
  switch (args.dtype) {
    case DType::f32:
      return encode_typed<float>(args, row);
    case DType::f16:
      return encode_typed<f16>(args, row);
    case DType::bf16:
      return encode_typed<bf16>(args, row);
    case DType::i8:
      return encode_typed<i8>(args, row);
  }
}

template <class T, Method kMethod>
static void select_typed(const SelectArgs& args, std::int64_t q, Workspace& ws) {
  for (std::int64_t out = q * args.k; out < (q + 1) * args.k; ++out) {
    args.indices[out] = -1;
    args.scores[out] = -__builtin_inff();
    args.out_relevance[out] = args.redundancy[out] = __builtin_nanf("");
  }
  args.lengths[q] = 0;
  prepare_tail_mask(args.dims, ws.tail_mask);
  Query<T, kMethod> query{args, ws, q};
  Status status = query.collect();
  if (status == Status::ok) status = query.read_pool();
  if (status == Status::ok) status = query.run();
  args.status[q] = std::uint8_t(status);
}

template <class T>
static void relevance_typed(const RelevanceArgs& args, std::int64_t q, Workspace& ws) {
  const SelectArgs& pool = args.pool;
  for (std::int64_t i = 0; i < pool.pool; ++i) args.out[q * pool.pool + i] = -__builtin_inff();
  prepare_tail_mask(pool.dims, ws.tail_mask);
  Query<T, Method::mmr> query{pool, ws, q};
  Status status = query.collect();
  if (status == Status::ok) status = query.read_pool();
  if (status == Status::ok)
    for (std::int64_t j = 0; j < query.items; ++j) args.out[q * pool.pool + ws.position[j]] = ws.value[j];
  pool.status[q] = std::uint8_t(status);
}

template <Method kMethod>
static void select_query(const SelectArgs& args, std::int64_t q, Workspace& ws) {
  switch (args.dtype) {
    case DType::f32:
      return select_typed<float, kMethod>(args, q, ws);
    case DType::f16:
      return select_typed<f16, kMethod>(args, q, ws);
    case DType::bf16:
      return select_typed<bf16, kMethod>(args, q, ws);
    case DType::i8:
      return select_typed<i8, kMethod>(args, q, ws);
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
    case DType::i8:
      return relevance_typed<i8>(args, q, ws);
  }
}
