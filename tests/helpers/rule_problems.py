"""Every rule with each of its options, and problems of all shapes for them."""

import numpy as np

import ragsys_kernels as rk
from ragsys_kernels import testing

OPTIONS = {
    "mmr": {},
    "vrsd": {},
    "msd": {"lambda_d": 0.6},
    "dpp": {"scale": 1.5},
    "dpp by quality": {"quality": True},
    "dpp in a window": {"window": 4},
    "ssd": {"gamma": 0.7},
    "ssd in a window": {"window": 3},
    "sift": {"noise": 0.1},
    "sift until": {"noise": 0.1, "min_gain": 0.02},
    "coverage": {"lambda_d": 0.2},
    "coverage of aspects": {"aspects": True, "lambda_d": 0.3},
    "coverage by cost": {"density": True},
    "coverage cover": {"kind": "cover", "gamma": 0.4},
    "coverage xquad": {"kind": "xquad", "aspects": True},
}
SHAPES = {
    "plain": {},
    "everything": {"ragged": True, "bias": True, "groups": True, "budget": True, "ceiling": True},
    "budget": {"budget": True},
    "ceiling": {"ceiling": True, "kind": "clustered"},
    "relevance": {"relevance": True, "bias": True},
    "dense pools": {"dense": True, "groups": True, "budget": True, "kind": "duplicates"},
    "whole numbers": {"kind": "integers", "budget": True},
    "one item": {"sizes": (3, 1, 3, 12)},
    "odd sizes": {"sizes": (3, 17, 5, 33), "bias": True},
}


def problem_of(rule, shape, seed=0, dtype=None, **changes):
    """The method of a rule, and a problem of it; with a type its rows are a Corpus, but for dense pools."""
    method, given, shape = rule.split()[0], dict(OPTIONS[rule]), SHAPES[shape] | changes
    Q, P, K, D = shape.pop("sizes", (4, 23, 7, 12))
    relevance, initial = shape.pop("relevance", False), shape.pop("initial", False)
    if method in ("vrsd", "sift"):
        shape.pop("bias", None)
    if "density" in given:
        shape["budget"] = True
    problem = testing.selection_problem(Q, P, K, D, seed=seed, **shape)
    rng = np.random.default_rng(seed + 1)
    rows = problem["embeddings"].reshape(-1, D)
    if initial and P > 1 and not shape.get("dense"):
        problem["initial"] = np.array([[3, -1, 5, 8, 11]] * Q)
    if relevance:
        problem["relevance"] = rng.uniform(-1, 1, (Q, P)).astype(np.float32)
    if given.get("quality"):
        given["quality"] = rng.uniform(0.5, 2, (Q, P) if shape.get("dense") else len(rows)).astype(np.float32)
    if given.get("aspects"):
        given["aspects"] = rng.standard_normal((Q, 5, D)).astype(np.float32)
        given["weights"] = rng.uniform(0, 1, (Q, 5)).astype(np.float32)
    if method in ("vrsd", "sift"):
        for name in ("lambda_d", "lambda_b"):
            problem.pop(name, None)
    if dtype is not None and not shape.get("dense"):
        problem["embeddings"] = rk.Corpus(rows, metric=problem.get("metric", "cosine"), dtype=dtype)
    return method, {**problem, **given}
