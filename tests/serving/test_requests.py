"""Bad queries and bad requests, limits, deadlines, the token, pages, ids: what a caller of the service is told."""

import asyncio
import base64
import time
from itertools import chain
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.selection import METHODS
from ragsys_kernels.serving import Limits, batcher, fields, kernel
from ragsys_kernels.serving.corpora import fingerprint
from ragsys_kernels.serving.http import schemas
from ragsys_kernels.serving.queries import rules
from ragsys_kernels.serving.queries.cursors import encoded

N, D = 200, 16


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(1).standard_normal((N, D), dtype=np.float32)


@pytest.fixture(scope="module")
def corpus(rows):
    return rk.Corpus(rows)


def posted(corpus, body, path="/v1/select", headers=(), **options):
    """Return the answer to one request."""
    return servers.posted({"docs": corpus}, (path, body, headers), **options)[0]


VECTOR = [1.0] * D
BAD = {
    "query length": ({"query": [1.0]}, "query"),
    "query of text": ({"query": ["1"] * D}, "query"),
    "query of booleans": ({"query": [True] * D}, "query"),
    "query beyond float32": ({"query": [1e39] * D}, "query"),
    "query of NaN": ({"query": {"b64": base64.b64encode(np.full(D, np.nan, "f4")).decode()}}, "query"),
    "query no base64": ({"query": {"b64": "%"}}, "query.b64"),
    "query short base64": ({"query": {"b64": "AAAA"}}, "query"),
    "query shape": ({"query": {"b64": "AAAA", "shape": [3]}}, "query.shape"),
    "query dtype": ({"query": {"b64": "AAAA", "dtype": "int8"}}, "query.dtype"),
    "query a number": ({"query": 3}, "query"),
    "no query": ({}, "query"),
    "two queries": ({"query": VECTOR, "query_id": 1}, "query"),
    "unknown query_id": ({"query_id": N}, "query_id"),
    "query_id of text": ({"query_id": "1"}, "query_id"),
    "query_id true": ({"query_id": True}, "query_id"),
    "k": ({"query": VECTOR, "k": 0}, "k"),
    "k above the limit": ({"query": VECTOR, "k": 1001}, "k"),
    "k no integer": ({"query": VECTOR, "k": 1.5}, "k"),
    "lambda": ({"query": VECTOR, "lambda_d": 1.01}, "lambda_d"),
    "lambda of text": ({"query": VECTOR, "lambda_b": "1"}, "lambda_b"),
    "lambda of VRSD": ({"query": VECTOR, "method": "vrsd", "lambda_d": 0.5}, "lambda_d"),
    "pool": ({"query": VECTOR, "pool": -1}, "pool"),
    "method": ({"query": VECTOR, "method": "best"}, "method"),
    "unknown candidate": ({"query": VECTOR, "candidates": [1, N]}, "candidates"),
    "negative candidate": ({"query": VECTOR, "candidates": [-1]}, "candidates"),
    "large candidate": ({"query": VECTOR, "candidates": [2**63]}, "candidates"),
    "repeated candidate": ({"query": VECTOR, "candidates": [4, 4]}, "candidates"),
    "candidates no list": ({"query": VECTOR, "candidates": "12"}, "candidates"),
    "relevance alone": ({"query": VECTOR, "relevance": [1]}, "relevance"),
    "relevance short": ({"query": VECTOR, "candidates": [1, 2], "relevance": [1]}, "relevance"),
    "groups": ({"query": VECTOR, "max_per_group": 1}, "max_per_group"),
    "cursor": ({"query": VECTOR, "cursor": "x"}, "cursor"),
    "budget": ({"query": VECTOR, "budget": 3}, "budget"),
    "max_similarity": ({"query": VECTOR, "max_similarity": 1.5}, "max_similarity"),
    "max_similarity of text": ({"query": VECTOR, "max_similarity": "1"}, "max_similarity"),
    "unknown field": ({"query": VECTOR, "lamda_d": 0.5}, "lamda_d"),
    "no object": (3, "queries"),
}


def test_a_bad_query_has_its_own_error_and_the_others_their_bits(corpus, rows):
    good = [{"query": row.tolist(), "candidates": list(range(i, i + 30))} for i, row in enumerate(rows[: len(BAD)])]
    mixed = [query for pair in zip(good, (bad for bad, _ in BAD.values()), strict=True) for query in pair]
    alone, together = posted(corpus, {"queries": good}), posted(corpus, {"queries": mixed})
    assert alone.status_code == together.status_code == 200
    results = together.json()["results"]
    assert results[::2] == alone.json()["results"]
    for index, ((name, (_, argument)), result) in enumerate(zip(BAD.items(), results[1::2], strict=True)):
        assert result["error"]["argument"] == argument, (name, result)
        assert result["error"]["index"] == 2 * index + 1
        assert " must " in result["error"]["message"]


