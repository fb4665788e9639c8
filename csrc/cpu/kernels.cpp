// The kernel bodies, compiled once per instruction set in target regions of this one translation unit, and what
// calls them. Headers come before the regions, so that the standard library's templates stay baseline code.
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "api.h"
#include "isa.h"
#include "parallel.h"
#include "regions.h"

// The table of a region, which ends with pack_rows and scan_packed.
#define RSK_KERNELS(...)                                    \
  constexpr Kernels kKernels = {select_query<Method::mmr>,  \
                                select_query<Method::vrsd>, \
                                relevance_query,            \
                                int(W),                     \
                                encode_row,                 \
                                &kScanKernels,              \
                                __VA_ARGS__}

// base: the floor of the platform's ABI, SSE2 on x86-64 and NEON on AArch64.
namespace rsk::base {
#define RSK_VEC_BYTES 16
#include "simd/vectors.inl"
#include "simd/dot.inl"
#include "simd/codes.inl"
#include "greedy_select.inl"
#include "scan.inl"
#undef RSK_VEC_BYTES
RSK_KERNELS(nullptr, nullptr);
}  // namespace rsk::base

#if RSK_X86_DISPATCH

RSK_REGION(RSK_AVX2)
namespace rsk::avx2 {
#define RSK_VEC_BYTES 32
#include "simd/vectors.inl"
#include "simd/dot.inl"
#include "simd/codes.inl"
#include "greedy_select.inl"
#include "scan.inl"
#undef RSK_VEC_BYTES
RSK_KERNELS(nullptr, nullptr);
}  // namespace rsk::avx2
RSK_REGION_END

RSK_REGION(RSK_AVX512)
namespace rsk::avx512 {
#define RSK_VEC_BYTES 64
#include "simd/vectors.inl"
#include "simd/dot.inl"
#include "simd/codes.inl"
#include "code_scan.inl"
#include "greedy_select.inl"
#include "scan.inl"
#undef RSK_VEC_BYTES
RSK_KERNELS(pack_rows, scan_packed);
}  // namespace rsk::avx512
RSK_REGION_END

#endif  // RSK_X86_DISPATCH

namespace rsk {
namespace {

constexpr const Kernels* kIsas[] = {RSK_OF_EACH_REGION(kKernels)};

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

// The workspaces of all threads, one allocation each, every array on its own cache line.
class Workspaces {
 public:
  Workspaces(const SelectArgs& args, std::int64_t vector_floats, int num_threads) {
    const std::int64_t prepared = args.dims + vector_floats, items = args.pool + std::max(vector_floats, kCodeBlock);
    const std::int64_t picks = args.num_initial + args.k;
    const std::int64_t pool_slots = args.candidates ? set_slots(args.pool) : 0;
    const std::int64_t initial_slots = args.num_initial ? set_slots(args.num_initial) : 0;
    const std::int64_t seen = seen_words(args);
    const bool vrsd = args.method == Method::vrsd;
    for (int thread = 0; thread < num_threads; ++thread) {
      Workspace ws{};
      ws.asked_for = -1;
      size_ = 0;
      for (int pass = 0; pass < 2; ++pass) {  // measure, then lay out
        char* base = nullptr;
        if (pass) {
          blocks_.emplace_back(new char[size_ + kLine]);
          base = blocks_.back().get();
          base += (kLine - reinterpret_cast<std::uintptr_t>(base) % kLine) % kLine;
          size_ = 0;
        }
        place(base, ws.query, prepared);
        place(base, ws.tail_mask, vector_floats);
        place(base, ws.in_pool.slots, pool_slots);
        place(base, ws.in_initial.slots, initial_slots);
        place(base, ws.seen, seen);
        place(base, ws.row, args.pool);
        place(base, ws.position, args.pool);
        place(base, ws.survivors, args.pool);
        place(base, ws.met, items);
        for (float** floats :
             {&ws.scale, &ws.relevance, &ws.value, &ws.running, &ws.pivot, &ws.sine, &ws.bound, &ws.gate})
          place(base, *floats, items);
        place(base, ws.norm2, vrsd ? items : 0);
        place(base, ws.picked_row, picks);
        place(base, ws.picked_scale, picks);
        place(base, ws.picked_pivot, picks);
        place(base, ws.picked_length, args.num_initial);
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
        place(base, ws.lost, vrsd && code ? prepared : 0);
        place(base, ws.sum, vrsd ? args.dims : 0);
      }
      if (seen) std::memset(ws.seen, 0, std::size_t(seen) * sizeof *ws.seen);
      ws.seen_mask = std::uint64_t(seen - 1);
      ws.in_pool.mask = pool_slots - 1;
      ws.in_initial.mask = initial_slots - 1;
      workspaces_.push_back(ws);
    }
  }
  Workspace& operator[](int thread) { return workspaces_[std::size_t(thread)]; }

