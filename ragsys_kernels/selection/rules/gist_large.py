"""GIST out of more items than have a matrix of their distances: distances are computed as they are needed.

The guarantee needs the two items that are farthest apart, which to find takes all pairs. Let D be their distance, and
let two items be known at a distance L = c U, where U is at least D. With g and d the sum of v and the least distance of
the best set, weighted as in f, which then is g + d:

- If d is at most eps L, weighted, the items of largest v have at least g, and the pair at least L. The larger of these
  is at least 1 / (1 + eps) of g + d.
- Otherwise a threshold t has t <= d / 2 < (1 + s) t, if they begin with eps L / 2, end with U, and grow by the factor
  1 + s. Every pick within t of an item of the best set is within t of no other of them, and is taken before it. So the
  picks at least t apart have a sum of at least g, and f of at least g + d / (2 (1 + s)). The pair has at least c D, or
  c d. The larger of these is at least c / (1 + c - 1 / (2 (1 + s))) of g + d: that is where both are equal.

With D = L = U and s = eps this is the paper's proof. For a smaller c, `_step_of` returns the s that keeps the share of
2/3 - eps. U is twice the radius of a ball around all items, whose center moves by Badoiu and Clarkson's steps towards
the item that is farthest from it (SODA 2003). The farthest items of all steps, with what is farthest from each, give
the pair: for the smallest ball c is at least the root of 1/2. Where no s will do, which takes an eps below 0.1, all
pairs are compared.

Most thresholds cost little. Picks whose least distance is D_t are those of every threshold from t to D_t; and a
threshold is given up once its picks cannot be better than the best so far: the items that are left add no more than the
v of the next one each, and the least distance only falls.
"""

from __future__ import annotations

import numpy as np

_BLOCK = 1024  # items that are compared with one another, and with the picks
_STEPS = 32  # of the center
_PARTS = 1 << 22  # distances at a time, of all items
_FINEST = 1 / 4  # a smaller share of eps as a step would take more thresholds than all pairs are worth


def best_of(
    v: np.ndarray, e: np.ndarray, squares: np.ndarray, k: int, weight: float, eps: float
) -> tuple[list[int], float]:
    """Return the best of what the thresholds give, in the order in which they are taken, and the distance of the pair.

    ``e`` are the vectors (n, D) of the items, ``squares`` (n,) their squared lengths.
    """
    order = np.argsort(-v, kind="stable")
    best = order[:k].tolist()
    pair, largest, limit = _farthest(e, squares)
    step = _step_of(largest / limit if limit else 1.0, eps)
    if step < _FINEST * eps:
        pair, largest = _farthest_of_all(e, squares)
        limit, step = largest, eps
    if not largest:
        return best, 0.0

    def value(picks: list[int], least: float) -> float:
        return float(weight * v[picks].sum() + (1 - weight) * least)

    most = value(best, _least(e, squares, best, largest))
    if k >= 2 and (of_pair := value(pair, largest)) > most:
        best, most = sorted(pair, key=lambda i: (-v[i], i)), of_pair
    same_until = 0.0
    for power in range(1 + int(np.floor(np.log(2 * limit / (eps * largest)) / np.log1p(step)))):
        threshold = (1 + step) ** power * eps * largest / 2
        if threshold <= same_until:
            continue
        picks, apart = _apart(v, e, squares, order, k, threshold, weight, limit, most)
        if picks is None:
            continue
        same_until = apart
        found = value(picks, apart if len(picks) > 1 else largest)
        if found > most:
            best, most = picks, found
    return best, largest


def distances(a: np.ndarray, a_squares: np.ndarray, b: np.ndarray, b_squares: np.ndarray) -> np.ndarray:
    """Return the distance of each vector of ``a`` to each of ``b``."""
    return np.asarray(np.sqrt(np.maximum(a_squares[:, None] + b_squares - 2 * (a @ b.T), 0)))


def _least(e: np.ndarray, squares: np.ndarray, picks: list[int], alone: float) -> float:
    """Return the least distance of two picks, or that of one alone."""
    least = alone
    for begin in range(1, len(picks), _BLOCK):
        some, before = picks[begin : begin + _BLOCK], picks[: begin + _BLOCK]
        among = distances(e[some], squares[some], e[before], squares[before])
        least = min(least, float(among[np.tri(len(some), len(before), begin - 1, dtype=bool)].min()))
    return least


