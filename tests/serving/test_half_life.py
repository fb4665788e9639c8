"""Relevance that falls with the age of rows, by the service: the bits of `Corpus.select`, on every wire."""

import asyncio
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.serving.ray_serve import answered

N, D, K, DAY = 200, 12, 4, 86_400.0
NOW = 1.7e9
RNG = np.random.default_rng(2)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
TIME = NOW - RNG.gamma(1, 20 * DAY, N)
TIME[::11] = np.nan
CORPORA = {
    "docs": rk.Corpus(ROWS, time=TIME),
    "biased": rk.Corpus(ROWS, time=TIME, bias=RNG.normal(0, 0.2, N)),
    "plain": rk.Corpus(ROWS, costs=np.ones(N)),
    "dot": rk.Corpus(ROWS, time=TIME, metric="dot"),
}
QUERIES = RNG.standard_normal((5, D), dtype=np.float32)
AGES = {"half_life": 14 * DAY, "now": NOW}
pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning")


def results_of(queries, corpus="docs", **common):
    (answer,) = servers.posted(CORPORA, ("/v1/select", {"corpus": corpus, "k": K, "queries": queries, **common}))
    return answer.json()["results"]


def same(found, picks, q=0):
    n = int(picks.lengths[q])
    assert found["ids"] == picks.indices[q, :n].tolist()
    for field in ("scores", "relevance"):
        assert np.array(found[field], np.float32).tobytes() == getattr(picks, field)[q, :n].tobytes()


@pytest.mark.parametrize("corpus", ["docs", "biased"])
@pytest.mark.parametrize("pool", [60, None])
def test_they_are_those_of_the_library(corpus, pool):
    """In JSON together and alone, for all queries and for each, in columns, by a handle and by the client."""
    rules = {**AGES, "decay": "linear", "decay_floor": 0.125}
    expected = CORPORA[corpus].select(QUERIES, K, pool=pool, num_threads=1, **rules)
    asked = [{"query": x.tolist()} for x in QUERIES]
    together = results_of(asked, corpus, pool=pool, **rules)
    assert [results_of([each], corpus, pool=pool, **rules)[0] for each in asked] == together
    assert results_of([{**rules, **each} for each in asked], corpus, pool=pool) == together
    for q, result in enumerate(together):
        same(result, expected, q)
    table = pa.table({"vector": list(QUERIES)})
    url = {"corpus": corpus, "k": K, "pool": "all" if pool is None else pool, **rules}
    path = "/v1/select?" + "&".join(f"{name}={x}" for name, x in url.items())
    (columns,) = servers.posted(CORPORA, (path, servers.arrow(table), servers.ARROW))
    for q, row in enumerate(servers.table_of(columns).to_pylist()):
        same(row, expected, q)

    async def by_handle(_, service):
        return (await answered(service, table, {"corpus": corpus, "k": K, "pool": pool, **rules})).to_pylist()

    assert [row["ids"] for row in servers.run(CORPORA, by_handle)] == [each["ids"] for each in together]

    async def use(client):
        return await client.select(QUERIES, K, pool=pool, **rules)

    for wire in ("json", "arrow"):
        sent = servers.with_client(CORPORA, use, corpus=corpus, wire=wire)
        np.testing.assert_array_equal(sent.ids, expected.indices)
        np.testing.assert_array_equal(sent.relevance, expected.relevance)


def test_the_client_takes_times_and_lengths():
    expected = CORPORA["docs"].select(QUERIES, K, half_life=14 * DAY, now=1774915200)
    now = np.datetime64("2026-03-31T00:00:00.000000000")

    async def use(client):
        first = await client.select(QUERIES, K, half_life=timedelta(14), now=datetime(2026, 3, 31))
        return first, await client.select(QUERIES, K, half_life=np.timedelta64(14, "D"), now=now)

    for found in servers.with_client(CORPORA, use, corpus="docs"):
        np.testing.assert_array_equal(found.relevance, expected.relevance)


