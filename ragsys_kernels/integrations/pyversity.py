"""pyversity's strategies: ``mmr`` on the kernels, ``msd`` in NumPy, the others by the installed pyversity.

Every name of ``pyversity`` and ``pyversity.datatypes`` is here. pyversity is needed only for `cover`, `dpp` and `ssd`
(extra ``pyversity``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from . import _peers
from ._pools import Array, greedy, run

__all__ = ["DiversificationResult", "Metric", "Strategy", "cover", "diversify", "dpp", "mmr", "msd", "ssd"]


class Strategy(str, Enum):
    """Strategies of diversification."""

    MMR = "mmr"
    MSD = "msd"
    COVER = "cover"
    DPP = "dpp"
    SSD = "ssd"


class Metric(str, Enum):
    """Measures of similarity."""

    COSINE = "cosine"
    DOT = "dot"


@dataclass
class DiversificationResult:
    """Selected items.

    Attributes
    ----------
    indices : (k,) int32
        Positions in the order they were picked.
    selection_scores : (k,) float32
        The value of each when it was picked; for the first its weighted relevance.
    strategy : Strategy
    diversity : float
    parameters : dict or None
        The other parameters of the strategy.
    """

    indices: Array
    selection_scores: Array
    strategy: Strategy
    diversity: float
    parameters: dict[str, Any] | None = None


def diversify(
    embeddings: Any,
    scores: Any,
    k: int,
    strategy: Strategy | str = Strategy.DPP,
    diversity: float = 0.5,
    **kwargs: Any,
) -> DiversificationResult:
    """Call ``pyversity.diversify``: the function of this module that has the strategy's name.

    Parameters
    ----------
    embeddings : (N, D) numbers
    scores : (N,) numbers
    k : int
    strategy : Strategy or str
        "mmr" or "msd"; for "dpp" (the default, as in pyversity), "cover" and "ssd" pyversity must be installed.
    diversity : float in [0, 1]
    **kwargs
        Other arguments of the strategy.

    Raises
    ------
    ValueError
        A strategy that is unknown, and what the strategy raises.
    ModuleNotFoundError
        pyversity is not installed and the strategy is one of its own.
    """
    if strategy not in list(Strategy):
        raise ValueError(f"diversify: strategy must be one of {[str(s.value) for s in Strategy]}, got {strategy!r}")
    functions: tuple[Callable[..., DiversificationResult], ...] = (mmr, msd, cover, dpp, ssd)
    chosen = next(each for each in functions if each.__name__ == Strategy(strategy).value)
    return chosen(embeddings, scores, k, diversity, **kwargs)


def mmr(
    embeddings: Any,
    scores: Any,
    k: int,
    diversity: float = 0.5,
    metric: Metric | str = Metric.COSINE,
    normalize: bool = True,
) -> DiversificationResult:
    """Do what ``pyversity.mmr`` does, on the kernel of `ragsys_kernels.mmr`.

    ::

        C_1 = argmax_i s_i
        C_t = argmax over unpicked i of (1 - diversity) * s_i - diversity * max over picks C of max(0, sim(e_i, e_C))

    Ties go to the lowest position.

    Parameters
    ----------
    embeddings : (N, D) numbers
    scores : (N,) numbers
        Relevance; any shape of N elements.
    k : int
        Picks; no more than N are made, and none for k <= 0.
    diversity : float in [0, 1]
        0 is plain top-k by score, higher is more diverse: 1 - lambda.
    metric : Metric or {"cosine", "dot"}
        The cosine counts as 1 where it is more.
    normalize : bool
        With "cosine": False takes rows as unit vectors already.

    Returns
    -------
    DiversificationResult

    Raises
    ------
    ValueError
        diversity outside [0, 1], an unknown metric, shapes that do not fit, NaN or inf (pyversity picks NaN first),
        norms of rows that are not 0 and outside [1e-15, 1e15].

    Warns
    -----
    PoolSizeWarning
        N <= k, so that the call only reorders.

    Notes
    -----
    As pyversity 0.2 does, but for what is said above; near-ties of float32 sums may fall the other way. Rows that are
    not unit vectors with metric "cosine" and ``normalize=False`` run in NumPy. O(k N D) time.
    """
    metric, rows, relevance, k = _checked("mmr", embeddings, scores, k, diversity, metric)
    if k == 0:
        return _result(Strategy.MMR, [], [], diversity, metric)
    first, weight = int(relevance.argmax()), 1.0 - diversity
    if metric is Metric.COSINE and not normalize and not _unit(rows):
        _finite("mmr", rows, relevance)
        picks, values = greedy(
            relevance, lambda i: np.clip(rows @ rows[i], 0, 1), k, weight=weight, first=first, fold=np.maximum
        )
        return _result(Strategy.MMR, picks, values, diversity, metric)
    options: dict[str, Any] = {
        "relevance": relevance[None],
        "lambda_d": weight,
        "metric": "cosine" if metric is Metric.COSINE and normalize else "dot",
    }
    with np.errstate(all="ignore"):  # inf is reported below
        least = 0 if k == 1 else rows.dot(rows[first]).min()
    if least >= 0:
        # The largest similarity with a pick is never below 0, whether clipped or not.
        found = run("mmr", None, rows, k, **options)
        return _result(Strategy.MMR, found.indices[0], found.scores[0], diversity, metric)
    if not np.isfinite(relevance[first]):  # the kernel below does not get this row
        _finite("mmr", rows, relevance)
    # An item that is similar to none, shown before the others, makes 0 the least similarity.
    with_zero = np.concatenate((rows, np.zeros_like(rows[:1])))
    others = np.flatnonzero(np.arange(len(rows)) != first)
    options |= {"candidates": others[None], "relevance": relevance[others][None]}
    options["initial"] = np.array([[first, len(rows)]])
    rest = run("mmr", None, with_zero, k - 1, **options)
    picks, values = [first, *rest.indices[0].tolist()], [weight * relevance[first], *rest.scores[0].tolist()]
    return _result(Strategy.MMR, picks, values, diversity, metric)


def msd(
    embeddings: Any,
    scores: Any,
    k: int,
    diversity: float = 0.5,
    metric: Metric | str = Metric.COSINE,
    normalize: bool = True,
) -> DiversificationResult:
    """Do what ``pyversity.msd`` does, in NumPy: the sum of distances from the picks counts, not that from the nearest.

    ::

        C_1 = argmax_i s_i
        C_t = argmax over unpicked i of (1 - diversity) * s_i + diversity * sum over picks C of d(e_i, e_C)

    d is 1 - cosine, or minus the dot product with metric "dot". The kernels do not have this rule. Parameters, results
    and errors are those of `mmr`.
    """
    metric, rows, relevance, k = _checked("msd", embeddings, scores, k, diversity, metric)
    if k == 0:
        return _result(Strategy.MSD, [], [], diversity, metric)
    _finite("msd", rows, relevance)
    cosine = metric is Metric.COSINE
    if cosine and normalize:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).eps)

    def nearness(i: int) -> Array:
        products: Array = rows @ rows[i]
        return np.clip(products, -1, 1) - 1 if cosine else products

    first = int(np.argmax(relevance))
    picks, values = greedy(relevance, nearness, k, weight=1.0 - diversity, first=first, fold=np.add)
    return _result(Strategy.MSD, picks, values, diversity, metric)


def cover(
    embeddings: Any,
    scores: Any,
    k: int,
    diversity: float = 0.5,
    gamma: float = 0.5,
    metric: Metric | str = Metric.COSINE,
    normalize: bool = True,
) -> DiversificationResult:
    """Call ``pyversity.cover`` (facility location) of the installed pyversity, with its errors."""
    return _by_pyversity(Strategy.COVER, embeddings, scores, k, diversity, gamma, metric, normalize)


def dpp(embeddings: Any, scores: Any, k: int, diversity: float = 0.5, scale: float = 1.0) -> DiversificationResult:
    """Call ``pyversity.dpp`` (greedy determinantal point process) of the installed pyversity, with its errors."""
    return _by_pyversity(Strategy.DPP, embeddings, scores, k, diversity, scale)


def ssd(
    embeddings: Any,
    scores: Any,
    k: int,
    diversity: float = 0.5,
    recent_embeddings: Any = None,
    window: int | None = None,
    gamma: float = 1.0,
    normalize: bool = True,
    append_bias: bool = True,
    normalize_scores: bool = True,
) -> DiversificationResult:
    """Call ``pyversity.ssd`` (sliding spectrum decomposition) of the installed pyversity, with its errors."""
    options = (recent_embeddings, window, gamma, normalize, append_bias, normalize_scores)
    return _by_pyversity(Strategy.SSD, embeddings, scores, k, diversity, *options)


@lru_cache(maxsize=1)
def _installed() -> ModuleType:
    with _peers.needed("pyversity"):
        return _peers.copy_of_package("pyversity")


def _by_pyversity(strategy: Strategy, *arguments: Any) -> DiversificationResult:
    found = getattr(_installed(), strategy.value)(*arguments)
    return DiversificationResult(found.indices, found.selection_scores, strategy, found.diversity, found.parameters)


def _checked(
    op: str, embeddings: Any, scores: Any, k: int, diversity: float, metric: Metric | str
) -> tuple[Metric, Array, Array, int]:
    if not 0 <= diversity <= 1:
        raise ValueError(f"{op}: diversity must be in [0, 1], got {diversity}")
    try:
        metric = Metric(metric)
    except ValueError:
        raise ValueError(f"{op}: metric must be 'cosine' or 'dot', got {metric!r}") from None
    rows = np.asarray(embeddings, np.float32, order="C")
    relevance = np.asarray(scores, np.float32).reshape(-1)
    if rows.ndim != 2:
        raise ValueError(f"{op}: embeddings must be 2-D, got shape {rows.shape}")
    if len(relevance) != len(rows):
        raise ValueError(f"{op}: scores must have one value for each of the {len(rows)} rows, got {len(relevance)}")
    return metric, rows, relevance, max(0, min(int(k), len(rows)))


def _finite(op: str, rows: Array, relevance: Array) -> None:
    """Refuse NaN and inf, which the kernels check by themselves."""
    for name, finite in (("relevance", np.isfinite(relevance)), ("embeddings", np.isfinite(rows).all(axis=1))):
        if not finite.all():
            raise ValueError(f"{op}: {name} must be finite, got NaN or inf in row {int(np.argmin(finite))}")


def _unit(rows: Array) -> bool:
    """Return whether no product of two rows is above 1 by more than rounding."""
    return bool(np.einsum("ij,ij->i", rows, rows).max() <= 1 + 1e-5)


def _result(strategy: Strategy, picks: Any, values: Any, diversity: float, metric: Metric) -> DiversificationResult:
    indices, scores = np.asarray(picks, np.int32), np.asarray(values, np.float32)
    return DiversificationResult(indices, scores, strategy, diversity, {"metric": metric})
