"""Macro scores of classifiers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._base import tables
from .._base.checks import shown
from .._base.types import ArrayLike
from .._base.types import NDArray as Array
from . import _values


class MacroScores(NamedTuple):
    """Means over the classes."""

    precision: float
    recall: float
    f1: float


def macro_scores(labels: ArrayLike, predictions: ArrayLike) -> MacroScores:
    """Return precision, recall and F1 of a classifier, each the mean over the classes (adaptive ICL).

    ::

        precision_c = |label = c and prediction = c| / |prediction = c|
        recall_c    = |label = c and prediction = c| / |label = c|
        F1_c        = 2 precision_c recall_c / (precision_c + recall_c)

    with 0 for 0 / 0, over the classes that occur among labels or predictions. The mean of the F1_c is not the F1 of the
    means.

    Parameters
    ----------
    labels, predictions : (Q,) integers, or strings

    Raises
    ------
    ValueError
        Unequal shapes, or no item.

    Examples
    --------
    >>> from ragsys_kernels.metrics import macro_scores
    >>> macro_scores([0, 0, 1, 1], [0, 0, 1, 0]).recall
    0.75
    """
    op = "macro_scores"
    truth, predicted = _labels(op, "labels", labels), _labels(op, "predictions", predictions)
    if truth.ndim != 1 or truth.shape != predicted.shape:
        raise ValueError(
            f"{op}: labels and predictions must be of one shape (Q,), got {truth.shape}, {predicted.shape}"
        )
    if not len(truth):
        raise ValueError(f"{op}: labels must be at least one, got none")
    if len({kind if kind in "US" else "" for kind in (truth.dtype.kind, predicted.dtype.kind)}) > 1:
        raise TypeError(
            f"{op}: labels and predictions must be of one kind, got dtypes {truth.dtype} and {predicted.dtype}"
        )
    classes = np.unique(np.concatenate((truth, predicted)))[:, None]
    both = ((classes == truth) & (classes == predicted)).sum(axis=1)
    of_label, of_prediction = (classes == truth).sum(axis=1), (classes == predicted).sum(axis=1)
    return MacroScores(
        precision=float((both / np.maximum(of_prediction, 1)).mean()),
        recall=float((both / np.maximum(of_label, 1)).mean()),
        f1=float((2 * both / (of_label + of_prediction)).mean()),
    )


def _labels(op: str, name: str, values: Any) -> Array:
    """Check names of classes: strings, or numbers that are not NaN."""
    listed = isinstance(values, (list, tuple))
    if tables.holds_text(values) or (listed and any(isinstance(each, str) for each in values)):
        array = tables.texts(values)
        bad = [each for each in array.flat if not isinstance(each, str)]
        if bad:
            raise TypeError(f"{op}: {name} must be all integers or all strings, got {shown(bad[0])} among strings")
        return array.astype(str)
    try:
        array = np.asarray(values) if listed else values
    except ValueError:  # ragged: refused below
        array = values
    if isinstance(array, np.ndarray) and array.dtype.kind in "OUS" and not isinstance(array, np.ma.MaskedArray):
        array = np.array(array.tolist())
        if array.dtype.kind in "US":
            return array
    array = _values.array(op, name, array, "iufb", "integers or strings")
    if (array != array).any():
        raise ValueError(f"{op}: {name} must not be NaN")
    return array
