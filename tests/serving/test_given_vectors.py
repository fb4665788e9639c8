"""Candidates that come with their vectors: no corpus is needed, and answers have the bits of the rules' functions."""

import asyncio
import json

import numpy as np
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.selection import METHODS
from ragsys_kernels.serving import AsyncClient, InvalidRequestError, Limits, batcher
from ragsys_kernels.serving.fields import LACKS

D = 16
CORPUS = rk.Corpus(np.random.default_rng(1).standard_normal((40, 24), dtype=np.float32))
pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def posted(body, path="/v1/select", corpora=(), headers=(), **options):
    return servers.posted(dict(corpora), (path, body, headers), **options)[0]


def results_of(queries, corpora=(), **common):
    return posted({"queries": queries, **common}, corpora=corpora).json()["results"]


def test_pages_and_empty_lists():
    rng = np.random.default_rng(4)
    vectors, ids = rng.standard_normal((30, D), dtype=np.float32), [f"d{i}" for i in range(30)]
    query = {"vectors": servers.encoded(vectors), "candidates": ids, "query": vectors[3].tolist(), "k": 5}
    [first] = results_of([query])
    [second] = results_of([{**query, "cursor": first["cursor"]}])
    shown = np.array([[ids.index(x) for x in first["ids"]]])
    expected = rk.mmr(vectors[[3]], vectors, 5, initial=shown)
    assert second["ids"] == [ids[row] for row in expected.indices[0]]
    nothing = {"vectors": {"b64": "", "shape": [0, D]}, "query": [0.5] * D}
    found = results_of([nothing, query, {**nothing, "candidates": [], "method": "dpp"}, {**query, "allowed": []}])
    assert [result["ids"] for result in found] == [[], first["ids"], [], []]
    known = {**query, "exclude": ["d1", "gone"], "unknown": "skip"}
    assert results_of([known, known])[0]["skipped"] == ["gone"]


GOOD = servers.encoded(np.ones((2, 3), np.float32))
BAD = {
    "no object": ({"vectors": [[1.0, 2.0, 3.0]]}, "vectors"),
    "text": ({"vectors": "AAAA"}, "vectors"),
    "another field": ({"vectors": {**GOOD, "x": 1}}, "vectors"),
    "no shape": ({"vectors": {"b64": GOOD["b64"]}}, "vectors.shape"),
    "flat shape": ({"vectors": {**GOOD, "shape": [6]}}, "vectors.shape"),
    "negative shape": ({"vectors": {**GOOD, "shape": [-2, -3]}}, "vectors.shape"),
    "no dimensions": ({"vectors": {"b64": "", "shape": [4, 0]}}, "vectors.shape"),
    "booleans": ({"vectors": {**GOOD, "shape": [True, 6]}}, "vectors.shape"),
    "huge shape": ({"vectors": {**GOOD, "shape": [2**62, 2**62]}}, "vectors.shape"),
    "huge shape of nothing": ({"vectors": {"b64": "", "shape": [0, 2**61]}}, "vectors.shape"),
    "short": ({"vectors": {**GOOD, "shape": [3, 3]}}, "vectors"),
    "dtype": ({"vectors": {**GOOD, "dtype": "float64"}}, "vectors.dtype"),
    "dtype no text": ({"vectors": {**GOOD, "dtype": ["float32"]}}, "vectors.dtype"),
    "no base64": ({"vectors": {**GOOD, "b64": "ä"}}, "vectors.b64"),
    "b64 no text": ({"vectors": {**GOOD, "b64": 3}}, "vectors.b64"),
    "nan": ({"vectors": servers.encoded(np.array([[1, 1, 1], [1, np.nan, 1]], np.float32))}, "vectors"),
    "null": ({"vectors": None}, "corpus"),
    "ids too few": ({"candidates": ["a"]}, "candidates"),
    "ids of two kinds": ({"candidates": ["a", 1]}, "candidates"),
    "ids of another kind": ({"candidates": [1.5, 2]}, "candidates"),
    "ids twice": ({"candidates": ["a", "a"]}, "candidates"),
    "ids no list": ({"candidates": "ab"}, "candidates"),
    "another query": ({"query": [1.0, 2.0]}, "query"),
    "a query of no numbers": ({"query": ["1", "2", "3"]}, "query"),
    "query_id": ({"query_id": 0}, "query_id"),
    "no query": ({"query": None}, "query"),
    "relevance": ({"relevance": [0.5]}, "relevance"),
    "exclude": ({"exclude": [2]}, "exclude"),
    "exclude text": ({"exclude": ["0"]}, "exclude"),
    "cursor": ({"cursor": "n"}, None),
    "cursor of others": ({"cursor": "sWyJhIl0="}, "cursor"),
    "budget": ({"budget": 3}, "budget"),
    "max_per_group": ({"max_per_group": 3}, "max_per_group"),
    "a group of the query": ({"query_groups": 3}, "query_groups"),
    "groups alone": ({"groups": [1, 2]}, "groups"),
    "costs alone": ({"costs": [1, 2]}, "costs"),
    "groups too few": ({"groups": [1], "max_per_group": 1}, "groups"),
    "groups of two kinds": ({"groups": ["a", 1], "max_per_group": 1}, "groups"),
    "groups no list": ({"groups": "ab", "max_per_group": 1}, "groups"),
    "a group of another kind": ({"groups": ["a", "b"], "query_groups": 1}, "query_groups"),
    "a group that is none": ({"groups": [1, 2], "query_groups": 1.5}, "query_groups"),
    "costs too many": ({"costs": [1, 2, 3], "budget": 2}, "costs"),
    "costs below 0": ({"costs": [1, -2], "budget": 2}, "costs"),
    "costs no numbers": ({"costs": ["1", "2"], "budget": 2}, "costs"),
    "bias too few": ({"bias": [1]}, "bias"),
    "bias beyond float32": ({"bias": [1, 1e39]}, "bias"),
    "bias of a rule without": ({"bias": [1, 2], "method": "vrsd"}, "bias"),
    "metric": ({"metric": "euclid"}, "metric"),
}


