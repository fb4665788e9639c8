// The workspaces: arrays of one allocation a thread.
#include "selection/workspace.h"

#include <algorithm>
#include <cstring>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace rsk {
namespace {

constexpr std::size_t kLine = 64;

std::int64_t set_slots(std::int64_t ids) {
  std::int64_t slots = 2;
  while (slots < 2 * ids) slots *= 2;
  return slots;
}

// Words of a set of bits: few for a small pool, of which ids seldom meet by chance; for others a bit for each row, of
// the first million.
std::int64_t seen_words(const SelectArgs& args) {
  constexpr std::int64_t kFew = 256, kLeast = 1 << 9, kMost = 1 << 14;
  std::int64_t words = kLeast;
  while (args.pool > kFew && words < kMost && 64 * words < args.num_rows) words *= 2;
  return args.candidates ? words : 0;
}

}  // namespace

Workspaces::Workspaces(const SelectArgs& args, std::int64_t vector_floats, int num_queries, int num_threads) {
  for (int query = 0; query < num_queries; ++query) {
    teams_.emplace_back(new Team(std::max(1, num_threads / num_queries + (query < num_threads % num_queries))));
    Workspace ws{};
    ws.prefetched = -1;
    ws.team = teams_.back().get();
    lay_out(args, vector_floats, ws, nullptr);  // measures
    blocks_.emplace_back(new char[size_ + kLine]);
    char* const block = blocks_.back().get();
    lay_out(args, vector_floats, ws, block + (kLine - reinterpret_cast<std::uintptr_t>(block) % kLine) % kLine);
    workspaces_.push_back(ws);
  }
}

template <class T>
void Workspaces::place(char* base, T*& array, std::int64_t count) {
  const std::size_t used = std::size_t(count) * sizeof(T), padding = kLine - used % kLine;
  array = base ? reinterpret_cast<T*>(base + size_) : nullptr;
#ifdef __SANITIZE_ADDRESS__
  // Overruns from one array into the next are found too.
  if (base) ASAN_POISON_MEMORY_REGION(base + size_ + used, padding);
#endif
  size_ += used + padding;
}

void Workspaces::lay_out(const SelectArgs& args, std::int64_t vector_floats, Workspace& ws, char* base) {
  const std::int64_t prepared = args.dims + vector_floats, items = args.pool + std::max(vector_floats, kCodeBlock);
  const std::int64_t picks = args.limits.num_initial + args.k;
  const std::int64_t pool_slots = args.candidates ? set_slots(args.pool) : 0;
  const std::int64_t initial_slots = args.limits.num_initial ? set_slots(args.limits.num_initial) : 0;
  const std::int64_t seen = seen_words(args);
  const bool sums = args.method == Method::vrsd || args.method == Method::msd;
  size_ = 0;
  place(base, ws.query, prepared);
  place(base, ws.tail_mask, vector_floats);
  place(base, ws.in_pool.slots, pool_slots);
  place(base, ws.in_initial.slots, initial_slots);
  place(base, ws.seen, seen);
  place(base, ws.row, args.pool);
  place(base, ws.position, args.pool);
  place(base, ws.survivors, args.pool);
  place(base, ws.met, items);
  for (float** floats : {&ws.scale, &ws.relevance, &ws.value, &ws.running, &ws.pivot, &ws.sine, &ws.bound, &ws.gate})
    place(base, *floats, items);
  place(base, ws.norm2, args.method != Method::mmr ? items : 0);
  place(base, ws.nearest, args.limits.max_similarity && args.method != Method::mmr ? items : 0);
  const std::int64_t minima = args.limits.quotas.minima ? args.limits.quotas.size() : 0;
  place(base, ws.quota, minima ? args.pool : 0);
  place(base, ws.lacks, minima);
  place(base, ws.found, minima);
  place(base, ws.picked_row, picks);
  place(base, ws.picked_scale, picks);
  place(base, ws.picked_pivot, picks + vector_floats);
  place(base, ws.picked_length, args.limits.num_initial);
  place(base, ws.picks, picks);
  place(base, ws.prepared_picks, picks * prepared);
  const std::int64_t code = args.codes ? code_bytes(args.dims) : 0;
  place(base, ws.code_rows, code ? items : 0);
  place(base, ws.next_codes, code ? items : 0);
  for (float** floats : {&ws.code_scale, &ws.code_error, &ws.likely_most, &ws.rival_most, &ws.exact})
    place(base, *floats, code ? items : 0);
  place(base, ws.likely, code ? items : 0);
  place(base, ws.block_met, code ? args.pool / kCodeBlock + 1 : 0);
  place(base, ws.block_bound, code ? args.pool / kCodeBlock + 1 + vector_floats : 0);
  place(base, ws.query_code_bytes, 2 * code);
  place(base, ws.pick_code_bytes, picks * code);
  place(base, ws.pick_codes, code ? picks : 0);
  place(base, ws.unit, args.dims);
  place(base, ws.lost, sums && code ? prepared : 0);
  place(base, ws.sum, sums ? args.dims : 0);
  lay_out_coarse(args, vector_floats, ws, base);
  lay_out_directions(args, vector_floats, ws, base);
  lay_out_aspects(args, vector_floats, ws, base);
  if (base && seen) std::memset(ws.seen, 0, std::size_t(seen) * sizeof *ws.seen);
  ws.seen_mask = std::uint64_t(seen - 1);
  ws.in_pool.mask = pool_slots - 1;
  ws.in_initial.mask = initial_slots - 1;
}

