#include "isa.h"

#include <stdexcept>
#include <string>

namespace rsk {
namespace {

constexpr const char* kNames[] = {
    "base",
#if defined(__x86_64__)
    "avx2",
    "avx512",
#endif
};

}  // namespace

int isa_count() { return int(sizeof kNames / sizeof *kNames); }
const char* isa_name(int isa) { return kNames[isa]; }

bool isa_supported(int isa) {
#if defined(__x86_64__)
  // __builtin_cpu_supports also checks that the operating system saves the registers.
  if (isa == 1)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == 2)
    return isa_supported(1) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return isa == 0;
}

void require_isa(int isa) {
  if (isa < 0 || isa >= isa_count() || !isa_supported(isa))
    throw std::invalid_argument("instruction set " + std::to_string(isa) + " is not available on this machine");
}

}  // namespace rsk
