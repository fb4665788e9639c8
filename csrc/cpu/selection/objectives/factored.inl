// DPP, SSD and SIFT: what is left of an item once the picks' directions are taken out of it.
//
// These rules are a Cholesky factor of the matrix of similarities: a pick adds an entry to the row of each item. Such
// an entry is the product of the item with a vector that depends on the picks alone, the pick's direction: what the
// directions before it leave of the pick, divided by a length. Directions are computed in double, so that an entry has
// the rounding of one float32 product however nearly the picks depend on one another; no row is kept.
//
//   n_i = |x_i|^2 - sum over directions g of <x_i, g>^2
//   DPP   w_i = q_i sqrt(n_i), the root of d_i: the square of a quality may leave float32
//   SSD   w_i = lambda_d z_i + (1 - lambda_d) gamma sqrt(n_i), x with a further element of 1, directions of the last
//   picks SIFT  w_i = u_i^2 / (n_i + noise), u_i = r_i - sum of <x_i, g> e with e = u / sqrt(n + noise) of the pick
//
// An item meets picks lazily: n only falls, so that of DPP and SSD an old value is an upper bound. It rises when their
// window slides: the directions in it are made anew, and items, all of which are as they were at first, meet those.
// SIFT's may rise at any pick: items always meet every pick.

// What is left of an item is not told from rounding if it is at most this share of what there was. DPP does not pick
// such an item, and one that counts as picked has no direction.
constexpr float kNothingLeft = 1e-5f;

// Of unit vectors in float32 a squared length is no further from 1. It counts as 1, or ties would go by its rounding.
constexpr float kUnitRounding = 0x1p-19f;

// Factored::prepare hides the function of dot.inl.
static inline void make_prepared(const float* vector, std::int64_t dims, float* out) {
  prepare(vector, dims, 1.0f, out);
}

struct Factored {
  static constexpr bool kFalls = true, kNearest = false, kCodes = false, kTriangle = false, kTrianglePays = false;
  static constexpr bool kDirections = true, kAspects = false;
  static constexpr bool kNeedsLength = true, kNeedsProduct = false;
  static float none(bool, float) { return 0.0f; }
  static float with(float running, float) { return running; }
  static const float* first_values(const Workspace& ws) { return ws.value; }

  Method rule = Method::dpp;
  bool sift = false, ssd = false, may_lag = false;
  std::int64_t window = 0;  // so many of the last picks have a say
  float left_weight = 0.0f, noise = 0.0f, min_gain = 0.0f;
  double variance = 1.0;  // SIFT: what is left at the query

  template <class Query>
  static void relevance(Query& query, std::int64_t j, float product, const float* given) {
    query.ws.pivot[j] = product;
    query.relevance_known(j, given ? *given : product);
  }

  template <class Query>
  void prepare(Query& query) {
    const Options& options = query.args.options;
    Workspace& ws = query.ws;
    rule = query.args.method;
    ssd = rule == Method::ssd;
    sift = rule == Method::sift;
    noise = options.noise;
    min_gain = options.min_gain;
    left_weight = (1.0f - query.lambda_d()) * options.gamma;
    window = options.window ? options.window : query.args.limits.num_initial + query.args.k;
    may_lag = !sift && query.args.bounds != Bounds::dense;
    query.limited = query.limited || rule == Method::dpp;
    for (std::int64_t j = 0; rule == Method::dpp && query.args.unit_rows && j < query.items; ++j)
      if (__builtin_fabsf(ws.norm2[j] - 1.0f) <= kUnitRounding) ws.norm2[j] = 1.0f;
    begin(query, 0);
    for (std::int64_t j = 0; sift && j < query.items; j += W) store(ws.aimed + j, load(ws.relevance + j));
    if (rule == Method::dpp && options.quality) return take_quality(query);
    if (!sift) weigh(query, options);
  }

  // Items have met the directions before `first`, which do not count, and no others.
  template <class Query>
  void begin(Query& query, std::int64_t first) const {
    Workspace& ws = query.ws;
    for (std::int64_t j = 0; j < query.items; j += W)
      store(ws.running + j, load(ws.norm2 + j) + splat(ssd ? 1.0f : 0.0f));
    for (std::int64_t j = 0; first > 0 && j < query.items; ++j) ws.met[j] = std::int32_t(first);
  }

