// A scan of a corpus: threads take all rows with the scan kernels of a region and keep the best n of every query.
#include "selection/top_n.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "isa.h"
#include "parallel.h"

namespace rsk {
namespace {

// Up to so many vectors meet the codes as they lie. More are packed or, without VNNI, meet the rows.
constexpr std::int64_t kFew = 8, kFewWithoutVnni = 2;
constexpr std::int64_t kManyGroups = 4;  // of queries, that threads share
constexpr std::ptrdiff_t kSorted = 256;  // of a pool: beyond the first few their order does not matter

// Whether the processor adds products of bytes.
bool vnni([[maybe_unused]] const Kernels& kernels) {
#if defined(__x86_64__) && !defined(RSK_NO_VNNI)
  return kernels.scan_packed && has_vnni();
#else
  return false;
#endif
}

// What is known of a query's terms: the largest norm, and by how much codes leave a product open at most.
struct TermErrors {
  double norm = 0, codes = 0;

  // A term of this norm, whose own codes leave out at most `lost` of it.
  void add_coded(double term_norm, double lost, float row_error) {
    norm = std::max(norm, term_norm);
    codes = std::max(codes, row_error * term_norm + (1.0 + row_error) * lost + 1e-6 * (1 + term_norm));
  }
};

double norm_of(const float* vector, std::int64_t dims) {
  double norm2 = 0;
  for (std::int64_t d = 0; d < dims; ++d) norm2 += double(vector[d]) * vector[d];
  return std::sqrt(norm2);
}

// One scan of all rows, by the rows themselves, by codes as they lie or by packed codes.
class Scan {
 public:
  Scan(const ScanArgs& args, TopN& top, int isa, int num_threads);
  bool run();  // as TopN::scan

 private:
  struct Scratch {  // of a thread
    std::vector<Best> best;
    std::vector<std::uint8_t> codes, packed;
    std::vector<float> scales, bias;
    std::unique_ptr<ScanEntry[][kScanRows]> found;
    bool well = true;
  };

  const float* term(std::int64_t q, std::int64_t t) const {
    return args_.vectors + (t * corpus_.num_queries + q) * dims_;
  }
  void prepare(std::int64_t q);
  TermErrors pack_terms(std::int64_t q);
  TermErrors encode_terms(std::int64_t q);
  TermErrors prepare_terms(std::int64_t q);
  void scan_rows();
  void begin(Scratch& scratch) const;
  const std::uint8_t* codes_of(Scratch& scratch, std::int64_t first, std::int64_t n) const;
  void scan_block(Scratch& scratch, std::int64_t index, std::int64_t group_begin, std::int64_t group_end,
                  std::int64_t kept) const;
  void scan_group(Scratch& scratch, const ScanBlock& block, std::int64_t first_row, std::int64_t part,
                  std::int64_t group, std::int64_t kept) const;
  void merge(std::int64_t q);
  bool filtered() const { return corpus_.limits.allowed || corpus_.limits.num_excluded; }
  bool may_be_picked(std::int64_t q, std::int64_t row) const;

  const ScanArgs& args_;
  const SelectArgs& corpus_;
  TopN& top_;
  const Kernels& kernels_;
  const int num_threads_;
  const std::int64_t dims_, num_vectors_;
  const bool codes_, own_, packed_;           // by codes; of rows that are codes themselves; by packed ones
  const std::int64_t each_, groups_, steps_;  // queries of a group; groups; steps of four elements
  const std::int64_t prepared_floats_, code_stride_;
  const std::int64_t blocks_, element_, part_rows_;  // of rows; bytes of an element; rows of a part of a block
  std::int64_t leap_;                                // from one block to the next
  std::size_t most_;                                 // entries of a query

  // The vectors in the form that the scan takes.
  std::vector<std::int32_t> packed_vectors_, start_;
  std::vector<float> scale_, prepared_;
  std::vector<std::int8_t> bytes_;
  std::vector<CodeVector> code_vectors_;

