// The best rows of a corpus for each query, by a scan of all rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "selection/kernels.h"

namespace rsk {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The larger value first, ties to the lowest row.
inline bool better(const ScanEntry& a, const ScanEntry& b) {
  return a.value != b.value ? a.value > b.value : a.row < b.row;
}

// Rows that may be among the best n of one query. `threshold` is what no row left out exceeds.
struct Best {
  float threshold = -kInfinity;
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
      threshold = kInfinity;
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

// Of each query the best n rows by what a scan knows, and what is known of the others.
struct TopN {
  std::int64_t n;
  // Whether every row that may be among the best n is kept: all within the margin of the n-th value, twice what a value
  // may be off. Otherwise the best n by these values are.
  bool all;
  std::vector<float> error;  // by how much the score or the value of a row may be off
  std::vector<float> margin;
  std::vector<Best> best;

  TopN(std::int64_t num_queries, std::int64_t wanted, bool keep_all);
  // False: a row that is no vector of the formulas was found, and left out.
  bool scan(const ScanArgs& args, int isa, int num_threads);
  std::int64_t width() const;  // most rows kept for a query
  // (Q, width) rows of descending value, padded with -1, and their scores; (Q,) what the value of no other row exceeds,
  // minus infinity where there is none, and by how much each of these may be off.
  void get(std::int64_t* rows, float* scores, std::int64_t width, float* outside, float* errors) const;
};

}  // namespace rsk
