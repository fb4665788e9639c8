// VRSD: the cosine of the query with the sum of the picks.

// |s + e|^2 is recomputed in double where it is below 1/32 of |s|^2 + |e|^2: there the float32 terms cancel.
constexpr float kCancellation = 1.0f / 32;
// A sum shorter than this share of its terms' lengths is zero to the precision of float32 data.
constexpr double kZeroSum = 1e-6;
// The cosine of a sum is reported in double where |s|^2 is below 1/8 of the terms that it was made of.
constexpr double kDoubtful = 1.0 / 8;

// w = <s + e, query> / |s + e| of the sum s of the initial items and the picks, and of the unit query. What an item
// adds to the numerator, its value g, is its relevance times its length. The first pick goes by relevance.
struct Vrsd : Summed {
  static constexpr bool kNeedsLength = true;  // of rows
  // Without codes the bounds leave out next to nothing on real embeddings: ragsys_kernels/selection/README.md.
  static constexpr bool kTriangle = true, kTrianglePays = false;

  struct Sum {
    double query = 0;    // <s, unit query>, by the given relevance if there is one
    double along = 0;    // <s, unit query>, by the rows
    double norm2 = 0;    // |s|^2
    double lengths = 0;  // lengths of its terms, added
    double terms = 0;    // sizes of what was added to norm2: their rounding stays in it
  };
  Sum sum = {};
  std::int64_t summed = 0;       // initial items and picks that are in ws.sum
  double given_query = 0;        // <s, unit query> by the relevance given, in double: of the initial items
  std::int64_t given_picks = 0;  // and of so many picks

  static const float* first_values(const Workspace& ws) { return ws.relevance; }

  // The product with the query of an item whose row was read, and what was given in its place, or null.
  template <class Query>
  static void relevance(Query& query, std::int64_t j, float product, const float* given) {
    Workspace& ws = query.ws;
    const float length = __builtin_sqrtf(ws.norm2[j]);
    ws.pivot[j] = length > 0.0f ? product / length : product;
    const float relevance = given ? *given : ws.pivot[j];
    query.relevance_known(j, relevance);
    ws.value[j] = given ? relevance * length : product;
  }

  // The sum of the initial items.
  template <class Query>
  void start(Query& query) {
    double squares = 0;
    for (std::int64_t p = 0; p < query.picked; ++p) {
      const double length = query.ws.picked_length[p];
      sum.lengths += length;
      squares += length * length;
    }
    sum = exact_sum(query, sum, -1);
    sum.terms = sum.norm2 + squares;
    given_query = sum.query;
  }

  template <class Query>
  float value_of(Query& query, std::int64_t j) {
    return cosine(plus(query, sum, j));
  }

  static float cosine(const Sum& sum) { return sum.norm2 > 0 ? float(sum.query / __builtin_sqrt(sum.norm2)) : 0.0f; }

  // Its value if its product with the sum were this and nothing cancels.
  template <class Query>
  float value_at(const Query& query, std::int64_t j, float running) const {
    Sum after = {};
    after.query = sum.query + query.ws.value[j];
    after.norm2 = sum.norm2 + (2.0 * running + query.ws.norm2[j]);
    return cosine(after);
  }

  // Up to what product with the sum an item, with which the squared lengths add up to `total`, may cancel so much that
  // its value is computed in another way.
  struct Cancelling {
    float share, tiny, rounding;

    template <class T>
    T of(T total) const {
      const T some = total * share, most = tiny - total * 0.5f;
      return (some > most ? some : most) + rounding;
    }
  };

  Cancelling cancelling(double error) const {
    const double tiny = 101 * kZeroSum * (sum.lengths + 1);
    const double rounding = error + 8 * FLT_EPSILON * (sum.norm2 + 2);
    return {-0.5f * (1 - 1.01f * kCancellation), float(0.5 * tiny * tiny), float(rounding)};
  }

  bool may_cancel_at(const Workspace& ws, std::int64_t j, float product) const {
    return product <= cancelling(0).of(float(sum.norm2) + ws.norm2[j]);
  }

  // What an item has to be worth for its value to be `bar` or more, by a product with the sum that it has or exceeds:
  // solved for that, (Q + g)^2 >= bar^2 (|s|^2 + 2 t + |e|^2).
  struct Test {
    vf linear, square, sum;
    Cancelling cancelling;
    float least;