def test_no_answer_is_422_and_says_why(corpus):
    answer = posted(corpus, {"queries": [{"query_id": N}, {"query_id": 1, "k": 0}]})
    assert answer.status_code == 422
    assert [result["error"]["argument"] for result in answer.json()["results"]] == ["query_id", "k"]


@pytest.mark.parametrize(
    ("body", "argument"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"queries": [NaN]}', "body"),
        ({}, "queries"),
        ({"queries": []}, "queries"),
        ({"queries": [{"query_id": 1}] * 9}, "queries"),
        ({"queries": [{"query_id": 1}], "k": "6"}, "k"),
        ({"queries": [{"query_id": 1}], "corpus": "other"}, "corpus"),
        ({"queries": [{"query_id": 1}], "Corpus": "docs"}, "Corpus"),
        (b"ARROW1" * 9, "body"),
    ],
)
def test_a_bad_request_is_refused_whole(corpus, body, argument):
    headers = servers.ARROW if str(body).startswith("b'ARROW") else {}
    answer = posted(corpus, body, headers=headers, limits=Limits(queries=8))
    assert answer.status_code == 422
    assert answer.json()["error"]["argument"] == argument


def test_sizes_types_and_paths(corpus):
    query = {"queries": [{"query_id": 1}]}
    assert posted(corpus, b" " * 1001, limits=Limits(body_bytes=1000)).status_code == 413
    assert posted(corpus, query, headers={"content-type": "text/plain"}).status_code == 415
    assert posted(corpus, query, "/v1/other").status_code == 404
    assert posted(corpus, query, "/info").status_code == 405
    for timeout in ("0", "x", "-1", "1" * 19, "0" * 19 + "1" * 400, "1" * 5000):
        refused = posted(corpus, query, headers={"x-timeout-ms": timeout})
        assert (refused.status_code, refused.json()["error"]["argument"]) == (422, "x-timeout-ms")


def test_the_token(corpus):
    query = {"queries": [{"query_id": 1}]}
    cases = ((None, 401), ("Bearer wrong", 401), ("Basic right", 401), ("Bearer right", 200), ("bearer right", 200))
    for given, status in cases:
        headers = {} if given is None else {"authorization": given}
        assert posted(corpus, query, headers=headers, token="right").status_code == status

    async def use(client, _):
        paths = ("/health", "/health/live", "/health/ready", "/info", "/metrics")
        return [(await client.get(path)).status_code for path in paths]

    assert servers.run({"docs": corpus}, use, token="right") == [200, 200, 200, 401, 401]


def test_pages_go_on_where_the_last_one_ended(corpus, rows):
    """Each page is that of a call with the items shown before as initial ones."""

    async def use(client, _):
        shown, cursor = [], None
        for _ in range(5):
            body = {"k": 7, "pool": 20, "queries": [{"query_id": 3, "cursor": cursor}]}
            page = (await client.post("/v1/select", json=body)).json()["results"][0]
            expected = corpus.select(rows[3:4], 7, pool=20, initial=np.array([shown]) if shown else None)
            assert page["ids"] == expected.indices[0].tolist()
            shown, cursor = shown + page["ids"], page["cursor"]
        last = {"k": 7, "candidates": shown[:9], "queries": [{"query_id": 3, "cursor": cursor}]}
        assert (await client.post("/v1/select", json=last)).json()["results"][0]["ids"] == []

    servers.run({"docs": corpus}, use)


def test_long_lists_beside_a_cursor_are_read_in_one_pass(corpus):
    """The time is that of the ids, not of their pairs, which were a hundred times as many for ten times the ids; beyond
    the limit none is compared."""

    def ask(initial, cursor, queries=1):
        query = {"query_id": 1, "initial": initial, "cursor": encoded(np.array(cursor))}
        return posted(corpus, {"queries": [query] * queries, "k": 3}).json()["results"][0]

    def taken(count):
        begin = time.process_time()
        error = ask([5] * count, range(10**6, 10**6 + count), 3)["error"]
        assert error["argument"] == "initial"  # there is no such id
        return time.process_time() - begin

    ratios, hangs = [], time.monotonic() + 60
    while not ratios or (min(ratios) > 25 and time.monotonic() < hangs):  # until other processes disturb it no more
        ratios.append(taken(9_000) / taken(900))
    assert min(ratios) <= 25
    for initial, cursor, argument in (([5] * 10_001, [7], "initial"), ([5], range(10_001), "cursor")):
        error = ask(initial, cursor)["error"]
        assert error == {
            "index": 0,
            "code": "invalid_argument",
            "argument": argument,
            "message": f"select: {argument} must have 0 to 10000 ids, got 10001",
        }
    assert ask([4, 5], [5, 6])["ids"] == ask([4, 5, 6], [])["ids"]


