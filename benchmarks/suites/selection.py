"""Everything that is timed for picks, each in its best form: float32 rows that are unit vectors already, one thread.

All start from the same corpus and candidate ids, so a library that takes its pool as one array pays for gathering it.
A peer that is not installed gives no contender.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import gate, ledger
from benchmarks.harness.contender import FLOOR, OURS, PRODUCT, Contender
from benchmarks.harness.floors import fastest_read
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
FAISS = "FAISS IndexFlatIP"
PEERS = {"pyversity": "pyversity", "LangChain": "langchain_core", "LlamaIndex": "llama_index", "FAISS": "faiss"}


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


def missing() -> list[str]:
    return [name for name, module in PEERS.items() if importlib.util.find_spec(module) is None]


def _calls(problem: shapes.Problem, n: int) -> Iterator[slice]:
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
) -> Contender:
    """Return the library on a corpus and candidate ids; with ``given`` it gets the relevance too, as pyversity must."""
    corpus = problem.corpus(dtype)
    method = getattr(rk, op)

    def arguments(part: slice | int) -> dict[str, Any]:
        part = part if isinstance(part, slice) else slice(part)
        found: dict[str, Any] = {"queries": problem.queries[part], "embeddings": corpus, "k": problem.shape.K}
        if problem.candidates is not None:
            found["candidates"] = problem.candidates[part]
        if given:
            found["relevance"] = problem.relevance[part]
        if lambda_d is not None:
            found["lambda_d"] = lambda_d
        return found

    @lru_cache(maxsize=4)
    def calls(n: int) -> list[dict[str, Any]]:
        return [arguments(part) for part in _calls(problem, n)]

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


def library(op: str, problem: shapes.Problem, lambda_d: float) -> list[Contender]:
    """Return the library without relevance and with it, as pyversity has it."""
    return [ours(op, problem, lambda_d), ours(op, problem, lambda_d, given=True)]


def dense(op: str, problem: shapes.Problem, lambda_d: float | None = None) -> Contender:
    """Return the library's own dense rule: every dot product of the definition."""
    arguments = ours(op, problem, lambda_d).arguments
    assert arguments is not None

    def run(n: int) -> rk.Selection:
        return testing.selection_work(op, arguments(n), bounds="dense")[0]

    return Contender(DENSE, run, unit=1, picks=lambda result: result.indices)


def _one_by_one(
    name: str, problem: shapes.Problem, pick: Callable[[int, np.ndarray], Any], **options: Any
) -> Contender:
    """Return a peer that takes one query: ``pick(q, pool)`` gives positions in the gathered pool (P, D)."""
    rows, candidates = problem.rows, problem.candidates
    assert candidates is not None

    def run(n: int) -> list[Any]:
        return [pick(q, rows[candidates[q]]) for q in range(n)]

    def picks(results: list[Any]) -> np.ndarray:
        return np.take_along_axis(candidates[: len(results)], np.asarray(results, np.int64), 1)

    return Contender(name, run, unit=1, picks=picks, **options)


def mmr_peers(problem: shapes.Problem, lambda_d: float) -> list[Contender]:
    absent = missing()
    k, queries, relevance = problem.shape.K, problem.queries, problem.relevance
    found = []
    if "pyversity" not in absent:
        from pyversity import mmr

        def with_pyversity(q: int, pool: np.ndarray) -> Any:
            return mmr(pool, relevance[q], k, diversity=1 - lambda_d, normalize=False).indices

        note = "relevance given; negative similarities count as 0"
        found.append(_one_by_one("pyversity", problem, with_pyversity, rule="max, at least 0", note=note))
    if "LangChain" not in absent:
        from langchain_core.vectorstores.utils import maximal_marginal_relevance

        def with_langchain(q: int, pool: np.ndarray) -> Any:
            return maximal_marginal_relevance(queries[q], pool, lambda_mult=lambda_d, k=k)

        found.append(_one_by_one("LangChain", problem, with_langchain, rule="max"))
    if "LlamaIndex" not in absent:
        from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings

        def with_llama_index(q: int, pool: np.ndarray) -> Any:
            return get_top_k_mmr_embeddings(queries[q], list(pool), similarity_top_k=k, mmr_threshold=lambda_d)[1]

        note = "list of arrays; another rule: redundancy with the last pick only"
        found.append(_one_by_one("LlamaIndex", problem, with_llama_index, rule="last", note=note))
    return found


_CALLS = 64  # queries of single calls; their pools are held as lists too, 32 bytes a number


def drop_in(peer: str) -> str:
    """Return the name of our call in the place of a peer's."""
    return f"drop-in for {peer}"


