"""The clients: NumPy arrays with the bits of calls in process, retries, deadlines, errors."""

import asyncio
import time

import httpx
import numpy as np
import odd_ids
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.selection.parameters import BY_GROUP, TABLE
from ragsys_kernels.serving import Client, DeadlineError, InvalidRequestError, ServiceError, UnavailableError
from ragsys_kernels.serving import wire as client_wire
from ragsys_kernels.serving.fields import OF_CALL

N, D, Q = 250, 16, 20
RNG = np.random.default_rng(23)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
IDS = RNG.permutation(np.arange(500, 500 + N))
NUMBERED = rk.Corpus(ROWS, ids=IDS, bias=RNG.uniform(-1, 0, N).astype("f4"), groups=np.arange(N) % 30)
NAMES = np.array([f"doc-{i}" for i in IDS], object)
CORPORA = {"docs": NUMBERED, "names": rk.Corpus(ROWS, ids=NAMES.tolist())}
QUERIES = RNG.standard_normal((Q, D), dtype=np.float32)


def served(use, **options):
    return servers.with_client(CORPORA, use, corpus="docs", **options)


def same(picks, expected, ids=IDS, none=-1):
    assert picks.ids.tolist() == [[ids[row] if row >= 0 else none for row in rows] for rows in expected.indices]
    real = expected.indices >= 0
    for name in ("scores", "relevance", "redundancy"):
        wanted = np.where(real, getattr(expected, name), np.nan).astype(np.float32)
        assert np.array_equal(getattr(picks, name).view("i4")[real], wanted.view("i4")[real])
        assert np.isnan(getattr(picks, name)[~real]).all()
    assert picks.lengths.tolist() == expected.lengths.tolist()
    assert picks.errors == {}
    assert (picks.certified is None) == (expected.certified is None)
    if expected.certified is not None:
        assert picks.certified.tolist() == expected.certified.tolist()


@pytest.mark.parametrize("wire", ["json", "arrow"])
def test_picks_have_the_bits_of_calls_in_process(wire):
    rows = np.array([RNG.choice(N, 25, replace=False) for _ in range(Q)])
    padded = rows.copy()
    padded[3, 10:] = padded[7, 2:] = -1
    ids = np.where(padded < 0, -1, IDS[padded])
    relevance = RNG.uniform(size=rows.shape).astype(np.float32)
    shown = rows[:, :2]
    k, lambda_d = RNG.integers(1, 9, Q), np.float32(RNG.uniform(size=Q))
    allowed, none = np.array([3, 5, 7, 11, 13]), [[], [], []]
    empty = ({"initial": none, "exclude": none}, {"allowed": none}, {"candidates": none})

    async def use(client):
        found = [
            await client.select(QUERIES, 5, pool=50, lambda_d=0.5, max_per_group=1),
            await client.select(QUERIES.astype(np.float16), k, candidates=ids, lambda_d=lambda_d),
            await client.select(None, 6, candidates=ids, relevance=relevance),
            await client.select(query_ids=IDS[:Q], method="vrsd", pool=None, k=4),
            await client.select(QUERIES, 3, initial=IDS[shown], exclude=[[int(IDS[9])]] * Q),
            await client.select(QUERIES, 6, corpus="names", candidates=[NAMES[r[r >= 0]].tolist() for r in padded]),
            await client.select(QUERIES[:4], 3, allowed=[IDS[allowed].tolist()] * 4, pool=20, timeout=60),
        ]
        return found, [await client.select(QUERIES[:3], 4, corpus=name, **lists) for name in CORPORA for lists in empty]

    found, of_empty = served(use, wire=wire)
    same(found[0], NUMBERED.select(QUERIES, 5, pool=50, lambda_d=0.5, max_per_group=1))
    half = QUERIES.astype(np.float16).astype(np.float32)
    same(found[1], NUMBERED.select(half, k, candidates=padded, lambda_d=lambda_d))
    same(found[2], NUMBERED.select(None, 6, candidates=padded, relevance=relevance))
    same(found[3], NUMBERED.select(NUMBERED.vectors(np.arange(Q)), 4, method="vrsd", pool=None))
    assert found[4].ids.shape == (Q, 3)
    assert not np.isin(found[4].ids, IDS[9]).any()
    assert not (found[4].ids[:, :, None] == IDS[shown][:, None, :]).any()
    same(found[5], CORPORA["names"].select(QUERIES, 6, candidates=padded), NAMES, None)
    same(found[6], NUMBERED.select(QUERIES[:4], 3, allowed=allowed, pool=20))
    same(of_empty[0], NUMBERED.select(QUERIES[:3], 4, pool=100))
    same(of_empty[3], CORPORA["names"].select(QUERIES[:3], 4, pool=100), NAMES, None)
    assert [picks.lengths.tolist() for picks in of_empty] == [[4] * 3, [0] * 3, [0] * 3] * 2


