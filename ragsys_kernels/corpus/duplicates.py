"""`duplicates`: rows that an earlier row, or one of more quality, stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import _dispatch
from .._base import checks
from .._base.hints import hinted
from .._base.types import ArrayLike, Metric, NDArray
from ..selection.problem import Rows
from . import Corpus
from .near import Block, Pairs, Standing, most_similar, similarities

_OP = "duplicates"

_BLOCK = 512  # rows that are looked for together, and compared with one another
_MOST_PAIRS = 1 << 28  # that are returned, or joined into groups: 4 GiB of them
_NEIGHBORS = 32  # of each row, that an index finds
_QUERIES = 256  # rows on which the recall of an index is measured


class _Fields(NamedTuple):
    kept: NDArray
    removed: NDArray
    of: NDArray
    similarity: NDArray
    pairs: NDArray | None = None
    pair_similarity: NDArray | None = None
    groups: NDArray | None = None
    recall: float | None = None


class Duplicates(_Fields):
    """Which rows are kept and which are removed, from `duplicates`: rows are numbers of the corpus, int64.

    Attributes
    ----------
    kept : (K,)
        Ascending: no two of them are as similar as the threshold.
    removed : (R,)
        Ascending. Deleted rows of the corpus are in neither.
    of : (R,)
        The kept row that stands for each removed one: the most similar of those that precede it, ties to the lowest.
    similarity : (R,) float32
        Of the two.
    pairs : (M, 2), or None
        With ``pairs``: all pairs of similar rows, the lower first, in ascending order.
    pair_similarity : (M,) float32, or None
        Their similarities.
    groups : (N,), or None
        With ``groups``: the lowest row that each row is connected with by pairs, itself where there is none; -1 for
        deleted rows.
    recall : float, or None
        With an index: which share of the similar pairs of 256 rows it finds; NaN where these have none.
    """

    __module__ = "ragsys_kernels"


@hinted(_OP, "search")
def duplicates(
    embeddings: ArrayLike | Rows,
    threshold: float,
    *,
    quality: ArrayLike | None = None,
    pairs: bool = False,
    groups: bool = False,
    index: Any = None,
    neighbors: int | None = None,
    metric: Metric = "cosine",
    backend: Literal["auto", "cpu", "reference"] = "auto",
    num_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Duplicates:
    """Return which rows of a corpus to keep so that no two of them are too similar, and what stands for the others.

    Rows are taken in their order, or from most to least quality. Each is kept unless its similarity to a row kept
    before is at least the threshold.

    Parameters
    ----------
    embeddings : Corpus, or (N, D) as `Corpus` takes them
        On the host.
    threshold : float
        Within [-1, 1] for cosines; of "dot", any number of float32. Rounded to float32.
    quality : (N,) numbers, optional
        Of two similar rows that of more quality is kept, ties to the lowest row. Default: the first.
    pairs, groups : bool
        Find all similar pairs, and which rows they connect. Their number may grow with the square of N: more than 2^28
        are an error.
    index : faiss.Index, usearch.index.Index or Corpus, optional
        Finds the ``neighbors`` nearest rows of each, as in `Corpus.search`; pairs that it does not find are not known.
        Similarities are exact. ``recall`` of the result says how good it is.
    neighbors : int, optional
        With an index: rows that it finds for each. Default: 32.
    metric : {"cosine", "dot"}
        Of an array; a Corpus has its own.
    backend : {"auto", "cpu", "reference"}
        "reference": products by NumPy. "cpu" multiplies bytes where the processor has AVX512-VNNI, otherwise it does as
        "reference".
    num_threads : int, optional
        Of the kernel; NumPy's products have the threads of its BLAS.
    progress : callable, optional
        Called with the rows done and their number.

    Returns
    -------
    Duplicates

    Raises
    ------
    ValueError, TypeError
        A value that breaks a rule above; what `Corpus` refuses.

    Notes
    -----
    Exact, and the same for any backend and number of threads: a similarity is computed in float64 and rounded to
    float32. O(N K W) products of bytes for K kept rows and sketches of W bytes, W below D where rows spread more in
    some directions than in others; O(N W) memory beside the corpus. The threshold of pairs that are duplicates is known
    from looking at some: 0.9 to 0.95 for sentence embeddings is usual.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> rows = np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1], [1, 0]], np.float32)
    >>> found = rk.duplicates(rows, 0.99)
    >>> found.kept, found.removed, found.of
    (array([0, 1]), array([2, 3, 4]), array([0, 1, 0]))
    """
    corpus = _corpus(embeddings, metric)
    limit = _threshold(corpus, threshold)
    pairs, groups = checks.flag(_OP, "pairs", pairs), checks.flag(_OP, "groups", groups)
    if neighbors is not None and checks.count(_OP, "neighbors", neighbors) and index is None:
        raise ValueError(f"{_OP}: neighbors must come with index, got {neighbors} alone")
    near = _NEIGHBORS if neighbors is None else neighbors
    threads = checks.threads(_OP, num_threads)
    checks.function(_OP, "progress", progress)
    having = "auto", "cpu", "reference"
    compiled = _dispatch.choose(_OP, "selection", "cpu", backend, having=having)[0] == "cpu"
    order = _order(corpus, quality)
    found = _Greedy(len(corpus), pairs or groups)
    if index is None:
        standing = Standing(corpus, order, limit, compiled, threads)
        for begin in range(0, len(order), _BLOCK):
            found.take(standing, standing.block(order[begin : begin + _BLOCK]))
            if progress is not None:
                progress(min(begin + _BLOCK, len(order)), len(order))
        recall = None
    else:
        found.take_listed(order, _by_index(corpus, order, limit, index, near, threads, progress))
        recall = _recall(corpus, order, limit, index, near, compiled, threads)
    return found.result(pairs, groups, recall)


def _corpus(embeddings: Any, metric: Metric) -> Any:
    corpus: Any = embeddings if isinstance(embeddings, Rows) else Corpus(embeddings, metric=metric)
    if metric not in ("cosine", corpus.metric):
        raise ValueError(f"{_OP}: metric must be the corpus's own, {corpus.metric!r}, got {metric!r}")
    if corpus.device != "cpu":
        raise ValueError(f"{_OP}: embeddings must be on the host, got them on {corpus.device}")
    return corpus


def _threshold(corpus: Rows, threshold: Any) -> float:
    limit = checks.number(_OP, "threshold", threshold)
    most = 1.0 if corpus.metric == "cosine" else float(np.finfo(np.float32).max)
    if not abs(limit) <= most:
        rule = "within [-1, 1]" if most == 1 else "within the range of float32"
        raise ValueError(f"{_OP}: threshold must be {rule}, got {checks.shown(threshold)}")
    return limit


def _order(corpus: Any, quality: Any) -> np.ndarray:
    """Return the rows that are not deleted in the order in which they are taken."""
    rows = np.arange(len(corpus)) if corpus.live is None else np.flatnonzero(corpus.live)
    if quality is None:
        return rows
    values = checks.doubles(_OP, "quality", quality)
    checks.expect_shape(_OP, "quality", values, ((len(corpus),), "(N,)"))
    if np.isnan(values).any():
        raise ValueError(f"{_OP}: quality must be numbers, got NaN in row {int(np.argmax(np.isnan(values)))}")
    return rows[np.argsort(-values[rows], kind="stable")]


class _Greedy:
    """The rows that are kept so far, and what stands for the others."""

    def __init__(self, num_rows: int, all_pairs: bool) -> None:
        self._kept = np.zeros(num_rows, bool)
        self._of = np.full(num_rows, -1, np.int64)
        self._similarity = np.zeros(num_rows, np.float32)
        self._all, self._num_pairs = all_pairs, 0
        self._pairs = [Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))]

    def take(self, standing: Standing, block: Block) -> None:
        """Take the rows of a block, after those that stand: kept ones or, where all pairs are wanted, all before."""
        before = standing.similar(block, not self._all)
        closest = most_similar(Pairs(*(each[self._kept[before.rows]] for each in before))) if self._all else before
        rows = block.rows
        self._of[rows[closest.of]], self._similarity[rows[closest.of]] = closest.rows, closest.similarity
        new = self._of[rows] < 0
        within = standing.among(block, new | self._all)
        self._kept[rows] = new
        for some in _runs(within.of):
            self._choose(int(rows[within.of[some.start]]), rows[within.rows[some]], within.similarity[some])
        if self._all:
            self._note(rows[before.of], before.rows, before.similarity)
            self._note(rows[within.of], rows[within.rows], within.similarity)
        standing.add(block, np.ones(len(rows), bool) if self._all else self._kept[rows])

    def _choose(self, row: int, others: np.ndarray, similarity: np.ndarray) -> None:
        """Let the most similar kept one of some rows that precede it stand for a row, if it is more so than any yet."""
        kept = self._kept[others]
        if not kept.any():
            return
        others, similarity = others[kept], similarity[kept]
        best = int(np.lexsort((others, -similarity))[0])
        found = (-float(similarity[best]), int(others[best]))
        if self._of[row] < 0 or found < (-float(self._similarity[row]), int(self._of[row])):
            self._of[row], self._similarity[row] = others[best], similarity[best]
        self._kept[row] = False

    def _note(self, later: np.ndarray, earlier: np.ndarray, similarity: np.ndarray) -> None:
        self._num_pairs += len(later)
        if self._num_pairs > _MOST_PAIRS:
            rule = f"leave at most {_MOST_PAIRS} similar pairs where these are asked for"
            raise ValueError(f"{_OP}: threshold must {rule}, got more")
        self._pairs.append(Pairs(np.minimum(later, earlier), np.maximum(later, earlier), similarity))

    def take_listed(self, order: np.ndarray, found: Pairs) -> None:
        """Take rows in an order, of pairs (rows, rows) that are known."""
        place = np.empty(len(self._kept), np.int64)
        place[order] = np.arange(len(order))
        swap = place[found.of] < place[found.rows]
        later, earlier = np.where(swap, found.rows, found.of), np.where(swap, found.of, found.rows)
        self._note(later, earlier, found.similarity)
        by_later = np.argsort(place[later], kind="stable")
        later, earlier, similarity = later[by_later], earlier[by_later], found.similarity[by_later]
        self._kept[order] = True
        for some in _runs(later):
            self._choose(int(later[some.start]), earlier[some], similarity[some])

    def result(self, pairs: bool, groups: bool, recall: float | None) -> Duplicates:
        kept, removed = np.flatnonzero(self._kept), np.flatnonzero(self._of >= 0)
        made = Duplicates(kept, removed, self._of[removed], self._similarity[removed], recall=recall)
        if not (pairs or groups):
            return made
        low, high, similarity = (np.concatenate(each) for each in zip(*self._pairs, strict=True))
        if groups:
            label = _connected(len(self._kept), low, high)
            made = made._replace(groups=np.where(self._kept | (self._of >= 0), label, -1))
        if pairs:
            order = np.lexsort((high, low))
            both = np.stack([low[order], high[order]], axis=1)
            made = made._replace(pairs=both, pair_similarity=similarity[order])
        return made


def _runs(ordered: np.ndarray) -> Iterator[slice]:
    """Yield where equal numbers of at least 0 stand together."""
    begin = 0
    for last in np.flatnonzero(np.diff(ordered, append=-1)).tolist():
        yield slice(begin, last + 1)
        begin = last + 1


def _connected(num_rows: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the lowest row that each row is connected with, by pairs."""
    label = np.arange(num_rows)
    while True:
        a, b = label[low], label[high]
        apart = a != b
        if not apart.any():
            return label
        np.minimum.at(label, np.maximum(a, b)[apart], np.minimum(a, b)[apart])
        while (further := label[label]).tobytes() != label.tobytes():
            label = further


