// Includes RSK_REGION_BODY once per instruction set, as the kernels of the namespace and the target region of that
// name, on vectors of RSK_VEC_BYTES. A new instruction set is added here, in regions.h and in isa.cpp.

namespace rsk::base {
#define RSK_VEC_BYTES 16
#include RSK_REGION_BODY
#undef RSK_VEC_BYTES
}  // namespace rsk::base

#if RSK_X86_DISPATCH

RSK_REGION(RSK_AVX2)
namespace rsk::avx2 {
#define RSK_VEC_BYTES 32
#include RSK_REGION_BODY
#undef RSK_VEC_BYTES
}  // namespace rsk::avx2
RSK_REGION_END

RSK_REGION(RSK_AVX512)
namespace rsk::avx512 {
#define RSK_VEC_BYTES 64
#include RSK_REGION_BODY
#undef RSK_VEC_BYTES
}  // namespace rsk::avx512
RSK_REGION_END

#endif

#undef RSK_REGION_BODY
