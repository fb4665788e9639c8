// Arguments and entry points of the CPU kernels. Raw pointers only: nothing here knows Python.
//
// Sizes: Q queries, N rows, P pool size, D dimensions, K picks, S items picked before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace rsk {

// The rules; those from facility on are kinds of coverage.
enum class Method : int {
  mmr = 0,
  vrsd = 1,
  msd = 2,
  dpp = 3,
  ssd = 4,
  sift = 5,
  facility = 6,
  cover = 7,
  xquad = 8,
};
constexpr int kMethods = 9;
constexpr const char* kMethodNames[kMethods] = {"mmr",  "vrsd",     "msd",   "dpp",  "ssd",
                                                "sift", "facility", "cover", "xquad"};

// By what bounds items are left out before they meet a pick. The picks are the same; all but automatic are for tests.
enum class Bounds : int { automatic = 0, dense = 1, pruned = 2, coded = 3, coarse = 4 };
constexpr const char* kBounds[] = {"automatic", "dense", "pruned", "coded", "coarse"};

// How a stored row becomes the vector of the formulas.
enum class Norm : int {
  as_given = 0,  // the row itself: metric "dot", or rows that are unit vectors already; signs over the root of D
  scaled = 1,    // row * scales[row]
  computed = 2,  // row / |row|, the norm taken when the row is read
};
constexpr const char* kNorms[] = {"as_given", "scaled", "computed"};

// Why a query was given up. Python finds the argument and the row and words the error.
enum class Status : std::uint8_t {
  ok = 0,
  id_out_of_range = 1,
  id_repeated = 2,
  not_finite = 3,
  norm_out_of_range = 4,  // a norm whose square leaves the range of float32
  pool_too_small = 5,     // a row outside the pool might be picked, see Stage
};

// Caps that differ by group or level, and minima: ragsys_kernels/selection/quotas.py.
struct Quotas {
  std::int64_t num_levels;  // 0: there are none of these
  std::int64_t num_rows;
  const std::int64_t* groups;   // (num_levels, N)
  const std::int64_t* offsets;  // (num_levels + 1,): which of the next belong to a level
  const std::int64_t* numbers;  // (offsets[num_levels],) groups with a cap or a minimum of their own, ascending
  const std::int64_t* caps;     // of each of these
  const std::int64_t* others;   // (num_levels,) the cap of the other groups
  const std::int64_t* minima;   // of each of `numbers`, with one level; or null

  std::int64_t size() const { return num_levels ? offsets[num_levels] : 0; }
  const std::int64_t* of_level(std::int64_t level) const { return groups + level * num_rows; }
  // The place of a group among `numbers`; -1: it has nothing of its own.
  std::int64_t find(std::int64_t level, std::int64_t group) const {
    std::int64_t begin = offsets[level], end = offsets[level + 1];
    while (begin < end) {
      const std::int64_t middle = begin + (end - begin) / 2;
      if (numbers[middle] < group)
        begin = middle + 1;
      else
        end = middle;
    }
    return begin < offsets[level + 1] && numbers[begin] == group ? begin : -1;
  }
  std::int64_t cap(std::int64_t level, std::int64_t group) const {
    const std::int64_t place = find(level, group);
    return place < 0 ? others[level] : caps[place];
  }
};

// What limits which items may be picked: ragsys_kernels/selection/constraints.py.
struct Constraints {
  const void* initial;  // (Q, S) rows, -1 is padding; or null
  int initial_bytes;    // 4 or 8, the width of initial
  std::int64_t num_initial;
  const std::int64_t* groups;        // (N,); or null
  const std::int64_t* query_groups;  // (Q,): items of the query's own group are left out; or null
  std::int64_t max_per_group;        // 0: no cap, or those of quotas
  // Without candidates, which rows may be picked. Pools have -1 in the place of the others.
  const std::uint8_t* allowed;  // (N,) or, with allowed_per_query, (Q, N): 0 for a row that may not be picked; or null
  bool allowed_per_query;
  const std::int64_t* exclude;  // (Q, num_excluded), ascending: rows that may not be picked either; or null
  std::int64_t num_excluded;
  // An item is passed over where its cost and those of the picks before it exceed the budget.
  const double* costs;  // (N,) or, with costs_per_item, (Q, P); or null
  bool costs_per_item;
  const double* budget;  // (Q,), with costs
  // An item may be picked while its similarity to no pick and no initial item exceeds this.
  const float* max_similarity;  // (Q,); or null
  // Items of less relevance, which is computed, are left out of the pool.
  const float* min_relevance;  // (Q,); or null
  Quotas quotas;
};

