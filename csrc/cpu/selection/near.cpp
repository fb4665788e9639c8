// Sketches of rows against those of vectors, a block of rows at a time by every thread, and the products of the pairs
// that these leave.
#include "selection/near.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "isa.h"
#include "parallel.h"
#include "selection/kernels.h"

namespace rsk {
namespace {

// Rows whose sketches stay in the second-level cache while all vectors meet them.
constexpr std::int64_t kNearRows = 2048;
constexpr std::int64_t kTile = 32;

class NearSearch {
 public:
  NearSearch(const NearArgs& args, int isa, int num_threads);
  std::vector<Near> run();

 private:
  struct Found {
    std::int64_t row;
    float product;
  };
  struct Scratch {  // of a thread
    std::vector<ScanEntry> entries;
    std::vector<float> largest;                 // (Q,)
    std::vector<std::vector<Found>> of_vector;  // (Q,)
  };

  void pack(std::int64_t v);
  void meet_block(Scratch& scratch, std::int64_t begin) const;
  void multiply(Scratch& scratch, std::int64_t v) const;
  std::int64_t row_at(std::int64_t i) const;

  const NearArgs& args_;
  const Kernels& kernels_;
  const int num_threads_;
  const std::int64_t dims_, groups_, prepared_floats_;
  std::vector<std::int32_t> packed_, start_;
  std::vector<float> prepared_;
};

NearSearch::NearSearch(const NearArgs& args, int isa, int num_threads)
    : args_(args),
      kernels_(kernels_of(isa)),
      num_threads_(num_threads),
      dims_(args.corpus.dims),
      groups_((args.num_vectors + kScanVectors - 1) / kScanVectors),
      prepared_floats_(dims_ / kernels_.vector_floats * kernels_.vector_floats + kernels_.vector_floats),
      packed_(std::size_t(groups_ * args.steps * kScanVectors)),
      start_(std::size_t(groups_ * kScanVectors), -1),  // of the vectors that fill up the last group: none is near
      prepared_(std::size_t(args.num_vectors * prepared_floats_)) {
  if (!near_supported(isa)) throw std::invalid_argument("no products of sketches on this machine");
  for (std::int64_t v = 0; v < args.num_vectors; ++v) pack(v);
}

void NearSearch::pack(std::int64_t v) {
  std::int32_t* const to = &packed_[std::size_t(v / kScanVectors * args_.steps * kScanVectors + v % kScanVectors)];
  const std::int8_t* const bytes = args_.vector_bytes + v * 4 * args_.steps;
  for (std::int64_t step = 0; step < args_.steps; ++step) std::memcpy(to + step * kScanVectors, bytes + 4 * step, 4);
  start_[std::size_t(v)] = args_.start[v];
  kernels_.scan->prepare(args_.vectors + v * dims_, dims_, &prepared_[std::size_t(v * prepared_floats_)]);
}

std::vector<Near> NearSearch::run() {
  const std::int64_t blocks = (args_.num_rows + kNearRows - 1) / kNearRows;
  const double work = double(args_.num_rows) * double(args_.num_vectors) * double(args_.steps);
  const int threads = worthwhile_threads(work, blocks, num_threads_);
  std::vector<Scratch> scratches{std::size_t(threads)};
  for (Scratch& scratch : scratches) {
    scratch.largest.assign(std::size_t(args_.num_vectors), -std::numeric_limits<float>::infinity());
    scratch.of_vector.resize(std::size_t(args_.num_vectors));
  }
  parallel_for(blocks, 1, threads,
               [&](std::int64_t block, int thread) { meet_block(scratches[std::size_t(thread)], block * kNearRows); });
  std::vector<Near> near;
  for (std::size_t v = 0; v < std::size_t(args_.num_vectors); ++v) {
    float least = args_.least[v];
    if (args_.margin >= 0)
      for (const Scratch& scratch : scratches) least = std::max(least, scratch.largest[v] - args_.margin);
    for (const Scratch& scratch : scratches)
      for (const Found& found : scratch.of_vector[v])
        if (found.product >= least) near.push_back({std::int64_t(v), found.row});
  }
  return near;
}

void NearSearch::meet_block(Scratch& scratch, std::int64_t begin) const {
  const std::int64_t end = std::min(args_.num_rows, begin + kNearRows);
  std::uint32_t hits[kScanVectors];
  for (std::int64_t group = 0; group < groups_; ++group) {
    const std::int32_t* const vectors = &packed_[std::size_t(group * args_.steps * kScanVectors)];
    const std::int32_t* const start = &start_[std::size_t(group * kScanVectors)];
    const std::int64_t first = group * kScanVectors,
                       count = std::min<std::int64_t>(kScanVectors, args_.num_vectors - first);
    for (std::int64_t i = begin; i < end; i += kTile) {
      if (!kernels_.near_tile(args_.sketches + i * args_.steps * 4, vectors, args_.steps, start, hits)) continue;
      for (std::int64_t v = 0; v < count; ++v) {
        for (std::uint32_t bits = hits[v]; bits; bits &= bits - 1) {
          const std::int64_t at = i + __builtin_ctz(bits);
          if (at < end) scratch.entries.push_back({0.0f, 0.0f, row_at(at)});
        }
        if (!scratch.entries.empty()) multiply(scratch, first + v);
      }
    }
  }
}

// Looked at here, where it is read: few of them are.
std::int64_t NearSearch::row_at(std::int64_t i) const {
  const std::int64_t row = args_.rows[i];
  if (row < 0 || row >= args_.corpus.num_rows) throw std::invalid_argument("_C: looked_at");
  return row;
}

// The products of a vector with the rows of the entries, of which those that are large enough are kept.
void NearSearch::multiply(Scratch& scratch, std::int64_t v) const {
  std::vector<ScanEntry>& entries = scratch.entries;
  kernels_.scan->row_values(args_.corpus, 0, &prepared_[std::size_t(v * prepared_floats_)], entries.data(),
                            std::int64_t(entries.size()));
  float& largest = scratch.largest[std::size_t(v)];
  for (const ScanEntry& entry : entries) {
    largest = std::max(largest, entry.value);
    const float least = args_.margin >= 0 ? std::max(args_.least[v], largest - args_.margin) : args_.least[v];
    if (entry.value >= least) scratch.of_vector[std::size_t(v)].push_back({entry.row, entry.value});
  }
  entries.clear();
}

}  // namespace

bool near_supported(int isa) {
#if defined(__x86_64__) && !defined(RSK_NO_VNNI)
  return kernels_of(isa).near_tile && has_vnni();
#else
  (void)isa;
  return false;
#endif
}

std::vector<Near> near_rows(const NearArgs& args, int isa, int num_threads) {
  return NearSearch(args, isa, num_threads).run();
}

}  // namespace rsk