@pytest.mark.parametrize("wire", ["json", "arrow"])
@pytest.mark.parametrize("name", ["candidates", "initial", "allowed", "exclude", "k", "lambda_d"])
def test_none_is_no_value(wire, name):
    """A query that has none beside one that has some gets the picks that it has alone."""
    value = {"k": 2, "lambda_d": 0.25}.get(name, IDS[:9].tolist())

    async def use(client):
        both = await client.select(QUERIES[:2], **{"k": 4, "pool": 9, name: [value, None]})
        return (
            both,
            await client.select(QUERIES[:1], **{"k": 4, "pool": 9, name: [value]}),
            await client.select(QUERIES[1:2], 6 if name == "k" else 4, pool=9),
        )

    both, *alone = served(use, wire=wire)
    for q, each in enumerate(alone):
        n = each.lengths[0]
        assert both.ids[q, :n].tolist() == each.ids[0].tolist()
        assert both.scores[q, :n].tobytes() == each.scores[0].tobytes()
        assert both.lengths[q] == n > 0


@pytest.mark.parametrize("wire", ["json", "arrow"])
def test_an_id_is_its_text_on_the_wire(wire):
    ids = odd_ids.KNOWN
    rows = odd_ids.vectors(len(ids))

    async def use(client):
        return [
            await client.select(query_ids=ids, k=1, candidates=[[x] for x in ids]),
            await client.select(query_ids=ids, k=len(ids), pool=len(ids), exclude=[[x] for x in ids]),
            await client.select(rows, k=1, candidate_vectors=rows[:, None], candidates=[[x] for x in ids]),
            await client.select(rows, k=1, unknown="skip", exclude=[[x * 9] for x in ids]),
        ]

    own, others, given_vectors, skipped = servers.with_client(
        {"docs": rk.Corpus(rows, ids=ids)}, use, corpus="docs", wire=wire
    )
    assert own.ids[:, 0].tolist() == given_vectors.ids[:, 0].tolist() == ids
    assert [set(each) - {None} for each in others.ids.tolist()] == [set(ids) - {x} for x in ids]
    assert skipped.skipped == {i: [x * 9] for i, x in enumerate(ids)}


