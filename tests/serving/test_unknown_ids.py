"""Ids that a corpus does not have: their query fails, or is answered without them; no hits are no error."""

import asyncio

import numpy as np
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.serving import InvalidRequestError, make_service

N, D = 90, 12
RNG = np.random.default_rng(61)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
IDS = RNG.permutation(np.arange(300, 300 + N))
GROUPS = np.arange(N) % 5
NUMBERED = rk.Corpus(ROWS, ids=IDS, groups=GROUPS)
NAMES = [f"doc-{i}" for i in IDS]
CORPORA = {"docs": NUMBERED, "names": rk.Corpus(ROWS, ids=NAMES), "rows": rk.Corpus(ROWS)}
METHODS = ["mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage"]


def posted(body, path="/v1/select", corpora=CORPORA, **options):
    """The answer to a request, and the metrics then."""

    async def use(client, service):
        return await client.post(path, json=body), service.metrics.text().decode()

    return servers.run(corpora, use, **options)


@pytest.mark.parametrize(("corpus", "method"), [("docs", "mmr"), ("docs", "vrsd"), ("names", "dpp")])
def test_the_others_are_picked_from_with_the_bits_of_a_call_without(corpus, method):
    ids = IDS.tolist() if corpus == "docs" else NAMES
    missing = [5, -7, 10**9] if corpus == "docs" else ["gone", "", "doc-1"]
    rows = RNG.choice(N, 30, replace=False)
    known = [ids[row] for row in rows]
    mixed = [missing[0], *known[:9], missing[1], *known[9:], missing[2]]
    scores = RNG.uniform(size=33).astype(np.float32)
    kept = np.array([scores[i] for i, each in enumerate(mixed) if each not in missing])
    query = {"query_id": ids[3], "method": method, "k": 6, "unknown": "skip"}
    asked = [
        {**query, "candidates": mixed},
        {**query, "candidates": known},
        {**query, "candidates": mixed, "relevance": scores.tolist()},
        {**query, "pool": 20, "exclude": [ids[4], missing[0]], "initial": [missing[1], ids[9]]},
        {**query, "pool": None, "allowed": [missing[2], *known]},
    ]
    answer, metrics = posted({"corpus": corpus, "queries": asked})
    vector = CORPORA[corpus].vectors(np.array([3])).astype(np.float32)
    call = {"method": method, "k": 6}
    expected = [
        CORPORA[corpus].select(vector, candidates=rows[None], **call),
        CORPORA[corpus].select(vector, candidates=rows[None], **call),
        CORPORA[corpus].select(vector, candidates=rows[None], relevance=kept[None], **call),
        CORPORA[corpus].select(vector, pool=20, exclude=np.array([[4]]), initial=np.array([[9]]), **call),
        CORPORA[corpus].select(vector, pool=None, allowed=rows[None], **call),
    ]
    results = answer.json()["results"]
    for result, picks in zip(results, expected, strict=True):
        n = picks.lengths[0]
        assert result["ids"] == [ids[row] for row in picks.indices[0, :n]]
        assert np.array(result["scores"], np.float32).tobytes() == picks.scores[0, :n].tobytes()
    left_out = [result.get("skipped") for result in results]
    assert left_out == [missing, None, missing, [missing[1], missing[0]], [missing[2]]]
    assert f'ragsys_skipped_ids_total{{corpus="{corpus}"}} 9.0' in metrics


def test_the_default_is_an_error_and_the_server_may_have_another():
    query = {"query_id": 300, "candidates": [301, 999, 302], "k": 1}
    body = {"corpus": "docs", "queries": [query, {**query, "unknown": "skip"}, {**query, "unknown": "error"}]}
    strict = [result.get("error", {}).get("argument") for result in posted(body)[0].json()["results"]]
    assert strict == ["candidates", None, "candidates"]
    lenient = [result.get("skipped") for result in posted(body, unknown="skip")[0].json()["results"]]
    assert lenient == [[999], [999], None]
    with pytest.raises(ValueError, match="unknown must be one of 'error', 'skip', got 'no'"):
        make_service(CORPORA, unknown="no")


@pytest.mark.parametrize(
    ("query", "argument"),
    [
        ({"query_id": 999}, "query_id"),  # there is nothing to ask with
        ({"query_id": 300, "candidates": ["301"]}, "candidates"),
        ({"query_id": 300, "candidates": [2**63]}, "candidates"),
        ({"query_id": 300, "candidates": [301, 301]}, "candidates"),
        ({"query_id": 300, "candidates": [None]}, "candidates"),
        ({"query_id": 300, "unknown": "skipp"}, "unknown"),
        ({"query_id": 300, "unknown": 1}, "unknown"),
        ({"query_id": 300, "unknown": ["skip"]}, "unknown"),
    ],
)
def test_what_is_wrong_is_wrong_all_the_same(query, argument):
    [result] = posted({"corpus": "docs", "queries": [{"unknown": "skip", **query}]})[0].json()["results"]
    assert result["error"]["argument"] == argument


