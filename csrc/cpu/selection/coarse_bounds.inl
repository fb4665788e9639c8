// Bounds from 4-bit codes, for many picks out of many items by rules that add up similarities. A value changes with
// every pick, so at each all items are bounded anew, by one product of their codes with the sum s of the picks: half a
// byte a dimension is little to read. Few rows then meet s itself, to within the rounding of the products with single
// picks; the one or two that may still be the best meet the picks that they lack, which gives them the bits of the
// dense rule.

// Items of which the best by its codes may raise the bar for the others.
constexpr std::int64_t kCoarseChunk = 1024;
// Rows that the centres and the steps of the dimensions are taken from, and the step, in standard deviations.
constexpr std::int64_t kCoarseSample = 1024;
constexpr double kCoarseStep = 0.36;
// Rows that are prefetched before they meet the sum.
constexpr std::int64_t kRowsAhead = 16;

// The centres and steps of the dimensions.
template <class Objective>
inline void Query<Objective>::find_steps() {
  const std::int64_t dims = args.dims, rows = items < kCoarseSample ? items : kCoarseSample;
  double *const sum = ws.coarse_sum, *const squares = ws.coarse_rest;
  for (std::int64_t d = 0; d < dims; ++d) sum[d] = squares[d] = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t j = i * items / rows;
    if (!is_open(j)) continue;
    const float* const x = widened(ws.row[j]);
    for (std::int64_t d = 0; d < dims; ++d) {
      const double element = double(x[d]) * ws.scale[j];
      sum[d] += element;
      squares[d] += element * element;
    }
  }
  for (std::int64_t d = 0; d < padded(dims); ++d) {
    const double mean = d < dims ? sum[d] / double(rows) : 0;
    const double variance = d < dims ? squares[d] / double(rows) - mean * mean : 0;
    const double step = variance > 1e-12 ? kCoarseStep * __builtin_sqrt(variance) : 0;
    ws.coarse_centre[d] = float(mean);
    ws.coarse_step[d] = float(step);
    ws.coarse_inverse[d] = step > 0 ? float(1 / step) : 0.0f;
  }
}

// Calls `part` for all blocks of items, on the threads that share the query. What parts write are elements of their own
// items, their own CoarseBlock, and what is of their thread.
template <class Objective>
template <void (Query<Objective>::*part)(std::int64_t block, int thread)>
inline void Query<Objective>::share_items() {
  ws.team->share(item_blocks(), call_part<part>, this);
}

template <class Objective>
inline void Query<Objective>::encode_block(std::int64_t block, int thread) {
  const std::int64_t words = coarse_bytes(args.dims) / 4, end = block_end(block);
  float* const row = ws.coarse_row + thread * coarse_row_floats(args.dims);
  std::uint8_t* const codes = reinterpret_cast<std::uint8_t*>(row + args.dims);
  CoarseBlock& found = ws.coarse_blocks[block];
  found.finite = true;
  found.spread = 0.0f;
  for (std::int64_t j = block * block_size(); j < end; ++j) {
    ws.coarse_error[j] = -__builtin_inff();
    if (!is_open(j)) continue;  // it may be bad
    float spread;
    ws.coarse_error[j] = coarse_row(widened(ws.row[j], row), args.dims, ws.scale[j], ws.coarse_centre, ws.coarse_step,
                                    ws.coarse_inverse, codes, &spread);
    found.finite = found.finite && finite(ws.coarse_error[j]);
    found.spread = spread > found.spread ? spread : found.spread;
    pack_coarse(codes, words, j % W, ws.coarse_codes + j / W * words * 4 * W);
  }
}

