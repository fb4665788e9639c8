"""MMR at every λ on the pools of a comparison: the line of its plot, and where on it one may stop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import ragsys_kernels as rk

from .._base.types import NDArray as Array
from .measures import measured
from .problem import Problem
from .store import Kept

_BLOCK = 16  # queries whose segments are measured at a time


class Curve(NamedTuple):
    """MMR as a function of λ_d: means over the queries, exact for each λ_d."""

    ends: Array  # (B,) float64, ascending; the last is 1
    values: dict[str, Array]  # by measure, (B,): the mean for the λ_d up to that end and above the one before
    selections: float  # mean number of different selections of a query
    best: dict[str, float]  # by measure: the mean of the largest value of each query at any λ_d

    def least(self, measure: str, bound: float) -> float | None:
        """Return the least λ_d from which on the mean never is below a bound; None where it is at λ_d = 1."""
        below = np.flatnonzero(self.values[measure] < bound)
        if not len(below):
            return 0.0
        return None if below[-1] == len(self.ends) - 1 else float(self.ends[below[-1]])

    def highest(self, measure: str) -> tuple[float, float]:
        """Return the largest λ_d at which the mean is highest, and the mean."""
        values = self.values[measure]
        place = len(values) - 1 - int(np.argmax(values[::-1]))
        return float(self.ends[place]), float(values[place])


def curve(problem: Problem, useful: str | None, kept: Kept) -> Curve:
    """Return the means of relevance, similarity and, with judgements, of what says how useful picks are."""
    names = ["relevance", "similarity", *([useful] if useful else [])]
    found = kept("_path", lambda: _path(problem, names))
    return Curve(
        found["ends"],
        {name: found[f"mean {name}"] for name in names},
        float(found["selections"]),
        {name: float(found[f"best {name}"]) for name in names},
    )


def _path(problem: Problem, names: list[str]) -> dict[str, Array]:
    pools: dict[str, Any] = {"candidates": problem.candidates, "lambda_b": problem.lambda_b}
    path = rk.mmr_path(problem.queries, problem.corpus, problem.k, num_threads=problem.num_threads, **pools)
    starts = path.cu_segments[:-1]
    of_query = np.repeat(np.arange(len(starts)), path.num_segments)
    values = _measured(problem, path, of_query, names)
    last = np.zeros(len(of_query), np.bool_)
    last[path.cu_segments[1:] - 1] = True
    inner = np.flatnonzero(~last)
    order = inner[np.argsort(path.high[inner], kind="stable")]
    found = {"selections": np.array(path.num_segments.mean())}
    for name, each in values.items():
        there = ~np.isnan(each[starts])  # a query without a value has none at any λ
        number = max(1, int(there.sum()))
        clean = np.where(np.isnan(each), 0.0, each)
        # From the first segments on, each end adds what the next segment of its query differs by.
        steps = (clean[order + 1] - clean[order]) / number
        means = clean[starts].sum() / number + np.concatenate([[0.0], np.cumsum(steps)])
        ends = np.append(path.high[order], 1.0)
        place = np.flatnonzero(np.append(ends[1:] != ends[:-1], True))  # the last of equal ends stands for all
        before = np.concatenate([[0], place[:-1] + 1])
        found["ends"], found[f"mean {name}"] = ends[place], means[before]
        found[f"best {name}"] = np.array(np.maximum.reduceat(clean, starts)[there].mean() if there.any() else np.nan)
    return found


def _measured(problem: Problem, path: Any, of_query: Array, names: list[str]) -> dict[str, Array]:
    """Return the measures of every segment."""
    found: dict[str, list[Array]] = {name: [] for name in names}
    for begin in range(0, len(problem.queries), _BLOCK):
        stop = min(begin + _BLOCK, len(problem.queries))
        part = slice(int(path.cu_segments[begin]), int(path.cu_segments[stop]))
        repeated = problem.of(of_query[part])
        each = measured(repeated, path.indices[part], names)
        for name in names:
            found[name].append(each[name])
    return {name: np.concatenate(each) for name, each in found.items()}
