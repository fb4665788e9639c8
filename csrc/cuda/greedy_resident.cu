// MMR, VRSD and MSD out of pools of up to 1,024 rows of 16 bits that stay in the registers of a cluster: kernels by
// rows, dimensions and element type. From sm_90 on; an older device has none of them.
#include "column_pools.cuh"

// Two blocks of four warps share a multiprocessor, or one of eight.
#define RSK_RESIDENT(name, T, rule, of_quad, blocks) \
  RSK_COLUMNS(name, T, rule, 1, of_quad, blocks, __cluster_dims__(blocks, 1, 1), of_quad / 2)
#define RSK_RESIDENT_ALL(op, rule, name, T)                        \
  RSK_RESIDENT(rsk_##op##_resident_256_384_##name, T, rule, 4, 2)  \
  RSK_RESIDENT(rsk_##op##_resident_512_384_##name, T, rule, 4, 4)  \
  RSK_RESIDENT(rsk_##op##_resident_1024_384_##name, T, rule, 4, 8) \
  RSK_RESIDENT(rsk_##op##_resident_256_768_##name, T, rule, 2, 2)  \
  RSK_RESIDENT(rsk_##op##_resident_512_768_##name, T, rule, 2, 4)  \
  RSK_RESIDENT(rsk_##op##_resident_1024_768_##name, T, rule, 2, 8)

// Which element types are compiled, as bits; tests compile one, which is quicker.
#ifndef RSK_RESIDENT_TYPES
#define RSK_RESIDENT_TYPES 3
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#if RSK_RESIDENT_TYPES & 1
RSK_RESIDENT_ALL(mmr, PoolMmr, float16, rsk::F16)
RSK_RESIDENT_ALL(vrsd, PoolVrsd, float16, rsk::F16)
RSK_RESIDENT_ALL(msd, PoolMsd, float16, rsk::F16)
#endif
#if RSK_RESIDENT_TYPES & 2
RSK_RESIDENT_ALL(mmr, PoolMmr, bfloat16, rsk::BF16)
RSK_RESIDENT_ALL(vrsd, PoolVrsd, bfloat16, rsk::BF16)
RSK_RESIDENT_ALL(msd, PoolMsd, bfloat16, rsk::BF16)
#endif
#endif
