// All that a region of select.cpp compiles, in the order of what uses what, and its table of kernels.

#include "simd/vectors.inl"
#include "simd/dot.inl"
#include "simd/codes.inl"
#include "selection/query.inl"
#include "selection/collect.inl"
#include "selection/rows.inl"
#include "selection/relevance.inl"
#include "selection/meet.inl"
#include "selection/picks.inl"
#include "selection/triangle_bounds.inl"
#include "selection/code_bounds.inl"
#include "selection/whole_corpus.inl"
#include "selection/objectives/nearest.inl"
#include "selection/objectives/mmr.inl"
#include "selection/objectives/summed.inl"
#include "selection/objectives/vrsd.inl"
#include "selection/scan.inl"
#if RSK_VEC_BYTES == 64
#include "selection/code_scan.inl"
#endif

template <class Objective>
struct Select {
  template <class T>
  static void query(const SelectArgs& args, std::int64_t q, Workspace& ws) {
    for (std::int64_t out = q * args.k; out < (q + 1) * args.k; ++out) {
      args.indices[out] = -1;
      args.scores[out] = -__builtin_inff();
      args.out_relevance[out] = args.redundancy[out] = __builtin_nanf("");
    }
    args.lengths[q] = 0;
    prepare_tail_mask(args.dims, ws.tail_mask);
    Query<T, Objective> query{args, ws, q};
    args.status[q] = std::uint8_t(query.run());
  }
};

template <class T>
static void query_relevance(const RelevanceArgs& args, std::int64_t q, Workspace& ws) {
  const SelectArgs& pool = args.pool;
  for (std::int64_t i = 0; i < pool.pool; ++i) args.out[q * pool.pool + i] = -__builtin_inff();
  prepare_tail_mask(pool.dims, ws.tail_mask);
  Query<T, Mmr> query{pool, ws, q};
  Status status = query.collect();
  if (status == Status::ok) status = query.read_pool();
  if (status == Status::ok)
    for (std::int64_t j = 0; j < query.items; ++j) args.out[q * pool.pool + ws.position[j]] = ws.value[j];
  pool.status[q] = std::uint8_t(status);
}

template <class T>
static void encode_row(const EncodeArgs& args, std::int64_t row) {
  const std::int64_t stride = code_stride(args.dims);
  encode(static_cast<const T*>(args.rows) + row * args.row_stride, args.dims, args.scales ? args.scales[row] : 1.0f,
         args.out + row * stride, stride);
}

constexpr Kernels kKernels = {
    int(W),
    {RSK_EACH_TYPE(Select<Mmr>::query), RSK_EACH_TYPE(Select<Vrsd>::query)},  // in the order of Method
    RSK_EACH_TYPE(query_relevance),
    RSK_EACH_TYPE(encode_row),
    &kScanKernels,
#if RSK_VEC_BYTES == 64
    pack_rows,
    scan_packed,
#else
    nullptr,
    nullptr,
#endif
};
