// Arguments and entry points of the CPU kernels. Raw pointers only: nothing here knows Python.
//
// Sizes: Q queries, N rows, P pool size, D dimensions, K picks, S items picked before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace rsk {

enum class Method : int { mmr = 0, vrsd = 1 };

// Whether bounds decide which items meet a pick. The picks are the same; the others than automatic are for tests.
enum class Rule : int { automatic = 0, dense = 1, pruned = 2, coded = 3 };

// How a stored row becomes the vector of the formulas.
enum class Norm : int {
  as_given = 0,  // the row itself: metric "dot", or rows that are unit vectors already
  scaled = 1,    // row * scales[row]
  computed = 2,  // row / |row|, the norm taken when the row is read
};

// Why a query was given up. Python finds the argument and the row and words the error.
enum class Status : std::uint8_t {
  ok = 0,
  id_out_of_range = 1,
  id_repeated = 2,
  not_finite = 3,
  norm_out_of_range = 4,  // a norm whose square leaves the range of float32
  pool_too_small = 5,     // a row outside the pool might be picked, see SelectArgs::outside
};

struct SelectArgs {
  Method method;
  std::int64_t num_queries, num_rows, pool, dims, k, num_initial;

  const void* rows;  // (N, D) of dtype; consecutive rows are row_stride elements apart
  DType dtype;
  std::int64_t row_stride;
  Norm norm;
  const float* scales;  // (N,), for Norm::scaled
  // 8-bit codes of unit rows (codes.inl), for bounds; or null. Rows are code_stride(D) bytes apart.
  const std::uint8_t* codes;
  std::int64_t pool_stride;  // without candidates, item i of query q is row q * pool_stride + i

  const float* queries;  // (Q, D), or null: MMR with relevance given
  bool unit_queries;     // divide each query by its norm
  bool unit_rows;        // the vectors of the formulas are unit vectors (or zero): the triangle inequality holds
  Rule rule;
  const void* candidates;  // (Q, P) rows, -1 is padding; or null
  const void* initial;     // (Q, S) rows, -1 is padding; or null
  int id_bytes;            // 4 or 8, the width of candidates
  int initial_bytes;       // 4 or 8, the width of initial
  const float* relevance;  // (Q, P), used instead of the product with the query; or null
  const float* bias;       // (N,) or, with bias_per_item, (Q, P); or null
  bool bias_per_item;
  // Whole corpus from a pool, for MMR with unit rows: relevance is computed when a row is read, and a pick that a row
  // outside the pool might beat ends the query with pool_too_small. Either
  // - relevance is an estimate that the cosine lies within relevance_error of; no row outside has a v above outside,
  //   nor any a bias above max_bias; or
  // - the first picks are forced; no value of an item exceeds its ceiling at a later pick, nor any outside exceeds
  //   outside.
  const float* relevance_error;  // (Q,); or null
  const std::int64_t* forced;    // (Q, K) rows of the pool, -1 from the first pick to choose; or null
  const float* ceiling;          // (Q, P), with forced; or null
  const float* outside;          // (Q,); or null
  float max_bias;
  bool best_first;  // these candidates are distinct and not in the order of their rows; ties go to the lowest row

  const float* lambda_d;             // (Q,)
  const float* lambda_b;             // (Q,)
  const std::int64_t* ks;            // (Q,), each at most k; or null for k everywhere
  const std::int64_t* groups;        // (N,); or null
  const std::int64_t* query_groups;  // (Q,): items of the query's own group are left out; or null
  std::int64_t max_per_group;        // 0: no cap

