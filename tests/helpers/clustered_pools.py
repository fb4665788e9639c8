"""Large pools of rows in clusters, on which counts of what kernels read mean something."""

import numpy as np


def pools(P, D, order, num_queries=1, seed=0):
    """Rows in clusters, queries and their pools, best first or in any order."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((P // 12, D))
    rows = (centres[rng.integers(0, len(centres), P + 20)] + 0.8 * rng.standard_normal((P + 20, D))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    queries = (centres[:num_queries] + rng.standard_normal((num_queries, D))).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    candidates = np.stack([rng.permutation(P + 20)[:P] for _ in queries])
    if order == "best first":
        relevance = np.take_along_axis(queries @ rows.T, candidates, 1)
        candidates = np.take_along_axis(candidates, np.argsort(-relevance, 1, kind="stable"), 1)
    return {"queries": queries, "embeddings": rows, "candidates": candidates}
