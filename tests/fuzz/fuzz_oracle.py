"""The rules of selection by brute force in NumPy's float64, for `fuzz_selections`; shares no code with the package.

A query's picks are walked along: at every step all that may still be picked is valued by the formula, and the pick must
be the best. Where sums are exact that is the first of the best; elsewhere one that no other exceeds by more than
rounding, and never a later one of two items that are equal in all that counts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from fuzz_runs import WrongError

PRECISE = 2e-6
EPS = float(np.finfo(np.float32).eps)


@dataclass
class Question:
    """One query and its pool, in float64. Items are what may be picked or was shown; ids are how results name them."""

    method: str  # "mmr" | "vrsd"
    ids: np.ndarray  # (P,) of the pool, in its order, without padding
    vectors: np.ndarray  # (P, D) as the formulas have them
    given: np.ndarray  # (P, D) as they were given
    k: int
    query: np.ndarray | None  # (D,), a unit vector under cosine and for VRSD
    relevance: np.ndarray | None = None  # (P,) given
    bias: np.ndarray | None = None  # (P,)
    lambda_d: float = 1.0
    lambda_b: float = 1.0
    groups: np.ndarray | None = None  # (P,)
    own_group: int | None = None
    cap: int | None = None
    shown: np.ndarray | None = None  # (S,) ids
    shown_vectors: np.ndarray | None = None  # (S, D)
    shown_groups: np.ndarray | None = None  # (S,)
    exact: bool = False  # sums of float32 are exact
    precise: bool = False  # VRSD's scores are made in double where its sum nearly cancels


def wrong(step: int, text: str) -> None:
    raise WrongError(f"step {step}: {text}")


def walk(question: Question, indices: Any, scores: Any, relevance: Any = None, redundancy: Any = None) -> int:
    """Check the picks of one query, -1 after the last; returns how many there must be. A search has scores only."""
    x = question
    mmr = x.method == "mmr"
    lengths = np.sqrt((x.vectors**2).sum(axis=1))
    r = x.relevance
    if r is None:
        r = x.vectors @ x.query
        if not mmr:
            r = np.divide(r, lengths, out=np.zeros_like(r), where=lengths > 0)
    v = r if x.bias is None else x.lambda_b * r + (1 - x.lambda_b) * x.bias
    free = np.ones(len(x.ids), bool)
    taken: dict[int, int] = {}  # picks and shown items of each group
    last = []  # vectors that redundancy counts
    s = np.zeros(x.vectors.shape[1])
    s_query = s_length = s_squares = 0.0
    if x.own_group is not None:
        free &= x.groups != x.own_group
    if x.shown is not None and len(x.shown):
        free &= ~np.isin(x.ids, x.shown)
        last = list(x.shown_vectors)
        s = x.shown_vectors.sum(axis=0)
        squares = (x.shown_vectors**2).sum(axis=1)
        s_length, s_squares = np.sqrt(squares).sum(), squares.sum()
        s_query = 0.0 if mmr else float(s @ x.query)
        if x.cap is not None:
            for group in x.shown_groups:
                taken[int(group)] = taken.get(int(group), 0) + 1
    any_before = bool(last)
    m = np.full(len(x.ids), -np.inf)
    for vector in last:
        m = np.maximum(m, x.vectors @ vector)
    largest = max(1.0, np.abs(v).max(initial=0), np.abs(r).max(initial=0), (lengths**2).max(initial=0))
    unit = EPS * (8 + x.vectors.shape[1] ** 0.5)

    made = 0
    for step in range(x.k):
        open_items = np.flatnonzero(free)
        if x.cap is not None:
            full = [group for group, count in taken.items() if count >= x.cap]
            open_items = open_items[~np.isin(x.groups[open_items], full)]
        if not len(open_items):
            break
        first = not any_before and made == 0
        margin: Any = unit * largest
        key = None
        if mmr:
            value = v[open_items] if first else x.lambda_d * v[open_items] - (1 - x.lambda_d) * m[open_items]
            key = value
        elif first:
            value, margin = r[open_items], unit * max(1.0, np.abs(r).max())
            key = value
        else:
            value, margin, key = _cosines(x, open_items, r, lengths, s, s_query, s_length, s_squares, unit)
        if x.exact and mmr:
            margin = 0.0
        margin = np.broadcast_to(margin, value.shape)
        got = int(indices[step])
        at = np.flatnonzero(x.ids[open_items] == got)
        if not len(at):
            wrong(step, f"item {got} may not be picked")
        at = int(at[0])
        best = int(np.argmax(value - margin))
        if value[at] + margin[at] < value[best] - margin[best]:
            wrong(
                step, f"item {got} is worth {value[at]:.9g}, item {x.ids[open_items[best]]} is worth {value[best]:.9g}"
            )
        twins = _twins(x, open_items, at, key)
        if len(twins) and twins[0] < at:
            wrong(step, f"item {got} was picked, item {x.ids[open_items[twins[0]]]} is worth the same and comes before")
        i = int(open_items[at])
        close = 0.0 if x.exact and mmr else unit * largest
        score_margin = margin[at]
        if x.precise and not mmr and x.relevance is None and np.isfinite(score_margin):
            score_margin = min(score_margin, PRECISE)
        _near(step, "score", scores[step], x.lambda_d * v[i] if mmr and first else value[at], score_margin)
        if relevance is not None:
            _near(step, "relevance", relevance[step], v[i] if mmr else r[i], close)
            if mmr:
                _near(step, "redundancy", redundancy[step], 0.0 if first else m[i], close)
            elif not np.isnan(redundancy[step]):
                wrong(step, f"redundancy is {redundancy[step]}, not NaN")
        free[i] = False
        made += 1
        if x.groups is not None:
            taken[int(x.groups[i])] = taken.get(int(x.groups[i]), 0) + 1
        if mmr:
            m = np.maximum(m, x.vectors @ x.vectors[i])
        else:
            s = s + x.vectors[i]
            s_query += r[i] * lengths[i]
            s_length += lengths[i]
            s_squares += lengths[i] ** 2
    rest = slice(made, None)
    padding = (indices[rest] == -1).all() and np.isneginf(scores[rest]).all()
    if relevance is not None:
        padding &= np.isnan(relevance[rest]).all() and np.isnan(redundancy[rest]).all()
    if not padding:
        wrong(made, f"there is nothing left to pick, but results go on with {indices[rest].tolist()}")
    return made


def _cosines(x, open_items, r, lengths, s, s_query, s_length, s_squares, unit):
    """cos(s + e, q), by how much float32 may be off, and what makes two of them the same."""
    sums = s + x.vectors[open_items]
    squares = (sums**2).sum(axis=1)
    norms = np.sqrt(squares)
    products = s_query + r[open_items] * lengths[open_items]
    of_terms = s_length + lengths[open_items]
    zero = norms <= 1e-6 * of_terms
    value = np.divide(products, norms, out=np.zeros_like(norms), where=~zero)
    cancelled = (s_squares + lengths[open_items] ** 2) / np.where(zero, 1, squares)
    margin = unit * np.maximum(1, np.abs(value)) * np.where(zero, 1, 1 + 2 * cancelled)
    margin[(norms > 0.5e-6 * of_terms) & (norms < 2e-6 * of_terms)] = np.inf  # zero or not: either is right
    return value, margin, np.stack([products, squares, lengths[open_items]], axis=1)


def _twins(x, open_items, at, key):
    """Items that are equal to the one picked in all that counts."""
    if x.exact and key is not None:
        same = key == key[at]
        return np.flatnonzero(same if same.ndim == 1 else same.all(axis=1))
    i = open_items[at]
    before = open_items[:at]
    same = (x.given[before] == x.given[i]).all(axis=1)
    for given in (x.relevance, x.bias):
        if given is not None:
            same &= given[before] == given[i]
    return np.flatnonzero(same)


def _near(step, name, got, expected, margin):
    if not abs(float(got) - expected) <= margin + (EPS * abs(expected) if margin else 0.0):
        wrong(step, f"{name} is {float(got):.9g}, not {expected:.9g}")


def unit_rows(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    largest = np.abs(x).max(axis=-1, keepdims=True)
    x = x / np.where(largest > 0, largest, 1)  # so that squares stay in range
    norms = np.sqrt((x**2).sum(axis=-1, keepdims=True))
    return x / np.where(norms > 0, norms, 1)
