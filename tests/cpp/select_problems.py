"""The problems that select_tool is asked: random ones of all kinds, and those that are hard for one idea each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ragsys_kernels import testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels.selection.problem import Rows

from .select_checks import (
    DTYPES,
    METHODS,
    NORM_OUT_OF_RANGE,
    NORMS,
    NOT_FINITE,
    OK,
    OUT_OF_RANGE,
    REPEATED,
    Case,
    Encode,
    Relevance,
    Scan,
    Search,
    Select,
    WholeCorpus,
)
from .tool import strided

FLOATS = ("float32", "float16", "bfloat16")
# Vectors have 4, 8 and 16 elements.
DIMS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 64, 97, 384)


def stored(vectors: np.ndarray, dtype: str, norm: str = "computed", gap: int = 0) -> Rows:
    """Rows of a storage type, `gap` elements apart; a kernel that reads the NaNs (int8: 127) between them shows it."""
    with np.errstate(over="ignore"):
        elements = _arrays.narrow(np.asarray(vectors, np.float32), dtype)
    if dtype == "binary":
        return Rows(strided(elements, gap, 255), dtype, "cosine", "as_given")
    between = 127 if dtype == "int8" else _arrays.narrow(np.full(1, np.nan, np.float32), dtype)[0]
    data = strided(elements, gap, between)
    scales = None
    if norm == "scaled":
        norms = np.linalg.norm(_arrays.widen(data, dtype).astype(np.float64), axis=1)
        scales = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0).astype(np.float32)
    return Rows(data, dtype, "dot" if norm == "as_given" else "cosine", norm, scales)


def random_vectors(rng: np.random.Generator, N: int, D: int) -> np.ndarray:
    vectors = rng.standard_normal((N, D)).astype(np.float32)
    kind = rng.integers(5)
    if kind == 0:  # close to few centres
        vectors = vectors[rng.integers(0, max(1, N // 5), N)] + np.float32(0.05) * vectors
    elif kind == 1:  # equal rows, zero rows
        vectors = vectors[rng.integers(0, max(1, N // 3), N)]
        vectors[rng.random(N) < 0.2] = 0
    elif kind == 2:  # lengths of many sizes
        vectors *= 10 ** rng.uniform(-2, 2, (N, 1)).astype(np.float32)
    return vectors


# Of rows of signs: words and vectors that are not whole, and more than a byte can count in a lane.
SIGN_DIMS = (8, 16, 24, 64, 104, 200, 256, 512, 520, 1024, 16_512)


def sign_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Rows of signs, with queries of signs and of floats, in pools and as a corpus."""
    for D, method in itertools.product(SIGN_DIMS, METHODS):
        case = random_select(rng, method, "binary", D)
        yield case
        if case.arguments["queries"] is not None:
            yield Select(method, {**case.arguments, "queries": np.packbits(case.arguments["queries"] > 0, axis=1)})
    for N, D, n, Q in ((1, 8, 1, 1), (70, 200, 90, 14), (513, 1024, 7, 3), (700, 96, 20, 14)):
        vectors = random_vectors(rng, N, D)
        arguments = {"embeddings": stored(vectors, "binary", gap=int(rng.integers(9))), "k": n, "lambda_b": 0.5}
        queries = rng.standard_normal((Q, D))
        for asked in (queries, np.packbits(queries > 0, axis=1)):
            yield Search("mmr", {**arguments, "queries": asked})
            yield Search("mmr", {**arguments, "queries": asked, "bias": 3 * rng.standard_normal(N)})


