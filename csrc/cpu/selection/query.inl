// One query of a selection. Included once per instruction set, after simd/. The mathematics, with the bounds and their
// rounding, is in ragsys_kernels/selection/README.md.
//
//   strategy        when                                        for               file
//   dense           otherwise                                   all               meet.inl
//   triangle        unit rows, at least kPrunedPool of them     MMR, VRSD         triangle_bounds.inl
//   coded           codes of unit rows, at least kCodedPool     MMR, VRSD, MSD    code_bounds.inl
//   coarse          many unit rows and picks                    VRSD, MSD         coarse_bounds.inl
//   in blocks       signs, values that only fall               MMR               meet.inl
//   lagging         values that only fall                       DPP, SSD          meet.inl
//   coverage        aspects                                     coverage          objectives/coverage.inl
//   whole corpus    a pool and a bound of the rows outside it   MMR               whole_corpus.inl
//
// All give the picks of the dense one. With bounds an item meets a pick (a dot product) only while it could still win.
// With minima of groups every query is dense: at each step they ask which items may be picked at all.
// With a largest similarity (`limited`) VRSD and MSD leave the codes out: these bound their sums, not the largest term.
// With a least relevance they do too, unless relevance is given: MMR alone chooses among items that it may yet leave
// out. DPP's and SSD's values rise when their window slides, and items meet the picks in it anew. SIFT is dense: its
// values may rise at any pick.
//
// What is maximised is the Objective (objectives/), a type that the loop knows by these names:
//
//   kFalls             values only fall as picks are made, so that an old bound is still one
//   kNeedsLength       a value depends on the row's length
//   kNeedsProduct      a value depends on the product with the query even where relevance is given
//   kTriangle, kTrianglePays, kCodes    the strategies it has; whether the first is worth its cost
//   kNearest           what an item remembers is the largest similarity
//   kDirections        items meet directions, which the picks have beside their rows: factored.inl
//   kAspects           it chooses by itself: coverage.inl
//   with, none         what an item remembers of the picks that it has met, a number: nearest.inl, summed.inl, which
//                      also say what codes make of it (Coded, known, read, keep_codes)
//   relevance          of an item, from its product with the query
//   first_values       what the first pick goes by
//   value_of, bound    the value of an item that has met all picks; an upper bound of others
//   range              with codes, a bound from both sides
//   start, take        the initial items; what a pick adds and reports
//   prepare, add       with kDirections or kAspects: what is known before the first pick; the direction of a pick
//   unfit, ends        an item that may not be picked though it is best; a best value that ends the query

// Smaller pools are taken densely: bounds would cost more than they save.
constexpr std::int64_t kPrunedPool = 16;
// Pools smaller than this are not bounded by codes: products of them would take longer than reading the rows. Measured
// with D = 384; only wide vectors multiply bytes fast enough.
constexpr std::int64_t kCodedPool = W == 16 ? 16 : 48;
constexpr bool kCodesPay = W > 4;

// An output without a pick.
static inline void leave_empty(const SelectArgs& args, std::int64_t out) {
  args.indices[out] = -1;
  args.scores[out] = -__builtin_inff();
  args.out_relevance[out] = args.redundancy[out] = __builtin_nanf("");
}

// The gate of an item that is closed for one step; minus infinity closes for good.
constexpr float kHeldBack = -FLT_MAX;

// Items between two looks for an interrupt; smaller pools are looked after between queries.
constexpr std::int64_t kLongPool = 1024;

// Known picks that the items meet together.
constexpr std::int64_t kFollowedAtOnce = 256;

