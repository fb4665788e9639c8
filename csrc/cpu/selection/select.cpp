// The selection kernels, compiled once per instruction set in target regions of this one translation unit, and what
// divides their queries among threads. Headers come before the regions, so that the standard library's templates stay
// baseline code.
#include <algorithm>
#include <cfloat>
#include <cstring>

#include "isa.h"
#include "parallel.h"
#include "regions.h"
#include "selection/kernels.h"

#define RSK_REGION_BODY "selection/kernels.inl"
#include "each_region.inl"

namespace rsk {
namespace {

constexpr const Kernels* kIsas[] = {RSK_OF_EACH_REGION(kKernels)};

}  // namespace

const Kernels& kernels_of(int isa) { return kernels_of(kIsas, isa); }

void select(const SelectArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(isa);
  const double work = double(args.num_queries) * double(args.pool) * double(args.dims) * double(args.k);
  const int threads = worthwhile_threads(work, args.num_queries, num_threads);
  SelectQuery* const select_query =
      args.method < Method::msd ? kernels.select[int(args.method)] : rule_kernel(args.method, isa);
  // Threads beyond the queries share these.
  const bool shared = work >= kSerialProducts || args.shared_items > 0;
  Workspaces workspaces(args, kernels.vector_floats, threads, shared ? num_threads : threads);
  // A run of queries for one thread, since each query prefetches the rows of the next.
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
  Workspaces workspaces(args.pool, kernels.vector_floats, threads, threads);
  parallel_for(args.pool.num_queries, 1, threads,
               [&](std::int64_t q, int thread) { kernels.relevance(args, q, workspaces[thread]); });
}

void encode(const EncodeArgs& args, int isa, int num_threads) {
  const Kernels& kernels = kernels_of(isa);
  const int threads = worthwhile_threads(double(args.num_rows) * double(args.dims), args.num_rows, num_threads);
  parallel_for(args.num_rows, 64, threads, [&](std::int64_t row, int) { kernels.encode_row[args.dtype](args, row); });
}

namespace {

// Makes rows what a corpus stores of them, one at a time.
class RowStore {
 public:
  RowStore(const StoreArgs& args, int isa)
      : kernel_(kernels_of(isa).store_row[args.given]), x_(std::size_t(args.dims + 16) / 16 * 16), held_(x_.size()) {}
  StoreStatus store(const StoreArgs& args, std::int64_t row, double* norm) {
    return kernel_(args, row, x_.data(), held_.data(), norm);
  }

 private:
  StoreStatus (*kernel_)(const StoreArgs&, std::int64_t, float*, float*, double*);
  std::vector<float> x_, held_;
};

}  // namespace

Stored store_rows(const StoreArgs& args, int isa) {
  RowStore rows(args, isa);
  Stored stored = {args.num_rows, StoreStatus::ok, 0.0};
  for (std::int64_t row = 0; row < args.num_rows; ++row) {
    double norm = 0.0;
    const StoreStatus status = rows.store(args, row, &norm);
    if (status != StoreStatus::ok) return {row, status, stored.largest_norm};
    stored.largest_norm = std::max(stored.largest_norm, norm);
  }
  return stored;
}

Stored same_rows(const StoreArgs& args, const SameArgs& stored, int isa, int num_threads) {
  const int threads = worthwhile_threads(double(args.num_rows) * double(args.dims), args.num_rows, num_threads);
  const std::size_t bytes = std::size_t(args.dims * element_bytes(args.dtype));
  std::vector<RowStore> stores(std::size_t(threads), RowStore(args, isa));
  std::vector<std::vector<char>> made{std::size_t(threads), std::vector<char>(bytes)};
  std::vector<StoreStatus> status(std::size_t(args.num_rows), StoreStatus::ok);
  parallel_for(args.num_rows, 64, threads, [&](std::int64_t row, int thread) {
    const std::int64_t place = stored.places[row];
    stored.same[row] = 0;
    if (place < 0) return;
    float scale = 0.0f;
    double norm = 0.0;
    StoreArgs one = args;
    one.rows = static_cast<const char*>(args.rows) + row * args.row_stride * element_bytes(args.given);
    one.out = made[std::size_t(thread)].data();
    one.scales = stored.scales ? &scale : nullptr;
    status[std::size_t(row)] = stores[std::size_t(thread)].store(one, 0, &norm);
    const char* const there = static_cast<const char*>(stored.data) + std::size_t(place) * bytes;
    stored.same[row] = std::memcmp(one.out, there, bytes) == 0 &&
                       (!stored.scales || std::memcmp(&scale, stored.scales + place, sizeof scale) == 0);
  });
  const auto bad = std::find_if(status.begin(), status.end(), [](StoreStatus s) { return s != StoreStatus::ok; });
  return {bad - status.begin(), bad == status.end() ? StoreStatus::ok : *bad, 0.0};
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