def _apart(
    v: np.ndarray, e: np.ndarray, squares: np.ndarray, order: np.ndarray, k: int, threshold: float, weight: float,
    limit: float, most: float,
) -> tuple[list[int] | None, float]:  # fmt: skip
    """Return the first k items of an order that are so far from those before them, and their least distance.

    None once f cannot be above ``most``; the distance is ``limit`` until there are two.
    """
    picks: list[int] = []
    total, least = 0.0, limit
    for begin in range(0, len(order), _BLOCK):
        block = order[begin : begin + _BLOCK]
        if picks:
            to_picks = distances(e[block], squares[block], e[picks], squares[picks]).min(axis=1)
            block, to_picks = block[to_picks >= threshold], to_picks[to_picks >= threshold]
        else:
            to_picks = np.full(len(block), limit)
        among = distances(e[block], squares[block], e[block], squares[block])
        free = np.ones(len(block), bool)
        while True:
            left = weight * (total + (k - len(picks)) * max(0.0, float(v[order[begin]])))
            if left + (1 - weight) * least <= most:
                return None, 0.0
            if len(picks) == k or not free.any():
                break
            at = int(free.argmax())
            picks.append(int(block[at]))
            total += float(v[block[at]])
            least = min(least, float(to_picks[at]))
            to_picks = np.minimum(to_picks, among[at])
            free &= among[at] >= threshold
            free[at] = False
        if len(picks) == k:
            break
    return picks, least


def _farthest(e: np.ndarray, squares: np.ndarray) -> tuple[list[int], float, float]:
    """Return two items that are far apart, their distance, and one that no two exceed."""
    center, radius, far = e.mean(axis=0), np.inf, set()
    for step in range(_STEPS):
        to_center = squares - 2 * (e @ center) + center @ center
        at = int(to_center.argmax())
        radius = min(radius, float(np.sqrt(max(0.0, to_center[at]))))
        far.add(at)
        center += (e[at] - center) / (step + 2)
    # Less than this is rounding.
    size = float(np.sqrt(squares.max()))
    if radius <= 1e-6 * size:
        return [0, 1], 0.0, 0.0
    some = np.array(sorted(far))
    pair, largest = _farthest_from(e, squares, some, 0)
    while (further := _farthest_from(e, squares, np.array(pair), 0))[1] > largest:
        pair, largest = further
    return pair, largest, max(largest, 2 * radius * (1 + 1e-9) + 1e-7 * size)


def _farthest_of_all(e: np.ndarray, squares: np.ndarray) -> tuple[list[int], float]:
    """Return the two items that are farthest apart, and their distance."""
    best: tuple[list[int], float] = [0, 1], 0.0
    for begin in range(0, len(e), _BLOCK):
        some = np.arange(begin, min(begin + _BLOCK, len(e)))
        found = _farthest_from(e, squares, some, begin)
        best = found if found[1] > best[1] else best
    return best


def _farthest_from(e: np.ndarray, squares: np.ndarray, some: np.ndarray, first: int) -> tuple[list[int], float]:
    """Return the two items farthest apart, one among some, the other from ``first`` on, and their distance."""
    best: tuple[list[int], float] = [0, 1], 0.0
    size = max(1, _PARTS // len(some))
    for begin in range(first, len(e), size):
        block = slice(begin, begin + size)
        found = distances(e[some], squares[some], e[block], squares[block])
        at = np.unravel_index(found.argmax(), found.shape)
        if found[at] > best[1]:
            best = [int(some[at[0]]), begin + int(at[1])], float(found[at])
    return best


def _step_of(c: float, eps: float) -> float:
    """Return the largest step of the thresholds, up to eps, that keeps the share of 2/3 - eps; 0 if none does."""
    share = 2 / 3 - eps
    if share <= 0:
        return eps
    half = 1 + c - c / share  # what 1 / (2 (1 + s)) is at least
    return eps if half <= 0 else max(0.0, min(eps, 1 / (2 * half) - 1))
