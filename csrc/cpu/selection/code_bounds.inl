// Bounds from the 8-bit codes of the rows, and the choice by them: few rows are read.

template <class T, Method kMethod>
inline void Query<T, kMethod>::code_query(const float* query, float scale) {
  if (!coded || args.relevance) return;
  query_code = encode_query(query, args.dims, scale, ws.query_code_bytes);
}

// Finds the next query's codes, for `code_products` to ask for. Whether its ids are in range is not known yet.
template <class T, Method kMethod>
template <class Id>
inline void Query<T, kMethod>::find_next_codes() {
  const std::int64_t stride = code_stride(args.dims), n = args.pool;
  const std::uint64_t limit = std::uint64_t(args.num_rows);
  const Id* ids = static_cast<const Id*>(args.candidates) + (q + 1) * n;
  const std::uint8_t *const codes = args.codes, **const next_codes = ws.next_codes;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t id = std::uint64_t(std::int64_t(ids[i]));
    next_codes[i] = codes + std::int64_t(id < limit ? id : 0) * stride;
  }
  next_codes_end = n;
}

template <class T, Method kMethod>
inline void Query<T, kMethod>::find_next_codes() {
  if (args.candidates && q + 1 < args.num_queries)
    args.id_bytes == 4 ? find_next_codes<std::int32_t>() : find_next_codes<std::int64_t>();
  for (std::int64_t i = 0; i < kCodeBlock / 4; ++i) ws.next_codes[next_codes_end + i] = args.codes;
}

// Multiplies the codes of n items from j on and asks for code rows of the next query, one for every four of them.
template <class T, Method kMethod>
template <int A>
inline void Query<T, kMethod>::multiply_codes(std::int64_t j, std::int64_t n, const std::int8_t* const* vectors,
                                              std::int32_t (*products)[kCodeBlock]) {
  const CodePrefetch next = {ws.next_codes + next_codes, code_stride(args.dims) - kCodeHeader};
  code_products<A>(ws.code_rows + j, vectors, code_bytes(args.dims), n, next, products);
  next_codes += (n + 3) / 4;
  if (next_codes > next_codes_end) next_codes = next_codes_end;
}

// What the codes leave open of a product with a unit vector, and what float32 rounding adds to it.
template <class T, Method kMethod>
inline vf Query<T, kMethod>::code_error(std::int64_t j, const CodeVector& vector) const {
  const vf row = load(ws.code_error + j);
  return row + splat(vector.error) + row * splat(vector.error) + splat(4.0f * slack);
}

template <class T, Method kMethod>
inline vf Query<T, kMethod>::code_scale(std::int64_t j, const CodeVector& vector) const {
  return load(ws.code_scale + j) * splat(vector.scale);
}

// Finds the code rows of the n items from j on.
template <class T, Method kMethod>
inline void Query<T, kMethod>::read_headers(std::int64_t j, std::int64_t n) {
  for (std::int64_t i = j; i < j + n; ++i) {
    ws.code_rows[i] = code_row(ws.row[i]);
    const CodeHeader header = code_header(ws.code_rows[i], code_stride(args.dims));
    ws.code_scale[i] = header.scale;
    ws.code_error[i] = header.error;
  }
  for (std::int64_t i = j + n; i < j + (n + 3) / 4 * 4; ++i) ws.code_rows[i] = ws.code_rows[j];
  // Lanes after the last item are multiplied too: a subnormal number left in one takes a hundred times as long.
  for (std::int64_t i = j + n; i < padded(j + n); ++i) ws.code_scale[i] = ws.code_error[i] = 0.0f;
}

// The value of an item of the block from j on becomes an upper bound.
template <class T, Method kMethod>
inline void Query<T, kMethod>::bound_relevance(std::int64_t j) {
  std::int32_t products[2][kCodeBlock];
  const std::int8_t* vectors[2] = {query_code.high, query_code.low};
  const std::int64_t n = block_items(j);
  read_headers(j, n);
  multiply_codes<2>(j, n, vectors, products);
  ws.code_products += n;
  for (std::int64_t i = 0; i < n; i += W) {
    const vf high = __builtin_convertvector(load(products[0] + i) - query_code.high_offset, vf);
    const vf low = __builtin_convertvector(load(products[1] + i) - query_code.low_offset, vf);
    const vf product = (high + low * splat(1.0f / 256)) * code_scale(j + i, query_code);
    store(ws.value + j + i, product + code_error(j + i, query_code));
  }
  if (args.bias && !is_vrsd())
    for (std::int64_t i = j; i < j + n; ++i) relevance_known(i, ws.value[i]);
}

