// Rows of logits. Those that need nothing but widening are folded from where they are; a row that is scaled, capped or
// restricted goes through a block of float32.

template <class T>
static inline const T* logits_row(const ScoreArgs& args, std::int64_t slot) {
  return static_cast<const T*>(args.logits) + args.rows[slot] * args.row_stride;
}

template <class T>
static void logits_targets(const ScoreArgs& args, std::int64_t slot) {
  const T* row = logits_row<T>(args, slot);
  const Change change = change_of(args, slot);
  for (std::int64_t pair = args.pair_begin[slot]; pair < args.pair_begin[slot + 1]; ++pair) {
    float z = -__builtin_inff();
    if (args.columns[pair] >= 0) {
      z = widen(row[args.columns[pair]]);
      if (!change.plain) z = transformed(splat(z), change)[0];
    }
    args.target[pair] = z;
  }
}

// n elements as floats, and zeros in the rest of the last vector.
template <class T>
static void widen_block(const T* x, std::int64_t n, float* out) {
  std::int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, load(x + i));
  if (i == n) return;
  T rest[W] = {};
  std::memcpy(rest, x + i, std::size_t(n - i) * sizeof(T));
  store(out + i, load(rest));
}

template <class T>
static void logits_chunk(const ScoreArgs& args, std::int64_t slot, std::int64_t begin, std::int64_t end,
                         ScoreState& state, TopList* top) {
  const T* row = logits_row<T>(args, slot);
  const Change change = change_of(args, slot);
  for (; begin < end; begin += kBlock) {
    const std::int64_t n = end - begin < kBlock ? end - begin : kBlock;
    if (change.plain && !args.allowed) {
      keep_largest(top, args.top, fold_block(args, slot, state, row + begin, n), row + begin, begin, n);
      continue;
    }
    const T* x = row + begin;
    T chosen[kBlock];
    if (args.allowed) {
      for (std::int64_t i = 0; i < n; ++i) chosen[i] = row[args.allowed[begin + i]];
      x = chosen;
    }
    float z[kBlock];
    widen_block(x, n, z);
    transform(z, n, change);
    keep_largest(top, args.top, fold_block(args, slot, state, z, n), z, begin, n);
  }
  settle(state);
}

static void score_logits(const ScoreArgs& args, std::int64_t slot, std::int64_t begin, std::int64_t end,
                         ScoreState& state, TopList* top) {
  switch (args.dtype) {
    case DType::f32:
      return logits_chunk<float>(args, slot, begin, end, state, top);
    case DType::f16:
      return logits_chunk<f16>(args, slot, begin, end, state, top);
    default:
      return logits_chunk<bf16>(args, slot, begin, end, state, top);
  }
}

static void score_logits_targets(const ScoreArgs& args, std::int64_t slot, void*) {
  switch (args.dtype) {
    case DType::f32:
      return logits_targets<float>(args, slot);
    case DType::f16:
      return logits_targets<f16>(args, slot);
    default:
      return logits_targets<bf16>(args, slot);
  }
}
