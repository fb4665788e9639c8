"""The forms of a library call: a backend, a variant of its kernels, or a change that only the race makes.

The forms of a shape all launch different kernels, so nothing is timed twice. Nothing here needs torch until a form is
entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.gpu.shapes import Pools, Scores
from benchmarks.harness.contender import OURS
from benchmarks.suites.scoring_shapes import COMPILED, CROSS_ENTROPY, FRESH, LSE

BACKENDS = ("triton", "cuda")
SIXTEEN_BITS = ("float16", "bfloat16")
CAPABILITY, SHARED = 90, 232_448  # of an H100, and bytes that a block may have


class Form(NamedTuple):
    """One way in which the library can do a call."""

    backend: str
    variant: str = ""  # a value of RAGSYS_KERNELS_VARIANTS; empty: the default one
    change: str = ""  # a key of CHANGES, which are not in the package

    @property
    def name(self) -> str:
        return ", ".join(filter(None, self))

    @property
    def contender(self) -> str:
        return ", ".join(filter(None, (OURS, *self[1:])))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run the calls in a ``with`` block in this form."""
        from ragsys_kernels._base import env
        from ragsys_kernels._gpu import plans

        with ExitStack() as stack:
            stack.enter_context(env.changed(RAGSYS_KERNELS_VARIANTS=self.variant))
            if self.change:  # the key of a plan does not contain it
                stack.callback(plans.clear_plans)
                stack.enter_context(CHANGES[self.change]())
                plans.clear_plans()
            yield


def of(shape: Pools | Scores, backends: Iterable[str] = BACKENDS) -> tuple[Form, ...]:
    """Return the forms that differ for a shape, beginning with the default one of the first backend."""
    found = _of_scores(shape) if isinstance(shape, Scores) else _of_pools(shape)
    backends = tuple(backends)
    return tuple(sorted((form for form in found if form.backend in backends), key=lambda f: backends.index(f.backend)))


def _of_pools(shape: Pools) -> Iterator[Form]:
    yield Form("triton")
    if shape.op == "search":
        if -(-shape.N // 128) >= 2 * shape.K and shape.K <= 1024:
            yield Form("triton", "search=values")
            yield from (Form("triton", "", change) for change in (STAGES_4, TILES_64))
        return
    sixteen = shape.dtype in SIXTEEN_BITS
    if shape.P is None:
        if shape.op == "mmr" and sixteen and 2 <= shape.K <= 16 and min(96, shape.N // 256) >= 4 * shape.K:
            yield Form("triton", "corpus=dense")
            yield Form("triton", "", CHECK_64)
        return
    fits = 64 < shape.P <= 128 and shape.K <= 16 and shape.D % 32 == 0 and shape.D <= 768
    if shape.op == "mmr" and shape.dtype == "float32" and fits:
        yield Form("triton", "float32=estimates")
    how = _of_cuda(shape)
    if how is not None:
        yield Form("cuda")
        if "_resident_" in how.kernel:
            yield from (Form("cuda", "", change) for change in (ONE_BLOCK, EACH_PASS))


def _of_cuda(shape: Pools) -> Any:
    """Return how CUDA C++ runs pools on an H100 or later, None where it does not."""
    from ragsys_kernels.selection.cuda.configuration import Pools as Sizes
    from ragsys_kernels.selection.cuda.configuration import configure

    assert shape.P is not None
    return configure(
        Sizes(shape.op, shape.dtype, shape.N, shape.P, shape.D, shape.K, False, 0, True, CAPABILITY, SHARED)
    )


def _of_scores(shape: Scores) -> Iterator[Form]:
    yield Form("triton")
    if shape.D is not None and shape.T > 64 and shape.D % 64 == 0 and shape.dtype in SIXTEEN_BITS:
        for change, dims in SLICES.items():
            if shape.D % dims == 0:
                yield Form("triton", "", change)


# --- Other libraries, those first that decide most.

TORCH = "torch"
GRAM = "torch, one Gram matrix"
BLOCKS = (4_096, 8_192, 32_768)  # columns of a block of float32 logits that stays in the last-level cache


def peers(shape: Pools | Scores) -> tuple[str, ...]:
    """Return the contenders of other libraries, the most informative first."""
    if isinstance(shape, Scores):
        if shape.D is None:
            return (COMPILED, LSE, CROSS_ENTROPY, FRESH)
        blocks = [f"{TORCH}, float32 blocks of {columns:,}" for columns in BLOCKS]
        return (COMPILED, TORCH, *(blocks if shape.dtype in SIXTEEN_BITS else ()))
    if shape.op == "search":
        return (TORCH,)
    if shape.op == "mmr" and shape.P is not None and shape.P <= 128:
        return (f"{GRAM}, {COMPILED}", COMPILED, GRAM, TORCH)
    return () if shape.op == "msd" else (COMPILED, TORCH)


# --- Changes: other tiles than the package has, each of a kernel that a device has not judged.

STAGES_4 = "4 stages"
TILES_64 = "tiles of 256 rows x 64 queries"
CHECK_64 = "check in tiles of 64 x 64"
ONE_BLOCK = "one block a multiprocessor"
EACH_PASS = "rows read in each pass"
SLICES = {"slices of 128": 128, "slices of 256": 256}


def _tile(module: str, function: str, of: Callable[..., Any]) -> Any:
    """Return a patch of a function that chooses a tile; ``of`` gets the chosen tile and returns another."""
    import importlib

    owner = importlib.import_module(f"ragsys_kernels.{module}")
    own = getattr(owner, function)
    return mock.patch.object(owner, function, lambda *given, **named: of(own(*given, **named)))


def _search_tile(**how: int) -> Any:
    return _tile("selection.triton.bit_search", "filter_tile", lambda tile: tile._replace(**how))


@contextmanager
def _one_block() -> Iterator[None]:
    """Give a block of a resident pool so much shared memory that only one fits a multiprocessor."""
    patch = _tile(
        "selection.cuda.configuration", "configure_resident", lambda how: how and how._replace(shared=120_000)
    )
    with patch:
        yield


@contextmanager
def _slices(dims: int) -> Iterator[None]:
    """Let the linear form add slices of more dimensions: fewer additions, but truncation shifts the sums more."""

    def longer(tile: Any) -> Any:
        return tile._replace(dims=dims, num_stages=3 if dims == 128 else 2)

    with _tile("scoring.triton.linear", "tile_of", longer):
        yield


CHANGES: dict[str, Callable[[], Any]] = {
    STAGES_4: lambda: _search_tile(num_stages=4),
    TILES_64: lambda: _search_tile(rows=256, queries=64),
    CHECK_64: lambda: _tile(
        "selection.triton.proof", "product_tile", lambda tile: tile._replace(rows=64, queries=64, num_warps=4)
    ),
    ONE_BLOCK: _one_block,
    EACH_PASS: lambda: _tile("selection.cuda.configuration", "configure_resident", lambda how: None),
    **{name: (lambda dims=dims: _slices(dims)) for name, dims in SLICES.items()},
}
