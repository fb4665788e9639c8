// Selection by similarities that the caller gives, in the place of rows: a pick reads one row of its query's matrix.
// Coverage reads every row once, and again those whose gain may still be the largest.
#pragma once

#include <cstdint>

namespace rsk {

enum class GivenRule : int { mmr = 0, msd = 1, dpp = 2, facility = 3, cover = 4, xquad = 5 };

struct GivenArgs {
  GivenRule rule;
  std::int64_t num_queries, pool, k;
  const float* similarity;      // (Q, P, P): row j has the similarities of all items to item j
  const float* values;          // (Q, P): relevance with bias
  const float* weights;         // (Q, P), for DPP: the quality of each item
  float one;                    // MSD: what similarities are taken from
  float gamma;                  // cover: the power of the sums of similarities
  float largest;                // coverage: what similarities count up to
  float least_left;             // DPP: an item is no longer picked where d is at most this share of what it was
  float unequal, negative;      // DPP: when similarities of a pair differ, when a determinant is negative, while all
  float sound;                  // picks had at least this share left: ragsys_kernels/selection/definite.py
  std::int64_t pairs;           // DPP: how many pairs are looked at before the picks
  const float* lambda_d;        // (Q,)
  const std::int64_t* ks;       // (Q,), each at most k; or null
  const std::uint8_t* open;     // (Q, P): 0 for an item that may not be picked; or null
  const std::int64_t* initial;  // (Q, S) positions, -1 is padding; or null
  std::int64_t num_initial;
  const std::int64_t* groups;   // (Q, P), with a cap
  std::int64_t max_per_group;   // 0: no cap
  const double* costs;          // (Q, P), with a budget; or null
  const double* budget;         // (Q,)
  const float* max_similarity;  // (Q,); or null

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
