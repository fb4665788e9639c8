// Sketches of rows against those of vectors, a block of rows at a time by every thread, and the products of the pairs
// that these leave.
#include "selection/near.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "isa.h"
#include "parallel.h"
#include "regions.h"
#include "selection/kernels.h"

namespace rsk {

// Rows whose sketches stay in the second-level cache while all vectors meet them.
constexpr std::int64_t kNearRows = 2048;
// Of a tile: vectors and rows.
constexpr int kTileVectors = 4;
constexpr std::int64_t kTileRows = 32;

namespace avx2 {

#if defined(__x86_64__)
// Bit r of out[v]: whether start[v] + <row r, vector v> is at least 0. Returns whether any is. A sum of two products of
// bytes does not saturate: 2 * 127 * 127 is below 2^15. `vectors` has each pair of bytes 16 times,
// [step][vector][16][2].
__attribute__((target("avx2"))) static bool near_tile(const std::uint8_t* rows, const std::int8_t* vectors,
                                                      std::int64_t steps, const std::int16_t* start,
                                                      std::uint32_t* out) {
#define RSK_EACH_VECTOR(DO) DO(0) DO(1) DO(2) DO(3)
#define RSK_DECLARE(v) __m256i low##v = _mm256_set1_epi16(start[v]), high##v = low##v;
  RSK_EACH_VECTOR(RSK_DECLARE)
  for (std::int64_t step = 0; step < steps; ++step, rows += 64, vectors += 32 * kTileVectors) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + 32));
#define RSK_ADD(v)                                                                            \
  {                                                                                           \
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(vectors + 32 * v)); \
    low##v = _mm256_add_epi16(low##v, _mm256_maddubs_epi16(a, x));                            \
    high##v = _mm256_add_epi16(high##v, _mm256_maddubs_epi16(b, x));                          \
  }
    RSK_EACH_VECTOR(RSK_ADD)
  }
  __m256i negative = _mm256_set1_epi16(-1);
#define RSK_AND(v) negative = _mm256_and_si256(negative, _mm256_and_si256(low##v, high##v));
  RSK_EACH_VECTOR(RSK_AND)
  constexpr unsigned kSigns = 0xaaaaaaaa;
  if ((unsigned(_mm256_movemask_epi8(negative)) & kSigns) == kSigns) return false;
#define RSK_STORE(v) \
  out[v] = ~unsigned(_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(low##v, high##v), 0xd8)));
  RSK_EACH_VECTOR(RSK_STORE)
#undef RSK_STORE
#undef RSK_AND
#undef RSK_ADD
#undef RSK_DECLARE
#undef RSK_EACH_VECTOR
  return true;
}
#else
static bool near_tile(const std::uint8_t*, const std::int8_t*, std::int64_t, const std::int16_t*, std::uint32_t*) {
  return false;
}
#endif

}  // namespace avx2

namespace {

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
  std::vector<std::int8_t> packed_;
  std::vector<std::int16_t> start_;
  std::vector<float> prepared_;
};

NearSearch::NearSearch(const NearArgs& args, int isa, int num_threads)
    : args_(args),
      kernels_(kernels_of(isa)),
      num_threads_(num_threads),
      dims_(args.corpus.dims),
      groups_((args.num_vectors + kTileVectors - 1) / kTileVectors),
      prepared_floats_(dims_ / kernels_.vector_floats * kernels_.vector_floats + kernels_.vector_floats),
      packed_(std::size_t(groups_ * args.steps * 32 * kTileVectors)),
      start_(std::size_t(groups_ * kTileVectors), -1),  // of the vectors that fill up the last group: none is near
      prepared_(std::size_t(args.num_vectors * prepared_floats_)) {
  if (!near_supported(isa)) throw std::invalid_argument("no products of sketches on this machine");
  for (std::int64_t v = 0; v < args.num_vectors; ++v) pack(v);
}

void NearSearch::pack(std::int64_t v) {
  std::int8_t* to = &packed_[std::size_t((v / kTileVectors * args_.steps * kTileVectors + v % kTileVectors) * 32)];
  const std::int8_t* const bytes = args_.vector_bytes + v * 2 * args_.steps;
  for (std::int64_t step = 0; step < args_.steps; ++step, to += 32 * kTileVectors)
    for (int i = 0; i < 32; ++i) to[i] = bytes[2 * step + i % 2];
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
  std::uint32_t hits[kTileVectors];
  for (std::int64_t group = 0; group < groups_; ++group) {
    const std::int8_t* const vectors = &packed_[std::size_t(group * args_.steps * 32 * kTileVectors)];
    const std::int16_t* const start = &start_[std::size_t(group * kTileVectors)];
    const std::int64_t first = group * kTileVectors;
    const std::int64_t count = std::min<std::int64_t>(kTileVectors, args_.num_vectors - first);
    for (std::int64_t i = begin; i < end; i += kTileRows) {
      if (!avx2::near_tile(args_.sketches + i * args_.steps * 2, vectors, args_.steps, start, hits)) continue;
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

bool near_supported([[maybe_unused]] int isa) {
#if defined(__x86_64__)
  return isa > 0 && isa_supported(isa);
#else
  return false;
#endif
}

std::vector<Near> near_rows(const NearArgs& args, int isa, int num_threads) {
  return NearSearch(args, isa, num_threads).run();
}

}  // namespace rsk