def random_select(rng: np.random.Generator, method: str, dtype: str, D: int) -> Select:
    Q, P, K = 3, int(rng.integers(1, 30)), int(rng.integers(1, 9))

    def maybe(share: float) -> bool:
        return bool(rng.random() < share)

    dense = dtype in ("float32", "float16") and maybe(0.2)
    N = Q * P if dense else P + int(rng.integers(0, 20))
    vectors = random_vectors(rng, N, D)
    queries = rng.standard_normal((Q, D)).astype(np.float32)
    arguments: dict[str, Any] = {"queries": queries, "k": rng.integers(1, K + 1, Q) if maybe(0.3) else K}
    if dense:
        arguments["metric"] = str(rng.choice(["cosine", "dot"]))
        arguments["embeddings"] = _arrays.narrow(vectors, dtype).reshape(Q, P, D)
    else:
        arguments["embeddings"] = stored(vectors, dtype, str(rng.choice(NORMS)), int(rng.choice([0, 0, 1, 5])))
        if maybe(0.8):
            candidates = np.stack([rng.permutation(N)[:P] for _ in range(Q)])
            candidates[rng.random((Q, P)) < rng.random((Q, 1)) * maybe(0.5)] = -1
            arguments["candidates"] = candidates.astype(rng.choice([np.int32, np.int64]))
    ids = P if dense else N
    items = (Q, P if dense or "candidates" in arguments else N)
    by_row = items if dense else (N,)
    if maybe(0.3):
        arguments["relevance"] = rng.uniform(-1, 1, items).astype(np.float32)
        if method == "mmr" and maybe(0.5):
            arguments["queries"] = None
            if "candidates" not in arguments and not dense:
                arguments["candidates"] = np.tile(np.arange(N), (Q, 1))
    if maybe(0.3):
        initial = np.stack([rng.permutation(ids)[:4] for _ in range(Q)])
        initial[rng.random(initial.shape) < 0.3] = -1
        arguments["initial"] = initial.astype(rng.choice([np.int32, np.int64]))
    if maybe(0.3):
        arguments["groups"] = rng.integers(0, max(1, N // 4), by_row)
        if maybe(0.5):
            arguments["query_groups"] = rng.choice(arguments["groups"].reshape(-1), Q)
        if "query_groups" not in arguments or maybe(0.5):
            arguments["max_per_group"] = int(rng.integers(1, 3))
    if method == "mmr":
        if maybe(0.5):
            arguments["bias"] = rng.standard_normal(items if maybe(0.5) else by_row).astype(np.float32)
        arguments["lambda_d"] = rng.choice([0, 0.25, 0.5, 0.75, 1], Q)
        arguments["lambda_b"] = float(rng.choice([0, 0.5, 0.95, 1]))
    return Select(method, arguments)


# The rules with options of their own.
RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mmr", {}),
    ("vrsd", {}),
    ("msd", {}),
    ("dpp", {}),
    ("dpp", {"quality": True}),
    ("ssd", {}),
    ("ssd", {"window": 1}),
    ("ssd", {"window": 2}),
    ("sift", {"noise": 0.3, "min_gain": 0.01}),
    ("coverage", {"kind": "facility"}),
    ("coverage", {"kind": "cover"}),
    ("coverage", {"kind": "cover", "gamma": 0.3}),
    ("coverage", {"kind": "xquad", "aspects": True}),
    ("coverage", {"kind": "facility", "aspects": True, "weights": True}),
    ("coverage", {"kind": "facility", "density": True}),
)


def rule_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Every rule on all storage types and many widths, with costs and ceilings."""
    for (method, options), dtype, limits in itertools.product(RULES, DTYPES, ("", "budget", "ceiling", "both")):
        arguments = random_select(rng, "mmr", dtype, int(rng.choice(DIMS[3:]))).arguments
        embeddings = arguments["embeddings"]
        data = embeddings.data if isinstance(embeddings, Rows) else embeddings
        Q, D = 3, data.shape[-1]
        if method in ("vrsd", "sift"):
            arguments = {name: x for name, x in arguments.items() if name not in ("bias", "lambda_d", "lambda_b")}
        if arguments["queries"] is None:
            arguments["queries"] = rng.standard_normal((Q, D))
        dense, pools = data.ndim == 3, arguments.get("candidates")
        items = data.shape[:2] if dense else (len(data),) if pools is None or rng.random() < 0.5 else pools.shape
        given = dict(options)
        if "quality" in given:
            given["quality"] = rng.uniform(0.5, 2, items)
        if "aspects" in given:
            given["aspects"] = rng.standard_normal((Q, 5, D))
        if "weights" in given:
            given["weights"] = rng.uniform(0, 1, (Q, 5))
        if limits in ("budget", "both") or "density" in given:
            given.update(costs=rng.integers(0, 9, items).astype(np.float64), budget=rng.uniform(0, 30, Q))
        if limits in ("ceiling", "both"):
            given["max_similarity"] = rng.uniform(-0.5, 0.9, Q)
        yield Select(method, {**arguments, **given})


def exact_cases() -> Iterator[Case]:
    """Whole numbers, so that ties are ties."""
    for dtype in ("float32", "float16"):
        for P, K, D in ((9, 12, 1), (40, 6, 2), (70, 8, 17)):
            for seed, features in enumerate(({}, {"bias": True}, {"groups": True, "ragged": True}, {"dense": True})):
                arguments = testing.selection_problem(4, P, K, D, dtype=dtype, kind="integers", seed=seed, **features)
                arguments["lambda_d"] = 0.25
                yield Select("mmr", arguments, exact=True)


def cancelling_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Rows with their opposites: VRSD's sum becomes zero, or short beside its terms."""
    for dtype in DTYPES:
        for D in (1, 6, 33):
            vectors = rng.standard_normal((6, D)).astype(np.float32)
            nearly = (1 + 1e-3 * rng.standard_normal((6, D))) * vectors
            vectors = np.concatenate([vectors, -vectors, -nearly, np.zeros((1, D))])
            queries = rng.standard_normal((3, D))
            queries[2] = -queries[1]
            initial = np.array([[0, 6], [6, -1], [12, 0]])
            for norm in NORMS:
                rows = stored(vectors, dtype, norm)
                yield Select("vrsd", {"queries": queries, "embeddings": rows, "k": 12})
                yield Select("vrsd", {"queries": queries, "embeddings": rows, "k": 9, "initial": initial})


def pool_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Pools large enough for bounds to leave items out, with everything that bounds must respect."""
    Q, N, P, D, K = 3, 200, 120, 24, 25
    for (method, dtype), kind in zip(itertools.product(METHODS, DTYPES), 4 * ("clustered", "duplicates"), strict=True):
        vectors = testing.selection_problem(Q, P, K, D, N=N, kind=kind, seed=7)["embeddings"]
        vectors[rng.random(N) < 0.05] = 0
        arguments: dict[str, Any] = {
            "queries": np.concatenate([rng.standard_normal((Q - 1, D)), np.zeros((1, D))]),
            "embeddings": stored(vectors, dtype, str(rng.choice(["scaled", "computed"]))),
            "candidates": np.stack([rng.permutation(N)[:P] for _ in range(Q)]),
            "k": K,
        }
        if method == "mmr":
            arguments.update(lambda_d=rng.choice([0, 0.3, 0.75, 0.98], Q), lambda_b=0.8)
        relevance = {"relevance": rng.uniform(-1, 1, (Q, P))}
        initial = {"initial": np.stack([rng.permutation(N)[:3] for _ in range(Q)])}
        groups = {"groups": rng.integers(0, 30, N), "query_groups": rng.integers(0, 30, Q), "max_per_group": 1}
        bias = {"bias": rng.standard_normal(N)} if method == "mmr" else {}
        for changes in ({}, bias, relevance, initial, {**relevance, **initial}, {**relevance, **groups, **bias}):
            yield Select(method, {**arguments, **changes})


def whole_corpus_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Pools of all sizes; biases with outliers, which are what a row outside the pool may have."""
    Q, N, K = 6, 300, 6
    for dtype, D in zip(DTYPES, (3, 40, 17, 6), strict=True):
        vectors = rng.standard_normal((N, D))
        vectors[:, 0] += rng.uniform(0, 3)  # all on one side, or around
        vectors[rng.random(N) < 0.02] = 0
        bias = rng.uniform(-0.3, 0.3, N)
        bias[rng.permutation(N)[:4]] = (1, 0.7, 0.7, 3)
        arguments = {
            "queries": rng.standard_normal((Q, D)),
            "embeddings": stored(vectors, dtype, "scaled"),
            "k": K,
            "lambda_d": rng.choice([0.3, 0.5, 0.75, 1], Q),
        }
        groups = {"groups": rng.integers(0, 40, N), "query_groups": rng.integers(0, 40, Q), "max_per_group": 1}
        initial = {"initial": rng.permutation(N)[: 2 * Q].reshape(Q, 2)}
        for changes in ({}, {"bias": bias, "lambda_b": 0.5}, {"bias": bias, "lambda_b": 0.9, **initial}, groups):
            for n in (N, 100, 20):
                yield WholeCorpus("mmr", {**arguments, **changes}, n=n)
                yield WholeCorpus("mmr", {**arguments, **changes}, n=n, made=2)
        for made in (0, 2):
            yield WholeCorpus("mmr", {**arguments, **groups}, n=60, made=made, best_first=True)
    yield hidden_opposite(rng)


def hidden_opposite(rng: np.random.Generator) -> WholeCorpus:
    """The second pick is opposite to the first, less relevant than every row of the pool, of middling bias."""
    first, second = np.array([0.3, 0.954, 0]), np.array([-0.1, -0.702, 0.705])
    angles = rng.uniform(0, 0.5, 100)
    cosines = np.repeat([0.22, 0.05], 50)  # in the pool, outside
    sines = np.sqrt(1 - cosines**2)
    others = np.stack([cosines, sines * np.cos(angles), sines * np.sin(angles)], axis=1)
    rows = stored(np.concatenate([[first, second, -first], others]), "float32", "scaled")
    bias = np.concatenate([[1, 0.7, 0.499], np.zeros(100)])
    queries = np.array([[1.0, 0, 0]])
    arguments = {"queries": queries, "embeddings": rows, "k": 2, "bias": bias, "lambda_d": 0.5, "lambda_b": 0.5}
    return WholeCorpus("mmr", arguments, n=52)


def edge_cases(rng: np.random.Generator) -> Iterator[Case]:
    """The ends of ranges that are allowed."""
    D = 19
    vectors = rng.standard_normal((8, D))
    queries = rng.standard_normal((4, D)) * np.array([[1e30], [1e-30], [0], [1e38 / 4]])
    extreme = vectors * 10.0 ** np.linspace(-14, 14, 8)[:, None]
    subnormal = vectors * 1e-5
    subnormal[0] = np.where(np.arange(D) == 3, 65504, 0)
    for method in METHODS:
        options = {"lambda_d": 0.6, "lambda_b": 0.5} if method == "mmr" else {}
        yield Select(method, {"queries": queries, "embeddings": stored(extreme, "float32"), "k": 8, **options})
        yield Select(method, {"queries": queries, "embeddings": stored(extreme, "bfloat16"), "k": 8, **options})
        yield Select(method, {"queries": queries, "embeddings": stored(subnormal, "float16"), "k": 8, **options})
        one = {"queries": vectors[:1], "embeddings": stored(vectors[:1], "float16"), **options}
        yield Select(method, {**one, "k": 1})
        yield Select(method, {**one, "k": 70})
        nothing = {"queries": vectors[:2], "embeddings": stored(vectors, "float32"), "k": 3, **options}
        yield Select(method, {**nothing, "candidates": np.full((2, 5), -1)})
        yield Select(method, {**nothing, "initial": np.tile(np.arange(8), (2, 1))})
        yield Select(method, {**nothing, "groups": np.zeros(8, int), "query_groups": np.zeros(2, int)})
        yield Select(
            method, {**nothing, "groups": np.zeros(8, int), "max_per_group": 1, "initial": np.ones((2, 1), int)}
        )


def bad_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Values that must be reported, in one query each; the other queries must be answered."""
    Q, N, P, D = 4, 30, 11, 21
    vectors = rng.standard_normal((N, D))
    queries = rng.standard_normal((Q, D))
    pools = np.stack([rng.permutation(20)[:P] for _ in range(Q)])  # rows from 20 on are in no pool

    def case(method: str, status: int, dtype: str = "float32", norm: str = "computed", **changes: Any) -> Select:
        rows = stored(changes.pop("vectors", vectors), dtype, norm, gap=3)
        options = {"lambda_d": 0.7, "lambda_b": 0.9} if method == "mmr" else {}
        arguments = {"queries": queries, "embeddings": rows, "candidates": pools, "k": 4, **options, **changes}
        return Select(method, arguments, {2: status})

    def changed(array: np.ndarray, where: tuple[int, int], value: float, dtype: Any = None) -> np.ndarray:
        array = np.array(array, dtype)
        array[where] = value
        return array

    def poisoned(dtype: str, value: float, column: int) -> dict[str, Any]:
        return {"dtype": dtype, "vectors": changed(vectors, (25, column), value), "candidates": with_row}

    with_row = changed(pools, (2, 5), 25)
    bias = rng.standard_normal((Q, P)).astype(np.float32)
    for method in METHODS:
        for bad in (-2, -(2**31), N, 2**31 - 1):
            yield case(method, OUT_OF_RANGE, candidates=changed(pools, (2, P - 1), bad, np.int32))
        for bad in (-2, -(2**63), N, 2**40, 2**63 - 1):
            yield case(method, OUT_OF_RANGE, candidates=changed(pools, (2, 0), bad))
            yield case(method, OUT_OF_RANGE, initial=changed(np.full((Q, 2), -1), (2, 1), bad))
        yield case(method, REPEATED, candidates=changed(pools, (2, 3), pools[2, 9]))
        yield case(method, REPEATED, initial=changed(np.array([[21, 22]] * Q), (2, 1), 21))
        for dtype in FLOATS:
            for norm in NORMS:
                for column in (0, D - 1):
                    for value in (np.nan, np.inf):
                        changes = poisoned(dtype, value, column)
                        if norm != "scaled" or np.isnan(value):
                            yield case(method, NOT_FINITE, norm=norm, **changes)
            yield case(method, OK, dtype, vectors=changed(vectors, (29, 4), np.nan))  # in no pool
        initial = np.array([[21]] * Q)
        yield case(method, NOT_FINITE, vectors=changed(vectors, (25, 3), np.nan), initial=changed(initial, (2, 0), 25))
        for scale in (1e-20, 1e20):
            scaled = vectors.copy()
            scaled[25] *= scale
            yield case(method, NORM_OUT_OF_RANGE, vectors=scaled, candidates=with_row)
        for value in (np.nan, -np.inf):
            yield case(method, NOT_FINITE, queries=changed(queries, (2, D - 1), value))
            yield case(method, NOT_FINITE, relevance=changed(bias, (2, 7), value))
            if method == "mmr":
                yield case(method, NOT_FINITE, bias=changed(bias, (2, 7), value))
        large = vectors.copy()
        large[25] *= 1e30
        status = NORM_OUT_OF_RANGE if method == "vrsd" else NOT_FINITE  # which needs lengths
        yield case(method, status, norm="as_given", vectors=large, queries=queries * 1e10, candidates=with_row)


def relevance_cases(rng: np.random.Generator) -> Iterator[Case]:
    for D, dtype, norm in zip((1, 5, 16, 33, 97), (*DTYPES, "int8"), (*NORMS, *NORMS), strict=False):
        rows = stored(random_vectors(rng, 50, D), dtype, norm, gap=2)
        queries = rng.standard_normal((3, D))
        candidates = np.stack([np.sort(rng.permutation(50)[:21]) for _ in range(3)])
        candidates[1, 15:] = -1
        arguments = {"queries": queries, "embeddings": rows, "k": 1, "candidates": candidates, "lambda_b": 0.8}
        yield Relevance("mmr", arguments)
        yield Relevance("mmr", {**arguments, "bias": rng.standard_normal(50)})
        poisoned = np.array(queries)
        poisoned[1, 0] = np.inf
        yield Relevance("mmr", {**arguments, "queries": poisoned}, {1: NOT_FINITE})


def search_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Rows of all types and widths, blocks that are not full, many ties, more rows wanted than there are."""
    shapes = zip((1, 31, 70, 513, 700, 2100), (1, 5, 64, 33, 97, 16), (1, 4, 90, 7, 20, 9), strict=True)
    for (N, D, n), Q in itertools.product(shapes, (1, 3, 14)):
        for dtype, norm in zip(DTYPES, ("scaled", "as_given", "scaled", "scaled"), strict=True):
            vectors = random_vectors(rng, N, D)
            vectors[rng.integers(0, N, N // 3)] = vectors[0]
            arguments: dict[str, Any] = {
                "queries": rng.standard_normal((Q, D)),
                "embeddings": stored(vectors, dtype, norm, gap=int(rng.integers(2))),
                "k": n,
                "lambda_b": rng.uniform(0, 1, Q),
            }
            yield Search("mmr", arguments)
            groups = {"groups": rng.integers(0, 3, N), "query_groups": rng.integers(0, 3, Q)}
            yield Search("mmr", {**arguments, "bias": 3 * rng.standard_normal(N), **groups, "max_per_group": None})
    for Q in (3, 14):
        queries = rng.standard_normal((Q, D))
        queries[1, 5] = np.nan
        yield Search("mmr", {**arguments, "queries": queries, "lambda_b": 0.5}, {1: NOT_FINITE})


def code_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Rows of all widths and types; blocks and groups that are not full; pools of blocks that are not full."""
    for D in (*DIMS, 51, 52, 53, 116, 117):
        for dtype in FLOATS:
            yield Encode(stored(random_vectors(rng, 21, D), dtype, "scaled", gap=int(rng.integers(3))))
    shapes = (1, 1, 1, 1), (31, 5, 2, 9), (512, 52, 8, 40), (513, 53, 3, 600), (2100, 64, 1, 30)
    for (N, D, terms, n), own in itertools.product(shapes, (False, True)):
        rows = stored(random_vectors(rng, N, D), FLOATS[terms % 3], "scaled")
        if own:  # codes themselves
            rows = stored(rng.integers(-128, 128, (N, D)), "int8", "scaled", gap=terms % 2)
        vectors = rng.standard_normal((terms, 11, D)).astype(np.float32)
        vectors[:, 4] = 0
        yield Scan(rows, vectors, n)
        yield Scan(rows, vectors[:, :2], n)
        yield Scan(rows, vectors, n, by_codes=False)
        weights = rng.uniform(0, 1, (2, 11)).astype(np.float32)
        bias = rng.standard_normal(N).astype(np.float32)
        groups = {"groups": rng.integers(0, 5, N), "query_groups": np.arange(11)}
        for by_codes in (True, False):
            yield Scan(rows, vectors, n, bias, (weights[0], weights[1]), **groups, by_codes=by_codes)
    for D, P in itertools.product((5, 52, 64, 117), (47, 48, 65, 100)):
        rows = stored(random_vectors(rng, 120, D), str(rng.choice(FLOATS)), "scaled", gap=int(rng.integers(2)))
        arguments: dict[str, Any] = {
            "queries": rng.standard_normal((3, D)),
            "embeddings": rows,
            "candidates": np.stack([rng.permutation(120)[:P] for _ in range(3)]),
            "k": 12,
        }
        yield Select("vrsd", arguments)
        arguments.update(lambda_d=rng.choice([0, 0.5, 0.75, 1], 3), lambda_b=0.7)
        yield Select("mmr", arguments)
        yield Select("mmr", {**arguments, "initial": rng.permutation(120)[:15].reshape(3, 5), "bias": rng.random(120)})


def threaded_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Enough work that the kernels start threads."""
    for method in METHODS:
        arguments = testing.selection_problem(64, 100, 12, 97, N=400, ragged=True, groups=True, seed=1)
        if method == "mmr":
            arguments.update(lambda_d=0.7, lambda_b=1.0)
        yield Select(method, arguments)
        yield Select(method, {**arguments, "embeddings": stored(random_vectors(rng, 400, 97), "bfloat16")})
    for method, options in (("msd", {}), ("dpp", {}), ("ssd", {"window": 3}), ("sift", {}), ("coverage", {})):
        arguments = testing.selection_problem(64, 100, 12, 97, N=400, ragged=True, seed=3)
        yield Select(method, {**arguments, **options, "max_similarity": 0.5})
    arguments = {**testing.selection_problem(64, 100, 12, 97, N=400, seed=2), "lambda_d": 0.7, "lambda_b": 1.0}
    yield Select("mmr", {**arguments, "embeddings": stored(random_vectors(rng, 400, 97), "float16", "scaled")})
    many = stored(random_vectors(rng, 20_000, 260), "float32", "scaled")
    yield Encode(many)
    yield Scan(many, rng.standard_normal((2, 40, 260)).astype(np.float32), 50)
    candidates = np.tile(np.arange(700), (64, 1))
    rows = stored(random_vectors(rng, 700, 100), "float16")
    yield Relevance(
        "mmr", {"queries": rng.standard_normal((64, 100)), "embeddings": rows, "candidates": candidates, "k": 1}
    )
    yield Scan(many, rng.standard_normal((1, 3, 260)).astype(np.float32), 50)
    yield Scan(many, rng.standard_normal((1, 3, 260)).astype(np.float32), 50, by_codes=False)
    for Q in (2, 30):
        yield Search("mmr", {"queries": rng.standard_normal((Q, 260)), "embeddings": many, "k": 40, "lambda_b": 1.0})


def all_cases() -> list[Case]:
    rng = np.random.default_rng(0)
    cases: list[Case] = []
    for method in METHODS:
        for dtype in DTYPES:
            cases += [random_select(rng, method, dtype, D) for D in DIMS for _ in range(2)]
    for make in (
        cancelling_cases, pool_cases, whole_corpus_cases, edge_cases, bad_cases, relevance_cases, sign_cases,
        search_cases, code_cases, rule_cases, threaded_cases,
    ):  # fmt: skip
        cases += make(rng)
    return [*cases, *exact_cases()]
