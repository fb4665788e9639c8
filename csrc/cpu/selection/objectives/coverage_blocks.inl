// Coverage of more similarities than are kept: those of a block of aspects with a few items at a time, by the products
// and in the order of sums of all others, so that gains have the same bits. Many gains are found at once, on all
// threads: those of all items before the first pick, and then those of the items of largest bounds.

// What threads share: the items of `batch`, so many of them each time.
template <class Query>
struct Coverage::Share {
  const Coverage& coverage;
  const Query& query;
  std::int64_t items, each;
};

template <class Query>
void Coverage::find_share(void* share, std::int64_t part, int) {
  const auto& of = *static_cast<const Share<Query>*>(share);
  const std::int64_t begin = part * of.each, left = of.items - begin;
  of.coverage.find_gains(of.query, of.query.ws.batch + begin, left < of.each ? left : of.each,
                         of.query.ws.part_largest + part);
}

// The gains of n items, at most kShareItems; and the largest S of them, NaN where a product is not finite.
template <class Query>
void Coverage::find_gains(const Query& query, const std::int32_t* js, std::int64_t n, float* largest_found) const {
  static_assert(kAspectBlock % (2 * W) == 0, "sums of the order of gain()");
  const Workspace& ws = query.ws;
  vf even[kShareItems], odd[kShareItems];
  float found[kAspectRows * (kAspectBlock + kAspectVectors)], row[kAspectBlock];
  v4 rest = {}, most = {};
  for (std::int64_t i = 0; i < n; ++i) even[i] = odd[i] = vf{};
  for (std::int64_t block = 0; block < aspects; block += kAspectBlock) {
    const std::int64_t size = aspects - block < kAspectBlock ? aspects - block : kAspectBlock;
    for (std::int64_t i = 0; i < n; i += kAspectRows) {
      std::int32_t four[kAspectRows];
      find_four(i, n, four);
      for (int r = 0; r < kAspectRows; ++r) four[r] = js[four[r]];
      find_similarities(query, four, block, block + size, found, &most, &rest);
      for (std::int64_t r = 0; r < kAspectRows && i + r < n; ++r) {
        for (std::int64_t a = 0; a < size; ++a) row[a] = found[a * kAspectRows + r];
        for (std::int64_t a = size; a % W; ++a) row[a] = 0.0f;
        for (std::int64_t a = 0; a < size; a += W)
          (a / W % 2 ? odd : even)[i + r] += added(ws, load(row + a), block + a);
      }
    }
  }
  for (std::int64_t i = 0; i < n; ++i) ws.running[js[i]] = hsum(even[i] + odd[i]);
  *largest_found = hsum4(rest) == 0.0f ? largest_lane4(most) : __builtin_nanf("");
}

// The gains of the first n items of `batch`.
template <class Query>
void Coverage::renew_batch(Query& query, std::int64_t n) {
  Workspace& ws = query.ws;
  const std::int64_t threads = ws.team->num_threads();
  const std::int64_t fair = (n + threads - 1) / threads, whole = (fair + kAspectRows - 1) / kAspectRows;
  Share<Query> share = {*this, query, n, whole * kAspectRows < kShareItems ? whole * kAspectRows : kShareItems};
  const std::int64_t parts = (n + share.each - 1) / share.each;
  ws.team->share(parts, find_share<Query>, &share);
  for (std::int64_t part = 0; part < parts; ++part) {
    query.all_finite = query.all_finite && finite(ws.part_largest[part]);
    largest = ws.part_largest[part] > largest ? ws.part_largest[part] : largest;
  }
  for (std::int64_t i = 0; i < n; ++i)
    if (ws.gate[ws.batch[i]] >= kHeldBack) renewed(query, ws.batch[i]);
  ws.products += n * aspects;
}

// The items of largest bounds that do not know all picks, until one does.
template <class Query>
void Coverage::renew_best(Query& query, std::int64_t most) {
  Workspace& ws = query.ws;
  std::int64_t n = 0;
  for (; n < most; ++n) {
    const std::int32_t top = arg_max(ws.bound, query.items);
    if (!(ws.bound[top] > -FLT_MAX) || ws.renewed[top] == query.picked) break;
    ws.batch[n] = top;
    ws.bound[top] = -__builtin_inff();
  }
  renew_batch(query, n);
}

// Before the first pick: the largest S, and gains, of all items, as of those that may not be picked all products are
// to be finite too.
template <class Query>
void Coverage::prepare_in_blocks(Query& query) {
  Workspace& ws = query.ws;
  for (std::int64_t a = aspects; a < stride; ++a) ws.similarity[a] = 0.0f;
  for (std::int64_t j = 0; j < query.items; ++j) ws.batch[j] = std::int32_t(j);
  if (query.items) renew_batch(query, query.items);
  for (std::int64_t j = 0; query.picked > 0 && j < query.items; ++j) ws.renewed[j] = -1;  // initial items come now
}

template <class Query>
const float* Coverage::row_in_blocks(Query& query, std::int64_t j) const {
  float* const row = query.ws.similarity;
  const std::int32_t item = std::int32_t(j), four[kAspectRows] = {item, item, item, item};
  float found[kAspectRows * (kAspectBlock + kAspectVectors)];
  v4 rest = {}, most = {};
  for (std::int64_t block = 0; block < aspects; block += kAspectBlock) {
    const std::int64_t size = aspects - block < kAspectBlock ? aspects - block : kAspectBlock;
    find_similarities(query, four, block, block + size, found, &most, &rest);
    for (std::int64_t a = 0; a < size; ++a) row[block + a] = found[a * kAspectRows];
  }
  query.ws.products += aspects;
  return row;
}