def test_a_search_without_hits_is_an_answer_without_picks():
    queries = [{"query_id": 300, "candidates": [], "method": method, "k": k} for method in METHODS for k in (1, 4)] + [
        {"query_id": 300, "candidates": [7, 8], "unknown": "skip"},
        {"candidates": [], "relevance": []},
    ]
    answer, _ = posted({"corpus": "docs", "queries": [*queries, {"query_id": 300, "k": 2}]})
    assert answer.status_code == 200
    *none, whole = answer.json()["results"]
    assert [result["ids"] for result in none] == [[]] * len(queries)
    assert [result["cursor"] for result in none] == [None] * len(queries)
    assert len(whole["ids"]) == 2


def test_requests_without_hits_beside_others_take_nothing_from_them():
    """Those over the whole corpus and those without candidates must not meet in a call."""

    async def use(client, _):
        bodies = [{"query_id": 3, "pool": None}, {"query_id": 3, "candidates": []}] * 8
        asked = (client.post("/v1/select", json={"corpus": "rows", "queries": [body]}) for body in bodies)
        return [len(answer.json()["results"][0]["ids"]) for answer in await asyncio.gather(*asked)]

    assert servers.run(CORPORA, use) == [6, 0] * 8


@pytest.mark.parametrize("corpus", ["docs", "names"])
def test_arrow_has_a_column_of_them(corpus):
    ids, missing = (IDS.tolist(), 5) if corpus == "docs" else (NAMES, "gone")
    table = pa.table({"query_id": [ids[1]] * 4, "candidates": [[ids[2], missing, ids[4]], [ids[2]], [missing], []]})
    path = f"/v1/select?corpus={corpus}"
    asked = [(each, servers.arrow(table), servers.ARROW) for each in (f"{path}&unknown=skip", path)]
    found, strict = map(servers.table_of, servers.posted(CORPORA, *asked))
    assert found.column_names[-2:] == ["skipped", "code"]
    assert found["skipped"].to_pylist() == [[missing], [], [missing], []]
    assert [sorted(row) for row in found["ids"].to_pylist()] == [sorted([ids[2], ids[4]]), [ids[2]], [], []]
    assert found["error"].null_count == 4
    assert "skipped" not in strict.column_names
    assert [why is None for why in strict["error"].to_pylist()] == [False, True, False, True]


@pytest.mark.parametrize("wire", ["json", "arrow"])
def test_the_client_tells_them(wire):
    lists = [[int(IDS[1]), 5], [int(IDS[2])], [], [6, 7]] * 3

    async def use(client):
        with pytest.raises(InvalidRequestError, match="candidates must be ids of the corpus, got 5"):
            await client.select(ROWS[:12], 1, candidates=lists)
        return await client.select(ROWS[:12], 2, candidates=lists, unknown="skip")

    picks = servers.with_client(CORPORA, use, corpus="docs", wire=wire)
    assert picks.skipped == {i: [5] if i % 4 == 0 else [6, 7] for i in range(12) if i % 4 in (0, 3)}
    assert picks.lengths.tolist() == [1, 1, 0, 0] * 3
    assert picks.errors == {}


def test_pages_go_on_after_items_have_gone():
    body = {"corpus": "docs", "queries": [{"query_id": 300, "k": 5}]}
    cursor = posted(body)[0].json()["results"][0]["cursor"]
    body["queries"][0] |= {"cursor": cursor, "unknown": "skip"}
    first = NUMBERED.select(NUMBERED.vectors(NUMBERED.rows_of([300])).astype("f4"), 5).indices[0]
    gone = int(NUMBERED.ids[first[2]])
    result = posted(body, corpora={"docs": NUMBERED.delete([gone])})[0].json()["results"][0]
    assert result["skipped"] == [gone]
    assert not set(result["ids"]) & set(NUMBERED.ids[first].tolist())


def test_a_repeated_id_is_named_as_it_was_sent():
    vectors = {"query": [1, 0], "vectors": servers.encoded(np.eye(2, dtype=np.float32)), "candidates": ["x", "y"]}
    for corpus, each in (("docs", int(IDS[7])), ("names", NAMES[7])):
        asked = [{"query_id": each, name: [each, each], "k": 1} for name in ("candidates", "initial")]
        asked += [{**vectors, "initial": ["y", "y"]}, {**vectors, "candidates": ["y", "y"]}]
        answer, _ = posted({"corpus": corpus, "queries": [*asked, vectors]})
        results = answer.json()["results"]
        for result, got in zip(results[:4], (each, each, "y", "y"), strict=True):
            assert result["error"]["message"].endswith(f"must not repeat an id within a query, got {got!r} twice")
