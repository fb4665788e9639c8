"""Small pools of the CUDA kernels: what their machine code needs of a multiprocessor, counted."""

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
    return {k.name: k for k in resources.compile_cu(cuda_module.source_path("greedy_small"), "sm_90")}


def test_blocks_of_a_multiprocessor(compiled):
    described = {kernel.name: kernel for kernel in cuda_configuration.kernels() if kernel.source == "greedy_small"}
    assert set(described) == set(compiled)
    for name, kernel in described.items():
        threads, shared = kernel.threads(20, 384, 4), kernel.shared_bytes(20, 384, 4)
        assert not compiled[name].stack
        assert not compiled[name].spills
        by_registers = REGISTERS // (-(-compiled[name].registers // 8) * 8 * threads)
        # A fourth block of 112 slots would spill with MSD, which counts what is taken beside its sums.
        wanted = {32: 12, 64: 8, 112: 3 if "_msd_" in name else 4, 128: 3}
        assert min(by_registers, SHARED // (shared + 1024)) >= wanted[int(name.split("_")[3])]


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_instructions_of_a_slice_and_of_a_pick(compiled, dtype):
    """At most: both sides of a branch count, so a pick without groups has fewer."""
    loops = sass.loops(compiled[f"rsk_mmr_small_112_{dtype}"].asm)[1]
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
