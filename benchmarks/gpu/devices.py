"""What devices have, from public documents, and how many blocks of a kernel one of their multiprocessors holds.

Peak figures are the vendors': what a kernel that did nothing else could reach, without sparsity. Sources:

- NVIDIA A100 Tensor Core GPU data sheet (80 GB SXM) and the A100 architecture white paper (108 SMs, 40 MB L2).
- NVIDIA H100 Tensor Core GPU data sheet (SXM; dense is half of the sparse figures printed there) and the H100
  architecture white paper (132 SMs, 50 MB L2).
- NVIDIA H200 data sheet (SXM: the H100's chip with 4.8 TB/s of memory); its driver tells 60 MB of L2.
- NVIDIA HGX B200 data sheet, one GPU of eight, and the Blackwell tuning guide (148 SMs, 126 MB L2).
- AMD Instinct MI300X data sheet, and the ROCm table of GPU specifications (304 compute units, 256 MB Infinity Cache).
- What the last-level cache gives: 5,120 bytes a clock on the A100 (architecture white paper), taken for Hopper too, at
  the boost clocks of 1.41 and 1.755 GHz; 17.2 TB/s of MI300X's Infinity Cache (CDNA 3 white paper); for B200 no figure
  is public.
- Limits of a multiprocessor: CUDA C++ Programming Guide, technical specifications per compute capability (8.0, 9.0,
  10.0; registers are given to warps in units of 256, each block has 1 KiB of shared memory for the system). AMD CDNA 3
  instruction set guide: four SIMDs a compute unit, each with 512 vector registers a lane in units of 8 and 8 waves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Processor:
    """A multiprocessor (compute unit) of an architecture; memory in bytes."""

    warp: int
    threads: int
    blocks: int
    registers: int  # of all threads
    register_unit: int  # registers of a warp come in multiples of this
    warps: int
    partitions: int  # a warp lives in one of these, with its share of registers and warps
    shared: int
    shared_block: int  # of one block
    shared_reserved: int = 0  # of each block, for the system

    def blocks_resident(self, threads: int, registers: int, shared: int) -> int:
        """Return how many blocks of a kernel fit at a time, 0 if none does."""
        if not 0 < threads <= 1024 or shared > self.shared_block:
            return 0
        warps = -(-threads // self.warp)
        units = -(-max(registers, 1) * self.warp // self.register_unit)
        per_partition = self.registers // self.partitions // (units * self.register_unit)
        # The warps of a block go to the partitions, and need not divide evenly among them.
        fitting = min(per_partition * self.partitions, self.warps) // warps
        memory = self.shared // max(shared + self.shared_reserved, 1)
        return min(self.blocks, fitting, self.threads // (warps * self.warp), memory)


def _nvidia(shared: int) -> Processor:
    shared *= 1024
    return Processor(32, 2048, 32, 65536, 256, 64, 4, shared, shared - 1024, 1024)


PROCESSORS = {
    "sm_80": _nvidia(164),
    "sm_90": _nvidia(228),
    "sm_100": _nvidia(228),
    "gfx942": Processor(64, 2048, 32, 4 * 512 * 64, 512, 32, 4, 64 * 1024, 64 * 1024),
}


@dataclass(frozen=True)
class Device:
    name: str
    arch: str
    bandwidth: float  # bytes a second, of device memory
    matrix16: float  # flops a second, float16 and bfloat16 with float32 sums
    float32: float  # flops a second, of multiply-adds in full float32
    processors: int
    cache: int  # bytes, of the last level
    cache_bandwidth: float | None  # bytes a second out of it, None: not public

    @property
    def processor(self) -> Processor:
        return PROCESSORS[self.arch]


DEVICES = (
    Device("A100 80 GB SXM", "sm_80", 2.039e12, 312e12, 19.5e12, 108, 40 << 20, 5120 * 1.41e9),
    Device("H100 SXM", "sm_90", 3.35e12, 989e12, 67e12, 132, 50 << 20, 5120 * 1.755e9),
    Device("H200 SXM", "sm_90", 4.8e12, 989e12, 67e12, 132, 60 << 20, 5120 * 1.755e9),
    Device("B200", "sm_100", 8.0e12, 2250e12, 75e12, 148, 126 << 20, None),
    Device("MI300X", "gfx942", 5.3e12, 1307e12, 163.4e12, 304, 256 << 20, 17.2e12),
)
