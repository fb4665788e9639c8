"""Other libraries timed on the same pools, where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .._base import warn
from .._base.types import NDArray as Array
from ..selection.problem import unit
from .problem import Problem, select
from .settings import OP
from .work import timed

_QUERIES, _ROUNDS = 64, 3


class Peer(NamedTuple):
    """A call of another library beside ours, on the same pools."""

    name: str
    call: str
    theirs: float  # µs a query
    ours: float  # µs a query, in one batch
    same: float  # share of the picks that are the same, in the same place


def peers(problem: Problem) -> list[Peer]:
    """Time MMR of langchain-core and the strategies of pyversity; none for a corpus of dot products, which they lack.

    All begin with the array of vectors and the rows of each pool.
    """
    if problem.corpus.metric != "cosine":
        return []
    whole = (problem.candidates >= 0).all(axis=1) & problem.queries.any(axis=1)  # some refuse a query of zeros
    some = np.flatnonzero(whole)[:_QUERIES]
    if not len(some):
        return []
    found = []
    for each in _calls(problem):
        try:
            found.append(_raced(problem, some, *each))
        except Exception as error:  # of the peer, on rows that it does not take: the comparison does without it
            warn.warn(f"{OP}: {each[0]} is left out, for {each[1]} raised {error!r}", UserWarning)
    return found


Call = Callable[[Array, Array], Any]  # of a query and its pool (P, D); gives positions


def _calls(problem: Problem) -> Iterator[tuple[str, str, Call, str, dict[str, Any]]]:
    """Yield library, call in words, call, and our rule with its arguments."""
    if importlib.util.find_spec("langchain_core") is not None:
        from langchain_core.vectorstores.utils import maximal_marginal_relevance

        def langchain(query: Array, pool: Array) -> Any:
            return maximal_marginal_relevance(query, list(pool), lambda_mult=0.75, k=problem.k)

        yield "langchain-core", "maximal_marginal_relevance, λ 0.75", langchain, "mmr", {"lambda_d": 0.75}
    if importlib.util.find_spec("pyversity") is not None:
        import pyversity

        def call_of(strategy: str, diversity: float) -> Call:
            function = getattr(pyversity, strategy)
            return lambda query, pool: function(pool, pool @ query, problem.k, diversity=diversity).indices

        for name, diversity, rule, more in (
            ("mmr", 0.25, "mmr", {}),
            ("msd", 0.25, "msd", {}),
            ("dpp", 0.5, "dpp", {}),
            ("ssd", 0.5, "ssd", {}),
            ("cover", 0.5, "coverage", {"kind": "cover"}),
        ):
            given = {"lambda_d": 1 - diversity, **more}
            yield "pyversity", f"{name}, diversity {diversity:g}", call_of(name, diversity), rule, given


def _raced(problem: Problem, some: Array, name: str, text: str, call: Call, rule: str, given: dict[str, Any]) -> Peer:
    queries = unit(problem.queries[some]).astype(np.float32)
    candidates = problem.candidates[some]
    asked = problem.of(some)
    arguments = {**given, **({"lambda_b": 1.0} if problem.biased else {})}
    everything = slice(0, len(some))

    def theirs() -> list[Any]:
        pools = (problem.vectors(pool).astype(np.float32) for pool in candidates)
        return [call(query, pool) for query, pool in zip(queries, pools, strict=True)]

    def ours() -> Array:
        return np.asarray(select(asked, everything, rule, arguments).indices)

    picks = np.take_along_axis(candidates, np.array([np.asarray(each) for each in theirs()], np.int64), axis=1)
    same = float((picks == ours()).mean())
    turns = np.array([(timed(theirs), timed(ours)) for _ in range(_ROUNDS)]) / len(some) * 1e6
    mean = np.median(turns, axis=0)
    return Peer(name, text, float(mean[0]), float(mean[1]), same)
