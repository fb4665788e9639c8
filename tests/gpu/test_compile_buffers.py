"""No slice of rows is loaded into a buffer that the matrix units of Hopper still read.

Triton gives rows a buffer more where only matrix products use them. Where registers do too, it does not, and with two
stages or more it starts a load while a product is under way: on an H200 similarities were wrong then.
"""

import importlib.util

import compiler_ir
import pytest

from benchmarks.gpu import resources

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]
MODULES = {
    "gram": "benchmarks.gpu.selection_kernels",
    "corpus": "benchmarks.gpu.selection_kernels",
    "filter": "benchmarks.gpu.selection_kernels",
    "proof": "benchmarks.gpu.selection_kernels",
    "_logprob": "benchmarks.gpu.scoring_kernels",
}


@pytest.fixture(scope="module")
def overwritten():
    """Whether a kernel for Hopper does so, under its own number of stages or another one."""
    with resources.pool(1) as executor:
        yield lambda *call: executor.submit(_overwritten, *call).result()


def _overwritten(module, name, stages=None):
    from importlib import import_module

    own = {c.name: c.num_stages for c in import_module(module).ahead_of_time() if "sm_90" in c.archs}[name]
    stages = stages or own
    return compiler_ir.overwritten(compiler_ir.stages_of(module, name, "sm_90", num_stages=stages)["ttgir"], stages)


NAMES = (
    "gram 128 mmr plain float16",
    "gram tile 128 mmr plain float16",
    "corpus step 64 mmr plain float16",
    "gram 64 mmr plain float16",
    "gram 128 vrsd options bfloat16",
    "gram 128 mmr plain int8",
    "gram tile 64 mmr plain float16",
    "gram tile 128 vrsd options bfloat16",
    "corpus relevance 64 mmr plain float16",
    "corpus relevance 64 vrsd options bfloat16",
    "filter bits 64 plain float16",
    "proof bits 64 x 6 plain bfloat16",
    "_logprob_linear_kernel, bfloat16 x bfloat16, ROWS=64, DIMS=64, EVEN, plain",
    "_logprob_linear_tma_kernel, bfloat16 x bfloat16",
)


@pytest.mark.parametrize("name", NAMES)
def test_no_buffer_is_overwritten(overwritten, name):
    module = next(module for prefix, module in MODULES.items() if name.startswith(prefix))
    assert not overwritten(module, name)


def test_the_defect_is_found(overwritten):
    """When a newer Triton passes, `gram_tile` may have two stages with it."""
    assert overwritten(MODULES["gram"], "gram 128 mmr plain float16", 2)
