"""The named problems of the GPU: those that are timed there, and for which bounds are computed without one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.suites import scoring_shapes
from benchmarks.suites.scoring_shapes import DTYPES, TOKENS, VOCABULARIES

SIZES = ((20, 4), (100, 10), (1000, 10), (4096, 10))  # candidates and picks
DIMS = (384, 768)
Q = 2_000
WHOLE_Q, WHOLE_N, WHOLE_K = 256, 100_000, 6
HALF_POOL_BYTES = 1 << 28  # half of what the pools of a call have, more than any cache holds


@dataclass(frozen=True)
class Pools:
    """MMR out of pools of P rows; ``P`` None: out of the whole corpus."""

    P: int | None
    K: int
    D: int
    dtype: str
    Q: int = Q
    N: int = WHOLE_N
    op: str = "mmr"

    def __str__(self) -> str:
        return f"N{self.N}-D{self.D}-P{self.P or 'all'}-K{self.K}-Q{self.Q}"

    def small(self) -> Pools:
        return replace(self, P=self.P and min(self.P, 30), K=min(self.K, 4), D=24, Q=5, N=60)


class Scores(scoring_shapes.Shape):
    """log p of one target a row; ``D`` None: logits are given. The ledger has the type in a column of its own."""

    def __str__(self) -> str:
        return f"T{self.T}-V{self.V}" + ("" if self.D is None else f"-D{self.D}")


def _queries(P: int, D: int, dtype: str) -> int:
    """Return how many queries make the pools of a call larger than any cache, at most 2,000."""
    return min(Q, max(64, 2 * HALF_POOL_BYTES // (P * D * (4 if dtype == "float32" else 2))))


POOLS = [
    Pools(P, K, D, dtype, _queries(P, D, dtype)) for P, K in SIZES for D in DIMS for dtype in ("float32", "float16")
]
VRSD = [replace(pools, op="vrsd") for pools in POOLS if pools.D == 384]
WHOLE = [Pools(None, WHOLE_K, 384, dtype, WHOLE_Q) for dtype in ("float32", "float16")]
SEARCH = [replace(pools, op="search", K=100) for pools in WHOLE]
LOGITS = [Scores(T, V, None, dtype) for V in VOCABULARIES for T in TOKENS for dtype in DTYPES]
HIDDEN = [Scores(T, V, D, dtype) for V, D in VOCABULARIES.items() for T in TOKENS for dtype in DTYPES]
ALL: tuple[Pools | Scores, ...] = (*POOLS, *VRSD, *WHOLE, *SEARCH, *LOGITS, *HIDDEN)