// Items of a block meet picks [p, p + A) by their codes.
template <class T, Method kMethod>
template <int A>
inline void Query<T, kMethod>::meet_by_codes(std::int64_t block_begin, std::int64_t p) {
  std::int32_t products[A][kCodeBlock];
  const std::int8_t* vectors[A];
  const std::int64_t n = block_items(block_begin);
  for (int a = 0; a < A; ++a) vectors[a] = ws.pick_codes[p + a].high;
  multiply_codes<A>(block_begin, n, vectors, products);
  ws.code_products += A * n;
  for (std::int64_t i = 0; i < n; i += W) {
    const std::int64_t j = block_begin + i;
    vf running = load(ws.running + j), likely_most = load(ws.likely_most + j), rival_most = load(ws.rival_most + j);
    vi likely = load(ws.likely + j);
    for (int a = 0; a < A; ++a) {
      const CodeVector& vector = ws.pick_codes[p + a];
      const vf product = __builtin_convertvector(load(products[a] + i) - vector.high_offset, vf);
      const vf similarity = product * code_scale(j, vector), error = code_error(j, vector);
      const vf least = similarity - error, most = similarity + error;
      if (is_vrsd()) {
        running = running + least;
        likely_most = likely_most + most;
        continue;
      }
      const vi nearest = least > running;
      rival_most = larger(rival_most, nearest ? likely_most : most);
      likely_most = nearest ? most : likely_most;
      running = nearest ? least : running;
      likely = nearest ? vi{} + std::int32_t(p + a) : likely;
    }
    store(ws.running + j, running);
    store(ws.likely_most + j, likely_most);
    if (is_vrsd()) continue;
    store(ws.rival_most + j, rival_most);
    store(ws.likely + j, likely);
  }
}

template <class T, Method kMethod>
inline void Query<T, kMethod>::catch_up_by_codes(std::int64_t block) {
  const std::int64_t j = block * kCodeBlock;
  std::int64_t p = ws.block_met[block];
  if (p < 0) {
    if (args.relevance)
      read_headers(j, block_items(j));
    else
      bound_relevance(j);
    p = 0;
  }
  for (; p + 4 <= picked; p += 4) meet_by_codes<4>(j, p);
  for (; p + 2 <= picked; p += 2) meet_by_codes<2>(j, p);
  if (p < picked) meet_by_codes<1>(j, p);
  ws.block_met[block] = std::int32_t(picked);
}

template <class T, Method kMethod>
inline void Query<T, kMethod>::bound_block(std::int64_t block) {
  const std::int64_t j = block * kCodeBlock;
  bound(j, j + block_items(j));
  ws.block_bound[block] = largest_bound(j);
}

// Reads the row of item j: its relevance, if that is not given, and its similarity to the pick that codes make out to
// be the nearest; where another may be nearer, to all that it has not met.
template <class T, Method kMethod>
inline void Query<T, kMethod>::refine(std::int64_t j) {
  if (is_vrsd()) return refine_vrsd(j);
  const bool unread = ws.met[j] < 0, ask = unread && estimated();
  if (unread) {
    ws.scale[j] = args.norm == Norm::scaled ? args.scales[ws.row[j]] : 1.0f;
    ws.met[j] = 0;
    ++ws.rows_read;
  }
  const T* data = row(ws.row[j]);
  const float* vectors[kTile];
  float dots[kTile];
  const std::int32_t likely = ws.likely[j];
  int n = 0;
  if (ask) vectors[n++] = ws.query;
  if (likely >= 0) vectors[n++] = pick(likely);
  if (n > 0) dot_some(vectors, n, data, args.dims, dots);
  ws.products += n;
  if (ask) relevance_known(j, ws.pivot[j] = dots[0] * ws.scale[j]);
  float nearest = likely >= 0 ? dots[n - 1] * ws.picked_scale[likely] * ws.scale[j] : ws.exact[j];
  if (!(nearest >= ws.rival_most[j])) {
    nearest = ws.exact[j];
    for (std::int64_t p = ws.met[j]; p < picked; p += n) {
      for (n = 0; n < kTile && p + n < picked; ++n) vectors[n] = pick(p + n);
      dot_some(vectors, n, data, args.dims, dots);
      ws.products += n;
      for (int i = 0; i < n; ++i) {
        const float similarity = dots[i] * ws.picked_scale[p + i] * ws.scale[j];
        nearest = similarity > nearest ? similarity : nearest;
      }
    }
  }
  settle(j, nearest);
}

