// A pool that stands for the whole corpus: what any row outside it could be worth.

// Upper bound of the value of every row that is not in the pool, whose v is at most args.outside[q]. A row at angle
// x to the query has v <= lambda_b cos x + (1 - lambda_b) max_bias and a similarity of at least cos(x + y) to a pick
// at angle y, so its value is at most C + A cos x + B sin x, for the x that v leaves it.
template <class T, class Objective>
inline float Query<T, Objective>::outside_bound() const {
  const double relevance_weight = lambda_d(), redundancy_weight = 1 - relevance_weight;
  const double weight = args.bias ? lambda_b() : 1, bias = args.bias ? (1 - weight) * args.max_bias : 0;
  const double outside = args.outside[q], rounding = 1e-6 + 4 * slack;
  if (picked == 0 || outside < -FLT_MAX || args.ceiling) return float(outside + rounding);
  double least = relevance_weight * outside + redundancy_weight;
  for (std::int64_t p = 0; p < picked && weight > 0; ++p) {
    double x = (outside - bias) / weight;
    x = x > 1 ? 1 : x < -1 ? -1 : x;
    const double y = ws.picked_pivot[p], sin_x = __builtin_sqrt(1 - x * x), sin_y = sine(ws.picked_pivot[p]);
    const double a = relevance_weight * weight - redundancy_weight * y, b = redundancy_weight * sin_y;
    // With a bias a row nearer to the query than x may still have this v; opposite to the pick is nearer here.
    if (args.bias && x <= -y) continue;
    const bool rising = b * x >= a * sin_x;
    const double value = relevance_weight * bias + (rising ? __builtin_sqrt(a * a + b * b) : a * x + b * sin_x);
    least = value < least ? value : least;
  }
  return float(least + rounding);
}