def test_given_relevance_lists_and_rerank():
    ids = [RNG.permutation(N)[:30].tolist() for _ in QUERIES]
    relevance = RNG.random((len(QUERIES), 30)).astype(np.float32)
    asked = [{"candidates": x, "relevance": r.tolist()} for x, r in zip(ids, relevance, strict=True)]
    found = results_of(asked, relevance_scale="minmax", **AGES)
    expected = CORPORA["docs"].select(
        None, K, candidates=np.array(ids), relevance=relevance, relevance_scale="minmax", **AGES
    )
    for q, result in enumerate(found):
        same(result, expected, q)
    asked[1]["relevance"][3] = -2
    bad = results_of(asked, **AGES)
    assert bad[1]["error"]["argument"] == "relevance"
    assert bad[1]["error"]["message"].startswith("mmr: relevance must be at least 0 with half_life")
    assert [("error" in each) for each in bad] == [False, True, False, False, False]
    assert results_of([asked[1]], **AGES)[0]["error"]["message"] == bad[1]["error"]["message"]

    hits = [{"ids": ids[0]}, {"ids": ids[1][:9]}]
    (result,) = results_of(
        [{"lists": hits, "query": QUERIES[0].tolist()}], fusion="rrf", relevance_scale="minmax", **AGES
    )
    fused = rk.fuse([([ids[0]], None), ([ids[1][:9]], None)])
    picks = CORPORA["docs"].select(
        QUERIES[:1], K, candidates=fused.candidates, relevance=fused.relevance, relevance_scale="minmax", **AGES
    )
    same(result, picks)

    body = {"query": QUERIES[0].tolist(), "documents": ids[0], "model": "docs", "top_n": K, **AGES}
    (answer,) = servers.posted(CORPORA, ("/v2/rerank", body))
    ranked = [ids[0][each["index"]] for each in answer.json()["results"]]
    picks = CORPORA["docs"].select(QUERIES[:1], K, candidates=[ids[0]], **AGES)
    assert ranked == picks.indices[0].tolist()


def test_calls_of_several_moments_come_together():
    bodies = [
        {"corpus": "docs", "k": K, "half_life": life, "now": now, "queries": [{"query_id": q}]}
        for q, (life, now) in enumerate([(DAY, NOW), (DAY, NOW + DAY), (30 * DAY, NOW), (DAY, NOW)])
    ]

    async def use(client, _):
        answers = await asyncio.gather(*(client.post("/v1/select", json=body) for body in bodies))
        return [each.json()["results"][0] for each in answers]

    for body, found in zip(bodies, servers.run(CORPORA, use), strict=True):
        query = CORPORA["docs"].vectors(np.array([body["queries"][0]["query_id"]])).astype(np.float32)
        ages = {name: body[name] for name in AGES}
        same(found, CORPORA["docs"].select(query, K, num_threads=1, **ages))


def test_without_a_moment_it_is_the_present():
    (found,) = results_of([{"query": QUERIES[0].tolist()}], half_life=1e9)
    picks = CORPORA["docs"].select(QUERIES[:1], K, half_life=1e9)
    assert found["ids"] == picks.indices[0].tolist()
    np.testing.assert_allclose(found["relevance"], picks.relevance[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("corpus", "fields", "message"),
    [
        ("plain", AGES, "half_life must be left out: the corpus has no times, got 1209600.0"),
        ("docs", {"now": 3}, "now must come with half_life, got now alone"),
        ("docs", {"decay": "exp"}, "decay must come with half_life, got decay alone"),
        ("docs", {"half_life": 0}, "half_life must be above 0, got 0"),
        (
            "docs",
            {**AGES, "now": int(1000 * NOW)},
            "now must be seconds since 1970, within [-2.6e+11, 2.6e+11], got 1700000000000, which looks like "
            "milliseconds",
        ),
        ("docs", {"half_life": "7d"}, "half_life must be a number, got '7d'"),
        ("docs", {**AGES, "decay": "log"}, "decay must be one of 'exp', 'gauss', 'linear', got 'log'"),
        ("docs", {**AGES, "decay_floor": 2}, r"decay_floor must be within [0, 1], got 2"),
        (
            "dot",
            {**AGES, "method": "vrsd"},
            "half_life must come with relevance for vrsd and metric 'dot', got 1209600.0",
        ),
        (
            "docs",
            {**AGES, "vectors": servers.encoded(ROWS[:9])},
            "half_life must be left out: vectors have no times, got 1209600.0",
        ),
    ],
)
def test_what_is_refused(corpus, fields, message):
    body = {"corpus": corpus, "k": K, "queries": [{"query": QUERIES[0].tolist(), **fields}]}
    (answer,) = servers.posted(CORPORA, ("/v1/select", body))
    content = answer.json()
    error = content["error"] if "error" in content else content["results"][0]["error"]
    assert (answer.status_code, error["message"]) == (422, f"select: {message}")


def test_what_is_told():
    async def use(client, _):
        return (await client.get("/openapi.json")).json(), (await client.get("/info")).json()

    document, info = servers.run(CORPORA, use)
    assert [info["corpora"][name]["time"] for name in ("docs", "plain")] == [True, False]
    assert [info["corpora"][name]["costs"] for name in ("docs", "plain")] == [False, True]
    fields = document["components"]["schemas"]["SelectRequest"]["properties"]
    assert {"half_life", "now", "decay", "decay_floor"} <= set(fields)
