// What a selection kernel takes: one struct by value, which selection/cuda/backend.py fills in this order.
#pragma once
#include "common.cuh"

namespace rsk {

enum Norm { kAsGiven = 0, kScaled = 1, kComputed = 2 };

// Sizes and strides in elements. ragsys_kernels/selection/problem.py says which pointers may be null.
struct SelectArgs {
  long long first_query, num_ids, row_stride, pool_stride, max_per_group;
  int pool, dims, k, num_initial, norm, unit_queries, id_bytes, initial_bytes, bias_per_item;
  float far;                      // MSD: the distance of items without similarity
  const void* rows;               // (N, D)
  const float* scales;            // (N,)
  const float* queries;           // (Q, D)
  const void* candidates;         // (Q, P) ids, anything out of range is padding
  const void* initial;            // (Q, S) ids, likewise
  const float* relevance;         // (Q, P)
  const float* bias;              // (N,) or, with bias_per_item, (Q, P)
  const float* lambda_d;          // (Q,)
  const float* lambda_b;          // (Q,)
  const long long* ks;            // (Q,)
  const long long* groups;        // (N,)
  const long long* query_groups;  // (Q,)
  long long* indices;             // (Q, K), as all that follow but the lengths; every element is written
  float* scores;
  float* out_relevance;
  float* redundancy;
  int* lengths;  // (Q,)
};

__device__ inline long long id_at(const void* ids, int bytes, long long i) {
  return bytes == 4 ? static_cast<const int*>(ids)[i] : static_cast<const long long*>(ids)[i];
}

// A sum of vectors shorter than this share of its terms' lengths is zero to the precision of float32 data.
constexpr float kZeroSum = 1e-6f;

}  // namespace rsk
