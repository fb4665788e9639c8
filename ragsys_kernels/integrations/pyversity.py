"""pyversity's strategies on the kernels: every name of ``pyversity`` and ``pyversity.datatypes``, without pyversity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from .._base.checks import shown
from .._base.types import NDArray as Array
from ..selection import options as _options
from ._pools import cover_clipped, greedy, number_of_picks, run, ssd_forgetting

_EPS = float(np.finfo(np.float32).eps)

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


def strategy_of(op: str, strategy: Any) -> Strategy:
    """Return the strategy of that name."""
    try:
        return Strategy(strategy)
    except ValueError:
        names = [str(each.value) for each in Strategy]
        raise ValueError(f"{op}: strategy must be one of {names}, got {shown(strategy)}") from None


class _Call:
    """What all strategies are given, checked."""

    def __init__(
        self,
        strategy: Strategy,
        embeddings: Any,
        scores: Any,
        k: int | None,
        diversity: float,
        metric: Metric | str = Metric.COSINE,
        normalize: bool = True,
    ) -> None:
        op = strategy.value
        if not 0 <= diversity <= 1:
            raise ValueError(f"{op}: diversity must be in [0, 1], got {diversity}")
        try:
            self.metric = Metric(metric)
        except ValueError:
            raise ValueError(f"{op}: metric must be 'cosine' or 'dot', got {metric!r}") from None
        rows = np.asarray(embeddings, np.float32, order="C")
        relevance = np.asarray(scores, np.float32).reshape(-1)
        if rows.ndim != 2:
            raise ValueError(f"{op}: embeddings must be 2-D, got shape {rows.shape}")
        if len(relevance) != len(rows):
            raise ValueError(f"{op}: scores must have one value for each of the {len(rows)} rows, got {len(relevance)}")
        self.strategy, self.rows, self.relevance, self.diversity = strategy, rows, relevance, diversity
        self.k = number_of_picks(op, len(rows), None if k is None else int(k))
        self.weight = 1.0 - diversity
        self.how = "cosine" if self.metric is Metric.COSINE and normalize else "dot"  # for the kernels

    @property
    def longer(self) -> bool:
        """Whether rows are taken for unit vectors and products are above 1 by more than rounding, to be clipped."""
        if self.metric is Metric.DOT or self.how == "cosine":
            return False
        return not np.einsum("ij,ij->i", self.rows, self.rows).max() <= 1 + 1e-5

    def check_finite(self, rows: Array | None = None) -> None:
        """Refuse NaN and inf, which the kernels check by themselves."""
        rows = self.rows if rows is None else rows
        for name, finite in (("relevance", np.isfinite(self.relevance)), ("embeddings", np.isfinite(rows).all(axis=1))):
            if not finite.all():
                at = int(np.argmin(finite))
                raise ValueError(f"{self.strategy.value}: {name} must be finite, got NaN or inf in row {at}")

    def deviations(self) -> tuple[float, float]:
        """Return what the kernels divide by to get z-scores, and the standard deviation; both 1 for equal scores."""
        if self.relevance.min() == self.relevance.max():
            return 1.0, 1.0
        with np.errstate(invalid="ignore"):
            deviation = float(self.relevance.std(dtype=np.float64))
        if not np.isfinite(deviation):
            self.check_finite()
        return deviation + _EPS * float(np.abs(self.relevance).max()), deviation

    def by_score(self, **parameters: Any) -> DiversificationResult:
        """Return the best k by score, ties to the lowest position."""
        if self.k:
            self.check_finite()
        picks = np.argsort(-self.relevance, kind="stable")[: self.k]
        return self.result(picks, self.relevance[picks], **parameters)

    def result(self, picks: Any, values: Any, **parameters: Any) -> DiversificationResult:
        indices, scores = np.asarray(picks, np.int32), np.asarray(values, np.float32)
        return DiversificationResult(indices, scores, self.strategy, self.diversity, parameters)


def diversify(
    embeddings: Any,
    scores: Any,
    k: int | None,
    strategy: Strategy | str = Strategy.DPP,
    diversity: float = 0.5,
    **kwargs: Any,
) -> DiversificationResult:
    """Call ``pyversity.diversify``: the function of this module that has the strategy's name.

    Parameters
    ----------
    embeddings : (N, D) numbers
    scores : (N,) numbers
    k : int or None
    strategy : Strategy or str
        "dpp", the default as in pyversity, "mmr", "msd", "cover" or "ssd".
    diversity : float in [0, 1]
    **kwargs
        Other arguments of the strategy.

    Raises
    ------
    ValueError
        A strategy that is unknown, and what the strategy raises.
    """
    wanted = strategy_of("diversify", strategy).value
    functions: tuple[Callable[..., DiversificationResult], ...] = (mmr, msd, cover, dpp, ssd)
    chosen = next(each for each in functions if each.__name__ == wanted)
    return chosen(embeddings, scores, k, diversity, **kwargs)


def mmr(
    embeddings: Any,
    scores: Any,
    k: int | None,
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
    k : int or None
        Picks; no more than N are made, and none for k <= 0. None: all, in the order of their picks.
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
    call = _Call(Strategy.MMR, embeddings, scores, k, diversity, metric, normalize)
    rows, relevance, k, weight = call.rows, call.relevance, call.k, call.weight
    if k == 0:
        return call.result([], [], metric=call.metric)
    first = int(relevance.argmax())
    if call.longer:
        call.check_finite()
        picks, values = greedy(
            relevance, lambda i: np.clip(rows @ rows[i], 0, 1), k, weight=weight, first=first, fold=np.maximum
        )
        return call.result(picks, values, metric=call.metric)
    options: dict[str, Any] = {"relevance": relevance[None], "lambda_d": weight, "metric": call.how}
    with np.errstate(all="ignore"):  # inf is reported below
        least = 0 if k == 1 else rows.dot(rows[first]).min()
    if least >= 0:
        # The largest similarity with a pick is never below 0, whether clipped or not.
        found = run("mmr", rows, k, **options)
        return call.result(found.indices[0], found.scores[0], metric=call.metric)
    if not np.isfinite(relevance[first]):  # the kernel below does not get this row
        call.check_finite()
    # An item that is similar to none, shown before the others, makes 0 the least similarity.
    with_zero = np.concatenate((rows, np.zeros_like(rows[:1])))
    others = np.flatnonzero(np.arange(len(rows)) != first)
    options |= {"candidates": others[None], "relevance": relevance[others][None]}
    options["initial"] = np.array([[first, len(rows)]])
    rest = run("mmr", with_zero, k - 1, **options)
    picks, values = [first, *rest.indices[0].tolist()], [weight * relevance[first], *rest.scores[0].tolist()]
    return call.result(picks, values, metric=call.metric)


def msd(
    embeddings: Any,
    scores: Any,
    k: int | None,
    diversity: float = 0.5,
    metric: Metric | str = Metric.COSINE,
    normalize: bool = True,
) -> DiversificationResult:
    """Do what ``pyversity.msd`` does, on the kernel of `ragsys_kernels.msd`.

    The sum of distances from the picks counts, not that from the nearest.

    ::

        C_1 = argmax_i s_i
        C_t = argmax over unpicked i of (1 - diversity) * s_i + diversity * sum over picks C of d(e_i, e_C)

    d is 1 - cosine, or minus the dot product with metric "dot". Parameters, results and errors are those of `mmr`.
    """
    call = _Call(Strategy.MSD, embeddings, scores, k, diversity, metric, normalize)
    rows, relevance, k, weight = call.rows, call.relevance, call.k, call.weight
    if k == 0:
        return call.result([], [], metric=call.metric)
    if call.longer:
        call.check_finite()
        first = int(np.argmax(relevance))

        def nearness(i: int) -> Array:
            return np.asarray(np.clip(rows @ rows[i], -1, 1) - 1)

        picks, values = greedy(relevance, nearness, k, weight=weight, first=first, fold=np.add)
        return call.result(picks, values, metric=call.metric)
    found = run("msd", rows, k, relevance=relevance[None], lambda_d=weight, metric=call.how)
    worth = found.scores[0]
    if call.metric is Metric.COSINE and call.how == "dot":  # the distance has a 1 more for every pick
        worth = worth + diversity * np.arange(k)
    return call.result(found.indices[0], worth, metric=call.metric)


def cover(
    embeddings: Any,
    scores: Any,
    k: int | None,
    diversity: float = 0.5,
    gamma: float = 0.5,
    metric: Metric | str = Metric.COSINE,
    normalize: bool = True,
) -> DiversificationResult:
    """Do what ``pyversity.cover`` does, on the kernel of `ragsys_kernels.coverage` with ``kind="cover"``.

    ::

        C_t = argmax over unpicked i of (1 - diversity) * s_i + diversity * sum_a ((A_a + S_ia)**gamma - A_a**gamma)

    S is the similarity of two items, at least 0, and A_a its sum over the picks. ``diversity=0`` is the best k by
    score. Parameters, results and errors are those of `mmr`, with one more.

    Parameters
    ----------
    gamma : float in (0, 1]
        Less of it means more diverse picks.
    """
    call = _Call(Strategy.COVER, embeddings, scores, k, diversity, metric, normalize)
    rows, relevance, k = call.rows, call.relevance, call.k
    if not 0 < gamma <= 1:
        raise ValueError(f"cover: gamma must be in (0, 1], got {gamma}")
    parameters = {"gamma": gamma, "metric": call.metric}
    if k == 0 or diversity == 0:
        return call.by_score(**parameters)
    if call.longer:
        call.check_finite()
        picks, values = cover_clipped(np.clip(rows @ rows.T, 0, 1), relevance, k, diversity, gamma)
        return call.result(picks, values, **parameters)
    options = _options.coverage("cover", "cover", None, None, gamma, False, None)
    given: dict[str, Any] = {"relevance": relevance[None], "lambda_d": call.weight, "metric": call.how}
    found = run("coverage", rows, k, kind="cover", options=options, **given)
    return call.result(found.indices[0], found.scores[0], **parameters)


def dpp(
    embeddings: Any, scores: Any, k: int | None, diversity: float = 0.5, scale: float = 1.0
) -> DiversificationResult:
    """Do what ``pyversity.dpp`` does, on the kernel of `ragsys_kernels.dpp`.

    The quality of an item is exp(scale * (1 - diversity) * z), z the z-score of its score; a row of zeros is like no
    other. ``diversity=0`` is the best k by score. Parameters, results and errors are those of `mmr`.

    Notes
    -----
    Of items that the picks span, which float32 does not tell from rounding, pyversity picks by what rounding left. Here
    they come last, in their order, with a score of 0.
    """
    call = _Call(Strategy.DPP, embeddings, scores, k, diversity)
    rows, k = call.rows, call.k
    if k == 0 or diversity == 0:
        return call.by_score(scale=scale)
    zero = np.flatnonzero(~rows.any(axis=1))
    if len(zero):  # a dimension of its own for each
        apart = np.zeros((len(rows), len(zero)), np.float32)
        apart[zero, np.arange(len(zero))] = 1
        rows = np.concatenate([rows, apart], axis=1)
    # pyversity adds float32's epsilon to the deviation, whatever the scale of the scores.
    kernel, deviation = call.deviations()
    options = _options.dpp("dpp", "zscore", scale * kernel / (deviation + _EPS))
    found = run("dpp", rows, k, relevance=call.relevance[None], lambda_d=call.weight, options=options)
    made = int(found.lengths[0])
    picks, values = found.indices[0, :made], found.scores[0, :made]
    if made < k:
        rest = np.setdiff1d(np.arange(len(rows)), picks)[: k - made]
        picks, values = np.concatenate([picks, rest]), np.concatenate([values, np.zeros(len(rest))])
    return call.result(picks, values, scale=scale)


def ssd(
    embeddings: Any,
    scores: Any,
    k: int | None,
    diversity: float = 0.5,
    recent_embeddings: Any = None,
    window: int | None = None,
    gamma: float = 1.0,
    normalize: bool = True,
    append_bias: bool = True,
    normalize_scores: bool = True,
) -> DiversificationResult:
    """Do what ``pyversity.ssd`` does, on the kernel of `ragsys_kernels.ssd` while all picks count.

    ``diversity=0`` is the best k by score. Parameters, results and errors are those of `mmr`, with these more.

    Parameters
    ----------
    recent_embeddings : (M, D) numbers, optional
        What was shown before, the oldest first.
    window : int, optional
        How many of the last picks and recent embeddings count. Default: all. Fewer than there are run in NumPy: by
        pyversity's algorithm, in which picks that have left the window go on to bend what those in it take away, where
        `ragsys_kernels.ssd` forgets them.
    gamma : float above 0
        Weight of the volume.
    normalize : bool
        False takes rows as they are.
    append_bias : bool
        False leaves out the constant dimension, and runs in NumPy; so do rows that have it already.
    normalize_scores : bool
        False takes scores as they are, not as z-scores.
    """
    call = _Call(Strategy.SSD, embeddings, scores, k, diversity)
    rows, relevance, k, weight = call.rows, call.relevance, call.k, call.weight
    if window is not None and window < 1:
        raise ValueError(f"ssd: window must be >= 1, got {window}")
    if gamma <= 0:
        raise ValueError(f"ssd: gamma must be > 0, got {gamma}")
    recent = np.zeros((0, rows.shape[1]), np.float32)
    if recent_embeddings is not None and np.size(recent_embeddings):
        recent = np.asarray(recent_embeddings, np.float32)
        if recent.ndim != 2 or recent.shape[1] != rows.shape[1]:
            raise ValueError(
                f"ssd: recent_embeddings must have shape (any, {rows.shape[1]}), got {np.shape(recent_embeddings)}"
            )
    width = len(recent) + k if window is None else int(window)
    parameters = {"gamma": gamma, "window": window if k == 0 else width}
    if k == 0 or diversity == 0:
        return call.by_score(**parameters)
    recent, n = recent[-width:], len(rows)
    mean = float(relevance.mean(dtype=np.float64))
    kernel, deviation = call.deviations()
    both = np.concatenate([rows, recent])
    constant = append_bias and not _ends_with_ones(both, n, normalize)
    # The kernel's z-scores, and in everything but these their units: of pyversity's z-scores, or of the scores.
    unit = kernel / deviation if normalize_scores else kernel
    if constant and width >= len(recent) + k - 1 and _EPS < unit < 1 / _EPS:
        found = run(
            "ssd",
            both,
            k,
            relevance=relevance[None],
            candidates=np.arange(n)[None],
            initial=np.arange(n, len(both))[None],
            lambda_d=weight,
            metric="cosine" if normalize else "dot",
            options=_options.ssd("ssd", gamma / unit, None),
        )
        picks, values = found.indices[0], found.scores[0].astype(np.float64) * unit
        if not normalize_scores:
            values = values + weight * mean
    else:
        call.check_finite(both)
        worth = (relevance - mean) / deviation if normalize_scores else relevance
        features = _normalized(both) if normalize else both
        if constant:
            features = np.hstack([features, np.ones((len(features), 1))])
        picks, values = ssd_forgetting(features, n, worth, k, weight, gamma, width)
    return call.result(picks, values, **parameters)


def _normalized(rows: Array) -> Array:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _EPS))


def _ends_with_ones(both: Array, n: int, normalize: bool) -> bool:
    """Return whether the rows that may be picked have the constant dimension already."""
    rows = _normalized(both[:n]) if normalize else both[:n]
    return rows.shape[1] > 0 and bool(np.allclose(rows[:, -1], 1.0, atol=1e-6, rtol=0.0))
