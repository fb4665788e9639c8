// The memory of one query, and the workspaces of all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "selection/args.h"
#include "team.h"

namespace rsk {

// The signed operand of a product of codes, a query or a pick: scale * (high + low / 256), zero beyond the D-th byte.
// Only a query has the low bytes.
struct CodeVector {
  const std::int8_t *high, *low;
  std::int32_t high_offset, low_offset;  // 128 times their sums
  float scale, error;
};

// Items whose codes meet a pick together.
constexpr std::int64_t kCodeBlock = 16;

// Whether 4-bit codes of its own are worth it for a query. Measured on clustered rows: 0.5 to 0.8 of the time with 400
// picks and D = 96, but 1.1 to 2.5 times with 32 and 100 picks, and 1.2 to 3 times with 400 picks and D = 384.
constexpr bool coarse_pays(std::int64_t items, std::int64_t picks, std::int64_t dims) {
  return items >= 4096 && picks >= 400 && dims <= 128;
}
// Bytes of a row's 4-bit codes: whole words, eight dimensions each.
constexpr std::int64_t coarse_bytes(std::int64_t dims) { return (dims + 7) / 8 * 4; }
// Floats of a row, and the bytes of its codes before they are packed, on cache lines of a thread's own.
constexpr std::int64_t coarse_row_floats(std::int64_t dims) { return (dims + (dims + 64) / 4 + 31) / 16 * 16; }
// Whether a call's queries may be bounded by 4-bit codes, coarse_bounds.inl.
inline bool may_be_coarse(const SelectArgs& args) {
  const bool adds = args.method == Method::vrsd || args.method == Method::msd;
  const bool all_may_be_picked = !args.limits.max_similarity && !args.limits.quotas.minima;
  const bool pays = coarse_pays(args.pool, args.k, args.dims);
  return adds && args.unit_rows && args.dtype != DType::bits && all_may_be_picked &&
         (args.bounds == Bounds::coarse || (args.bounds == Bounds::automatic && pays));
}

// Items that a thread takes at once where threads share a query: of all but the last block a whole number of cache
// lines of any array.
constexpr std::int64_t kSharedItems = 8192;
inline std::int64_t shared_items(const SelectArgs& args) {
  return args.shared_items > 0 ? (args.shared_items + 63) / 64 * 64 : kSharedItems;
}

// What a pass over a block of items found.
struct CoarseBlock {
  float bar;                     // the best value is at least this
  std::int32_t best;             // the item of the largest value, or -1
  std::int64_t vectors;          // of items that may reach the bar
  std::int64_t met, contenders;  // rows that met the sum, and those of them that may be the best
  float spread;                  // the largest squared length of codes
  bool finite;
};

// Doubles of a direction: D, a constant, and zeros to whole vectors of any region.
constexpr std::int64_t direction_doubles(std::int64_t dims) { return (dims + 8) / 8 * 8; }

// Aspects that an item is multiplied with at once, at most.
constexpr std::int64_t kAspectTile = 4;

// Which rules a part of the workspace is for.
constexpr bool is_factored(Method method) { return method >= Method::dpp && method <= Method::sift; }
constexpr bool is_coverage(Method method) { return method >= Method::facility; }

// How many aspects a query of coverage has, or rows of a graph; whether it keeps no similarities to them.
inline std::int64_t num_aspects(const SelectArgs& args) {
  return args.options.aspects ? args.options.num_aspects : args.options.graph.begin ? args.num_rows : args.pool;
}
inline bool in_blocks(const SelectArgs& args) {
  const Options& options = args.options;
  const double similarities = double(args.pool) * double(num_aspects(args));
  return is_coverage(args.method) && !options.graph.begin && options.most_kept &&
         similarities > double(options.most_kept);
}

// Set of ids: an open-addressing table of mask + 1 slots, at most half full; -1 is a free slot.
struct IdSet {
  std::int64_t* slots;
  std::int64_t mask;
};

// The running state of one query; one per thread, reused from query to query. Arrays over items hold the eligible
// items of the pool in the order of their positions.
struct Workspace {
  float* query;      // prepared vector, see simd/dot.inl
  float* tail_mask;  // one vector
  IdSet in_pool, in_initial;
  std::uint64_t* seen;  // a bit for each id, or for its last bits; zero between queries
  std::uint64_t seen_mask;

  // Of item j; floats are padded to a whole vector.
  std::int64_t* row;       // its row
  std::int32_t* position;  // its position in the candidate list
  std::int32_t* met;       // how many picks it has met (dot products done); -1: the row is not read yet
  float* scale;            // what makes its row the vector of the formulas
  float* norm2;            // VRSD: squared norm of that vector
  float* relevance;        // r: cosine with the query, or as given
  float* value;            // MMR: v, relevance with bias. VRSD: g, product with the unit query
  float* running;          // MMR: max similarity to the picks met, or a lower bound. VRSD: product with their sum
  float* pivot;            // cosine with the pivot of the triangle inequality
  float* sine;             // sine of that angle, or more
  float* bound;            // upper bound of its value
  float* gate;             // infinity; minus infinity for items picked or barred
  std::int32_t* quota;     // with minima: the place of its group among Quotas::numbers; -1: it has none
  float* nearest;          // with a largest similarity allowed, and not MMR: max similarity to the picks met
  std::int32_t* survivors;
  // With codes, of its similarities to the picks: the pick of the largest (-1: the largest is `exact`, of the `met`
  // picks), at most how large that one is, at most how large all others are, and the largest that is known exactly.
  // VRSD: its product with the sum lies between `running` and `likely_most`; `exact` is that with the `met` picks.
  std::int32_t* likely;
  float *likely_most, *rival_most, *exact;