def test_long_calls_are_cut_and_bad_queries_are_told(monkeypatch):
    monkeypatch.setattr("ragsys_kernels.serving.client._PART", 7)
    vectors = QUERIES.copy()
    vectors[12] = np.nan

    async def use(client):
        with pytest.raises(InvalidRequestError, match=r"query 12: .*finite"):
            await client.select(vectors, 2)
        with pytest.raises(InvalidRequestError, match=r"\[1, 1000\]") as caught:
            await client.select(vectors, 0)
        assert caught.value.argument == "k"
        assert isinstance(caught.value, ValueError)
        info = await client.info()
        assert info["corpora"]["docs"]["rows"] == N
        with pytest.raises(ServiceError, match="must be of a corpus loaded from a folder") as caught:
            await client.reload()
        assert caught.value.argument == "name"
        return await client.select(vectors, 2, on_error="skip"), await client.select(QUERIES, np.arange(Q) % 3 + 1)

    skipped, cut = served(use)
    assert list(skipped.errors) == [12]
    assert skipped.lengths.tolist() == [2] * 12 + [0] + [2] * 7
    same(cut, NUMBERED.select(QUERIES, np.arange(Q) % 3 + 1, pool=100))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "queries must be given"),
        ({"queries": QUERIES[0]}, "queries must be"),
        ({"queries": QUERIES, "query_ids": [1]}, "row for each of 20"),
        ({"queries": QUERIES, "k": [1, 2]}, "k must be a number"),
        ({"queries": QUERIES, "on_error": "ignore"}, "on_error"),
        ({"queries": QUERIES, "timeout": 0}, "timeout"),
        ({"queries": QUERIES, "k": "3"}, r"k must be a number or \(20,\) numbers, got '3'"),
        ({"queries": QUERIES, "k": True}, "k must be a number .* got True"),
        ({"queries": QUERIES, "lambda_d": ["x"] * Q}, "lambda_d must be a number"),
        ({"queries": [[1.0], [1.0, 2.0]]}, r"queries must be \(Q, D\) numbers"),
        ({"query_ids": 7}, r"query_ids must be \(Q,\) ids, got 7"),
        ({"query_ids": "doc-1"}, r"query_ids must be \(Q,\) ids, got 'doc-1'"),
        ({"query_ids": [[1, 2]]}, r"query_ids must be ids, .* got \[1, 2\]"),
        ({"query_ids": [1, "a"]}, "query_ids must be ids, all integers of 64 bits or all strings, got both"),
        ({"queries": QUERIES, "candidate_vectors": 3}, "candidate_vectors must be"),
        ({"queries": QUERIES[:2], "candidate_vectors": [[[1.0], [2.0, 3.0]]] * 2}, "candidate_vectors must be"),
        (
            {"queries": QUERIES[:2], "candidate_vectors": QUERIES[None, :1].repeat(2, 0), "candidates": [None, ["a"]]},
            "candidates must be given for each query where they are strings .* got None for query 0",
        ),
        ({"queries": QUERIES[:1], "candidates": [[1]], "relevance": [["a"]]}, "relevance must be numbers, got 'a'"),
        ({"queries": QUERIES[:1], "candidates": [[1]], "relevance": [[10**400]]}, "relevance must be numbers"),
        ({"queries": QUERIES[:1], "relevance": np.ones((1, 1, 1))}, r"relevance must be numbers, got \[1.0\]"),
        ({"queries": QUERIES[:1], "relevance": [[None]]}, "relevance must be numbers, got None"),
    ],
)
def test_arguments_are_checked_before_anything_is_sent(arguments, words):
    server = Flaky()
    with server.client() as client, pytest.raises(ValueError, match=words):
        client.select(**arguments)
    assert not server.requests


NO_LISTS = [
    (["doc-1", "doc-2"], "'doc-1' in the place of a list"),
    ([1, 2], "1 in the place of a list"),
    (np.array([1, 2]), "1 in the place of a list"),
    (7, "7 in the place of a list"),
    ([{1: 2}, {3: 4}], "{1: 2} in the place of a list"),
    ([[True], [2]], "True"),
    ([[b"a"], [2]], "b'a'"),
    ([[[1]], [[2]]], r"\[1\]"),
    (np.zeros((2, 1, 1), int), r"\[0\]"),
    ([[1, "a"], [2]], "both|'a'"),
    ([["a"], [2]], "both|'a'"),
]
NO_IDS = [
    (np.array([[2**63], [2]], np.uint64), str(2**63)),
    ([[2**63], [2]], str(2**63)),
    ([[-(2**63) - 1], [2]], str(2**63 + 1)),
    ([[1.5], [2]], "1.5"),
]


@pytest.mark.parametrize("name", ["candidates", "initial", "allowed", "exclude", "relevance"])
def test_what_is_no_list_of_ids_is_told_by_its_name(name):
    """The same by either wire, before anything is sent."""
    server = Flaky()
    for wire in ("json", "arrow"):
        with server.client(wire=wire) as client:
            for rows, words in NO_LISTS if name == "relevance" else NO_LISTS + NO_IDS:
                with pytest.raises(ValueError, match=f"^select: {name} must be .*, got .*(?:{words})"):
                    client.select(QUERIES[:2], 3, **{name: rows})
    assert not server.requests