@pytest.mark.parametrize("corpora", [{}, {"a": CORPUS, "b": CORPUS}], ids=["alone", "beside two"])
def test_bad_vectors_are_told_and_spoil_no_other_query(corpora):
    good = {"vectors": GOOD, "query": [1.0, 0.0, 0.0]}
    queries = [x for query, _ in BAD.values() for x in ({**good, **query}, good)]
    results = results_of(queries, corpora)
    told = {name: result.get("error", {}).get("argument") for name, result in zip(BAD, results[::2], strict=True)}
    assert told == {name: argument for name, (_, argument) in BAD.items()}
    assert [result["ids"] for result in results[1::2]] == [[0, 1]] * len(BAD)
    assert results[0]["error"]["message"] == "select: vectors must be an object with b64, shape and dtype, got a list"
    costs = results[2 * list(BAD).index("costs below 0")]["error"]["message"]
    assert costs == "select: costs must be finite and at least 0, got -2.0"
    nan = results[2 * list(BAD).index("nan")]["error"]["message"]
    assert nan.endswith("embeddings must be finite, got NaN or inf in row 1")


SIZES = (30, 7, 0, 20)
TOKENS = [np.array([0.1, 0.2, 0.3, 3.0])[np.arange(n) % 4] for n in SIZES]  # of which 0.1 + 0.2 is above 0.3
COLUMNS = {
    "groups": {"groups": [(np.arange(n) * 7 % 5).tolist() for n in SIZES], "max_per_group": 2},
    "names": {"groups": [[f"doc {i * 7 % 5}" for i in range(n)] for n in SIZES], "max_per_group": 1},
    "other groups": {"groups": [[f"{i % 3}" for i in range(n)] for n in SIZES], "query_groups": ["1", "?", "", "2"]},
    "costs": {"costs": [x.tolist() for x in TOKENS], "budget": [6.4, 0.3, 1.0, 0.3]},
    "bias": {"bias": [np.sin(np.arange(n, dtype=np.float32)).tolist() for n in SIZES], "lambda_b": 0.6},
}
COLUMNS["all"] = {**COLUMNS["names"], **COLUMNS["costs"], **COLUMNS["bias"], "query_groups": ["doc 1"] * 4}
WORDS = pa.dictionary(pa.int32(), pa.string())
OF_ALL = ("max_per_group", "lambda_b")


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("method", METHODS)
def test_they_bring_groups_costs_and_bias(monkeypatch, method, columns):
    """In JSON alone and beside others, in Arrow and by the client: the bits of the rule's function with dense pools."""
    monkeypatch.setattr(batcher, "apart", None)  # which would hide that a joint call fails
    given, k = COLUMNS[columns], 4
    rng = np.random.default_rng(2)
    queries, own = (rng.standard_normal((n, D), dtype=np.float32) for n in (4, sum(SIZES)))
    vectors = np.split(own, np.cumsum(SIZES)[:-1])
    common = {"method": method, **{name: x for name, x in given.items() if name in OF_ALL}}
    lists = {name: x for name, x in given.items() if name not in OF_ALL}
    asked = [
        {**common, "query": queries[q].tolist(), "vectors": servers.encoded(vectors[q])}
        | {name: x[q] for name, x in lists.items()}
        for q in range(4)
    ]
    asked[3] = dict(reversed(asked[3].items()))  # a block of its own, in the same call
    together, alone = results_of(asked, k=k), [results_of([each], k=k)[0] for each in asked]
    for result in [*together, *alone]:
        result.get("error", {}).pop("index", None)
    assert together == alone
    if lacking := LACKS[method] & given.keys():
        assert {result["error"]["argument"] for result in together} <= lacking
        return
    table = pa.table({"vector": list(queries), "vectors": lists_of(vectors), **lists})
    for name, kind in (("groups", pa.list_(WORDS)), ("query_groups", WORDS)):
        if isinstance(np.ravel(lists.get(name, [[0]])[0])[0], str):
            table = table.set_column(table.column_names.index(name), name, pa.array(lists[name], kind))
    url = "&".join(f"{name}={x}" for name, x in common.items())
    arrow = servers.table_of(posted(servers.arrow(table), f"/v1/select?k={k}&{url}", headers=servers.ARROW)).to_pylist()

    async def use(client):
        return await client.select(queries, k, candidate_vectors=vectors, **lists, **common)

    sent = servers.with_client({}, use, wire="json"), servers.with_client({}, use, wire="arrow")
    for q, result in enumerate(together):
        if not SIZES[q]:
            assert (result["ids"], result.get("cost", 0), arrow[q]["ids"], arrow[q]["error"]) == ([], 0, [], None)
            continue
        options = {name: x[[q]] if isinstance(x, np.ndarray) else [x[q]] for name, x in lists.items()}
        options |= {name: x for name, x in common.items() if name != "method"}
        picks = getattr(rk, method)(queries[[q]], vectors[q][None], k, num_threads=1, **options)
        n = int(picks.lengths[0])
        for ids, scores in (
            (result["ids"], result["scores"]), (arrow[q]["ids"], arrow[q]["scores"]),
            *((each.ids[q, :n].tolist(), each.scores[q, :n]) for each in sent),
        ):  # fmt: skip
            assert ids == picks.indices[0, :n].tolist()
            assert np.array(scores, np.float32).tobytes() == picks.scores[0, :n].tobytes()
        assert [each.lengths[q] for each in sent] == [n, n]
        assert result.get("cost") == (None if picks.cost is None else picks.cost[0])


