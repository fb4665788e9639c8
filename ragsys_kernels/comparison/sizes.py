"""How large the pool should be: how often a rule picks out of pools what it would pick out of the whole corpus."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from .._base.types import NDArray as Array
from .problem import Problem, select
from .settings import TOP, Setting
from .store import Kept, file_name

_RATIOS = (0.25, 0.5, 1, 2, 4)  # of the pool
_RULES = ("mmr", "vrsd")  # which have exact selection from all rows that costs little more than a search


class Sizes(NamedTuple):
    """Of each setting and size of the pool: the share of queries with the picks of the whole corpus."""

    queries: int
    sizes: list[int]
    shares: dict[str, list[float]]  # by the name of the setting


def sizes(problem: Problem, settings: Sequence[Setting], queries: int, kept: Kept) -> Sizes | None:
    """Compare picks out of pools of several sizes with those of the whole corpus, for some of the queries.

    None where pools are of another retriever, or nothing is to be compared.
    """
    asked = [
        each for each in settings if each.name != TOP and each.rule in _RULES and set(each.arguments) <= {"lambda_d"}
    ]
    if problem.outside is None or not queries or not asked:
        return None
    pool, rows = problem.candidates.shape[1], len(problem.corpus)
    tried = sorted({size for size in (round(pool * ratio) for ratio in _RATIOS) if problem.k < size < rows})
    some = np.unique(np.linspace(0, len(problem.queries) - 1, queries).round().astype(np.int64))
    if not tried:
        return None
    shares = {
        setting.name: kept(f"_sizes-{len(some)}-{file_name(setting)}", partial(_shares, problem, some, setting, tried))
        for setting in asked
    }
    return Sizes(len(some), tried, {name: each["shares"].tolist() for name, each in shares.items()})


def _shares(problem: Problem, some: Array, setting: Setting, tried: list[int]) -> dict[str, Array]:
    part = problem.of(some)
    ranked = problem.corpus.search(
        part.queries, max(tried), lambda_b=problem.lambda_b, index=False, num_threads=problem.num_threads
    ).indices

    def picks(of: Problem, whole: bool = False) -> Array:
        """Return the picks of each query in ascending order."""
        found = select(of, slice(0, len(some)), setting.rule, setting.arguments, whole=whole)
        return np.sort(np.asarray(found.indices), axis=1)

    best = picks(part, whole=True)
    shares = [(picks(part.with_pools(ranked[:, :size])) == best).all(axis=1).mean() for size in tried]
    return {"shares": np.array(shares)}