@pytest.mark.parametrize("wire", ["json", "arrow"])
@pytest.mark.parametrize("how", ["array", "objects", "lists"])
def test_padding_is_dropped_with_what_stands_beside_it(wire, how):
    """In arrays and in lists, of any list of ids; relevance and vectors there are those of no candidate."""
    rows = np.array([[3, 5, -1, 8, -1], [9, -1, -1, -1, 2]])
    scores, own = RNG.uniform(size=rows.shape), RNG.standard_normal((*rows.shape, D), dtype=np.float32)
    scores[rows < 0] = own[rows < 0] = np.nan
    ids = np.where(rows < 0, -1, IDS[rows])
    if how != "array":
        ids = np.where(ids < 0, None, ids)
    if how == "lists":
        ids, scores = [[-1 if x is None and i else x for i, x in enumerate(row)] for row in ids], scores.tolist()
    bare = [[x for x in row if x is not None and x != -1] for row in ids]
    kept = [own[q][rows[q] >= 0] for q in range(2)]

    async def use(client):
        asked = [
            ({"candidates": ids, "relevance": scores}, {"candidates": bare, "relevance": [
                np.asarray(scores)[q][rows[q] >= 0].tolist() for q in range(2)]}),
            ({"candidates": ids, "candidate_vectors": own}, {"candidates": bare, "candidate_vectors": kept}),
            *(({name: ids}, {name: bare}) for name in ("initial", "allowed", "exclude")),
        ]  # fmt: skip
        return [[await client.select(QUERIES[:2], 2, **each) for each in pair] for pair in asked]

    for padded, plain in served(use, wire=wire):
        assert padded.lengths.tolist() == [2, 2]
        assert padded.ids.tolist() == plain.ids.tolist()
        assert padded.scores.tobytes() == plain.scores.tobytes()


@pytest.mark.parametrize("wire", ["json", "arrow"])
def test_what_is_not_finite_fails_its_query_alone(wire):
    """JSON has no NaN, which must not fail the others."""
    ids, scores = IDS[:12].reshape(3, 4), RNG.uniform(size=(3, 4))
    wanted = np.array([0.25, np.nan, 0.75])
    scores[1, 2] = np.inf

    async def use(client):
        with pytest.raises(InvalidRequestError, match=r"lambda_d must be .*nan"):
            await client.select(QUERIES[:3], 2, lambda_d=float("nan"))
        with pytest.raises(InvalidRequestError, match=r"query 1: select: lambda_d must be .*nan"):
            await client.select(QUERIES[:3], 2, lambda_d=wanted)
        found = [
            await client.select(QUERIES[:3], 2, lambda_d=wanted, on_error="skip"),
            await client.select(QUERIES[:3], 2, candidates=ids, relevance=scores, on_error="skip"),
        ]
        good = [await client.select(QUERIES[:3:2], 2, lambda_d=wanted[::2])]
        return found, [*good, await client.select(QUERIES[:3:2], 2, candidates=ids[::2], relevance=scores[::2])]

    for found, good in zip(*served(use, wire=wire), strict=True):
        assert list(found.errors) == [1]
        assert found.ids[::2].tolist() == good.ids.tolist()
        assert found.scores[::2].tobytes() == good.scores.tobytes()


class Flaky:
    """A server that fails as it is told, then answers."""

    def __init__(self, *failures):
        self.failures, self.requests = list(failures), []

    def __call__(self, request):
        self.requests.append(request)
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            status, headers = failure
            return httpx.Response(status, headers=headers, json={"error": {"argument": None, "message": "no room"}})
        result = {"ids": [3], "scores": [0.5], "relevance": [0.5], "redundancy": [None]}
        return httpx.Response(200, json={"results": [result]})

    def client(self, **options):
        return Client("http://flaky", transport=httpx.MockTransport(self), token="of-tests", **options)


