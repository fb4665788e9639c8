// Every selection of MMR by its weight lambda: arguments, results, and what path.cpp compiles for each instruction set.
//
// After some picks the value of an item is a line, lambda (v + m) - m. The next pick is the item whose line is on top,
// so what follows a prefix of picks divides its range of lambda; the prefixes are a tree, which is walked depth first.
// Similarities and v are the float32 numbers of a selection; what is made of them, in double, is exact.
#pragma once

#include <cstdint>
#include <vector>

#include "selection/args.h"
#include "selection/workspace.h"

namespace rsk {

// The segments of a query, in increasing lambda. A segment has all doubles from `low` to `high`.
struct QueryPath {
  std::vector<double> low, high;
  std::vector<std::int64_t> picks;  // k for each segment, as in SelectArgs::indices
};

// `pool` has the fields of a selection by MMR but lambda_d; outputs are not written but for the status. Paths of
// queries that fail are empty.
void select_path(const SelectArgs& pool, double low, double high, std::vector<QueryPath>& paths, int isa,
                 int num_threads);

// The items of a query that may be picked after some picks, as lines; to a whole vector of any region.
struct Lines {
  double* rise;     // v + m
  double* nearest;  // m: the largest similarity to a pick
};
// Of an item that may not be picked: its value is below all others for every lambda, and no line is less steep.
constexpr double kClosedNearest = 1e300, kClosedRise = -1e300;

// The lines on top at both ends of a range, the first of equal ones.
struct Ends {
  std::int64_t low, high;
};

struct PathKernels {
  int vector_floats;
  // Makes the items of a query and their v, and `running` of the initial items; `items` and `initial` are numbers.
  Status (*start)(const SelectArgs&, std::int64_t q, Workspace&, std::int64_t* items, std::int64_t* initial);
  // The similarities of all items to item c; false where one leaves float32.
  bool (*similarities)(const SelectArgs&, Workspace&, std::int64_t items, std::int64_t c, double* out);
  // The lines after one pick more, of which these are the similarities, and which is closed.
  void (*meet)(const double* v, const double* similarity, Lines before, std::int64_t pick, std::int64_t n, Lines after);
  Ends (*ends)(Lines lines, std::int64_t n, double low, double high);
  // The least double above `low` at which line i, on top at `low`, no longer is. There is one.
  double (*overtaken)(Lines lines, std::int64_t n, std::int64_t i, double low);
};

}  // namespace rsk
