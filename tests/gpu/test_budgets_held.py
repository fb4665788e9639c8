"""Pools in the registers of a cluster: what their machine code needs of a multiprocessor, counted."""

import re

import pytest

from benchmarks.gpu import resources, sass
from ragsys_kernels._gpu import cuda_module
from ragsys_kernels.selection.cuda import configuration as cuda_configuration

pytestmark = pytest.mark.slow  # nvcc takes half a minute

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
        assert (made.stack, made.spills) == (0, 0), name
        assert not re.search(r"\b(LDL|STL|MEMBAR)\b", made.asm), name
        blocks = min(REGISTERS // (-(-made.registers // 8) * 8 * threads), SHARED // (shared + 1024))
        assert blocks == {384: 2, 768: 1}[dims]
        assert made.loads[16] >= 48
        # A pass is 96 products of a warp, and there are two, and one of initial items but for VRSD; norms are 96 more.
        assert made.matrix == {"mma.sync": (3 if "_vrsd_" in name else 4) * 96}


def skipped(code, first, last):
    """What branches between `first` and `last` skip: where, and the instructions, counted as sass.loops does."""
    names, labels, branches = [], {}, []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\w+):", line):
            labels[label[1]] = len(names)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)", line):
            if found[1].startswith("BRA") and (target := re.search(r"\.L_x_\w+", found[2])):
                branches.append((len(names), target[0]))
            names.append(found[1])
    spans = [range(at + 1, labels[label]) for at, label in branches if first <= at < labels[label] <= last]
    return [(span, names[span.start : span.stop]) for span in spans]


def count(names, name):
    return sum(each.startswith(name) for each in names)


@pytest.mark.parametrize("op", ["mmr", "vrsd", "msd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_instructions_of_a_query(compiled, op, dtype):
    """P = 1,000, K = 10, D = 384, without caps and initial items, with two passes after the first: of all 32 warps.

    Both sides of most branches count.
    """
    code = compiled[f"rsk_{op}_held_1024_384_{dtype}"].asm
    outside, loops = sass.loops(code)
    begin = min(loop.first for loop in loops if any(name.startswith("SYNCS.PHASECHK") for name in loop.own))
    steps = [loop for loop in loops if any(name.startswith(("HMMA", "SYNCS.PHASECHK")) for name in loop.own)]
    initial = [loop for loop in steps if loop.first < begin]
    assert len(initial) == (op != "vrsd")
    loops = [loop for loop in loops if not any(outer.first <= loop.first < outer.last for outer in initial)]
    steps = [loop for loop in steps if loop not in initial]
    first, last = min(loop.first for loop in steps), max(loop.last for loop in steps)
    picks = [loop for loop in loops if first <= loop.first and loop.last <= last]
    step = sum(len(loop.own) for loop in picks)
    spans = skipped(code, first, last)
    pass_ = min(len(names) for _, names in spans if count(names, "HMMA") == 96)
    # Outputs, which one warp writes; groups; VRSD out of the rows themselves, where float32 loses it.
    rare = [(span, names) for span, names in spans if count(names, ("STG", "POPC", "FFMA"))]
    left_out = len(set().union(*(span for span, names in rare if not count(names, ("HMMA", "SYNCS")))))
    # The query is read twice and taken apart once; VRSD's sum begins with zeros.
    setup = len(outside) + sum((12 if len(loop.own) < 12 else 3) * len(loop.own) for loop in loops if loop not in picks)
    total = 32 * (setup + 10 * (step - pass_ - left_out) + 2 * pass_)
    assert total <= 175_000
