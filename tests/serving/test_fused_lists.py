"""Queries with lists of several retrievers: the bits of `rk.fuse` and the rule, and an error for a bad query alone."""

import numpy as np
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.selection.fusion import FUSIONS
from ragsys_kernels.serving import Client, Limits, batcher
from ragsys_kernels.serving.http import schemas
from ragsys_kernels.serving.ray_serve import answered

N, D, K = 120, 12, 4
RNG = np.random.default_rng(11)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
CORPORA = {"docs": rk.Corpus(ROWS), "names": rk.Corpus(ROWS, ids=[f"d{i}" for i in range(N)])}
QUERIES = RNG.standard_normal((7, D), dtype=np.float32)
SCORED = [
    [(RNG.permutation(N)[:n], RNG.normal(3, 5, n)) for n in sizes] for sizes in [(9, 20), (30, 1), (0, 5), (7, 7)]
]
RULES = {
    "rrf": {},
    "minmax": {"fusion": "minmax", "fusion_weights": [0.2, 0.8]},
    "zscore": {"fusion": "zscore", "fusion_weights": [0, 3], "relevance_scale": "rank"},
    "vrsd": {"method": "vrsd", "fusion": "minmax"},
}
pytestmark = [
    pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"),
    pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning"),
]


def posted(body, path="/v1/select?corpus=docs", headers=(), **options):
    return servers.posted(CORPORA, (path, body, headers), **options)[0]


def results_of(queries, corpus="docs", **common):
    body = {"corpus": corpus, "k": K, "queries": queries, **common}
    results = posted(body, "/v1/select").json()["results"]
    for result in results:
        result.get("error", {}).pop("index", None)
    return results


def as_json(lists, name=int):
    """Lists of a query as JSON has them, their ids named."""
    return [
        {"ids": [name(i) for i in ids], **({} if scores is None else {"scores": scores.tolist()})}
        for ids, scores in lists
    ]


def picks_of(lists, query, method="mmr", fusion="rrf", fusion_weights=None, **options):
    """What the library picks for a query with these lists."""
    pairs = [(ids[None], None if scores is None else scores[None]) for ids, scores in lists]
    fused = rk.fuse(pairs, fusion, fusion_weights)
    return CORPORA["docs"].select(
        query[None], K, method=method, candidates=fused.candidates, relevance=fused.relevance, num_threads=1, **options
    )


def same(found, picks, name=int):
    n = int(picks.lengths[0])
    assert found["ids"] == [name(i) for i in picks.indices[0, :n]]
    for field in ("scores", "relevance"):
        assert np.array(found[field], np.float32).tobytes() == getattr(picks, field)[0, :n].tobytes()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("rules", RULES)
def test_they_are_fused_as_by_the_library(monkeypatch, rules, named):
    """In JSON alone and beside others, in columns, and by the client; queries may have other numbers of lists."""
    monkeypatch.setattr(batcher, "apart", None)  # which would hide that a joint call fails
    name, corpus = ((lambda i: f"d{i}") if named else int), "names" if named else "docs"
    given, common = SCORED, {"k": K, **RULES[rules]}
    if rules == "rrf":  # which needs no scores
        given = [*SCORED, [SCORED[0][0], (np.arange(9), None)], SCORED[0][:1], [*SCORED[1], (np.arange(5), None)]]
    expected = [picks_of(x, QUERIES[q], **RULES[rules]) for q, x in enumerate(given)]
    lists = [as_json(x, name) for x in given]
    asked = [{"lists": x, "query": QUERIES[q].tolist()} for q, x in enumerate(lists)]
    together = results_of(asked, corpus, **RULES[rules])
    assert [results_of([each], corpus, **RULES[rules])[0] for each in asked] == together
    assert results_of([{**RULES[rules], **each} for each in asked], corpus) == together
    words = pa.dictionary(pa.int8(), pa.string())
    kind = pa.struct({"ids": pa.list_(words if named else pa.int32()), "scores": pa.large_list(pa.float64())})
    table = pa.table({"vector": list(QUERIES[: len(given)]), "lists": pa.array(lists, pa.list_(kind))})
    url = {**common, "corpus": corpus}
    if "fusion_weights" in url:
        url["fusion_weights"] = ",".join(map(str, url["fusion_weights"]))
    path = "/v1/select?" + "&".join(f"{key}={x}" for key, x in url.items())
    columns = servers.table_of(posted(servers.arrow(table), path, servers.ARROW)).to_pylist()

    async def by_handle(_, service):
        return (await answered(service, table, {**common, "corpus": corpus})).to_pylist()

    assert servers.run(CORPORA, by_handle) == columns
    for q, picks in enumerate(expected):
        same(together[q], picks, name)
        same(columns[q], picks, name)
    pairs = [
        [[[name(i) for i in x[side][0]] for x in SCORED], [x[side][1] for x in SCORED]] for side in (0, 1)
    ]  # fmt: skip

    async def use(client):
        return await client.select(QUERIES[:4], lists=pairs, **common)

    for wire in ("json", "arrow"):
        sent = servers.with_client(CORPORA, use, corpus=corpus, wire=wire)
        for q, picks in enumerate(expected[:4]):
            n = int(sent.lengths[q])
            same(
                {"ids": sent.ids[q, :n].tolist(), "scores": sent.scores[q, :n], "relevance": sent.relevance[q, :n]},
                picks,
                name,
            )