// Makes the codes of all items that may be picked, whose rows are read.
template <class Objective>
inline Status Query<Objective>::start_coarse() {
  Status status = Status::ok;
  for (std::int64_t j = 0; j < items && status == Status::ok; ++j) {
    look_up(j);
    const std::int32_t js = std::int32_t(j);
    if (!is_open(j)) ws.scale[j] = 0.0f;
    if (is_open(j) && ws.met[j] < 0) status = scale_rows<1>(&js);
  }
  if (status != Status::ok || items == 0) return status;
  find_steps();
  share_items<&Query::encode_block>();
  float largest = 0.0f;
  for (std::int64_t block = 0; block < item_blocks(); ++block) {
    all_finite = all_finite && ws.coarse_blocks[block].finite;
    largest = ws.coarse_blocks[block].spread > largest ? ws.coarse_blocks[block].spread : largest;
    ws.coarse_blocks[block].best = -1;
  }
  for (std::int64_t j = items; j < padded(items); ++j) ws.coarse_error[j] = -__builtin_inff();
  coarse_sum.spread = __builtin_sqrt(double(largest)) * 1.0001;
  for (std::int64_t j = 0; j < items; ++j) {
    const double size = __builtin_fabs(double(ws.value[j]));
    coarse_sum.value = is_open(j) && size > coarse_sum.value ? size : coarse_sum.value;
    coarse_sum.unvalued = coarse_sum.unvalued && (!is_open(j) || ws.value[j] == 0.0f);
  }
  // The first axis is the query, if the items have met one.
  const bool met = has_query() && !lazy();
  double query2 = 0;
  for (std::int64_t d = 0; d < args.dims; ++d) {
    ws.coarse_sum[d] = ws.coarse_total[d] = 0;
    ws.coarse_axis[d] = met ? asked(d) : 0;
    query2 += ws.coarse_axis[d] * ws.coarse_axis[d];
  }
  for (std::int64_t d = 0; d < args.dims && query2 > 0; ++d) ws.coarse_axis[d] /= __builtin_sqrt(query2);
  for (std::int64_t j = 0; j < items; j += W) store(ws.coarse_along + j, met ? load(ws.pivot + j) : vf{});
  return all_finite ? Status::ok : Status::not_finite;
}

// Adds to the sum the picks that it lacks.
template <class Objective>
inline void Query<Objective>::add_picks() {
  CoarseSum& sum = coarse_sum;
  for (; sum.picks < picked; ++sum.picks) {
    const double scale = ws.picked_scale[sum.picks];
    const float* const x = widened(ws.picked_row[sum.picks]);
    double norm2 = 0;
    for (std::int64_t d = 0; d < args.dims; ++d) {
      ws.coarse_sum[d] += x[d] * scale;
      norm2 += ws.coarse_sum[d] * ws.coarse_sum[d];
    }
    for (std::int64_t d = 0; d < args.dims; ++d) ws.coarse_total[d] += ws.coarse_sum[d];
    sum.length = __builtin_sqrt(norm2) * (1 + 1e-9);
    // Of an addition to what an item remembers: a product's rounding, and that of a sum of at most this size.
    sum.error += slack + 0.51 * FLT_EPSILON * (1 + sum.length);
  }
}

// What the sum has beside an axis, whose length does not matter, and how far it goes along that. The length of the
// rest.
template <class Objective>
inline double Query<Objective>::take_axis(const double* axis, double* along) {
  double product = 0, norm2 = 0, rest2 = 0;
  for (std::int64_t d = 0; d < args.dims; ++d) {
    product += ws.coarse_sum[d] * axis[d];
    norm2 += axis[d] * axis[d];
  }
  const double share = norm2 > 0 ? product / norm2 : 0;
  for (std::int64_t d = 0; d < args.dims; ++d) {
    ws.coarse_rest[d] = ws.coarse_sum[d] - share * axis[d];
    rest2 += ws.coarse_rest[d] * ws.coarse_rest[d];
  }
  *along = share * __builtin_sqrt(norm2);
  return __builtin_sqrt(rest2) * (1 + 1e-9);
}

// All items meet the direction in which the sums after each pick went, which becomes the axis.
template <class Objective>
inline void Query<Objective>::meet_axis() {
  double norm2 = 0;
  for (std::int64_t d = 0; d < args.dims; ++d) norm2 += ws.coarse_total[d] * ws.coarse_total[d];
  // The axis is what it is as floats.
  for (std::int64_t d = 0; d < args.dims; ++d)
    ws.coarse_axis[d] = ws.unit[d] = float(ws.coarse_total[d] / __builtin_sqrt(norm2));
  prepare(ws.unit, args.dims, 1.0f, ws.coarse_prepared);
  share_items<&Query::meet_axis_in_block>();
  ws.products += items;
  coarse_sum.met = 0;
}

template <class Objective>
inline void Query<Objective>::meet_axis_in_block(std::int64_t block, int) {
  const std::int64_t end = block_end(block);
  const void* rows[4];
  for (std::int64_t j = block * block_size(); j < end; j += 4) {
    const int n = int(end - j < 4 ? end - j : 4);
    for (int i = 0; i < n; ++i) rows[i] = row(ws.row[j + i]);
    type.of_rows[n](&ws.coarse_prepared, rows, args.dims, ws.coarse_along + j);
    for (int i = 0; i < n; ++i) ws.coarse_along[j + i] *= ws.scale[j + i];
  }
}