 private:
  static constexpr std::size_t kLine = 64;
  template <class T>
  void place(char* base, T*& array, std::int64_t count) {
    const std::size_t used = std::size_t(count) * sizeof(T), padding = kLine - used % kLine;
    array = base ? reinterpret_cast<T*>(base + size_) : nullptr;
#ifdef __SANITIZE_ADDRESS__
    // Overruns from one array into the next are found too.
    if (base) ASAN_POISON_MEMORY_REGION(base + size_ + used, padding);
#endif
    size_ += used + padding;
  }
  std::size_t size_ = 0;
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::vector<Workspace> workspaces_;
};

}  // namespace

// Whether the processor adds products of bytes.
static bool vnni([[maybe_unused]] const Kernels& kernels) {
#if defined(RSK_NO_VNNI)
  return false;
#elif RSK_X86_DISPATCH
  return kernels.scan_packed && __builtin_cpu_supports("avx512vnni");
#endif
  return false;
}

// So many vectors are met by codes as they lie: with more they are packed, or without VNNI the rows read.
constexpr std::int64_t kFew = 8, kFewWithoutVnni = 2;

bool code_scan_supported(int isa, std::int64_t vectors) {
  const Kernels& kernels = kernels_of(kIsas, isa);
  return vnni(kernels) || (kernels.scan->codes_pay && vectors <= kFewWithoutVnni);
}

void select(const SelectArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(kIsas, isa);
  const double work = double(args.num_queries) * double(args.pool) * double(args.dims) * double(args.k);
  const int threads = worthwhile_threads(work, args.num_queries, num_threads);
  const auto select_query = args.method == Method::mmr ? kernels.mmr : kernels.vrsd;
  Workspaces workspaces(args, kernels.vector_floats, threads);
  // A run of queries for one thread, since each asks for the rows of the next.
  const std::int64_t grain = std::max<std::int64_t>(1, std::min<std::int64_t>(16, args.num_queries / (4 * threads)));
  parallel_for(args.num_queries, grain, threads,
               [&](std::int64_t q, int thread) { select_query(args, q, workspaces[thread]); });
  if (args.work) {
    args.work[0] = args.work[1] = args.work[2] = 0;
    for (int thread = 0; thread < threads; ++thread) {
      args.work[0] += workspaces[thread].products;
      args.work[1] += workspaces[thread].rows_read;
      args.work[2] += workspaces[thread].code_products;
    }
  }
}

void relevance(const RelevanceArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(kIsas, isa);
  const double work = double(args.pool.num_queries) * double(args.pool.pool) * double(args.pool.dims);
  const int threads = worthwhile_threads(work, args.pool.num_queries, num_threads);
  Workspaces workspaces(args.pool, kernels.vector_floats, threads);
  parallel_for(args.pool.num_queries, 1, threads,
               [&](std::int64_t q, int thread) { kernels.relevance(args, q, workspaces[thread]); });
}

void encode(const EncodeArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(kIsas, isa);
  const int threads = worthwhile_threads(double(args.num_rows) * double(args.dims), args.num_rows, num_threads);
  parallel_for(args.num_rows, 64, threads, [&](std::int64_t row, int) { kernels.encode_row(args, row); });
}

float largest_code_error(const std::uint8_t* codes, std::int64_t num_rows, std::int64_t stride) {
  float largest = 0.0f;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    CodeHeader header;
    std::memcpy(&header, codes + (row + 1) * stride - kCodeHeader, sizeof header);
    largest = std::max(largest, header.error);
  }
  return largest;
}

