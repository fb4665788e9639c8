// The kernel bodies, compiled once per instruction set in target regions of this one translation unit, and what
// calls them. Headers come before the regions, so that the standard library's templates stay baseline code.
#include <cfloat>
#include <cstring>
#include <memory>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "selection/args.h"
#include "isa.h"
#include "parallel.h"
#include "regions.h"

#define RSK_REGION_BODY "selection/kernels.inl"
#include "each_region.inl"

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

const Kernels& kernels_of(int isa) { return kernels_of(kIsas, isa); }

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

}  // namespace rsk
