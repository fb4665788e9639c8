"""The arguments of a selection in float64, and the walk along its picks, which depends on no backend."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .._base import arrays, tables
from ..selection.parameters import DEFAULTS, OPTIONS
from ..selection.problem import Rows
from .replay_rules import NONE, RULES, Query, Values

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


class Pool(NamedTuple):
    """The items that a query may pick at all, apart from limits."""

    q: int
    base: int  # its row for item 0
    rows: np.ndarray  # (n,)
    positions: np.ndarray  # (n,) among the candidates
    reported: np.ndarray  # (n,) relevance with bias; for rules without one the relevance
    costs: np.ndarray  # (n,)
    divisors: np.ndarray  # (n,) with `density`, what values are divided by
    initial: list[int]  # rows
    largest: float  # of the products and relevances of all candidates, at least 1
    largest_given: float  # of relevances


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
        least = get("min_relevance")
        self.least = None if least is None else np.broadcast_to(np.asarray(least, np.float32), (self.Q,))
        lacking = None
        if self.relevance is not None and self.least is not None:
            lacking = self.relevance < self.least[:, None]
        if self.relevance is not None and get("relevance_scale", "as-is") != "as-is":
            real = self.candidates >= 0
            if candidates is None and corpus is not None and corpus.live is not None:
                real &= corpus.live
            for row, kept in zip(self.relevance, real, strict=True):
                row[kept] = _scaled(row[kept].tolist(), problem["relevance_scale"])
        for q, pool in enumerate(self.candidates):  # all are rescaled
            pool[[item >= 0 and not self._may(problem, q, int(item)) for item in pool]] = -1
        self.of_any_relevance = self.candidates.copy()
        if lacking is not None:
            self.candidates[lacking] = -1
        bias = get("bias")
        if bias is None and corpus is not None and not self.own_relevance:
            bias = corpus.bias
        self.bias = None if bias is None else self._floats("bias", bias)
        if self.dense and self.bias is not None:
            self.bias = self.bias.reshape(-1)
        self.query_groups = get("query_groups")
        self.initial = get("initial")
        weights: dict[str, Any] = {"lambda_d": 1.0, "lambda_b": 1.0} | DEFAULTS[method]
        self.lambda_d, self.lambda_b = (
            np.broadcast_to(get(name, weights[name]), (self.Q,)) for name in ("lambda_d", "lambda_b")
        )
        self.metric = metric
        self._read_limits(corpus)
        self.tolerance = _EPS * (8 + np.sqrt(D)) if tolerance is None else tolerance

    def _read_limits(self, corpus: Rows | None) -> None:
        get = self.problem.get
        groups, cap = get("groups"), get("max_per_group")
        if groups is None and corpus is not None and corpus.groups is not None:
            groups = corpus.groups if corpus.group_names is None else corpus.group_names[corpus.groups]
        labels = None if groups is None else tables.texts(groups) if tables.holds_text(groups) else np.asarray(groups)
        # Of each level the groups of all rows, and their caps; minima are of the first.
        self.levels = [] if labels is None else list(labels.reshape(len(self.e), -1).T)
        self.groups = self.levels[0] if self.levels else None
        self.caps = list(cap) if isinstance(cap, (list, tuple, np.ndarray)) else [cap] * len(self.levels)
        self.minima: Any = get("min_per_group")
        budget, ceiling, costs = get("budget"), get("max_similarity"), get("costs")
        self.budget = None if budget is None else np.broadcast_to(np.asarray(budget, np.float64), (self.Q,))
        self.ceiling = None if ceiling is None else np.broadcast_to(np.asarray(ceiling, np.float32), (self.Q,))
        if costs is None and corpus is not None:
            costs = corpus.costs
        self.costs = None if budget is None else np.asarray(costs, np.float64)

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
        pool = self._pool(q)
        picked, left = list(pool.initial), list(range(len(pool.rows)))
        spent, total, singles = 0.0, 0.0, (0.0, 0.0)
        for step in range(wanted):
            at, found, m = self._open(pool, left, picked, spent, wanted - step)
            if not len(at) or (found.doubtful.all() and indices[step] == -1):
                return self._ended(q, step, total, singles)
            row = int(indices[step]) + pool.base
            where = f"query {q}, step {step}: item {indices[step]}"
            assert row in pool.rows[at], f"{where} was not available"
            i = int(np.flatnonzero(pool.rows[at] == row)[0])
            lowest = np.where(found.doubtful, -np.inf, found.values - found.errors)
            best = int(np.argmax(lowest))
            if self._may_be_alone() and step == 0:
                single = int(np.argmax(np.where(found.doubtful, -np.inf, found.scores)))
                singles = float(found.scores[single]), float(found.errors[single] * pool.divisors[at[single]])
                error = 1e-4 * max(1.0, abs(singles[0]))
                alone = (indices[1:] == -1).all() and found.scores[i] >= singles[0] - error  # perhaps instead of all
                if alone and singles[0] > self._total(pool, wanted) - error:
                    self._close(where, "score", scores_given[step], found.scores[i], singles[1])
                    return 1
            assert found.values[i] + found.errors[i] >= lowest[best], (
                f"{where} is worth {found.values[i]:.9g}, "
                f"but item {pool.rows[at[best]] - pool.base} {found.values[best]:.9g}"
            )
            error = found.errors[i] * (pool.divisors[at[i]] if self._density() else 1)
            if self.method == "sift":  # 1 less all gains so far
                error += self.tolerance
            close = self.tolerance * pool.largest
            self._close(where, "score", scores_given[step], found.scores[i], error)
            self._close(where, "relevance", relevance[step], pool.reported[at[i]], close)
            expected = self._redundancy(row, picked, m[i])
            if np.isnan(expected):
                assert np.isnan(redundancy[step]), f"{where} has redundancy {redundancy[step]}, not NaN"
            else:
                self._close(where, "redundancy", redundancy[step], expected, close)
            left.remove(at[i])
            picked.append(row)
            spent += pool.costs[at[i]]
            total += found.scores[i]
        return self._ended(q, wanted, total, singles)

    def check_nearest(self, q: int, picks: np.ndarray, nearest: np.ndarray) -> None:
        """Check to which earlier pick, or initial item, each pick of a query is most similar."""
        columns = [] if self.initial is None else np.asarray(self.initial)[q].tolist()
        before = {-2 - j: self.e[item + q * self.base] for j, item in enumerate(columns) if item >= 0}
        assert (nearest[len(picks) :] == -1).all(), f"query {q}: nearest after {len(picks)} picks"
        for step, item in enumerate(picks.tolist()):
            where, name = f"query {q}, step {step}: item {item}", int(nearest[step])
            own = self.e[item + q * self.base]
            alike = {place: float(vector @ own) for place, vector in before.items()}
            assert name in alike or (name == -1 and not alike), f"{where} has nearest {name} of {sorted(alike)}"
            if alike:
                error = 2 * self.tolerance * max(1.0, *(abs(x) for x in alike.values()))
                assert alike[name] >= max(alike.values()) - error, (
                    f"{where} has nearest {name}, of similarity {alike[name]:.9g}, not {max(alike.values()):.9g}"
                )
            before[step] = own

    def _pool(self, q: int) -> Pool:
        base = q * self.base
        positions = np.flatnonzero(self.candidates[q] >= 0)
        rows = self.candidates[q][positions].astype(np.int64) + base
        if self.relevance is not None:
            r = self.relevance[q, positions]
        else:
            r = self.e[rows] @ self.queries[q]
            if self.vrsd:
                r = np.divide(r, self.norms[rows], out=np.zeros_like(r), where=self.norms[rows] > 0)
            if self.least is not None:  # the least itself is enough
                fit = r >= self.least[q] - self.tolerance
                rows, positions, r = rows[fit], positions[fit], r[fit]
        v = r
        if self.bias is not None:
            b = self.bias[rows] if self.bias.ndim == 1 else self.bias[q, positions]
            v = self.lambda_b[q] * r + (1 - self.lambda_b[q]) * b
        costs = np.zeros(len(rows))
        if self.costs is not None:
            costs = self.costs[rows] if self.costs.ndim == 1 else self.costs[q, positions]
        divisors = costs
        if self._density():
            assert self.budget is not None
            budget = float(self.budget[q])
            divisors = np.maximum(costs, max(1e-4 * budget if budget < np.inf else 0, 1e-30))
        initial = [] if self.initial is None else [int(i) + base for i in np.asarray(self.initial)[q] if i >= 0]
        may = ~np.isin(rows, initial)
        if self.query_groups is not None:
            assert self.groups is not None
            may &= self.groups[rows] != np.asarray(self.query_groups)[q]
        reported = r if self.own_relevance else v
        return Pool(
            q, base, rows[may], positions[may], reported[may], costs[may], divisors[may], initial,
            largest=max([1.0, *np.abs(v), *self.norms[rows] ** 2]),
            largest_given=max([0.0, *np.abs(r), *np.abs(v)]),
        )  # fmt: skip

    def _density(self) -> bool:
        return bool(self.problem.get("density"))

    def _may_be_alone(self) -> bool:
        """Return whether one item may take the place of all picks; minima want the others."""
        return self._density() and self.minima is None

    def _ended(self, q: int, made: int, total: float, singles: tuple[float, float]) -> int:
        """Return how many picks there must be; refuse picks that one item alone is worth more than."""
        best, error = singles
        assert not self._may_be_alone() or best <= total + (1 + made) * error + _EPS * abs(total), (
            f"query {q}: one item is worth {best:.9g}, the picks {total:.9g}"
        )
        return made

    def _total(self, pool: Pool, wanted: int) -> float:
        """Return what the picks by value per cost are worth together."""
        picked, left, spent, total = list(pool.initial), list(range(len(pool.rows))), 0.0, 0.0
        for _ in range(wanted):
            at, found, _ = self._open(pool, left, picked, spent, wanted)
            if not len(at):
                break
            j = int(np.argmax(found.values))
            total, spent = total + float(found.scores[j]), spent + float(pool.costs[at[j]])
            left.remove(at[j])
            picked.append(int(pool.rows[at[j]]))
        return total

    def _redundancy(self, row: int, picked: list[int], m: float) -> float:
        if self.method == "msd":
            return float((self.e[picked] @ self.e[row]).mean()) if picked else 0.0
        if self.method != "mmr" and self.ceiling is None:
            return np.nan
        return float(m) if picked else 0.0

    def _open(
        self, pool: Pool, left: list[int], picked: list[int], spent: float, remaining: int
    ) -> tuple[np.ndarray, Values, np.ndarray]:
        """Return what limits and rule leave of some items of a pool: their places, values, and largest similarities."""
        at = np.array(left, np.int64)
        for groups, cap in zip(self.levels, self.caps, strict=True):
            of_items, of_picks = groups[pool.rows[at]], groups[np.array(picked, np.int64)]
            own, rest = (cap, np.inf) if isinstance(cap, Mapping) else ({}, np.inf if cap is None else cap)
            most = np.array([own.get(group, rest) for group in of_items.tolist()])
            at = at[(of_items[:, None] == of_picks).sum(axis=1) < most]
        if self.costs is not None:
            assert self.budget is not None
            at = at[spent + pool.costs[at] <= self.budget[pool.q]]
        if not len(at):
            return at, NONE, np.zeros(0)
        found = RULES[self.method](self._query(pool, picked))
        m = (self.e[pool.rows] @ self.e[picked].T).max(axis=1, initial=-np.inf)
        if self.ceiling is not None and picked:
            ceiling, error = self.ceiling[pool.q], self.tolerance * pool.largest
            closed, doubtful = found.closed | (m > ceiling + error), found.doubtful | (np.abs(m - ceiling) <= error)
            found = found._replace(closed=closed, doubtful=doubtful)
        at = at[~found.closed[at]]
        if self.minima is not None:
            at, doubtful = self._for_minima(pool, at, found.doubtful, picked, remaining)
            found = found._replace(doubtful=doubtful)
        return at, Values(*(field[at] for field in found)), m[at]

    def _least(self, group: Any) -> int:
        return int(self.minima.get(group, 0) if isinstance(self.minima, Mapping) else self.minima)

    def _for_minima(
        self, pool: Pool, at: np.ndarray, doubtful: np.ndarray, picked: list[int], remaining: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which of the available items leave room for unmet minima, and of all items which are doubtful now."""
        assert self.groups is not None
        have = Counter(self.groups[np.array(picked, np.int64)].tolist())
        groups = self.groups[pool.rows]

        def lacks(items: np.ndarray) -> dict[Any, int]:
            there = Counter(groups[items].tolist())
            return {g: max(0, min(self._least(g) - have[g], n)) for g, n in there.items()}

        perhaps = lacks(at)
        lacking = np.array([perhaps[g] > 0 for g in groups[at].tolist()], bool)
        if sum(perhaps.values()) < remaining:
            return at, doubtful
        if sum(lacks(at[~doubtful[at]]).values()) >= remaining:
            return at[lacking], doubtful
        doubtful = doubtful.copy()
        doubtful[at[~lacking]] = True  # it depends on items that may or may not be picked
        return at, doubtful

    def unmet(self, q: int, picks: np.ndarray) -> dict[Any, int]:
        """Return by how many picks groups are below their minima."""
        assert self.groups is not None
        initial = [] if self.initial is None else [int(i) for i in np.asarray(self.initial)[q] if i >= 0]
        have = Counter(self.groups[np.array([*initial, *picks.tolist()], np.int64) + q * self.base].tolist())
        names = self.minima
        if not isinstance(names, Mapping):
            items = self.of_any_relevance[q]
            rows = items[(items >= 0) & ~np.isin(items, initial)].astype(np.int64) + q * self.base
            own = None if self.query_groups is None else np.asarray(self.query_groups, object)[q]
            names = {g for g in self.groups[rows].tolist() if self.query_groups is None or g != own}
        return {g: self._least(g) - have[g] for g in names if self._least(g) > have[g]}

    def _query(self, pool: Pool, picked: list[int]) -> Query:
        options: dict[str, Any] = {"metric": self.metric}
        for name in ("quality", *(option.name for option in OPTIONS)):
            if name in self.problem:
                options[name] = self.problem[name]
        for name in ("aspects", "weights"):
            if self.problem.get(name) is not None:
                options[name] = np.asarray(self.problem[name])[pool.q]
        if not isinstance(options.get("quality", ""), str):
            quality = np.asarray(options["quality"])
            options["quality"] = quality[pool.rows] if quality.ndim == 1 else quality[pool.q, pool.positions]
        v_tolerance = self.tolerance * pool.largest
        if self.relevance is not None:
            v_tolerance = 0.0 if self.bias is None else self.tolerance * pool.largest_given
        return Query(
            self.e[pool.rows],
            pool.reported,
            self.e[picked],
            np.array([place[0] if (place := np.flatnonzero(pool.rows == row)).size else -1 for row in picked], int),
            self.unit_queries[pool.q] if self.problem.get("queries") is not None else None,
            float(self.lambda_d[pool.q]),
            options,
            pool.divisors if self._density() else None,
            self.tolerance * pool.largest,
            float(v_tolerance),
            self.tolerance,
        )

    @staticmethod
    def _close(where: str, name: str, got: Any, expected: float, tolerance: float) -> None:
        error = abs(float(got) - expected)
        assert error <= tolerance + _EPS * abs(expected), f"{where} has {name} {got:.9g}, expected {expected:.9g}"
