// Rows of a corpus that are near some vectors, found by sketches: short rows of bytes, whose products bound those of
// the rows themselves from above (ragsys_kernels/corpus/near.py).
#pragma once

#include <vector>

#include "selection/args.h"

namespace rsk {

struct NearArgs {
  SelectArgs corpus;  // the fields that describe rows, whose norm is not computed
  // The rows that are looked at, and their sketches, of 2 * steps numbers below 128: [row / 32][step][row % 32][2].
  const std::int64_t* rows;  // (M,)
  const std::uint8_t* sketches;
  std::int64_t num_rows, steps;
  // The vectors and their sketches: a row is looked at where its product with one, and the start, are at least 0
  // together. Modulo 2^16 they are what they are without it.
  const float* vectors;             // (Q, D)
  const std::int8_t* vector_bytes;  // (Q, 2 * steps), above -128
  const std::int16_t* start;        // (Q,)
  std::int64_t num_vectors;
  const float* least;  // (Q,) what a product of float32 must be at least
  // With a margin of at least 0 only the products that are no further below a vector's largest are returned; below 0,
  // all.
  float margin;
};

struct Near {
  std::int64_t vector, row;
};

// Whether there are kernels for sketches: AVX2.
bool near_supported(int isa);
// The rows that are near each vector; ascending vectors, their rows in any order.
std::vector<Near> near_rows(const NearArgs& args, int isa, int num_threads);

}  // namespace rsk
