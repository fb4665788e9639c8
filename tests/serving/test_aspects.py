"""Aspects and their weights over every wire: the bits of `coverage` in process, alone and beside other queries."""

import asyncio
import sys

import numpy as np
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.selection import METHODS
from ragsys_kernels.serving import InvalidRequestError
from ragsys_kernels.serving.ray_serve import answered
from ragsys_kernels.serving.routes import flight
from ragsys_kernels.serving.routes.arrow_answers import batch_of

N, D, K = 120, 16, 4
RNG = np.random.default_rng(0)
CORPUS = rk.Corpus(RNG.standard_normal((N, D), dtype=np.float32))
QUERIES = RNG.standard_normal((4, D), dtype=np.float32)
POOLS = RNG.permuted(np.tile(np.arange(N), (4, 1)), axis=1)[:, :40]
# Of the queries: three, nine and three aspects, with weights and without; none.
ASPECTS = [*(RNG.standard_normal((n, D), dtype=np.float32) for n in (3, 9, 3)), None]
WEIGHTS = [None, RNG.uniform(0, 2, 9).astype(np.float32), np.float32([0, 1, 0.5]), None]
COMMON = {"method": "coverage", "kind": "xquad", "lambda_d": 0.3, "k": K}


def expected(**options):
    """What the library picks for each query alone."""
    found = []
    for query, pool, aspects, weights in zip(QUERIES, POOLS, ASPECTS, WEIGHTS, strict=True):
        given = {} if aspects is None else {"aspects": aspects[None]}
        given |= {} if weights is None else {"weights": weights[None]}
        how = {"candidates": pool[None], **COMMON, **options}
        picks = CORPUS.select(query[None], how.pop("k"), num_threads=1, **given, **how)
        found.append((picks.indices[0].tolist(), picks.scores[0].tobytes()))
    return found


def told(ids, scores):
    return [(each, np.array(x, np.float32).tobytes()) for each, x in zip(ids, scores, strict=True)]


def asked(encode):
    found = [{"query": q.tolist(), "candidates": p.tolist()} for q, p in zip(QUERIES, POOLS, strict=True)]
    for query, aspects, weights in zip(found, ASPECTS, WEIGHTS, strict=True):
        query["aspects"] = None if aspects is None else encode(aspects)
        query["weights"] = None if weights is None else weights.tolist()
    return found


def table(**columns):
    lists = [None if each is None else each.tolist() for each in ASPECTS]
    weights = [None if each is None else each.tolist() for each in WEIGHTS]
    return pa.table(
        {
            "vector": list(QUERIES), "candidates": POOLS.tolist(),
            "aspects": pa.array(lists, pa.list_(pa.list_(pa.float32()))),
            "weights": pa.array(weights, pa.list_(pa.float32())), **columns,
        }
    )  # fmt: skip


@pytest.mark.parametrize("encode", [servers.encoded, np.ndarray.tolist], ids=["base64", "lists"])
def test_json_has_the_bits_of_the_library(encode):
    queries = asked(encode)

    async def use(client, _):
        whole = await client.post("/v1/select", json={**COMMON, "queries": queries})
        posts = (client.post("/v1/select", json={**COMMON, "queries": [query]}) for query in queries)
        return [each.json()["results"] for each in (whole, *await asyncio.gather(*posts))]

    whole, *alone = servers.run({"docs": CORPUS}, use)
    assert told([x["ids"] for x in whole], [x["scores"] for x in whole]) == expected()
    assert [each for [each] in alone] == whole
    assert expected() != expected(kind="cover")


def test_a_pool_that_is_retrieved_and_a_whole_corpus_are_covered_too():
    for pool in (30, None):
        queries = [{name: x for name, x in query.items() if name != "candidates"} for query in asked(servers.encoded)]
        (answer,) = servers.posted({"docs": CORPUS}, ("/v1/select", {**COMMON, "pool": pool, "queries": queries}))
        results = answer.json()["results"]
        found = told([x["ids"] for x in results], [x["scores"] for x in results])
        assert found == expected(candidates=None, pool=pool)


