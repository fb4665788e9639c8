// Bounds from the 8-bit codes of the rows, and the choice by them: few rows are read.

template <class Objective>
inline void Query<Objective>::code_query(const float* query, float scale) {
  if constexpr (!Objective::kCodes) return;
  if (!coded || args.relevance) return;
  query_code = encode_query(query, args.dims, scale, ws.query_code_bytes);
}

// Finds the next query's codes, for `code_products` to prefetch. Whether its ids are in range is not known yet.
template <class Objective>
template <class Id>
inline void Query<Objective>::find_next_codes() {
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

template <class Objective>
inline void Query<Objective>::find_next_codes() {
  if (args.candidates && q + 1 < args.num_queries)
    args.id_bytes == 4 ? find_next_codes<std::int32_t>() : find_next_codes<std::int64_t>();
  for (std::int64_t i = 0; i < kCodeBlock / 4; ++i) ws.next_codes[next_codes_end + i] = args.codes;
}

// Multiplies the codes of n items from j on and prefetches code rows of the next query, one for every four of them.
template <class Objective>
template <int A>
inline void Query<Objective>::multiply_codes(std::int64_t j, std::int64_t n, const std::int8_t* const* vectors,
                                             std::int32_t (*products)[kCodeBlock]) {
  const CodePrefetch next = {ws.next_codes + next_codes, code_stride(args.dims) - kCodeHeader};
  code_products<A>(ws.code_rows + j, vectors, code_bytes(args.dims), n, next, products);
  if (next_codes == next_codes_end) return;  // as always where threads share the items
  next_codes += (n + 3) / 4;
  if (next_codes > next_codes_end) next_codes = next_codes_end;
}

// What the codes leave open of a product with a unit vector, and what float32 rounding adds to it.
template <class Objective>
inline vf Query<Objective>::code_error(std::int64_t j, const CodeVector& vector) const {
  const vf row = load(ws.code_error + j);
  return row + splat(vector.error) + row * splat(vector.error) + splat(4.0f * slack);
}

template <class Objective>
inline vf Query<Objective>::code_scale(std::int64_t j, const CodeVector& vector) const {
  return load(ws.code_scale + j) * splat(vector.scale);
}

// Finds the code rows of the n items from j on.
template <class Objective>
inline void Query<Objective>::read_headers(std::int64_t j, std::int64_t n) {
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
template <class Objective>
inline void Query<Objective>::bound_relevance(std::int64_t j) {
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
  if (args.bias)
    for (std::int64_t i = j; i < j + n; ++i) relevance_known(i, ws.value[i]);
}

// Items of a block meet picks [p, p + A) by their codes.
template <class Objective>
template <int A>
inline void Query<Objective>::meet_by_codes(std::int64_t block_begin, std::int64_t p) {
  std::int32_t products[A][kCodeBlock];
  const std::int8_t* vectors[A];
  const std::int64_t n = block_items(block_begin);
  for (int a = 0; a < A; ++a) vectors[a] = ws.pick_codes[p + a].high;
  multiply_codes<A>(block_begin, n, vectors, products);
  for (std::int64_t i = 0; i < n; i += W) {
    const std::int64_t j = block_begin + i;
    typename Objective::Coded coded(ws, j);
    for (int a = 0; a < A; ++a) {
      const CodeVector& vector = ws.pick_codes[p + a];
      const vf product = __builtin_convertvector(load(products[a] + i) - vector.high_offset, vf);
      const vf similarity = product * code_scale(j, vector), error = code_error(j, vector);
      coded.meet(p + a, similarity - error, similarity + error);
    }
    coded.keep(ws, j);
  }
}

// The items of a block meet the picks that they have not met. Returns how many products that took. Always inlined: a
// call from `look` takes 2 % of MMR's time with P = 100.
template <class Objective>
__attribute__((always_inline)) inline std::int64_t Query<Objective>::catch_up_by_codes(std::int64_t block) {
  const std::int64_t j = block * kCodeBlock;
  std::int64_t p = ws.block_met[block];
  if (p < 0) {
    if (args.relevance)
      read_headers(j, block_items(j));
    else
      bound_relevance(j);
    p = 0;
  }
  const std::int64_t products = (picked - p) * block_items(j);
  for (; p + 4 <= picked; p += 4) meet_by_codes<4>(j, p);
  for (; p + 2 <= picked; p += 2) meet_by_codes<2>(j, p);
  if (p < picked) meet_by_codes<1>(j, p);
  ws.block_met[block] = std::int32_t(picked);
  return products;
}

template <class Objective>
inline void Query<Objective>::catch_up_block(std::int64_t block, int) {
  if constexpr (Objective::kFalls) {
    bound_block(block);
    if (ws.block_bound[block] < last_value) return;
  }
  catch_up_by_codes(block);
}

// How many products of codes the items have met picks by.
template <class Objective>
inline std::int64_t Query<Objective>::met_by_codes() const {
  std::int64_t met = 0;
  for (std::int64_t j = 0; j < items; j += kCodeBlock) {
    const std::int64_t picks = ws.block_met[j / kCodeBlock];
    met += picks > 0 ? picks * block_items(j) : 0;
  }
  return met;
}

// The blocks catch up on the threads that share the query. Where values only fall, those alone that may hold a value as
// large as that of the last pick, as when it was chosen.
template <class Objective>
inline void Query<Objective>::catch_up_by_codes() {
  const std::int64_t met = met_by_codes();
  ws.team->share((items + kCodeBlock - 1) / kCodeBlock, call_part<&Query::catch_up_block>, this);
  ws.code_products += met_by_codes() - met;
}

template <class Objective>
inline void Query<Objective>::bound_block(std::int64_t block) {
  const std::int64_t j = block * kCodeBlock;
  bound(j, j + block_items(j));
  ws.block_bound[block] = largest_bound(j);
}

template <class Objective>
inline void Query<Objective>::keep_codes(std::int64_t p, std::int64_t r) {
  if constexpr (Objective::kCodes) {
    if (!coded) return;
    std::int8_t* codes = ws.pick_code_bytes + p * code_bytes(args.dims);
    ws.pick_codes[p] = signed_codes(code_row(r), args.dims, code_stride(args.dims), codes);
    objective.keep_codes(*this, p);
  }
}

template <class Objective>
inline void Query<Objective>::start_codes() {
  for (std::int64_t j = 0; j < items; j += W) Objective::Coded::start(ws, j);
  const std::int64_t blocks = (items + kCodeBlock - 1) / kCodeBlock;
  const bool bounded_already = !args.relevance && !args.stage.ceiling;
  for (std::int64_t block = 0; block < blocks; ++block) ws.block_met[block] = bounded_already ? 0 : -1;
  for (std::int64_t j = padded(items); j < blocks * kCodeBlock; ++j) ws.bound[j] = -__builtin_inff();
  for (std::int64_t block = blocks; block < padded(blocks); ++block) ws.block_bound[block] = -__builtin_inff();
}

// Codes leave few items that may be the best; the rows of these tell.
template <class Objective>
inline Status Query<Objective>::choose_by_codes(std::int64_t* best, float* best_score) {
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
    if (i % 64 == 63) interrupt_point();
    if (!objective.known(*this, j)) objective.read(*this, j);
    consider(j, best, best_score);
  }
  return all_finite && (*best >= 0 || limited) ? Status::ok : Status::not_finite;
}

// The items whose values may be the largest, to ws.survivors.
template <class Objective>
inline std::int64_t Query<Objective>::find_contenders() {
  const std::int64_t blocks = (items + kCodeBlock - 1) / kCodeBlock;
  vf leasts;
  if constexpr (Objective::kFalls)
    leasts = look_at_promising(blocks);
  else
    leasts = look_at_all(blocks);
  const float least = largest_lane(leasts);
  std::int64_t contenders = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (!(ws.block_bound[block] >= least)) continue;
    for (std::int64_t j = block * kCodeBlock; j < (block + 1) * kCodeBlock; j += W)
      for (unsigned found = at_least_mask(load(ws.bound + j), least); found; found &= found - 1)
        ws.survivors[contenders++] = std::int32_t(j + __builtin_ctz(found));
  }
  return contenders;
}