// The sum as codes. Where it is long they would leave much open: it goes far along some axis, such as the query or the
// mean of the rows, with which the products are known. All items meet a better axis once as many rows have met sums.
template <class Objective>
inline typename Query<Objective>::CoarseVector Query<Objective>::coarse_vector() {
  const std::int64_t dims = args.dims;
  CoarseSum& sum = coarse_sum;
  double along;
  if (sum.met >= items) {
    const double better = take_axis(ws.coarse_total, &along);
    if (better < 0.9 * take_axis(ws.coarse_axis, &along)) meet_axis();
  }
  const double length = take_axis(ws.coarse_axis, &along);
  double largest = 0, start = 0, sizes = 0, lost = 0, lost2 = 0;
  for (std::int64_t d = 0; d < dims; ++d) {
    const double weight = ws.coarse_rest[d] * ws.coarse_step[d], size = __builtin_fabs(weight);
    largest = size > largest ? size : largest;
    start += ws.coarse_rest[d] * ws.coarse_centre[d] - 7.5 * weight;
    sizes += size;
  }
  const float scale = float(largest / 127);
  const double inverse = scale > 0 ? 1 / double(scale) : 0;
  for (std::int64_t d = 0; d < 2 * coarse_bytes(dims); ++d) {
    double code = 0;
    if (d < dims) {
      const double weight = ws.coarse_rest[d] * ws.coarse_step[d], place = weight * inverse;
      code = double(std::int64_t(place < 0 ? place - 0.5 : place + 0.5));
      code = code > 127 ? 127 : code < -127 ? -127 : code;
      const double left = weight - code * scale;
      lost += left;
      lost2 += left * left;
    }
    ws.coarse_vector[d] = std::int8_t(code);
  }
  const double rounding = 16 * FLT_EPSILON * (__builtin_fabs(start) + 8 * sizes + length + __builtin_fabs(along));
  const double error = __builtin_sqrt(lost2) * sum.spread + rounding + slack * __builtin_fabs(along);
  return {float(along), scale, float(start + 7.5 * lost), float(length) * (1 + 4 * FLT_EPSILON),
          float(error) * (1 + 4 * FLT_EPSILON)};
}

// The best of all items by their codes. First the bar: of what was best in each block at the pick before, and in each
// part of a block by the codes, the rows meet the sum. Then all that its codes do not leave below the bar of all
// blocks. So it is the same rows whichever threads take which blocks and when.
template <class Objective>
inline Status Query<Objective>::choose_by_coarse(std::int64_t* best, float* best_score) {
  add_picks();
  coarse_sum.vector = coarse_vector();
  coarse_sum.bar = -FLT_MAX;
  for (std::int64_t d = 0; d < args.dims; ++d) ws.unit[d] = float(ws.coarse_sum[d]);
  prepare(ws.unit, args.dims, 1.0f, ws.coarse_prepared);
  const std::int64_t blocks = item_blocks();
  CoarseBlock all = {-FLT_MAX, -1, 0, 0, 0, 0.0f, true};
  std::int32_t js[4];
  int n = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int32_t j = ws.coarse_blocks[block].best;
    if (j >= 0 && is_open(j)) js[n++] = j;
    if (n == 0 || (n < 4 && block + 1 < blocks)) continue;
    meet_sum(js, n, nullptr, &all);
    n = 0;
  }
  coarse_sum.bar = all.bar;
  share_items<&Query::bound_by_coarse>();
  for (std::int64_t block = 0; block < blocks; ++block) {
    const float bar = ws.coarse_blocks[block].bar;
    coarse_sum.bar = bar > coarse_sum.bar ? bar : coarse_sum.bar;
  }
  share_items<&Query::find_contenders_in>();
  std::int64_t contenders = 0, top = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const CoarseBlock& found = ws.coarse_blocks[block];
    all.met += found.met;
    for (std::int64_t i = 0; i < found.contenders; ++i) {
      const std::int32_t j = ws.survivors[block * block_size() + i];
      ws.survivors[contenders] = j;
      top = ws.bound[j] > ws.bound[ws.survivors[top]] ? contenders : top;
      ++contenders;
    }
  }
  ws.code_products += items;
  ws.products += all.met;
  coarse_sum.met += all.met;
  if (contenders == 0) return Status::not_finite;
  const std::int32_t first = ws.survivors[top];
  const Status status = catch_up(&first, 1);
  consider(first, best, best_score);
  return status == Status::ok ? consider_others(first, contenders, best, best_score) : status;
}

