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
#include <string>
#include <system_error>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define RSK_X86_DISPATCH 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "api.h"
#include "parallel.h"

// The table of a region, which ends with pack_rows and scan_block.
#define RSK_KERNELS(...)                                    \
  constexpr Kernels kKernels = {select_query<Method::mmr>,  \
                                select_query<Method::vrsd>, \
                                relevance_query,            \
                                at_least,                   \
                                int(W),                     \
                                encode_row,                 \
                                __VA_ARGS__}

// base: the floor of the platform's ABI, SSE2 on x86-64 and NEON on AArch64.
namespace rsk::base {
#define RSK_VEC_BYTES 16
#include "simd.inl"
#include "codes.inl"
#include "greedy_select.inl"
#undef RSK_VEC_BYTES
RSK_KERNELS(nullptr, nullptr);
}  // namespace rsk::base

#if RSK_X86_DISPATCH

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
namespace rsk::avx2 {
#define RSK_VEC_BYTES 32
#include "simd.inl"
#include "codes.inl"
#include "greedy_select.inl"
#undef RSK_VEC_BYTES
RSK_KERNELS(nullptr, nullptr);
}  // namespace rsk::avx2
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
namespace rsk::avx512 {
#define RSK_VEC_BYTES 64
#include "simd.inl"
#include "codes.inl"
#include "code_scan.inl"
#include "greedy_select.inl"
#undef RSK_VEC_BYTES
RSK_KERNELS(pack_rows, scan_block);
}  // namespace rsk::avx512
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // RSK_X86_DISPATCH

namespace rsk {
namespace {

struct Isa {
  const char* name;
  const Kernels* kernels;
};

constexpr Isa kIsas[] = {
    {"base", &base::kKernels},
#if RSK_X86_DISPATCH
    {"avx2", &avx2::kKernels},
    {"avx512", &avx512::kKernels},
#endif
};

const Kernels& kernels_of(int isa) {
  if (isa < 0 || isa >= isa_count() || !isa_supported(isa))
    throw std::invalid_argument("instruction set " + std::to_string(isa) + " is not available on this machine");
  return *kIsas[isa].kernels;
}

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

// Spawning and joining a thread costs about 25 us; below this many multiply-adds a call stays on its own thread.
constexpr double kSerialWork = 4e6;

int worthwhile_threads(double work, std::int64_t items, int num_threads) {
  if (work < kSerialWork) return 1;
  return int(std::min<std::int64_t>(num_threads, std::max<std::int64_t>(items, 1)));
}

}  // namespace

int isa_count() { return int(sizeof(kIsas) / sizeof(kIsas[0])); }
const char* isa_name(int isa) { return kIsas[isa].name; }

bool isa_supported(int isa) {
#if RSK_X86_DISPATCH
  // __builtin_cpu_supports also checks that the operating system saves the registers.
  if (isa == 1)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == 2)
    return isa_supported(1) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return isa == 0;
}

bool code_scan_supported(int isa) {
  bool supported = kernels_of(isa).scan_block != nullptr;
#if defined(RSK_NO_VNNI)
  supported = false;
#elif RSK_X86_DISPATCH
  supported = supported && __builtin_cpu_supports("avx512vnni");
#endif
  return supported;
}

void select(const SelectArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(isa);
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
  const Kernels& kernels = kernels_of(isa);
  const double work = double(args.pool.num_queries) * double(args.pool.pool) * double(args.pool.dims);
  const int threads = worthwhile_threads(work, args.pool.num_queries, num_threads);
  Workspaces workspaces(args.pool, kernels.vector_floats, threads);
  parallel_for(args.pool.num_queries, 1, threads,
               [&](std::int64_t q, int thread) { kernels.relevance(args, q, workspaces[thread]); });
}