    vf most(const Workspace& ws, std::int64_t j, vf low) const {
      const vf g = load(ws.value + j), norm2 = load(ws.norm2 + j);
      const vf worth = (linear + square * g) * g - splat(0.5f) * norm2 - low;
      return low <= cancelling.of(sum + norm2) ? splat(FLT_MAX) : worth;
    }
  };

  // For products that are off by at most `error`.
  template <class Query>
  Test test(const Query& query, float bar, double error) const {
    float below;  // the float before, so that what is rounded to the bar is at least halfway to it
    std::int32_t bits;
    std::memcpy(&bits, &bar, sizeof bits);
    --bits;
    std::memcpy(&below, &bits, sizeof below);
    const double rounded = 0.5 * (double(bar) + below) * (1 - 1e-12), over = 0.5 / (rounded * rounded);
    const double linear = 2 * over * sum.query, constant = over * sum.query * sum.query - 0.5 * sum.norm2;
    const double g = query.coarse_sum.value;
    const double sizes =
        (__builtin_fabs(linear) + over * g) * g + __builtin_fabs(constant) + query.coarse_sum.length + 1;
    const double least = -constant - error - 16 * FLT_EPSILON * sizes;
    const bool known = bar > 0 && sizes < 1e30;
    const Cancelling cancelled = cancelling(error);
    if (!known) return {vf{}, vf{}, splat(float(sum.norm2)), cancelled, -FLT_MAX};
    return {splat(float(linear)), splat(float(over)), splat(float(sum.norm2)), cancelled, float(least)};
  }

  // s + item j.
  template <class Query>
  Sum plus(Query& query, const Sum& before, std::int64_t j) {
    const Workspace& ws = query.ws;
    const double norm2 = before.norm2 + (2.0 * ws.running[j] + ws.norm2[j]);
    const double cancelled = kCancellation * (before.norm2 + ws.norm2[j]);
    const double tiny = 100 * kZeroSum * before.lengths;
    if (norm2 <= cancelled || norm2 <= tiny * tiny) return exact_sum(query, before, j);
    const double length = __builtin_sqrtf(ws.norm2[j]);
    return {before.query + ws.value[j], before.along + ws.pivot[j] * length, norm2, before.lengths + length,
            terms_with(ws, before, j)};
  }

  static double terms_with(const Workspace& ws, const Sum& before, std::int64_t j) {
    return j < 0 ? before.terms : before.terms + 2.0 * __builtin_fabsf(ws.running[j]) + ws.norm2[j];
  }

  // s, or s + item j where j >= 0, from the rows themselves in double.
  template <class Query>
  Sum exact_sum(Query& query, const Sum& before, std::int64_t j) {
    Workspace& ws = query.ws;
    const std::int64_t dims = query.args.dims;
    if (summed == 0)
      for (std::int64_t d = 0; d < dims; ++d) ws.sum[d] = 0;
    for (; summed < query.picked; ++summed) {
      const double scale = query.exact_scale(ws.picked_row[summed]);
      const float* const row = query.widened(ws.picked_row[summed]);
      for (std::int64_t d = 0; d < dims; ++d) ws.sum[d] += row[d] * scale;
    }
    const double scale = j >= 0 ? query.exact_scale(ws.row[j]) : 0;
    const float* const row = j >= 0 ? query.widened(ws.row[j]) : nullptr;
    double product = 0, query2 = 0, norm2 = 0;
    for (std::int64_t d = 0; d < dims; ++d) {
      const double s = ws.sum[d] + (row ? row[d] * scale : 0);
      norm2 += s * s;
      const double asked = query.asked(d);
      product += s * asked;
      query2 += asked * asked;
    }
    Sum after;
    after.lengths = before.lengths + (j >= 0 ? __builtin_sqrtf(ws.norm2[j]) : 0);
    after.along = query2 > 0 ? product / __builtin_sqrt(query2) : 0;
    after.query = query.args.relevance && j >= 0 ? before.query + ws.value[j] : after.along;
    const double zero = kZeroSum * after.lengths;
    after.norm2 = norm2 > zero * zero ? norm2 : 0;
    after.terms = terms_with(ws, before, j);
    return after;
  }

  // The cosine that is reported for s + item j, the pick of this slot: from the rows and the relevance given, in
  // double. Choosing goes by the float32 products all the same, which the bounds are made for.
  template <class Query>
  float exact_cosine(Query& query, const Sum& before, std::int64_t j, std::int64_t slot) {
    const SelectArgs& args = query.args;
    const Workspace& ws = query.ws;
    Sum exact = exact_sum(query, before, j);
    if (args.relevance) {
      const std::int64_t initial = query.picked - slot;
      const float* const relevance = args.out_relevance + query.q * args.k;
      for (; given_picks < slot; ++given_picks)
        given_query += relevance[given_picks] * query.exact_length(ws.picked_row[initial + given_picks]);
      exact.query = given_query + ws.relevance[j] * query.exact_length(ws.row[j]);
    }
    return cosine(exact);
  }