def _by_index(
    corpus: Any, order: np.ndarray, limit: float, index: Any, neighbors: int, threads: int, progress: Any
) -> Pairs:
    """Return the similar pairs that an index finds, each once."""
    parts = []
    for begin in range(0, len(order), _BLOCK):
        rows = order[begin : begin + _BLOCK]
        parts.append(_found(corpus, rows, limit, index, neighbors, threads))
        if progress is not None:
            progress(min(begin + _BLOCK, len(order)), len(order))
    low, high, similarity = (np.concatenate(each) for each in zip(*parts, strict=True))
    _, first = np.unique(np.stack([low, high], axis=1), axis=0, return_index=True)
    return Pairs(low[first], high[first], similarity[first])


def _found(corpus: Any, rows: np.ndarray, limit: float, index: Any, neighbors: int, threads: int) -> Pairs:
    """Return the similar pairs of some rows that an index finds, the lower row first."""
    queries = corpus.vectors(rows).astype(np.float32)
    found = corpus.search(queries, neighbors + 1, lambda_b=1.0, index=index, num_threads=threads).indices
    of, others = np.repeat(rows, found.shape[1]), found.ravel()
    real = (others >= 0) & (others != of)
    low, high = np.minimum(of, others)[real], np.maximum(of, others)[real]
    similarity = similarities(corpus, low, high)
    enough = similarity >= np.float32(limit)
    return Pairs(low[enough], high[enough], similarity[enough])


def _recall(
    corpus: Any, order: np.ndarray, limit: float, index: Any, neighbors: int, compiled: bool, threads: int
) -> float:
    """Return which share of the similar pairs of some rows an index finds."""
    standing = Standing(corpus, order, limit, compiled, threads)
    for begin in range(0, len(order), _BLOCK):
        rows = order[begin : begin + _BLOCK]
        standing.add(standing.block(rows), np.ones(len(rows), bool))
    some = np.sort(order[:: -(-len(order) // _QUERIES)])
    block = standing.block(some)
    exact = standing.similar(block, False)
    each = zip(some[exact.of].tolist(), exact.rows.tolist(), strict=True)
    true = {(min(a, b), max(a, b)) for a, b in each if a != b}
    found = _found(corpus, some, limit, index, neighbors, threads)
    known = set(zip(found.of.tolist(), found.rows.tolist(), strict=True))
    return len(true & known) / len(true) if true else float("nan")
