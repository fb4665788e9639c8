#include "isa.h"

#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rsk {
namespace {

constexpr const char* kNames[] = {
    "base",
#if defined(__x86_64__)
    "avx2",
    "avx512",
#endif
};

#if defined(__x86_64__)
// What CPUID says, not __builtin_cpu_supports: compilers have other names for it, and where their runtime has not set
// it up it answers no. XCR0 says which registers the operating system saves.
struct Processor {
  unsigned leaf1_c = 0, leaf7_b = 0, leaf7_c = 0, leaf7_d = 0, leaf7_1_a = 0, saved = 0;

  Processor() {
    constexpr unsigned osxsave = 1u << 27;
    unsigned a, b, d, high;
    if (!__get_cpuid(1, &a, &b, &leaf1_c, &d) || !(leaf1_c & osxsave)) return;
    asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    a = 0;
    __get_cpuid_count(7, 0, &a, &leaf7_b, &leaf7_c, &leaf7_d);
    if (a >= 1) __get_cpuid_count(7, 1, &leaf7_1_a, &b, &a, &d);
  }
};

const Processor& processor() {
  static const Processor found;
  return found;
}

bool all(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }
#endif

}  // namespace

int isa_count() { return int(sizeof kNames / sizeof *kNames); }
const char* isa_name(int isa) { return kNames[isa]; }

bool isa_supported(int isa) {
#if defined(__x86_64__)
  constexpr unsigned fma = 1u << 12, avx = 1u << 28, f16c = 1u << 29, ymm = 6, zmm = 0xe0;
  constexpr unsigned avx2 = 1u << 5, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
  const Processor& p = processor();
  if (isa == 1) return all(p.leaf1_c, fma | avx | f16c) && all(p.leaf7_b, avx2) && all(p.saved, ymm);
  if (isa == 2) return isa_supported(1) && all(p.leaf7_b, f | dq | bw | vl) && all(p.saved, zmm);
#endif
  return isa == 0;
}

#if defined(__x86_64__)
bool has_vnni() { return isa_supported(2) && all(processor().leaf7_c, 1u << 11); }
bool has_vpopcnt() { return isa_supported(2) && all(processor().leaf7_c, 1u << 14); }
bool has_bf16() { return isa_supported(2) && all(processor().leaf7_1_a, 1u << 5); }
bool has_tiles() {
  constexpr unsigned tile = 1u << 24, bf16 = 1u << 22, registers = 3u << 17;
  return isa_supported(2) && all(processor().leaf7_d, tile | bf16) && all(processor().saved, registers);
}
#endif

void require_isa(int isa) {
  if (isa < 0 || isa >= isa_count() || !isa_supported(isa))
    throw std::invalid_argument("instruction set " + std::to_string(isa) + " is not available on this machine");
}

}  // namespace rsk
