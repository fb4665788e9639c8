// Coverage: facility location, COVER and xQuAD. An item's value is lambda_d v + (1 - lambda_d) times what it adds to
// the cover of the aspects, which are the items of the pool or vectors given; S_ia = max(0, <x_i, aspect_a>).
//
//   facility   sum of w_a max(0, S_ia - m_a), m_a the largest S to a pick
//   cover      sum of (A_a + S_ia)^gamma - A_a^gamma, A_a the sum of S to the picks
//   xquad      sum of w_a S_ia rho_a, rho_a the product of 1 - S to the picks, S at most 1
//
// All S are computed first, or in blocks where there are more than are kept: coverage_blocks.inl. What an item adds
// only falls from pick to pick, in floats too but for powers other than the root, so that an old gain, times what all
// gains shrink by at least, is an upper bound: an item's is renewed only while its bound is the largest.
//
// With a graph the aspects are the items too, but S is 0 for pairs that the graph lacks. What is known of an aspect is
// then kept by its row, and an item meets no aspects but those that it covers.

// Aspects whose vectors stay in the second-level cache while rows go by.
constexpr std::int64_t kAspectBlock = 96;

// In blocks: items that go by such aspects together, and items whose gains are renewed together at first.
constexpr std::int64_t kShareItems = 64, kLeastBatch = 8;

// More than what rounding adds to a gain, as a factor.
constexpr float kRounded = 1.0f + 1e-5f;

// What an item costs at least where values are divided by costs: a share of a finite budget, and not nothing. Without
// the share, the rounding of a gain that is 0 would make an item of cost 0 better than every item that costs something.
constexpr double kLeastShare = 1e-4, kLeastCost = 1e-30;

// x^power of x >= 0, power in (0, 1]; 0 of 0. The error is below 1e-6 of the result.
static inline vf power_of(vf x, float power) {
  // The exponent, and the logarithm of a mantissa in [sqrt(1/2), sqrt(2)) by its artanh series.
  const vi bits = (vi)x - 0x3f3504f3, exponent = bits >> 23;
  const vf mantissa = (vf)((bits & 0x007fffff) + 0x3f3504f3);
  const vf ratio = (mantissa - splat(1.0f)) / (mantissa + splat(1.0f)), square = ratio * ratio;
  vf p = splat(0.3205989f);  // 2 / 9 of log2(e), and so on
  p = fma(p, square, splat(0.41219858f));
  p = fma(p, square, splat(0.57707802f));
  p = fma(p, square, splat(0.96179669f));
  p = fma(p, square, splat(2.88539008f));
  // The whole part of the exponent apart from the rest, which would lose it bits.
  const vf whole = __builtin_convertvector(exponent, vf) * splat(power), rest = p * ratio * splat(power);
  return x > splat(FLT_MIN) ? exp2_of(whole + rest) : vf{};
}

struct Coverage {
  static constexpr bool kFalls = true, kNearest = false, kCodes = false, kTriangle = false, kTrianglePays = false;
  static constexpr bool kDirections = false, kAspects = true;
  static constexpr bool kNeedsLength = true, kNeedsProduct = false;
  static float none(bool, float) { return 0.0f; }
  static float with(float running, float) { return running; }
  static const float* first_values(const Workspace& ws) { return ws.value; }
  static bool unfit(const Workspace&, std::int64_t) { return false; }
  static bool ends(float) { return false; }
  template <class Query>
  static bool lags(const Query&) {
    return true;
  }

