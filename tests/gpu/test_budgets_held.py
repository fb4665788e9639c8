"""Pools in the registers of a cluster: what their machine code needs of a multiprocessor, counted."""

import re

import pytest

from ragsys_kernels._gpu import cuda_module, resources
from ragsys_kernels.selection import cuda_configuration

sass = pytest.importorskip("ragsys_kernels._gpu.sass")

# Of sm_90: registers and bytes of shared memory of a multiprocessor, of which each block takes 1 KiB more.
REGISTERS, SHARED = 1 << 16, 228 << 10


@pytest.fixture(scope="module")
def compiled():
    if resources.nvcc() is None:
        pytest.skip("nvcc is not installed")
    return {k.name: k for k in resources.compile_cu(cuda_module.source_path("greedy_held"), "sm_90")}


def test_what_a_multiprocessor_has_room_for(compiled):
    """Two blocks of four warps, or one of eight; of a pool each row once, 16 bytes a load, nothing in local memory."""
    described = {kernel.name: kernel for kernel in cuda_configuration.kernels() if kernel.source == "greedy_held"}
    assert set(described) == set(compiled)
    for name, kernel in described.items():
        rows, dims = map(int, name.split("_")[3:5])
        threads, shared = kernel.threads(rows, dims, 10), kernel.shared_bytes(rows, dims, 10)
        made = compiled[name]
        assert not (made.stack or made.spills or "LDL" in made.asm or "STL" in made.asm), name
        blocks = min(REGISTERS // (-(-made.registers // 8) * 8 * threads), SHARED // (shared + 1024))
        assert blocks == {384: 2, 768: 1}[dims]
        assert made.loads[16] >= 48
        # A pass is 48 products of a warp, and there are two; the norms of rows are 96.
        assert made.matrix == {"mma.sync": 48 * 2 + 96}
        assert "MEMBAR" not in made.asm


def skipped(code, first, last):
    """What branches between `first` and `last` skip, as lists of instructions; sass.loops counts them the same way."""
    names, labels, branches = [], {}, []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\w+):", line):
            labels[label[1]] = len(names)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)", line):
            if found[1].startswith("BRA") and (target := re.search(r"\.L_x_\w+", found[2])):
                branches.append((len(names), target[0]))
            names.append(found[1])
    return [names[at + 1 : labels[label]] for at, label in branches if first <= at < labels[label] <= last]


@pytest.mark.parametrize(("op", "most"), [("mmr", 185_000), ("vrsd", 215_000)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_instructions_of_a_query(compiled, op, dtype, most):
    """P = 1,000, K = 10, D = 384, with three passes after the first: warp instructions of the whole cluster.

    Both sides of other branches count.
    """
    code = compiled[f"rsk_{op}_held_1024_384_{dtype}"].asm
    outside, loops = sass.loops(code)
    steps = [loop for loop in loops if any(name.startswith(("HMMA", "SYNCS.PHASECHK")) for name in loop.own)]
    first, last = min(loop.first for loop in steps), max(loop.last for loop in steps)
    picks = [loop for loop in loops if first <= loop.first and loop.last <= last]
    step = sum(len(loop.own) for loop in picks)
    spans = skipped(code, first, last)
    meets = min(len(span) for span in spans if sum(name.startswith("HMMA") for name in span) == 48)
    # VRSD out of the rows themselves, where float32 loses it.
    again = max(len(span) for span in spans if not any(name.startswith("HMMA") for name in span)) if op == "vrsd" else 0
    assert again < 1300
    # The query is read twice and taken apart once; VRSD's sum begins with zeros.
    setup = len(outside) + sum((12 if len(loop.own) < 12 else 3) * len(loop.own) for loop in loops if loop not in picks)
    assert 32 * (setup + 10 * (step - meets - again) + 3 * meets) <= most