def drop_ins(problem: shapes.Problem, lambda_d: float) -> list[Contender]:
    """Return each peer's call and ours in its place, with the same arguments: arrays, and lists, made beforehand."""
    absent = missing()
    k, queries, relevance = problem.shape.K, problem.queries, problem.relevance
    assert problem.candidates is not None
    candidates = problem.candidates[:_CALLS]
    arrays = [problem.rows[ids] for ids in candidates]
    lists, asked = [pool.tolist() for pool in arrays], queries[:_CALLS].tolist()
    found = []

    def picks(results: list[Any]) -> np.ndarray:
        return np.take_along_axis(candidates[: len(results)], np.asarray(results, np.int64)[: len(candidates)], 1)

    def add(name: str, call: Callable[[int], Any], rule: str) -> None:
        def run(n: int) -> list[Any]:
            return [call(q % len(candidates)) for q in range(n)]

        found.append(Contender(name, run, unit=1, picks=picks, rule=rule))

    if "LangChain" not in absent:
        from langchain_core.vectorstores import utils

        from ragsys_kernels.integrations import langchain

        for name, module in (("LangChain", utils), (drop_in("LangChain"), langchain)):
            mmr = module.maximal_marginal_relevance
            add(f"{name}, arrays", lambda q, mmr=mmr: mmr(queries[q], arrays[q], lambda_d, k), "max")
            add(f"{name}, lists", lambda q, mmr=mmr: mmr(queries[q], lists[q], lambda_d, k), "max")
    if "LlamaIndex" not in absent:
        from llama_index.core.indices.query import embedding_utils

        from ragsys_kernels.integrations import llama_index

        pools = [list(pool) for pool in arrays]  # LlamaIndex refuses an array
        for name, module in (("LlamaIndex", embedding_utils), (drop_in("LlamaIndex"), llama_index)):
            top = partial(module.get_top_k_mmr_embeddings, similarity_top_k=k, mmr_threshold=lambda_d)
            add(f"{name}, arrays", lambda q, top=top: top(queries[q], pools[q])[1], "last")
            add(f"{name}, lists", lambda q, top=top: top(asked[q], lists[q])[1], "last")
    if "pyversity" not in absent:
        import pyversity as theirs

        from ragsys_kernels.integrations import pyversity

        for name, module in (("pyversity", theirs), (drop_in("pyversity"), pyversity)):
            mmr, rule = module.mmr, "max, at least 0"
            add(f"{name}, arrays", lambda q, mmr=mmr: mmr(arrays[q], relevance[q], k, 1 - lambda_d).indices, rule)
    return found


def vrsd_in_numpy(problem: shapes.Problem) -> Contender:
    """Return the rule with a running sum, one matrix-vector product a pick."""
    k, queries = problem.shape.K, problem.queries

    def pick(q: int, pool: np.ndarray) -> list[int]:
        relevance = pool @ queries[q]
        picks = [int(relevance.argmax())]
        along, square, products = relevance[picks[0]], np.float32(1), pool @ pool[picks[0]]
        for _ in range(1, k):
            values = (along + relevance) / np.sqrt(square + 2 * products + 1)
            values[picks] = -np.inf
            best = int(values.argmax())
            picks.append(best)
            along += relevance[best]
            square += 2 * products[best] + 1
            products += pool @ pool[best]
        return picks

    return _one_by_one("NumPy", problem, pick, rule="sum")


def faiss_search(problem: shapes.Problem, picks: bool) -> list[Contender]:
    """Return the K nearest rows by an exact FAISS index, if it is installed; with ``picks`` they are to be ours."""
    if "FAISS" in missing():
        return []
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(problem.shape.D)
    index.add(problem.rows)

    def run(n: int) -> list[np.ndarray]:
        return [index.search(problem.queries[part], problem.shape.K)[1] for part in _calls(problem, n)]

    return [Contender(FAISS, run, unit=problem.shape.Q, picks=np.concatenate if picks else None)]


def nearest(problem: shapes.Problem) -> list[Contender]:
    """Return what MMR over the whole corpus is compared with: a search, its product alone, a read of the corpus."""
    return [*faiss_search(problem, picks=False), matrix_product(problem), floor(problem)]


def matrix_product(problem: shapes.Problem) -> Contender:
    """Return every cosine of query and row, and nothing else: NumPy's BLAS into memory that exists already."""
    scores = np.empty((problem.shape.Q, len(problem.rows)), np.float32)

    def run(n: int) -> None:
        for part in _calls(problem, n):
            np.matmul(problem.queries[part], problem.rows.T, out=scores)

    return Contender(PRODUCT, run, unit=problem.shape.Q)


def search(problem: shapes.Problem, dtype: str = "float32") -> Contender:
    corpus, shape = problem.corpus(dtype), problem.shape

    def run(n: int) -> list[np.ndarray]:
        return [corpus.search(problem.queries[part], shape.K, num_threads=1)[0] for part in _calls(problem, n)]

    return Contender(OURS, run, unit=shape.Q, dtype=dtype, picks=np.concatenate)


def floor(problem: shapes.Problem, dtype: str = "float32") -> Contender:
    """Return one streaming read of as many bytes as the pools have: the corpus's own size of memory, round and round.

    With the whole corpus as the pool it is one read of the corpus for each call.
    """
    shape, item = problem.shape, np.dtype("uint16" if dtype == "bfloat16" else dtype).itemsize
    memory = problem.rows.reshape(-1)[: problem.rows.size * item // 8 * 2]
    row_bytes = shape.D * item
    bytes_of = row_bytes * (len(problem.rows) / shape.Q if shape.P is None else shape.P)
    name, read = fastest_read()

    def run(n: int) -> None:
        floats = int(n * bytes_of) // 8 * 2
        while floats > 0:
            read(memory[:floats])
            floats -= memory.size

    return Contender(FLOOR, run, dtype=dtype, unit=shape.Q if shape.P is None else 1, note=f"by {name}")