def test_a_giant_in_the_place_of_a_description_has_no_fingerprint(tmp_path):
    with open(tmp_path / "corpus.json", "wb") as file:
        file.truncate(1 << 42)
    assert fingerprint(tmp_path) == ""


def test_a_cursor_holds_ids_of_any_length(rows):
    ids = [f"{i}{'z' * 100_000}\0" for i in range(N)]

    async def use(client, _):
        query = {"query_id": ids[3]}
        pages = []
        for _ in range(2):
            answer = await client.post("/v1/select", json={"k": 12, "pool": N, "queries": [query]})
            pages.append(answer.json()["results"][0])
            query["cursor"] = pages[-1]["cursor"]
        return pages

    first, second = servers.run({"docs": rk.Corpus(rows, ids=ids)}, use)
    assert len({*first["ids"], *second["ids"]} & set(ids)) == 24


@pytest.mark.parametrize("wrong", [[[1]], [{}], [True], ["1"], {}, "", 0.5])
def test_what_is_no_list_of_ids_beside_a_cursor_is_refused(corpus, wrong):
    for query, argument in (
        ({"initial": wrong, "cursor": encoded(np.array([3]))}, "initial"),
        ({"initial": [1], "cursor": encoded(np.array([wrong], object))}, "cursor"),
    ):
        [result] = posted(corpus, {"queries": [{"query_id": 1, **query}]}).json()["results"]
        assert result["error"]["argument"] == argument


@pytest.mark.parametrize("kind", ["str", "int"])
def test_ids_of_the_caller(rows, corpus, kind):
    names = [f"doc-{i * 7 % N}" for i in range(N)] if kind == "str" else [i * 7 % N + 10**12 for i in range(N)]
    named = rk.Corpus(rows, ids=names)
    query = {"query_id": names[3], "candidates": names[:50], "initial": [names[9]], "exclude": [names[4]]}
    kept = [row for row in range(50) if row != 4]
    expected = corpus.select(rows[3:4], 6, candidates=np.array([kept]), initial=np.array([[9]])).indices[0]
    answers = [posted(named, {"queries": queries}).json()["results"] for queries in ([query], [query] * 3)]
    for result in answers[0] + answers[1]:
        assert result["ids"] == [names[row] for row in expected]
    query["cursor"] = answers[0][0]["cursor"]
    following = posted(named, {"queries": [query]}).json()["results"][0]["ids"]
    assert not set(following) & {*answers[0][0]["ids"], names[9], names[4]}
    wrong = posted(named, {"queries": [{"query_id": 3}, {"query_id": "doc-x"}]}).json()["results"]
    assert [result["error"]["argument"] for result in wrong] == ["query_id"] * 2


def arrow(corpus, table, path="/v1/select?k=4"):
    answer = posted(corpus, servers.arrow(table), path, servers.ARROW)
    return answer.status_code, answer.json() if "json" in answer.headers["content-type"] else servers.table_of(answer)


def test_arrow_has_the_columns_of_offline_jobs(corpus, rows):
    vectors = np.concatenate([rows, rows, rows])[:600]
    bad = vectors.copy()
    bad[[3, 300]] = np.nan
    table = pa.table(
        {
            "id": [f"q{i}" for i in range(600)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(bad.ravel()), D),
            "candidates": [list(range(i % 50, i % 50 + 20 + i % 3)) for i in range(600)],
            "k": [1 + i % 5 for i in range(600)],
        }
    )
    status, answer = arrow(corpus, table, "/v1/select?corpus=docs&lambda_d=0.5")
    assert status == 200
    names = ["query_id", "ids", "scores", "relevance", "redundancy", "certified", "error"]
    assert answer.column_names == [*names, "code"]
    for i, row in enumerate(answer.to_pylist()):
        assert row["query_id"] == f"q{i}"
        if i in (3, 300):
            assert "vector must be finite" in row["error"]
            assert row["ids"] is None
        elif i % 37 == 0 or i > 590:
            pool = np.array([table["candidates"][i].as_py()])
            picks = corpus.select(vectors[i : i + 1], 1 + i % 5, candidates=pool, lambda_d=0.5)
            assert row["ids"] == picks.indices[0].tolist()
            assert np.array(row["scores"], "f4").tobytes() == picks.scores[0].tobytes()


