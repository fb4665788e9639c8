// One query of MMR with quality bias or of VRSD. Included once per instruction set, after simd/. The mathematics, with
// the bounds and their rounding, is in ragsys_kernels/selection/README.md.
//
//   strategy        when                                        file
//   dense           otherwise                                   meet.inl
//   triangle        unit rows, at least kPrunedPool of them     triangle_bounds.inl
//   coded           codes of unit rows, at least kCodedPool     code_bounds.inl
//   whole corpus    a pool and a bound of the rows outside it   whole_corpus.inl
//
// All give the picks of the dense one. With bounds an item meets a pick (a dot product) only while it could still win.

// Smaller pools are taken densely: bounds would cost more than they save.
constexpr std::int64_t kPrunedPool = 16;
// Pools smaller than this are not bounded by codes: products of them would take longer than reading the rows. Measured
// with D = 384; only wide vectors multiply bytes fast enough.
constexpr std::int64_t kCodedPool = W == 16 ? 16 : 48;
constexpr bool kCodesPay = W > 4;

// Items between two looks for an interrupt; smaller pools are looked after between queries.
constexpr std::int64_t kLongPool = 1024;

// VRSD reports the cosine of a sum in double where |s|^2 is below 1/8 of the terms that it was made of.
constexpr double kDoubtful = 1.0 / 8;

// VRSD's sum s over the initial items and the picks.
struct Sum {
  double query = 0;    // <s, unit query>, by the given relevance if there is one
  double along = 0;    // <s, unit query>, by the rows
  double norm2 = 0;    // |s|^2
  double lengths = 0;  // lengths of its terms, added
  double terms = 0;    // sizes of what was added to norm2: their rounding stays in it
};

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

  const std::uint8_t* code_row(std::int64_t r) const { return args.codes + r * code_stride(args.dims); }

  std::int64_t block_items(std::int64_t j) const { return items - j < kCodeBlock ? items - j : kCodeBlock; }

  // The value of an item that has met all picks; the first pick goes by relevance alone.
  float score(std::int64_t j) {
    if (picked == 0) return is_vrsd() ? ws.relevance[j] : ws.value[j];
    if (is_vrsd()) return cosine(plus(sum, j));
    return lambda_d() * ws.value[j] - (1.0f - lambda_d()) * ws.running[j];
  }

  // Whether the values of a block's items are not even bounded by their codes.
  bool unseen(std::int64_t block) const { return ws.block_met[block] < 0 && !args.relevance; }

  static float cosine(const Sum& sum) { return sum.norm2 > 0 ? float(sum.query / __builtin_sqrt(sum.norm2)) : 0.0f; }

  // collect.inl
  template <class Id>
  bool surely_distinct(const Id* ids) const;
  template <class Id>
  void take_all(const Id* ids, std::int64_t limit);
  template <class Id>
  bool collect_distinct(std::int64_t limit);
  Status collect();

  // rows.inl
  Status unusual_norm(const T* data) const;
  Status scale_row(std::int64_t r, float* norm2, float* scale) const;
  template <int R>
  Status scale_rows(const std::int32_t* js);
  template <int R>
  Status read_rows(std::int64_t j);
  void prefetch_row(std::int64_t r) const;
  void prefetch_next(std::int64_t end);
  void prefetch_own();
  void prefetch_candidate(std::int64_t query, std::int64_t i) const;
  double exact_scale(std::int64_t r) const;
  double exact_length(std::int64_t r) const;

  // relevance.inl
  Status prepare_query();
  Status read_pool();
  void relevance_known(std::int64_t j, float relevance);
  Status copy_relevance();
  Status combine();

  // meet.inl
  static void look(std::int64_t j);
  template <int A, int B>
  void meet(std::int64_t p, const std::int32_t* js);
  void catch_up(std::int32_t j);
  Status catch_up(const std::int32_t* js, int n);
  Status catch_up_all();
  Status choose(std::int64_t* best, float* best_score);
  Status catch_up_and_consider(const std::int32_t* js, int* n, std::int64_t* best, float* best_score);
  void consider(std::int64_t j, std::int64_t* best, float* best_score);

  // picks.inl
  void close(std::int64_t j);
  void cap_group(std::int64_t index);
  void take(std::int64_t j, std::int64_t slot, float score, float relevance, float redundancy);
  Status keep(std::int64_t j);
  Status keep_initial();
  void start();
  Status follow(std::int64_t r, std::int64_t* best, float* best_score);

  // triangle_bounds.inl
  float sine(float cosine) const;
  void bound_running();
  void bound();
  void bound(std::int64_t begin, std::int64_t end);

  // code_bounds.inl
  void code_query(const float* query, float scale);
  template <class Id>
  void find_next_codes();
  void find_next_codes();
  template <int A>
  void multiply_codes(std::int64_t j, std::int64_t n, const std::int8_t* const* vectors,
                      std::int32_t (*products)[kCodeBlock]);
  vf code_error(std::int64_t j, const CodeVector& vector) const;
  vf code_scale(std::int64_t j, const CodeVector& vector) const;
  void read_headers(std::int64_t j, std::int64_t n);
  void bound_relevance(std::int64_t j);
  template <int A>
  void meet_by_codes(std::int64_t block_begin, std::int64_t p);
  void catch_up_by_codes(std::int64_t block);
  void bound_block(std::int64_t block);
  void refine(std::int64_t j);
  void settle(std::int64_t j, float similarity);
  void keep_codes(std::int64_t p, std::int64_t r);
  void start_codes();
  Status choose_by_codes(std::int64_t* best, float* best_score);
  std::int64_t find_contenders();
  vf look_at_all(std::int64_t blocks);
  vf look_at_promising(std::int64_t blocks);
  vf look(std::int64_t block, vf leasts);
  vf doubt(std::int64_t j) const;
  bool known(std::int64_t j);
  float largest_bound(std::int64_t j) const;

  // whole_corpus.inl
  float outside_bound() const;

  // objectives/mmr.inl
  void mmr_range(std::int64_t j, vf* least, vf* most) const;

  // objectives/vrsd.inl
  void refine_vrsd(std::int64_t j);
  Reach sum_reach() const;
  vf vrsd_margin(vf value) const;
  vi vrsd_may_cancel(vf shortest, vf total) const;
  void bound_vrsd();
  void vrsd_range(std::int64_t j, vf* least, vf* most) const;
  void start_sum();
  Sum exact_sum(const Sum& before, std::int64_t j);
  double terms_with(const Sum& before, std::int64_t j) const;
  float exact_cosine(const Sum& before, std::int64_t j, std::int64_t slot);
  Sum plus(const Sum& before, std::int64_t j);

  Status run();
};

template <class T, Method kMethod>
inline Status Query<T, kMethod>::run() {
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