  // The initial items, then the picks; (S + K).
  std::int64_t* picked_row;
  float* picked_scale;
  float* picked_pivot;
  float* picked_length;  // (S) lengths of the initial items
  const float** picks;   // prepared vectors: the rows themselves, or
  float* prepared_picks;

  // With minima, of Quotas::numbers: how many picks a group lacks, and of how many a step has found an item; 0 between
  // steps.
  std::int32_t *lacks, *found;

  // Codes of item j, of a block of items (how many picks it has met by codes), of the query and of the picks.
  const std::uint8_t **code_rows, **next_codes;
  float* code_scale;
  float* code_error;
  std::int32_t* block_met;
  float* block_bound;  // the bounds of its items do not exceed it
  std::int8_t* query_code_bytes;
  std::int8_t* pick_code_bytes;
  CodeVector* pick_codes;

  // With 4-bit codes: those of the items, in blocks, and how far these are from the rows,
  // minus infinity for items picked or barred. Of a dimension, its centre, the
  // step of its codes and one over that. The sum of the picks, and of that after each pick; an axis, and the items'
  // products with it; what the sum has beside the axis, in double and as signed codes; a prepared vector.
  std::uint8_t* coarse_codes;
  float* coarse_error;
  float *coarse_centre, *coarse_step, *coarse_inverse;
  double *coarse_sum, *coarse_total, *coarse_axis, *coarse_rest;
  float* coarse_along;
  float* coarse_prepared;
  std::int8_t* coarse_vector;
  CoarseBlock* coarse_blocks;
  std::int32_t* coarse_found;  // of each block, the first items of vectors
  float* coarse_row;           // of each thread that shares the query: a widened row, and codes of one, a byte each

  // DPP, SSD, SIFT. The directions have D elements and SSD's constant, and zeros up to a whole vector.
  float* weight;               // of item j: DPP: squared quality. SSD: the part of its value that stays
  float* aimed;                // of item j: SIFT: its product with the query, less what the picks explain of it
  double* directions;          // of the initial items and the picks; one more for scratch
  double* reach;               // SIFT: what a pick explains of the query, as a product with its direction
  float* constant;             // SSD: the last element of a direction
  float* prepared_directions;  // as prepared vectors

  // Coverage. Of aspects, or of the rows of a graph, to a whole vector.
  float* covered;         // facility location: the largest similarity to a pick. cover: their sum. xquad: what is left
  float* root;            // cover: a power of `covered`
  float* aspect_weight;   // 0 beyond the last
  float* aspect_scale;    // what makes an aspect the vector of the formulas
  const float** aspects;  // prepared vectors: rows of the pool, or
  float* prepared_aspects;
  float* similarity;  // of item j to the aspects, at least 0; one row more for scratch
  // In blocks: items whose gains are found together; of a part of these, the largest similarity.
  std::int32_t* batch;
  float* part_largest;
  std::int32_t* renewed;  // of item j: how many picks its bound knows

  float* unit;  // (D) scratch for a query of unusual norm, a direction or a row
  float* lost;  // (D, to a whole vector) VRSD: what the codes of the picks leave out, added
  double* sum;  // (D) VRSD's sum, kept only where float32 terms cancel

  Team* team;                                       // threads that share a query
  std::int64_t prefetched;                          // the query whose pool the one before has prefetched
  std::int64_t products, rows_read, code_products;  // work done so far
};

// The workspaces of the queries that are answered at once, one allocation each, every array on its own cache line. So
// many queries share the threads.
class Workspaces {
 public:
  Workspaces(const SelectArgs& args, std::int64_t vector_floats, int num_queries, int num_threads);
  Workspace& operator[](int thread) { return workspaces_[std::size_t(thread)]; }

 private:
  void lay_out(const SelectArgs& args, std::int64_t vector_floats, Workspace& ws, char* base);
  void lay_out_coarse(const SelectArgs& args, std::int64_t vector_floats, Workspace& ws, char* base);
  void lay_out_directions(const SelectArgs& args, std::int64_t vector_floats, Workspace& ws, char* base);
  void lay_out_aspects(const SelectArgs& args, std::int64_t vector_floats, Workspace& ws, char* base);
  template <class T>
  void place(char* base, T*& array, std::int64_t count);

  std::size_t size_ = 0;
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::vector<std::unique_ptr<Team>> teams_;
  std::vector<Workspace> workspaces_;
};

}  // namespace rsk
