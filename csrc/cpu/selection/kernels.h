// What select.cpp compiles for each instruction set, and the blocks that its scans take.
#pragma once

#include "selection/args.h"
#include "selection/workspace.h"

namespace rsk {

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
  const void* signs;      // the same as signs, D / 8 bytes each; or null
};

// What scans and searches need of a region, scan.inl.
struct ScanKernels {
  void (*codes)(const ScanBlock&, const ScanGroup&);
  EachType<void(const ScanBlock&, const ScanGroup&)> rows;
  // NaN, and false, for a row that is no vector of the formulas.
  bool (*row_scales)(const SelectArgs&, std::int64_t first, std::int64_t n, float* out);
  // Makes code rows, without an error, of at most kRowBlock rows that are codes, and returns what row_scales does.
  // Bytes of `out` between the elements of a row and its header are left as they are: zero.
  bool (*code_rows)(const SelectArgs&, std::int64_t first, std::int64_t n, std::uint8_t* out);
  // Makes the values of the entries those of a selection.
  void (*row_values)(const SelectArgs&, std::int64_t q, const float* prepared, ScanEntry* entries, std::int64_t n);
  Status (*unit_query)(const SelectArgs&, std::int64_t q, float* out);
  CodeVector (*code_vector)(const float* vector, std::int64_t dims, std::int8_t* out);  // 2 code_bytes(D)
  void (*prepare)(const float* vector, std::int64_t dims, float* out);                  // D + a vector
  bool codes_pay;
};

// What a region does with rows of one type. All else knows no types, and is compiled once for all of them.
struct RowKernels {
  using Products = void(const float* const* vectors, const void* const* rows, std::int64_t dims, float* out);

  Products* of_vectors[9];  // [n]: n prepared vectors, at most kTile, with one row
  Products* of_rows[5];     // [n]: one prepared vector with n rows
  // Vectors [begin, end) with kAspectRows rows, kAspectVectors at a time: beyond end too.
  void (*of_aspects)(const float* const* vectors, std::int64_t begin, std::int64_t end, const void* const* rows,
                     std::int64_t dims, float* out);
  void (*norms2[5])(const void* const* rows, std::int64_t dims, const float* tail_mask, float* out);  // [n]; 1 or 4
  void (*prepare)(const void* row, std::int64_t dims, float* out);
  void (*widen)(const void* row, std::int64_t dims, float* out);  // D floats
  double (*exact_norm2)(const void* row, std::int64_t dims);
  float (*add_lost)(const CodeVector& codes, const void* row, std::int64_t dims, float norm_scale, float* lost);
};

using SelectQuery = void(const SelectArgs&, std::int64_t q, Workspace&);

// Of a region of rules.cpp.
struct RuleKernels {
  SelectQuery *msd, *factored, *coverage;
};

// What a region offers. A selection or a relevance is of one query, by one thread.
struct Kernels {
  int vector_floats;
  SelectQuery* select[int(Method::msd)];  // the others are rule_kernel
  void (*relevance)(const RelevanceArgs&, std::int64_t q, Workspace&);
  EachType<void(const EncodeArgs&, std::int64_t row)> encode_row;
  EachType<StoreStatus(const StoreArgs&, std::int64_t row, float* x, float* held, double* norm)> store_row;
  const ScanKernels* scan;
  // Null where there is no scan by packed codes.
  void (*pack_rows)(const std::uint8_t* codes, std::int64_t stride, std::int64_t rows, std::int64_t steps,
                    std::uint8_t* out);
  void (*scan_packed)(const ScanBlock&, const ScanGroup&);
};

const Kernels& kernels_of(int isa);
SelectQuery* rule_kernel(Method method, int isa);

}  // namespace rsk