// The largest similarity of item j to a pick is known.
template <class T, Method kMethod>
inline void Query<T, kMethod>::settle(std::int64_t j, float similarity) {
  ws.running[j] = ws.likely_most[j] = ws.exact[j] = similarity;
  ws.rival_most[j] = -FLT_MAX;
  ws.likely[j] = -1;
  ws.met[j] = std::int32_t(picked);
}

template <class T, Method kMethod>
inline void Query<T, kMethod>::keep_codes(std::int64_t p, std::int64_t r) {
  if (!coded) return;
  std::int8_t* codes = ws.pick_code_bytes + p * code_bytes(args.dims);
  ws.pick_codes[p] = signed_codes(code_row(r), args.dims, code_stride(args.dims), codes);
  if (is_vrsd()) lost = add_lost(ws.pick_codes[p], row(r), args.dims, ws.picked_scale[p], ws.lost);
}

template <class T, Method kMethod>
inline void Query<T, kMethod>::start_codes() {
  for (std::int64_t j = 0; j < items; j += W) {
    store(ws.running + j, is_vrsd() ? vf{} : splat(-1.0f - 4.0f * slack));
    store(ws.likely_most + j, is_vrsd() ? vf{} : splat(-FLT_MAX));
    store(ws.exact + j, is_vrsd() ? vf{} : splat(-FLT_MAX));
    if (is_vrsd()) continue;
    store(ws.rival_most + j, splat(-FLT_MAX));
    store(ws.likely + j, vi{} - 1);
  }
  for (std::int64_t d = 0; is_vrsd() && d < args.dims; d += W) store(ws.lost + d, vf{});
  const std::int64_t blocks = (items + kCodeBlock - 1) / kCodeBlock;
  const bool bounded_already = !args.relevance && !args.ceiling;
  for (std::int64_t block = 0; block < blocks; ++block) ws.block_met[block] = bounded_already ? 0 : -1;
  for (std::int64_t j = padded(items); j < blocks * kCodeBlock; ++j) ws.bound[j] = -__builtin_inff();
  for (std::int64_t block = blocks; block < padded(blocks); ++block) ws.block_bound[block] = -__builtin_inff();
}

// Codes leave few items that may be the best; the rows of these tell.
template <class T, Method kMethod>
inline Status Query<T, kMethod>::choose_by_codes(std::int64_t* best, float* best_score) {
  const std::int64_t contenders = find_contenders();
  for (std::int64_t i = 0; i < contenders; ++i)
    if (ws.met[ws.survivors[i]] < 0) prefetch_row(ws.row[ws.survivors[i]]);
  // The most promising one goes first and spares others.
  for (std::int64_t i = 1; i < contenders; ++i) {
    const std::int32_t first = ws.survivors[0], other = ws.survivors[i];
    const bool better = ws.bound[other] > ws.bound[first];
    ws.survivors[0] = better ? other : first;
    ws.survivors[i] = better ? first : other;
  }
  *best = -1;
  for (std::int64_t i = 0; i < contenders; ++i) {
    const std::int32_t j = ws.survivors[i];
    if (*best >= 0 && ws.bound[j] < *best_score) continue;
    if (!known(j)) refine(j);
    consider(j, best, best_score);
  }
  return all_finite && *best >= 0 ? Status::ok : Status::not_finite;
}

