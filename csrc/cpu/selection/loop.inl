// The loop over picks, for whatever objective: what the regions of select.cpp and of rules.cpp both compile.

#include "simd/vectors.inl"
#include "simd/dot.inl"
#include "simd/doubles.inl"
#include "simd/codes.inl"
#include "simd/coarse.inl"
#include "simd/bits.inl"

extern const RowKernels kRowKernels[5];  // by DType; of row_kernels.inl

#include "selection/query.inl"
#include "selection/collect.inl"
#include "selection/rows.inl"
#include "selection/relevance.inl"
#include "selection/meet.inl"
#include "selection/picks.inl"
#include "selection/triangle_bounds.inl"
#include "selection/code_bounds.inl"
#include "selection/coarse_bounds.inl"
#include "selection/whole_corpus.inl"
#include "selection/objectives/nearest.inl"
#include "selection/objectives/summed.inl"

template <class Objective>
static void select_query(const SelectArgs& args, std::int64_t q, Workspace& ws) {
  for (std::int64_t out = q * args.k; out < (q + 1) * args.k; ++out) leave_empty(args, out);
  args.lengths[q] = 0;
  prepare_tail_mask(args.dims, ws.tail_mask);
  Query<Objective> query{args, ws, q};
  args.status[q] = std::uint8_t(query.run());
}
