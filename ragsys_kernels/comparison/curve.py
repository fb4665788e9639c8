"""MMR at many λ on the pools of a comparison: the line of its plot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .measures import measured
from .plot import Curve
from .problem import Problem, select

Array = npt.NDArray[Any]

_LAMBDAS = (0.0, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0)


Kept = Callable[[str, Callable[[], dict[str, Array]]], dict[str, Array]]


def curve(problem: Problem, kept: Kept) -> Curve:
    """Return the means of what is plotted over all queries, for λ from 0 to 1."""
    found = kept("_curve", lambda: _curve(problem))
    return Curve(list(_LAMBDAS), {name: values.tolist() for name, values in found.items()})


def _curve(problem: Problem) -> dict[str, Array]:
    names = ["relevance", "similarity", *(["ndcg"] if problem.judged is not None else [])]
    values: dict[str, list[float]] = {}
    for weight in _LAMBDAS:
        picks = select(problem, slice(0, len(problem.queries)), "mmr", {"lambda_d": weight})
        for name, each in measured(problem, np.asarray(picks.indices), names).items():
            values.setdefault(name, []).append(float(np.nanmean(each)) if np.isfinite(each).any() else float("nan"))
    return {name: np.array(each) for name, each in values.items()}
