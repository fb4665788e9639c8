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
        if options.weights is not None:
            self.weights = options.weights[q].astype(np.float64)
        else:
            self.weights = np.full(len(aspects), 1.0 if self.kind == "cover" else 1 / max(1, len(aspects)))
        # m_a, the largest similarity; A_a, their sum; ρ_a, what is left of the aspect.
        self.state = np.full(len(aspects), 1.0 if self.kind == "xquad" else 0.0)

    def _gain(self) -> np.ndarray:
        S = self.S[: self.n]
        if self.kind == "facility":
            added = np.maximum(S - self.state, 0)
        elif self.kind == "cover":
            added = (self.state + S) ** self.gamma - self.state**self.gamma
        else:
            added = S * self.state
        return np.asarray((added * self.weights).sum(axis=1))

    def values(self) -> np.ndarray:
        return np.asarray(self.lambda_d * self.relevance + (1 - self.lambda_d) * self._gain())

    def take(self, j: int, similarity: np.ndarray) -> None:
        if self.kind == "facility":
            self.state = np.maximum(self.state, self.S[j])
        elif self.kind == "cover":
            self.state = self.state + self.S[j]
        else:
            self.state = self.state * (1 - self.S[j])
