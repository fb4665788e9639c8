"""``nearest``: which earlier pick each is most similar to, with the numbers of the library on every wire."""

import numpy as np
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.serving import batcher, kernel
from ragsys_kernels.serving.ray_serve import answered

N, D, K = 80, 12, 6
ROWS = np.random.default_rng(3).standard_normal((N, D), dtype=np.float32)
CORPORA = {"docs": rk.Corpus(ROWS), "names": rk.Corpus(ROWS, ids=[f"d{i}" for i in range(N)])}
QUERIES = np.random.default_rng(4).standard_normal((4, D), dtype=np.float32)
# Two queries have been shown something, one of them by a list with an id that is not there.
INITIAL = [[], [7, 3], [], [10**6, 5]]
PADDED = np.array([[-1, -1], [7, 3], [-1, -1], [-1, 5]])


def picks_of(method="mmr", **given):
    return CORPORA["docs"].select(
        QUERIES, K, method=method, pool=30, initial=None if method == "gist" else PADDED, nearest=True, **given
    )


@pytest.mark.parametrize("method", ["mmr", "vrsd", "gist"])
def test_every_wire_has_the_places_of_the_library(monkeypatch, method):
    """In JSON alone and together, in Arrow, by a handle, as tensors and by the client."""
    monkeypatch.setattr(batcher, "apart", None)  # which would hide that a joint call fails
    expected = picks_of(method)
    lists = [nearest[:n].tolist() for nearest, n in zip(expected.nearest, expected.lengths, strict=True)]
    assert method == "gist" or any(place < -1 for each in lists for place in each)
    common = {"method": method, "k": K, "pool": 30, "nearest": True, "unknown": "skip"}
    asked = [{"query": query.tolist(), "initial": shown} for query, shown in zip(QUERIES, INITIAL, strict=True)]
    columns = {"vector": list(QUERIES), "initial": pa.array(INITIAL, pa.list_(pa.int64()))}
    if method == "gist":
        columns.pop("initial")
        for each in asked:
            del each["initial"]
    table = pa.table(columns)

    async def use(client, service):
        together = (await client.post("/v1/select", json={"corpus": "docs", **common, "queries": asked})).json()
        alone = [
            (await client.post("/v1/select", json={"corpus": "docs", **common, "queries": [each]})).json()
            for each in asked
        ]
        url = "&".join(f"{name}={str(x).lower()}" for name, x in common.items())
        arrow = await client.post(f"/v1/select?corpus=docs&{url}", content=servers.arrow(table), headers=servers.ARROW)
        handle = await answered(service, table, {"corpus": "docs", **common})
        return together["results"], [each["results"][0] for each in alone], servers.table_of(arrow), handle

    together, alone, arrow, handle = servers.run(CORPORA, use)
    assert [each["nearest"] for each in together] == [each["nearest"] for each in alone] == lists
    assert arrow["nearest"].to_pylist() == handle["nearest"].to_pylist() == lists
    assert arrow.schema.field("nearest").type == pa.list_(pa.int32())
    given = {} if method == "gist" else {"initial": INITIAL}
    for wire in ("json", "arrow"):
        sent = servers.with_client(
            CORPORA,
            lambda client: client.select(QUERIES, corpus="docs", **common, **given),
            wire=wire,
        )
        np.testing.assert_array_equal(sent.nearest, expected.nearest)
        assert sent.nearest.dtype == np.int32


def test_of_candidates_alone():
    """What most requests are, which else go to the kernels by a quicker way."""
    asked = {"corpus": "docs", "k": 4, "nearest": True, "queries": [{"query_id": 1, "candidates": list(range(2, 40))}]}
    (answer,) = servers.posted(CORPORA, ("/v1/select", asked))
    expected = rk.mmr(ROWS[1:2], CORPORA["docs"], 4, candidates=np.arange(2, 40)[None], nearest=True)
    assert answer.json()["results"][0]["nearest"] == expected.nearest[0].tolist()


def test_tensors():
    """A tensor more where the parameter is given, and an error where it alone is asked for."""
    vector = {"name": "vector", "shape": [4, D], "datatype": "FP32", "data": QUERIES.ravel().tolist()}
    asked = {"inputs": [vector], "parameters": {"k": K, "pool": 30, "nearest": True}}
    one = {**asked, "outputs": [{"name": "nearest"}]}
    without = {**one, "parameters": {"k": K}}
    given, alone, refused, about, plain = servers.posted(
        CORPORA,
        ("/v2/models/docs/infer", asked),
        ("/v2/models/docs/infer", one),
        ("/v2/models/docs/infer", without),
        ("/v2/models/docs/infer", {**one, "parameters": {"nearest": 1}}),
        ("/v2/models/docs/infer", {"inputs": [vector]}),
    )
    expected = CORPORA["docs"].select(QUERIES, K, pool=30, nearest=True).nearest
    (found,) = [each for each in given.json()["outputs"] if each["name"] == "nearest"]
    assert alone.json()["outputs"] == [found]
    assert (found["datatype"], found["shape"], found["data"]) == ("INT32", [4, K], expected.ravel().tolist())
    assert refused.json()["error"] == (
        "infer: outputs must have nearest with the parameter nearest alone, got it without"
    )
    assert about.json()["error"].startswith("select: nearest must be true or false, got 1")
    assert "nearest" not in [each["name"] for each in plain.json()["outputs"]]