def test_the_client_drops_padding_with_its_scores():
    ids = np.array([[3, -1, 5, 9], [8, 2, -1, -1]])
    scores = np.array([[5.0, np.nan, 4.0, 1.0], [1.0, 2.0, np.nan, np.nan]])
    others = CORPORA["docs"].search(QUERIES[:2], 5)

    async def use(client):
        return await client.select(lists=[(ids, scores), others], fusion="minmax", k=K)

    fused = rk.fuse([(ids, np.nan_to_num(scores)), others], "minmax")
    picks = CORPORA["docs"].select(None, K, candidates=fused.candidates, relevance=fused.relevance)
    for wire in ("json", "arrow"):
        sent = servers.with_client(CORPORA, use, corpus="docs", wire=wire)
        assert sent.ids.tolist() == picks.indices.tolist()
        assert sent.scores.tobytes() == picks.scores.tobytes()
    for bad, words in (
        ([ids], r"pairs \(ids, scores\)"),
        ([(ids, scores[:1])], r"\[1, 2\] rows"),
        ([([["a", 1]], None)], "both"),
    ):
        with Client("http://service") as client, pytest.raises(ValueError, match=f"^select: lists must .*{words}"):
            client.select(lists=bad)


ONE = [{"ids": [1, 2, 3]}]
BAD = {
    "no list": ({"lists": 3}, "lists", "be a list of 1 to 64 objects, got 3"),
    "none": ({"lists": []}, "lists", "be a list of 1 to 64 objects, got 0"),
    "many": ({"lists": ONE * 65}, "lists", "be a list of 1 to 64 objects, got 65"),
    "no object": ({"lists": [[1, 2]]}, "lists", "be objects with ids and scores, got a list"),
    "no ids": ({"lists": [{"scores": [1.0]}]}, "lists", "be objects with ids and scores, got an object"),
    "another field": ({"lists": [{"ids": [1], "x": 1}]}, "lists", "be objects with ids and scores, got an object"),
    "null ids": ({"lists": [{"ids": None}]}, "lists.ids", "be a list of ids, got None"),
    "ids of another type": ({"lists": [{"ids": ["a"]}]}, "lists.ids", "be integers of 64 bits, got 'a'"),
    "unknown": ({"lists": [{"ids": [1, N]}]}, "lists.ids", f"be ids of the corpus, got {N}"),
    "twice": ({"lists": [*ONE, {"ids": [4, 5, 4]}]}, "lists", "not repeat an id within a query, got 4 twice"),
    "scores too few": ({"lists": [{"ids": [1, 2], "scores": [1]}]}, "lists.scores", "be a number for each of the ids"),
    "scores no numbers": ({"lists": [{"ids": [1], "scores": ["1"]}]}, "lists.scores", "be numbers, got '1'"),
    "scores too large": ({"lists": [{"ids": [1], "scores": [1e39]}]}, "lists", "be within the range of float32"),
    "scores lacking": ({"lists": ONE, "fusion": "minmax"}, "lists", "be given with method 'minmax', got None"),
    "fusion": ({"lists": ONE, "fusion": "sum"}, "fusion", "be one of 'rrf', 'minmax', 'zscore', got 'sum'"),
    "fusion alone": ({"fusion": "rrf"}, "fusion", "come with lists, got fusion alone"),
    "weights alone": ({"fusion_weights": [1]}, "fusion_weights", "come with lists, got fusion_weights alone"),
    "too many weights": ({"lists": ONE, "fusion_weights": [1, 2]}, "fusion_weights", "have shape (L,) = (1,), got"),
    "a weight below 0": ({"lists": ONE, "fusion_weights": [-1]}, "fusion_weights", "be finite and at least 0, got -1"),
    "weights no list": ({"lists": ONE, "fusion_weights": 1}, "fusion_weights", "be a list of numbers, got 1"),
    "a weight that is true": ({"lists": ONE, "fusion_weights": [True]}, "fusion_weights", "be numbers, got True"),
    "candidates": ({"lists": ONE, "candidates": [1]}, "lists", "come without candidates, got both"),
    "relevance": ({"lists": ONE, "relevance": [1]}, "lists", "come without relevance, got both"),
    "quality": ({"lists": ONE, "quality": [1], "method": "dpp"}, "quality", "come with candidates, got quality alone"),
}  # fmt: skip