  // Outputs, every element written.
  std::int64_t* indices;  // (Q, K): the row less q * pool_stride; -1 where there is no pick
  float* scores;          // (Q, K): -inf where there is no pick
  float* out_relevance;   // (Q, K): NaN where there is no pick
  float* redundancy;      // (Q, K): NaN where there is no pick, and for VRSD
  std::int32_t* lengths;  // (Q,)
  std::int64_t* work;     // {dot products, rows read, products of codes} of all queries; or null
  std::uint8_t* status;   // (Q,) Status
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

struct RelevanceArgs {
  SelectArgs pool;  // the fields that describe queries, rows, candidates and bias
  float* out;       // (Q, P): relevance with bias; -inf for padding
};

// The signed operand of a product of codes, a query or a pick: scale * (high + low / 256), zero beyond the D-th byte.
// Only a query has the low bytes.
struct CodeVector {
  const std::int8_t *high, *low;
  std::int32_t high_offset, low_offset;  // 128 times their sums
  float scale, error;
};

// Items whose codes meet a pick together.
constexpr std::int64_t kCodeBlock = 16;

// A scan of all rows (scan.inl, code_scan.inl): blocks of rows, groups of vectors, parts of a block that stay in a
// cache.
constexpr std::int64_t kScanRows = 512;  // a multiple of the next
constexpr std::int64_t kRowBlock = 32;   // of rows, at most
constexpr int kScanVectors = 8;          // of a group, with codes
constexpr int kRowVectors = 12;          // of a group, with rows

struct ScanEntry {
  float value, score;
  std::int64_t row;
};

struct ScanBlock {
  std::int64_t rows, dims;
  const float* scales;  // of rows and of packed codes, to a whole vector
  const float* bias;    // to a whole vector; or null
  const std::uint8_t* packed;
  std::int64_t steps;         // of packed codes, four elements each; their `rows` is a multiple of 32
  const std::uint8_t* codes;  // as they lie
  const void* data;           // the rows themselves
  DType dtype;
  std::int64_t row_stride;
};

struct ScanGroup {
  std::int64_t queries, terms_each;  // a score is the least of the products with a query's terms
  const float* score_weight;
  const float* bias_weight;
  const float* threshold;
  ScanEntry (*found)[kScanRows];
  std::int64_t* count;
  // Of packed codes.
  const std::int32_t* vectors;  // [step][kScanVectors], four signed codes each
  const std::int32_t* start;    // [query][term]: of a product, what its sum starts at
  const float* scale;           // of a query
  // Of codes as they lie, and of rows: [query][term].
  const CodeVector* codes;
  const float* prepared;  // one after the other
};

// Set of ids: an open-addressing table of mask + 1 slots, at most half full; -1 is a free slot.
struct IdSet {
  std::int64_t* slots;
  std::int64_t mask;
};

// The running state of one query; one per thread, reused from query to query. Arrays over items hold the eligible
// items of the pool in the order of their positions.
struct Workspace {
  float* query;      // prepared vector, see simd.inl
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

  // Codes of item j, of a block of items (how many picks it has met by codes), of the query and of the picks.
  const std::uint8_t **code_rows, **next_codes;
  float* code_scale;
  float* code_error;
  std::int32_t* block_met;
  float* block_bound;  // the bounds of its items do not exceed it
  std::int8_t* query_code_bytes;
  std::int8_t* pick_code_bytes;
  CodeVector* pick_codes;

  float* unit;  // (D) scratch for a query of unusual norm
  float* lost;  // (D, to a whole vector) VRSD: what the codes of the picks leave out, added
  double* sum;  // (D) VRSD's sum, kept only where float32 terms cancel

  std::int64_t asked_for;                           // the query whose pool the one before has asked for
  std::int64_t products, rows_read, code_products;  // work done so far
};

// What scans and searches need of a region, scan.inl.
struct ScanKernels {
  void (*codes)(const ScanBlock&, const ScanGroup&);
  void (*rows)(const ScanBlock&, const ScanGroup&);
  // NaN, and false, for a row that is no vector of the formulas.
  bool (*row_scales)(const SelectArgs&, std::int64_t first, std::int64_t n, float* out);
  // Makes the values of the entries those of a selection.
  void (*row_values)(const SelectArgs&, std::int64_t q, const float* prepared, ScanEntry* entries, std::int64_t n);
  Status (*unit_query)(const SelectArgs&, std::int64_t q, float* out);
  CodeVector (*code_vector)(const float* vector, std::int64_t dims, std::int8_t* out);  // 2 code_bytes(D)
  void (*prepare)(const float* vector, std::int64_t dims, float* out);                  // D + a vector
  bool codes_pay;
};

// One entry per instruction set; each processes one query with one thread.
struct Kernels {
  void (*mmr)(const SelectArgs&, std::int64_t q, Workspace&);
  void (*vrsd)(const SelectArgs&, std::int64_t q, Workspace&);
  void (*relevance)(const RelevanceArgs&, std::int64_t q, Workspace&);
  int vector_floats;
  void (*encode_row)(const EncodeArgs&, std::int64_t row);
  const ScanKernels* scan;
  // Null where there is no scan by packed codes.
  void (*pack_rows)(const std::uint8_t* codes, std::int64_t stride, std::int64_t rows, std::int64_t steps,
                    std::uint8_t* out);
  void (*scan_packed)(const ScanBlock&, const ScanGroup&);
};

const Kernels& kernels_of(int isa);

// `isa` is one of isa.h; num_threads >= 1. Throw std::invalid_argument for an instruction set that is
// not built or not supported by this processor, std::bad_alloc if the workspaces do not fit.
void select(const SelectArgs& args, int isa, int num_threads);
void relevance(const RelevanceArgs& args, int isa, int num_threads);
void encode(const EncodeArgs& args, int isa, int num_threads);
float largest_code_error(const std::uint8_t* codes, std::int64_t num_rows, std::int64_t stride);

// Whether all rows can be scanned by their codes for so many vectors, and it pays.
bool code_scan_supported(int isa, std::int64_t vectors);

// A scan of all rows; values are score_weight * score + bias_weight * bias, or scores, the least of `terms` products.
struct ScanArgs {
  SelectArgs corpus;  // the fields that describe rows, codes (null: rows are read), bias, groups and their queries
  std::int64_t terms;
  const float* vectors;  // (terms, Q, D)
  float row_error;       // with codes, the largest of a code row
  float largest_bias;    // its size
  float max_norm;        // of the vectors of the formulas
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
