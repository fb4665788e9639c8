"""Coverage of aspects: facility location, a concave sum of similarities, xQuAD."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .pool import Pool, in_range
from .rule import Rule


class Coverage(Rule):
    """λ_d v_i + (1-λ_d) times what item i adds to the coverage of the aspects, with S_ia = max(0, <e_i, aspect_a>)."""

    def __init__(self, problem: Problem, q: int, pool: Pool) -> None:
        options = problem.options
        self.kind, self.gamma = options.kind, options.gamma
        self.lambda_d = float(problem.lambda_d[q])
        self.relevance = pool.v
        self.n = len(pool.v)
        num_aspects = self.n if options.aspects is None else len(options.aspects[q])
        self._find_similarities(problem, q, pool)
        if options.weights is not None:
            self.weights = options.weights[q].astype(np.float64)
        else:
            self.weights = np.full(num_aspects, 1.0 if self.kind == "cover" else 1 / max(1, num_aspects))
        # m_a, the largest similarity; A_a, their sum; ρ_a, what is left of the aspect.
        self.state = np.full(num_aspects, 1.0 if self.kind == "xquad" else 0.0)

    def _find_similarities(self, problem: Problem, q: int, pool: Pool) -> None:
        options = problem.options
        aspects = pool.e if options.aspects is None else options.aspects[q].astype(np.float64)
        # One item at a time: equal rows get equal bits.
        if pool.given is None:
            similarity = [np.einsum("ad,d->a", aspects, e) for e in pool.items]
        else:
            similarity = [pool.given(np.arange(self.n), j) for j in range(len(pool.items))]
        self.S = np.maximum(np.stack(similarity), 0) if similarity else np.zeros((0, len(aspects)))
        if problem.rows.metric == "cosine" or self.kind == "xquad":
            self.S = np.minimum(self.S, 1)
        in_range(problem, q, self.S)

    def _added(self, S: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return what similarities add to aspects in some state."""
        if self.kind == "facility":
            return np.asarray(np.maximum(S - state, 0))
        if self.kind == "cover":
            return np.asarray((state + S) ** self.gamma - state**self.gamma)
        return np.asarray(S * state)

    def _after(self, S: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return the state of aspects once an item of these similarities is taken."""
        if self.kind == "facility":
            return np.asarray(np.maximum(state, S))
        return np.asarray(state + S if self.kind == "cover" else state * (1 - S))

    def _gain(self) -> np.ndarray:
        return np.asarray((self._added(self.S[: self.n], self.state) * self.weights).sum(axis=1))

    def values(self) -> np.ndarray:
        return np.asarray(self.lambda_d * self.relevance + (1 - self.lambda_d) * self._gain())

    def take(self, j: int, similarity: np.ndarray) -> None:
        self.state = self._after(self.S[j], self.state)


class CoverageNear(Coverage):
    """The same with the items as aspects, and S of 0 for all pairs but those of a graph (`options.Graph`)."""

    def _find_similarities(self, problem: Problem, q: int, pool: Pool) -> None:
        graph, items = problem.options.graph, np.concatenate([pool.rows, pool.initial])
        place = np.full(len(problem.rows.data), -1)
        place[pool.rows] = np.arange(self.n)
        counts = np.diff(graph.begin)[items]
        self.begin = np.concatenate([[0], np.cumsum(counts)])  # where the aspects of each item begin
        self.item = np.repeat(np.arange(len(items)), counts)
        edges = np.arange(len(self.item)) + (graph.begin[items] - self.begin[:-1])[self.item]
        self.aspect = place[graph.rows[edges]]
        # An aspect that is no item adds nothing.
        self.S = np.where(self.aspect < 0, 0, graph.similarity[edges].astype(np.float64))

    def _gain(self) -> np.ndarray:
        added = self._added(self.S, self.state[self.aspect]) * self.weights[self.aspect]
        return np.bincount(self.item, added, minlength=self.n)[: self.n]

    def take(self, j: int, similarity: np.ndarray) -> None:
        edges = slice(*self.begin[j : j + 2])
        self.state[self.aspect[edges]] = self._after(self.S[edges], self.state[self.aspect[edges]])


def coverage(problem: Problem, q: int, pool: Pool) -> Coverage:
    """Return the coverage of a query: by all similarities, or by those of a graph."""
    return (Coverage if problem.options.graph is None else CoverageNear)(problem, q, pool)
