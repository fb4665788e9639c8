// Rows of hidden states: logits of targets, and chunks of columns, in blocks of products that are folded and forgotten.
// P, which multiplies, is Dots of linear.inl or Tiles of amx.inl: kTargetSlots slots at a time for targets, kSlots for
// chunks.

static void add_bias(const ScoreArgs& args, const Columns& columns, float* x) {
  if (!args.head_bias) return;
  for (std::int64_t i = 0; i < columns.count; ++i) x[i] += args.head_bias[columns[i]];
}

// z of the targets of slots.
template <class P>
static void targets_by(const ScoreArgs& args, const Slots& all, typename P::Scratch& scratch) {
  for (std::int64_t done = 0; done < all.count; done += P::kTargetSlots) {
    const Slots slots = all.part(done, P::kTargetSlots);
    const std::int64_t* begins = args.pair_begin + slots.first + slots.at;
    for (std::int64_t pair = begins[0]; pair < begins[slots.count]; pair += P::kColumns) {
      const std::int64_t left = begins[slots.count] - pair, count = left < P::kColumns ? left : P::kColumns;
      const Columns columns = {args.columns, pair, count};
      P::multiply(args, slots, columns, 0, scratch);
      for (std::int64_t j = 0; j < slots.count; ++j) {
        const std::int64_t begin = begins[j] > pair ? begins[j] : pair;
        const std::int64_t end = begins[j + 1] < pair + count ? begins[j + 1] : pair + count;
        if (begin >= end) continue;
        float* z = scratch.products + j * kMaxColumns;
        add_bias(args, columns, z);
        transform(z, count, change_of(args, slots.first + slots.at + j));
        for (std::int64_t i = begin; i < end; ++i)
          args.target[i] = args.columns[i] < 0 ? -__builtin_inff() : z[i - pair];
      }
    }
  }
}

// Folds positions [begin, end) into the states of slots, a block at a time. Where another block follows, P may prefetch
// it, a share in each of its passes over this one.
template <class P>
static void chunk_by(const ScoreArgs& args, const Slots& all, std::int64_t block, std::int64_t begin, std::int64_t end,
                     ScoreState* states, TopList* tops, typename P::Scratch& scratch) {
  for (; begin < end; begin += block) {
    const Columns columns = {args.allowed, begin, end - begin < block ? end - begin : block};
    const bool next = !args.allowed && begin + 2 * block <= args.num_columns;
    for (std::int64_t done = 0; done < all.count; done += P::kSlots) {
      const Slots slots = all.part(done, P::kSlots);
      P::multiply(args, slots, columns, next ? (all.count + P::kSlots - 1) / P::kSlots : 0, scratch);
      for (std::int64_t j = 0; j < slots.count; ++j) {
        const std::int64_t slot = slots.first + slots.at + j;
        float* z = scratch.products + j * kMaxColumns;
        add_bias(args, columns, z);
        transform(z, columns.count, change_of(args, slot));
        const float largest = fold_block(args, slot, states[done + j], z, columns.count);
        keep_largest(tops ? tops + done + j : nullptr, args.top, largest, z, begin, columns.count);
      }
    }
  }
  for (std::int64_t j = 0; j < all.count; ++j) settle(states[j]);
}

// Without states, the targets.
template <class P>
static void score_hidden_by(const ScoreArgs& args, const Slots& slots, std::int64_t block, std::int64_t begin,
                            std::int64_t end, ScoreState* states, TopList* tops, void* memory) {
  typename P::Scratch& scratch = *static_cast<typename P::Scratch*>(memory);
  if (states) return chunk_by<P>(args, slots, block, begin, end, states, tops, scratch);
  targets_by<P>(args, slots, scratch);
}

#if defined(RSK_AMX)

static void score_hidden(const ScoreArgs& args, const Slots& slots, std::int64_t begin, std::int64_t end,
                         ScoreState* states, TopList* tops, void* memory) {
  const TileUnit unit;
  score_hidden_by<Tiles>(args, slots, tile_block(args), begin, end, states, tops, memory);
}

#elif defined(RSK_BF16_DOT)

static void score_hidden(const ScoreArgs& args, const Slots& slots, std::int64_t begin, std::int64_t end,
                         ScoreState* states, TopList* tops, void* memory) {
  score_hidden_by<Dots<Bf16Dot> >(args, slots, linear_block(args), begin, end, states, tops, memory);
}

#else

static void score_hidden(const ScoreArgs& args, const Slots& slots, std::int64_t begin, std::int64_t end,
                         ScoreState* states, TopList* tops, void* memory) {
  const std::int64_t block = linear_block(args);
  switch (args.weight_dtype) {
    case DType::f32:
      return score_hidden_by<Dots<Widening<float> > >(args, slots, block, begin, end, states, tops, memory);
    case DType::f16:
      return score_hidden_by<Dots<Widening<f16> > >(args, slots, block, begin, end, states, tops, memory);
    default:
      return score_hidden_by<Dots<Widening<bf16> > >(args, slots, block, begin, end, states, tops, memory);
  }
}

#endif

static void score_hidden_targets(const ScoreArgs& args, const Slots& slots, void* memory) {
  score_hidden(args, slots, 0, 0, nullptr, nullptr, memory);
}
