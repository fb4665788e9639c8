// The path of MMR: the walk through the tree of prefixes, and what divides the queries among threads. Its kernels are
// compiled once per instruction set in target regions of this one translation unit. Headers come before the regions, as
// in select.cpp.
#include "selection/path.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "interrupt.h"
#include "isa.h"
#include "parallel.h"
#include "regions.h"
#include "selection/kernels.h"

#define RSK_REGION_BODY "selection/path.inl"
#include "each_region.inl"

namespace rsk {
namespace {

constexpr const PathKernels* kIsas[] = {RSK_OF_EACH_REGION(kPath)};

// Doubles to a whole vector of any region, and prefixes between two looks for an interrupt.
constexpr std::int64_t kVector = 8, kPrefixes = 32;

// The walk of one query; one per thread, reused from query to query.
class Walk {
 public:
  Walk(const SelectArgs& args, const PathKernels& kernels, Workspace& ws) : args_(args), kernels_(kernels), ws_(ws) {}

  Status run(std::int64_t q, double low, double high, QueryPath& path);

 private:
  // A prefix: its range from where it is not divided yet, and the item that is picked after it there.
  struct Prefix {
    double low, high;
    std::int64_t pick;
    std::int64_t open;  // items that may be picked
    double spent;
  };

  double divide(std::size_t depth);
  bool extend(std::size_t depth);
  void limit(std::size_t depth);
  void find_full(std::size_t depth);
  void keep(double low, double high, std::size_t picks, QueryPath& path) const;
  const double* similarities(std::int64_t item);
  Lines lines(std::size_t depth);
  void close(Lines lines, std::int64_t j) const {
    lines.rise[j] = kClosedRise;
    lines.nearest[j] = kClosedNearest;
  }
  double cost(std::int64_t j) const {
    return args_.limits.costs[args_.limits.costs_per_item ? q_ * args_.pool + ws_.position[j] : ws_.row[j]];
  }
  std::int64_t base() const { return q_ * args_.pool_stride; }

