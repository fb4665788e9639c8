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

// Takes what is better than the worst item among the n values from position `first` on. `largest` is the largest of
// them. Whoever owns the heap goes through a row in ascending order: an equal value comes too late.
template <class T>
static void keep_best(TopItem* heap, std::int64_t size, float largest, const T* x, std::int64_t first, std::int64_t n) {
  if (!heap || !(largest > heap->z)) return;
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
