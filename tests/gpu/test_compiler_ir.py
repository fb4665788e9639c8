"""What Triton's compiler makes of kernels for Hopper on which their accuracy and their bits rest."""

import importlib.util

import compiler_ir
import pytest

from benchmarks.gpu import compilation, compiled, resources
from benchmarks.harness.ledger import read

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

# Those of the shapes that most calls have.
DEFAULT = (
    "gram tile 128 mmr plain float16",
    "filter bits 128 plain float16",
    "proof bits 64 x 5 plain float16",
    "_logprob_linear_kernel, bfloat16 x bfloat16, ROWS=64, DIMS=64, EVEN, plain",
)


def by_hopper():
    """The names of all kernels that multiply by Hopper's own instructions."""
    rows = read(compiled.LEDGER.path)
    newest = [row for row in rows if (row["arch"], row["compiler"]) == (compilation.HOPPER, compiled.NEEDED[-1])]
    return sorted(row["kernel"] for row in newest if "wgmma" in row["matrix"])


@pytest.fixture(scope="module")
def stages():
    """The text of each stage of a kernel."""
    with resources.pool(1) as executor:

        def of(name, **changes):
            module = f"benchmarks.gpu.{'scoring' if name.startswith('_logprob') else 'selection'}_kernels"
            return executor.submit(compiler_ir.stages_of, module, name, "sm_90", **changes).result()

        yield of


@pytest.mark.slow
def test_each_slice_of_dimensions_has_an_accumulator_of_its_own(stages):
    """The compiler makes one chain of ``x += tl.dot(a, b)``, unless it is told how long a chain may be."""
    ttir = stages("_logprob_linear_kernel, bfloat16 x bfloat16, ROWS=64, DIMS=64, EVEN, plain")["ttir"]
    found = compiler_ir.accumulators(ttir)
    assert found
    for line in found:
        assert line is not None and "arith.constant dense<0.0" in line[1], line  # noqa: PT018


# No slice of rows is loaded into a buffer that the matrix units of Hopper still read. Triton gives rows a buffer more
# where only matrix products use them. Where registers do too, it does not, and with two stages or more it starts a load
# while a product is under way: on an H200 similarities were wrong then.
@pytest.mark.parametrize(
    "name", [*DEFAULT, *(pytest.param(name, marks=pytest.mark.slow) for name in by_hopper() if name not in DEFAULT)]
)
def test_no_buffer_is_overwritten(stages, name):
    assert not compiler_ir.overwritten(**stages(name))


@pytest.mark.slow
def test_the_defect_is_found(stages):
    """When a newer Triton passes, `gram_tile` may have two stages with it."""
    assert compiler_ir.overwritten(**stages("gram 128 mmr plain float16", num_stages=2))
