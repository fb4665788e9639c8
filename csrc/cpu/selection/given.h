// Selection by similarities that the caller gives, in the place of rows: a pick reads one row of its query's matrix.
// Coverage reads every row once, and again those whose gain may still be the largest.
#pragma once

#include <cstdint>

#include "selection/args.h"

namespace rsk {

struct GivenArgs {
  Method rule;  // MMR, MSD, DPP or a kind of coverage
  std::int64_t num_queries, pool, k;
  const float* similarity;   // (Q, P, P): row j has the similarities of all items to item j
  const float* values;       // (Q, P): relevance with bias
  const float* weights;      // (Q, P), for DPP: the quality of each item
  float one;                 // MSD: what similarities are taken from
  float gamma;               // cover: the power of the sums of similarities
  float largest;             // coverage: what similarities count up to
  float least_left;          // DPP: an item is no longer picked where d is at most this share of what it was
  float unequal, negative;   // DPP: when similarities of a pair differ, when a determinant is negative, while all
  float sound;               // picks had at least this share left: ragsys_kernels/selection/definite.py
  std::int64_t window;       // DPP: how many of the last picks count; 0: all
  std::int64_t pairs;        // DPP: how many pairs are looked at before the picks
  const float* lambda_d;     // (Q,)
  const std::int64_t* ks;    // (Q,), each at most k; or null
  const std::uint8_t* open;  // (Q, P): 0 for an item that may not be picked; or null
  Constraints limits;        // positions in the place of rows; groups and costs (Q, P)

  // Initial item i of all queries' (Q, S); -1: padding.
  std::int64_t initial(std::int64_t i) const {
    return limits.initial_bytes == 4 ? static_cast<const std::int32_t*>(limits.initial)[i]
                                     : static_cast<const std::int64_t*>(limits.initial)[i];
  }

  // Outputs, every element written, as of SelectArgs; indices are positions.
  std::int64_t* indices;
  float* scores;
  float* relevance;
  float* redundancy;
  std::int32_t* lengths;
  // (Q,): 0; 1 where a row that was read is not finite; of DPP, 2 where similarities of a pair differ, 3 where a
  // determinant is negative.
  std::uint8_t* status;
};

void select_given(const GivenArgs& args, int num_threads);

}  // namespace rsk
