// Upper bounds of values by the triangle inequality, for unit rows.

template <class Objective>
inline float Query<Objective>::sine(float cosine) const {
  const float square = 1.0f - cosine * cosine;
  return __builtin_sqrtf((square > 0.0f ? square : 0.0f) + 2.0f * slack);
}

// Cosines with the pivot: the query or, where other relevance is given, the first pick. An item that has not met its
// pivot has a sine that leaves its similarities at -1 or more.
template <class Objective>
inline void Query<Objective>::start_triangle() {
  for (std::int64_t j = 0; j < items; ++j) {
    const bool known = !lazy() || args.stage.relevance_error;
    if (!known) ws.pivot[j] = 0.0f;
    ws.sine[j] = known ? sine(ws.pivot[j]) : FLT_MAX;
  }
}

// The similarities of the items to pick p are at least these, less 4 slack: each bound passes through the operations of
// the value itself, which are monotone, so that rounding keeps it a bound.
template <class Objective>
inline vf Query<Objective>::least_similarity(std::int64_t j, vf pivot, vf pivot_sine) const {
  return load(ws.pivot + j) * pivot - load(ws.sine + j) * pivot_sine - splat(4.0f * slack);
}
