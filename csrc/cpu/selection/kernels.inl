// All that a region of select.cpp compiles, in the order of what uses what, and its table of kernels; the rules of
// rules.inl have a file of their own, which compiles beside it.

#include "selection/loop.inl"
#include "selection/objectives/mmr.inl"
#include "selection/objectives/vrsd.inl"
#include "selection/scan.inl"
#include "selection/store.inl"
#if RSK_VEC_BYTES == 64
#include "selection/code_scan.inl"
#endif

static void query_relevance(const RelevanceArgs& args, std::int64_t q, Workspace& ws) {
  const SelectArgs& pool = args.pool;
  for (std::int64_t i = 0; i < pool.pool; ++i) args.out[q * pool.pool + i] = -__builtin_inff();
  prepare_tail_mask(pool.dims, ws.tail_mask);
  Query<Mmr> query{pool, ws, q};
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
    {select_query<Mmr>, select_query<Vrsd>},  // in the order of Method, up to msd
    query_relevance,
    RSK_EACH_NUMBER(encode_row),
    RSK_EACH_NUMBER(store_row),
    &kScanKernels,
#if RSK_VEC_BYTES == 64
    pack_rows,
    scan_packed,
#else
    nullptr,
    nullptr,
#endif
};