  template <class Query>
  void take_quality(Query& query) const {
    const Options& options = query.args.options;
    Workspace& ws = query.ws;
    for (std::int64_t j = 0; j < query.items; ++j)
      ws.weight[j] = options.quality[options.quality_per_item ? query.q * query.args.pool + ws.position[j] : ws.row[j]];
    check_weights(query);
  }

  // Pads the weights. They must be finite, and so must d of DPP be, which is largest before the first pick.
  template <class Query>
  void check_weights(Query& query) const {
    Workspace& ws = query.ws;
    for (std::int64_t j = query.items; j < query.padded(query.items); ++j) ws.weight[j] = 0.0f;
    for (std::int64_t j = 0; j < query.items; ++j) {
      const float weight = ws.weight[j], root = ssd ? weight : weight * __builtin_sqrtf(ws.norm2[j]);
      query.all_finite = query.all_finite && finite(ssd ? root : root * root);
    }
  }

  // The weights that come from z-scores of the values, which depend on no scale of these: to the deviation comes the
  // rounding of the largest, so that rounding alone makes no great differences. Items of one value have z-scores of 0.
  template <class Query>
  void weigh(Query& query, const Options& options) const {
    Workspace& ws = query.ws;
    const std::int64_t items = query.items;
    double sum = 0, squares = 0, largest = 0;
    for (std::int64_t j = 0; j < items; ++j) {
      const double size = __builtin_fabsf(ws.value[j]);
      sum += ws.value[j];
      largest = size > largest ? size : largest;
    }
    const double mean = items ? sum / double(items) : 0;
    for (std::int64_t j = 0; j < items; ++j) squares += (ws.value[j] - mean) * (ws.value[j] - mean);
    const double deviation = (items ? __builtin_sqrt(squares / double(items)) : 0) + FLT_EPSILON * largest;
    const double factor = deviation > 0 ? query.lambda_d() * (ssd ? 1.0 : options.scale * kLog2eExact) / deviation : 0;
    for (std::int64_t j = 0; j < items; j += kDoubles)
      store_narrowed(ws.weight + j, (load_widened(ws.value + j) - mean) * factor);
    for (std::int64_t j = items; j < query.padded(items); ++j) ws.weight[j] = 0.0f;  // 0 may be far from the values
    if (!ssd)
      for (std::int64_t j = 0; j < items; j += W) store(ws.weight + j, exp2_of(load(ws.weight + j)));
    check_weights(query);
  }
  static constexpr double kLog2eExact = 1.4426950408889634;

  template <class Query>
  void start(Query&) {}

  template <class Query>
  bool lags(const Query&) const {
    return may_lag;
  }

  bool unfit(const Workspace& ws, std::int64_t j) const {
    return rule == Method::dpp && !(ws.running[j] > kNothingLeft * ws.norm2[j]);
  }
  bool ends(float value) const { return sift && value < min_gain; }

  // Item j meets the direction of pick p, with which its product is this but for SSD's constant.
  void meet(Workspace& ws, std::int64_t j, std::int64_t p, float product) const {
    if (ssd) product += ws.constant[p];
    ws.running[j] -= product * product;
    if (sift) ws.aimed[j] -= product * float(ws.reach[p]);
  }

  static vf at_least_0(vf x) { return larger(x, vf{}); }

  vf values(const Workspace& ws, std::int64_t j) const {
    const vf left = at_least_0(load(ws.running + j));
    if (rule == Method::dpp) return load(ws.weight + j) * square_root(left);
    if (ssd) return load(ws.weight + j) + splat(left_weight) * square_root(left);
    const vf aimed = load(ws.aimed + j);
    return aimed * aimed / larger(left + splat(noise), splat(FLT_MIN));
  }

  // By the operations of `values`.
  float value(const Workspace& ws, std::int64_t j) const {
    const float left = ws.running[j] > 0.0f ? ws.running[j] : 0.0f;
    if (rule == Method::dpp) return ws.weight[j] * __builtin_sqrtf(left);
    if (ssd) return ws.weight[j] + left_weight * __builtin_sqrtf(left);
    const float over = left + noise;
    return ws.aimed[j] * ws.aimed[j] / (over > FLT_MIN ? over : FLT_MIN);
  }