def test_tensors_bring_them_too():
    """Padded as candidates are; groups are integers or texts."""
    vectors = np.random.default_rng(3).standard_normal((2, 6, D)).astype(np.float32)
    ids, groups = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, -1, -1], np.array([["a", "a", "b", "b", "c", "c"]] * 2)
    costs = np.tile([1.0, 2.0], (2, 3))
    costs[1, 4:] = -1  # of no candidate
    for numbered in (False, True):
        names = np.unique(groups, return_inverse=True)[1].reshape(2, 6) if numbered else groups
        of_query = 1 if numbered else "b"
        tensors = [
            {"name": "vector", "shape": [2, D], "datatype": "FP32", "data": [1.0] * (2 * D)},
            {"name": "vectors", "shape": [2, 6, D], "datatype": "FP32", "data": vectors.ravel().tolist()},
            {"name": "candidates", "shape": [2, 6], "datatype": "INT64", "data": ids},
            {"name": "groups", "shape": [2, 6], "datatype": "INT64" if numbered else "BYTES",
             "data": names.ravel().tolist()},
            {"name": "query_groups", "shape": [2], "datatype": "INT64" if numbered else "BYTES",
             "data": [of_query] * 2},
            {"name": "costs", "shape": [2, 6], "datatype": "FP32", "data": costs.ravel().tolist()},
            {"name": "budget", "shape": [2], "datatype": "FP32", "data": [3.0, 2.0]},
        ]  # fmt: skip
        body = json.dumps({"inputs": tensors, "parameters": {"k": 2, "max_per_group": 1}}).encode()
        outputs = {x["name"]: x["data"] for x in posted(body, "/v2/models/vectors/infer").json()["outputs"]}
        for q, n in enumerate((6, 4)):
            picks = rk.mmr(
                np.ones((1, D), np.float32), vectors[[q], :n], 2, groups=groups[[q], :n], query_groups=["b"],
                costs=costs[[q], :n], budget=[3.0, 2.0][q], max_per_group=1, num_threads=1,
            )  # fmt: skip
            found = [x - 1 for x in outputs["ids"][2 * q : 2 * q + 2] if x > 0]
            assert found == picks.indices[0, : picks.lengths[0]].tolist()


