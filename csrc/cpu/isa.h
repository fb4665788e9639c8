// The instruction sets that the kernels are compiled for, in ascending order: `isa` is an index of them everywhere.
#pragma once

#include <cstddef>

namespace rsk {

int isa_count();
const char* isa_name(int isa);
bool isa_supported(int isa);  // by this processor and its system

#if defined(__x86_64__)
// What a processor with AVX-512 may have on top.
bool has_vnni();     // sums of products of bytes
bool has_vpopcnt();  // counts of bits
bool has_bf16();     // sums of products of bfloat16
bool has_tiles();    // the matrix unit, with bfloat16; a process must ask the system for it
#endif

// Throws std::invalid_argument for an instruction set that is not built or not supported.
void require_isa(int isa);

// The kernels of an instruction set, of a table with an entry for each.
template <class Kernels, std::size_t N>
const Kernels& kernels_of(const Kernels* const (&table)[N], int isa) {
  require_isa(isa);
  return *table[isa];
}

}  // namespace rsk
