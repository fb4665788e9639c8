// MMR with quality bias.

// What items are worth at least and at most, from what their v, or VRSD's g, is.
template <class T, Method kMethod>
inline void Query<T, kMethod>::mmr_range(std::int64_t j, vf* least, vf* most) const {
  const vf relevance_weight = splat(lambda_d()), redundancy_weight = splat(1.0f - lambda_d());
  const vf nearest = larger(load(ws.likely_most + j), load(ws.rival_most + j));
  *most = relevance_weight * *most - redundancy_weight * load(ws.running + j);
  *least = relevance_weight * *least - redundancy_weight * nearest;
}