  // SSD's first pick goes by v.
  template <class Query>
  float value_of(const Query& query, std::int64_t j) const {
    return ssd && query.picked == 0 ? query.ws.value[j] : value(query.ws, j);
  }

  template <class Query>
  void bound(const Query& query, std::int64_t begin, std::int64_t end) const {
    const Workspace& ws = query.ws;
    const bool by_relevance = ssd && query.picked == 0;
    for (std::int64_t j = begin; j < end; j += W) {
      const vf bound = by_relevance ? load(ws.value + j) : values(ws, j);
      store(ws.bound + j, smaller(bound, load(ws.gate + j)));
    }
  }

  // The direction of pick number p, of row r; `relevance` is the pick's. When a pick leaves the window, the directions
  // of all that stay.
  template <class Query>
  Status add(Query& query, std::int64_t p, std::int64_t r, double relevance) const {
    if (p < window) {
      make_direction(query, p, r, relevance, 0);
      return Status::ok;
    }
    // The largest similarity is that to all picks: items must have met those before them.
    const Status status = query.args.limits.max_similarity ? query.catch_up_all() : Status::ok;
    const std::int64_t first = p + 1 - window;
    for (std::int64_t s = first; s <= p; ++s) make_direction(query, s, s < p ? query.ws.picked_row[s] : r, 0, first);
    begin(query, first);
    return status;
  }

  // What the directions from `first` on leave of pick number p.
  template <class Query>
  void make_direction(Query& query, std::int64_t p, std::int64_t r, double relevance, std::int64_t first) const {
    Workspace& ws = query.ws;
    const std::int64_t dims = query.args.dims, size = direction_doubles(dims);
    double* const direction = ws.directions + p * size;
    double* const x = ws.directions + (query.args.limits.num_initial + query.args.k) * size;
    const float* const row = query.widened(r);
    const double scale = query.exact_scale(r);
    for (std::int64_t d = 0; d < dims; ++d) x[d] = double(row[d]) * scale;
    for (std::int64_t d = dims; d < size; ++d) x[d] = 0;
    if (ssd) x[dims] = 1;
    for (std::int64_t d = 0; d < size; d += kDoubles) store(direction + d, load(x + d));
    double aimed = relevance;
    for (std::int64_t s = first; s < p; ++s) {
      const double part = product_of(ws.directions + s * size, x, size);
      take_away(direction, part, ws.directions + s * size, size);
      aimed -= part * ws.reach[s];
    }
    const double length2 = product_of(direction, sift ? x : direction, size) + (sift ? double(noise) : 0.0);
    const bool none = !(length2 > 0) || (!sift && !(length2 > kNothingLeft * product_of(x, x, size)));
    const double over = none ? 0 : 1 / __builtin_sqrt(length2);
    for (std::int64_t d = 0; d < size; d += kDoubles) store(direction + d, load(direction + d) * (over - vd{}));
    ws.reach[p] = sift ? aimed * over : 0;
    ws.constant[p] = float(direction[dims]);
    for (std::int64_t d = 0; d < dims; ++d) ws.unit[d] = float(direction[d]);
    make_prepared(ws.unit, dims, ws.prepared_directions + p * prepared_floats(dims));
  }

  template <class Query>
  void take(Query& query, std::int64_t j, std::int64_t slot, float value_now) {
    const Workspace& ws = query.ws;
    // DPP: d itself, in double, as what it is made of may leave float32.
    const double d = double(ws.weight[j]) * ws.weight[j] * ws.running[j];
    float score = ssd ? value(ws, j) : float(d);
    if (sift) {
      if (slot == 0)
        for (std::int64_t p = 0; p < query.picked; ++p) variance -= ws.reach[p] * ws.reach[p];
      variance -= value_now;
      score = float(variance);
    }
    query.all_finite = query.all_finite && finite(score);
    query.take(j, slot, score, sift ? ws.relevance[j] : ws.value[j], query.redundancy(j));
  }
};