// Which rows each row covers, with similarities above 0: ragsys_kernels/selection/options.py.
struct Graph {
  const std::int64_t* begin;  // (N + 1,): row r covers rows[begin[r]] to rows[begin[r + 1] - 1]; or null
  const std::int32_t* rows;
  const float* similarity;
};

// What belongs to one rule: ragsys_kernels/selection/options.py.
struct Options {
  const float* quality;  // DPP: (N,) or, with quality_per_item, (Q, P); or null: exp(scale * lambda_d * z-score of v)
  bool quality_per_item;
  float scale;
  float noise, min_gain;  // SIFT
  float gamma;            // SSD: the weight of the residual; cover: the power
  std::int64_t window;    // DPP, SSD: how many of the last picks count; 0: all
  const float* aspects;   // coverage: (Q, num_aspects, D); or null: the items of the pool
  const float* weights;   // coverage: (Q, num_aspects); or null: equal ones that add up to 1
  std::int64_t num_aspects;
  Graph graph;             // coverage: in the place of all similarities of the items to one another
  bool density;            // coverage: picks go by value over cost, and the best item by itself may take their place
  std::int64_t most_kept;  // coverage: of more similarities of a query, none are kept; 0: all are
};

// A whole corpus from a pool, for MMR with unit rows (ragsys_kernels/selection/cpu.py): relevance is computed when a
// row is read, and a pick that a row outside the pool might beat ends the query with pool_too_small. Either
// - relevance is an estimate that the cosine lies within relevance_error of; no row outside has a v above outside, nor
//   any a bias above max_bias; or
// - the first picks are forced; no value of an item exceeds its ceiling at a later pick, nor any outside exceeds
// outside.
struct Stage {
  const float* relevance_error;  // (Q,); or null
  const std::int64_t* forced;    // (Q, K) rows of the pool, -1 from the first pick to choose; or null
  const float* ceiling;          // (Q, P), with forced; or null
  const float* outside;          // (Q,); or null
  float max_bias;
  bool best_first;  // the candidates are distinct and not in the order of their rows; ties go to the lowest row
};

// A checked selection: ragsys_kernels/selection/problem.py.
struct SelectArgs {
  Method method;
  std::int64_t num_queries, num_rows, pool, dims, k;

  const void* rows;  // (N, D) of dtype; consecutive rows are row_stride elements apart, of signs (N, D / 8) bytes
  DType dtype;
  std::int64_t row_stride;
  Norm norm;
  const float* scales;  // (N,), for Norm::scaled
  // 8-bit codes of unit rows (codes.inl), for bounds; or null. Rows are code_stride(D) bytes apart.
  const std::uint8_t* codes;
  std::int64_t pool_stride;  // without candidates, item i of query q is row q * pool_stride + i

  const float* queries;  // (Q, D), or null: relevance is given, and the rule is not VRSD
  // (Q, D / 8) bytes, the queries as signs, to rows of such, in the place of `queries`; or null.
  const void* query_signs;
  bool unit_queries;  // divide each query by its norm
  bool unit_rows;     // the vectors of the formulas are unit vectors (or zero): the triangle inequality holds
  Bounds bounds;
  const void* candidates;  // (Q, P) rows, -1 is padding; or null
  int id_bytes;            // 4 or 8, the width of candidates
  const float* relevance;  // (Q, P), used instead of the product with the query; or null
  const float* bias;       // (N,) or, with bias_per_item, (Q, P); or null
  bool bias_per_item;
  const float* lambda_d;   // (Q,)
  const float* lambda_b;   // (Q,)
  const std::int64_t* ks;  // (Q,), each at most k; or null for k everywhere
  Constraints limits;
  Options options;
  Stage stage;
  std::int64_t shared_items;  // a block of the items that threads share if queries are few; 0: as it is fast. For tests

  // Outputs, every element written.
  std::int64_t* indices;  // (Q, K): the row less q * pool_stride; -1 where there is no pick
  float* scores;          // (Q, K): -inf where there is no pick
  float* out_relevance;   // (Q, K): NaN where there is no pick
  float* redundancy;      // (Q, K): NaN where there is no pick, and for VRSD
  std::int32_t* lengths;  // (Q,)
  // (Q,), for MMR with unit rows and pools: the largest v that rows outside may have, none of them with a bias above
  // stage.max_bias, for the picks to be those of all rows; NaN where a pick was tied with a lower row. Or null.
  float* pool_needed;
  std::int64_t* work;    // {dot products, rows read, products of codes} of all queries; or null
  std::uint8_t* status;  // (Q,) Status
};

