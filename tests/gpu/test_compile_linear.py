"""What the compiler makes of the linear form on Triton, on which its accuracy and its bits rest."""

import importlib.util

import compiler_ir
import pytest

from benchmarks.gpu import resources

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
MODULE = "benchmarks.gpu.scoring_kernels"


@pytest.fixture(scope="module")
def stages():
    with resources.pool(1) as executor:
        yield lambda name, arch: executor.submit(compiler_ir.stages_of, MODULE, name, arch).result()


@pytest.mark.slow
def test_each_slice_of_dimensions_has_an_accumulator_of_its_own(stages):
    """The compiler makes one chain of ``x += tl.dot(a, b)``, unless it is told how long a chain may be."""
    ttir = stages("_logprob_linear_kernel, bfloat16 x bfloat16, ROWS=64, DIMS=64, EVEN, plain", "sm_90")["ttir"]
    found = compiler_ir.accumulators(ttir)
    assert found
    for line in found:
        assert line is not None and "arith.constant dense<0.0" in line[1], line  # noqa: PT018
