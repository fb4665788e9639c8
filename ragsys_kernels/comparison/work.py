"""One method at work on all queries: its picks, what they are worth, and its time beside that of top-k."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .._base.types import NDArray as Array
from .measures import measured
from .problem import Problem, random_picks, select
from .settings import RANDOM, Setting

_BLOCKS = 20  # of queries: an interval of the time is over these
_LEAST = 16  # queries in a block
_ROUNDS = 3


class Outcome(NamedTuple):
    """What a method came to."""

    indices: Array  # (Q, K) int64
    values: dict[str, Array]  # measures by name, each (Q,) float64
    seconds: Array  # (B, 2) float64, of a query: of this method and of top-k in turns with it, for each block


def run(problem: Problem, setting: Setting, top: Setting) -> Outcome:
    """Let a method choose for all queries, measure its picks and its time."""
    everything = slice(0, len(problem.queries))
    if setting.rule == RANDOM:
        indices = random_picks(problem, everything)
        return Outcome(indices, measured(problem, indices), np.full((1, 2), np.nan))
    picks = select(problem, everything, setting.rule, {**setting.arguments, **_certificate(problem, setting)})
    indices = np.asarray(picks.indices)
    values = measured(problem, indices)
    if picks.certified is not None:
        values["certified"] = np.asarray(picks.certified, np.float64)
    return Outcome(indices, values, _seconds(problem, setting, top))


def _certificate(problem: Problem, setting: Setting) -> dict[str, Any]:
    """Return the argument that asks for proofs, where there can be one: of MMR by the value that pools were made by."""
    provable = setting.rule == "mmr" and "lambda_b" not in setting.arguments and problem.corpus.metric == "cosine"
    return {} if problem.outside is None or not provable else {"outside": problem.outside}


def blocks(size: int) -> list[slice]:
    """Return parts of so many queries, of nearly one size."""
    number = max(1, min(_BLOCKS, size // _LEAST))
    ends = np.linspace(0, size, number + 1).astype(int).tolist()
    return [slice(begin, end) for begin, end in pairwise(ends)]


def timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _seconds(problem: Problem, setting: Setting, top: Setting) -> Array:
    """Time blocks of queries in turns with top-k, so that what slows the machine slows both."""
    found = []
    for part in blocks(len(problem.queries)):
        calls = [partial(select, problem, part, one.rule, one.arguments) for one in (setting, top)]
        turns = [[timed(call) for call in calls] for _ in range(_ROUNDS)]
        found.append(np.median(turns, axis=0) / (part.stop - part.start))
    return np.array(found)