@pytest.mark.parametrize("ids", ["rows", "numbers", "own vectors"])
@pytest.mark.parametrize(
    ("queries", "rules"), [(1, "k=1"), (1, "k=4"), (3, "k=3"), (64, "k=5"), (9, "method=vrsd&k=3")]
)
def test_an_answer_in_arrow_has_the_same_columns_with_and_without_names(rows, ids, queries, rules):
    """Streams of equally many picks without nulls are written another way than others."""
    numbers = np.arange(N) * 3 + 10**12 if ids == "numbers" else np.arange(N)
    corpus = rk.Corpus(rows, ids=numbers if ids == "numbers" else None)
    pool = np.stack([np.arange(q, q + 20) for q in range(queries)])
    columns = {
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(rows[:queries].ravel()), D),
        "candidates": numbers[pool].tolist(),
    }
    if ids == "own vectors":
        columns["vectors"] = pa.array(rows[pool].tolist(), pa.list_(pa.list_(pa.float32())))
    named = pa.table({"id": np.arange(queries) + 7, **columns})
    (status, answer), (_, other) = (
        arrow(corpus, table, f"/v1/select?{rules}&corpus=docs") for table in (pa.table(columns), named)
    )
    assert status == 200
    answer.validate(full=True)
    assert answer["query_id"].to_pylist() == list(range(queries))
    assert answer.drop_columns("query_id") == other.drop_columns("query_id")
    assert answer.schema == other.schema
    k, method = int(rules[-1]), "vrsd" if "vrsd" in rules else "mmr"
    picks = corpus.select(rows[:queries], k, candidates=pool, method=method)
    assert np.array(answer["ids"].to_pylist()).tolist() == numbers[picks.indices].tolist()
    for name in ("scores", "relevance", "redundancy"):
        found = np.array([[np.nan if x is None else x for x in row] for row in answer[name].to_pylist()], np.float32)
        np.testing.assert_allclose(found, getattr(picks, name), rtol=1e-5, atol=1e-6)


def test_an_answer_in_arrow_may_have_fewer_picks_than_asked_for(corpus, rows):
    table = pa.table({"vector": rows[:2].tolist(), "candidates": [[1, 2, 3], [4]]})
    answer = arrow(corpus, table, "/v1/select?corpus=docs&k=3")[1]
    assert sorted(answer["ids"][0].as_py()) == [1, 2, 3]
    assert answer["ids"][1].as_py() == [4]


LISTS = pa.list_(pa.list_(pa.float32()))


@pytest.mark.parametrize(
    ("columns", "rule", "argument"),
    [
        ({"vector": [1.0]}, "", "vector"),
        ({"query_id": [1]}, "pool=many", "pool"),
        ({"query_id": [1]}, "budget=3", "budget"),
        ({"query_id": [1]}, "corpus=other", "corpus"),
        ({"query_id": [1]}, "exclude=5", "exclude"),
        ({"query_id": [1]}, "relevance=0.5", "relevance"),
        ({"query_id": [1]}, "cursor=n", "cursor"),
        ({"vector": [[1.0] * D]}, "query_id=1", "query_id"),
        ({"query_id": [1], "k": pa.array(["x" * 1000]).dictionary_encode()}, "", "k"),  # which outgrow their bytes
        ({"query_id": [1], "lambda_d": [[1.0]]}, "", "lambda_d"),
        ({"query_id": [1], "id": [[1]]}, "", "id"),
        ({"query_id": pa.array([2**63], pa.uint64())}, "", "query_id"),
        ({"query_id": [1], "exclude": pa.array([[2**64 - 1]], pa.list_(pa.uint64()))}, "", "exclude"),
        ({"query_id": pa.array([1.5]).dictionary_encode()}, "", "query_id"),
        ({"query_id": [1], "exclude": pa.DictionaryArray.from_arrays([0], pa.array([[5]]))}, "", "exclude"),
        ({"query_id": [1], "method": ["mmr"]}, "", "method"),
        ({"query_id": [1], "cursor": ["n"]}, "", "cursor"),
        *(
            ({"vector": [[1.0, 2.0]], "vectors": vectors}, "", "vectors")
            for vectors in (
                [[1.0, 2.0]], [["a"]], [[[1, 2]]], [[[1.0, 2.0], [1.0]]], [[[1.0, None]]], [[None, [1.0]]],
                pa.array([[[]]], LISTS), pa.array([[[np.inf, 1.0]]], LISTS), [[[1e39, 1.0]]],
                pa.array([[[]] * 1000], pa.list_(pa.list_(pa.float32(), 0))), [[[[1.0]]]],
            )
        ),
    ],
)  # fmt: skip
def test_arrow_that_is_refused(corpus, columns, rule, argument):
    status, answer = arrow(corpus, pa.table(columns), f"/v1/select?{rule}")
    assert status == 422
    if isinstance(answer, dict):
        assert answer["error"]["argument"] == argument
    else:
        why = answer["error"][0].as_py()
        assert f"select: {argument} must" in why or "embeddings must be finite" in why


STRINGS = ("string_view", "large_string", "dictionary of string", "dictionary of large_string")
INTEGERS = ("uint64", "uint8", "dictionary of int64", "dictionary of uint64")