template <class Objective>
struct Query {
  const SelectArgs& args;
  Workspace& ws;
  std::int64_t q;
  const RowKernels& type = kRowKernels[int(args.dtype)];
  const bool packed = args.dtype == DType::bits;                              // rows of signs
  const std::int64_t row_step = args.row_stride * element_bytes(args.dtype);  // in bytes
  Objective objective = {};
  std::int64_t items = 0;                           // eligible items
  std::int64_t open = 0;                            // of them, neither picked nor barred
  std::int64_t picked = 0;                          // initial items and picks
  std::int64_t all_met = -1;                        // every open item has met at least this many picks; -1: unknown
  std::int64_t ahead = 0;                           // rows of the next query's pool prefetched
  std::int64_t next_codes = 0, next_codes_end = 0;  // of its code rows
  bool whole = false;                               // candidate i is item i
  bool all_finite = true;
  bool triangle = false, coded = false, coarse = false;  // the strategy
  CodeVector query_code = {};
  // With 4-bit codes, products with the sum of the picks: `along` times that with the axis, and of signed codes, times
  // `scale` and from `start` on; to within `error` and, of a row's own error, `length` times as much.
  struct CoarseVector {
    float along, scale, start, length, error;
  };
  // With 4-bit codes: the sum of so many picks, at most its length, and by how much what an item remembers may be off
  // from its product with it; how many rows have met a sum since the items met the axis; the largest value of an item,
  // and length of its codes as they count from the centre.
  struct CoarseSum {
    std::int64_t picks = 0, met = 0;
    double length = 0, error = 0, value = 0, spread = 0;
    bool unvalued = true;  // all values are 0
    CoarseVector vector = {};
    float bar = 0;  // the best value is at least this
  };
  CoarseSum coarse_sum = {};
  std::int64_t choices = 0;                              // picks chosen by codes
  float last_value = 0.0f;                               // of the last pick that was known
  float slack = 0.0f;                                    // by how much a computed cosine of unit vectors may be off
  double spent = 0;                                      // what the picks cost
  bool limited = args.limits.max_similarity != nullptr;  // the best item may turn out to be unfit
  bool quotas = args.limits.quotas.minima != nullptr;    // groups have minima
  float tied_value = __builtin_nanf("");  // of two items of a step, the later of them the lower row; NaN: no such tie
  bool tied = false;                      // a pick had such a value
  // What makes signs the vector of the formulas.
  const float row_scale = packed ? 1.0f / __builtin_sqrtf(float(args.dims)) : 1.0f;

  const void* row(std::int64_t r) const { return static_cast<const char*>(args.rows) + r * row_step; }
  const bits8* signs(std::int64_t r) const { return static_cast<const bits8*>(row(r)); }
  const bits8* query_signs() const { return static_cast<const bits8*>(args.query_signs) + q * (args.dims / 8); }
  std::int64_t base() const { return q * args.pool_stride; }
  float lambda_d() const { return args.lambda_d[q]; }
  float lambda_b() const { return args.lambda_b[q]; }
  // Whether rows are read only as they are needed.
  bool lazy() const { return coded || ((args.relevance || args.stage.ceiling) && !Objective::kNeedsLength); }
  // Whether relevance is not known before a row is read.
  bool estimated() const { return args.stage.relevance_error || args.stage.ceiling || (coded && !args.relevance); }
  // The pivot of the triangle inequality is the query or, where other relevance is given, the first pick.
  bool pivot_is_pick() const { return lazy() && !estimated(); }
  // Whether signs are multiplied in blocks, for as long as one of a block could still win.
  bool in_blocks() const {
    const bool blocks = Objective::kNearest && packed;
    return blocks && !triangle && !limited && !quotas && !args.stage.forced && args.bounds != Bounds::dense;
  }
  bool is_open(std::int64_t j) const { return ws.gate[j] > -FLT_MAX; }
  float least_relevance() const { return args.limits.min_relevance ? args.limits.min_relevance[q] : -__builtin_inff(); }
  float most_similarity() const { return args.limits.max_similarity ? args.limits.max_similarity[q] : FLT_MAX; }
  // The largest similarity to the picks met, where it is kept.
  float* nearest() const { return Objective::kNearest ? ws.running : ws.nearest; }
  double cost(std::int64_t j) const {
    return args.limits.costs[args.limits.costs_per_item ? q * args.pool + ws.position[j] : ws.row[j]];
  }
  // The pick that is known at `slot`, as a row; negative: it is to be chosen.
  std::int64_t known_pick(std::int64_t slot) const {
    return args.stage.forced && slot < args.k ? args.stage.forced[q * args.k + slot] : -1;
  }
  std::int64_t picks_wanted() const { return args.ks ? args.ks[q] : args.k; }
  std::int64_t padded(std::int64_t n) const { return (n + W - 1) / W * W; }
  const float* pick(std::int64_t p) const { return ws.picks[p]; }
  bool has_query() const { return args.queries || args.query_signs; }
  // An element of the query as it is given.
  float asked(std::int64_t d) const {
    return args.query_signs ? element(query_signs(), d) : args.queries[q * args.dims + d];
  }

