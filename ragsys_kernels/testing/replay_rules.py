"""Values of the rules in float64 from their definitions, anew at every step, with the errors that float32 may make.

Nothing is carried from pick to pick, no factor and no running number, so that this has little in common with
``selection/rules``: determinants are those of matrices, variances come from solved systems, coverage from all picks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_EPS = float(np.finfo(np.float32).eps)
_ROUNDING = 1e-5  # at most this share of an item is left: no longer told from rounding
_ANY = 1e30  # the error of what may be anything: times 0 it is 0


class Query(NamedTuple):
    """One query and its items in float64."""

    e: np.ndarray  # (n, D) items that it may pick at all
    v: np.ndarray  # (n,) relevance with bias; for "vrsd" and "sift" the relevance
    picked: np.ndarray  # (t, D) initial items, then picks
    own: np.ndarray  # (t,) place of each among the items; -1: an initial item
    query: np.ndarray | None
    lambda_d: float
    options: dict[str, Any]  # what is given to the rule alone; arrays of this query
    costs: np.ndarray | None  # with `density`, what values are divided by
    tolerance: float  # of a product and of a relevance
    v_tolerance: float  # of v, which a relevance that is given makes exact
    unit_tolerance: float  # of a product of unit vectors


class Values(NamedTuple):
    values: np.ndarray  # (n,)
    errors: np.ndarray
    scores: np.ndarray
    closed: np.ndarray  # the rule does not pick it
    doubtful: np.ndarray  # it may or may not


def _plain(values: np.ndarray, errors: np.ndarray, scores: np.ndarray | None = None) -> Values:
    none = np.zeros(len(values), bool)
    return Values(values, errors, values if scores is None else scores, none, none)


def _weighted(x: Query, gain: np.ndarray, error: np.ndarray) -> Values:
    values = x.lambda_d * x.v + (1 - x.lambda_d) * gain
    return _plain(values, x.lambda_d * x.tolerance + (1 - x.lambda_d) * error + _EPS * np.abs(values))


NONE = _plain(np.zeros(0), np.zeros(0))  # of no items


def mmr(x: Query) -> Values:
    errors = np.full(len(x.v), x.tolerance)
    if not len(x.picked):
        return _plain(x.v, errors, x.lambda_d * x.v)
    return _plain(x.lambda_d * x.v - (1 - x.lambda_d) * (x.e @ x.picked.T).max(axis=1), errors)


def vrsd(x: Query) -> Values:
    if not len(x.picked):
        return _plain(x.v, np.full(len(x.v), x.unit_tolerance))
    lengths, of_picks = (np.sqrt((rows**2).sum(axis=1)) for rows in (x.e, x.picked))
    s = x.picked.sum(axis=0) + x.e
    norms = np.sqrt((s**2).sum(axis=1))
    # Items of the pool count with their relevance, initial items with their own product.
    own = np.zeros(len(x.own)) if x.query is None else x.picked @ x.query
    known = np.where(x.own >= 0, x.v[x.own] * of_picks, own).sum()
    terms, squares = of_picks.sum() + lengths, (of_picks**2).sum() + lengths**2
    zero = norms <= 1e-6 * terms
    values = np.divide(known + x.v * lengths, norms, out=np.zeros_like(norms), where=~zero)
    errors = 1 + 2 * np.divide(squares, norms**2, out=np.zeros_like(norms), where=~zero)
    errors = errors * np.maximum(1, np.abs(values))  # a relevance that is given may not be a cosine
    errors[(norms > 0.5e-6 * terms) & (norms < 2e-6 * terms)] = np.inf  # zero or not: either is right
    return _plain(values, errors * x.unit_tolerance)


def msd(x: Query) -> Values:
    t = len(x.picked)
    if t == 0:
        return _plain(x.v, np.full(len(x.v), x.tolerance), x.lambda_d * x.v)
    one = 1.0 if x.options["metric"] == "cosine" else 0.0
    return _weighted(x, (one - x.e @ x.picked.T).sum(axis=1), np.full(len(x.v), 2 * t * x.tolerance))


def _z(x: Query) -> tuple[np.ndarray, np.ndarray]:
    largest = np.abs(x.v).max()
    deviation = x.v.std() + _EPS * largest
    if deviation == 0:
        return np.zeros(len(x.v)), np.full(len(x.v), _ANY if x.v_tolerance else 0.0)
    if np.ptp(x.v) == 0:
        return np.zeros(len(x.v)), np.full(len(x.v), 2 * x.v_tolerance / deviation)
    z = (x.v - x.v.mean()) / deviation
    return z, (2 + np.abs(z)) * x.v_tolerance / deviation + 8 * _EPS * (1 + np.abs(z).max())


def dpp(x: Query) -> Values:
    z, error = _z(x)
    quality = x.options.get("quality", "zscore")
    if isinstance(quality, str):
        power = x.options.get("scale", 1.0) * x.lambda_d
        q, error = np.exp(power * z), power * error
    else:
        q, error = np.asarray(quality, np.float64), np.zeros(len(x.v))
    own = np.einsum("nd,nd->n", x.e, x.e)
    last = slice(-x.options["window"] if x.options.get("window") else None, None)
    picked, places = x.picked[last], x.own[last]
    left, inflation = np.ones(len(x.v)), np.ones(len(x.v))
    spanning: list[int] = []
    for place in range(len(picked)):  # those that the others do not span
        s = picked[[*spanning, place]] @ picked[[*spanning, place]].T
        share = _left(s[:-1, :-1], s[:-1, -1:], s[-1:, -1])[0] / s[-1, -1] if s[-1, -1] > 0 else 0.0
        if places[place] >= 0 or share > _ROUNDING:
            spanning.append(place)
            inflation = inflation + 1 / max(share, _ROUNDING)
    chosen = picked[spanning]
    left = _left(chosen @ chosen.T, chosen @ x.e.T, own)
    share = np.divide(left, own, out=np.zeros_like(left), where=own > 0)
    errors = x.tolerance * inflation
    closed = share < _ROUNDING - errors
    doubtful = ~closed & (share <= _ROUNDING + errors)
    L = q**2 * own
    return Values(L * share, L * (2 * error * share + errors), L * share, closed, doubtful)


def _left(s: np.ndarray, t: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return what is left of the squared lengths ``own`` of items whose products with others, of products s, are t."""
    if not len(s):
        return own
    return np.asarray(own - (t * np.linalg.solve(s, t)).sum(axis=0))