@pytest.mark.parametrize("way", [*STRINGS, *INTEGERS])
def test_ids_have_any_type_of_strings_or_integers(rows, way):
    """The answers of plain columns and of JSON, with and without holes; a bad id fails its query alone."""
    kind = pa.type_for_alias(way.removeprefix("dictionary of "))
    ids = [f"doc-{i}" for i in range(N)] if way in STRINGS else list(range(N))
    corpus = rk.Corpus(rows, ids=ids if way in STRINGS else None)
    lists = [ids[:9], None, [], ids[3:30], ids[5:9]]
    columns = {"id": ids[5:10], "query_id": ids[:5], "candidates": lists, "exclude": [ids[4:6]] * 5}

    def column(values):
        nested = isinstance(values[0], list)
        flat = pa.array(list(chain.from_iterable(x or [] for x in values)) if nested else values, kind)
        flat = flat.dictionary_encode() if way.startswith("dictionary") else flat
        if not nested:
            return flat
        ends = np.cumsum([0, *(len(x or []) for x in values)]).tolist()
        holes = [None if x is None else end for x, end in zip([*values, []], ends, strict=True)]
        return pa.LargeListArray.from_arrays(pa.array(holes, pa.int64()), flat)

    table = pa.table({name: column(values) for name, values in columns.items()})
    status, answer = arrow(corpus, table)
    assert status == 200
    assert answer.to_pylist() == arrow(corpus, pa.table(columns))[1].to_pylist()
    queries = [{name: values[i] for name, values in columns.items() if name != "id"} for i in range(5)]
    results = posted(corpus, {"k": 4, "queries": queries}).json()["results"]
    assert answer["ids"].to_pylist() == [result["ids"] for result in results]
    assert answer["query_id"].to_pylist() == ids[5:10]
    if way == "uint64":
        columns["exclude"] = [[1], [2**63], [2], [3], [4]]
        mixed = arrow(corpus, pa.table({name: column(values) for name, values in columns.items()}))[1]
        assert [why is None for why in mixed["error"].to_pylist()] == [True, False, True, True, True]
        assert "exclude must hold integers of 64 bits with a sign" in mixed["error"][1].as_py()


def test_ids_that_take_more_than_their_bytes_are_held_to_the_limit(corpus):
    """A dictionary and views may say a long string many times in a few bytes."""
    word, limits = "x" * 10_000, Limits(body_bytes=1 << 20)
    for words in (pa.DictionaryArray.from_arrays([0] * 1000, pa.array([word])), pa.array([word], pa.string_view())):
        if len(words) == 1:  # the same bytes by a thousand views
            kind, (_, view, content) = words.type, words.buffers()
            words = pa.Array.from_buffers(kind, 1000, [None, pa.py_buffer(view.to_pybytes()[:16] * 1000), content])
        lists = pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), words)
        for columns in ({"id": words, "query_id": [1] * 1000}, {"query_id": [1], "exclude": lists}):
            answer = posted(corpus, servers.arrow(pa.table(columns)), "/v1/select", servers.ARROW, limits=limits)
            assert answer.status_code == 422
            assert "must have at most 1048576 bytes, got values of 10000000" in answer.json()["error"]["message"]


def test_ids_of_queries_may_be_encoded_by_a_dictionary(corpus):
    names = ["a", "b", "a", None]
    table = pa.table({"id": pa.array(names).dictionary_encode(), "query_id": [1, 2, 3, 4]})
    status, answer = arrow(corpus, table)
    assert (status, answer["query_id"].to_pylist()) == (200, names)


class Slow:
    """Kernel calls that wait until they are let go, and what they were given."""

    def __init__(self, monkeypatch):
        import threading

        self.go, self.calls, self.methods = threading.Event(), [], []
        answer = batcher.answer

        def slow(block, *arguments):
            self.calls.append(len(block))
            self.methods.append(block.request.op)
            assert self.go.wait(60)
            return answer(block, *arguments)

        monkeypatch.setattr(batcher, "answer", slow)
        monkeypatch.setattr(batcher, "_INLINE", 0)

    async def begun(self):
        """Wait until a call has begun."""
        while not self.calls:
            await asyncio.sleep(0.001)


def asking(client, n=1, headers=(), **query):
    """Begin to ask n equal queries."""
    body = {"queries": [{"query_id": 1, **query}] * n}
    return asyncio.ensure_future(client.post("/v1/select", json=body, headers=dict(headers)))


def test_what_arrives_during_a_call_is_the_next_call(corpus, monkeypatch):
    slow = Slow(monkeypatch)

    async def use(client, service):
        first = asking(client)
        await slow.begun()
        others = [asking(client, k=i, lambda_d=i / 10) for i in range(1, 9)]
        while service.batcher.queued < 8:
            await asyncio.sleep(0.001)
        assert (await client.get("/health/live")).status_code == 200  # nothing blocks the loop
        slow.go.set()
        return [(await answer).json()["results"][0]["ids"] for answer in (first, *others)]

    ids = servers.run({"docs": corpus}, use)
    assert slow.calls == [1, 8]
    assert list(map(len, ids)) == [6, *range(1, 9)]