// Where values also rise no bound outlives a pick.
template <class Objective>
inline vf Query<Objective>::look_at_all(std::int64_t blocks) {
  vf leasts = splat(-FLT_MAX);
  for (std::int64_t block = 0; block < blocks; ++block) leasts = look(block, leasts);
  return leasts;
}

template <class Objective>
inline vf Query<Objective>::look_at_promising(std::int64_t blocks) {
  // From the second choice on a bound that is not renewed is still a bound.
  for (std::int64_t block = 0; choices < 2 && block < blocks; ++block) bound_block(block);
  ++choices;
  const std::int64_t top = arg_max(ws.block_bound, blocks);
  vf leasts = splat(-FLT_MAX);                  // minus infinity is the bound of what cannot be picked
  for (std::int64_t i = -1; i < blocks; ++i) {  // the top one first
    const std::int64_t block = i < 0 ? top : i;
    if (i % 64 == 63) interrupt_point();
    if (i < 0 || (block != top && !any_greater(leasts, ws.block_bound[block]))) leasts = look(block, leasts);
  }
  return leasts;
}

// Renews the bounds of a block. The larger, lane by lane, of `leasts` and what the block's values are at least. Always
// inlined: a call stores and loads vectors, 2 % of VRSD's time with P = 100.
template <class Objective>
__attribute__((always_inline)) inline vf Query<Objective>::look(std::int64_t block, vf leasts) {
  const std::int64_t begin = block * kCodeBlock, end = begin + block_items(begin);
  if (unseen(block) || (picked > 0 && ws.block_met[block] < picked)) ws.code_products += catch_up_by_codes(block);
  vf bounds = splat(-__builtin_inff());
  for (std::int64_t j = begin; j < end; j += W) {
    vf most = load(ws.value + j), least = most - doubt(j, most);
    if (picked > 0) objective.range(*this, j, &least, &most);
    if (__builtin_expect(limited, 0)) least = surely_fit(j, least);
    const vf gate = load(ws.gate + j);
    most = smaller(most, gate);
    store(ws.bound + j, most);
    bounds = larger(bounds, most);
    leasts = larger(leasts, smaller(least, gate));
  }
  ws.block_bound[block] = largest_lane(bounds);
  return leasts;
}