def sift(x: Query) -> Values:
    noise = x.options.get("noise", 0.01)
    assert x.query is not None
    u, d, before = x.v, np.einsum("nd,nd->n", x.e, x.e), 0.0
    if len(x.picked):
        at_query = np.where(x.own >= 0, x.v[x.own], x.picked @ x.query)
        s, t = x.picked @ x.picked.T + noise * np.eye(len(x.picked)), x.picked @ x.e.T
        u = u - t.T @ np.linalg.solve(s, at_query)
        d = _left(s, t, d)
        before = at_query @ np.linalg.solve(s, at_query)
    gain = u**2 / (d + noise)
    inflation = x.tolerance * (1 + len(x.picked) / noise)
    errors = (2 * np.abs(u) + gain + inflation) * inflation / (d + noise)
    least = x.options.get("min_gain", 0.0)
    closed = gain < least - errors
    return Values(gain, errors, 1 - before - gain, closed, ~closed & (gain < least + errors) & (least > 0))


def ssd(x: Query) -> Values:
    z, error = _z(x)
    last = x.picked[-x.options["window"] :] if x.options.get("window") else x.picked
    basis: list[np.ndarray] = []
    unsure = 1.0
    for f in np.hstack([last, np.ones((len(last), 1))]):
        b = f - sum(((f @ other) / (other @ other) * other for other in basis), np.zeros(len(f)))
        share = (b @ b) / (f @ f)
        if 0.5 * _ROUNDING < share < 2 * _ROUNDING:
            unsure = np.inf
        unsure += 1 / max(share, _ROUNDING)
        if share > _ROUNDING:
            basis.append(b)
    items = np.hstack([x.e, np.ones((len(x.e), 1))])
    squares = np.einsum("nd,nd->n", items, items)
    delta = x.tolerance * unsure
    n = squares - sum((items @ b) ** 2 / (b @ b) for b in basis)
    weight = (1 - x.lambda_d) * x.options.get("gamma", 1.0)
    norms = np.sqrt(np.maximum(n, 0))
    scores = x.lambda_d * z + weight * norms
    with np.errstate(invalid="ignore"):
        spread = np.sqrt(n + delta) - np.sqrt(np.maximum(n - delta, 0))
    spread = np.where(np.isfinite(spread), spread, np.inf)
    errors = x.lambda_d * error + (weight * spread if weight > 0 else 0)
    if not len(x.picked):
        return _plain(z, error, scores)
    return _plain(scores, errors)


def coverage(x: Query) -> Values:
    kind, aspects = x.options.get("kind", "facility"), x.options.get("aspects")
    cosine = x.options["metric"] == "cosine"
    if aspects is None:
        aspects = x.e
    else:
        aspects = np.asarray(aspects, np.float64)
        if cosine:
            lengths = np.sqrt((aspects**2).sum(axis=1, keepdims=True))
            aspects = aspects / np.where(lengths > 0, lengths, 1)
    weights = x.options.get("weights")
    if weights is None:
        weights = np.full(len(aspects), 1.0 if kind == "cover" else 1 / len(aspects))
    most = 1.0 if cosine or kind == "xquad" else np.inf
    S, T = np.clip(x.e @ aspects.T, 0, most), np.clip(x.picked @ aspects.T, 0, most)
    delta = x.tolerance
    if kind == "facility":
        gain = (np.maximum(S - T.max(axis=0, initial=0), 0) * weights).sum(axis=1)
        spread = np.full(len(S), 2 * delta * np.sum(weights))
    elif kind == "cover":
        gamma, A = x.options.get("gamma", 0.5), T.sum(axis=0)

        def power(a: np.ndarray) -> np.ndarray:
            return np.asarray(np.maximum(a, 0) ** gamma)

        gain = ((power(A + S) - power(A)) * weights).sum(axis=1)
        wide = delta * (1 + len(T))
        # A product of exactly 0 or below it by more than its error has no error.
        near = np.where((S == 0) & (x.e @ aspects.T < -delta), 0, delta)
        spread = ((power(A + S + wide * (A > 0) + near) - power(A + S - wide)) * weights).sum(axis=1)
        spread = spread + ((power(A + wide * (A > 0)) - power(A - wide)) * weights).sum()
        spread = spread + 4 * _EPS * (power(A + S) * weights).sum(axis=1)
    else:
        gain = (S * np.prod(1 - T, axis=0) * weights).sum(axis=1)
        spread = np.full(len(S), delta * (1 + len(T)) * np.sum(weights))
    found = _weighted(x, gain, spread + _EPS * np.abs(gain) * np.sqrt(len(aspects)))
    if not x.options.get("density"):
        return found
    assert x.costs is not None
    return found._replace(values=found.values / x.costs, errors=found.errors / x.costs, scores=found.values)


RULES = {"mmr": mmr, "vrsd": vrsd, "msd": msd, "dpp": dpp, "ssd": ssd, "sift": sift, "coverage": coverage}
