// What an item remembers of the picks in rules that compare it with the nearest of them: the largest similarity, or a
// lower bound of it. Its value only falls as picks are made, so that an old upper bound of it is still one.
struct Nearest {
  static constexpr bool kFalls = true, kNearest = true, kCodes = true, kTriangle = true;
  static constexpr bool kDirections = false, kAspects = false, kNeedsProduct = true;
  static constexpr float kUnmet = -FLT_MAX;  // the largest similarity to no pick
  static float none(bool bounded, float slack) { return bounded ? -1.0f - 4.0f * slack : kUnmet; }
  static float with(float running, float similarity) { return similarity > running ? similarity : running; }

  static bool unfit(const Workspace&, std::int64_t) { return false; }
  static bool ends(float) { return false; }
  template <class Query>
  static bool lags(const Query&) {
    return false;
  }

  std::int64_t bounded = 0;  // picks that the triangle bounds of the largest similarities know

  // Raises the largest similarities to the triangle bounds of the picks since.
  template <class Query>
  void raise(Query& query) {
    Workspace& ws = query.ws;
    if (!query.triangle) return;
    // Known picks come by the thousand: some items at a time stay in the cache.
    const std::int64_t at_once = query.picked - bounded > 1 ? kLongPool : query.items;
    for (std::int64_t begin = 0; begin < query.items; begin += at_once) {
      const std::int64_t end = begin + at_once < query.items ? begin + at_once : query.items;
      for (std::int64_t p = bounded; p < query.picked; ++p) {
        const vf pivot = splat(ws.picked_pivot[p]), sine = splat(query.sine(ws.picked_pivot[p]));
        for (std::int64_t j = begin; j < end; j += W)
          store(ws.running + j, larger(load(ws.running + j), query.least_similarity(j, pivot, sine)));
      }
      if (at_once < query.items) interrupt_point();
    }
    bounded = query.picked;
  }

  // Of a vector of items that meet picks by codes.
  struct Coded {
    vf running, likely_most, rival_most;
    vi likely;

    static void start(Workspace& ws, std::int64_t j) {
      store(ws.likely_most + j, splat(kUnmet));
      store(ws.exact + j, splat(kUnmet));
      store(ws.rival_most + j, splat(kUnmet));
      store(ws.likely + j, vi{} - 1);
    }
    Coded(const Workspace& ws, std::int64_t j)
        : running(load(ws.running + j)),
          likely_most(load(ws.likely_most + j)),
          rival_most(load(ws.rival_most + j)),
          likely(load(ws.likely + j)) {}
    void meet(std::int64_t p, vf least, vf most) {
      const vi nearest = least > running;
      rival_most = larger(rival_most, nearest ? likely_most : most);
      likely_most = nearest ? most : likely_most;
      running = nearest ? least : running;
      likely = nearest ? vi{} + std::int32_t(p) : likely;
    }
    void keep(Workspace& ws, std::int64_t j) const {
      store(ws.running + j, running);
      store(ws.likely_most + j, likely_most);
      store(ws.rival_most + j, rival_most);
      store(ws.likely + j, likely);
    }
  };

  // Whether the value of an item is known: of the first pick, or after all picks so far.
  template <class Query>
  static bool known(Query& query, std::int64_t j) {
    const Workspace& ws = query.ws;
    if (query.picked == 0) return !query.estimated() || ws.met[j] >= 0;
    if (ws.met[j] < 0) return false;
    if (ws.likely[j] < 0 && ws.rival_most[j] <= ws.exact[j]) settle(query, j, ws.exact[j]);
    return ws.met[j] == query.picked;
  }

  // Reads the row of item j: its relevance, if that is not given, and its similarity to the pick that codes make out to
  // be the nearest; where another may be nearer, to all that it has not met.
  template <class Query>
  static void read(Query& query, std::int64_t j) {
    Workspace& ws = query.ws;
    const std::int64_t dims = query.args.dims;
    const bool unread = ws.met[j] < 0, with_query = unread && query.estimated();
    if (unread) query.read_scale(j);
    const void* data = query.row(ws.row[j]);
    const float* vectors[kTile];
    float dots[kTile];
    const std::int32_t likely = ws.likely[j];
    int n = 0;
    if (with_query) vectors[n++] = ws.query;
    if (likely >= 0) vectors[n++] = query.pick(likely);
    if (n > 0) query.type.of_vectors[n](vectors, &data, dims, dots);
    ws.products += n;
    if (with_query) query.objective.relevance(query, j, dots[0] * ws.scale[j], nullptr);
    float nearest = likely >= 0 ? dots[n - 1] * ws.picked_scale[likely] * ws.scale[j] : ws.exact[j];
    if (!(nearest >= ws.rival_most[j])) {
      nearest = ws.exact[j];
      for (std::int64_t p = ws.met[j]; p < query.picked; p += n) {
        for (n = 0; n < kTile && p + n < query.picked; ++n) vectors[n] = query.pick(p + n);
        query.type.of_vectors[n](vectors, &data, dims, dots);
        ws.products += n;
        for (int i = 0; i < n; ++i) nearest = with(nearest, dots[i] * ws.picked_scale[p + i] * ws.scale[j]);
      }
    }
    settle(query, j, nearest);
  }

  // The largest similarity of item j to a pick is known.
  template <class Query>
  static void settle(Query& query, std::int64_t j, float similarity) {
    Workspace& ws = query.ws;
    ws.running[j] = ws.likely_most[j] = ws.exact[j] = similarity;
    ws.rival_most[j] = kUnmet;
    ws.likely[j] = -1;
    ws.met[j] = std::int32_t(query.picked);
  }

  template <class Query>
  void keep_codes(Query&, std::int64_t) {}
};