  const std::uint8_t* code_row(std::int64_t r) const { return args.codes + r * code_stride(args.dims); }
  std::int64_t block_items(std::int64_t j) const { return items - j < kCodeBlock ? items - j : kCodeBlock; }
  // Whether the values of a block's items are not even bounded by their codes.
  bool unseen(std::int64_t block) const { return ws.block_met[block] < 0 && !args.relevance; }

  // collect.inl
  template <class Id>
  bool surely_distinct(const Id* ids) const;
  template <class Id>
  void take_all(const Id* ids, std::int64_t limit);
  template <class Id>
  bool collect_distinct(std::int64_t limit);
  Status collect();

  // rows.inl
  Status unusual_norm(std::int64_t r) const;
  Status scale_row(std::int64_t r, float* norm2, float* scale) const;
  template <int R>
  Status scale_rows(const std::int32_t* js);
  template <int R>
  Status read_rows(std::int64_t j);
  template <int R>
  void multiply_query(const void* const* rows, float* out) const;
  template <int A, int B>
  void multiply_picks(std::int64_t p, const void* const* rows, float* out) const;
  void read_scale(std::int64_t j);
  void prefetch_row(std::int64_t r) const;
  void prefetch_next(std::int64_t end);
  void prefetch_own();
  void prefetch_candidate(std::int64_t query, std::int64_t i) const;
  const float* prepared(const void* data, float* out) const;
  const float* widened(std::int64_t r, float* out) const;
  const float* widened(std::int64_t r) const { return widened(r, ws.unit); }
  double exact_scale(std::int64_t r) const;
  double exact_length(std::int64_t r) const;

  // relevance.inl
  Status prepare_query();
  void find_strategy();
  Status read_pool();
  void relevance_known(std::int64_t j, float relevance);
  Status copy_relevance();
  Status combine();
  __attribute__((noinline)) void leave_out_irrelevant();

  // meet.inl
  static void look_up(std::int64_t j);
  template <int A, int B>
  void meet(std::int64_t p, const std::int32_t* js);
  template <int A, int B>
  void meet_directions(std::int64_t p, const std::int32_t* js, const void* const* rows);
  void catch_up(std::int32_t j);
  void meet_block(std::int64_t p, std::int64_t begin, std::int64_t end);
  Status choose_in_blocks(std::int64_t* best, float* best_score);
  Status catch_up(const std::int32_t* js, int n);
  Status catch_up_all();
  void bound(std::int64_t begin, std::int64_t end);
  Status choose(std::int64_t* best, float* best_score);
  Status consider_others(std::int32_t top, std::int64_t survivors, std::int64_t* best, float* best_score);
  Status catch_up_and_consider(const std::int32_t* js, int* n, std::int64_t* best, float* best_score);
  void consider(std::int64_t j, std::int64_t* best, float* best_score);
  // Not inlined where few calls need them: inside the loops they would cost the others registers.
  __attribute__((noinline)) bool unfit(std::int64_t j) const;
  __attribute__((noinline)) void close_similar();

  // picks.inl
  void close(std::int64_t j);
  void cap_group(std::int64_t index);
  __attribute__((noinline)) void close_full(std::int64_t index);
  __attribute__((noinline)) void close_barred();
  __attribute__((noinline)) void find_minima();
  __attribute__((noinline)) Status hold_back(std::int64_t left);
  __attribute__((noinline)) void let_in();
  __attribute__((noinline)) void close_unaffordable();
  float redundancy(std::int64_t j) const;
  void take(std::int64_t j, std::int64_t slot, float score, float relevance, float redundancy);
  void prepare_pick(std::int64_t p, const void* data);
  Status keep(std::int64_t j);
  Status keep_initial();
  void start();
  Status follow(std::int64_t r, std::int64_t* best, float* best_score);

  // triangle_bounds.inl
  float sine(float cosine) const;
  void start_triangle();
  vf least_similarity(std::int64_t j, vf pivot, vf pivot_sine) const;

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
  std::int64_t catch_up_by_codes(std::int64_t block);
  void catch_up_block(std::int64_t block, int thread);
  std::int64_t met_by_codes() const;
  void catch_up_by_codes();
  void bound_block(std::int64_t block);
  void keep_codes(std::int64_t p, std::int64_t r);
  void start_codes();
  Status choose_by_codes(std::int64_t* best, float* best_score);
  std::int64_t find_contenders();
  vf look_at_all(std::int64_t blocks);
  vf look_at_promising(std::int64_t blocks);
  vf look(std::int64_t block, vf leasts);
  vf doubt(std::int64_t j, vf value) const;
  __attribute__((noinline)) vf surely_fit(std::int64_t j, vf least);
  float largest_bound(std::int64_t j) const;