def test_a_server_that_waits_for_others_shares_more_calls(corpus, monkeypatch):
    slow = Slow(monkeypatch)
    slow.go.set()

    async def use(client, service):
        loop, ends = asyncio.get_running_loop(), []
        call_later = loop.call_later

        def noted(delay, *call):
            return ends.append(call) if delay == pytest.approx(0.2) else call_later(delay, *call)

        monkeypatch.setattr(loop, "call_later", noted)
        asked = []
        for number in range(3):
            asked.append(asking(client))
            while service.batcher.queued <= number:
                await asyncio.sleep(0.001)
        assert not slow.calls
        [(function, *arguments)] = ends  # 200 ms after the first
        function(*arguments)
        return [(await answer).status_code for answer in asked]

    assert servers.run({"docs": corpus}, use, batch_wait_us=200_000) == [200] * 3
    assert slow.calls == [3]


def test_deadlines_and_a_full_queue(corpus, monkeypatch):
    slow = Slow(monkeypatch)

    async def use(client, service):
        first = asking(client)
        await slow.begun()
        waiting = asking(client, 4)
        while service.batcher.queued < 4:
            await asyncio.sleep(0.001)
        assert (await asking(client, 3, {"x-timeout-ms": "30"})).status_code == 504
        assert service.batcher.queued == 4  # what was late was dropped
        others = asking(client, 3)
        while service.batcher.queued < 7:
            await asyncio.sleep(0.001)
        full = await asking(client, 2)
        assert (full.status_code, int(full.headers["retry-after"]) >= 1) == (429, True)
        slow.go.set()
        assert [(await answer).status_code for answer in (first, waiting, others)] == [200] * 3
        assert (await asking(client, 8)).status_code == 200
        assert service.batcher.queued == 0

    servers.run({"docs": corpus}, use, limits=Limits(queue=8, queries=8))
    assert slow.calls == [1, 7, 8]


@pytest.mark.parametrize("queries", [1, 3])
def test_requests_that_arrive_together_fill_the_queue_and_no_more(corpus, monkeypatch, queries):
    slow = Slow(monkeypatch)

    async def use(client, service):
        first = asking(client)
        await slow.begun()
        answers = [asking(client, queries, k=1 + i % 5) for i in range(20)]
        while sum(answer.done() for answer in answers) + service.batcher.queued // queries < 20:
            await asyncio.sleep(0.001)
        slow.go.set()
        return [(await answer).status_code for answer in (first, *answers)]

    statuses = servers.run({"docs": corpus}, use, limits=Limits(queue=8, queries=8))
    assert statuses == [200] + [200] * (8 // queries) + [429] * (20 - 8 // queries)
    assert sum(slow.calls) == 1 + 8 // queries * queries


QUERY = b'{"query":[1,0,0,0,' + b" " * 3000 + b"0]}"
MANY = b'{"k":1,"queries":[' + b",".join([QUERY] * 60) + b"]}"


@pytest.mark.parametrize(("queued", "queries", "status"), [(40, 60, 429), (39, 60, 200), (40, 80, 422)])
def test_large_requests_are_refused_unread_where_there_is_no_room(queued, queries, status):
    """What is no JSON shows which are read: it is 422 then."""

    async def use(client, service):
        service.batcher.queued = queued
        body = MANY if queries == 60 else MANY.replace(b'"query"', b'"q"')
        found = [(await client.post("/v1/select", content=content)).status_code for content in (body, body[:-1])]
        assert found == [status, 429 if status == 429 else 422]

    small = rk.Corpus(np.eye(5, dtype=np.float32))
    servers.run({"docs": small}, use, limits=Limits(queue=99, queries=60))


@pytest.mark.parametrize(("headers", "seconds"), [({}, 31), ({"x-timeout-ms": "20000"}, 21)])
def test_what_is_too_late_is_dropped_whoever_set_the_limit(corpus, monkeypatch, headers, seconds):
    """Requests that wait behind a call leave no work, by the server's own deadline and by the client's."""
    slow = Slow(monkeypatch)

    async def use(client, service):
        asked = [asking(client, headers=headers)]
        await slow.begun()
        others = ("vrsd", "msd", "dpp")  # no two of them in one call
        asked += [asking(client, headers=headers, method=method) for method in others]
        while service.batcher.queued < 3:
            await asyncio.sleep(0.001)
        loop = asyncio.get_running_loop()
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + seconds)
        assert [(await answer).status_code for answer in asked] == [504] * 4
        slow.go.set()
        while service.batcher.queued:
            await asyncio.sleep(0.001)
        assert (await asking(client, 2)).status_code == 200

    servers.run({"docs": corpus}, use, limits=Limits(timeout_ms=30_000))
    assert slow.calls == [1, 2]


