"""The named problems of the GPU: those that are timed there, and for which bounds are computed without one.

Nothing here needs torch, nor does the ledger of their times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest

from benchmarks.harness import ledger
from benchmarks.suites import scoring_shapes
from benchmarks.suites.scoring_shapes import DTYPES, LONGEST, TOKENS, VOCABULARIES

KEY = ("op", "backend", "shape", "dtype", "device", "contender")
LEDGER = ledger.Ledger(
    ledger.RESULTS / "gpu.csv",
    KEY,
    (
        *KEY,
        "samples",
        "us",  # of one call: median, the mean of the passes
        "iqr_us",
        "spread",  # of two passes: how far apart their times are, as a share of the mean
        "host_us",  # until the call returned, median
        "graph_us",  # of its replay from a CUDA graph, median; empty where the call cannot be captured
        "ratio",  # its time over the library's (the first backend that runs), median over the rounds
        "floor_us",
        "bytes",  # of one read of every pool, or of the logits, or of hidden states and weight
        "floor_bytes",  # of the same, but without what the last-level cache can serve: what the floor copies
        "flops",  # of the plain rule's products
        "max_error",  # of log p, against float64
        "same_picks",  # share of queries with the picks of the library's first backend
        "note",
        "driver",
        "clocks_mhz",  # largest of the multiprocessors and of the memory
        "power_limit_w",
        "commit",
        "versions",
        "date",
        # Of the race (`race.py`).
        "state",  # why a form has no time, or must not win; empty: it is right and timed
        "reason",
        "clock_mhz",  # of the multiprocessors, under this call
        "counts",  # what the device alone knows: queries left after each check, contenders of a query
        "kernels",  # µs of each kernel of a call, by torch.profiler
    ),
)

SIZES = ((20, 4), (100, 10), (1000, 10), (4096, 10))  # candidates and picks
DIMS = (384, 768)
Q, MANY_QUERIES = 2_000, (20_000, 100_000)
# Rows that pools are taken from: many times what a cache holds. A prime: `selection.Problem` relies on it.
N = 2_000_003
WHOLE_Q, WHOLE_N, WHOLE_K = 256, 100_000, 6
LAMBDA_D = 0.75  # the library's default

# Kinds of kernels, those first that are worth their time most.
POOLS_ON_CHIP, STREAMED, WHOLE_CORPUS = "pools on chip", "streamed pools", "whole corpus"
FROM_LOGITS, FEW_HIDDEN, MANY_HIDDEN = "logits", "few hidden states", "many hidden states"
REGIMES = (POOLS_ON_CHIP, FROM_LOGITS, STREAMED, FEW_HIDDEN, WHOLE_CORPUS, MANY_HIDDEN, "vrsd", "search")


@dataclass(frozen=True)
class Pools:
    """Picks out of pools of P rows; ``P`` None: out of the whole corpus."""

    P: int | None
    K: int
    D: int
    dtype: str
    Q: int = Q
    N: int = N
    op: str = "mmr"
    lambda_d: float = LAMBDA_D

    def __str__(self) -> str:
        weight = "" if self.lambda_d == LAMBDA_D else f"-L{self.lambda_d:g}"
        return f"N{self.N}-D{self.D}-P{self.P or 'all'}-K{self.K}-Q{self.Q}{weight}"

    @property
    def regime(self) -> str:
        """Return what kind of kernel does the work."""
        if self.P is None:
            return "search" if self.op == "search" else WHOLE_CORPUS
        return "vrsd" if self.op == "vrsd" else POOLS_ON_CHIP if self.P <= 128 else STREAMED

    @property
    def oddity(self) -> int:
        """Return in how many ways this is not what most users have."""
        unusual = 2 * (self.N != WHOLE_N) if self.P is None else self.Q != Q
        return (self.D != 384) + (self.dtype != "float16") + (self.P not in (100, 1000, None)) + unusual

    def small(self) -> Pools:
        return replace(self, P=self.P and min(self.P, 30), K=min(self.K, 4), D=24, Q=5, N=61)


class Scores(scoring_shapes.Shape):
    """log p of one target a row; ``D`` None: logits are given. The ledger has the type in a column of its own."""

    def __str__(self) -> str:
        return f"T{self.T}-V{self.V}" + ("" if self.D is None else f"-D{self.D}")

    @property
    def regime(self) -> str:
        if self.D is None:
            return FROM_LOGITS
        return FEW_HIDDEN if self.T <= 64 else MANY_HIDDEN

    @property
    def oddity(self) -> int:
        usual = 8 if self.regime == FEW_HIDDEN else 512
        return (self.V != LONGEST) + (self.dtype != "bfloat16") + (usual != self.T)


POOLS = [Pools(P, K, D, dtype) for P, K in SIZES for D in DIMS for dtype in ("float32", "float16")]
VRSD = [replace(pools, op="vrsd") for pools in POOLS if pools.D == 384]
MANY = [Pools(100, 10, 384, dtype, many) for many in MANY_QUERIES for dtype in ("float32", "float16")]
MANY += [Pools(1000, 10, 384, "float16", MANY_QUERIES[0])]
WHOLE = [Pools(None, WHOLE_K, 384, dtype, WHOLE_Q, rows) for rows in (WHOLE_N, N) for dtype in ("float32", "float16")]
SEARCH = [replace(pools, op="search", K=100) for pools in WHOLE]
LOGITS = [Scores(T, V, None, dtype) for V in VOCABULARIES for T in TOKENS for dtype in DTYPES]
HIDDEN = [Scores(T, V, D, dtype) for V, D in VOCABULARIES.items() for T in TOKENS for dtype in DTYPES]
# Shapes of which others have published times: TRL's loss head, Liger's fused linear cross-entropy.
PUBLISHED = [Scores(8192, LONGEST, None, "bfloat16"), Scores(2048, 262_144, 4096, "bfloat16")]
ALL: tuple[Pools | Scores, ...] = (*POOLS, *MANY, *VRSD, *WHOLE, *SEARCH, *LOGITS, *HIDDEN, *PUBLISHED)


def by_value(shapes: Iterable[Pools | Scores]) -> list[Pools | Scores]:
    """Return shapes in the order in which they are worth their time: the most usual one of each regime first."""
    regimes: dict[str, list[Pools | Scores]] = {regime: [] for regime in REGIMES}
    for shape in shapes:
        regimes[shape.regime].append(shape)
    turns = zip_longest(*(sorted(found, key=lambda shape: shape.oddity) for found in regimes.values()))
    return [shape for turn in turns for shape in turn if shape is not None]


def one_of_each(shapes: Iterable[Pools | Scores]) -> list[Pools | Scores]:
    """Return the most usual shape of each regime."""
    found: dict[str, Pools | Scores] = {}
    for shape in by_value(shapes):
        found.setdefault(shape.regime, shape)
    return list(found.values())