  // coarse_bounds.inl
  static constexpr bool kAdds = Objective::kCodes && !Objective::kNearest;  // up similarities
  void find_steps();
  std::int64_t block_size() const { return shared_items(args); }
  std::int64_t item_blocks() const { return (items + block_size() - 1) / block_size(); }
  std::int64_t block_end(std::int64_t block) const {
    return (block + 1) * block_size() < items ? (block + 1) * block_size() : items;
  }
  template <void (Query::*part)(std::int64_t block, int thread)>
  static void call_part(void* query, std::int64_t block, int thread) {
    (static_cast<Query*>(query)->*part)(block, thread);
  }
  template <void (Query::*part)(std::int64_t block, int thread)>
  void share_items();
  void encode_block(std::int64_t block, int thread);
  Status start_coarse();
  void add_picks();
  double take_axis(const double* axis, double* along);
  void meet_axis();
  void meet_axis_in_block(std::int64_t block, int thread);
  CoarseVector coarse_vector();
  Status choose_by_coarse(std::int64_t* best, float* best_score);
  void bound_by_coarse(std::int64_t block, int thread);
  void find_contenders_in(std::int64_t block, int thread);
  void meet_sum(const std::int32_t* js, int n, std::int32_t* contenders, CoarseBlock* found);

  // whole_corpus.inl
  struct Angles;
  Angles angles(std::int64_t p) const;
  vd reach_by_angle(const Angles& at, double above, std::int64_t known) const;
  double reach(double value, std::int64_t known, double enough, const Angles& first) const;
  double surely(double reach) const;
  bool beats_outside(float value) const;
  bool may_be_outside() const;
  float pool_needed(std::int64_t initial) const;

  Status run();
};

template <class Objective>
inline Status Query<Objective>::run() {
  Status status = collect();
  if (status != Status::ok) return status;
  find_strategy();
  status = read_pool();
  if (status != Status::ok) return status;
  start();
  if constexpr (kAdds)
    if (coarse) status = start_coarse();
  if (status == Status::ok) status = keep_initial();
  if (picked > 0 && status == Status::ok) objective.start(*this);
  const std::int64_t wanted = picks_wanted(), initial = picked;
  const bool more_outside = may_be_outside();
  const std::int64_t rows_ahead = args.pool / (wanted > 1 ? wanted - 1 : 1) + 1;
  for (std::int64_t slot = 0; slot < wanted && open > 0 && status == Status::ok; ++slot) {
    if (items >= kLongPool) interrupt_point();
    std::int64_t best;
    float value = 0.0f;
    const bool forced = known_pick(slot) >= 0;
    tied_value = __builtin_nanf("");
    if (quotas) {
      status = hold_back(wanted - slot);
      if (status != Status::ok) break;
    }
    status = forced ? follow(known_pick(slot), &best, &value) : choose(&best, &value);
    if (quotas || (Objective::kDirections && args.options.window)) let_in();
    if (status != Status::ok || !all_finite) break;
    if (best < 0 || objective.ends(value)) break;  // nothing that is left may be picked, or is worth it
    if (more_outside && !forced && !beats_outside(value)) return Status::pool_too_small;
    tied = tied || tied_value == value;
    objective.take(*this, best, slot, value);
    if (slot + 1 < wanted) status = keep(best);
    if constexpr (Objective::kCodes) {
      // Threads share this; the one that chooses would take as long as it takes to choose the known picks.
      const bool one_of_many = known_pick(slot + 1) >= 0 && picked % kFollowedAtOnce != 0;
      const bool shared = forced && coded && !args.stage.ceiling && args.num_queries == 1;
      last_value = value;
      if (shared && !one_of_many && status == Status::ok) catch_up_by_codes();
    }
    prefetch_next((slot + 1) * rows_ahead);
  }
  if constexpr (Objective::kAspects)
    if (status == Status::ok && all_finite) objective.finish(*this);
  if (status == Status::ok && more_outside && args.lengths[q] < wanted) return Status::pool_too_small;
  if (status == Status::ok && all_finite && args.pool_needed) args.pool_needed[q] = pool_needed(initial);
  return status == Status::ok && !all_finite ? Status::not_finite : status;
}