def test_a_corpus_has_its_own():
    for name, value in {"groups": ["a"], "query_groups": "a", "costs": [1.0], "bias": [1.0]}.items():
        corpora, query = {"docs": CORPUS}, {"query_id": 1, name: value}
        [result] = results_of([query], corpora)
        assert result["error"]["message"] == f"select: {name} must come with vectors, got {name} alone"
        table = pa.table({"query_id": [1], name: [value]})
        [row] = servers.table_of(posted(servers.arrow(table), corpora=corpora, headers=servers.ARROW)).to_pylist()
        assert row["error"] == result["error"]["message"]
        whole = posted({"queries": [{"query_id": 1}], name: value}, corpora=corpora)
        assert (whole.status_code, whole.json()["error"]["argument"]) == (422, name)


def test_groups_of_no_vectors_are_of_any_kind():
    """As those of a query for which a store found nothing."""
    none = {"query": [1.0, 0.0, 0.0], "vectors": {"b64": "", "shape": [0, 3]}, "groups": [], "max_per_group": 1}
    some = {**none, "vectors": GOOD, "groups": ["a", "b"], "query_groups": "a"}
    queries = [
        {**none, "query_groups": "a"},
        {**none, "query_groups": 1},
        some,
        {**some, "groups": [3, 3], "query_groups": 4},
    ]
    together = results_of(queries)
    assert [result["ids"] for result in together] == [[], [], [1], [0]]
    assert [results_of([query])[0] for query in queries] == together


@pytest.mark.parametrize("initial", [["a"], [7]])
def test_ids_of_no_candidates_are_those_that_they_are_alone(initial):
    """An empty list of candidates has ids of no type, also beside one of strings."""
    none = {"query": [1.0, 0.0, 0.0], "vectors": {"b64": "", "shape": [0, 3]}, "candidates": [], "initial": initial}
    other = {**none, "vectors": GOOD, "candidates": ["a", "b"], "initial": ["a"]}
    alone, (beside, _) = (results_of([{**x, "unknown": "skip"} for x in some]) for some in ([none], [none, other]))
    assert beside == alone[0]


def test_where_there_is_no_corpus():
    answer = posted({"queries": [{"query": [1.0] * D}]})
    [refused] = answer.json()["results"]
    assert (answer.status_code, refused["error"]["argument"]) == (422, "corpus")
    assert "which has none: send vectors" in refused["error"]["message"]
    answer = posted({"queries": [{"vectors": GOOD, "query": [1.0, 0, 0]}, {"query": [1.0] * D}]})
    assert answer.json()["results"][1]["error"] == {**refused["error"], "index": 1}
    answer = posted({"vectors": GOOD, "queries": [{"query": [1.0, 0, 0]}]}, corpora={"docs": CORPUS})
    assert (answer.status_code, answer.json()["error"]["argument"]) == (422, "vectors")
    assert posted({"texts": ["1"], "query": "2"}, "/rerank").json()["error"]["argument"] == "model"
    two = posted({"texts": ["1"], "query": "2"}, "/rerank", corpora={"a": CORPUS, "b": CORPUS}).json()["error"]
    rule = "be corpus:rule:lambda_d with one of the corpora 'a', 'b'"
    assert two == {"code": "unknown_corpus", "argument": "model", "message": f"rerank: model must {rule}, got None"}
    assert posted({"texts": ["1"], "query": "2", "model": "vectors"}, "/rerank").json()["error"]["argument"] == "model"


