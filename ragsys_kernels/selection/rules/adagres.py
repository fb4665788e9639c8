"""λ_d of max-sum dispersion by AdaGReS: from the budget, and from how relevant and how alike items are."""

from __future__ import annotations

import numpy as np

from ..._base import checks
from ..problem import Problem
from ..request import Request
from .pool import pool_of


def without(request: Request) -> Request:
    """Return a request for ``lambda_d="adagres"``, which takes a budget, with a number in its place."""
    checks.choice(request.op, "lambda_d", request.lambda_d, ("adagres",))
    if request.budget is None:
        raise ValueError(f"{request.op}: lambda_d 'adagres' must come with a budget, got budget=None")
    return request.changed(lambda_d=1.0)


def weights(problem: Problem, skip: bool) -> np.ndarray:
    """Return λ_d of each query, 1 / (1 + β) with β = mean v / ((k̄ - 1)/2 · mean of s_ij over pairs).

    k̄ = floor(budget / mean cost). 1 where nothing is to be weighed: no more than one item fits, or a mean is not above
    0. The mean over pairs needs no pairs: (|Σ e_i|² - Σ |e_i|²) / (n (n - 1)). With ``skip`` it is 1 for a query that
    has bad values: who selects for it finds them too, and names it.
    """
    limits = problem.constraints
    found = np.ones(problem.num_queries, np.float32)
    for q in range(problem.num_queries):
        try:
            pool = pool_of(problem, q)
        except ValueError:
            if not skip:
                raise
            continue
        n = len(pool.v)
        if n < 2:
            continue
        mean_cost = limits.item_costs(q, pool.rows, pool.positions).mean()
        most = float(np.floor(limits.budget[q] / mean_cost)) if mean_cost > 0 else 0.0
        alike = (np.square(pool.e.sum(axis=0)).sum() - np.square(pool.e).sum()) / (n * (n - 1))
        relevance = float(pool.v.mean())
        if most > 1 and alike > 0 and relevance > 0:
            found[q] = 1 / (1 + relevance / ((most - 1) / 2 * alike))
    return found
