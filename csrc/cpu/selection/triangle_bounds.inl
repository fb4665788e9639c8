// Upper bounds of values by the triangle inequality, for unit rows.

template <class T, Method kMethod>
inline float Query<T, kMethod>::sine(float cosine) const {
  const float square = 1.0f - cosine * cosine;
  return __builtin_sqrtf((square > 0.0f ? square : 0.0f) + 2.0f * slack);
}

// Upper bounds of the values, minus infinity for closed items. Each bound passes through the operations of the
// value itself, which are monotone, so that rounding keeps it a bound.
template <class T, Method kMethod>
inline void Query<T, kMethod>::bound_running() {
  for (; prune && bounded < picked; ++bounded) {
    const vf pivot = splat(ws.picked_pivot[bounded]), pick_sine = splat(sine(ws.picked_pivot[bounded]));
    for (std::int64_t j = 0; j < items; j += W) {
      const vf least = load(ws.pivot + j) * pivot - load(ws.sine + j) * pick_sine - splat(4.0f * slack);
      store(ws.running + j, larger(load(ws.running + j), least));
    }
  }
}

template <class T, Method kMethod>
inline void Query<T, kMethod>::bound() {
  if (picked > 0 && is_vrsd()) return bound_vrsd();
  if (picked > 0) bound_running();
  bound(0, items);
}

// Of MMR's values, or of those of the first pick.
template <class T, Method kMethod>
inline void Query<T, kMethod>::bound(std::int64_t begin, std::int64_t end) {
  const float* values = is_vrsd() ? ws.relevance : ws.value;
  const vf relevance_weight = splat(lambda_d()), redundancy_weight = splat(1.0f - lambda_d());
  for (std::int64_t j = begin; j < end; j += W) {
    vf bound = load(values + j);
    if (picked > 0) bound = relevance_weight * bound - redundancy_weight * load(ws.running + j);
    store(ws.bound + j, smaller(bound, load(ws.gate + j)));
  }
}
