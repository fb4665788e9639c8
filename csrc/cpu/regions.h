// Target regions: what stands between RSK_REGION and RSK_REGION_END is compiled for processors with these features. All
// headers come before the first region, so that the standard library's templates stay baseline code.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#define RSK_X86_DISPATCH 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define RSK_PRAGMA(...) _Pragma(#__VA_ARGS__)
#ifdef __clang__
#define RSK_REGION(features) RSK_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define RSK_REGION_END RSK_PRAGMA(clang attribute pop)
#else
#define RSK_REGION(features) RSK_PRAGMA(GCC push_options) RSK_PRAGMA(GCC target(features))
#define RSK_REGION_END RSK_PRAGMA(GCC pop_options)
#endif

// The features of the instruction sets; `base` is the floor of the platform's ABI, SSE2 on x86-64 and NEON on AArch64.
#define RSK_AVX2 "avx2,fma,f16c"
#define RSK_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"

// A table's entries, in the order of isa.h: the address of what every region calls `name`.
#if RSK_X86_DISPATCH
#define RSK_OF_EACH_REGION(name) &base::name, &avx2::name, &avx512::name
#else
#define RSK_OF_EACH_REGION(name) &base::name
#endif
