"""A kernel that reads a buffer some times and does next to nothing else."""

import triton
import triton.language as tl


@triton.jit
def read_again(x, out, blocks, times, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for time in range(times):
        # Another block every time, far from those that run beside it, and past the caches of the multiprocessors.
        place = (block + time * 61) % blocks
        total += tl.load(x + place * BLOCK + lanes, cache_modifier=".cg")
    tl.store(out + (block % 1024) * BLOCK + lanes, total)
