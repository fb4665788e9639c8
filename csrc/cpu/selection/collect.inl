// Which items of the pool may be picked: ids in range and not repeated, not among the initial items, not of the query's
// own group; of a whole corpus, rows that are allowed and not excluded.

static inline std::int64_t slot_of(const IdSet& set, std::int64_t id) {
  // Fibonacci hashing: consecutive ids spread over the table.
  std::int64_t slot = std::int64_t((std::uint64_t(id) * 0x9e3779b97f4a7c15u) >> 32) & set.mask;
  while (set.slots[slot] >= 0 && set.slots[slot] != id) slot = (slot + 1) & set.mask;
  return slot;
}
static inline bool contains(const IdSet& set, std::int64_t id) { return set.slots[slot_of(set, id)] == id; }
static inline bool insert(const IdSet& set, std::int64_t id) {
  const std::int64_t slot = slot_of(set, id);
  if (set.slots[slot] == id) return false;
  set.slots[slot] = id;
  return true;
}
static inline void clear(const IdSet& set) {
  for (std::int64_t i = 0; i <= set.mask; ++i) set.slots[i] = -1;
}

static inline std::int64_t id_at(const void* ids, int bytes, std::int64_t i) {
  return bytes == 4 ? static_cast<const std::int32_t*>(ids)[i] : static_cast<const std::int64_t*>(ids)[i];
}

// Whether no two candidates share their last bits, which is quickly seen.
template <class Objective>
template <class Id>
inline bool Query<Objective>::surely_distinct(const Id* ids) const {
  std::uint64_t* const seen = ws.seen;
  const std::uint64_t mask = ws.seen_mask;
  std::uint64_t repeated = 0;
  for (std::int64_t i = 0; i < args.pool; ++i) {
    const std::uint64_t id = std::uint64_t(std::int64_t(ids[i])), bit = std::uint64_t(ids[i] != -1) << (id & 63);
    const std::uint64_t word = seen[id / 64 & mask];
    repeated |= word & bit;
    seen[id / 64 & mask] = word | bit;
  }
  for (std::int64_t i = 0; i < args.pool; ++i) seen[std::uint64_t(std::int64_t(ids[i])) / 64 & mask] = 0;
  return repeated == 0;
}

// Makes all candidates items, if all ids are in range.
template <class Objective>
template <class Id>
inline void Query<Objective>::take_all(const Id* ids, std::int64_t limit) {
  std::int64_t* const rows = ws.row;
  std::int32_t* const positions = ws.position;
  const std::int64_t n = args.pool, first = base();
  std::uint64_t signs = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t id = std::uint64_t(std::int64_t(ids[i]));
    signs |= id | (std::uint64_t(limit - 1) - id);
    rows[i] = first + std::int64_t(id);
  }
  whole = signs >> 63 == 0;
  for (std::int64_t i = 0; whole && i < n; ++i) positions[i] = std::int32_t(i);
  items = whole ? n : 0;
}

template <class Objective>
template <class Id>
inline bool Query<Objective>::collect_distinct(std::int64_t limit) {
  const Id* ids = static_cast<const Id*>(args.candidates) + q * args.pool;
  if (!args.stage.best_first && !surely_distinct(ids)) return false;
  if (!args.limits.num_initial && !args.limits.query_groups) take_all(ids, limit);
  return true;
}

template <class Objective>
inline Status Query<Objective>::collect() {
  const std::int64_t ids = args.pool_stride ? args.pool : args.num_rows;
  if (args.limits.num_initial) clear(ws.in_initial);
  for (std::int64_t i = 0; i < args.limits.num_initial; ++i) {
    const std::int64_t id = id_at(args.limits.initial, args.limits.initial_bytes, q * args.limits.num_initial + i);
    if (id == -1) continue;
    if (id < 0 || id >= ids) return Status::id_out_of_range;
    if (!insert(ws.in_initial, id)) return Status::id_repeated;
    ws.picked_row[picked++] = base() + id;
  }
  bool distinct = true;
  if (args.candidates)
    distinct = args.id_bytes == 4 ? collect_distinct<std::int32_t>(ids) : collect_distinct<std::int64_t>(ids);
  if (!distinct) clear(ws.in_pool);
  const std::uint8_t* const allowed =
      args.limits.allowed ? args.limits.allowed + (args.limits.allowed_per_query ? q * ids : 0) : nullptr;
  const std::int64_t* excluded =
      args.limits.exclude + q * args.limits.num_excluded;  // ids ascend where any is excluded
  const std::int64_t* const excluded_end = excluded + args.limits.num_excluded;
  for (std::int64_t i = 0; !whole && i < args.pool; ++i) {
    std::int64_t id = i;
    if (args.candidates) {
      id = id_at(args.candidates, args.id_bytes, q * args.pool + i);
      if (id == -1) continue;
      if (id < 0 || id >= ids) return Status::id_out_of_range;
      if (!distinct && !insert(ws.in_pool, id)) return Status::id_repeated;
    }
    if (allowed && !allowed[id]) continue;
    while (excluded < excluded_end && *excluded < id) ++excluded;
    if (excluded < excluded_end && *excluded == id) continue;
    if (args.limits.num_initial && contains(ws.in_initial, id)) continue;
    const std::int64_t r = base() + id;
    if (args.limits.query_groups && args.limits.groups[r] == args.limits.query_groups[q]) continue;
    ws.row[items] = r;
    ws.position[items] = std::int32_t(i);
    ++items;
  }
  open = items;
  for (std::int64_t j = 0; j < items; j += W) store(ws.gate + j, splat(__builtin_inff()));
  for (std::int64_t j = 0; args.stage.ceiling && j < items; ++j)
    ws.gate[j] = args.stage.ceiling[q * args.pool + ws.position[j]];
  for (std::int64_t j = items; j < padded(items); ++j) ws.gate[j] = -__builtin_inff();
  if (args.limits.costs) close_unaffordable();
  if (args.limits.quotas.num_levels) close_barred();
  return Status::ok;
}