void Workspaces::lay_out_coarse(const SelectArgs& args, std::int64_t vector_floats, Workspace& ws, char* base) {
  if (!may_be_coarse(args)) return;
  const std::int64_t items = args.pool + vector_floats, dims = args.dims + vector_floats;
  place(base, ws.coarse_codes, items * coarse_bytes(args.dims));
  place(base, ws.coarse_error, items);
  place(base, ws.coarse_along, items);
  for (float** floats : {&ws.coarse_centre, &ws.coarse_step, &ws.coarse_inverse, &ws.coarse_prepared})
    place(base, *floats, dims);
  for (double** doubles : {&ws.coarse_sum, &ws.coarse_total, &ws.coarse_axis, &ws.coarse_rest})
    place(base, *doubles, args.dims);
  place(base, ws.coarse_vector, 2 * coarse_bytes(args.dims) + vector_floats);
  place(base, ws.coarse_blocks, args.pool / shared_items(args) + 1);
  place(base, ws.coarse_found, args.pool / vector_floats + 1);
  place(base, ws.coarse_row, ws.team->num_threads() * coarse_row_floats(args.dims));
}

void Workspaces::lay_out_directions(const SelectArgs& args, std::int64_t vector_floats, Workspace& ws, char* base) {
  if (!is_factored(args.method)) return;
  const std::int64_t items = args.pool + vector_floats, picks = args.limits.num_initial + args.k;
  place(base, ws.weight, items);
  place(base, ws.aimed, items);
  place(base, ws.directions, (picks + 1) * direction_doubles(args.dims));
  place(base, ws.reach, picks);
  place(base, ws.constant, picks);
  place(base, ws.prepared_directions, picks * (args.dims + vector_floats));
}

void Workspaces::lay_out_aspects(const SelectArgs& args, std::int64_t vector_floats, Workspace& ws, char* base) {
  if (!is_coverage(args.method)) return;
  const bool graph = args.options.graph.begin;
  const std::int64_t aspects = num_aspects(args);
  const std::int64_t padded = (aspects + vector_floats - 1) / vector_floats * vector_floats;
  // Floats whose dimensions are whole vectors are their own prepared form.
  const bool copied = args.options.aspects || args.dtype != DType::f32 || args.dims % vector_floats;
  for (float** floats : {&ws.covered, &ws.root, &ws.aspect_weight}) place(base, *floats, padded);
  place(base, ws.renewed, args.pool);
  if (graph) return;
  place(base, ws.aspect_scale, padded);
  place(base, ws.aspects, padded + kAspectTile);
  place(base, ws.prepared_aspects, copied ? aspects * (args.dims + vector_floats) : 0);
  const bool blocked = in_blocks(args);
  place(base, ws.similarity, blocked ? padded : (args.pool + 1) * padded);
  place(base, ws.batch, blocked ? args.pool : 0);
  place(base, ws.part_largest, blocked ? args.pool : 0);
}

}  // namespace rsk