def test_arrow_flight_and_handles_have_the_bits_of_the_library():
    url = "/v1/select?" + "&".join(f"{name}={x}" for name, x in COMMON.items())

    async def use(client, service):
        arrow = servers.table_of(await client.post(url, content=servers.arrow(table()), headers=servers.ARROW))
        handle = await answered(service, table(), COMMON)
        served = service.corpora.get("docs")
        [(part, _)] = flight._read(servers.arrow(table()), 0, dict(COMMON), served, service.limits, 9)
        await service.batcher.answer(part)
        return arrow, handle, pa.Table.from_batches([batch_of(part)])

    for each in servers.run({"docs": CORPUS}, use):
        assert told(each["ids"].to_pylist(), each["scores"].to_pylist()) == expected()


def test_tensors_have_the_bits_of_the_library():
    """Of queries with as many aspects; a vector of zeros that weighs nothing is padding."""
    some = np.zeros((2, 5, D), np.float32), np.zeros((2, 5), np.float32)
    for q, at in enumerate((0, 2)):
        some[0][q, :3], some[1][q, :3] = ASPECTS[at], np.float32(1) / 3 if WEIGHTS[at] is None else WEIGHTS[at]
    arrays = {"vector": QUERIES[[0, 2]], "candidates": POOLS[[0, 2]], "aspects": some[0], "weights": some[1]}
    kinds = {"candidates": "INT64"}
    inputs = [
        {"name": name, "shape": list(x.shape), "datatype": kinds.get(name, "FP32"), "data": x.ravel().tolist()}
        for name, x in arrays.items()
    ]
    (answer,) = servers.posted({"docs": CORPUS}, ("/v2/models/docs/infer", {"inputs": inputs, "parameters": COMMON}))
    outputs = {each["name"]: np.reshape(each["data"], each["shape"]) for each in answer.json()["outputs"]}
    assert told(outputs["ids"].tolist(), outputs["scores"]) == [expected()[0], expected()[2]]


@pytest.mark.parametrize("wire", ["json", "arrow"])
def test_the_client_sends_them(wire):
    def use(client):
        how = {**COMMON, "candidates": POOLS, "aspects": ASPECTS, "weights": WEIGHTS}
        return client.select(QUERIES, how.pop("k"), **how)

    picks = servers.with_client({"docs": CORPUS}, use, wire=wire)
    assert told(picks.ids.tolist(), picks.scores) == expected()

    def square(client):
        return client.select(QUERIES[:2], K, method="coverage", aspects=np.stack(ASPECTS[0:3:2]), pool=20)

    picks = servers.with_client({"docs": CORPUS}, square, wire=wire)
    of_library = CORPUS.select(QUERIES[:2], K, method="coverage", aspects=np.stack(ASPECTS[0:3:2]), pool=20)
    assert picks.scores.tobytes() == of_library.scores.tobytes()

    async def wrong(client):
        for given in (np.zeros((4, D)), [np.zeros((2, D)), np.zeros((2, D + 1)), None, None]):
            with pytest.raises(ValueError, match=r"aspects must be \(Q, A, D\) numbers"):
                await client.select(QUERIES, K, method="coverage", aspects=given)
        with pytest.raises(ValueError, match="aspects must have a row for each of 4 queries, got 3"):
            await client.select(QUERIES, K, method="coverage", aspects=ASPECTS[:3])
        with pytest.raises(InvalidRequestError, match="aspects must be left out: mmr has none"):
            await client.select(QUERIES, K, aspects=ASPECTS)

    servers.with_client({"docs": CORPUS}, wrong, wire=wire)


def test_vectors_of_their_own_are_covered_too():
    """Candidates that come with their vectors: aspects have the dimensions of these."""
    rows = RNG.standard_normal((30, 3), dtype=np.float32)
    aspects, query = rows[:2] + np.float32(0.1), np.ones(3, np.float32)
    given = {"query": query.tolist(), "vectors": servers.encoded(rows), "aspects": aspects.tolist()}
    (answer,) = servers.posted(
        {"docs": CORPUS}, ("/v1/select", {**COMMON, "queries": [given, asked(np.ndarray.tolist)[0]]})
    )
    own, other = answer.json()["results"]
    picks = rk.coverage(
        query[None], rows, K, aspects=aspects[None], kind="xquad", lambda_d=0.3, candidates=np.arange(30)[None]
    )
    assert told([own["ids"]], [own["scores"]]) == [(picks.indices[0].tolist(), picks.scores[0].tobytes())]
    assert told([other["ids"]], [other["scores"]]) == expected()[:1]