// The bar of a block of items; ws.coarse_found has the vectors of them with one that may reach it, and ws.bound what
// their products with the sum are at least.
template <class Objective>
inline void Query<Objective>::bound_by_coarse(std::int64_t block, int) {
  const std::int64_t words = coarse_bytes(args.dims) / 4, block_bytes = words * 4 * W, last = block_end(block);
  const CoarseVector vector = coarse_sum.vector;
  const double error = double(vector.error) + coarse_sum.error;
  std::int32_t* const vectors = ws.coarse_found + block * block_size() / W;
  CoarseBlock found = {coarse_sum.bar, -1, 0, 0, 0, 0.0f, true};
  auto test = objective.test(*this, found.bar, error);
  alignas(64) float lows[kCoarseChunk];
  for (std::int64_t begin = block * block_size(), end; begin < last; begin = end) {
    end = last - begin < kCoarseChunk ? last : begin + kCoarseChunk;
    vf top = splat(-__builtin_inff());
    for (std::int64_t j = begin; j < end; j += W) {
      const vi products = coarse_products(ws.coarse_codes + j / W * block_bytes, ws.coarse_vector, words);
      vf low = splat(vector.start);  // arrays that add nothing are not read
      if (vector.along != 0.0f) low = low + load(ws.coarse_along + j) * splat(vector.along);
      low = low + __builtin_convertvector(products, vf) * splat(vector.scale) -
            load(ws.coarse_error + j) * splat(vector.length);
      top = larger(test.most(ws, j, low), top);
      store(lows + (j - begin), low);
    }
    const float most = largest_lane(top);
    if (!(most >= test.least && most > -FLT_MAX)) continue;
    for (std::int64_t j = begin; j < end; j += W) {
      const std::int64_t lane = first_equal(test.most(ws, j, load(lows + (j - begin))), most);
      if (lane == W) continue;
      const std::int32_t promising = std::int32_t(j + lane);
      meet_sum(&promising, 1, nullptr, &found);
      test = objective.test(*this, found.bar, error);
      break;
    }
    for (std::int64_t j = begin; j < end; j += W) {
      const vf low = load(lows + (j - begin));
      if (!at_least_mask(test.most(ws, j, low), test.least)) continue;
      store(ws.bound + j, low);
      vectors[found.vectors++] = std::int32_t(j);
    }
  }
  ws.coarse_blocks[block] = found;
}

// The items of a block whose rows may be the best, from its place in ws.survivors on.
template <class Objective>
inline void Query<Objective>::find_contenders_in(std::int64_t block, int) {
  const std::int32_t* const vectors = ws.coarse_found + block * block_size() / W;
  std::int32_t* const contenders = ws.survivors + block * block_size();
  CoarseBlock found = ws.coarse_blocks[block];
  const auto test = objective.test(*this, coarse_sum.bar, double(coarse_sum.vector.error) + coarse_sum.error);
  found.bar = coarse_sum.bar;
  std::int32_t js[kRowsAhead + W];
  std::int64_t n = 0;
  for (std::int64_t v = 0; v < found.vectors; ++v) {
    const std::int64_t j = vectors[v];
    for (unsigned lanes = at_least_mask(test.most(ws, j, load(ws.bound + j)), test.least); lanes; lanes &= lanes - 1) {
      js[n] = std::int32_t(j + __builtin_ctz(lanes));
      prefetch_row(ws.row[js[n++]]);
    }
    if (n < kRowsAhead && v + 1 < found.vectors) continue;
    for (std::int64_t i = 0; i < n; i += 4) meet_sum(js + i, int(n - i < 4 ? n - i : 4), contenders, &found);
    n = 0;
  }
  ws.coarse_blocks[block] = found;
}

// Items js[0..n), n <= 4, meet the sum of the picks; those that may be the best are added to the contenders, if asked.
template <class Objective>
inline void Query<Objective>::meet_sum(const std::int32_t* js, int n, std::int32_t* contenders, CoarseBlock* found) {
  const void* rows[4];
  float dots[4];
  for (int i = 0; i < n; ++i) rows[i] = row(ws.row[js[i]]);
  type.of_rows[n](&ws.coarse_prepared, rows, args.dims, dots);
  found->met += n;
  const float error = float(coarse_sum.error + (slack + 4 * FLT_EPSILON) * coarse_sum.length) * (1 + 4 * FLT_EPSILON);
  for (int i = 0; i < n; ++i) {
    const std::int32_t j = js[i];
    const bool known = ws.met[j] == picked;
    const float product = known ? ws.running[j] : dots[i] * ws.scale[j], off = known ? 0.0f : error;
    // A value falls or rises with the product all the way, also as it is rounded.
    const float a = objective.value_at(*this, j, product - off), b = objective.value_at(*this, j, product + off);
    const bool known_way = !objective.may_cancel_at(ws, j, product - off);
    const float most = !known_way ? FLT_MAX : a > b ? a : b, least = !known_way ? -FLT_MAX : a > b ? b : a;
    if (!(most >= found->bar)) continue;
    if (contenders) {
      ws.bound[j] = most;
      contenders[found->contenders++] = j;
    }
    if (found->best < 0 || least >= found->bar) found->best = j;
    found->bar = least > found->bar ? least : found->bar;
  }
}
