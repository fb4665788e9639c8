// MMR, VRSD and MSD out of pools of up to 128 rows of 16 or 8 bits: kernels by slots and element type.
#include "gram_pools.cuh"

// Blocks of 112 slots that a multiprocessor has registers for; from sm_100 on a fourth would spill, of MSD anywhere.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define RSK_BLOCKS_112 3
#else
#define RSK_BLOCKS_112 4
#endif

#define RSK_GRAM_ALL(op, rule, name, T, blocks_112)               \
  RSK_GRAM(rsk_##op##_gram_32_##name, T, rule<1>, 2, 16)          \
  RSK_GRAM(rsk_##op##_gram_64_##name, T, rule<2>, 4, 8)           \
  RSK_GRAM(rsk_##op##_gram_112_##name, T, rule<4>, 7, blocks_112) \
  RSK_GRAM(rsk_##op##_gram_128_##name, T, rule<4>, 8, 3)

// Which element types are compiled, as bits; tests compile one, which is quicker.
#ifndef RSK_GRAM_TYPES
#define RSK_GRAM_TYPES 7
#endif
#if RSK_GRAM_TYPES & 1
RSK_GRAM_ALL(mmr, PoolMmr, float16, rsk::F16, RSK_BLOCKS_112)
RSK_GRAM_ALL(vrsd, PoolVrsd, float16, rsk::F16, RSK_BLOCKS_112)
RSK_GRAM_ALL(msd, PoolMsd, float16, rsk::F16, 3)
#endif
#if RSK_GRAM_TYPES & 2
RSK_GRAM_ALL(mmr, PoolMmr, bfloat16, rsk::BF16, RSK_BLOCKS_112)
RSK_GRAM_ALL(vrsd, PoolVrsd, bfloat16, rsk::BF16, RSK_BLOCKS_112)
RSK_GRAM_ALL(msd, PoolMsd, bfloat16, rsk::BF16, 3)
#endif
#if RSK_GRAM_TYPES & 4
RSK_GRAM_ALL(mmr, PoolMmr, int8, rsk::I8, RSK_BLOCKS_112)
RSK_GRAM_ALL(vrsd, PoolVrsd, int8, rsk::I8, RSK_BLOCKS_112)
RSK_GRAM_ALL(msd, PoolMsd, int8, rsk::I8, 3)
#endif