// The items whose values may be the largest, to ws.survivors.
template <class T, Method kMethod>
inline std::int64_t Query<T, kMethod>::find_contenders() {
  const std::int64_t blocks = (items + kCodeBlock - 1) / kCodeBlock;
  const float least = largest_lane(is_vrsd() ? look_at_all(blocks) : look_at_promising(blocks));
  std::int64_t contenders = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (!(ws.block_bound[block] >= least)) continue;
    for (std::int64_t j = block * kCodeBlock; j < (block + 1) * kCodeBlock; j += W)
      for (unsigned found = at_least_mask(load(ws.bound + j), least); found; found &= found - 1)
        ws.survivors[contenders++] = std::int32_t(j + __builtin_ctz(found));
  }
  return contenders;
}

// VRSD's values fall and rise: no bound outlives a pick.
template <class T, Method kMethod>
inline vf Query<T, kMethod>::look_at_all(std::int64_t blocks) {
  vf leasts = splat(-FLT_MAX);
  for (std::int64_t block = 0; block < blocks; ++block) leasts = look(block, leasts);
  return leasts;
}

template <class T, Method kMethod>
inline vf Query<T, kMethod>::look_at_promising(std::int64_t blocks) {
  // From the second choice on a bound that is not renewed is still a bound.
  for (std::int64_t block = 0; choices < 2 && block < blocks; ++block) bound_block(block);
  ++choices;
  const std::int64_t top = arg_max(ws.block_bound, blocks);
  vf leasts = look(top, splat(-FLT_MAX));  // minus infinity is the bound of what cannot be picked
  for (std::int64_t block = 0; block < blocks; ++block)
    if (block != top && !any_greater(leasts, ws.block_bound[block])) leasts = look(block, leasts);
  return leasts;
}

// Renews the bounds of a block. The larger, lane by lane, of `leasts` and what the block's values are at least.
template <class T, Method kMethod>
inline vf Query<T, kMethod>::look(std::int64_t block, vf leasts) {
  const std::int64_t begin = block * kCodeBlock, end = begin + block_items(begin);
  if (unseen(block) || (picked > 0 && ws.block_met[block] < picked)) catch_up_by_codes(block);
  vf bounds = splat(-__builtin_inff());
  for (std::int64_t j = begin; j < end; j += W) {
    const vf gate = load(ws.gate + j);
    vf most = load(ws.value + j), least = most - doubt(j);
    if (picked > 0) is_vrsd() ? vrsd_range(j, &least, &most) : mmr_range(j, &least, &most);
    most = smaller(most, gate);
    store(ws.bound + j, most);
    bounds = larger(bounds, most);
    leasts = larger(leasts, smaller(least, gate));
  }
  ws.block_bound[block] = largest_lane(bounds);
  return leasts;
}

// By how much the value of an item, an upper bound before its row is read, may exceed the relevance.
template <class T, Method kMethod>
inline vf Query<T, kMethod>::doubt(std::int64_t j) const {
  if (!estimated()) return vf{};
  const vf value = load(ws.value + j), size = larger(value, -value);
  const vf error = args.relevance ? splat(args.relevance_error[q]) : code_error(j, query_code);
  const vi unread = load(ws.met + j) < 0;
  return unread ? splat(2.0f) * error + splat(slack) + splat(4.0f * FLT_EPSILON) * size : vf{};
}

// Whether the value of an item is known: of the first pick, or after all picks so far.
template <class T, Method kMethod>
inline bool Query<T, kMethod>::known(std::int64_t j) {
  if (is_vrsd()) return ws.met[j] == picked;
  if (picked == 0) return !estimated() || ws.met[j] >= 0;
  if (ws.met[j] < 0) return false;
  if (ws.likely[j] < 0 && ws.rival_most[j] <= ws.exact[j]) settle(j, ws.exact[j]);
  return ws.met[j] == picked;
}

// Of the block from item j on.
template <class T, Method kMethod>
inline float Query<T, kMethod>::largest_bound(std::int64_t j) const {
  vf best = load(ws.bound + j);
  for (std::int64_t i = W; i < kCodeBlock; i += W) best = larger(best, load(ws.bound + j + i));
  return largest_lane(best);
}
