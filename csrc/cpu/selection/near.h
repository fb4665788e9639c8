// Rows of a corpus that are near some vectors, found by sketches: short rows of bytes, whose products bound those of
// the rows themselves from above (ragsys_kernels/corpus/near.py).
#pragma once

#include <vector>

#include "selection/args.h"

namespace rsk {

struct NearArgs {
  SelectArgs corpus;  // the fields that describe rows, whose norm is not computed
  // The rows that are looked at, and their sketches, of 4 * steps unsigned bytes: [row / 16][step][row % 16][4], with
  // whole blocks of 32 rows.
  const std::int64_t* rows;  // (M,)
  const std::uint8_t* sketches;
  std::int64_t num_rows, steps;
  // The vectors, and their sketches of signed bytes: a row is looked at where its product with one, and the start, are
  // at least 0 together.
  const float* vectors;             // (Q, D)
  const std::int8_t* vector_bytes;  // (Q, 4 * steps)
  const std::int32_t* start;        // (Q,)
  std::int64_t num_vectors;
  const float* least;  // (Q,) what a product of float32 must be at least
  // With a margin of at least 0 only the products that are no further below a vector's largest are returned, and a few
  // more; below 0, all.
  float margin;
};

struct Near {
  std::int64_t vector, row;
};

// Whether there are kernels for sketches: AVX512-VNNI.
bool near_supported(int isa);
// The rows that are near each vector; ascending vectors, their rows in any order.
std::vector<Near> near_rows(const NearArgs& args, int isa, int num_threads);

}  // namespace rsk