namespace {

// The larger value first, ties to the lowest row.
bool better(const ScanEntry& a, const ScanEntry& b) { return a.value != b.value ? a.value > b.value : a.row < b.row; }

// Rows that may be among the best n of one query. `threshold` is what no row left out exceeds.
struct Best {
  float threshold = -std::numeric_limits<float>::infinity();
  std::size_t limit = kScanRows / 2;  // entries that call for a shrink
  bool too_many = false;              // more than `most` within the margin: none is kept
  std::vector<ScanEntry> entries;

  void add(const ScanEntry& entry, std::int64_t n, float margin, std::size_t most) {
    if (entry.value < threshold) return;
    entries.push_back(entry);
    if (entries.size() >= limit) shrink(n, margin, most);
  }

  // Keeps the best n and what is within the margin of the last of them.
  void shrink(std::int64_t n, float margin, std::size_t most) {
    if (std::int64_t(entries.size()) <= n) return;
    const auto last = entries.begin() + (n - 1);
    std::nth_element(entries.begin(), last, entries.end(), better);
    threshold = std::max(threshold, last->value - margin);
    const auto out = [&](const ScanEntry& entry) { return entry.value < threshold; };
    entries.erase(margin > 0 ? std::remove_if(last + 1, entries.end(), out) : last + 1, entries.end());
    if (entries.size() > most) {
      too_many = true;
      threshold = std::numeric_limits<float>::infinity();
      std::vector<ScanEntry>().swap(entries);
    }
    limit = 2 * std::max(entries.size(), std::size_t(n)) + 64;
  }

  void merge(const Best& other) {
    threshold = std::max(threshold, other.threshold);
    too_many = too_many || other.too_many;
    entries.insert(entries.end(), other.entries.begin(), other.entries.end());
  }
};

// The vectors of a scan in the form that it takes.
struct ScanVectors {
  std::int64_t each = 0, steps = 0, width = 0;  // queries of a group; sizes of a group's and of a vector's share
  std::vector<std::int32_t> packed, start;
  std::vector<float> scale, prepared;
  std::vector<std::int8_t> bytes;
  std::vector<CodeVector> codes;
};

// Signed codes of a query's terms, in steps of one scale, which is returned. `vectors` and `start` are those of the
// first term in its group; `error` is by how much a score may be off.
float pack_terms(const ScanArgs& args, std::int64_t q, float& error, std::int32_t* vectors, std::int32_t* start) {
  const std::int64_t dims = args.corpus.dims;
  const auto term = [&](std::int64_t t) { return args.vectors + (t * args.corpus.num_queries + q) * dims; };
  double largest = 0;
  for (std::int64_t t = 0; t < args.terms; ++t)
    for (std::int64_t d = 0; d < dims; ++d) largest = std::max(largest, std::fabs(double(term(t)[d])));
  const float scale = float(largest / 127);
  double worst = 0;
  for (std::int64_t t = 0; t < args.terms; ++t) {
    double norm2 = 0, lost2 = 0;
    std::int32_t sum = 0;
    for (std::int64_t d = 0; d < dims; ++d) {
      const double x = term(t)[d];
      const std::int32_t code = scale > 0 ? std::int32_t(std::nearbyint(x / scale)) : 0;
      const std::int32_t byte = code < -127 ? -127 : code > 127 ? 127 : code;
      reinterpret_cast<std::int8_t*>(vectors + d / 4 * kScanVectors + t)[d % 4] = std::int8_t(byte);
      sum += byte;
      norm2 += x * x;
      lost2 += (x - double(byte) * scale) * (x - double(byte) * scale);
    }
    start[t] = -128 * sum;
    const double norm = std::sqrt(norm2), rounding = 1e-6 * (1 + norm);
    worst = std::max(worst, args.row_error * norm + (1.0 + args.row_error) * std::sqrt(lost2) + rounding);
  }
  error = float(worst) * 1.00001f;
  return scale;
}

double norm_of(const float* vector, std::int64_t dims) {
  double norm2 = 0;
  for (std::int64_t d = 0; d < dims; ++d) norm2 += double(vector[d]) * vector[d];
  return std::sqrt(norm2);
}

}  // namespace

