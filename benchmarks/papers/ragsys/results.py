"""What a retriever gives each question, and the intervals of its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.reporting.statistics import Interval

from ..statistics import bootstrap_named, share_of
from .retrievers import Setting

METRICS = ("MC1", "MC2", "MC3", "DPO")
BESIDE = ("DPO, no reference",)


class Result(NamedTuple):
    """A setting's values for each of Q questions."""

    setting: Setting
    questions: Array  # (Q,) their numbers
    values: dict[str, Array]  # (Q,) float64
    picks: Array | None  # (Q, k) demonstrations, padded with -1
    likeness: Array  # (Q,) mean cosine between the picks; NaN for fewer than two
    pairs: Array  # (Q,) a question's pairs of a correct and an incorrect answer, over their mean


def intervals_of(columns: Mapping[str, Array], pairs: Array, samples: int) -> dict[str, Interval]:
    """Return the intervals of values (Q,) by metric, all drawn together; the values of DPO are weighted with `pairs`.

    A draw's DPO is over its own number of pairs: as a mean over questions it would vary with that number too.
    """
    counts = [pairs if name.startswith("DPO") else np.ones(len(pairs)) for name in columns]
    return bootstrap_named(columns, samples=samples, counts=np.stack(counts, axis=1))


def intervals(result: Result, samples: int) -> dict[str, Interval]:
    """Return the interval of each metric's mean: of MC1, which is a share of the questions, Wilson's."""
    found = intervals_of({name: result.values[name] for name in (*METRICS, *BESIDE)}, result.pairs, samples)
    return found | {"MC1": share_of(result.values["MC1"])}


def likeness_of(result: Result) -> str:
    mean = result.likeness.mean()
    return "" if np.isnan(mean) else f"{mean:.3f}"


def ends(intervals: Sequence[Interval]) -> list[list[float]]:
    """Return how far below and above their means the intervals reach, as matplotlib's error bars are given."""
    return [[one.bar[side][0] for one in intervals] for side in (0, 1)]
