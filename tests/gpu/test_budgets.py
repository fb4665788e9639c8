"""CUDA kernels of selection: what their machine code needs of a multiprocessor, counted."""

import re

import pytest

from benchmarks.gpu import resources, sass
from ragsys_kernels._gpu import cuda_module
from ragsys_kernels.selection.cuda import configuration as cuda_configuration

pytestmark = pytest.mark.slow  # nvcc takes half a minute of a source

# Of sm_90: registers and bytes of shared memory of a multiprocessor, of which each block takes 1 KiB more.
REGISTERS, SHARED = 1 << 16, 228 << 10


def compiled(source):
    if resources.nvcc() is None:
        pytest.skip("nvcc is not installed")
    return {k.name: k for k in resources.compile_cu(cuda_module.source_path(source), "sm_90")}


def pools(op, dtype, P, D, capped=False):
    return cuda_configuration.Pools(op, dtype, P, P, D, 10, capped, 0, True, 90, SHARED)


# --- Small pools: gram.


@pytest.fixture(scope="module")
def gram():
    return compiled("greedy_gram")


def test_blocks_of_gram(gram):
    for name, made in gram.items():
        _, op, _, slots, dtype = name.split("_")
        how = cuda_configuration.configure_gram(pools(op, dtype, int(slots) - 4, 384))
        assert how.kernel == name
        assert (made.stack, made.spills) == (0, 0)
        by_registers = REGISTERS // (-(-made.registers // 8) * 8 * how.threads)
        # A fourth block of 112 slots would spill with MSD, which counts what is taken beside its sums.
        wanted = {32: 12, 64: 8, 112: 3 if "_msd_" in name else 4, 128: 3}
        assert min(by_registers, SHARED // (how.shared + 1024)) >= wanted[int(slots)]


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_instructions_of_a_slice_and_of_a_pick(gram, dtype):
    """At most: both sides of a branch count, so a pick without groups has fewer."""
    loops = sass.loops(gram[f"rsk_mmr_gram_112_{dtype}"].asm)[1]
    slices = [loop.own for loop in loops if any("MMA" in name for name in loop.own)]
    assert [sum("MMA" in name for name in own) for own in slices] == [56] * 4  # of each warp: evenly
    for own in slices:
        assert sum("LDSM" in name for name in own) <= 32
        assert sum(name.startswith("LDGSTS") and ".128" in name for name in own) == 7
        assert len(own) <= 300
    # The shortest: the query's largest element is found outside of all loops that run again.
    pick = min((loop.own for loop in loops if any("REDUX" in name for name in loop.own)), key=len)
    assert any(name.startswith("STG") for name in pick)
    assert len(pick) <= 350
    # Of a query, P = 100, K = 10, D = 384.
    wanted = {"float16": 10_000, "int8": 6_500}[dtype]
    assert 384 // {"float16": 64, "int8": 128}[dtype] * sum(map(len, slices)) + 10 * len(pick) <= wanted


# --- Pools in the registers of a cluster.


@pytest.fixture(scope="module")
def resident():
    return compiled("greedy_resident")


def test_blocks_of_a_cluster(resident):
    """Two blocks of four warps, or one of eight; of a pool each row once, 16 bytes a load, nothing in local memory."""
    for name, made in resident.items():
        _, op, _, rows, dims, dtype = name.split("_")
        how = cuda_configuration.configure_resident(pools(op, dtype, int(rows), int(dims)))
        assert how.kernel == name
        assert (made.stack, made.spills) == (0, 0), name
        assert not re.search(r"\b(LDL|STL|MEMBAR)\b", made.asm), name
        blocks = min(REGISTERS // (-(-made.registers // 8) * 8 * how.threads), SHARED // (how.shared + 1024))
        assert blocks == {"384": 2, "768": 1}[dims]
        assert made.loads[16] >= 48
        # A pass is 96 products of a warp, and there are two, and one of initial items but for VRSD; norms are 96 more.
        assert made.matrix == {"mma.sync": (3 if "_vrsd_" in name else 4) * 96}


@pytest.fixture(scope="module")
def streamed():
    return compiled("greedy_streamed")


def test_blocks_of_pools_that_are_read_in_each_pass(streamed):
    """Two of eight warps, up to 640 dimensions; nothing in local memory."""
    for name, made in streamed.items():
        _, op, _, rows, dtype = name.split("_")
        for capped in (False, True):
            how = cuda_configuration.configure_streamed(pools(op, dtype, int(rows), 640, capped))
            assert how.kernel == name
            assert min(REGISTERS // (-(-made.registers // 8) * 8 * how.threads), SHARED // (how.shared + 1024)) == 2
        assert (made.stack, made.spills) == (0, 0), name
        assert not re.search(r"\b(LDL|STL|MEMBAR)\b", made.asm), name


@pytest.mark.parametrize("op", ["mmr", "vrsd", "msd"])
@pytest.mark.parametrize("rows", [1024, 4096])
def test_instructions_of_a_pass(streamed, op, rows):
    """Of 64 dimensions of a tile: eight loads of 16 bytes, 16 products, at first as many squares again."""
    _, loops = sass.loops(streamed[f"rsk_{op}_streamed_{rows}_float16"].asm)
    slices = [loop.own for loop in loops if count(loop.own, "HMMA") in (16, 32) and count(loop.own, "LDG") == 8]
    assert sorted(count(own, "HMMA") for own in slices) == ([16, 32] if op == "vrsd" else [16, 16, 32])
    for own in slices:
        assert len(own) <= {16: 96, 32: 176}[count(own, "HMMA")]


def skipped(code, first, last):
    """What branches between `first` and `last` skip: where, and the instructions."""
    names, branches = sass.listed(code)
    spans = [range(at + 1, target) for at, target in branches if first <= at < target <= last]
    return [(span, names[span.start : span.stop]) for span in spans]


def count(names, name):
    return sum(each.startswith(name) for each in names)


@pytest.mark.parametrize("op", ["mmr", "vrsd", "msd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_instructions_of_a_query(resident, op, dtype):
    """P = 1,000, K = 10, D = 384, without caps and initial items, with two passes after the first: of all 32 warps.

    Both sides of most branches count.
    """
    code = resident[f"rsk_{op}_resident_1024_384_{dtype}"].asm
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
