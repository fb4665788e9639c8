"""The arguments of a selection in float64, and the walk along its picks, which depends on no backend."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from .._base import arrays
from ..selection.problem import Rows
from .replay_rules import RULES, Query

_EPS = float(np.finfo(np.float32).eps)


def _scaled(values: list[float], scale: str) -> list[float]:
    """Return relevance on a scale, by its definition, in the precision in which rules get it."""
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    if scale == "minmax":
        made = [(x - min(values)) / (max(values) - min(values)) for x in values]
    elif scale == "zscore":
        made = [(x - statistics.fmean(values)) / statistics.pstdev(values) for x in values]
    else:
        less = [sum(y < x for y in values) + (sum(y == x for y in values) - 1) / 2 for x in values]
        made = [x / (len(values) - 1) for x in less]
    return [float(np.float32(x)) for x in made]


class Replay:
    """The arguments of a call in float64, and the walk along the picks of a query."""

    def __init__(self, method: str, problem: dict[str, Any], tolerance: float | None) -> None:
        self.method, self.problem = method, problem
        self.vrsd = method == "vrsd"
        self.own_relevance = method in ("vrsd", "sift")  # no bias
        get = problem.get
        embeddings = problem["embeddings"]
        metric = get("metric", "cosine")
        corpus = embeddings if isinstance(embeddings, Rows) else None
        if corpus is not None:
            metric, data, dtype = corpus.metric, corpus.data, corpus.dtype
        else:
            data, dtype = arrays.host_view("check_selection", "embeddings", embeddings)
        self.dense = data.ndim == 3
        vectors = arrays.widen(data, dtype).astype(np.float64)
        vectors = vectors.reshape(-1, vectors.shape[-1])
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
            signs = dtype == "binary" and np.shape(queries)[-1:] == data.shape[-1:]
            packed = arrays.widen(arrays.signs(np.asarray(queries)), "binary") if signs else queries
            queries = self._floats("queries", packed)
            self.Q = len(queries)
            lengths = np.sqrt((queries**2).sum(axis=1))
            unit_queries = queries / np.where(lengths > 0, lengths, 1)[:, None]
            self.unit_queries = unit_queries
            self.queries = unit_queries if metric == "cosine" or self.own_relevance else queries
        elif relevance is not None:
            self.Q = len(relevance)
        self.relevance = None if relevance is None else self._floats("relevance", relevance)
        P = N // self.Q if self.dense else N
        self.base = P if self.dense else 0
        candidates = get("candidates")
        self.candidates = np.tile(np.arange(P), (self.Q, 1)) if candidates is None else np.asarray(candidates).copy()
        if self.relevance is not None and get("relevance_scale", "as-is") != "as-is":
            real = self.candidates >= 0
            if candidates is None and corpus is not None and corpus.live is not None:
                real &= corpus.live
            for row, kept in zip(self.relevance, real, strict=True):
                row[kept] = _scaled(row[kept].tolist(), problem["relevance_scale"])
        for q, pool in enumerate(self.candidates):
            pool[[item >= 0 and not self._may(problem, q, int(item)) for item in pool]] = -1
        bias = get("bias")
        if bias is None and corpus is not None and not self.own_relevance:
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
        usual = 0.75 if method in ("mmr", "vrsd", "msd") else 0.5
        self.lambda_d = np.broadcast_to(get("lambda_d", usual), (self.Q,))
        self.metric = metric
        self._read_limits(corpus)
        self.lambda_b = np.broadcast_to(get("lambda_b", 0.95), (self.Q,))
        self.tolerance = _EPS * (8 + np.sqrt(D)) if tolerance is None else tolerance

    def _read_limits(self, corpus: Rows | None) -> None:
        get = self.problem.get
        budget, ceiling, costs = get("budget"), get("max_similarity"), get("costs")
        self.budget = None if budget is None else np.broadcast_to(np.asarray(budget, np.float64), (self.Q,))
        self.ceiling = None if ceiling is None else np.broadcast_to(np.asarray(ceiling, np.float32), (self.Q,))
        if costs is None and corpus is not None:
            costs = corpus.costs
        self.costs = None if budget is None else np.asarray(costs, np.float64)

    def _cost(self, q: int, position: int, row: int) -> float:
        if self.costs is None:
            return 0.0
        return float(self.costs[row] if self.costs.ndim == 1 else self.costs[q, position])

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
        array, dtype = arrays.host_view("check_selection", name, x)
        return (arrays.widen(array, dtype) if dtype == "bfloat16" else array).astype(np.float64)

    def query(
        self,
        q: int,
        wanted: int,
        indices: np.ndarray,
        scores_given: np.ndarray,
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

        if not available:
            return 0
        self.pool = list(available)
        self.places = {row: p for p, row in zip(positions, rows, strict=True)}
        costs = {row: self._cost(q, self.places[row], row) for row in available}
        spent, total, singles = 0.0, 0.0, (0.0, 0.0)
        for step in range(wanted):
            open_rows = [row for row in available if self._group_count(picked, row) < self.cap]
            if self.costs is not None:
                assert self.budget is not None
                open_rows = [row for row in open_rows if spent + costs[row] <= self.budget[q]]
            open_rows, values, errors, scores, m, doubtful = self._open(q, open_rows, picked, r, v, largest)
            if not open_rows or (all(doubtful) and indices[step] == -1):
                return self._ended(q, step, total, singles)
            row = int(indices[step]) + q * self.base
            where = f"query {q}, step {step}: item {indices[step]}"
            assert row in open_rows, f"{where} was not available"
            i = open_rows.index(row)
            lowest = np.where(doubtful, -np.inf, values - errors)
            best = int(np.argmax(lowest))
            if self._density() and step == 0:
                at = int(np.argmax(np.where(doubtful, -np.inf, scores)))
                singles = float(scores[at]), float(errors[at] * self._divisor(q, costs[open_rows[at]]))
                error = 1e-4 * max(1.0, abs(singles[0]))
                alone = (indices[1:] == -1).all() and scores[i] >= singles[0] - error  # perhaps instead of the picks
                if alone and singles[0] > self._total(q, wanted, available, r, v, largest, costs) - error:
                    self._close(where, "score", scores_given[step], scores[i], singles[1])
                    return 1
            assert values[i] + errors[i] >= lowest[best], (
                f"{where} is worth {values[i]:.9g}, but item {open_rows[best] - q * self.base} {values[best]:.9g}"
            )
            first = not picked
            score = self.lambda_d[q] * v[row] if first and self.method == "mmr" else scores[i]
            error = errors[i] * (self._divisor(q, costs[row]) if self._density() else 1)
            if self.method == "sift":  # 1 less all gains so far
                error += self.tolerance
            self._close(where, "score", scores_given[step], score, error)
            reported = r[row] if self.own_relevance else v[row]
            self._close(where, "relevance", relevance[step], reported, self.tolerance * largest)
            expected = self._redundancy(row, picked, m[i])
            if np.isnan(expected):
                assert np.isnan(redundancy[step]), f"{where} has redundancy {redundancy[step]}, not NaN"
            else:
                self._close(where, "redundancy", redundancy[step], expected, self.tolerance * largest)
            available.remove(row)
            picked.append(row)
            spent += costs[row]
            total += score
        return self._ended(q, wanted, total, singles)

    def _density(self) -> bool:
        return bool(self.problem.get("density"))

    def _divisor(self, q: int, cost: float) -> float:
        """Return what a value is divided by for `density`."""
        assert self.budget is not None
        budget = float(self.budget[q])
        return max(cost, 1e-4 * budget if budget < np.inf else 0, 1e-30)

    def _ended(self, q: int, made: int, total: float, singles: tuple[float, float]) -> int:
        """Return how many picks there must be; refuse picks that one item alone is worth more than."""
        best, error = singles
        assert not self._density() or best <= total + (1 + made) * error + _EPS * abs(total), (
            f"query {q}: one item is worth {best:.9g}, the picks {total:.9g}"
        )
        return made

    def _total(
        self,
        q: int,
        wanted: int,
        available: list[int],
        r: dict[int, float],
        v: dict[int, float],
        largest: float,
        costs: dict[int, float],
    ) -> float:
        """Return what the picks by value per cost are worth together."""
        left, picked, spent, total = list(available), [], 0.0, 0.0
        if self.initial is not None:
            picked = [int(item) + q * self.base for item in np.asarray(self.initial)[q] if item >= 0]
        assert self.budget is not None
        for _ in range(wanted):
            fits = [row for row in left if self._group_count(picked, row) < self.cap]
            fits = [row for row in fits if spent + costs[row] <= self.budget[q]]
            fits, values, _, worth, _, _ = self._open(q, fits, picked, r, v, largest)
            if not fits:
                break
            j = int(np.argmax(values))
            total, spent = total + float(worth[j]), spent + costs[fits[j]]
            left.remove(fits[j])
            picked.append(fits[j])
        return total

    def _redundancy(self, row: int, picked: list[int], m: float) -> float:
        if self.method == "msd":
            return float((self.e[picked] @ self.e[row]).mean()) if picked else 0.0
        if self.method != "mmr" and self.ceiling is None:
            return np.nan
        return float(m) if picked else 0.0

    def _open(
        self, q: int, rows: list[int], picked: list[int], r: dict[int, float], v: dict[int, float], largest: float
    ) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return what rule and ceiling leave of some items: values, errors, scores, largest similarities, doubts."""
        doubtful = np.zeros(len(rows), bool)
        if self.method in RULES:
            x = self._query(q, picked, r, v, largest)
            found = RULES[self.method](x)
            at = [self.pool.index(row) for row in rows]
            values, errors, scores = found.values[at], found.errors[at], found.scores[at]
            closed, doubtful = found.closed[at], found.doubtful[at]
            m = (self.e[rows] @ self.e[picked].T).max(axis=1, initial=-np.inf)
        else:
            values, errors, m = self._values(q, rows, picked, r, v)
            errors = errors * self.tolerance * (1 if self.vrsd else largest)
            scores, closed = values, doubtful
        if self.ceiling is not None and picked:
            error = self.tolerance * largest
            closed = closed | (m > self.ceiling[q] + error)
            doubtful = doubtful | (np.abs(m - self.ceiling[q]) <= error)
        keep = ~closed
        kept = [row for row, stays in zip(rows, keep, strict=True) if stays]
        return kept, values[keep], errors[keep], scores[keep], m[keep], doubtful[keep]

    def _query(self, q: int, picked: list[int], r: dict[int, float], v: dict[int, float], largest: float) -> Query:
        options: dict[str, Any] = {"metric": self.metric}
        for name in ("quality", "scale", "gamma", "window", "noise", "min_gain", "kind", "density"):
            if name in self.problem:
                options[name] = self.problem[name]
        for name in ("aspects", "weights"):
            if self.problem.get(name) is not None:
                options[name] = np.asarray(self.problem[name])[q]
        if not isinstance(options.get("quality", ""), str):
            quality = np.asarray(options["quality"])
            at = [self.places[row] for row in self.pool]
            options["quality"] = quality[self.pool] if quality.ndim == 1 else quality[q, at]
        costs = None
        if self.costs is not None:
            costs = np.array([self._divisor(q, self._cost(q, self.places[row], row)) for row in self.pool])
        reported = r if self.own_relevance else v
        v_tolerance = self.tolerance * largest
        if self.relevance is not None:
            values = np.abs([*r.values(), *v.values()]).max()
            v_tolerance = 0.0 if self.bias is None else self.tolerance * values
        return Query(
            self.e[self.pool],
            np.array([reported[row] for row in self.pool]),
            self.e[picked],
            np.array([self.pool.index(row) if row in self.pool else -1 for row in picked], int),
            self.unit_queries[q] if self.problem.get("queries") is not None else None,
            float(self.lambda_d[q]),
            options,
            costs,
            self.tolerance * largest,
            float(v_tolerance),
        )

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
