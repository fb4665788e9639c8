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
#include "selection/objectives/mmr.inl"
#include "selection/objectives/vrsd.inl"
#include "selection/scan.inl"
#if RSK_VEC_BYTES == 64
#include "selection/code_scan.inl"
#endif

template <class T>
static void encode_typed(const EncodeArgs& args, std::int64_t row) {
  const std::int64_t stride = code_stride(args.dims);
  encode(static_cast<const T*>(args.rows) + row * args.row_stride, args.dims, args.scales ? args.scales[row] : 1.0f,
         args.out + row * stride, stride);
}

static void encode_row(const EncodeArgs& args, std::int64_t row) {
  switch (args.dtype) {
    case DType::f32:
      return encode_typed<float>(args, row);
    case DType::f16:
      return encode_typed<f16>(args, row);
    case DType::bf16:
      return encode_typed<bf16>(args, row);
    case DType::i8:
      return encode_typed<i8>(args, row);
  }
}

template <class T, Method kMethod>
static void select_typed(const SelectArgs& args, std::int64_t q, Workspace& ws) {
  for (std::int64_t out = q * args.k; out < (q + 1) * args.k; ++out) {
    args.indices[out] = -1;
    args.scores[out] = -__builtin_inff();
    args.out_relevance[out] = args.redundancy[out] = __builtin_nanf("");
  }
  args.lengths[q] = 0;
  prepare_tail_mask(args.dims, ws.tail_mask);
  Query<T, kMethod> query{args, ws, q};
  Status status = query.collect();
  if (status == Status::ok) status = query.read_pool();
  if (status == Status::ok) status = query.run();
  args.status[q] = std::uint8_t(status);
}

template <class T>
static void relevance_typed(const RelevanceArgs& args, std::int64_t q, Workspace& ws) {
  const SelectArgs& pool = args.pool;
  for (std::int64_t i = 0; i < pool.pool; ++i) args.out[q * pool.pool + i] = -__builtin_inff();
  prepare_tail_mask(pool.dims, ws.tail_mask);
  Query<T, Method::mmr> query{pool, ws, q};
  Status status = query.collect();
  if (status == Status::ok) status = query.read_pool();
  if (status == Status::ok)
    for (std::int64_t j = 0; j < query.items; ++j) args.out[q * pool.pool + ws.position[j]] = ws.value[j];
  pool.status[q] = std::uint8_t(status);
}

template <Method kMethod>
static void select_query(const SelectArgs& args, std::int64_t q, Workspace& ws) {
  switch (args.dtype) {
    case DType::f32:
      return select_typed<float, kMethod>(args, q, ws);
    case DType::f16:
      return select_typed<f16, kMethod>(args, q, ws);
    case DType::bf16:
      return select_typed<bf16, kMethod>(args, q, ws);
    case DType::i8:
      return select_typed<i8, kMethod>(args, q, ws);
  }
}

static void relevance_query(const RelevanceArgs& args, std::int64_t q, Workspace& ws) {
  switch (args.pool.dtype) {
    case DType::f32:
      return relevance_typed<float>(args, q, ws);
    case DType::f16:
      return relevance_typed<f16>(args, q, ws);
    case DType::bf16:
      return relevance_typed<bf16>(args, q, ws);
    case DType::i8:
      return relevance_typed<i8>(args, q, ws);
  }
}

constexpr Kernels kKernels = {
    select_query<Method::mmr>,
    select_query<Method::vrsd>,
    relevance_query,
    int(W),
    encode_row,
    &kScanKernels,
#if RSK_VEC_BYTES == 64
    pack_rows,
    scan_packed,
#else
    nullptr,
    nullptr,
#endif
};