  template <class Query>
  void take(Query& query, std::int64_t j, std::int64_t slot, float value) {
    const Sum before = sum;
    sum = plus(query, before, j);
    if (sum.norm2 < kDoubtful * sum.terms) value = exact_cosine(query, before, j, slot);
    query.take(j, slot, value, query.ws.relevance[j], query.redundancy(j));
  }

  // Within what t = <s, e> can lie by the triangle inequality: the sum has one component along the query and one
  // across.
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

  template <class Query>
  Reach reach(const Query& query) const {
    const double across2 = sum.norm2 - sum.along * sum.along;
    const float error = 8.0f * query.slack * float(1.0 + sum.lengths);
    const float across = __builtin_sqrtf(float(across2 > 0 ? across2 : 0) + error * float(sum.lengths));
    const float newest = query.ws.picked_pivot[query.picked - 1];
    return {splat(float(sum.along)), splat(across), splat(newest), splat(query.sine(newest)), splat(error)};
  }

  // Rounding of the quotient, whose denominator is known to within 3/32 of its square: this over the denominator.
  vf margin(vf value) const {
    return splat(128.0f * FLT_EPSILON) * (splat(__builtin_fabsf(float(sum.query))) + larger(value, -value));
  }

  // Where the sum may cancel, the value is computed in another way; the factors keep this side of the border.
  vi may_cancel(vf shortest, vf total) const {
    const float tiny = 200.0f * float(kZeroSum * (sum.lengths + 1.0));
    return (shortest <= splat(1.01f * kCancellation) * total) | (shortest <= splat(tiny * tiny));
  }

  template <class Query>
  void bound(Query& query, std::int64_t begin, std::int64_t end) const {
    const Workspace& ws = query.ws;
    const Reach within = query.triangle ? reach(query) : Reach{};
    const vf norm2 = splat(float(sum.norm2)), along = splat(float(sum.query));
    for (std::int64_t j = begin; j < end; j += W) {
      const vf value = load(ws.value + j), product = along + value, total = norm2 + load(ws.norm2 + j);
      vf least = load(ws.running + j), most = least;
      if (query.triangle) within.range(ws, j, query.picked, &least, &most);
      // A positive cosine is largest with the shortest sum, a negative one with the longest.
      const vf shortest = total + splat(2.0f) * least;
      const vf length = square_root(product >= vf{} ? shortest : total + splat(2.0f) * most);
      vf bound = product / length + margin(value) / length;
      bound = may_cancel(shortest, total) ? splat(FLT_MAX) : bound;
      store(ws.bound + j, smaller(bound, load(ws.gate + j)));
    }
  }

  // From within what g lies to within what w lies, of a vector of items that have met the picks by codes.
  template <class Query>
  void range(const Query& query, std::int64_t j, vf* least, vf* most) const {
    const Workspace& ws = query.ws;
    const vi unread = load(ws.met + j) < 0;
    const vf total = splat(float(sum.norm2)) + (unread ? splat(1.0f) : load(ws.norm2 + j));
    const vf rounding = splat(16.0f * query.slack * float(1.0 + sum.lengths)), along = splat(float(sum.query));
    vf low_product, high_product;
    coded_range(ws, j, splat(__builtin_sqrtf(float(sum.norm2))), &low_product, &high_product);
    const vf shortest = total + splat(2.0f) * low_product - rounding;
    const vf longest = total + splat(2.0f) * high_product + rounding;
    const vf over_shortest = splat(1.0f) / square_root(shortest), over_longest = splat(1.0f) / square_root(longest);
    const vf low = along + *least, high = along + *most, error = margin(*most) * over_shortest;
    *most = high * (high >= vf{} ? over_shortest : over_longest) + error;
    *least = low * (low >= vf{} ? over_longest : over_shortest) - error;
    // A zero row is no unit vector.
    const vi open = may_cancel(shortest, total) | ((load(ws.code_scale + j) == vf{}) & unread);
    *most = open ? splat(FLT_MAX) : *most;
    *least = open ? splat(-FLT_MAX) : *least;
  }
};