@pytest.mark.slow
def test_a_server_without_a_corpus_starts_and_stops():
    body = {"queries": [{"vectors": GOOD, "query": [1.0, 0, 0]}]}
    with servers.Process("--no-access-log", "--workers", "2") as server:
        assert servers.http.post(f"{server.url}/v1/select", json=body).json()["results"][0]["ids"] == [0, 1]
        assert servers.http.get(f"{server.url}/info").json()["corpora"] == {}
        assert servers.http.get(f"{server.url}/").status_code == 200
        assert server.stop()[0] == 0


def lists_of(parts, fixed=True):
    """A column of lists of vectors."""
    rows = np.concatenate(parts)
    flat = pa.array(rows.ravel())
    if fixed:
        vectors = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    else:
        vectors = pa.ListArray.from_arrays(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1], flat)
    return pa.ListArray.from_arrays(np.cumsum([0, *map(len, parts)], dtype=np.int32), vectors)


@pytest.mark.parametrize(
    ("dtype", "ids", "fixed"),
    [(np.float16, "places", True), (np.float32, "integers", False), (np.float64, "strings", True)],
)
def test_arrow_takes_a_column_of_lists_of_vectors(dtype, ids, fixed):
    rng = np.random.default_rng(5)
    parts = [rng.standard_normal((int(n), D)).astype(dtype) for n in rng.integers(1, 30, 300)]
    parts[7] = parts[7][:0]
    names = {
        "places": [list(range(len(part))) for part in parts],
        "integers": [rng.permutation(10**9 + np.arange(len(part))).tolist() for part in parts],
        "strings": [[f"d{i}" for i in rng.permutation(len(part))] for part in parts],
    }[ids]
    queries = rng.standard_normal((300, D), dtype=np.float32)
    queries[9, 0] = np.nan
    columns = {"vector": pa.FixedSizeListArray.from_arrays(pa.array(queries.ravel()), D)}
    columns["vectors"] = lists_of(parts, fixed)
    if ids != "places":
        columns["candidates"] = names
    answer = posted(servers.arrow(pa.table(columns)), "/v1/select?k=4&unknown=skip", headers=servers.ARROW)
    assert answer.status_code == 200, answer.text
    found = servers.table_of(answer).to_pylist()
    assert (found[7]["error"], found[7]["ids"], found[9]["ids"]) == (None, [], None)
    assert "vector must be finite" in found[9]["error"]
    for i, row in enumerate(found):
        if i not in (7, 9):
            vectors = parts[i].astype(np.float32) if dtype is np.float64 else parts[i]
            picks = rk.mmr(queries[[i]], vectors, 4, candidates=np.arange(len(vectors))[None])
            n = int(picks.lengths[0])
            assert (row["error"], row["ids"]) == (None, [names[i][row] for row in picks.indices[0, :n]])
            assert np.array(row["scores"], np.float32).tobytes() == picks.scores[0, :n].tobytes()


