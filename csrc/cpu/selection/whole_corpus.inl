// A pool that stands for the whole corpus: what any row outside it could be worth.
//
// A row at angle x to the query has v <= lambda_b cos x + (1 - lambda_b) max_bias and a similarity of at least cos(x +
// y) to a pick at angle y, so its value is at most lambda_d (1 - lambda_b) max_bias + a cos x + b sin x.

// Of some picks, a vector of them: a, b, the square of the crest, and one over it.
template <class Objective>
struct Query<Objective>::Angles {
  vd cosine, a, b, crest, over;
};

// Of the picks from p on.
template <class Objective>
inline typename Query<Objective>::Angles Query<Objective>::angles(std::int64_t p) const {
  const double weight = args.bias ? lambda_b() : 1, redundancy_weight = 1 - double(lambda_d());
  Angles at;
  at.cosine = load_widened(ws.picked_pivot + p);
  const vd square = 1 - at.cosine * at.cosine;
  at.a = double(lambda_d()) * weight - redundancy_weight * at.cosine;
  at.b = redundancy_weight * root_above((square > 0 ? square : vd{}) + 2 * double(slack));
  at.crest = at.a * at.a + at.b * at.b;
  at.over = 1 / at.crest;
  return at;
}

// Solved for the x, on the far side of the crest, at which the value is `above` and what the bias adds: the largest v
// that leaves all rows below it, by each of `known` picks.
template <class Objective>
inline vd Query<Objective>::reach_by_angle(const Angles& at, double above, std::int64_t known) const {
  const double weight = args.bias ? lambda_b() : 1, infinity = __builtin_inf();
  const double bias = args.bias && weight < 1 ? (1 - weight) * args.stage.max_bias : 0;
  vl lane;
  for (std::int64_t i = 0; i < kDoubles; ++i) lane[i] = i;
  const vd gap = at.crest - above * above, rest = root_above(gap > 0 ? gap : vd{});
  const vd x = (at.a * above - at.b * rest) * at.over, sine = at.b * above + at.a * rest;
  // With a bias a row nearer to the query than x may still have this v, and be opposite to the pick.
  const vl possible = args.bias ? (sine >= 0) & (x > -at.cosine) : vl(sine >= 0);
  const vd found = possible ? weight * x + bias : vd{} - infinity;
  return lane < known ? (gap > 0 ? found : vd{} + (above > 0 ? infinity : -infinity)) : vd{} - infinity;
}

// The largest v that rows outside may have for none of them to be worth `value` after so many picks; where it is at
// least `enough`, that or more.
template <class Objective>
inline double Query<Objective>::reach(double value, std::int64_t known, double enough, const Angles& first) const {
  const double relevance_weight = lambda_d(), redundancy_weight = 1 - relevance_weight;
  const double weight = args.bias ? lambda_b() : 1;
  const double bias = args.bias && weight < 1 ? (1 - weight) * args.stage.max_bias : 0;
  // What two computed values may be off by.
  value -= 1e-6 + 4 * slack + 8 * FLT_EPSILON * __builtin_fabs(value);
  if (known == 0 || args.stage.ceiling) return value;
  // A row opposite to all picks.
  double most = relevance_weight > 0 ? (value - redundancy_weight) / relevance_weight : -__builtin_inf();
  const bool query_known = !args.relevance || args.stage.relevance_error;
  if (most >= enough || !query_known || !(weight > 0 && __builtin_fabs(bias) <= double(FLT_MAX))) return most;
  for (std::int64_t p = 0; p < known; p += kDoubles) {
    const vd found = reach_by_angle(p == 0 ? first : angles(p), value - relevance_weight * bias, known - p);
    if (any_at_least(found, enough)) return enough;
    for (std::int64_t lane = 0; lane < kDoubles; ++lane) most = found[lane] > most ? found[lane] : most;
  }
  return most;
}

// Below what the v of a row has to be, as computed, for it to be at most this.
template <class Objective>
inline double Query<Objective>::surely(double reach) const {
  const double size = __builtin_fabs(reach);
  return reach - slack - 16 * FLT_EPSILON * (1 + (size < 1e30 ? size : 1e30));
}

// Whether a pick is worth more than any row outside.
template <class Objective>
inline bool Query<Objective>::beats_outside(float value) const {
  return args.stage.outside[q] <= surely(reach(value, picked, __builtin_inf(), angles(0)));
}

// Whether a row outside the pool might be picked.
template <class Objective>
inline bool Query<Objective>::may_be_outside() const {
  if (!args.stage.outside || !(args.stage.outside[q] > -FLT_MAX)) return false;
  const bool by_relevance = args.stage.relevance_error && !args.bias;  // then what bounds their v bounds relevance
  return !(by_relevance && args.stage.outside[q] < least_relevance());
}

// SelectArgs::pool_needed of a query whose picks are made, after so many initial items.
template <class Objective>
inline float Query<Objective>::pool_needed(std::int64_t initial) const {
  const std::int64_t length = args.lengths[q];
  if (tied) return __builtin_nanf("");
  if (length < picks_wanted() && !args.limits.costs) return -__builtin_inff();
  const Angles first = angles(0);
  double most = __builtin_inf();
  for (std::int64_t slot = 0; slot < length; ++slot) {
    const std::int64_t out = q * args.k + slot;
    const float value = initial + slot == 0 ? args.out_relevance[out] : args.scores[out];
    const double found = reach(value, initial + slot, most, first);
    most = found < most ? found : most;
  }
  return float(surely(most));
}
