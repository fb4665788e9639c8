// The largest values of a row, kept while its columns are folded: a heap whose first item is the worst of the best so
// far. A block is looked through only where its largest value, which the fold knows, is better than that.

static inline bool worse(const TopItem& a, const TopItem& b) {
  return a.z < b.z || (a.z == b.z && a.position > b.position);
}

// Puts an item in the place of the worst one.
static void replace_worst(TopItem* heap, std::int64_t size, const TopItem& item) {
  std::int64_t at = 0;
  for (std::int64_t child = 1; child < size; child = 2 * at + 1) {
    if (child + 1 < size && worse(heap[child + 1], heap[child])) ++child;
    if (!worse(heap[child], item)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = item;
}

// Fills an empty heap with what is just below a value that at least `size` of the n values reach: twice as many groups
// of them have a largest value, and of those at least `size` reach the size-th largest. Without it, the first values of
// a row would take places that larger ones take again.
template <class T>
static void begin_heap(TopItem* heap, std::int64_t size, const T* x, std::int64_t n) {
  const std::int64_t groups = (2 * size + W - 1) / W * W;
  if (2 * groups > n) return;
  const TopItem none = heap[0];
  for (std::int64_t i = 1; i < size; ++i)
    if (heap[i].z > none.z) return;  // not empty: the row has had few values above minus infinity
  float largest[kBlock / 2 + W];
  for (std::int64_t g = 0; g < groups; g += W) store(largest + g, load(x + g));
  for (std::int64_t i = groups; i + groups <= n; i += groups)
    for (std::int64_t g = 0; g < groups; g += W) store(largest + g, larger(load(x + i + g), load(largest + g)));
  for (std::int64_t g = 0; g < groups; ++g)
    if (largest[g] > heap->z) replace_worst(heap, size, {largest[g], g});
  const float below = __builtin_nextafterf(heap->z, none.z);
  for (std::int64_t i = 0; i < size; ++i) heap[i] = {below, none.position};
}

// Takes what is better than the worst item among the n values from position `first` on. `largest` is the largest of
// them. Whoever owns the heap goes through a row in ascending order: an equal value comes too late.
template <class T>
static void keep_best(TopItem* heap, std::int64_t size, float largest, const T* x, std::int64_t first, std::int64_t n) {
  if (!heap || !(largest > heap->z)) return;
  if (heap->z == -__builtin_inff()) begin_heap(heap, size, x, n);
  std::int64_t i = 0;
  for (; i + W <= n; i += W) {
    const vf values = load(x + i);
    if (!any_greater(values, heap->z)) continue;
    float lanes[W];
    store(lanes, values);
    for (unsigned left = at_least_mask(values, heap->z); left; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      if (lanes[lane] > heap->z) replace_worst(heap, size, {lanes[lane], first + i + lane});
    }
  }
  for (; i < n; ++i) {
    const float value = widen(x[i]);
    if (value > heap->z) replace_worst(heap, size, {value, first + i});
  }
}
