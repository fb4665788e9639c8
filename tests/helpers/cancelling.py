"""VRSD where vectors nearly cancel, and how far off its scores are in units of what float32 vectors allow."""

import numpy as np

EPS = float(np.finfo(np.float32).eps)
# A score may be off by so many eps (|e_1| + .. + |e_n|) / |e_1 + .. + e_n|: as if elements had been rounded a few times
UNITS = 6


def problem(metric, delta, initial, seed, D=48):
    """Two vectors whose sum has length delta, shown or to be picked first; then a zero row, short rows, others."""
    rng = np.random.default_rng(seed)
    a, b, c, d = (x / np.linalg.norm(x) for x in rng.standard_normal((4, D)))
    rows = [a, -a + delta * b, c, 0 * a, -b, d, c + b]
    if metric == "dot":
        rows[4:] = -delta * b, delta * d, delta * c
    arguments = {"queries": (a + b + 0.3 * c)[None].astype(np.float32), "embeddings": np.array(rows, np.float32)}
    if initial:
        arguments["initial"] = np.array([[0, 1]])
    pool = np.arange(2 if initial else 0, len(rows))
    return {**arguments, "k": len(pool), "metric": metric, "candidates": pool[None]}


def pair(metric, delta, seed, D=48):
    """Only two vectors, whose sum has length delta."""
    whole = problem(metric, delta, False, seed, D)
    return {**whole, "embeddings": whole["embeddings"][:2], "k": 2, "candidates": np.array([[0, 1]])}


def units_off(problem, result):
    """The largest error of a score; a sum that is zero to the precision of float32 is left out."""
    vectors = problem["embeddings"].astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    if problem["metric"] == "cosine":
        vectors = vectors / np.where(lengths > 0, lengths, 1)[:, None]
        lengths = np.linalg.norm(vectors, axis=1)
    query = problem["queries"][0].astype(np.float64)
    taken = list(problem.get("initial", [[]])[0])
    off = [0.0]
    for item, score in zip(result.indices[0], result.scores[0], strict=True):
        taken.append(int(item))
        total, size = vectors[taken].sum(0), lengths[taken].sum()
        length = np.linalg.norm(total)
        if length > 2e-6 * size:
            exact = total @ query / np.linalg.norm(query) / length
            off.append(abs(float(score) - exact) / (EPS * size / length))
    return max(off)