def test_a_client_that_would_wait_longer_has_the_time_of_the_server(corpus, monkeypatch):
    slow = Slow(monkeypatch)

    async def use(client, service):
        begin = asyncio.get_running_loop().time()
        late = await asking(client, headers={"x-timeout-ms": "9" * 18})
        waited = asyncio.get_running_loop().time() - begin
        slow.go.set()
        return late, waited

    late, waited = servers.run({"docs": corpus}, use, limits=Limits(timeout_ms=100))
    assert (late.status_code, late.json()["error"]["message"]) == (504, "select: the deadline has passed")
    assert 0.1 <= waited < servers.HANGS


def test_a_call_that_fails_fails_for_its_request_alone(corpus, monkeypatch):
    answer = batcher.answer

    def failing(block, *arguments):
        if np.any(block.k == 5):
            raise RuntimeError("no")
        return answer(block, *arguments)

    for module in (batcher, kernel):
        monkeypatch.setattr(module, "answer", failing)

    async def use(client, _):
        bodies = ({"queries": [{"query_id": 1}], "k": k} for k in (4, 5, 6))  # which are blocks of their own
        asked = (client.post("/v1/select", json=body) for body in bodies)
        return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert servers.run({"docs": corpus}, use) == [200, 500, 200]


@pytest.mark.parametrize("how", ["on the loop", "in the thread"])
@pytest.mark.parametrize("bad", [(0,), (3,), (0, 1), (1, 4), (0, 1, 2, 3, 4)])
def test_each_caller_of_a_failed_call_has_its_own_answer(corpus, monkeypatch, bad, how):
    """Calls fail for some of five requests that share them: picks and errors are those of each request alone."""
    slow = Slow(monkeypatch)
    answer = batcher.answer
    wrong = [k + 2 for k in bad]

    def failing(block, *arguments):
        picks = answer(block, *arguments)
        if np.isin(block.k, wrong).any():
            raise ValueError(f"select: k must differ, got {block.k}")
        return picks

    for module in (batcher, kernel):
        monkeypatch.setattr(module, "answer", failing)

    async def use(client, service):
        first = asking(client, method="vrsd", k=1)
        await slow.begun()
        if how == "on the loop":
            monkeypatch.setattr(batcher, "_INLINE", 1e9)
        asked = []
        for k in range(2, 7):
            asked.append(asking(client, k=k))
            while service.batcher.queued < len(asked):  # one in each round of the loop: they are blocks of their own
                await asyncio.sleep(0.001)
        slow.go.set()
        assert (await first).status_code == 200
        return await asyncio.gather(*asked)

    answers = servers.run({"docs": corpus}, use)
    assert slow.calls[1] == 5  # all in one call, before it failed
    found = [len(each.json()["results"][0]["ids"]) if each.status_code == 200 else each.status_code for each in answers]
    assert found == [500 if place in bad else place + 2 for place in range(5)]


def test_no_caller_waits_behind_all_queries_of_another(corpus, monkeypatch):
    """A long request is in the kernels for one call at a time: callers with other rules have their turns in between."""
    slow = Slow(monkeypatch)

    async def use(client, service):
        asked = [asking(client, method="dpp")]
        await slow.begun()
        for count, method in ((1024, "mmr"), (1000, "vrsd"), (2, "msd"), (1, "ssd")):
            before = service.batcher.queued
            asked.append(asking(client, count, method=method))
            while service.batcher.queued < before + count:
                await asyncio.sleep(0.001)
        slow.go.set()
        return [(await answer).status_code for answer in asked]

    assert servers.run({"docs": corpus}, use) == [200] * 5
    assert sum(slow.calls) == 1 + 1024 + 1000 + 2 + 1
    assert max(slow.calls) <= 256
    for place, method in enumerate(("dpp", "mmr", "vrsd", "msd", "ssd")):
        assert slow.methods.index(method) <= place  # after at most one call for each that came earlier


def test_callers_with_the_same_rules_are_answered_in_the_order_of_their_requests(corpus, monkeypatch):
    slow = Slow(monkeypatch)
    done = []

    async def use(client, service):
        first = asking(client, method="vrsd")
        await slow.begun()
        asked = []
        for number in range(3):
            asked.append(asking(client, 300))
            asked[-1].add_done_callback(lambda _, number=number: done.append(number))
            while service.batcher.queued < 300 * len(asked):
                await asyncio.sleep(0.001)
        slow.go.set()
        await asyncio.gather(first, *asked)

    servers.run({"docs": corpus}, use)
    assert done == [0, 1, 2]