  Method rule = Method::facility;
  float gamma = 0.5f;
  bool rooted = true;    // gamma is 1/2
  bool falls = true;     // in floats
  Graph graph = {};      // without one `begin` is null
  bool blocked = false;  // S is not kept
  std::int64_t aspects = 0, stride = 0;
  float largest = 0.0f;  // of all S
  float shrunk = 1.0f;   // by what the gains known have shrunk since they were last looked through, at least
  // With `density`, the best item by itself, which may be worth more than all picks; it would leave minima unmet.
  std::int64_t single = -1;
  float single_value = 0.0f, single_redundancy = 0.0f;

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
    gamma = options.gamma;
    rooted = gamma == 0.5f;
    falls = rule != Method::cover || rooted;
    graph = options.graph;
    aspects = options.aspects ? options.num_aspects : graph.begin ? query.args.num_rows : query.items;
    stride = query.padded(aspects);
    const float start = rule == Method::xquad ? 1.0f : 0.0f;
    for (std::int64_t a = 0; a < stride; a += W) {
      store(ws.covered + a, splat(start));
      store(ws.root + a, vf{});
    }
    for (std::int64_t j = 0; j < query.items; ++j) ws.renewed[j] = -1;
    const float equal = rule == Method::cover ? 1.0f : 1.0f / float(graph.begin ? query.items : aspects);
    for (std::int64_t a = 0; a < stride; ++a) {
      const bool given = options.weights && a < aspects;
      ws.aspect_weight[a] = given ? options.weights[query.q * aspects + a] : a < aspects && !graph.begin ? equal : 0.0f;
    }
    if (graph.begin) {
      for (std::int64_t j = 0; j < query.items; ++j) ws.aspect_weight[ws.row[j]] = equal;
      return;
    }
    options.aspects ? find_given_aspects(query) : find_own_aspects(query);
    blocked = in_blocks(query.args);
    blocked ? prepare_in_blocks(query) : multiply(query, !options.aspects);
  }

  // The items themselves; prepared vectors of their rows, and their scales.
  template <class Query>
  void find_own_aspects(Query& query) const {
    Workspace& ws = query.ws;
    const std::int64_t dims = query.args.dims;
    for (std::int64_t a = 0; a < aspects; ++a) {
      ws.aspects[a] = query.prepared(query.row(ws.row[a]), ws.prepared_aspects + a * prepared_floats(dims));
      ws.aspect_scale[a] = ws.scale[a];
    }
    for (std::int64_t a = aspects; a < aspects + kAspectTile; ++a) ws.aspects[a] = aspects ? ws.aspects[0] : nullptr;
  }

  template <class Query>
  void find_given_aspects(Query& query) const {
    Workspace& ws = query.ws;
    const std::int64_t dims = query.args.dims;
    for (std::int64_t a = 0; a < aspects; ++a) {
      const float* vector = query.args.options.aspects + (query.q * aspects + a) * dims;
      float* const out = ws.prepared_aspects + a * prepared_floats(dims);
      float scale;
      const Status status = scaled_query(&vector, dims, query.args.unit_rows, ws.tail_mask, ws.unit, &scale);
      query.all_finite = query.all_finite && status == Status::ok;
      make_prepared(vector, dims, out);
      ws.aspects[a] = out;
      ws.aspect_scale[a] = scale;
    }
    for (std::int64_t a = aspects; a < aspects + kAspectTile; ++a) ws.aspects[a] = ws.aspects[0];
  }

  // Of an item; in blocks there is but one row, for scratch.
  float* similarities(const Workspace& ws, std::int64_t j) const { return ws.similarity + j * stride; }

  // coverage_blocks.inl
  template <class Query>
  struct Share;
  template <class Query>
  static void find_share(void* share, std::int64_t part, int thread);
  template <class Query>
  void find_gains(const Query& query, const std::int32_t* js, std::int64_t n, float* largest_found) const;
  template <class Query>
  void renew_batch(Query& query, std::int64_t n);
  template <class Query>
  void renew_best(Query& query, std::int64_t most);
  template <class Query>
  void prepare_in_blocks(Query& query);
  template <class Query>
  const float* row_in_blocks(Query& query, std::int64_t j) const;

  // From products to similarities, which count from 0 and for xquad up to 1.
  v4 counted(v4 similarity) const {
    const v4 zero = {}, one = zero + 1.0f, positive = similarity > zero ? similarity : zero;
    const v4 capped = positive < one ? positive : one;
    return rule == Method::xquad ? capped : positive;
  }

  // S of kAspectRows items and the aspects [begin, end), an aspect after the other; the largest of them, and 0 if all
  // products are finite.
  template <class Query>
  void find_similarities(const Query& query, const std::int32_t* js, std::int64_t begin, std::int64_t end, float* out,
                         v4* most, v4* rest) const {
    const Workspace& ws = query.ws;
    const void* rows[kAspectRows];
    v4 scale = {};
    for (int r = 0; r < kAspectRows; ++r) {
      rows[r] = query.row(ws.row[js[r]]);
      scale[r] = ws.scale[js[r]];
    }
    query.type.of_aspects(ws.aspects, begin, end, rows, query.args.dims, out);
    for (std::int64_t a = begin; a < end; ++a, out += kAspectRows) {
      v4 similarity;
      std::memcpy(&similarity, out, sizeof similarity);
      // The larger scale first, so that two items have the same bits whichever of them is the aspect.
      const v4 other = v4{} + ws.aspect_scale[a];
      similarity = similarity * (other > scale ? other : scale) * (other > scale ? scale : other);
      *rest += similarity - similarity;  // not 0 where one is not finite
      similarity = counted(similarity);
      *most = similarity > *most ? similarity : *most;
      std::memcpy(out, &similarity, sizeof similarity);
    }
  }

  // The numbers of kAspectRows items from j on, of n; the last one again where there are fewer.
  static void find_four(std::int64_t j, std::int64_t n, std::int32_t* four) {
    for (int r = 0; r < kAspectRows; ++r) four[r] = std::int32_t(j + r < n ? j + r : n - 1);
  }

  // All S. The matrix of a pool with itself is symmetric: a row meets the aspects from itself on.
  template <class Query>
  void multiply(Query& query, bool symmetric) {
    Workspace& ws = query.ws;
    const std::int64_t items = query.items;
    std::int32_t four[kAspectRows];
    float found[kAspectRows * (kAspectBlock + kAspectVectors)];
    v4 rest = {}, most = {};
    for (std::int64_t block = 0; block < aspects; block += kAspectBlock) {
      const std::int64_t end = block + kAspectBlock < aspects ? block + kAspectBlock : aspects;
      for (std::int64_t j = 0; j < items && (!symmetric || j < end); j += kAspectRows) {
        if (j % 64 == 0) interrupt_point();
        const std::int64_t met = symmetric && j > block ? (j - block) / kAspectVectors * kAspectVectors : 0;
        find_four(j, items, four);
        find_similarities(query, four, block + met, end, found, &most, &rest);
        for (std::int64_t a = block + met; a < end; ++a) {
          const float* const similarity = found + (a - block - met) * kAspectRows;
          if (symmetric)
            std::memcpy(similarities(ws, a) + j, similarity, kAspectRows * sizeof *similarity);
          else
            for (int r = 0; r < kAspectRows && j + r < items; ++r) similarities(ws, j + r)[a] = similarity[r];
        }
        ws.products += (end - block - met + kAspectVectors - 1) / kAspectVectors * kAspectVectors * kAspectRows;
      }
    }
    query.all_finite = query.all_finite && hsum4(rest) == 0.0f;
    largest = largest_lane4(most);
    if (symmetric) mirror(ws);
    for (std::int64_t j = 0; j <= items; ++j)
      for (std::int64_t a = aspects; a < stride; ++a) similarities(ws, j)[a] = 0.0f;
  }

  // Item i's similarity to item a > i is a's to i. Tile by tile, as the columns of a large matrix share few cache
  // lines.
  void mirror(Workspace& ws) const {
    constexpr std::int64_t kTileItems = 16;
    for (std::int64_t row = 0; row < aspects; row += kTileItems)
      for (std::int64_t column = 0; column <= row; column += kTileItems)
        for (std::int64_t a = row; a < row + kTileItems && a < aspects; ++a)
          for (std::int64_t i = column; i < column + kTileItems && i < a; ++i)
            similarities(ws, i)[a] = similarities(ws, a)[i];
  }

  // Initial items cover aspects too.
  template <class Query>
  void start(Query& query) {
    Workspace& ws = query.ws;
    for (std::int64_t p = 0; graph.begin && p < query.picked; ++p) cover_near(ws, ws.picked_row[p]);
    if (graph.begin) return;
    float* const row = similarities(ws, blocked ? 0 : query.items);
    for (std::int64_t p = 0; p < query.picked; ++p) {
      const void* data = query.row(ws.picked_row[p]);
      for (std::int64_t a = 0; a < aspects; ++a) {
        float dot;
        query.type.of_vectors[1](ws.aspects + a, &data, query.args.dims, &dot);
        const v4 similarity = v4{} + dot * ws.aspect_scale[a] * ws.picked_scale[p];
        query.all_finite = query.all_finite && finite(similarity[0]);
        row[a] = counted(similarity)[0];
        largest = row[a] > largest ? row[a] : largest;
      }
      query.ws.products += aspects;
      cover(ws, row);
    }
  }

  // By how much gains shrink at least: a bound that is closer than that they fall. Of COVER the share that is left of
  // (A + S)^(1/2) - A^(1/2) grows with S, so that the largest S stands for all.
  static vf reach(vf covered, float largest) { return square_root(covered + splat(largest)) + square_root(covered); }

  // How aspects are covered, as in `covered` of a workspace, after a pick with these similarities to them.
  vf covered_by(vf similarity, vf before) const {
    if (rule == Method::facility) return larger(before, similarity);
    return rule == Method::xquad ? before * (splat(1.0f) - similarity) : before + similarity;
  }

  vf root_of(vf covered) const { return rooted ? square_root(covered) : power_of(covered, gamma); }

  // A pick with these similarities covers the aspects.
  void cover(Workspace& ws, const float* row) {
    vf left = {};
    for (std::int64_t a = 0; a < stride; a += W) {
      const vf similarity = load(row + a), before = load(ws.covered + a), after = covered_by(similarity, before);
      if (rule == Method::xquad) {
        left = larger(left, load(ws.aspect_weight + a) > vf{} ? splat(1.0f) - similarity : vf{});
      } else if (rule == Method::cover) {
        const vf share = reach(before, largest) / larger(reach(after, largest), splat(FLT_MIN));
        left = larger(left, load(ws.aspect_weight + a) > vf{} ? share : vf{});
        store(ws.root + a, root_of(after));
      }
      store(ws.covered + a, after);
    }
    if (rule == Method::facility) return;
    const float share = largest_lane(left) * kRounded;
    shrunk *= share < 1.0f ? share : 1.0f;
  }

  // A pick covers the rows that the graph has for its own. All gains may keep what they are: most rows are not covered.
  void cover_near(Workspace& ws, std::int64_t row) const {
    const std::int64_t end = graph.begin[row + 1];
    for (std::int64_t e = graph.begin[row]; e < end; e += W) {
      const std::int64_t count = end - e < W ? end - e : W;
      const vf after = covered_by(load_rest(graph.similarity + e, count), gathered(ws.covered, e, count));
      const vf root = rule == Method::cover ? root_of(after) : vf{};
      for (std::int64_t i = 0; i < count; ++i) {
        ws.covered[graph.rows[e + i]] = after[i];
        ws.root[graph.rows[e + i]] = root[i];
      }
    }
  }

  // The values of the rows of some edges; 0 beyond them.
  vf gathered(const float* of_rows, std::int64_t e, std::int64_t count) const {
    vf values = {};
    for (std::int64_t i = 0; i < count; ++i) values[i] = of_rows[graph.rows[e + i]];
    return values;
  }

  float gain_near(const Workspace& ws, std::int64_t row) const {
    const std::int64_t end = graph.begin[row + 1];
    vf sum = {};
    for (std::int64_t e = graph.begin[row]; e < end; e += W) {
      const std::int64_t count = end - e < W ? end - e : W;
      sum += added(load_rest(graph.similarity + e, count), gathered(ws.covered, e, count),
                   gathered(ws.aspect_weight, e, count), gathered(ws.root, e, count));
    }
    return hsum(sum);
  }

  // What an item with these similarities adds, a vector of aspects at a time.
  vf added(const Workspace& ws, vf similarity, std::int64_t a) const {
    return added(similarity, load(ws.covered + a), load(ws.aspect_weight + a), load(ws.root + a));
  }

  vf added(vf similarity, vf covered, vf weight, vf root) const {
    if (rule == Method::facility) return weight * larger(similarity - covered, vf{});
    if (rule == Method::xquad) return weight * similarity * covered;
    const vf sum = covered + similarity;
    // sqrt(A + S) - sqrt(A) without the difference, which would cancel.
    if (rooted) return weight * (similarity / larger(square_root(sum) + root, splat(FLT_MIN)));
    return weight * (power_of(sum, gamma) - root);
  }

  float gain(const Workspace& ws, std::int64_t j) const {
    if (graph.begin) return gain_near(ws, ws.row[j]);
    const float* row = similarities(ws, j);
    vf even = {}, odd = {};
    std::int64_t a = 0;
    for (; a + 2 * W <= stride; a += 2 * W) {
      even += added(ws, load(row + a), a);
      odd += added(ws, load(row + a + W), a + W);
    }
    if (a < stride) even += added(ws, load(row + a), a);
    return hsum(even + odd);
  }

  // Of an item whose gain is known, or at most this.
  template <class Query>
  static float value_of(const Query& query, std::int64_t j) {
    return query.lambda_d() * query.ws.value[j] + (1.0f - query.lambda_d()) * query.ws.running[j];
  }

  // What decides between items: the value or, with `density`, what a unit of cost gets of it.
  template <class Query>
  static float rank(const Query& query, std::int64_t j) {
    const float value = value_of(query, j);
    if (!query.args.options.density) return value;
    const double budget = query.args.limits.budget[query.q];
    const double share = budget > DBL_MAX ? 0 : kLeastShare * budget;
    const double least = share > kLeastCost ? share : kLeastCost, cost = query.cost(j);
    return float(double(value) / (cost > least ? cost : least));
  }

  template <class Query>
  void renew(Query& query, std::int64_t j) const {
    query.ws.running[j] = gain(query.ws, j);
    renewed(query, j);
  }

  // An item's gain is that after all picks.
  template <class Query>
  static void renewed(Query& query, std::int64_t j) {
    Workspace& ws = query.ws;
    ws.bound[j] = rank(query, j);
    query.all_finite = query.all_finite && finite(value_of(query, j));
    ws.renewed[j] = std::int32_t(query.picked);
  }

  // The gains of all items that may be picked now or later.
  template <class Query>
  void renew_all(Query& query) {
    const Workspace& ws = query.ws;
    std::int64_t n = 0;
    for (std::int64_t j = 0; j < query.items; ++j) {
      if (!(ws.gate[j] >= kHeldBack)) continue;
      if (blocked)
        ws.batch[n++] = std::int32_t(j);
      else
        renew(query, j);
    }
    if (n) renew_batch(query, n);
    shrunk = 1.0f;
  }

  // Old gains become bounds of what they are now, and bounds of the values with them.
  template <class Query>
  void bound_all(Query& query) {
    Workspace& ws = query.ws;
    const vf relevance_weight = splat(query.lambda_d()), gain_weight = splat(1.0f - query.lambda_d());
    for (std::int64_t j = 0; j < query.items; j += W) {
      const vf gains = load(ws.running + j) * splat(shrunk);
      store(ws.running + j, gains);
      store(ws.bound + j, relevance_weight * load(ws.value + j) + gain_weight * gains);
    }
    shrunk = 1.0f;
    for (std::int64_t j = 0; query.args.options.density && j < query.items; ++j) ws.bound[j] = rank(query, j);
  }

  // The largest bound, renewed until it is of an item that knows all picks.
  template <class Query>
  Status choose(Query& query, std::int64_t* best, float* best_score) {
    Workspace& ws = query.ws;
    const bool first = query.args.lengths[query.q] == 0, density = query.args.options.density;
    // In blocks there are gains from before the initial items.
    const bool known = !first || (blocked && (query.picked == 0 || !density));
    known && (falls || query.picked == 0) && query.args.bounds != Bounds::dense ? bound_all(query) : renew_all(query);
    if (first && density && !query.quotas) {
      const Status status = find_single(query);
      if (status != Status::ok) return status;
    }
    for (std::int64_t j = 0; j < query.items; j += W)
      store(ws.bound + j, smaller(load(ws.bound + j), load(ws.gate + j)));
    std::int64_t batch = kLeastBatch;
    while (query.all_finite) {
      const std::int32_t top = arg_max(ws.bound, query.items);
      if (!(ws.bound[top] > -FLT_MAX)) return Status::ok;
      if (ws.renewed[top] != query.picked) {
        blocked ? renew_best(query, batch) : renew(query, top);
        if (batch < query.items) batch *= 2;
        continue;
      }
      if (query.limited) {
        const Status status = query.catch_up(&top, 1);
        if (status != Status::ok) return status;
        if (query.unfit(top)) {
          query.close(top);
          ws.bound[top] = -__builtin_inff();
          continue;
        }
      }
      *best = top;
      *best_score = value_of(query, top);
      return Status::ok;
    }
    return Status::not_finite;
  }

  template <class Query>
  Status find_single(Query& query) {
    if (query.limited) {
      const Status status = query.catch_up_all();
      if (status != Status::ok) return status;
      query.close_similar();
    }
    for (std::int64_t j = 0; j < query.items; ++j) {
      const float value = value_of(query, j);
      if (!query.is_open(j) || (single >= 0 && !(value > single_value))) continue;
      single = j;
      single_value = value;
    }
    if (single >= 0) single_redundancy = query.redundancy(single);
    return Status::ok;
  }

  // The best item by itself takes the place of the picks if their values add up to less.
  template <class Query>
  void finish(Query& query) const {
    const SelectArgs& args = query.args;
    const std::int64_t begin = query.q * args.k, made = args.lengths[query.q];
    double total = 0;
    for (std::int64_t slot = 0; slot < made; ++slot) total += args.scores[begin + slot];
    if (single < 0 || !(single_value > total)) return;
    for (std::int64_t out = begin; out < begin + made; ++out) leave_empty(args, out);
    args.indices[begin] = query.ws.row[single] - query.base();
    args.scores[begin] = single_value;
    args.out_relevance[begin] = query.ws.value[single];
    args.redundancy[begin] = single_redundancy;
    args.lengths[query.q] = 1;
  }

  template <class Query>
  void take(Query& query, std::int64_t j, std::int64_t slot, float value) {
    query.take(j, slot, value, query.ws.value[j], query.redundancy(j));
    if (graph.begin)
      cover_near(query.ws, query.ws.row[j]);
    else
      cover(query.ws, blocked ? row_in_blocks(query, j) : similarities(query.ws, j));
  }

  template <class Query>
  static void bound(Query&, std::int64_t, std::int64_t) {}
};
