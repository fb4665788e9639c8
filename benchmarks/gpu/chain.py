"""The cycles that one warp alone takes for machine code of Hopper: its chains of instructions that wait for others.

A warp issues its instructions in their order. How long it waits before the next one is in the encoding of each, where
the compiler has put it (bits 105 to 121 from sm_70 on: Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via
Microbenchmarking", 2018): a number of cycles for results of a fixed latency; for others a scoreboard that the
instruction sets until its result is there, or its operands are read, and those scoreboards that it waits for. So the
order, the cycles of arithmetic and what waits for what are the compiler's; the latencies below are not. Both sides of a
branch count, as in the numbers of instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.gpu.sass import Instruction

# Cycles until a result is there, by the beginning of a name; the first that fits. *Measured* by others on an H100 (Luo
# et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024): device memory
# 479, the first-level cache 41, shared memory 29, another multiprocessor of a cluster 180. On Volta (Jia et al.):
# shuffles 23. *Assumed*: all others.
MEMORY, CACHED, CLUSTER = 479, 41, 180
GLOBAL = re.compile("LDG|LDGSTS|LD\\b|LDL|ATOM(?!S)|UBLKCP|UTMALDG")
LATENCIES = (
    ("LDSM", 33),  # four tiles: a little more than a load
    ("LDS|ATOMS", 29),
    ("SYNCS.PHASECHK", CLUSTER),  # what another block writes
)
OTHER = 23  # shuffles, reductions by a warp, constants, special functions, conversions, float64, fences of a block
# Until operands are read, which may be overwritten then; a barrier when all warps are there; sums of products of a
# group of warps, besides what the matrix units take for them: assumed.
READ, BARRIER, DRAIN = 10, 25, 32

PASSES = 8  # of a loop, of which the second half counts: what is loaded ahead of time is on its way then


def cycles(instructions: Sequence[Instruction], passes: int = 1, memory: float = MEMORY) -> float:
    """Return the cycles of a pass over instructions in a row, of the later ones if there are several.

    ``memory``: the latency of what comes from addresses of the device, in cycles.
    """
    warp, ends = _Warp(memory), [0.0]
    for _ in range(passes):
        for one in instructions:
            warp.issue(one)
        ends.append(warp.now)
    half = passes // 2
    return (ends[-1] - ends[half]) / (passes - half)


class _Warp:
    """When the results of one warp are there."""

    def __init__(self, memory: float) -> None:
        self.memory, self.now = memory, 0.0
        self.boards = [0.0] * 8
        self.copying, self.copies = 0.0, list[float]()  # asynchronous copies, and groups of them
        self.matrix, self.products = 0.0, list[float]()  # the matrix unit is busy; groups of its products

    def issue(self, one: Instruction) -> None:
        if one.control is None:
            raise ValueError(f"{one.name} has no encoding, which nvdisasm -hex prints")
        stall, writes, reads = one.control & 15, one.control >> 5 & 7, one.control >> 8 & 7
        waits = one.control >> 11 & 63
        self.now = max(self.now, *(self.boards[i] for i in range(6) if waits >> i & 1), 0.0)
        there = self.now + (self.memory if GLOBAL.match(one.name) else latency(one.name))
        if one.name.startswith("LDGSTS"):
            self.copying = max(self.copying, there)
        elif one.name.startswith("LDGDEPBAR"):
            self.copies.append(self.copying)
            there = self.copying
        elif one.name.startswith("DEPBAR"):
            self._wait(self.copies, one)
        elif one.name.startswith(("HGMMA", "IGMMA")):
            self.matrix = max(self.matrix, self.now) + _columns(one.name) / 2
            if "gsb0" in one.operands:
                self.products.append(self.matrix + DRAIN)
        elif one.name.startswith("WARPGROUP.DEPBAR"):
            self._wait(self.products, one)
        elif one.name.startswith(("BAR.SYNC", "BAR.RED")):
            self.now += BARRIER
        if writes != NONE:
            self.boards[writes] = max(self.boards[writes], there)
        if reads != NONE:
            self.boards[reads] = max(self.boards[reads], self.now + READ)
        self.now += max(stall, 1)

    def _wait(self, groups: list[float], one: Instruction) -> None:
        """Wait until at most as many groups are on their way as an instruction says."""
        found = re.search(r"\b(?:SB\d|gsb0), (0x[0-9a-f]+)", one.operands)
        left = int(found[1], 16) if found else 0
        done = groups[: len(groups) - left]
        self.now = max(self.now, *done[-1:], 0.0)


NONE = 7  # no scoreboard


def latency(name: str) -> float:
    """Return the cycles until the result of an instruction that sets a scoreboard is there."""
    return next((cycles for names, cycles in LATENCIES if re.match(names, name)), OTHER)


def _columns(name: str) -> int:
    """Return the columns of a product of 64 rows; the matrix units take a cycle for two of them."""
    found = re.search(r"64x(\d+)x", name)
    return int(found[1]) if found else 0
