"""NumPy in float64, written like the formulas: the specification of every other backend."""

from __future__ import annotations

import numpy as np

from .problem import Partials, ScoringProblem


def _logits(problem: ScoringProblem, row: int) -> np.ndarray:
    """Return x of one row."""
    if problem.logits is not None:
        return problem.vectors("logits", row).astype(np.float64)
    x = problem.vectors("weight", slice(None)).astype(np.float64) @ problem.vectors("hidden", row).astype(np.float64)
    return x if problem.head_bias is None else x + problem.head_bias


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Return ref = max z over finite z;  sum = Σ exp(z - ref);  weighted = Σ (z - ref) exp(z - ref)."""
    R, M, k = len(problem.rows), len(problem.columns), problem.top
    out = Partials(
        ref=np.full(R, -np.inf),
        max=np.full(R, -np.inf),
        sum=np.zeros(R),
        weighted=np.zeros(R) if problem.entropy else None,
        target=np.full(M, -np.inf),
        rank=np.zeros(M, np.int64) if problem.rank else None,
        top=np.full((R, k), -np.inf) if k else None,
        top_ids=np.full((R, k), -1) if k else None,
    )
    enters = np.zeros(problem.num_columns, bool)
    enters[slice(None) if problem.allowed is None else problem.allowed] = True
    for r in range(R):
        z = problem.logit_scale * _logits(problem, problem.rows[r])[: problem.num_columns]
        if problem.softcap is not None:
            z = np.where(np.isinf(z), z, problem.softcap * np.tanh(z / problem.softcap))  # masked stays masked
        z = np.where(enters, z * np.float64(problem.inverse_temperature[r]), -np.inf)
        for i in range(problem.pair_begin[r], problem.pair_begin[r + 1]):
            if problem.columns[i] >= 0:
                out.target[i] = z[problem.columns[i]]
            if problem.rank:
                than = out.target[i] if problem.target_logits is None else problem.target_logits[i]
                with np.errstate(over="ignore"):  # to infinity
                    out.rank[i] = np.count_nonzero(z.astype(np.float32) > np.float32(than))
        if k:
            best = np.argsort(-z, kind="stable")[:k]
            best = best[z[best] > -np.inf]
            out.top[r, : len(best)], out.top_ids[r, : len(best)] = z[best], best
        out.max[r] = z.max()
        finite = z[np.isfinite(z)]
        if finite.size:
            out.ref[r] = finite.max()
            d = finite - out.ref[r]
            out.sum[r] = np.exp(d).sum()
            if problem.entropy:
                out.weighted[r] = (d * np.exp(d)).sum()
        if (np.isnan(z) | (z == np.inf)).any():
            out.sum[r] = np.nan
    return out