def test_full_and_broken_servers_are_asked_again(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    server = Flaky((429, {"retry-after": "0"}), (503, {}), httpx.ConnectError("down"), httpx.ReadError("reset"))
    with server.client() as client:
        assert client.select(QUERIES[:1]).ids.tolist() == [[3]]
    assert len(server.requests) == 5
    assert server.requests[0].headers["authorization"] == "Bearer of-tests"
    assert "x-timeout-ms" not in server.requests[0].headers


def test_retry_after_is_obeyed_within_the_deadline(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    server = Flaky((429, {"retry-after": "3"}), (429, {}), (503, {}))
    with server.client(timeout=5000) as client:
        client.select(QUERIES[:1])
    assert pauses[0] == 3
    assert pauses[1] < 0.1
    assert pauses[2] < 0.2
    assert 4_900_000 < int(server.requests[0].headers["x-timeout-ms"]) <= 5_000_000
    server = Flaky((503, {"retry-after": "60"}))
    with server.client(timeout=5) as client, pytest.raises(UnavailableError, match="no room") as caught:
        client.select(QUERIES[:1])
    assert caught.value.status == 503
    assert len(pauses) == 3


def test_failures_that_stay_are_raised():
    for failures, error, sent in [
        ([(429, {})] * 2, UnavailableError, 2),
        ([httpx.ConnectError("down")] * 2, UnavailableError, 2),
        ([httpx.ReadTimeout("slow")], DeadlineError, 1),
        ([(504, {})], DeadlineError, 1),
        ([(401, {})], ServiceError, 1),
        ([(413, {})], InvalidRequestError, 1),
    ]:
        server = Flaky(*failures)
        with server.client(retries=1) as client, pytest.raises(error):
            client.select(QUERIES[:1])
        assert len(server.requests) == sent


@pytest.mark.parametrize("wire", ["json", "arrow"])
def test_no_queries_have_no_picks(wire):
    server = Flaky()
    with server.client(wire=wire) as client:
        for picks in (client.select(QUERIES[:0], 3), client.select(query_ids=[], k=np.zeros(0, int))):
            assert (len(picks), picks.ids.shape, picks.scores.shape, picks.errors) == (0, (0, 0), (0, 0), {})
            assert len(picks.certified) == 0
    assert not server.requests


def stream(offsets=(0, 1), names=("ids", "scores", "relevance", "redundancy", "error")):
    """An answer to one query as Arrow, whose lists begin and end where they are told to."""
    pa = pytest.importorskip("pyarrow")
    columns = {}
    for name in names:
        values = pa.array([7] if name == "ids" else np.ones(1, np.float32), pa.int64() if name == "ids" else None)
        columns[name] = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)
    if "error" in names:
        columns["error"] = pa.array([None], pa.string())
    out = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    told, true = (np.array([*each, 7, 0], "<i4").tobytes() for each in (offsets, (0, 1)))
    return out.getvalue().to_pybytes().replace(true, told)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (stream((1 << 28, (1 << 28) + 1)), "arrow"),  # to read there would end the process
        (stream((0, 1 << 28)), "arrow"),
        (stream()[:200], "arrow"),
        (stream(names=("ids",)), "arrow"),
        (b"", "arrow"),
        (b'{"results": [{}, {}]}', "json"),
        (b'{"results": {}}', "json"),
        (b'{"results": [{"ids": [1, 2], "scores": [1], "relevance": [1, 1], "redundancy": [1, 1]}]}', "json"),
        (b'{"results": [{"ids": [1', "json"),
        (b"[]", "json"),
        (b"<html>", "json"),
    ],
)
def test_answers_that_are_none_are_errors(body, kind):
    types = {"arrow": "application/vnd.apache.arrow.stream", "json": "application/json"}
    answer = httpx.Response(200, content=body, headers={"content-type": types[kind]})
    with Client("http://wrong", transport=httpx.MockTransport(lambda _: answer), wire=kind) as client:
        with pytest.raises(ServiceError, match="the answer cannot be read") as caught:
            client.select(QUERIES[:1], k=1)
        assert caught.value.status == 200
    good = httpx.Response(200, content=stream(), headers={"content-type": types["arrow"]})
    with Client("http://right", transport=httpx.MockTransport(lambda _: good)) as client:
        assert client.select(QUERIES[:1], k=1).ids.tolist() == [[7]]


WORDS = {"number": "a (finite )?number", "count": "an integer", "flag": "true or false", "choice": "one of '.*'"}
BAD = {
    "number": ["3", True, float("nan"), float("inf"), 10**400],
    "count": ["3", 2.0, np.float32(2), True],
    "flag": ["true", 1],
    "choice": [1, b"dot"],
}


@pytest.mark.parametrize("how", ["json", "arrow"])
def test_one_value_for_all_queries_is_no_list_and_of_its_type(how):
    """In the same words by either wire, before anything is sent: a URL would take the last value of a list."""
    server, kinds = Flaky(), {name: option.kind for name, option in OF_CALL.items()}
    names = {**kinds, "pool": "count", "method": "choice", "corpus": "choice", "unknown": "choice"}
    with server.client(wire=how) as client:
        for name, kind in names.items():
            words = "a string" if name in ("method", "corpus", "unknown") else WORDS[kind]
            by_group = name in BY_GROUP
            words += ", or a mapping of groups to integers" if by_group else ""
            for bad in [[1, 2], np.array([0.5, 3.0]), (), object(), *BAD[kind], *([] if by_group else [{"a": 1}])]:
                with pytest.raises(ValueError, match=f"^select: {name} must be {words}, got "):
                    client.select(QUERIES, **{name: bad})
        for name in BY_GROUP:
            for bad in ({"a": 1.0}, {"a": True}, {"a": None}, {None: 1}, {1.5: 1}, {True: 1}, {1: 1, "1": 2}):
                with pytest.raises(ValueError, match=f"^select: {name} must be an integer for each group, by int"):
                    client.select(QUERIES, **{name: bad})
    assert not server.requests