// Closes the items of a vector that are surely too similar to a pick, or of too little relevance. What their values are
// at least, where they surely are not: another's value is no bar for the best.
template <class Objective>
vf Query<Objective>::surely_fit(std::int64_t j, vf least) {
  const vf most = splat(most_similarity()), nearest = larger(load(ws.likely_most + j), load(ws.rival_most + j));
  const vf gate = load(ws.gate + j);
  const vf relevance = load((args.bias ? ws.relevance : ws.value) + j), wanted = splat(least_relevance());
  const vi unfit = (load(ws.running + j) > most) | (relevance < wanted);
  store(ws.gate + j, unfit ? splat(-__builtin_inff()) : gate);
  return (nearest > most) | (relevance - doubt(j, relevance) < wanted) ? splat(-FLT_MAX) : least;
}

// By how much the value of an item, or its relevance, an upper bound before its row is read, may exceed what it is
// then.
template <class Objective>
inline vf Query<Objective>::doubt(std::int64_t j, vf value) const {
  if (!estimated()) return vf{};
  const vf size = larger(value, -value);
  const vf error = args.relevance ? splat(args.stage.relevance_error[q]) : code_error(j, query_code);
  const vi unread = load(ws.met + j) < 0;
  return unread ? splat(2.0f) * error + splat(slack) + splat(4.0f * FLT_EPSILON) * size : vf{};
}

// Of the block from item j on.
template <class Objective>
inline float Query<Objective>::largest_bound(std::int64_t j) const {
  vf best = load(ws.bound + j);
  for (std::int64_t i = W; i < kCodeBlock; i += W) best = larger(best, load(ws.bound + j + i));
  return largest_lane(best);
}
