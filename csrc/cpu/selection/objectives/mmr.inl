// MMR with quality bias: w = lambda_d v - (1 - lambda_d) m, of v = lambda_b r + (1 - lambda_b) b and the largest
// similarity m to a pick. The first pick goes by v.
struct Mmr : Nearest {
  static constexpr bool kNeedsLength = false;  // of rows
  static constexpr bool kTrianglePays = true;

  static const float* first_values(const Workspace& ws) { return ws.value; }

  // The product with the query of an item whose row was read, and what was given in its place, or null.
  template <class Query>
  static void relevance(Query& query, std::int64_t j, float product, const float* given) {
    query.ws.pivot[j] = product;
    query.relevance_known(j, given ? *given : product);
  }

  template <class Query>
  void start(Query&) {}

  template <class Query>
  static float value_of(const Query& query, std::int64_t j) {
    return query.lambda_d() * query.ws.value[j] - (1.0f - query.lambda_d()) * query.ws.running[j];
  }

  template <class Query>
  void bound(Query& query, std::int64_t begin, std::int64_t end) {
    raise(query);
    Workspace& ws = query.ws;
    const vf relevance_weight = splat(query.lambda_d()), redundancy_weight = splat(1.0f - query.lambda_d());
    for (std::int64_t j = begin; j < end; j += W) {
      const vf bound = relevance_weight * load(ws.value + j) - redundancy_weight * load(ws.running + j);
      store(ws.bound + j, smaller(bound, load(ws.gate + j)));
    }
  }

  // From within what v lies to within what w lies, of a vector of items that have met the picks by codes.
  template <class Query>
  static void range(const Query& query, std::int64_t j, vf* least, vf* most) {
    const Workspace& ws = query.ws;
    const vf relevance_weight = splat(query.lambda_d()), redundancy_weight = splat(1.0f - query.lambda_d());
    const vf nearest = larger(load(ws.likely_most + j), load(ws.rival_most + j));
    *most = relevance_weight * *most - redundancy_weight * load(ws.running + j);
    *least = relevance_weight * *least - redundancy_weight * nearest;
  }

  template <class Query>
  static void take(Query& query, std::int64_t j, std::int64_t slot, float value) {
    const bool first = query.picked == 0;
    const Workspace& ws = query.ws;
    query.take(j, slot, first ? query.lambda_d() * value : value, ws.value[j], first ? 0.0f : ws.running[j]);
  }
};