NUMPY = [
    {"method": "ssd", "gamma": np.float32(0.5), "window": np.int32(2), "pool": np.int64(30)},
    {"method": "coverage", "density": np.bool_(True), "budget": np.float64(9), "kind": np.str_("cover")},
    {"method": "sift", "noise": np.float32(0.1), "min_gain": np.array(0.01), "k": np.uint8(3)},
]


def with_costs(use, how):
    corpus = rk.Corpus(ROWS, ids=IDS, costs=np.arange(1.0, N + 1) % 7 + 1)
    return servers.with_client({"docs": corpus}, use, wire=how)


@pytest.mark.parametrize("how", ["json", "arrow"])
def test_numbers_of_numpy_are_those_of_python(how):
    async def use(client):
        plain = [{name: value.item() for name, value in each.items() if name != "method"} for each in NUMPY]
        return [
            [await client.select(QUERIES[:3], **{"k": 4, "method": each["method"], **given}) for given in (each, other)]
            for each, other in zip(NUMPY, plain, strict=True)
        ]

    for given, expected in with_costs(use, how):
        assert given.ids.tolist() == expected.ids.tolist()
        assert given.scores.tobytes() == expected.scores.tobytes()


@pytest.mark.parametrize("how", ["json", "arrow"])
def test_an_infinite_budget_is_none(how):
    async def use(client):
        each = await client.select(QUERIES[:2], 4, budget=np.array([np.inf, 5.0]))
        for name, x in [("max_similarity", np.inf), ("min_relevance", -np.inf), ("budget", -np.inf)]:
            with pytest.raises(InvalidRequestError, match=f"{name} must be"):
                await client.select(QUERIES[:2], 4, **{name: x})
        plain = await client.select(QUERIES[:2], 4), await client.select(QUERIES[:2], 4, budget=5.0)
        return await client.select(QUERIES[:2], 4, budget=np.inf), each, *plain

    endless, each, plain, limited = with_costs(use, how)
    assert endless.ids.tolist() == plain.ids.tolist()
    some = limited.ids[1][limited.ids[1] >= 0].tolist()
    assert [[x for x in ids if x >= 0] for ids in each.ids.tolist()] == [plain.ids[0].tolist(), some]
    assert len(some) < 4


def test_every_argument_of_the_table_is_sent(monkeypatch):
    """Under its own name; the server says which rule has it."""
    names = {each.name for each in TABLE}
    given = {name: object() for name in names}
    sent = {}

    def queries(vectors, ids, arguments, *others):
        sent.update(arguments)
        raise InterruptedError

    monkeypatch.setattr(client_wire, "Queries", queries)
    with Client("http://service") as client, pytest.raises(InterruptedError):
        client.select(query_ids=[1], **given)
    assert {name: sent[name] for name in names} == given


def test_corpora_are_loaded_and_unloaded_by_name(tmp_path):
    """Also with a name that a path has to escape; without a folder to load from nothing is loaded."""
    corpus = rk.Corpus(np.random.default_rng(2).standard_normal((9, D), dtype=np.float32))
    for name in ("a b", "other"):
        corpus.save(tmp_path / name)

    async def use(client):
        loaded = await client.load("a b")
        assert (loaded["corpus"], loaded["rows"]) == ("a b", 9)
        assert (await client.load("a b", "other"))["version"]
        assert (await client.select(query_ids=[1], k=2, corpus="a b")).ids.shape == (1, 2)
        assert await client.unload("a b") == {"corpus": "a b"}
        with pytest.raises(InvalidRequestError) as caught:
            await client.select(query_ids=[1], k=2, corpus="a b")
        assert caught.value.code == "unknown_corpus"

    async def refused(client):
        with pytest.raises(ServiceError, match="load: the server must be started with --load-from") as caught:
            await client.load("a b")
        assert (caught.value.status, caught.value.code) == (403, "forbidden")

    async def main(load_from, use):
        async with servers.in_process(CORPORA, load_from=load_from) as (_, service):
            transport = httpx.ASGITransport(service.asgi)
            async with servers.AsyncClient("http://service", transport=transport) as client:
                await use(client)

    asyncio.run(main(tmp_path, use))
    asyncio.run(main(None, refused))
