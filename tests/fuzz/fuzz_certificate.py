"""Certified picks against those of the whole corpus, over drawn corpora with rows that are made to refute them.

`python tests/fuzz/fuzz_certificate.py --seed 1 --queries 100000`

A case is drawn from (seed, number) alone. What a certified query picked out of its pool must be what the whole corpus
gives, also once rows have been added that are worth the most where the pool does not reach.
"""

import sys
from typing import Any

import numpy as np
from fuzz_runs import Fuzzer, WrongError, main
from selecting import draw_isa, in_words, strict

import ragsys_kernels as rk

KINDS = ("normal", "clusters", "near duplicates", "integers", "few dimensions", "zeros")
LAMBDAS = (0.0, 0.3, 0.5, 0.6, 0.75, 0.9, 0.97, 1.0)


def draw(seed: int, number: int) -> tuple[dict[str, Any], np.ndarray, dict[str, Any]]:
    """The corpus, the queries and what is asked."""
    rng = np.random.default_rng([seed, number])

    def sometimes(share: float = 0.25) -> bool:
        return bool(rng.random() < share)

    kind = str(rng.choice(KINDS))
    N, Q = int(rng.choice((30, 200, 600, 2500))), int(rng.integers(20, 80))
    D = int(rng.integers(2, 4)) if kind == "few dimensions" else int(rng.integers(2, 50))
    if kind == "integers":
        D = int(rng.integers(2, 6))
        rows = rng.integers(-1, 2, (N, D)).astype(np.float32)
        queries = rng.integers(-1, 2, (Q, D)).astype(np.float32)
    else:
        centres = rng.standard_normal((max(2, N // 40), D)) * (3 if kind == "clusters" else 0.3)
        rows = centres[rng.integers(0, len(centres), N)] + rng.standard_normal((N, D))
        queries = centres[rng.integers(0, len(centres), Q)] + rng.standard_normal((Q, D))
        if kind == "near duplicates":
            rows = rows[rng.integers(0, max(2, N // 4), N)] + 1e-6 * rng.standard_normal((N, D))
    if kind == "zeros":
        rows[rng.random(N) < 0.2] = 0
        queries[rng.random(Q) < 0.2] = 0
    dtype = str(rng.choice(("float32", "float16", "bfloat16", "int8"), p=(0.7, 0.1, 0.1, 0.1)))
    held: dict[str, Any] = {"embeddings": rows.astype(np.float32), "dtype": dtype}
    asked: dict[str, Any] = {"k": int(rng.integers(1, 10)), "pool": int(rng.choice((5, 12, 20, 60, 150, 400)))}
    asked["lambda_d"] = rng.choice(LAMBDAS, Q).astype(np.float32)
    if sometimes(0.4):
        held["bias"] = (rng.standard_normal(N) * rng.choice((0.01, 0.3, 3.0, 1e4))).astype(np.float32)
        asked["lambda_b"] = rng.choice((0.0, 1e-3, 0.5, 0.95, 1.0), Q).astype(np.float32)
    if sometimes():
        held["groups"] = rng.integers(0, N // 3 + 1, N)
        asked.update({"max_per_group": 1} if sometimes(0.5) else {"query_groups": rng.integers(0, N // 3 + 1, Q)})
    if sometimes():
        held["costs"] = rng.integers(1, 6, N).astype(np.float64)
        asked["budget"] = rng.integers(1, 20, Q).astype(np.float64)
    if sometimes():
        asked["initial"] = np.stack([rng.permutation(N)[:3] for _ in range(Q)])
    if sometimes():
        asked["max_similarity"] = float(rng.choice((0.3, 0.8, 0.99)))
    if rng.random() < 0.2:
        asked["min_relevance"] = float(rng.uniform(-0.2, 0.6))
    if sometimes():
        asked["exclude"] = rng.integers(0, N, (Q, 4))
    if sometimes():
        asked["allowed"] = rng.random(N) < 0.6
    if sometimes():
        asked["k"] = rng.integers(1, 8, Q)
    return held, queries.astype(np.float32), asked


def check(held: dict[str, Any], queries: np.ndarray, asked: dict[str, Any], backend: str) -> rk.Selection:
    """Hold the certified picks against those of the whole corpus; return what was picked."""
    corpus = rk.Corpus(**held)
    picks = corpus.select(queries, **asked, backend=backend)
    whole = corpus.select(queries, **{**asked, "pool": None}, backend=backend)
    same = (picks.indices == whole.indices).all(axis=1)
    wrong = np.flatnonzero(picks.certified & ~same)
    if wrong.size:
        q = int(wrong[0])
        raise WrongError(
            f"query {q} is certified with {picks.indices[q].tolist()}, needed {picks.pool_needed[q]:g}; the whole "
            f"corpus gives {whole.indices[q].tolist()}"
        )
    return picks


def away_from(query: np.ndarray, picks: np.ndarray, cosine: float) -> np.ndarray:
    """Rows at an angle to a query, in the plane of it and of each pick, and away from that."""
    away = (picks @ query)[:, None] * query - picks
    lengths = np.linalg.norm(away, axis=1)
    away = away[lengths > 1e-6] / lengths[lengths > 1e-6, None]
    return np.asarray(cosine * query + np.sqrt(max(0.0, 1 - cosine**2)) * away)


def cosine_of(v: float, weight: float, most: float) -> float:
    """The cosine of a row with the largest bias and a relevance of v."""
    return (v - (1 - weight) * most) / max(weight, 1e-9)


def refuting(
    rng: np.random.Generator, held: dict[str, Any], queries: np.ndarray, asked: dict[str, Any], picks: rk.Selection
) -> dict[str, Any]:
    """The corpus with rows that are worth as much as rows outside can be."""
    corpus = rk.Corpus(**held)
    found = corpus.search(queries, min(asked["pool"], len(corpus)), lambda_b=asked.get("lambda_b", 0.95))
    most = 0.0 if corpus.bias is None else float(corpus.bias.max())
    new = [np.zeros((0, corpus.dims))]
    for q, query in enumerate(rk.Corpus(queries).data.astype(np.float64)):
        weight = 1.0 if corpus.bias is None else float(asked["lambda_b"][q])
        v = float(found.scores[q, -1] if rng.random() < 0.5 else picks.pool_needed[q])
        cosine = cosine_of(v, weight, most) + float(rng.choice((0, 1e-7, -1e-7, -1e-5, -1e-3)))
        if picks.lengths[q] and -1 < cosine < 1:
            pick = picks.indices[q, int(rng.integers(picks.lengths[q]))]
            new.append(away_from(query, corpus.vectors(np.array([pick])), cosine))
    rows = np.concatenate(new).astype(np.float32)
    more = {**held, "embeddings": np.concatenate([held["embeddings"], rows])}
    for name, value in (("bias", most), ("groups", 1 << 40), ("costs", 1.0)):
        if name in held:
            more[name] = np.concatenate([held[name], np.full(len(rows), value, held[name].dtype)])
    return more


def corner(held: dict[str, Any], queries: np.ndarray, asked: dict[str, Any], q: int, backend: str) -> None:
    """Give query q a pool that ends just where its picks need it to, and rows that lie just outside."""
    corpus = rk.Corpus(held["embeddings"], held.get("bias"))
    query = queries[q : q + 1]
    k = int(np.max(asked["k"]))
    weights = {name: asked[name][q] for name in ("lambda_d", "lambda_b") if name in asked}
    ask = {"k": k, **{name: float(value) for name, value in weights.items()}, "backend": backend}
    ranked = corpus.search(query, len(corpus), lambda_b=ask.get("lambda_b", 0.95))
    first = corpus.select(query, pool=min(asked["pool"], len(corpus)), **ask)
    n = int((ranked.scores[0] >= first.pool_needed[0]).sum())
    if not 0 < n <= len(corpus):
        return
    outside = float(ranked.scores[0, n - 1])
    candidates = ranked.indices[:, :n]
    picks = rk.mmr(query, corpus, candidates=candidates, outside=outside, **ask)
    most = 0.0 if corpus.bias is None else float(corpus.bias.max())
    cosine = cosine_of(outside, 1.0 if corpus.bias is None else ask["lambda_b"], most) - 1e-6
    if not (picks.certified[0] and -1 < cosine < 1):
        return
    unit = rk.Corpus(query).data[0].astype(np.float64)
    rows = away_from(unit, corpus.vectors(picks.indices[0, : picks.lengths[0]]), cosine).astype(np.float32)
    more = rk.Corpus(
        np.concatenate([corpus.vectors(slice(None)).astype(np.float32), rows]),
        None if corpus.bias is None else np.concatenate([corpus.bias, np.full(len(rows), most, np.float32)]),
    )
    # Rows that are normalised once more may have other bits, and a query of length 0 makes others of the new ones.
    ranked = more.search(query, len(more), lambda_b=ask.get("lambda_b", 0.95))
    beyond = ranked.scores[0, ~np.isin(ranked.indices[0], candidates)]
    outside = float(beyond.max(initial=-np.inf))
    picks = rk.mmr(query, more, candidates=candidates, outside=outside, **ask)
    whole = more.select(query, pool=None, **ask)
    if picks.certified[0] and (whole.indices != picks.indices).any():
        raise WrongError(
            f"query {q} is certified with {picks.indices[0].tolist()}, outside {outside:g}, needed "
            f"{picks.pool_needed[0]:g}; rows away from its picks make it {whole.indices[0].tolist()}"
        )


def run_one(seed: int, number: int) -> int:
    rng = np.random.default_rng([seed, number, 1])
    with strict():
        draw_isa(rng)
        held, queries, asked = draw(seed, number)
        backend = "reference" if len(held["embeddings"]) <= 200 and rng.random() < 0.3 else "cpu"
        picks = check(held, queries, asked, backend)
        if "allowed" in asked:
            return len(queries)
        check(refuting(rng, held, queries, asked, picks), queries, asked, backend)
        cornered = rng.permutation(len(queries))[:8].tolist()
        for q in cornered:
            corner(held, queries, asked, q, backend)
    return 2 * len(queries) + len(cornered)


def describe(seed: int, number: int) -> str:
    held, queries, asked = draw(seed, number)
    return f"{len(queries)} queries: {in_words({**held, **asked})}"


FUZZER = Fuzzer(__file__, "queries", 100_000, run_one, describe)

if __name__ == "__main__":
    sys.exit(main(FUZZER, __doc__))