def test_vectors_that_queries_bring_names_and_pages():
    """Places are among the picks, whatever the candidates are; a cursor's ids come after those of ``initial``."""
    vectors = {"b64": servers.encoded(ROWS[:20])["b64"], "shape": [20, D]}
    own = {"query": QUERIES[0].tolist(), "vectors": vectors, "candidates": [f"x{i}" for i in range(20)]}
    own["initial"] = ["x3", "x1"]
    common = {"k": 3, "nearest": True}
    page = {"corpus": "names", "pool": 30, **common}
    first, second = servers.posted(
        CORPORA,
        ("/v1/select", {**common, "queries": [own]}),
        ("/v1/select", {**page, "queries": [{"query": QUERIES[0].tolist(), "initial": ["d7"]}]}),
    )
    expected = rk.mmr(
        QUERIES[:1], ROWS, 3, candidates=np.arange(20)[None], initial=np.array([[3, 1]]), nearest=True
    ).nearest[0]
    assert first.json()["results"][0]["nearest"] == expected.tolist()
    (result,) = second.json()["results"]
    shown = [7, *(int(each[1:]) for each in result["ids"])]
    (third,) = servers.posted(
        CORPORA,
        ("/v1/select", {**page, "queries": [
            {"query": QUERIES[0].tolist(), "initial": ["d7"], "cursor": result["cursor"]}]}),
    )  # fmt: skip
    expected = CORPORA["docs"].select(QUERIES[:1], 3, pool=30, initial=np.array([shown]), nearest=True).nearest[0]
    assert third.json()["results"][0]["nearest"] == expected.tolist()


def test_queries_that_fail_have_none_and_others_have_theirs(monkeypatch):
    """Also where the joint call fails, and each is answered by itself."""
    queries = [{"query_id": 1}, {"query_id": 10**9}, {"query_id": 2, "k": 2}]
    body = {"corpus": "docs", "nearest": True, "k": K, "pool": 30, "queries": queries}
    expected = CORPORA["docs"].select(ROWS[[1, 2]], K, pool=30, nearest=True)
    answer = kernel.answer

    def fails(block, *others):
        if len(block) > 1:
            raise MemoryError
        return answer(block, *others)

    for call in (answer, fails):
        monkeypatch.setattr(kernel, "answer", call)
        monkeypatch.setattr(batcher, "answer", call)
        (found,) = servers.posted(CORPORA, ("/v1/select", body))
        one, bad, two = found.json()["results"]
        assert one["nearest"] == expected.nearest[0].tolist()
        assert two["nearest"] == expected.nearest[1, :2].tolist()
        assert "nearest" not in bad


def test_it_is_left_out_where_it_is_not_asked_for():
    usual, no = servers.posted(
        CORPORA,
        ("/v1/select", {"corpus": "docs", "queries": [{"query_id": 1}]}),
        ("/v1/select", {"corpus": "docs", "nearest": False, "queries": [{"query_id": 1}]}),
    )
    assert usual.json() == no.json()
    assert "nearest" not in usual.json()["results"][0]
    (rerank,) = servers.posted(
        CORPORA, ("/rerank", {"model": "docs", "query": "id:1", "documents": [2, 3], "nearest": True})
    )
    assert rerank.json()["error"]["message"] == "rerank: nearest must be left out: rerank has none, got True"


def test_the_path_says_it_of_each_segment():
    query = {"query": QUERIES[0].tolist(), "initial": [9, 4], "candidates": list(range(30)), "k": 4}
    (answer,) = servers.posted(CORPORA, ("/v1/path", {"corpus": "docs", **query}))
    segments = answer.json()["segments"]
    assert len(segments) > 3
    for segment in segments:
        weight = (segment["low"] + segment["high"]) / 2
        picks = rk.mmr(
            QUERIES[:1], CORPORA["docs"], 4, candidates=np.arange(30)[None], initial=np.array([[9, 4]]),
            lambda_d=weight, nearest=True,
        )  # fmt: skip
        if picks.indices[0].tolist() == segment["ids"]:
            assert segment["nearest"] == picks.nearest[0].tolist()
            np.testing.assert_allclose(segment["redundancy"], picks.redundancy[0], atol=2e-6)