constexpr std::int64_t kManyGroups = 4;  // of queries, that threads share
constexpr std::ptrdiff_t kSorted = 256;  // of a pool: beyond the first few their order does not matter

struct TopN::State {
  std::int64_t n;
  // Whether every row that may be among the best n is kept: all within the margin of the n-th value, twice what a value
  // may be off. Otherwise the best n by these values are.
  bool all = false;
  std::vector<float> error;  // by how much the score or the value of a row may be off
  std::vector<float> margin;
  std::vector<Best> best;
};

TopN::TopN(std::int64_t num_queries, std::int64_t n) : state_(new State{n, false, {}, {}, {}}) {
  state_->error.resize(std::size_t(num_queries));
  state_->margin.resize(std::size_t(num_queries));
  state_->best.resize(std::size_t(num_queries));
}
TopN::~TopN() { delete state_; }

bool TopN::scan(const ScanArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(kIsas, isa);
  const SelectArgs& corpus = args.corpus;
  const std::int64_t num_rows = corpus.num_rows, dims = corpus.dims, num_queries = corpus.num_queries;
  const std::int64_t num_vectors = num_queries * args.terms;
  const bool codes = corpus.codes != nullptr;
  if (codes && !code_scan_supported(isa, num_vectors)) throw std::invalid_argument("no scan by codes on this machine");
  const bool packed = codes && num_vectors > kFew;
  const bool all = state_->all;

  // 1. The vectors, and by how much a value may be off: of two float32 evaluations of a product, whatever their order,
  // and with codes by what they leave out.
  ScanVectors vectors;
  const std::int64_t each = (codes ? kScanVectors : kRowVectors) / args.terms;
  const std::int64_t groups = (num_queries + each - 1) / each, steps = (dims + 3) / 4;
  const std::int64_t code_width = 2 * code_bytes(dims);
  const std::int64_t prepared = dims / kernels.vector_floats * kernels.vector_floats + kernels.vector_floats;
  if (packed) {
    vectors.packed.resize(std::size_t(groups * steps * kScanVectors));
    vectors.start.resize(std::size_t(groups * kScanVectors));
    vectors.scale.resize(std::size_t(groups * each));
  } else if (codes) {
    vectors.bytes.resize(std::size_t(num_vectors * code_width));
    vectors.codes.resize(std::size_t(num_vectors));
  } else {
    vectors.prepared.resize(std::size_t(num_vectors * prepared));
  }
  const double size = double(num_vectors) * double(dims);
  parallel_for(num_queries, 8, worthwhile_threads(16 * size, num_queries, num_threads), [&](std::int64_t q, int) {
    float off = 0.0f, rounding = 0.0f;
    if (packed) {
      const std::int64_t group = q / each, first = q % each * args.terms;
      vectors.scale[std::size_t(q)] =
          pack_terms(args, q, off, &vectors.packed[std::size_t(group * steps * kScanVectors + first)],
                     &vectors.start[std::size_t(group * kScanVectors + first)]);
    }
    for (std::int64_t t = 0; t < args.terms; ++t) {
      const float* vector = args.vectors + (t * num_queries + q) * dims;
      const std::int64_t v = q * args.terms + t;
      const double norm = norm_of(vector, dims);
      rounding = std::max(rounding, float(norm * args.max_norm));
      if (codes && !packed) {
        const CodeVector& code = vectors.codes[std::size_t(v)] =
            kernels.scan->code_vector(vector, dims, &vectors.bytes[std::size_t(v * code_width)]);
        const double left = args.row_error * norm + (1.0 + args.row_error) * code.error;
        off = std::max(off, float(left + 1e-6 * (1 + norm)) * 1.00001f);
      } else if (!codes) {
        kernels.scan->prepare(vector, dims, &vectors.prepared[std::size_t(v * prepared)]);
      }
    }
    const float weight = corpus.bias ? args.score_weight[q] : 1.0f;
    constexpr float kEps = std::numeric_limits<float>::epsilon();
    rounding = rounding * float(dims + 8) * 2 * kEps + (rounding + args.largest_bias) * 4 * kEps;
    state_->error[std::size_t(q)] = off + rounding;
    state_->margin[std::size_t(q)] = all && codes ? 2 * (weight * off + rounding) : 0.0f;
  });

  // 2. Threads share the blocks of rows, and each keeps its own best of every query; or they share the queries, where
  // these are many: then of a part of the blocks a part of n is kept, and a little more, so that few rows are looked at
  // twice. Blocks are taken out of their order, so that those seen stand for the others.
  const bool by_query = packed && !all && groups >= kManyGroups;
  const std::int64_t blocks = (num_rows + kScanRows - 1) / kScanRows;
  const double work = (size + double(dims)) * double(num_rows) / (codes ? 4 : 1);
  const int threads = worthwhile_threads(work, by_query ? groups : blocks, num_threads);
  std::int64_t leap = std::int64_t(0.618 * double(blocks)) | 1;
  while (std::gcd(leap, blocks) != 1) leap += 2;
  const std::size_t most = std::size_t(std::max<std::int64_t>(4 * state_->n + 2048, (1 << 20) / num_queries));
  const std::int64_t element = corpus.dtype == DType::f32 ? 4 : corpus.dtype == DType::i8 ? 1 : 2;
  const std::int64_t part_rows = codes ? kScanRows : kRowBlock * dims * element > 32768 ? kRowBlock / 2 : kRowBlock;
  struct Scratch {
    std::vector<Best> best;
    std::vector<std::uint8_t> packed;
    std::vector<float> scales, bias;
    std::unique_ptr<ScanEntry[][kScanRows]> found;
    bool well = true;
  };
  std::vector<Scratch> scratches(static_cast<std::size_t>(threads));
  const std::int64_t stride = code_stride(dims);
  // Block number `index` against some of the groups, of which the best `kept` rows are kept.
  const auto scan_block = [&](Scratch& scratch, std::int64_t index, std::int64_t group_begin, std::int64_t group_end,
                              std::int64_t kept) {
    if (scratch.best.empty()) {
      scratch.best.resize(std::size_t(num_queries));
      scratch.packed.resize(packed ? std::size_t(kScanRows * steps * 4) : 0);
      scratch.scales.resize(kScanRows);
      scratch.bias.resize(kScanRows);
      scratch.found.reset(new ScanEntry[kRowVectors][kScanRows]);
    }
    const std::int64_t first = index * leap % blocks * kScanRows;
    const std::int64_t rows = std::min(kScanRows, num_rows - first);
    if (packed) {
      kernels.pack_rows(corpus.codes + first * stride, stride, rows, steps, scratch.packed.data());
      for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(&scratch.scales[std::size_t(r)], corpus.codes + (first + r + 1) * stride - kCodeHeader,
                    sizeof(float));
    }
    if (corpus.bias) std::copy_n(corpus.bias + first, rows, scratch.bias.begin());
    for (std::int64_t begin = 0; begin < rows; begin += part_rows) {
      const std::int64_t part = std::min(part_rows, rows - begin), row = first + begin;
      if (!codes) {
        float* const scales = &scratch.scales[std::size_t(begin)];
        scratch.well = kernels.scan->row_scales(corpus, row, part, scales) && scratch.well;
      }
      ScanBlock block = {};
      block.rows = packed ? (part + 31) / 32 * 32 : part;
      block.dims = dims;
      block.scales = &scratch.scales[std::size_t(begin)];
      block.bias = corpus.bias ? &scratch.bias[std::size_t(begin)] : nullptr;
      block.packed = scratch.packed.data();
      block.steps = steps;
      block.codes = codes ? corpus.codes + row * stride : nullptr;
      block.data = static_cast<const char*>(corpus.rows) + row * corpus.row_stride * element;
      block.dtype = corpus.dtype;
      block.row_stride = corpus.row_stride;
      for (std::int64_t group = group_begin; group < group_end; ++group) {
        const std::int64_t q = group * each, queries = std::min(each, num_queries - q);
        float threshold[kRowVectors];
        std::int64_t count[kRowVectors] = {};
        for (std::int64_t g = 0; g < queries; ++g) threshold[g] = scratch.best[std::size_t(q + g)].threshold;
        ScanGroup vectors_of = {};
        vectors_of.queries = queries;
        vectors_of.terms_each = args.terms;
        vectors_of.score_weight = corpus.bias ? args.score_weight + q : nullptr;
        vectors_of.bias_weight = corpus.bias ? args.bias_weight + q : nullptr;
        vectors_of.threshold = threshold;
        vectors_of.found = scratch.found.get();
        vectors_of.count = count;
        if (packed) {
          vectors_of.vectors = &vectors.packed[std::size_t(group * steps * kScanVectors)];
          vectors_of.start = &vectors.start[std::size_t(group * kScanVectors)];
          vectors_of.scale = &vectors.scale[std::size_t(q)];
          kernels.scan_packed(block, vectors_of);
        } else if (codes) {
          vectors_of.codes = &vectors.codes[std::size_t(q * args.terms)];
          kernels.scan->codes(block, vectors_of);
        } else {
          vectors_of.prepared = &vectors.prepared[std::size_t(q * args.terms * prepared)];
          kernels.scan->rows(block, vectors_of);
        }
        for (std::int64_t g = 0; g < queries; ++g) {
          Best& best = scratch.best[std::size_t(q + g)];
          const float margin = state_->margin[std::size_t(q + g)];
          for (std::int64_t i = 0; i < count[g]; ++i) {
            const ScanEntry& entry = scratch.found[std::size_t(g)][i];
            if (entry.row >= part) continue;  // the last block is filled up
            if (corpus.query_groups && corpus.groups[row + entry.row] == corpus.query_groups[q + g]) continue;
            best.add({entry.value, entry.score, row + entry.row}, kept, margin, most);
          }
        }
      }
    }
  };
  if (by_query) {
    parallel_for(threads, 1, threads, [&](std::int64_t share, int thread) {
      for (std::int64_t index = 0; index < blocks; ++index) {
        interrupt_point();
        const std::int64_t part = std::int64_t(double(state_->n) * double(index + 1) / double(blocks) * 1.1) + 32;
        scan_block(scratches[std::size_t(thread)], index, groups * share / threads, groups * (share + 1) / threads,
                   std::min(state_->n, part));
      }
    });
  } else {
    parallel_for(blocks, 1, threads, [&](std::int64_t index, int thread) {
      scan_block(scratches[std::size_t(thread)], index, 0, groups, state_->n);
    });
  }

  // 3. One best of what the threads have kept.
  parallel_for(num_queries, 1, worthwhile_threads(size * 100, num_queries, threads), [&](std::int64_t q, int) {
    Best& best = state_->best[std::size_t(q)];
    for (Scratch& scratch : scratches)
      if (!scratch.best.empty()) best.merge(scratch.best[std::size_t(q)]);
    best.shrink(state_->n, state_->margin[std::size_t(q)], most);
    if (all) return;
    const auto few = best.entries.begin() + std::min(kSorted, best.entries.end() - best.entries.begin());
    std::nth_element(best.entries.begin(), few, best.entries.end(), better);
    std::sort(best.entries.begin(), few, better);
  });
  return std::all_of(scratches.begin(), scratches.end(), [](const Scratch& scratch) { return scratch.well; });
}

