"""``/v1/select``: the picks and bits of calls in process, whatever was batched with a query."""

import asyncio
import base64

import numpy as np
import pytest

pytest.importorskip("fastapi")
import servers

import ragsys_kernels as rk

RNG = np.random.default_rng(20)
N, D = 300, 24


@pytest.fixture(scope="module", params=["cosine", "dot"])
def corpus(request):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((N, D), dtype=np.float32)
    return rk.Corpus(rows, bias=rng.uniform(-2, 0, N).astype("f4"), groups=rng.integers(0, 40, N), metric=request.param)


def encoded(vector):
    return {"b64": base64.b64encode(vector.tobytes()).decode(), "shape": [len(vector)], "dtype": str(vector.dtype)}


def some_query(rng):
    """A query as the JSON has it, and the call in process that it stands for."""
    method = str(rng.choice(["mmr", "vrsd"]))
    vector = rng.standard_normal(D, dtype=np.float32)
    query, call = {"method": method, "k": int(rng.integers(1, 9))}, {"method": method}
    if method == "mmr":
        for name in ("lambda_d", "lambda_b"):
            query[name] = call[name] = float(np.float32(rng.uniform()))
    if rng.random() < 0.5:
        query["query"] = vector.tolist() if rng.random() < 0.5 else encoded(vector)
    elif rng.random() < 0.5:
        half = vector.astype(np.float16)
        query["query"], vector = encoded(half), half.astype(np.float32)
    else:
        query["query_id"] = row = int(rng.integers(N))
        vector = row
    kind = rng.random()
    if kind < 0.4:
        ids = rng.choice(N, int(rng.integers(1, 60)), replace=False)
        query["candidates"], call["candidates"] = ids.tolist(), ids[None]
        if rng.random() < 0.3:
            scores = rng.uniform(size=len(ids)).astype(np.float32)
            query["relevance"], call["relevance"] = scores.tolist(), scores[None]
    elif kind < 0.8:
        query["pool"] = call["pool"] = int(rng.integers(1, 80))
    else:
        query["pool"] = call["pool"] = None
    if rng.random() < 0.3:
        shown = rng.choice(N, int(rng.integers(1, 5)), replace=False)
        query["initial"], call["initial"] = shown.tolist(), shown[None]
    for name, share in (("exclude", 20), ("allowed", 200)):
        if rng.random() < 0.25:
            rows = rng.choice(N, int(rng.integers(1, share)), replace=False)
            query[name], call[name] = rows.tolist(), rows[None]
    if rng.random() < 0.2:
        query["max_per_group"] = call["max_per_group"] = int(rng.integers(1, 3))
    return query, vector, call


def in_process(corpus, query, vector, call):
    if isinstance(vector, int):
        vector = corpus.vectors(np.array([vector]))[0].astype(np.float32)
    picks = corpus.select(vector[None], query["k"], num_threads=1, **call)
    n = int(picks.lengths[0])
    certified = None if picks.certified is None else bool(picks.certified[0])
    return [*(np.asarray(field[0, :n]) for field in picks[:4]), certified]


def same_bits(result, expected):
    got = [np.array(result["ids"], np.int64)]
    got += [np.array(result[name], np.float32) for name in ("scores", "relevance", "redundancy")]  # null: NaN
    *expected, certified = expected
    same = (a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(got, expected, strict=True))
    return result["certified"] is certified and all(same)


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
def test_answers_have_the_bits_of_calls_in_process(corpus):
    rng = np.random.default_rng(5)
    asked = [[some_query(rng) for _ in range(size)] for size in (1, 1, 1, 2, 3, 7, 20) * 8]

    def body(queries):
        """Some of the rules of a query alone stand beside it: those of two requests then meet in a call."""
        given = [dict(query) for query, _, _ in queries]
        beside = ("k", "lambda_d", "lambda_b", "method", "pool") if len(given) == 1 and rng.random() < 0.7 else ()
        return {"queries": given, **{name: given[0].pop(name) for name in beside if name in given[0]}}

    async def use(client, service):
        bodies = [body(queries) for queries in asked]
        return await asyncio.gather(*(client.post("/v1/select", json=body) for body in bodies))

    answers = servers.run({"docs": corpus}, use)
    certified = set()
    for queries, answer in zip(asked, answers, strict=True):
        assert answer.status_code == 200
        for (query, vector, call), result in zip(queries, answer.json()["results"], strict=True):
            assert same_bits(result, in_process(corpus, query, vector, call)), (query, result)
            certified.add(result["certified"])
    assert certified == ({True, False, None} if corpus.metric == "cosine" else {True, None})


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
@pytest.mark.parametrize(
    ("scale", "method"), [("as-is", "mmr"), ("minmax", "vrsd"), ("zscore", "dpp"), ("rank", "mmr")]
)
def test_relevance_on_a_scale_has_the_bits_of_calls_in_process(corpus, scale, method):
    rng = np.random.default_rng(8)
    sizes = [int(n) for n in rng.integers(1, 40, 30)]
    ids = [rng.choice(N, n, replace=False) for n in sizes]
    scores = [rng.uniform(0, 9, n).astype(np.float32).round(1) for n in sizes]
    query = {"query_id": 3, "k": 4, "method": method, "relevance_scale": scale}
    queries = [{**query, "candidates": x.tolist(), "relevance": y.tolist()} for x, y in zip(ids, scores, strict=True)]

    async def use(client, _):
        alone = [client.post("/v1/select", json={"queries": [query]}) for query in queries]
        together = client.post("/v1/select", json={"queries": [{**query, "candidates": [1]}, *queries]})
        *alone, together = await asyncio.gather(*alone, together)
        return [answer.json()["results"][0] for answer in alone], together.json()["results"]

    alone, (first, *together) = servers.run({"docs": corpus}, use)
    if scale == "as-is":
        assert first["ids"] == [1]
    else:
        assert first["error"]["argument"] == "relevance_scale"
    vector = corpus.vectors(np.array([3])).astype(np.float32)
    for x, y, one, other in zip(ids, scores, alone, together, strict=True):
        call = {"candidates": x[None], "relevance": y[None], "relevance_scale": scale, "method": method}
        expected = in_process(corpus, {"k": 4}, vector[0], call)
        assert same_bits(one, expected)
        assert same_bits(other, expected)