def test_the_document_has_the_ways_of_fuse():
    schema = schemas.Query.model_json_schema()["properties"]["fusion"]
    assert schema["anyOf"][0]["enum"] == list(FUSIONS)


def test_a_bad_list_fails_its_query_alone():
    good = {"query": QUERIES[0].tolist(), "lists": ONE, "fusion_weights": [1]}
    queries = [x for bad, _, _ in BAD.values() for x in ({"query": QUERIES[0].tolist(), **bad}, good)]
    vectors = {**good, "vectors": servers.encoded(ROWS[:3])}
    *results, own = results_of([*queries, vectors])
    told = {name: result["error"] for name, result in zip(BAD, results[::2], strict=True)}
    assert {name: error["argument"] for name, error in told.items()} == {name: x for name, (_, x, _) in BAD.items()}
    for name, (_, _, words) in BAD.items():
        assert f" must {words}" in told[name]["message"]
        assert results_of([queries[2 * list(BAD).index(name)]]) == [{"error": told[name]}]
    assert own["error"]["message"] == "select: lists must come without vectors, got both"
    assert results[1::2] == [results[1]] * len(BAD)
    same(results[1], picks_of([(np.array([1, 2, 3]), None)], QUERIES[0]))
    named = results_of([{"lists": [{"ids": ["d5", "d5"]}]}], "names")[0]["error"]["message"]
    assert named == "select: ids of list 0 must not repeat an id within a query, got 'd5' twice"


def test_a_bad_struct_fails_its_row_alone():
    ids, scores = pa.list_(pa.int64()), pa.list_(pa.float64())
    whole = pa.list_(pa.struct({"ids": ids, "scores": scores}))
    rows = [
        [{"ids": [1, 2], "scores": [2, 1]}],
        [{"ids": None, "scores": []}],
        [None],
        [{"ids": [1, None], "scores": None}],
        [{"ids": [1, 2], "scores": [1, None]}],
        [],
        [{"ids": [3], "scores": None}, {"ids": [1], "scores": [float("nan")]}],
        [{"ids": [1, 1], "scores": None}],
        [{"ids": [4, 9], "scores": None}],
    ]
    tables = [
        pa.table({"lists": pa.array(rows, whole)}),
        *(pa.table({"lists": pa.array([[]], pa.list_(kind))}) for kind in (pa.int64(), pa.struct({"scores": scores}))),
        pa.table({"lists": pa.array([[{"ids": [1]}]], pa.list_(pa.struct({"ids": pa.list_(pa.float32())})))}),
        pa.table({"lists": pa.array([3])}),
    ]
    first, *others = [
        servers.table_of(posted(servers.arrow(each), headers=servers.ARROW)).to_pylist() for each in tables
    ]
    assert [row["error"] is None for row in first] == [True, *[False] * 7, True]
    assert [first[0]["ids"], first[-1]["ids"]] == [[1, 2], [4, 9]]
    assert all(
        "select: lists" in row["error"] or "of list" in row["error"] for row in [*first[1:-1], *(x for (x,) in others)]
    )
    single = tables[0].slice(6, 1)
    [alone] = servers.table_of(posted(servers.arrow(single), headers=servers.ARROW)).to_pylist()
    assert alone["error"] == first[6]["error"]


def test_unknown_ids_are_skipped_with_their_scores():
    lists = [{"ids": [900, 3, 5, 901, 8], "scores": [9, 8, 7, 6, 1]}, {"ids": [5, 900, 7], "scores": None}]
    [result] = results_of([{"lists": lists, "unknown": "skip"}])
    known = [(np.array([3, 5, 8]), np.array([8.0, 7.0, 1.0])), (np.array([5, 7]), None)]
    same(result, picks_of(known, QUERIES[0]))
    assert result["skipped"] == [900, 901]
    [refused] = results_of([{"lists": lists}])
    assert refused["error"]["message"] == "select: lists.ids must be ids of the corpus, got 900"


def test_lists_beside_the_queries_and_pages():
    lists = as_json(SCORED[0])
    own, other = results_of([{}, {"lists": as_json(SCORED[1])}], lists=lists)
    same(own, picks_of(SCORED[0], QUERIES[0]))
    same(other, picks_of(SCORED[1], QUERIES[0]))
    [second] = results_of([{"lists": lists, "cursor": own["cursor"]}])
    same(second, picks_of(SCORED[0], QUERIES[0], initial=np.array([own["ids"]])))


def test_what_they_hold_is_limited():
    """All lists together, also where each query of a request has another long one."""
    queries = [{"lists": [{"ids": list(range(n))} for n in sizes]} for sizes in ((60, 1), (1, 60), (60, 41))]
    results = posted({"corpus": "docs", "k": K, "queries": queries}, "/v1/select", limits=Limits(candidates=100)).json()
    assert ["ids" in result for result in results["results"]] == [True, True, False]
    assert results["results"][2]["error"]["message"] == "select: lists must have 0 to 100 ids, got 101"
