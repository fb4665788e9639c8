// What an item remembers of the picks in rules that add up: its product with their sum. It may rise and fall, so that
// no bound outlives a pick.
struct Summed {
  static constexpr bool kFalls = false, kNearest = false, kCodes = true;
  static constexpr bool kDirections = false, kAspects = false, kNeedsProduct = true;
  static constexpr float kUnmet = 0.0f;
  static float none(bool, float) { return kUnmet; }
  static float with(float running, float similarity) { return running + similarity; }

  static bool unfit(const Workspace&, std::int64_t) { return false; }
  static bool ends(float) { return false; }
  template <class Query>
  static bool lags(const Query&) {
    return false;
  }

  float lost = 0.0f;  // at least the norm of what the codes of the sum leave out

  // Of a vector of items that meet picks by codes.
  struct Coded {
    vf running, likely_most;

    static void start(Workspace& ws, std::int64_t j) {
      store(ws.likely_most + j, splat(kUnmet));
      store(ws.exact + j, splat(kUnmet));
    }
    Coded(const Workspace& ws, std::int64_t j) : running(load(ws.running + j)), likely_most(load(ws.likely_most + j)) {}
    void meet(std::int64_t, vf least, vf most) {
      running = running + least;
      likely_most = likely_most + most;
    }
    void keep(Workspace& ws, std::int64_t j) const {
      store(ws.running + j, running);
      store(ws.likely_most + j, likely_most);
    }
  };

  // Within what the products of a vector of items with the sum, of this length, lie. The errors of products with single
  // picks add up. If all of a product comes from codes, it is also off by no more than the row's error times the sum's
  // length and what the codes of the sum leave out, which is less.
  void coded_range(const Workspace& ws, std::int64_t j, vf length, vf* low, vf* high) const {
    const vi unread = load(ws.met + j) < 0;
    *low = load(ws.running + j);
    *high = load(ws.likely_most + j);
    const vf product = splat(0.5f) * (*low + *high), row_error = load(ws.code_error + j);
    const vf error = row_error * length + (splat(1.0f) + row_error) * splat(lost);
    *low = unread ? larger(*low, product - error) : *low;
    *high = unread ? smaller(*high, product + error) : *high;
  }

  template <class Query>
  static bool known(const Query& query, std::int64_t j) {
    return query.ws.met[j] == query.picked;
  }

  // Reads the row of item j: what it needs of its own, if it is read for the first time, and its products with the
  // picks that it has not met, added in their order.
  template <class Query>
  static void read(Query& query, std::int64_t j) {
    Workspace& ws = query.ws;
    const void* data = query.row(ws.row[j]);
    const bool unread = ws.met[j] < 0, with_query = unread && query.estimated();
    if (unread) query.read_scale(j);
    const float* vectors[kTile];
    float dots[kTile], product = 0.0f, sum = ws.exact[j];
    for (std::int64_t p = with_query ? -1 : ws.met[j]; p < query.picked;) {  // -1: the query
      int n = 0;
      for (; n < kTile && p + n < query.picked; ++n) vectors[n] = p + n < 0 ? ws.query : query.pick(p + n);
      query.type.of_vectors[n](vectors, &data, query.args.dims, dots);
      ws.products += n;
      for (int i = 0; i < n; ++i, ++p) {
        if (p < 0) {
          product = dots[i] * ws.scale[j];
          continue;
        }
        const float similarity = dots[i] * ws.picked_scale[p] * ws.scale[j];
        query.all_finite = query.all_finite && finite(similarity);
        sum += similarity;
      }
    }
    if (unread) query.objective.relevance(query, j, product, with_query ? nullptr : &ws.relevance[j]);
    ws.running[j] = ws.likely_most[j] = ws.exact[j] = sum;
    ws.met[j] = std::int32_t(query.picked);
  }

  template <class Query>
  void keep_codes(Query& query, std::int64_t p) {
    Workspace& ws = query.ws;
    const std::int64_t dims = query.args.dims;
    for (std::int64_t d = 0; p == 0 && d < dims; d += W) store(ws.lost + d, vf{});
    lost = query.type.add_lost(ws.pick_codes[p], query.row(ws.picked_row[p]), dims, ws.picked_scale[p], ws.lost);
  }
};