struct CodeHeader {
  float scale, error;
  std::int32_t sum;  // of the signed codes
};
constexpr std::int64_t kCodeHeader = sizeof(CodeHeader);

// Bytes of a code row that count in a product, and from one row to the next.
constexpr std::int64_t code_bytes(std::int64_t dims) { return (dims + 63) / 64 * 64; }
constexpr std::int64_t code_stride(std::int64_t dims) { return code_bytes(dims + kCodeHeader); }

struct EncodeArgs {
  const void* rows;  // (N, D), as in SelectArgs
  std::int64_t num_rows, dims, row_stride;
  DType dtype;
  const float* scales;  // (N,), what makes a row a unit vector; or null
  std::uint8_t* out;    // (N, code_stride(D))
};

enum class StoreStatus : int { ok = 0, not_finite = 1, beyond = 2 };

// What becomes of rows in a corpus.
struct StoreArgs {
  const void* rows;  // (N, D) float32, float16 or bfloat16
  std::int64_t num_rows, dims, row_stride;
  DType given, dtype;
  bool cosine;
  void* out;      // (N, D) of dtype
  float* scales;  // (N,), or null where this type has none
};

// The first row that cannot be stored, with the reason, and the largest norm of the others.
struct Stored {
  std::int64_t row;
  StoreStatus status;
  double largest_norm;
};

// Rows that may be stored already, as rows at these places; -1: nowhere.
struct SameArgs {
  const void* data;     // (N, D) of dtype
  const float* scales;  // (N,), or null
  const std::int64_t* places;
  std::uint8_t* same;  // whether every bit is what the row would be stored as
};

struct RelevanceArgs {
  SelectArgs pool;  // the fields that describe queries, rows, candidates and bias
  float* out;       // (Q, P): relevance with bias; -inf for padding
};

// `isa` is one of isa.h; num_threads >= 1. Throw std::invalid_argument for an instruction set that is
// not built or not supported by this processor, std::bad_alloc if the workspaces do not fit.
void select(const SelectArgs& args, int isa, int num_threads);
void relevance(const RelevanceArgs& args, int isa, int num_threads);
void encode(const EncodeArgs& args, int isa, int num_threads);
Stored store_rows(const StoreArgs& args, int isa);
Stored same_rows(const StoreArgs& args, const SameArgs& stored, int isa,
                 int num_threads);  // without `out` and `scales`
float largest_code_error(const std::uint8_t* codes, std::int64_t num_rows, std::int64_t stride);

// Whether rows are codes themselves: unit rows of bytes, each with its scale. Products of more dimensions may leave the
// range of int32.
inline bool rows_are_codes(const SelectArgs& a) {
  return a.dtype == DType::i8 && a.norm == Norm::scaled && a.unit_rows && a.dims <= (1 << 16);
}

// Whether all rows can be scanned by codes for so many vectors, and it pays. `own`: rows are codes, and it pays more
// than to multiply them as floats.
bool code_scan_supported(int isa, std::int64_t vectors, bool own);

// A scan of all rows; values are score_weight * score + bias_weight * bias, or scores, the least of `terms` products.
struct ScanArgs {
  SelectArgs corpus;  // the fields that describe rows, codes, bias, and which rows may be picked
  bool by_codes;      // or, without codes, by rows that are codes themselves
  // (Q,) the numbers of the queries in `allowed` and `exclude`; null: 0 to Q - 1.
  const std::int64_t* numbers;
  std::int64_t terms;
  const float* vectors;       // (terms, Q, D)
  const std::uint8_t* signs;  // with one term, the same as signs: (Q, D / 8); or null
  float row_error;            // with codes, the largest of a code row
  float largest_bias;         // its size
  float max_norm;             // of the vectors of the formulas
  const float* score_weight;
  const float* bias_weight;  // (Q,), with a bias
};

// The best n rows of each query by relevance with bias, ties to the lowest row, with the bits of a selection.
struct SearchArgs {
  SelectArgs corpus;  // as for a scan, and queries, lambda_b, status
  float row_error, largest_bias;
  std::int64_t n;
  // Outputs (Q, n): -1 and minus infinity where there is no row.
  std::int64_t* indices;
  float* scores;
};
void search(const SearchArgs& args, int isa, int num_threads);

}  // namespace rsk