void encode(const EncodeArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(isa);
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

constexpr std::ptrdiff_t kSorted = 256;

// Rows that may be among the best n of one query. `threshold` is below the n-th value seen by the margin.
struct TopN::State {
  struct Best {
    float threshold = -std::numeric_limits<float>::infinity();
    std::size_t limit = 0;  // entries that call for a shrink; doubled where ties cannot be dropped
    std::vector<ScanEntry> entries;
    std::vector<float> values;  // scratch

    void add(const ScanEntry& entry, std::int64_t n, float margin) {
      if (entry.value < threshold) return;
      entries.push_back(entry);
      if (entries.size() >= limit) shrink(n, margin);
    }
    void shrink(std::int64_t n, float margin) {
      if (std::int64_t(entries.size()) <= n) return;
      values.clear();
      for (const ScanEntry& entry : entries) values.push_back(entry.value);
      std::nth_element(values.begin(), values.begin() + (n - 1), values.end(), std::greater<float>());
      threshold = std::max(threshold, values[std::size_t(n - 1)] - margin);
      entries.erase(std::remove_if(entries.begin(), entries.end(),
                                   [&](const ScanEntry& entry) { return entry.value < threshold; }),
                    entries.end());
      limit = 2 * std::max(entries.size(), std::size_t(n)) + 64;
    }
  };
  std::int64_t n;
  std::vector<Best> best;
};

TopN::TopN(std::int64_t num_queries, std::int64_t n) : state_(new State{n, {}}) {
  state_->best.resize(std::size_t(num_queries));
  for (State::Best& best : state_->best) best.limit = std::size_t(2 * n + 64);
}
TopN::~TopN() { delete state_; }

void TopN::fold(const TopNArgs& args, int isa, int num_threads) {
  // Scores are taken in runs that stay in the first-level cache together with the indices found in them.
  constexpr std::int64_t kRun = 2048;
  const Kernels& kernels = kernels_of(isa);
  const double work = double(args.num_queries) * double(args.block);
  parallel_for(args.num_queries, 1, worthwhile_threads(work, args.num_queries, num_threads), [&](std::int64_t q, int) {
    State::Best& best = state_->best[std::size_t(q)];
    std::int32_t found[kRun];
    const float score_weight = args.bias ? args.score_weight[q] : 1.0f;
    const float bias_weight = args.bias ? args.bias_weight[q] : 0.0f;
    for (std::int64_t begin = 0; begin < args.block; begin += kRun) {
      const float* scores = args.scores + q * args.score_stride + begin;
      const float* bias = args.bias ? args.bias + begin : nullptr;
      const std::int64_t length = std::min(kRun, args.block - begin);
      const std::int64_t count =
          kernels.at_least(scores, bias, score_weight, bias_weight, length, best.threshold, found);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t column = begin + found[i];
        if (args.groups && args.groups[column] == args.query_groups[q]) continue;
        const float score = scores[found[i]];
        const float value = bias ? score * score_weight + bias[found[i]] * bias_weight : score;
        best.add({value, score, args.first_row + column}, state_->n, args.margin[q]);
      }
    }
    best.shrink(state_->n, args.margin[q]);
  });
}

