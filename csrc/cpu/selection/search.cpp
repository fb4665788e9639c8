// The best rows of a corpus by relevance with bias: a scan that keeps whatever may be among the best n, and where that
// went by codes the rows themselves, so that the answer has the bits of a selection.
#include <algorithm>
#include <numeric>
#include <vector>

#include "parallel.h"
#include "selection/top_n.h"

namespace rsk {
namespace {

class Search {
 public:
  Search(const SearchArgs& args, int isa, int num_threads)
      : args_(args), all_(args.corpus), kernels_(kernels_of(isa)), isa_(isa), num_threads_(num_threads) {}

  // Answers some of the queries, by codes or by the rows. Returns those of which too many rows are left by codes.
  std::vector<std::int64_t> run(const std::vector<std::int64_t>& queries, bool by_codes) const;

 private:
  void read_needed(const SelectArgs& corpus, std::int64_t i, const float* vector, float margin,
                   std::vector<ScanEntry>& entries) const;
  void write(std::vector<ScanEntry>& entries, std::int64_t q) const;

  const SearchArgs& args_;
  const SelectArgs& all_;
  const Kernels& kernels_;
  const int isa_, num_threads_;
};

std::vector<std::int64_t> Search::run(const std::vector<std::int64_t>& queries, bool by_codes) const {
  const std::int64_t count = std::int64_t(queries.size()), dims = all_.dims;
  std::vector<float> vectors(static_cast<std::size_t>(count * dims)), lambda_b, bias_weight;
  std::vector<std::int64_t> own, again;
  std::vector<std::uint8_t> signs;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t q = queries[std::size_t(i)];
    float* const vector = &vectors[std::size_t(i * dims)];
    const Status status = kernels_.scan->unit_query(all_, q, vector);
    if (status != Status::ok) std::fill(vector, vector + dims, 0.0f);
    all_.status[q] = std::uint8_t(status);
    if (all_.query_signs) {
      const auto* const given = static_cast<const std::uint8_t*>(all_.query_signs) + q * (dims / 8);
      signs.insert(signs.end(), given, given + dims / 8);
    }
    lambda_b.push_back(all_.bias ? all_.lambda_b[q] : 1.0f);
    bias_weight.push_back(1.0f - lambda_b.back());
    if (all_.limits.query_groups) own.push_back(all_.limits.query_groups[q]);
  }
  ScanArgs scan = {};
  scan.corpus = all_;
  scan.corpus.num_queries = count;
  scan.corpus.lambda_b = scan.score_weight = lambda_b.data();
  scan.corpus.limits.query_groups = all_.limits.query_groups ? own.data() : nullptr;
  scan.by_codes = by_codes;
  scan.numbers = queries.data();
  scan.bias_weight = bias_weight.data();
  scan.terms = 1;
  scan.vectors = vectors.data();
  scan.signs = all_.query_signs ? signs.data() : nullptr;
  scan.row_error = args_.row_error;
  scan.largest_bias = args_.largest_bias;
  scan.max_norm = 1.0f;  // with codes; the values of rows are those of a selection
  TopN top(count, args_.n, true);
  top.scan(scan, isa_, num_threads_);
  const int threads = worthwhile_threads(double(count) * double(args_.n * dims), count, num_threads_);
  parallel_for(count, 1, threads, [&](std::int64_t i, int) {
    std::vector<ScanEntry>& entries = top.best[std::size_t(i)].entries;
    if (by_codes) read_needed(scan.corpus, i, &vectors[std::size_t(i * dims)], top.margin[std::size_t(i)], entries);
    write(entries, queries[std::size_t(i)]);
  });
  for (std::int64_t i = 0; i < count; ++i)
    if (top.best[std::size_t(i)].too_many) again.push_back(queries[std::size_t(i)]);
  return again;
}

// Of entries found by codes, reads the rows that may be among the best n: the n best by their codes say how good the
// others must be.
void Search::read_needed(const SelectArgs& corpus, std::int64_t i, const float* vector, float margin,
                         std::vector<ScanEntry>& entries) const {
  std::vector<float> prepared(static_cast<std::size_t>(all_.dims + kernels_.vector_floats));
  kernels_.scan->prepare(vector, all_.dims, prepared.data());
  const auto read = [&](std::size_t begin, std::size_t end) {
    kernels_.scan->row_values(corpus, i, prepared.data(), entries.data() + begin, std::int64_t(end - begin));
  };
  const std::size_t first = std::min(entries.size(), std::size_t(args_.n));
  const auto others = entries.begin() + std::ptrdiff_t(first);
  std::nth_element(entries.begin(), others, entries.end(), better);
  read(0, first);
  float least = kInfinity;
  for (std::size_t j = 0; j < first; ++j) least = std::min(least, entries[j].value);
  const float needed = least - margin / 2;
  const auto out = [&](const ScanEntry& entry) { return entry.value < needed; };
  entries.erase(std::remove_if(others, entries.end(), out), entries.end());
  read(first, entries.size());
}

void Search::write(std::vector<ScanEntry>& entries, std::int64_t q) const {
  const auto end = entries.begin() + std::min(std::ptrdiff_t(args_.n), std::ptrdiff_t(entries.size()));
  std::nth_element(entries.begin(), end, entries.end(), better);
  std::sort(entries.begin(), end, better);
  std::int64_t* indices = args_.indices + q * args_.n;
  float* scores = args_.scores + q * args_.n;
  for (auto entry = entries.begin(); entry != end; ++entry) {
    *indices++ = entry->row;
    *scores++ = entry->value;
  }
}

}  // namespace

void search(const SearchArgs& args, int isa, int num_threads) {
  const SelectArgs& all = args.corpus;
  const std::int64_t n = args.n;
  std::fill(args.indices, args.indices + all.num_queries * n, std::int64_t(-1));
  std::fill(args.scores, args.scores + all.num_queries * n, -kInfinity);
  const Search search(args, isa, num_threads);
  const bool own = !all.codes && rows_are_codes(all);
  // Blocks of queries whose vectors stay in a cache, and whose rows in memory.
  const std::int64_t block = std::max<std::int64_t>(8, std::min<std::int64_t>(256, (1 << 20) / n));
  for (std::int64_t begin = 0; begin < all.num_queries; begin += block) {
    std::vector<std::int64_t> queries(static_cast<std::size_t>(std::min(block, all.num_queries - begin)));
    std::iota(queries.begin(), queries.end(), begin);
    const bool by_codes =
        (all.codes || own) && 8 * n <= all.num_rows && code_scan_supported(isa, std::int64_t(queries.size()), own);
    queries = search.run(queries, by_codes);
    if (!queries.empty()) search.run(queries, false);
  }
}

}  // namespace rsk
