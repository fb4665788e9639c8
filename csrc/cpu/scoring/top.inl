// The largest values of a row, kept while its columns are folded. A block is looked through only where its largest
// value, which the fold knows, may be one of them.

// A value that at least `size` of the n values reach: that many groups of them have a larger one or it. From the first
// block on, it keeps out most of what others would soon displace.
template <class T>
static float reached(std::int64_t size, const T* x, std::int64_t n) {
  const std::int64_t groups = (2 * size + 8 * W - 1) / (8 * W) * (8 * W);
  if (2 * groups > n) return -FLT_MAX;
  float largest[kBlock / 2];
  for (std::int64_t g = 0; g < groups; g += W) store(largest + g, load(x + g));
  for (std::int64_t i = groups; i + groups <= n; i += groups)
    for (std::int64_t g = 0; g < groups; g += W) store(largest + g, most(load(x + i + g), load(largest + g)));
  return largest_but(largest, groups, size);
}

// Takes what may be among the largest of the n values from position `first` on; `largest` is the largest of them.
// Whoever has the list goes through a row in ascending order, so that of equal values the first ones stay.
template <class T>
static void keep_largest(TopList* list, std::int64_t size, float largest, const T* x, std::int64_t first,
                         std::int64_t n) {
  if (!list || !(largest >= list->least)) return;
  if (list->least == -FLT_MAX) list->least = __builtin_fmaxf(reached(size, x, n), -FLT_MAX);
  std::int64_t i = 0;
  for (; i + kTopStep <= n; i += kTopStep) {
    vf some[4], two[2];
    load_two(x + i, some);
    load_two(x + i + 2 * W, some + 2);
#pragma GCC unroll 16
    for (int v = 4; v < kTopStep / W; v += 2) {
      load_two(x + i + v * W, two);
      some[v % 4] = most(two[0], some[v % 4]);
      some[v % 4 + 1] = most(two[1], some[v % 4 + 1]);
    }
    if (!at_least_mask(most(most(some[0], some[1]), most(some[2], some[3])), list->least)) continue;
    std::uint64_t lanes = 0;
    for (int v = 0; v < kTopStep / W; ++v)
      lanes |= std::uint64_t(at_least_mask(load(x + i + v * W), list->least)) << (v * W);
    for (; lanes; lanes &= lanes - 1) {
      const std::int64_t at = i + __builtin_ctzll(lanes);
      list->items[list->size++] = {widen(x[at]), first + at};
    }
    if (list->size > list->room) shrink(*list, size);
  }
  for (; i < n; ++i) {
    const float value = widen(x[i]);
    if (value >= list->least) list->items[list->size++] = {value, first + i};
  }
  if (list->size > list->room) shrink(*list, size);
}