// Signed codes of a query's terms, in steps of one scale, which is returned. `vectors` and `start` are those of the
// first term in its group; `error` is by how much a score may be off.
static float encode_terms(const CodeScanArgs& args, std::int64_t q, float& error, std::int32_t* vectors,
                          std::int32_t* start) {
  const auto term = [&](std::int64_t t) { return args.vectors + (t * args.top.num_queries + q) * args.dims; };
  double largest = 0;
  for (std::int64_t t = 0; t < args.terms; ++t)
    for (std::int64_t d = 0; d < args.dims; ++d) largest = std::max(largest, std::fabs(double(term(t)[d])));
  const float scale = float(largest / 127);
  double worst = 0;
  for (std::int64_t t = 0; t < args.terms; ++t) {
    double norm2 = 0, lost2 = 0;
    std::int32_t sum = 0;
    for (std::int64_t d = 0; d < args.dims; ++d) {
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

void TopN::scan(const CodeScanArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(isa);
  if (!code_scan_supported(isa)) throw std::invalid_argument("no scan by codes on this machine");
  const TopNArgs& top = args.top;
  const std::int64_t stride = code_stride(args.dims), steps = (args.dims + 3) / 4;
  const std::int64_t each = kScanVectors / args.terms;  // queries of a group
  const std::int64_t groups = (top.num_queries + each - 1) / each;
  const double work = double(top.num_queries) * double(args.terms) * double(args.num_rows) * double(args.dims) / 4;
  const int threads = worthwhile_threads(work, groups, num_threads);
  // Of the first blocks a small part is kept.
  for (State::Best& best : state_->best) best.limit = kScanRows / 2;
  // Each thread takes all rows for its share of the groups.
  parallel_for(threads, 1, threads, [&](std::int64_t share, int) {
    const std::int64_t begin = groups * share / threads, end = groups * (share + 1) / threads;
    std::vector<std::int32_t> vectors(std::size_t((end - begin) * steps * kScanVectors));
    std::vector<std::int32_t> start(std::size_t((end - begin) * kScanVectors));
    std::vector<float> scale(std::size_t((end - begin) * each));
    for (std::int64_t q = begin * each; q < std::min(end * each, top.num_queries); ++q) {
      const std::int64_t group = q / each - begin, g = q % each;
      scale[std::size_t(group * each + g)] =
          encode_terms(args, q, args.error[q], &vectors[std::size_t(group * steps * kScanVectors + g * args.terms)],
                       &start[std::size_t(group * kScanVectors + g * args.terms)]);
    }
    std::vector<std::uint8_t> packed(std::size_t(kScanRows * steps * 4));
    std::vector<float> scales(kScanRows), bias(kScanRows);
    std::unique_ptr<ScanEntry[][kScanRows]> found(new ScanEntry[kScanVectors][kScanRows]);
    // Blocks are taken out of their order, so that those seen stand for the others: of a part of the rows a part of n
    // is kept, and a little more. At the end there are about n, which is all that a scan promises.
    const std::int64_t blocks = (args.num_rows + kScanRows - 1) / kScanRows;
    std::int64_t leap = std::int64_t(0.618 * double(blocks)) | 1;
    while (std::gcd(leap, blocks) != 1) leap += 2;
    for (std::int64_t taken = 0; taken < blocks; ++taken) {
      interrupt_point();
      const std::int64_t first = taken * leap % blocks * kScanRows;
      const std::int64_t rows = std::min(kScanRows, args.num_rows - first);
      const double share = double(taken + 1) / double(blocks);
      const std::int64_t quota = std::min(state_->n, std::int64_t(double(state_->n) * share * 1.1) + 32);
      kernels.pack_rows(args.codes + first * stride, stride, rows, steps, packed.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        std::memcpy(&scales[std::size_t(r)], args.codes + (first + r + 1) * stride - kCodeHeader, sizeof(float));
        bias[std::size_t(r)] = top.bias ? top.bias[first + r] : 0.0f;
      }
      const ScanBlock block = {packed.data(), (rows + 31) / 32 * 32, steps, scales.data(),
                               top.bias ? bias.data() : nullptr};
      for (std::int64_t group = begin; group < end; ++group) {
        float threshold[kScanVectors];
        std::int64_t count[kScanVectors] = {};
        const std::int64_t q = group * each, queries = std::min(each, top.num_queries - q);
        for (std::int64_t g = 0; g < queries; ++g) threshold[g] = state_->best[std::size_t(q + g)].threshold;
        kernels.scan_block(
            block, {&vectors[std::size_t((group - begin) * steps * kScanVectors)], queries, args.terms,
                    &start[std::size_t((group - begin) * kScanVectors)], &scale[std::size_t((group - begin) * each)],
                    top.bias ? top.score_weight + q : nullptr, top.bias ? top.bias_weight + q : nullptr, threshold,
                    found.get(), count});
        for (std::int64_t g = 0; g < queries; ++g)
          for (std::int64_t i = 0; i < count[g]; ++i) {
            const ScanEntry& entry = found[std::size_t(g)][i];
            if (entry.row >= rows) continue;  // the last block is filled up
            if (top.groups && top.groups[first + entry.row] == top.query_groups[q + g]) continue;
            state_->best[std::size_t(q + g)].add({entry.value, entry.score, first + entry.row}, quota, 0.0f);
          }
      }
    }
    for (std::int64_t q = begin * each; q < std::min(end * each, top.num_queries); ++q)
      state_->best[std::size_t(q)].shrink(state_->n, 0.0f);
  });
}

std::int64_t TopN::num_queries() const { return std::int64_t(state_->best.size()); }

std::int64_t TopN::width(std::int64_t cap) const {
  std::size_t width = 0;
  for (const State::Best& best : state_->best)
    if (best.entries.size() <= std::size_t(cap)) width = std::max(width, best.entries.size());
  return std::int64_t(width);
}

void TopN::get(std::int64_t* rows, float* scores, std::int64_t width, float* outside, bool best_first) const {
  for (State::Best& best : state_->best) {
    std::fill(rows, rows + width, std::int64_t(-1));
    std::fill(scores, scores + width, 0.0f);
    const bool fits = std::int64_t(best.entries.size()) <= width;
    *outside++ = fits ? best.threshold : std::numeric_limits<float>::infinity();
    if (fits) {
      const auto end = best.entries.end();
      if (best_first) {  // beyond the first few the order does not matter
        const auto by_value = [](const ScanEntry& a, const ScanEntry& b) { return a.value > b.value; };
        const auto few = best.entries.begin() + std::min<std::ptrdiff_t>(kSorted, end - best.entries.begin());
        std::nth_element(best.entries.begin(), few, end, by_value);
        std::sort(best.entries.begin(), few, by_value);
      } else {
        std::sort(best.entries.begin(), end, [](const ScanEntry& a, const ScanEntry& b) { return a.row < b.row; });
      }
      for (std::size_t i = 0; i < best.entries.size(); ++i) {
        rows[i] = best.entries[i].row;
        scores[i] = best.entries[i].score;
      }
    }
    rows += width;
    scores += width;
  }
}

}  // namespace rsk
