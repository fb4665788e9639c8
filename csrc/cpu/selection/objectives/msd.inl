// MSD, the sum of distances to the picks: w = lambda_d v + (1 - lambda_d) sum over picks (1 - s), or with rows as given
// sum (-s). The first pick goes by v.
struct Msd : Summed {
  static constexpr bool kNeedsLength = false;
  static constexpr bool kTriangle = false, kTrianglePays = false;

  double length2 = 0;  // at least the squared length of the sum of the initial items and the picks

  static const float* first_values(const Workspace& ws) { return ws.value; }

  template <class Query>
  static void relevance(Query& query, std::int64_t j, float product, const float* given) {
    query.ws.pivot[j] = product;
    query.relevance_known(j, given ? *given : product);
  }

  template <class Query>
  void start(Query& query) {
    length2 = double(query.picked) * double(query.picked);
  }

  // What the similarities are taken from: of unit vectors, 1 for each pick.
  template <class Query>
  static float most(const Query& query) {
    return query.args.unit_rows ? float(query.picked) : 0.0f;
  }

  template <class Query>
  static float value_of(const Query& query, std::int64_t j) {
    return value_at(query, j, query.ws.running[j]);
  }

  // Its value if its product with the sum were this.
  template <class Query>
  static float value_at(const Query& query, std::int64_t j, float running) {
    return query.lambda_d() * query.ws.value[j] + (1.0f - query.lambda_d()) * (most(query) - running);
  }

  static bool may_cancel_at(const Workspace&, std::int64_t, float) { return false; }

  // What an item has to be worth for its value to be `bar` or more, by a product with the sum that it has or exceeds.
  struct Test {
    vf relevance_weight, distance_weight;
    bool unvalued;
    float least;

    vf most(const Workspace& ws, std::int64_t j, vf low) const {
      return (unvalued ? vf{} : relevance_weight * load(ws.value + j)) - distance_weight * low;
    }
  };

  // For products that are off by at most `error`.
  template <class Query>
  static Test test(const Query& query, float bar, double error) {
    const double relevance_weight = query.lambda_d(), distance_weight = 1.0f - query.lambda_d(), picks = most(query);
    const double sizes = distance_weight * (picks + query.coarse_sum.length + error) + __builtin_fabs(bar);
    const double rounding = 16 * FLT_EPSILON * (relevance_weight * query.coarse_sum.value + sizes);
    const double least = bar - distance_weight * (picks + error) - rounding;
    const bool known = bar > -FLT_MAX && least > -FLT_MAX;
    const float at_least = known ? float(least) : -FLT_MAX;
    return {splat(query.lambda_d()), splat(1.0f - query.lambda_d()), query.coarse_sum.unvalued, at_least};
  }

  template <class Query>
  static void bound(const Query& query, std::int64_t begin, std::int64_t end) {
    const Workspace& ws = query.ws;
    const vf relevance_weight = splat(query.lambda_d()), distance_weight = splat(1.0f - query.lambda_d());
    for (std::int64_t j = begin; j < end; j += W) {
      const vf bound =
          relevance_weight * load(ws.value + j) + distance_weight * (splat(most(query)) - load(ws.running + j));
      store(ws.bound + j, smaller(bound, load(ws.gate + j)));
    }
  }

  // From within what v lies to within what w lies, of a vector of items that have met the picks by codes. The bounds of
  // a sum are off by its rounding.
  template <class Query>
  void range(const Query& query, std::int64_t j, vf* least, vf* most_value) const {
    const vf relevance_weight = splat(query.lambda_d()), distance_weight = splat(1.0f - query.lambda_d());
    const vf rounding = splat(16.0f * query.slack * float(1 + query.picked)), picks = splat(most(query));
    vf low, high;
    coded_range(query.ws, j, splat(__builtin_sqrtf(float(length2))), &low, &high);
    *most_value = relevance_weight * *most_value + distance_weight * (picks - (low - rounding));
    *least = relevance_weight * *least + distance_weight * (picks - (high + rounding));
  }

  template <class Query>
  void take(Query& query, std::int64_t j, std::int64_t slot, float value) {
    const std::int64_t picks = query.picked;
    const float running = query.ws.running[j];
    // |s + e|^2, with the most that |e| and rounding make of it.
    length2 += 1.01 + 2 * running;
    query.take(j, slot, picks == 0 ? query.lambda_d() * value : value, query.ws.value[j],
               picks == 0 ? 0.0f : running / float(picks));
  }
};
