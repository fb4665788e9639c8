"""Problems to try a selection on, and a check of its picks that depends on no backend.

`check_selection` replays the picks in float64: at each step the pick must be worth as much as the best item still
available, within the rounding error of float32 products. So it accepts near-ties and no other difference, from any
implementation, backend or instruction set.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import _arrays
from ._warn import warn
from .selection import validate
from .selection.problem import Rows, Selection

KINDS = ("random", "clustered", "duplicates", "integers")

_EPS = float(np.finfo(np.float32).eps)


def selection_problem(
    Q: int,
    P: int,
    K: int,
    D: int,
    *,
    N: int | None = None,
    dtype: str = "float32",
    kind: str = "random",
    dense: bool = False,
    ragged: bool = False,
    bias: bool = False,
    groups: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Return arguments for `mmr` (and, without ``bias``, for `vrsd`).

    Parameters
    ----------
    Q, P, K, D : int
        Queries, pool size, picks, dimensions.
    N : int, optional
        Rows of the corpus. Default: 2 P. ``N == P`` gives every query the whole corpus in its own order.
    dtype : {"float32", "float16", "bfloat16"}
        Storage type of the embeddings. bfloat16 needs torch and gives a torch tensor.
    kind : {"random", "clustered", "duplicates", "integers"}
        Normal rows; rows close to few centres; rows of which many are equal; whole numbers in [-3, 3] with
        ``metric="dot"`` and lambdas of 1/2, so that every float32 sum is exact and ties are ties.
    dense : bool
        Pools (Q, P, D) instead of a corpus with candidates.
    ragged : bool
        Replace a random share of every query's candidates by -1, in any place.
    bias, groups : bool
        Add a bias per row; add groups of about four rows with ``query_groups`` and ``max_per_group=2``.

    Returns
    -------
    dict
        Keyword arguments: ``mmr(**selection_problem(...))``.
    """
    if kind not in KINDS:
        raise ValueError(f"selection_problem: kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    rng = np.random.default_rng(seed)
    N = Q * P if dense else N or 2 * P
    rows = _rows(rng, N, D, kind)
    queries = _rows(rng, Q, D, "integers" if kind == "integers" else "random")
    problem: dict[str, Any] = {"queries": queries, "k": K}
    if dtype == "bfloat16":
        import torch

        embeddings: Any = torch.from_numpy(rows).to(torch.bfloat16)
    else:
        embeddings = rows.astype(dtype)
    if dense:
        problem["embeddings"] = embeddings.reshape(Q, P, D)
    else:
        problem["embeddings"] = embeddings
        candidates = np.stack([rng.permutation(N)[:P] for _ in range(Q)])
        if ragged:
            candidates[rng.random((Q, P)) < rng.random((Q, 1))] = -1
        problem["candidates"] = candidates
    shape = (Q, P) if dense else (N,)
    if kind == "integers":
        problem.update(metric="dot", lambda_d=0.5, lambda_b=0.5)
    if bias:
        integers = rng.integers(-3, 4, shape)
        problem["bias"] = (integers if kind == "integers" else rng.standard_normal(shape)).astype(np.float32)
    if groups:
        problem["groups"] = rng.integers(0, max(1, N // 4), shape)
        problem["query_groups"] = rng.choice(problem["groups"].reshape(-1), Q)
        problem["max_per_group"] = 2
    return problem


def _rows(rng: np.random.Generator, N: int, D: int, kind: str) -> np.ndarray:
    if kind == "integers":
        return rng.integers(-3, 4, (N, D)).astype(np.float32)
    rows = rng.standard_normal((N, D)).astype(np.float32)
    if kind == "clustered":
        centres = rng.standard_normal((max(1, N // 10), D)).astype(np.float32)
        rows = centres[rng.integers(0, len(centres), N)] + np.float32(0.1) * rows
    elif kind == "duplicates":
        rows = rows[rng.integers(0, max(1, N // 3), N)]
    return rows


class Work(NamedTuple):
    """The work of a selection on the CPU backend, summed over the queries."""

    products: int  # dot products of D dimensions
    rows_read: int  # rows of the corpus that were read
    bytes_read: int  # their bytes
    dense_products: int  # dot products without bounds
    code_products: int  # products of 8-bit codes, which read no row


def selection_work(
    method: str, problem: dict[str, Any], *, bounds: str = "automatic", rule: str | None = None
) -> tuple[Selection, Work]:
    """Run a selection on the CPU backend and count its work.

    Parameters
    ----------
    method : {"mmr", "vrsd"}
    problem : dict
        The arguments of the call, as for `mmr` or `vrsd`.
    bounds : {"automatic", "dense", "pruned", "coded"}
        Which bounds leave out dot products: "automatic" lets the kernel choose, "dense" uses none, "pruned" the
        triangle inequality, "coded" the codes of a `Corpus`. The picks are the same.
    rule
        The former name of ``bounds``.
    """
    if rule is not None:
        warn("selection_work: rule is called bounds now, and goes with the next release", DeprecationWarning)
        bounds = rule
    from .selection import cpu

    defaults = {"lambda_d": 0.75, "lambda_b": 0.95} if method == "mmr" else {}
    checked = validate.selection(method, **{**defaults, **problem})
    selection, (products, rows_read, code_products) = cpu.run(checked, 1, bounds)
    relevance = 0 if checked.relevance is not None and method == "mmr" else 1
    pools = [len(checked.eligible(q)[0]) for q in range(checked.num_queries)]
    picks = [min(n, int(k)) for n, k in zip(pools, np.broadcast_to(problem["k"], len(pools)), strict=True)]
    dense = sum(n * relevance + sum(n - step for step in range(1, k)) for n, k in zip(pools, picks, strict=True))
    row_bytes = checked.rows.data.shape[1] * checked.rows.data.itemsize
    return selection, Work(int(products), int(rows_read), int(rows_read) * row_bytes, dense, int(code_products))


def check_selection(method: str, problem: dict[str, Any], result: Any, *, tolerance: float | None = None) -> None:
    """Assert that a selection is one that exact arithmetic allows.

    Parameters
    ----------
    method : {"mmr", "vrsd"}
    problem : dict
        The arguments of the call, as for `mmr` or `vrsd`; ``embeddings`` may be a Corpus.
    result : Selection
        What the call returned.
    tolerance : float, optional
        The error that a value may have for unit vectors. Default: that of float32 products, eps * (8 + sqrt(D)). It is
        scaled by the largest product with ``metric="dot"``, and by the cancellation in the sum for VRSD.

    Raises
    ------
    AssertionError
        With query and step: an item was not available or not best; the number of picks or the padding is wrong; a
        score, relevance or redundancy is not that of the item.
    """
    if method not in ("mmr", "vrsd"):
        raise ValueError(f"check_selection: method must be 'mmr' or 'vrsd', got {method!r}")
    indices, scores, relevance, redundancy, lengths = (np.asarray(field) for field in result)
    replay = _Replay(method, problem, tolerance)
    k = np.asarray(problem["k"])
    assert indices.shape == scores.shape == relevance.shape == redundancy.shape == (replay.Q, int(k.max())), (
        f"check_selection: results must have shape (Q, K) = ({replay.Q}, {k.max()}), got {indices.shape}"
    )
    assert lengths.shape == (replay.Q,)
    for q, wanted in enumerate(np.broadcast_to(k, (replay.Q,))):
        made = replay.query(q, int(wanted), indices[q], scores[q], relevance[q], redundancy[q])
        assert lengths[q] == made, f"query {q}: lengths must be {made}, got {lengths[q]}"
        rest = slice(made, None)
        padded = (indices[q, rest] == -1).all() and np.isneginf(scores[q, rest]).all()
        assert padded and np.isnan([relevance[q, rest], redundancy[q, rest]]).all(), (
            f"query {q}: padding after {made} picks"
        )


class _Replay:
    """The arguments of a call in float64, and the walk along the picks of a query."""

    def __init__(self, method: str, problem: dict[str, Any], tolerance: float | None) -> None:
        self.vrsd = method == "vrsd"
        get = problem.get
        embeddings = problem["embeddings"]
        metric = get("metric", "cosine")
        corpus = embeddings if isinstance(embeddings, Rows) else None
        if corpus is not None:
            metric, data, dtype = corpus.metric, corpus.data, corpus.dtype
        else:
            data, dtype = _arrays.host_view("check_selection", "embeddings", embeddings)
        self.dense = data.ndim == 3
        vectors = _arrays.widen(data, dtype).astype(np.float64).reshape(-1, data.shape[-1])
        if corpus is not None and corpus.scales is not None:
            vectors *= corpus.scales[:, None]
        norms = np.sqrt((vectors**2).sum(axis=1))
        unit_rows = vectors / np.where(norms > 0, norms, 1)[:, None]
        self.e = unit_rows if metric == "cosine" else vectors
        self.norms = np.sqrt((self.e**2).sum(axis=1))
        N, D = self.e.shape

        queries = get("queries")
        relevance = get("relevance")
        if queries is not None:
            queries = self._floats("queries", queries)
            self.Q = len(queries)
            lengths = np.sqrt((queries**2).sum(axis=1))
            unit_queries = queries / np.where(lengths > 0, lengths, 1)[:, None]
            self.unit_queries = unit_queries
            self.queries = unit_queries if metric == "cosine" or self.vrsd else queries
        elif relevance is not None:
            self.Q = len(relevance)
        self.relevance = None if relevance is None else self._floats("relevance", relevance)
        P = N // self.Q if self.dense else N
        self.base = P if self.dense else 0
        candidates = get("candidates")
        self.candidates = np.tile(np.arange(P), (self.Q, 1)) if candidates is None else np.asarray(candidates).copy()
        for q, pool in enumerate(self.candidates):
            pool[[item >= 0 and not self._may(problem, q, int(item)) for item in pool]] = -1
        bias = get("bias")
        if bias is None and corpus is not None and not self.vrsd:
            bias = corpus.bias
        self.bias = None if bias is None else self._floats("bias", bias)
        if self.dense and self.bias is not None:
            self.bias = self.bias.reshape(-1)
        groups = get("groups")
        if groups is None and corpus is not None:
            groups = corpus.groups
        self.groups = None if groups is None else np.asarray(groups).reshape(-1)
        self.query_groups = get("query_groups")
        self.cap = get("max_per_group") or np.inf
        self.initial = get("initial")
        self.lambda_d = np.broadcast_to(get("lambda_d", 0.75), (self.Q,))
        self.lambda_b = np.broadcast_to(get("lambda_b", 0.95), (self.Q,))
        self.tolerance = _EPS * (8 + np.sqrt(D)) if tolerance is None else tolerance

    @staticmethod
    def _may(problem: dict[str, Any], q: int, item: int) -> bool:
        """Return whether ``allowed`` and ``exclude`` let a query have an item."""
        for name in ("allowed", "exclude"):
            if problem.get(name) is None:
                continue
            given = np.asarray(problem[name])
            of_query = given[q] if given.ndim == 2 else given
            among = bool(of_query[item]) if given.dtype == bool else item in of_query.tolist()
            if among != (name == "allowed"):
                return False
        return True

    @staticmethod
    def _floats(name: str, x: Any) -> np.ndarray:
        array, dtype = _arrays.host_view("check_selection", name, x)
        return (_arrays.widen(array, dtype) if dtype == "bfloat16" else array).astype(np.float64)

    def query(
        self,
        q: int,
        wanted: int,
        indices: np.ndarray,
        scores: np.ndarray,
        relevance: np.ndarray,
        redundancy: np.ndarray,
    ) -> int:
        """Walk along the picks of one query; return how many there must be."""
        positions = [p for p, item in enumerate(self.candidates[q]) if item >= 0]
        rows = [int(self.candidates[q][p]) + q * self.base for p in positions]
        picked: list[int] = []
        if self.initial is not None:
            picked = [int(item) + q * self.base for item in np.asarray(self.initial)[q] if item >= 0]
        shown = set(picked)
        r = {row: self._relevance(q, p, row) for p, row in zip(positions, rows, strict=True)}
        v = {row: self._with_bias(q, p, row, r[row]) for p, row in zip(positions, rows, strict=True)}
        available = [row for row in rows if row not in shown]
        if self.query_groups is not None:
            assert self.groups is not None
            available = [row for row in available if self.groups[row] != np.asarray(self.query_groups)[q]]
        largest = max([1.0, *(abs(x) for x in v.values()), *(self.norms[row] ** 2 for row in rows)])

        for step in range(wanted):
            open_rows = [row for row in available if self._group_count(picked, row) < self.cap]
            if not open_rows:
                return step
            values, errors, m = self._values(q, open_rows, picked, r, v)
            errors = errors * self.tolerance * (1 if self.vrsd else largest)
            row = int(indices[step]) + q * self.base
            where = f"query {q}, step {step}: item {indices[step]}"
            assert row in open_rows, f"{where} was not available"
            i = open_rows.index(row)
            best = int(np.argmax(values - errors))
            assert values[i] + errors[i] >= values[best] - errors[best], (
                f"{where} is worth {values[i]:.9g}, but item {open_rows[best] - q * self.base} {values[best]:.9g}"
            )
            first = not picked
            score = self.lambda_d[q] * v[row] if first and not self.vrsd else values[i]
            self._close(where, "score", scores[step], score, errors[i])
            self._close(where, "relevance", relevance[step], r[row] if self.vrsd else v[row], self.tolerance * largest)
            if self.vrsd:
                assert np.isnan(redundancy[step]), f"{where} has redundancy {redundancy[step]}, not NaN"
            else:
                self._close(where, "redundancy", redundancy[step], 0.0 if first else m[i], self.tolerance * largest)
            available.remove(row)
            picked.append(row)
        return wanted

    def _relevance(self, q: int, position: int, row: int) -> float:
        if self.relevance is not None:
            return float(self.relevance[q, position])
        product = float(self.e[row] @ self.queries[q])
        if not self.vrsd:
            return product
        return product / self.norms[row] if self.norms[row] > 0 else 0.0

    def _with_bias(self, q: int, position: int, row: int, r: float) -> float:
        if self.bias is None:
            return r
        b = self.bias[row] if self.bias.ndim == 1 else self.bias[q, position]
        return float(self.lambda_b[q] * r + (1 - self.lambda_b[q]) * b)

    def _group_count(self, picked: list[int], row: int) -> int:
        if self.groups is None:
            return 0
        return sum(self.groups[other] == self.groups[row] for other in picked)

    def _values(
        self, q: int, rows: list[int], picked: list[int], r: dict[int, float], v: dict[int, float]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return values of the open items, their errors in units of the tolerance, and their largest similarities."""
        e, chosen = self.e[rows], self.e[picked]
        m = (e @ chosen.T).max(axis=1, initial=-np.inf)
        errors = np.ones(len(rows))
        if not self.vrsd:
            lambda_d = self.lambda_d[q]
            relevance = np.array([v[row] for row in rows])
            return (relevance if not picked else lambda_d * relevance - (1 - lambda_d) * m), errors, m
        if not picked:
            return np.array([r[row] for row in rows]), errors, m
        s = chosen.sum(axis=0) + e
        norms = np.sqrt((s**2).sum(axis=1))
        lengths = self.norms[picked].sum() + self.norms[rows]
        squares = (self.norms[picked] ** 2).sum() + self.norms[rows] ** 2
        # Items of the pool count with their relevance, initial items outside it with their own product.
        known = sum(
            r[row] * self.norms[row] if row in r and self._was_open(q, row) else self._own(q, row) for row in picked
        )
        products = known + np.array([r[row] * self.norms[row] for row in rows])
        zero = norms <= 1e-6 * lengths
        values = np.divide(products, norms, out=np.zeros_like(norms), where=~zero)
        errors = 1 + 2 * np.divide(squares, norms**2, out=np.zeros_like(norms), where=~zero)
        errors = errors * np.maximum(1, np.abs(values))  # a relevance that is given may not be a cosine
        errors[(norms > 0.5e-6 * lengths) & (norms < 2e-6 * lengths)] = np.inf  # zero or not: either is right
        return values, errors, m

    def _was_open(self, q: int, row: int) -> bool:
        return self.initial is None or row - q * self.base not in np.asarray(self.initial)[q]

    def _own(self, q: int, row: int) -> float:
        return float(self.e[row] @ self.unit_queries[q])

    @staticmethod
    def _close(where: str, name: str, got: Any, expected: float, tolerance: float) -> None:
        error = abs(float(got) - expected)
        assert error <= tolerance + _EPS * abs(expected), f"{where} has {name} {got:.9g}, expected {expected:.9g}"