def test_ids_of_an_answer_have_one_type_in_arrow_and_any_in_json():
    """Nulls are absent in both; a query whose ids are of the other type is an error of its own in Arrow."""
    rows = np.random.default_rng(9).standard_normal((6, 3)).astype(np.float32)
    corpora = {"names": rk.Corpus(rows, ids=[f"d{i}" for i in range(6)])}
    own, ids = [rows[:4], None], ["a", "b", "c", "d"]
    for given, candidates, odd in ((own, None, 1), (own, [ids, None], None), ([rows[:4]] * 2, [ids, None], 1)):
        columns = {"vector": rows[:2].tolist(), "candidates": candidates or [None, None]}
        vectors = [None if x is None else x.tolist() for x in given]
        table = pa.table({**columns, "vectors": pa.array(vectors, pa.list_(pa.list_(pa.float32())))})
        arrow = posted(servers.arrow(table), "/v1/select?k=2", corpora, servers.ARROW)
        queries = [
            {"query": rows[q].tolist(), "candidates": columns["candidates"][q],
             "vectors": None if given[q] is None else servers.encoded(given[q])} for q in range(2)
        ]  # fmt: skip
        for q, (result, row) in enumerate(
            zip(results_of(queries, corpora, k=2), servers.table_of(arrow).to_pylist(), strict=True)
        ):
            if q == odd:
                assert "ids" in result
                assert "be given: ids of the answers are" in row["error"]
            else:
                assert row["ids"] == result["ids"]


def test_lists_without_bytes_take_no_memory():
    """A list of 2**31 - 1 vectors of no dimensions has no bytes at all."""
    inner = pa.Array.from_buffers(pa.list_(pa.float32(), 0), 2**31 - 1, [None], children=[pa.array([], pa.float32())])
    column = pa.ListArray.from_arrays(pa.array([0, 2**31 - 1], pa.int32()), inner)
    answer = posted(servers.arrow(pa.table({"vector": [[1.0]], "vectors": column})), headers=servers.ARROW)
    assert answer.status_code == 422


@pytest.mark.parametrize("wire", ["json", "arrow", "auto"])
def test_the_client_sends_them(wire):
    rng = np.random.default_rng(7)
    queries = rng.standard_normal((12, D), dtype=np.float32)
    vectors = rng.standard_normal((12, 20, D)).astype(np.float16)
    ids = rng.permutation(240).reshape(12, 20)
    ragged = [vectors[q, : q + 1].astype(np.float64) for q in range(12)]

    async def use(client):
        with pytest.raises(InvalidRequestError, match="candidates must have an id for each of the vectors"):
            await client.select(queries, 3, candidate_vectors=ragged, candidates=ids)
        return [
            await client.select(queries, 3, candidate_vectors=vectors, candidates=ids, lambda_d=0.5),
            await client.select(queries, 3, candidate_vectors=ragged, metric="dot"),
        ]

    first, second = servers.with_client({}, use, wire=wire)
    expected = rk.mmr(queries, vectors, 3, lambda_d=0.5)
    assert np.array_equal(first.ids, np.take_along_axis(ids, expected.indices, axis=1))
    assert first.scores.tobytes() == expected.scores.tobytes()
    for q in range(12):
        alone = rk.mmr(queries[[q]], ragged[q].astype(np.float32), 3, metric="dot")
        assert second.ids[q].tolist() == alone.indices[0].tolist()
    with pytest.raises(ValueError, match=r"candidate_vectors must be \(Q, P, D\) numbers"):
        asyncio.run(AsyncClient("http://service").select(queries, candidate_vectors=vectors[0]))


def test_long_calls_are_cut_by_bytes():
    rng = np.random.default_rng(8)
    vectors, queries = rng.standard_normal((90, 600, 100), dtype=np.float32), np.ones((90, 100), np.float32)

    async def use(client):
        return await client.select(queries, 2, candidate_vectors=vectors)

    picks = servers.with_client({}, use, limits=Limits(body_bytes=9 << 20))
    assert np.array_equal(picks.ids, rk.mmr(queries, vectors, 2).indices)


def test_what_they_hold_is_counted():
    limits = Limits(body_bytes=1 << 20, memory_bytes=1 << 20)
    query = {"vectors": servers.encoded(np.ones((1000, 64), np.float32)), "query": [1.0] * 64}
    assert posted({"queries": [query] * 2}, limits=limits).status_code == 200
    assert posted({"queries": [query] * 4}, limits=limits).status_code == 413
    few = {"vectors": servers.encoded(np.ones((11, 1), np.float32)), "query": [1.0]}
    [result] = posted({"queries": [few]}, limits=Limits(candidates=10)).json()["results"]
    assert result["error"]["message"] == "select: vectors must have 0 to 10 rows, got 11"