std::int64_t TopN::width() const {
  std::size_t width = 0;
  for (const Best& best : state_->best) width = std::max(width, best.entries.size());
  return std::int64_t(width);
}

void TopN::get(std::int64_t* rows, float* scores, std::int64_t width, float* outside, float* error) const {
  for (const Best& best : state_->best) {
    std::fill(rows, rows + width, std::int64_t(-1));
    std::fill(scores, scores + width, 0.0f);
    *outside++ = best.threshold;
    for (std::size_t i = 0; i < best.entries.size(); ++i) {
      rows[i] = best.entries[i].row;
      scores[i] = best.entries[i].score;
    }
    rows += width;
    scores += width;
  }
  std::copy(state_->error.begin(), state_->error.end(), error);
}

void search(const SearchArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(kIsas, isa);
  const SelectArgs& all = args.corpus;
  const std::int64_t n = args.n, dims = all.dims;
  std::fill(args.indices, args.indices + all.num_queries * n, std::int64_t(-1));
  std::fill(args.scores, args.scores + all.num_queries * n, -std::numeric_limits<float>::infinity());

  // Some of the queries, by codes or by the rows. Returns those of which too many rows are left by codes.
  const auto search_some = [&](const std::vector<std::int64_t>& some, bool by_codes) {
    const std::int64_t count = std::int64_t(some.size());
    std::vector<float> vectors(static_cast<std::size_t>(count * dims)), lambda_b, bias_weight;
    std::vector<std::int64_t> own, again;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t q = some[std::size_t(i)];
      float* const vector = &vectors[std::size_t(i * dims)];
      const Status status = kernels.scan->unit_query(all, q, vector);
      if (status != Status::ok) std::fill(vector, vector + dims, 0.0f);
      all.status[q] = std::uint8_t(status);
      lambda_b.push_back(all.bias ? all.lambda_b[q] : 1.0f);
      bias_weight.push_back(1.0f - lambda_b.back());
      if (all.query_groups) own.push_back(all.query_groups[q]);
    }
    ScanArgs scan = {};
    scan.corpus = all;
    scan.corpus.num_queries = count;
    scan.corpus.lambda_b = scan.score_weight = lambda_b.data();
    scan.corpus.query_groups = all.query_groups ? own.data() : nullptr;
    scan.corpus.codes = by_codes ? all.codes : nullptr;
    scan.bias_weight = bias_weight.data();
    scan.terms = 1;
    scan.vectors = vectors.data();
    scan.row_error = args.row_error;
    scan.largest_bias = args.largest_bias;
    scan.max_norm = 1.0f;  // with codes; the values of rows are those of a selection
    TopN top(count, n);
    top.state_->all = true;
    top.scan(scan, isa, num_threads);
    const int threads = worthwhile_threads(double(count) * double(n * dims), count, num_threads);
    parallel_for(count, 1, threads, [&](std::int64_t i, int) {
      std::vector<ScanEntry>& entries = top.state_->best[std::size_t(i)].entries;
      if (by_codes) {
        std::vector<float> prepared(static_cast<std::size_t>(dims + kernels.vector_floats));
        kernels.scan->prepare(&vectors[std::size_t(i * dims)], dims, prepared.data());
        const auto read = [&](std::size_t begin, std::size_t end) {
          kernels.scan->row_values(scan.corpus, i, prepared.data(), entries.data() + begin, std::int64_t(end - begin));
        };
        // The best by their codes say how good the others must be.
        const std::size_t first = std::min(entries.size(), std::size_t(n));
        std::nth_element(entries.begin(), entries.begin() + std::ptrdiff_t(first), entries.end(), better);
        read(0, first);
        float least = std::numeric_limits<float>::infinity();
        for (std::size_t j = 0; j < first; ++j) least = std::min(least, entries[j].value);
        const float needed = least - top.state_->margin[std::size_t(i)] / 2;
        entries.erase(std::remove_if(entries.begin() + std::ptrdiff_t(first), entries.end(),
                                     [&](const ScanEntry& entry) { return entry.value < needed; }),
                      entries.end());
        read(first, entries.size());
      }
      const auto end = entries.begin() + std::min(std::ptrdiff_t(n), std::ptrdiff_t(entries.size()));
      std::nth_element(entries.begin(), end, entries.end(), better);
      std::sort(entries.begin(), end, better);
      const std::int64_t out = some[std::size_t(i)] * n;
      for (auto entry = entries.begin(); entry != end; ++entry) {
        args.indices[out + (entry - entries.begin())] = entry->row;
        args.scores[out + (entry - entries.begin())] = entry->value;
      }
    });
    for (std::int64_t i = 0; i < count; ++i)
      if (top.state_->best[std::size_t(i)].too_many) again.push_back(some[std::size_t(i)]);
    return again;
  };

  // Blocks of queries whose vectors stay in a cache, and whose rows in memory.
  const std::int64_t block = std::max<std::int64_t>(8, std::min<std::int64_t>(256, (1 << 20) / n));
  for (std::int64_t begin = 0; begin < all.num_queries; begin += block) {
    std::vector<std::int64_t> some(static_cast<std::size_t>(std::min(block, all.num_queries - begin)));
    std::iota(some.begin(), some.end(), begin);
    const bool by_codes = all.codes && 8 * n <= all.num_rows && code_scan_supported(isa, std::int64_t(some.size()));
    some = search_some(some, by_codes);
    if (!some.empty()) search_some(some, false);
  }
}

}  // namespace rsk