def test_the_document_has_the_fields_that_are_read(corpus):
    assert set(schemas.Query.model_fields) == rules.FIELDS
    beside = rules.FIELDS - {"vectors", "aspects", *fields.OF_VECTORS}  # which stand in each query
    assert set(schemas.SelectRequest.model_fields) == beside | {"corpus", "queries", "texts"}

    async def use(client, _):
        return (await client.get("/openapi.json")).json(), (await client.get("/info")).json()

    document, info = servers.run({"docs": corpus}, use)
    assert set(document["paths"]["/v1/select"]["post"]["requestBody"]["content"]) == {
        "application/json",
        "application/vnd.apache.arrow.stream",
    }
    schemas_of, limits = document["components"]["schemas"], Limits()
    for model, name, word, most in (
        ("Query", "k", "maximum", limits.k),
        ("SelectRequest", "pool", "maximum", limits.pool),
        ("SelectRequest", "queries", "maxItems", limits.queries),
        ("PathRequest", "k", "maximum", limits.path_k),
        ("Query", "aspects", "maxItems", limits.candidates),
    ):
        schema = schemas_of[model]["properties"][name]
        assert most in [kind.get(word) for kind in schema.get("anyOf", [schema])], (model, name)
    parameters = document["paths"]["/v1/select"]["post"]["parameters"]
    assert {each["name"] for each in parameters if each["in"] == "query"} == set(rules.OF_URL)
    assert info["limits"] == vars(limits)
    assert info["methods"] == list(METHODS)
    assert info["corpora"]["docs"]["rows"] == N


def test_rules_of_json_do_not_stand_in_the_url(corpus):
    """Where they would say nothing; those of Arrow do."""
    (answer,) = servers.posted({"docs": corpus}, ("/v1/select?k=3&lamda=1", {"queries": [{"query_id": 1}]}))
    message = "select: k must stand in the body, which is JSON, got it in the URL"
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        {"code": "invalid_argument", "argument": "k", "message": message},
    )


def test_overflow_is_the_error_of_one_query():
    large = rk.Corpus(np.full((50, 4), 1e15, np.float32), metric="dot")
    queries = [{"query": [1.0] * 4}, {"query": [1e30] * 4}, {"query": [2.0] * 4}]
    results = posted(large, {"queries": queries, "k": 2}).json()["results"]
    assert "products within the range of float32" in results[1]["error"]["message"]
    assert [len(results[i]["ids"]) for i in (0, 2)] == [2, 2]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(body_bytes=1000, memory_bytes=1000), "the bodies and answers of other requests fill its memory"),
        (Limits(requests=2), "too many requests are under way"),
    ],
)
def test_what_does_not_fit_beside_others_is_asked_to_come_again(corpus, monkeypatch, limits, why):
    slow = Slow(monkeypatch)
    body = orjson.dumps({"queries": [{"query_id": 1}]})

    async def use(client, service):
        def ask(content):
            return asyncio.ensure_future(client.post("/v1/select", content=content))

        first = [ask(body), ask(body + b" " * 800)]
        while not slow.calls or service.load.requests < 2:
            await asyncio.sleep(0.001)
        refused = await ask(body + b" " * 200)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert why in refused.json()["error"]["message"]
        assert (await client.get("/health/live")).status_code == 200
        slow.go.set()
        return [(await answer).status_code for answer in first], service.load

    statuses, load = servers.run({"docs": corpus}, use, limits=limits)
    assert statuses == [200, 200]
    assert (load.requests, load.bytes) == (0, 0)


def test_first_requests_import_nothing(run_python):
    """What they need is there before the service is ready. In a process of its own: what is imported stays."""
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(servers.__file__).parent)!r})
import numpy as np, pyarrow as pa
import servers
import ragsys_kernels as rk

async def use(client, service):
    await client.get("/health/live")
    arrow = servers.arrow(pa.table({{"query_id": [1, 2]}}))
    tensors = {{"inputs": [{{"name": "query_id", "shape": [1], "datatype": "INT64", "data": [1]}}]}}
    before = set(sys.modules)
    for path, how in (
        ("/v1/select", {{"json": {{"k": 1, "queries": [{{"query_id": 1}}]}}}}),
        ("/v1/select?k=1", {{"content": arrow, "headers": servers.ARROW}}),
        ("/rerank", {{"json": {{"query": "1", "texts": ["1", "2"]}}}}),
        ("/v1/path", {{"json": {{"k": 1, "query_id": 1}}}}),
        ("/v2/models/docs/infer", {{"json": tensors}}),
    ):
        assert (await client.post(path, **how)).status_code == 200, path
    assert (await client.get("/metrics")).status_code == 200
    print(sorted(set(sys.modules) - before))

servers.run({{"docs": rk.Corpus(np.eye(4, dtype=np.float32))}}, use)
"""
    assert run_python(code).stdout == "[]\n"
