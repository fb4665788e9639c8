// MMR, VRSD and MSD out of pools of up to 4,096 rows of 16 bits that are read in each pass: kernels by rows and element
// type. A cluster of blocks, from sm_90 on, for more than 1,024.
#include "column_pools.cuh"

// Blocks that share a multiprocessor; shared memory leaves room for one on devices before sm_90.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define RSK_STREAMED_ALL(op, rule, name, T)                                                    \
  RSK_COLUMNS(rsk_##op##_streamed_1024_##name, T, rule, 4, 4, 1, , 2)                          \
  RSK_COLUMNS(rsk_##op##_streamed_2048_##name, T, rule, 4, 4, 2, __cluster_dims__(2, 1, 1), 2) \
  RSK_COLUMNS(rsk_##op##_streamed_4096_##name, T, rule, 4, 4, 4, __cluster_dims__(4, 1, 1), 2)
#else
#define RSK_STREAMED_ALL(op, rule, name, T) RSK_COLUMNS(rsk_##op##_streamed_1024_##name, T, rule, 4, 4, 1, , 1)
#endif

// Which element types are compiled, as bits; tests compile one, which is quicker.
#ifndef RSK_STREAMED_TYPES
#define RSK_STREAMED_TYPES 3
#endif
#if RSK_STREAMED_TYPES & 1
RSK_STREAMED_ALL(mmr, PoolMmr, float16, rsk::F16)
RSK_STREAMED_ALL(vrsd, PoolVrsd, float16, rsk::F16)
RSK_STREAMED_ALL(msd, PoolMsd, float16, rsk::F16)
#endif
#if RSK_STREAMED_TYPES & 2
RSK_STREAMED_ALL(mmr, PoolMmr, bfloat16, rsk::BF16)
RSK_STREAMED_ALL(vrsd, PoolVrsd, bfloat16, rsk::BF16)
RSK_STREAMED_ALL(msd, PoolMsd, bfloat16, rsk::BF16)
#endif
