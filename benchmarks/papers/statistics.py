"""Confidence intervals of the papers' tables: Wilson's of a share, and by the bootstrap of means, means over classes
and F1."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.reporting.statistics import Interval, bootstrap_ratios, columns_of, drawn_counts, intervals

K = TypeVar("K")


def wilson(successes: int, total: int, *, level: float = 0.95) -> Interval:
    """Return a share with Wilson's score interval, which holds within [0, 1] and where all or none succeed.

    Parameters
    ----------
    successes, total : int
        0 <= successes <= total, total at least 1.
    level : float
        Between 0 and 1.

    Notes
    -----
    Source: Wilson, Probable inference, the law of succession, and statistical inference (1927); without the
    correction for continuity.
    """
    if not 0 <= successes <= total or total < 1:
        raise ValueError(f"wilson: successes must be within [0, total] and total above 0, got {successes} of {total}")
    if not 0 < level < 1:
        raise ValueError(f"wilson: level must be within (0, 1), got {level}")
    share, z = successes / total, NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * (share * (1 - share) / total + (z / (2 * total)) ** 2) ** 0.5
    low = 0.0 if successes == 0 else middle - half  # rounding would leave 1e-17
    return Interval(share, low, 1.0 if successes == total else middle + half)


def share_of(values: Any) -> Interval:
    """Return the share of the true ones among values (Q,) of 0 and 1, with Wilson's interval."""
    found = np.asarray(values, np.float64)
    return wilson(int(found.sum()), len(found))


def bootstrap_means(columns: Any, *, samples: int = 10_000, level: float = 0.95, seed: int = 0) -> list[Interval]:
    """Return intervals of the mean of each column, by `bootstrap_ratios` with counts of 1."""
    return bootstrap_ratios(columns, np.ones(len(columns)), samples=samples, level=level, seed=seed)


def bootstrap_named(columns: Mapping[K, Array], *, samples: int, counts: Any = None) -> dict[K, Interval]:
    """Return intervals of columns by name, all drawn together: of their means, or of their ratios to counts."""
    stacked = np.stack([*columns.values()], axis=1)
    counts = np.ones(len(stacked)) if counts is None else counts
    return dict(zip(columns, bootstrap_ratios(stacked, counts, samples=samples), strict=True))


def bootstrap_class_means(
    columns: Any, labels: Any, *, samples: int = 10_000, level: float = 0.95, seed: int = 0
) -> list[Interval]:
    """Return intervals as `bootstrap_means`, of the mean over classes of each column's mean within the class.

    With 1 for a right answer as values this is balanced accuracy. Rows are drawn within their class, which `labels`
    (Q,) have, of any type.
    """
    op = "bootstrap_class_means"
    values, classes = columns_of(op, columns, samples, level), np.asarray(labels)
    if classes.shape != values.shape[:1]:
        raise ValueError(f"{op}: labels must be of shape {values.shape[:1]}, got {classes.shape}")
    parts = [values[classes == one] for one in np.unique(classes)]
    drawn = [
        np.concatenate([counts @ part / len(part) for counts in drawn_counts(len(part), samples, (seed, number))])
        for number, part in enumerate(parts)
    ]
    means = np.mean([part.mean(axis=0) for part in parts], axis=0)
    return intervals(means, np.mean(drawn, axis=0), level, len(values) - len(parts) + 1)  # a mean is lost a class


def bootstrap_f1(
    labels: Any, predictions: Any, *, samples: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[list[Interval], list[list[Interval]]]:
    """Return intervals as `bootstrap_means`, of the macro F1 of S classifiers and of the differences of each two.

    Labels are integers (Q,), predictions (Q, S); ``differences[i][j]`` is of the F1 of i minus that of j. The classes
    of a classifier are those of `metrics.macro_scores`, in every draw; one that a draw has neither among labels nor
    predictions counts 0 there.
    """
    truth, predicted = np.asarray(labels), np.asarray(predictions)
    if truth.ndim != 1 or predicted.ndim != 2 or len(truth) != len(predicted) or not len(truth):
        raise ValueError(
            f"bootstrap_f1: labels and predictions must be (Q,) and (Q, S), Q at least 1, got {truth.shape} and "
            f"{predicted.shape}"
        )
    classes = np.unique(np.concatenate((truth, predicted.ravel())))
    of_label = (truth[:, None] == classes).astype(np.float64)  # (Q, C)
    of_prediction = (predicted[:, :, None] == classes).astype(np.float64)  # (Q, S, C)
    occurs = (of_label.sum(axis=0) + of_prediction.sum(axis=0)) > 0  # (S, C)
    parts = np.stack([2 * of_label[:, None] * of_prediction, of_label[:, None] + of_prediction])  # (2, Q, S, C)

    def f1(counts: Array) -> Array:
        """Return the scores (B, S) for counts (B, Q) of the items."""
        both, either = (np.tensordot(counts, part, axes=(1, 0)) for part in parts)
        scores: Array = (both / np.maximum(either, 1)).sum(axis=2) / occurs.sum(axis=1)
        return scores

    whole = f1(np.ones((1, len(truth))))[0]
    drawn = np.concatenate([f1(counts) for counts in drawn_counts(len(truth), samples, seed)])
    number = range(predicted.shape[1])
    differences = [intervals(whole[i] - whole, drawn[:, [i]] - drawn, level, len(truth)) for i in number]
    return intervals(whole, drawn, level, len(truth)), differences