ROW = [0.0] * D
BAD = {
    "have the corpus's 16 dimensions, or those of its vectors, got 2": [[1, 2]],
    "have the corpus's 16 dimensions, or those of its vectors, got 3": servers.encoded(np.zeros((2, 3), "f4")),
    "have 1 to 10000 rows, got 0": [],
    "be a list of lists of numbers, or an object with b64, shape and dtype, got 1": [1, 2],
    "be a list of lists of numbers, or an object with b64, shape and dtype, got 'x'": "x",
    "be a list of lists of numbers, or an object with b64, shape and dtype, got None": [ROW, None],
    "be numbers, got '1'": [["1"] * D],
    "be finite float32, got NaN or inf": [[sys.float_info.max] * D],
    "be 128 bytes, as shape and dtype say, got 64 bytes": {**servers.encoded(np.zeros((1, D), "f4")), "shape": [2, D]},
    "be [A, D] with D of 1 to 1000000, got [16]": servers.encoded(np.zeros(D, "f4")),
    "be one of 'float32', 'float16', got 'int8'": {**servers.encoded(np.zeros((1, D), "i1"))},
}
BAD_WEIGHTS = {
    "have a number for each of the aspects, got 1 for 2": [1.0],
    "be finite and at least 0, got -1.0": [1, -1],
    "be a list of numbers, got 3": 3,
    "be finite float32, got NaN or inf": [1e39, 0],
}


def test_what_lies_is_refused_by_name_for_its_query_alone():
    plain = {"query_id": 1}
    queries = [{**plain, "aspects": each} for each in BAD.values()]
    queries += [{**plain, "aspects": [ROW, ROW], "weights": each} for each in BAD_WEIGHTS.values()]
    queries += [{**plain, "weights": [1.0]}]
    words = [*BAD, *BAD_WEIGHTS, "come with aspects, got weights alone"]
    (answer,) = servers.posted(
        {"docs": CORPUS}, ("/v1/select", {"method": "coverage", "queries": [plain, *queries, plain]})
    )
    first, *others, last = answer.json()["results"]
    assert first == last
    assert "ids" in first
    for each, rule in zip(others, words, strict=True):
        name, _, said = each["error"]["message"].removeprefix("select: ").partition(" must ")
        assert said.startswith(rule), each
        assert name.partition(".")[0] in ("aspects", "weights")


@pytest.mark.parametrize("method", METHODS)
def test_rules_without_aspects_refuse_them(method):
    """In JSON, beside columns and as a document's; beside the queries nobody may send them."""
    given = {"aspects": [ROW], "weights": [1.0]}
    one, beside, column, document = servers.posted(
        {"docs": CORPUS},
        ("/v1/select", {"method": method, "queries": [{"query_id": 1, **given}]}),
        ("/v1/select", {"method": method, "queries": [{"query_id": 1}], "aspects": [ROW]}),
        (f"/v1/select?method={method}", servers.arrow(pa.table({"query_id": [1], "aspects": [[ROW]]})), servers.ARROW),
        ("/rerank", {"documents": ["1", "2"], "query": "id:3", "method": method, **given}),
    )
    assert beside.json()["error"]["message"] == (
        "select: aspects must stand in each of the queries, got one beside them"
    )
    if method == "coverage":
        assert (one.status_code, column.status_code, document.status_code) == (200, 200, 200)
        return
    message = f"aspects must be left out: {method} has none, got a list"
    assert one.json()["results"][0]["error"]["message"] == f"select: {message}"
    assert servers.table_of(column)["error"].to_pylist() == [f"select: {message}"]
    assert document.json()["error"]["message"] == f"rerank: {message}"
