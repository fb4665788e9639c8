"""Whom the library is compared with in selection, each in its best form: float32 unit vectors, one thread.

All start from the same corpus and candidate ids, so a library that takes its pool as one array pays for gathering it.
A peer that is not installed gives no contender.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness.contender import FLOOR, PRODUCT, Contender
from benchmarks.harness.floors import fastest_read
from benchmarks.suites import shapes
from benchmarks.suites.selection import parts_of

FAISS = "FAISS IndexFlatIP"
PEERS = {"pyversity": "pyversity", "LangChain": "langchain_core", "LlamaIndex": "llama_index", "FAISS": "faiss"}


def missing() -> list[str]:
    return [name for name, module in PEERS.items() if importlib.util.find_spec(module) is None]


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


def pyversity_call(problem: shapes.Problem, strategy: str, lambda_d: float) -> list[Contender]:
    """Return pyversity's call of a strategy with the defaults of its own options, if it is installed."""
    if "pyversity" in missing():
        return []
    import pyversity

    call, k, relevance = getattr(pyversity, strategy), problem.shape.K, problem.relevance

    def pick(q: int, pool: np.ndarray) -> Any:
        return call(pool, relevance[q], k, diversity=1 - lambda_d).indices

    return [_one_by_one("pyversity", problem, pick, note="relevance given")]


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
        return [index.search(problem.queries[part], problem.shape.K)[1] for part in parts_of(problem, n)]

    return [Contender(FAISS, run, unit=problem.shape.Q, picks=np.concatenate if picks else None)]


def nearest(problem: shapes.Problem) -> list[Contender]:
    """Return what MMR over the whole corpus is compared with: a search, its product alone, a read of the corpus."""
    return [*faiss_search(problem, picks=False), matrix_product(problem), floor(problem)]


def matrix_product(problem: shapes.Problem) -> Contender:
    """Return every cosine of query and row, and nothing else: NumPy's BLAS into memory that exists already."""
    scores = np.empty((problem.shape.Q, len(problem.rows)), np.float32)

    def run(n: int) -> None:
        for part in parts_of(problem, n):
            np.matmul(problem.queries[part], problem.rows.T, out=scores)

    return Contender(PRODUCT, run, unit=problem.shape.Q)


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