  const SelectArgs& args_;
  const PathKernels& kernels_;
  Workspace& ws_;
  std::int64_t q_ = 0, items_ = 0, padded_ = 0, initial_ = 0;
  std::vector<double> v_;
  std::vector<Prefix> prefixes_;  // by the number of picks
  std::vector<std::unique_ptr<double[]>> lines_;
  std::vector<std::unique_ptr<double[]>> rows_;  // of similarities
  std::vector<std::int32_t> row_of_;             // of item j: its row of similarities, or -1
  std::size_t used_rows_ = 0;
  std::vector<std::pair<const std::int64_t*, std::int64_t>> full_;  // groups of all rows, and which is full
};

Lines Walk::lines(std::size_t depth) {
  const std::int64_t size = args_.pool + kVector;
  while (lines_.size() <= depth) lines_.emplace_back(new double[std::size_t(2 * size)]);
  return {lines_[depth].get(), lines_[depth].get() + size};
}

// Null where one leaves float32.
const double* Walk::similarities(std::int64_t item) {
  std::int32_t& row = row_of_[std::size_t(item)];
  if (row < 0) {
    if (used_rows_ == rows_.size()) rows_.emplace_back(new double[std::size_t(args_.pool + kVector)]);
    double* const out = rows_[used_rows_].get();
    std::fill(out + items_, out + padded_, 0.0);
    if (!kernels_.similarities(args_, ws_, items_, item, out)) return nullptr;
    row = std::int32_t(used_rows_++);
  }
  return rows_[std::size_t(row)].get();
}

// Finds the pick at the beginning of a prefix's range, and returns the last double at which it is the pick.
double Walk::divide(std::size_t depth) {
  Prefix& prefix = prefixes_[depth];
  const Lines of_prefix = lines(depth);
  if (depth == 0 && initial_ == 0) {  // by v, whatever lambda is
    prefix.pick = -1;
    for (std::int64_t j = 0; j < items_; ++j)
      if (of_prefix.nearest[j] < kClosedNearest &&
          (prefix.pick < 0 || v_[std::size_t(j)] > v_[std::size_t(prefix.pick)]))
        prefix.pick = j;
    return prefix.high;
  }
  const Ends ends = kernels_.ends(of_prefix, padded_, prefix.low, prefix.high);
  prefix.pick = ends.low;
  if (ends.low == ends.high) return prefix.high;
  return std::nextafter(kernels_.overtaken(of_prefix, padded_, ends.low, prefix.low), -DBL_MAX);
}

// Makes the lines after the pick; false where a similarity leaves float32.
bool Walk::extend(std::size_t depth) {
  const Prefix& before = prefixes_[depth];
  const double* const similarity = similarities(before.pick);
  if (!similarity) return false;
  lines(depth + 1);
  kernels_.meet(v_.data(), similarity, lines(depth), before.pick, padded_, lines(depth + 1));
  Prefix& after = prefixes_[depth + 1];
  after.open = before.open - 1;
  after.spent = before.spent + (args_.limits.costs ? cost(before.pick) : 0.0);
  limit(depth + 1);
  return true;
}

// The groups that the last pick has filled, of each level.
void Walk::find_full(std::size_t depth) {
  full_.clear();
  if (depth == 0) return;
  const auto look = [&](const std::int64_t* groups, const auto& cap_of) {
    const std::int64_t group = groups[ws_.row[prefixes_[depth - 1].pick]];
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < initial_; ++i) count += groups[ws_.picked_row[i]] == group;
    for (std::size_t d = 0; d < depth; ++d) count += groups[ws_.row[prefixes_[d].pick]] == group;
    if (count >= cap_of(group)) full_.emplace_back(groups, group);
  };
  const Constraints& limits = args_.limits;
  if (limits.max_per_group) look(limits.groups, [&](std::int64_t) { return limits.max_per_group; });
  for (std::int64_t level = 0; level < limits.quotas.num_levels; ++level)
    look(limits.quotas.of_level(level), [&](std::int64_t group) { return limits.quotas.cap(level, group); });
}

// Closes what the picks so far do not leave open.
void Walk::limit(std::size_t depth) {
  const Constraints& limits = args_.limits;
  if (!limits.max_per_group && !limits.quotas.num_levels && !limits.costs && !limits.max_similarity) return;
  Prefix& prefix = prefixes_[depth];
  const Lines of_prefix = lines(depth);
  find_full(depth);
  const bool alike = limits.max_similarity && (depth > 0 || initial_ > 0);
  prefix.open = 0;
  for (std::int64_t j = 0; j < items_; ++j) {
    if (!(of_prefix.nearest[j] < kClosedNearest)) continue;
    bool full = false;
    for (const auto& [groups, group] : full_) full = full || groups[ws_.row[j]] == group;
    const bool shut = full || (limits.costs && !(prefix.spent + cost(j) <= limits.budget[q_])) ||
                      (alike && of_prefix.nearest[j] > limits.max_similarity[q_]);
    if (shut)
      close(of_prefix, j);
    else
      ++prefix.open;
  }
}

void Walk::keep(double low, double high, std::size_t picks, QueryPath& path) const {
  path.low.push_back(low);
  path.high.push_back(high);
  for (std::size_t d = 0; d < std::size_t(args_.k); ++d)
    path.picks.push_back(d < picks ? ws_.row[prefixes_[d].pick] - base() : -1);
}

Status Walk::run(std::int64_t q, double low, double high, QueryPath& path) {
  q_ = q;
  const Status status = kernels_.start(args_, q, ws_, &items_, &initial_);
  if (status != Status::ok) return status;
  padded_ = (items_ + kVector - 1) / kVector * kVector;
  const std::size_t wanted = std::size_t(std::min(args_.ks ? args_.ks[q] : args_.k, items_));
  v_.assign(std::size_t(padded_), 0.0);
  std::copy(ws_.value, ws_.value + items_, v_.begin());
  row_of_.assign(std::size_t(items_), -1);
  used_rows_ = 0;
  prefixes_.resize(wanted + 1);
  prefixes_[0] = {low, high, -1, 0, 0.0};
  const Lines root = lines(0);
  for (std::int64_t j = 0; j < padded_; ++j) {
    root.nearest[j] = j < items_ ? double(ws_.running[j]) : 0.0;
    root.rise[j] = v_[std::size_t(j)] + root.nearest[j];
    if (j < items_ && ws_.gate[j] > -FLT_MAX)
      ++prefixes_[0].open;
    else
      close(root, j);
  }
  limit(0);
  if (wanted == 0 || prefixes_[0].open == 0) {
    keep(low, high, 0, path);
    return Status::ok;
  }
  std::size_t depth = 0;
  for (std::int64_t count = 1;; ++count) {
    if (count % kPrefixes == 0 || items_ >= kVector * kPrefixes) interrupt_point();
    Prefix& prefix = prefixes_[depth];
    const double begin = prefix.low, end = divide(depth);
    prefix.low = std::nextafter(end, DBL_MAX);
    if (depth + 1 < wanted) {
      if (!extend(depth)) return Status::not_finite;
      if (prefixes_[depth + 1].open > 0) {
        ++depth;
        prefixes_[depth].low = begin;
        prefixes_[depth].high = end;
        continue;
      }
    }
    keep(begin, end, depth + 1, path);
    while (prefixes_[depth].low > prefixes_[depth].high) {
      if (depth == 0) return Status::ok;
      --depth;
    }
  }
}

}  // namespace

void select_path(const SelectArgs& args, double low, double high, std::vector<QueryPath>& paths, int isa,
                 int num_threads) {
  const PathKernels& kernels = kernels_of(kIsas, isa);
  const double products = double(args.num_queries) * double(args.pool) * double(args.dims);
  const int threads =
      worthwhile_threads(products * double(std::min(args.pool, 4 * args.k)), args.num_queries, num_threads);
  Workspaces workspaces(args, kernels.vector_floats, threads, threads);
  std::vector<Walk> walks;
  for (int thread = 0; thread < threads; ++thread) walks.emplace_back(args, kernels, workspaces[thread]);
  paths.resize(std::size_t(args.num_queries));
  parallel_for(args.num_queries, 1, threads, [&](std::int64_t q, int thread) {
    QueryPath& path = paths[std::size_t(q)];
    const Status status = walks[std::size_t(thread)].run(q, low, high, path);
    args.status[q] = std::uint8_t(status);
    if (status != Status::ok) path = {};
  });
}

}  // namespace rsk
