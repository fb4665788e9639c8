"""Selection: its ledger, its race, and the library as it is timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import gate, ledger
from benchmarks.harness.contender import OURS, Contender
from benchmarks.harness.race import Race, Turn, wall
from benchmarks.suites import shapes
from ragsys_kernels import testing

KEY = ("op", "backend", "isa", "shape", "dtype", "lambda_d", "hardware", "contender")
LEDGER = ledger.Ledger(
    ledger.RESULTS / "ledger.csv",
    KEY,
    (
        *KEY,
        "N",
        "D",
        "P",  # empty: the whole corpus
        "K",
        "Q",  # queries of one call
        "duplicates",  # 1: half of each pool are near-duplicates
        "threads",
        "rounds",
        "queries",  # timed in each round
        "us_per_query",  # median over the rounds
        "iqr_us",
        "ratio",  # its time over the library's (float32, relevance computed), median over the rounds
        "floor_us",  # the read floor of its storage type in the same rounds
        "same_picks",  # share of queries with the library's float32 picks
        "products",  # dot products a query
        "dense_products",  # of the dense rule
        "bytes",  # of corpus rows read a query
        "note",
        "commit",
        "versions",
        "date",
    ),
)

GIVEN = f"{OURS}, relevance given"
DENSE = f"{OURS}, dense rule"


TURN_SECONDS = 0.03  # a contender's turn takes about so long
COUNTED = 64  # queries whose dot products are counted
_REPLAYED = 200_000  # items of all pools that are replayed in float64, of 32 queries at most
_COMPARED = 1_000_000  # items of all pools that the dense rule selects from, of 256 queries at most


class Selecting(Race):
    """A race for picks: turns take the same number of queries each, several times where they are soon done."""

    ledger = LEDGER

    def __init__(
        self,
        op: str,
        problem: shapes.Problem,
        contenders: Sequence[Contender],
        lambda_d: float | None = None,
        *,
        queries: int | None = None,  # of a turn; None: as many as take about TURN_SECONDS
        **options: Any,
    ) -> None:
        super().__init__(op, problem, contenders, **options)
        self.lambda_d, self.queries = lambda_d, queries
        self._first: np.ndarray | None = None  # the library's picks

    def facts(self, contender: Contender) -> dict[str, Any]:
        """Assert that the picks are right; return the share of queries that have the first contender's.

        The library's own selections are replayed in float64, and its picks must be the dense rule's. A peer must follow
        the rule that it states, in float64 up to near-ties. A search must find rows as near as the nearest.
        """
        if contender.picks is None:
            return {}
        problem, pool = self.problem, self.problem.shape.P or self.problem.shape.N
        replayed = min(max(_REPLAYED // pool, 1), 32)
        compared = min(_COMPARED // pool, 256) if contender.name.startswith(OURS) else 32
        picks = contender.picks(contender.run(max(contender.unit, compared)))[:compared]
        if self.op == "search":
            rows = problem.corpus(self.key(contender)[1]).vectors(slice(None))
            gate.nearest(contender.name, problem.queries[:replayed] @ rows.T, picks[:replayed])
        elif contender.arguments is not None:
            gate.library(self.op, contender, picks, replayed)
        elif contender.rule is not None:
            for q in range(replayed):
                queried = problem.candidates[q], problem.rows, problem.queries[q]
                gate.peer(contender, q, *queried, picks[q], self.lambda_d)
        self._first = picks if self._first is None else self._first
        both = min(len(picks), len(self._first))
        return {"same_picks": float((picks[:both] == self._first[:both]).all(axis=1).mean())}

    def columns(self, contender: Contender) -> dict[str, Any]:
        shape = self.problem.shape
        sizes = {name: getattr(shape, name) for name in ("N", "D", "P", "K", "Q")}
        return {
            **sizes,
            "lambda_d": self.lambda_d,
            "duplicates": int(shape.duplicates),
            **_work(self.op, contender, shape),
        }

    def turn(self, contender: Contender, quick: bool) -> Turn:
        if self.queries is not None:
            return _turn(contender, self.queries)
        seconds = 0.0 if quick else TURN_SECONDS
        most = max(shapes.HELD_OUT // contender.unit, 1) * contender.unit
        count = contender.unit
        while (taken := wall(partial(contender.run, count))[0]) < seconds / 4 and count < most:
            count = min(4 * count, most)
        wanted = int(count * seconds / taken) // contender.unit * contender.unit
        return _turn(contender, min(max(wanted, contender.unit), most), max(wanted // most, 1))

    def rounds_of(self, turns: Sequence[Turn]) -> int:
        return self.rounds if self.queries is not None else super().rounds_of(turns)


def _turn(contender: Contender, queries: int, passes: int = 1) -> Turn:
    def run() -> None:
        for _ in range(passes):
            contender.run(queries)

    return Turn(run, queries * passes)


def _work(op: str, contender: Contender, shape: shapes.Shape) -> dict[str, float]:
    """Return dot products and bytes a query: counted for the library, by definition for its dense rule."""
    if contender.arguments is None or not contender.name.startswith(OURS) or contender.name == DENSE:
        return {}
    count = min(COUNTED, shape.Q) if shape.P else 8
    work = testing.selection_work(op, contender.arguments(count))[1]
    return {
        "products": work.products / count,
        "dense_products": work.dense_products / count,
        "bytes": work.bytes_read / count,
    }


def parts_of(problem: shapes.Problem, n: int) -> Iterator[slice]:
    """Yield n queries, ``Q`` a call; a stream longer than the queries at hand takes them again."""
    size = min(problem.shape.Q, shapes.CALL)
    for begin in range(0, n, size):
        first = begin % (len(problem.queries) // size * size)
        yield slice(first, first + min(size, n - begin))


def ours(
    op: str,
    problem: shapes.Problem,
    lambda_d: float | None = None,
    *,
    dtype: str = "float32",
    given: bool = False,
    threads: int = 1,
    **options: Any,
) -> Contender:
    """Return the library on a corpus and candidate ids; with ``given`` it gets the relevance too, as pyversity must.

    ``options`` are those of the rule alone.
    """
    corpus = problem.corpus(dtype)
    method = getattr(rk, op)

    def arguments(part: slice | int) -> dict[str, Any]:
        part = part if isinstance(part, slice) else slice(part)
        found: dict[str, Any] = {
            "queries": problem.queries[part],
            "embeddings": corpus,
            "k": problem.shape.K,
            **options,
        }
        if problem.candidates is not None:
            found["candidates"] = problem.candidates[part]
        if given:
            found["relevance"] = problem.relevance[part]
        if lambda_d is not None:
            found["lambda_d"] = lambda_d
        return found

    @lru_cache(maxsize=4)
    def calls(n: int) -> list[dict[str, Any]]:
        return [arguments(part) for part in parts_of(problem, n)]

    def run(n: int) -> list[rk.Selection]:
        if n > shapes.CALL:  # a stream: nothing is kept
            for call in calls(n):
                method(**call, num_threads=threads)
            return []
        return [method(**call, num_threads=threads) for call in calls(n)]

    return Contender(
        (GIVEN if given else OURS) + (f", {threads} threads" if threads > 1 else ""),
        run,
        unit=problem.shape.Q if problem.shape.Q < shapes.HELD_OUT else 1,
        dtype=dtype,
        threads=threads,
        picks=lambda results: np.concatenate([result.indices for result in results]),
        arguments=arguments,
    )


def library(op: str, problem: shapes.Problem, lambda_d: float, **options: Any) -> list[Contender]:
    """Return the library without relevance and with it, as pyversity has it."""
    return [ours(op, problem, lambda_d, **options), ours(op, problem, lambda_d, given=True, **options)]


def dense(op: str, problem: shapes.Problem, lambda_d: float | None = None) -> Contender:
    """Return the library's own dense rule: every dot product of the definition."""
    arguments = ours(op, problem, lambda_d).arguments
    assert arguments is not None

    def run(n: int) -> rk.Selection:
        return testing.selection_work(op, arguments(n), bounds="dense")[0]

    return Contender(DENSE, run, unit=1, picks=lambda result: result.indices)


def search(problem: shapes.Problem, dtype: str = "float32") -> Contender:
    corpus, shape = problem.corpus(dtype), problem.shape

    def run(n: int) -> list[np.ndarray]:
        return [corpus.search(problem.queries[part], shape.K, num_threads=1)[0] for part in parts_of(problem, n)]

    return Contender(OURS, run, unit=shape.Q, dtype=dtype, picks=np.concatenate)
