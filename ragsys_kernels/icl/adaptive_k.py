"""How many demonstrations a query gets: by query performance prediction (QPP-AICL), or learnt (SAICL).

Source: Parry, Ganguly and Chandra, '"In-Context Learning" or: How I learned to stop worrying and love "Applied
Information Retrieval"' (SIGIR 2024), Algorithm 2 and section 6.2.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from .._base.checks import whole
from .._base.extras import needed
from .._base.types import NDArray as Array

BestK = Literal["posterior", "entropy"]
BEST_K: tuple[BestK, ...] = get_args(BestK)


def qpp_k(predictions: Any, max_k: int, *, largest: float | None = None) -> Array:
    """Return k by QPP-AICL: the easier a query is predicted to be, the fewer demonstrations it gets.

    ::

        k(q) = M - floor(M * NQC(q) / max NQC)

    So the range of the predictor is cut into M equal steps, of which the lowest gets M demonstrations and the highest
    1; the query at the maximum itself needs none.

    Parameters
    ----------
    predictions : (Q,) floating point, at least 0
        `metrics.nqc` of each query's M largest similarities, as in the paper: ``nqc(near.found.scores[:, :M])``. NaN,
        for a query that found nothing, counts as 0.
    max_k : int
        M, the most demonstrations.
    largest : float, optional
        The maximum to normalise by: the paper's is that of the training texts. What lies above counts as the maximum.
        Default: the largest of the predictions, which makes k depend on the other queries.

    Returns
    -------
    (Q,) int64, from 0 to M

    Examples
    --------
    >>> from ragsys_kernels.icl import qpp_k
    >>> qpp_k([0.0, 0.1, 0.25, 0.5, 0.9, 1.2], 4, largest=1.0)
    array([4, 4, 3, 2, 1, 0])
    """
    values = np.asarray(predictions, np.float64)
    values = np.where(np.isnan(values), 0.0, values)
    if values.ndim != 1 or (values < 0).any() or not np.isfinite(values).all():
        raise ValueError(f"qpp_k: predictions must be finite numbers from 0 of shape (Q,), got {predictions!r:.80}")
    if whole("qpp_k", "max_k", max_k) < 0:
        raise ValueError(f"qpp_k: max_k must be at least 0, got {max_k}")
    top = float(values.max(initial=0.0)) if largest is None else largest
    if not top >= 0 or not np.isfinite(top):
        raise ValueError(f"qpp_k: largest must be a finite number from 0, got {largest}")
    share = np.minimum(values / top, 1) if top > 0 else np.zeros_like(values)
    return np.asarray(max_k - np.floor(max_k * share), np.int64)


def optimal_k(log_posterior: Any, labels: Any, *, best_k: BestK = "posterior") -> Array:
    """Return k by SAICL, Algorithm 2: the one with which the model is right and surest of it.

    Parameters
    ----------
    log_posterior : (Q, M + 1, L) floating point
        What the model says of each label with k = 0, ..., M demonstrations. Its prediction is the largest, the first of
        equals.
    labels : (Q,) integers
        The true labels, from 0 to L - 1.
    best_k : {"posterior", "entropy"}
        "posterior", the paper's Algorithm 2: of the k whose prediction is right, that with the largest posterior of the
        label; where none is right, 1. "entropy": of the right ones that with the least entropy of the posterior; where
        none is right, the least entropy of all, as in the code of the later paper (Chandra, Ganguly and Ounis, ECIR
        2025). With two labels the forms differ only where no k is right.

    Returns
    -------
    (Q,) int64
        The smallest k of equal ones. Where there is no k = 1, as M is 0, that is 0.

    Raises
    ------
    ValueError
        Shapes that do not agree, labels out of range, NaN, another `best_k`.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.icl import optimal_k
    >>> posterior = np.array([[[0.6, 0.4], [0.2, 0.8], [0.1, 0.9]]])
    >>> optimal_k(np.log(posterior), [1]), optimal_k(np.log(posterior), [0])
    (array([2]), array([0]))
    """
    if best_k not in BEST_K:
        raise ValueError(f"optimal_k: best_k must be one of {', '.join(BEST_K)}, got {best_k!r}")
    logp, truth = np.asarray(log_posterior, np.float64), np.asarray(labels)
    if logp.ndim != 3 or 0 in logp.shape[1:] or truth.shape != logp.shape[:1] or truth.dtype.kind not in "iu":
        raise ValueError(
            f"optimal_k: log_posterior and labels must be numbers (Q, M + 1, L) and integers (Q,), got {logp.shape} "
            f"and {truth.dtype} {truth.shape}"
        )
    if ((truth < 0) | (truth >= logp.shape[2])).any():
        raise ValueError(f"optimal_k: labels must be from 0 to {logp.shape[2] - 1}, got {truth.tolist()!r:.80}")
    if np.isnan(logp).any():
        raise ValueError("optimal_k: log_posterior must be numbers, got NaN")
    right = logp.argmax(axis=2) == truth[:, None]
    some = right.any(axis=1)
    if best_k == "posterior":
        of_label = np.take_along_axis(logp, truth[:, None, None], axis=2)[:, :, 0]
        surest = np.where(right, of_label, -np.inf).argmax(axis=1)
        return np.asarray(np.where(some, surest, min(1, logp.shape[1] - 1)), np.int64)
    entropy = -(np.exp(logp) * np.where(np.isneginf(logp), 0, logp)).sum(axis=2)
    return np.asarray(np.where(right | ~some[:, None], entropy, np.inf).argmin(axis=1), np.int64)


class KPredictor:
    """A scikit-learn classifier from embeddings (n, D) to numbers of demonstrations (n,).

    Parameters
    ----------
    vectors, ks
    model : scikit-learn classifier, optional
        Fitted here. Default: logistic regression. Where all ks are equal there is nothing to learn, and they are
        predicted.

    Raises
    ------
    ModuleNotFoundError
        scikit-learn is not installed.
    """

    def __init__(self, vectors: Any, ks: Any, model: Any = None) -> None:
        self.ks = np.asarray(ks, np.int64)
        self._constant = len(np.unique(self.ks)) == 1
        if model is None:
            with needed("adaptive in-context learning", "evaluate", "scikit-learn"):
                from sklearn.linear_model import LogisticRegression
            model = LogisticRegression(C=10.0, max_iter=1000)
        self.model = model if self._constant else model.fit(np.asarray(vectors), self.ks)

    def predict(self, vectors: Any) -> Array:
        """Predict the numbers of demonstrations, (Q,) int64."""
        if self._constant:
            return np.full(len(vectors), self.ks[0])
        return np.asarray(self.model.predict(np.asarray(vectors)), np.int64)