  std::vector<Scratch> scratches_;
};

Scan::Scan(const ScanArgs& args, TopN& top, int isa, int num_threads)
    : args_(args),
      corpus_(args.corpus),
      top_(top),
      kernels_(kernels_of(isa)),
      num_threads_(num_threads),
      dims_(corpus_.dims),
      num_vectors_(corpus_.num_queries * args.terms),
      codes_(args.by_codes),
      own_(codes_ && !corpus_.codes),
      packed_(codes_ && num_vectors_ > kFew),
      each_((codes_ ? kScanVectors : kRowVectors) / args.terms),
      groups_((corpus_.num_queries + each_ - 1) / each_),
      steps_((dims_ + 3) / 4),
      prepared_floats_(dims_ / kernels_.vector_floats * kernels_.vector_floats + kernels_.vector_floats),
      code_stride_(code_stride(dims_)),
      blocks_((corpus_.num_rows + kScanRows - 1) / kScanRows),
      element_(element_bytes(corpus_.dtype)),
      part_rows_(packed_ || (codes_ && !own_)                          ? kScanRows
                 : kRowBlock * row_bytes(corpus_.dtype, dims_) > 32768 ? kRowBlock / 2
                                                                       : kRowBlock),
      leap_(std::int64_t(0.618 * double(blocks_)) | 1),
      most_(std::size_t(std::max<std::int64_t>(4 * top.n + 2048, (1 << 20) / corpus_.num_queries))) {
  if (own_ && !rows_are_codes(corpus_)) throw std::invalid_argument("rows without codes");
  if (codes_ && !code_scan_supported(isa, num_vectors_, false))
    throw std::invalid_argument("no scan by codes on this machine");
  while (std::gcd(leap_, blocks_) != 1) leap_ += 2;
}

bool Scan::run() {
  if (packed_) {
    packed_vectors_.resize(std::size_t(groups_ * steps_ * kScanVectors));
    start_.resize(std::size_t(groups_ * kScanVectors));
    scale_.resize(std::size_t(groups_ * each_));
  } else if (codes_) {
    bytes_.resize(std::size_t(num_vectors_ * 2 * code_bytes(dims_)));
    code_vectors_.resize(std::size_t(num_vectors_));
  } else {
    prepared_.resize(std::size_t(num_vectors_ * prepared_floats_));
  }
  const double size = double(num_vectors_) * double(dims_);
  const std::int64_t num_queries = corpus_.num_queries;
  parallel_for(num_queries, 8, worthwhile_threads(16 * size, num_queries, num_threads_),
               [&](std::int64_t q, int) { prepare(q); });
  scan_rows();
  const int threads = worthwhile_threads(size * 100, num_queries, int(scratches_.size()));
  parallel_for(num_queries, 1, threads, [&](std::int64_t q, int) { merge(q); });
  return std::all_of(scratches_.begin(), scratches_.end(), [](const Scratch& scratch) { return scratch.well; });
}

// The vectors of a query, and by how much its values may be off: by what codes leave out, and by what two float32
// evaluations of a product differ in, whatever their order.
void Scan::prepare(std::int64_t q) {
  const TermErrors errors = packed_ ? pack_terms(q) : codes_ ? encode_terms(q) : prepare_terms(q);
  constexpr float kEps = std::numeric_limits<float>::epsilon();
  const float weight = corpus_.bias ? args_.score_weight[q] : 1.0f;
  const float left_out = float(errors.codes) * 1.00001f, largest = float(errors.norm * args_.max_norm);
  const float rounding = largest * float(dims_ + 8) * 2 * kEps + (largest + args_.largest_bias) * 4 * kEps;
  top_.error[std::size_t(q)] = left_out + rounding;
  top_.margin[std::size_t(q)] = top_.all && codes_ ? 2 * (weight * left_out + rounding) : 0.0f;
}

// Signed codes of a query's terms, in steps of one scale.
TermErrors Scan::pack_terms(std::int64_t q) {
  const std::int64_t group = q / each_, first = q % each_ * args_.terms;
  std::int32_t* const vectors = &packed_vectors_[std::size_t(group * steps_ * kScanVectors + first)];
  std::int32_t* const start = &start_[std::size_t(group * kScanVectors + first)];
  double largest = 0;
  for (std::int64_t t = 0; t < args_.terms; ++t)
    for (std::int64_t d = 0; d < dims_; ++d) largest = std::max(largest, std::fabs(double(term(q, t)[d])));
  const float scale = scale_[std::size_t(q)] = float(largest / 127);
  TermErrors errors;
  for (std::int64_t t = 0; t < args_.terms; ++t) {
    double norm2 = 0, lost2 = 0;
    std::int32_t sum = 0;
    for (std::int64_t d = 0; d < dims_; ++d) {
      const double x = term(q, t)[d];
      const std::int32_t code = scale > 0 ? std::int32_t(std::nearbyint(x / scale)) : 0;
      const std::int32_t byte = code < -127 ? -127 : code > 127 ? 127 : code;
      reinterpret_cast<std::int8_t*>(vectors + d / 4 * kScanVectors + t)[d % 4] = std::int8_t(byte);
      sum += byte;
      norm2 += x * x;
      lost2 += (x - double(byte) * scale) * (x - double(byte) * scale);
    }
    start[t] = -128 * sum;
    errors.add_coded(std::sqrt(norm2), std::sqrt(lost2), args_.row_error);
  }
  return errors;
}

TermErrors Scan::encode_terms(std::int64_t q) {
  TermErrors errors;
  for (std::int64_t t = 0; t < args_.terms; ++t) {
    const std::int64_t v = q * args_.terms + t;
    CodeVector& code = code_vectors_[std::size_t(v)];
    code = kernels_.scan->code_vector(term(q, t), dims_, &bytes_[std::size_t(v * 2 * code_bytes(dims_))]);
    errors.add_coded(norm_of(term(q, t), dims_), code.error, args_.row_error);
  }
  return errors;
}

TermErrors Scan::prepare_terms(std::int64_t q) {
  TermErrors errors;
  for (std::int64_t t = 0; t < args_.terms; ++t) {
    kernels_.scan->prepare(term(q, t), dims_, &prepared_[std::size_t((q * args_.terms + t) * prepared_floats_)]);
    errors.norm = std::max(errors.norm, norm_of(term(q, t), dims_));
  }
  return errors;
}

// Threads share the blocks of rows, and each keeps its own best of every query; or they share the queries, where these
// are many: then of a part of the blocks a part of n is kept, and a little more, so that few rows are looked at twice.
// Blocks are taken out of their order, so that those seen stand for the others.
void Scan::scan_rows() {
  const bool by_query = packed_ && !top_.all && groups_ >= kManyGroups;
  const double size = double(num_vectors_) * double(dims_);
  const double work = (size + double(dims_)) * double(corpus_.num_rows) / (codes_ ? 4 : 1);
  const int threads = worthwhile_threads(work, by_query ? groups_ : blocks_, num_threads_);
  scratches_.resize(static_cast<std::size_t>(threads));
  if (!by_query) {
    parallel_for(blocks_, 1, threads, [&](std::int64_t index, int thread) {
      scan_block(scratches_[std::size_t(thread)], index, 0, groups_, top_.n);
    });
    return;
  }
  parallel_for(threads, 1, threads, [&](std::int64_t share, int thread) {
    for (std::int64_t index = 0; index < blocks_; ++index) {
      interrupt_point();
      const std::int64_t part = std::int64_t(double(top_.n) * double(index + 1) / double(blocks_) * 1.1) + 32;
      const bool even = !filtered();  // else the rows that may be picked may all be in a few blocks
      scan_block(scratches_[std::size_t(thread)], index, groups_ * share / threads, groups_ * (share + 1) / threads,
                 even ? std::min(top_.n, part) : top_.n);
    }
  });
}

void Scan::begin(Scratch& scratch) const {
  scratch.best.resize(std::size_t(corpus_.num_queries));
  scratch.codes.resize(own_ ? std::size_t(kRowBlock * code_stride_) : 0);
  scratch.packed.resize(packed_ ? std::size_t(kScanRows * steps_ * 4) : 0);
  scratch.scales.resize(kScanRows);
  scratch.bias.resize(kScanRows);
  scratch.found.reset(new ScanEntry[kRowVectors][kScanRows]);
}

// Code rows [first, first + n) of the corpus; with rows that are codes themselves, n is at most kRowBlock.
const std::uint8_t* Scan::codes_of(Scratch& scratch, std::int64_t first, std::int64_t n) const {
  if (!own_) return corpus_.codes + first * code_stride_;
  scratch.well = kernels_.scan->code_rows(corpus_, first, n, scratch.codes.data()) && scratch.well;
  return scratch.codes.data();
}

// Block number `index` against some of the groups, of which the best `kept` rows are kept.
void Scan::scan_block(Scratch& scratch, std::int64_t index, std::int64_t group_begin, std::int64_t group_end,
                      std::int64_t kept) const {
  if (scratch.best.empty()) begin(scratch);
  const std::int64_t first = index * leap_ % blocks_ * kScanRows;
  const std::int64_t rows = std::min(kScanRows, corpus_.num_rows - first);
  if (corpus_.limits.allowed && !corpus_.limits.allowed_per_query &&
      std::all_of(corpus_.limits.allowed + first, corpus_.limits.allowed + first + rows,
                  [](std::uint8_t may) { return !may; }))
    return;
  for (std::int64_t begin = 0; packed_ && begin < rows; begin += kRowBlock) {
    const std::int64_t some = std::min(kRowBlock, rows - begin);
    const std::uint8_t* const codes = codes_of(scratch, first + begin, some);
    kernels_.pack_rows(codes, code_stride_, some, steps_, &scratch.packed[std::size_t(begin * steps_ * 4)]);
    for (std::int64_t r = 0; r < some; ++r)
      std::memcpy(&scratch.scales[std::size_t(begin + r)], codes + (r + 1) * code_stride_ - kCodeHeader, sizeof(float));
  }
  if (corpus_.bias) std::copy_n(corpus_.bias + first, rows, scratch.bias.begin());
  for (std::int64_t begin = 0; begin < rows; begin += part_rows_) {
    const std::int64_t part = std::min(part_rows_, rows - begin), row = first + begin;
    if (!codes_) {
      float* const scales = &scratch.scales[std::size_t(begin)];
      scratch.well = kernels_.scan->row_scales(corpus_, row, part, scales) && scratch.well;
    }
    ScanBlock block = {};
    block.rows = packed_ ? (part + 31) / 32 * 32 : part;
    block.dims = dims_;
    block.scales = &scratch.scales[std::size_t(begin)];
    block.bias = corpus_.bias ? &scratch.bias[std::size_t(begin)] : nullptr;
    block.packed = scratch.packed.data();
    block.steps = steps_;
    block.codes = codes_ && !packed_ ? codes_of(scratch, row, part) : nullptr;
    block.data = static_cast<const char*>(corpus_.rows) + row * corpus_.row_stride * element_;
    block.row_stride = corpus_.row_stride;
    for (std::int64_t group = group_begin; group < group_end; ++group)
      scan_group(scratch, block, row, part, group, kept);
  }
}

void Scan::scan_group(Scratch& scratch, const ScanBlock& block, std::int64_t first_row, std::int64_t part,
                      std::int64_t group, std::int64_t kept) const {
  const std::int64_t q = group * each_, queries = std::min(each_, corpus_.num_queries - q);
  float threshold[kRowVectors];
  std::int64_t count[kRowVectors] = {};
  for (std::int64_t g = 0; g < queries; ++g) threshold[g] = scratch.best[std::size_t(q + g)].threshold;
  ScanGroup vectors = {};
  vectors.queries = queries;
  vectors.terms_each = args_.terms;
  vectors.score_weight = corpus_.bias ? args_.score_weight + q : nullptr;
  vectors.bias_weight = corpus_.bias ? args_.bias_weight + q : nullptr;
  vectors.threshold = threshold;
  vectors.found = scratch.found.get();
  vectors.count = count;
  if (packed_) {
    vectors.vectors = &packed_vectors_[std::size_t(group * steps_ * kScanVectors)];
    vectors.start = &start_[std::size_t(group * kScanVectors)];
    vectors.scale = &scale_[std::size_t(q)];
    kernels_.scan_packed(block, vectors);
  } else if (codes_) {
    vectors.codes = &code_vectors_[std::size_t(q * args_.terms)];
    kernels_.scan->codes(block, vectors);
  } else {
    vectors.prepared = &prepared_[std::size_t(q * args_.terms * prepared_floats_)];
    vectors.signs = args_.signs ? args_.signs + q * (dims_ / 8) : nullptr;
    kernels_.scan->rows[corpus_.dtype](block, vectors);
  }
  for (std::int64_t g = 0; g < queries; ++g) {
    Best& best = scratch.best[std::size_t(q + g)];
    const float margin = top_.margin[std::size_t(q + g)];
    for (std::int64_t i = 0; i < count[g]; ++i) {
      const ScanEntry& entry = scratch.found[std::size_t(g)][i];
      if (entry.row >= part) continue;  // the last block is filled up
      const std::int64_t row = first_row + entry.row;
      if (corpus_.limits.query_groups && corpus_.limits.groups[row] == corpus_.limits.query_groups[q + g]) continue;
      if (filtered() && !may_be_picked(q + g, row)) continue;
      best.add({entry.value, entry.score, row}, kept, margin, most_);
    }
  }
}

bool Scan::may_be_picked(std::int64_t q, std::int64_t row) const {
  const std::int64_t number = args_.numbers ? args_.numbers[q] : q;
  if (corpus_.limits.allowed &&
      !corpus_.limits.allowed[corpus_.limits.allowed_per_query ? number * corpus_.num_rows + row : row])
    return false;
  const std::int64_t* const excluded = corpus_.limits.exclude + number * corpus_.limits.num_excluded;
  return !corpus_.limits.num_excluded || !std::binary_search(excluded, excluded + corpus_.limits.num_excluded, row);
}

// One best of what the threads have kept.
void Scan::merge(std::int64_t q) {
  Best& best = top_.best[std::size_t(q)];
  for (Scratch& scratch : scratches_)
    if (!scratch.best.empty()) best.merge(scratch.best[std::size_t(q)]);
  best.shrink(top_.n, top_.margin[std::size_t(q)], most_);
  if (top_.all) return;
  const auto few = best.entries.begin() + std::min(kSorted, best.entries.end() - best.entries.begin());
  std::nth_element(best.entries.begin(), few, best.entries.end(), better);
  std::sort(best.entries.begin(), few, better);
}

}  // namespace

bool code_scan_supported(int isa, std::int64_t vectors, bool own) {
  const Kernels& kernels = kernels_of(isa);
  return vnni(kernels) || (kernels.scan->codes_pay && vectors <= kFewWithoutVnni && !own);
}

TopN::TopN(std::int64_t num_queries, std::int64_t wanted, bool keep_all)
    : n(wanted),
      all(keep_all),
      error(std::size_t(num_queries)),
      margin(std::size_t(num_queries)),
      best(std::size_t(num_queries)) {}

bool TopN::scan(const ScanArgs& args, int isa, int num_threads) { return Scan(args, *this, isa, num_threads).run(); }

std::int64_t TopN::width() const {
  std::size_t width = 0;
  for (const Best& of : best) width = std::max(width, of.entries.size());
  return std::int64_t(width);
}

void TopN::get(std::int64_t* rows, float* scores, std::int64_t width, float* outside, float* errors) const {
  for (const Best& of : best) {
    std::fill(rows, rows + width, std::int64_t(-1));
    std::fill(scores, scores + width, 0.0f);
    *outside++ = of.threshold;
    for (std::size_t i = 0; i < of.entries.size(); ++i) {
      rows[i] = of.entries[i].row;
      scores[i] = of.entries[i].score;
    }
    rows += width;
    scores += width;
  }
  std::copy(error.begin(), error.end(), errors);
}

}  // namespace rsk
