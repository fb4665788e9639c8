"""Tokens: names, roles and quotas of callers, and the file that is read again when it changes."""

import asyncio
import json
import logging
import os
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import servers
from pyarrow import flight

import ragsys_kernels as rk
from ragsys_kernels.serving import Limits
from ragsys_kernels.serving.http import tokens
from ragsys_kernels.serving.http.tokens import Tokens, parsed
from ragsys_kernels.serving.limits import RefusedError

CORPUS = rk.Corpus(np.random.default_rng(3).standard_normal((40, 8), dtype=np.float32))
TEXT = """
# who may call
of-readers   name=search role=read
of-operators name=operations
"""
QUERY = {"k": 2, "queries": [{"query_id": 1}]}


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def test_callers_have_names_and_roles(tmp_path):
    asked = [
        ("POST", "/v1/select", "of-readers", 200),
        ("GET", "/info", "of-readers", 200),
        ("POST", "/v1/corpora/docs/reload", "of-readers", 403),
        ("PUT", "/v1/corpora/docs", "of-readers", 403),
        ("DELETE", "/v1/corpora/docs", "of-readers", 403),
        ("POST", "/v1/corpora/docs/reload", "of-operators", 409),  # this one is not from a folder
        ("POST", "/v1/select", "of-operators", 200),
        ("POST", "/v1/select", "of-nobody", 401),
        ("POST", "/v1/select", "of-readers name=search", 401),
        ("GET", "/metrics", "of-operators", 200),
    ]

    async def use(client, _):
        found = []
        for method, path, token, _ in asked:
            body = QUERY if path == "/v1/select" else {}
            found.append(await client.request(method, path, headers=bearer(token), json=body))
        return found

    with (tmp_path / "log").open("wb") as log:
        answers = servers.run({"docs": CORPUS}, use, token=TEXT, log=log.fileno())
    assert [answer.status_code for answer in answers] == [status for *_, status in asked]
    counted = [line for line in answers[-1].text.splitlines() if line.startswith("ragsys_token_requests_total")]
    assert sorted(counted) == [
        'ragsys_token_requests_total{code="200",token="operations"} 1.0',
        'ragsys_token_requests_total{code="200",token="search"} 2.0',
        'ragsys_token_requests_total{code="403",token="search"} 3.0',
        'ragsys_token_requests_total{code="409",token="operations"} 1.0',
    ]
    text = (tmp_path / "log").read_text()
    names = [json.loads(line).get("token") for line in text.splitlines()]
    assert names == [*["search"] * 5, *["operations"] * 2, None, None, "operations"]
    assert not any(secret in text + answers[-1].text for secret in ("of-readers", "of-operators", "of-nobody"))


WRONG = [
    ("", "got none"),
    ("# only this\n\n", "got none"),
    ("sécret", "must be printable ASCII and not empty, got another in line 1"),
    ("secret role=writer", "role must be read or admin, got 'writer' in line 1"),
    ("secret name=a/b", "name must be 1 to 64 letters"),
    ("secret name=" + "a" * 65, "name must be 1 to 64 letters"),
    ("a\nsecret more", "what follows a token must be NAME=VALUE with one of name, role, queries_per_second"),
    ("secret rolle=read", "what follows a token must be NAME=VALUE"),
    ("secret role=read role=read", "each once"),
    ("secret queries_per_second=0", "queries_per_second must be a number above 0, got '0'"),
    ("secret queries_per_second=inf", "queries_per_second must be a number above 0, got 'inf'"),
    ("secret queries_per_second=nan", "queries_per_second must be a number above 0, got 'nan'"),
    ("secret queries_in_flight=0", "queries_in_flight must be a whole number of at least 1, got '0'"),
    ("secret queries_in_flight=1.5", "queries_in_flight must be a whole number"),
    ("a name=x role=read\nsecret name=x", "the same role and quotas in all lines of one name, got others of 'x'"),
    ("secret name=x\nsecret name=y", "must have each token once, got one again in line 2"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_lines_that_are_wrong_are_told_without_the_token(text, words):
    with pytest.raises(ValueError, match=r"^serve: ") as caught:
        parsed(text)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path, caplog):
    file = tmp_path / "tokens"

    def put(text):
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", file)

    async def use(client, _):
        async def status(token):
            return (await client.get("/info", headers=bearer(token))).status_code

        async def becomes(token, wanted):
            for _ in range(servers.HANGS * 20):
                if await status(token) == wanted:
                    return
                await asyncio.sleep(0.05)
            raise AssertionError

        assert [await status("old"), await status("new")] == [200, 401]
        put("old name=search\nnew name=search\n")  # while callers change from one to the other
        await becomes("new", 200)
        assert await status("old") == 200
        put("new name=search\n")
        await becomes("old", 401)
        for number, bad in enumerate(("", "hush role=king\n", None)):
            put(bad) if bad is not None else file.unlink()
            await asyncio.to_thread(servers.until, lambda number=number: len(caplog.records) > number)
            await asyncio.sleep(0.6)  # two more looks, which tell nothing new
            assert [await status("new"), await status("hush"), await status("")] == [200, 401, 401]
        lines = (await client.get("/metrics", headers=bearer("new"))).text.splitlines()
        return sorted(line for line in lines if line.startswith("ragsys_file_reloads_total"))

    put("old name=search\n")
    with caplog.at_level(logging.ERROR):
        counted = servers.run({"docs": CORPUS}, use, token_file=file)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3  # a line a change, however often the file is looked at
    assert all("the tokens stay as they were" in line and "hush" not in line for line in told)
    assert told[2].startswith(f"serve: token_file must be a file that can be read, got none at {file}; ")
    assert counted[-1] == 'ragsys_file_reloads_total{file="tokens",outcome="refused"} 3.0'
    assert counted[0].startswith('ragsys_file_reloads_total{file="tokens",outcome="loaded"} ')


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(tokens, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def account(text, token="t", **options):
    return Tokens(text, **options).check({b"authorization": f"Bearer {token}".encode()})


def refusal(caller, queries):
    try:
        caller.take(queries)
    except RefusedError as refused:
        return refused
    return None


def test_no_more_queries_a_second_than_the_quota(clock):
    """In any time no more than the rate, a full bucket and the debt of one request; and who waits as told is taken."""
    rng, largest, rate = np.random.default_rng(5), 30, 10.0
    caller, taken = account(f"t queries_per_second={rate:g}"), []
    for _ in range(3000):
        clock[0] += rng.exponential(0.3)
        queries = int(rng.integers(1, largest))
        refused = refusal(caller, queries)
        if refused is not None:
            assert (refused.status, refused.code) == (429, "quota_exceeded")
            seconds = int(refused.headers["retry-after"])
            assert 1 <= seconds <= largest / rate + 1
            clock[0] += seconds
            caller.take(queries)
        taken.append((clock[0], queries))
    times, counts = map(np.array, zip(*taken, strict=True))
    total = np.concatenate([[0], np.cumsum(counts)])
    for first in range(0, len(times), 50):
        spent = total[first + 1 :] - total[first]
        assert (spent <= rate * (times[first:] - times[first]) + rate + largest).all()
    assert total[-1] > 0.7 * rate * (times[-1] - times[0])  # and no fewer than it allows


def test_queries_in_flight_are_counted_until_they_end():
    caller = account("t queries_in_flight=10")
    caller.take(6)
    with pytest.raises(RefusedError, match="queries must be at most 10 in flight with this token") as caught:
        caller.take(5)
    assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "1")
    caller.take(4)
    caller.give_back(6)
    caller.take(6)
    with pytest.raises(RefusedError) as caught:  # which would never fit
        caller.take(11)
    assert (caught.value.status, caught.value.argument) == (422, "queries")


def test_workers_share_quotas(tmp_path, monkeypatch, clock):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    text = "t name=search queries_per_second=100 queries_in_flight=10"
    first, second = (account(text, place=place, workers=2) for place in range(2))
    first.take(4)
    second.take(5)
    for caller in (first, second):
        with pytest.raises(RefusedError, match="in flight"):
            caller.take(2)
    first = account(text, place=0, workers=2)  # in the place of one that has died
    first.take(5)
    with pytest.raises(RefusedError, match="in flight"):
        second.take(1)
    first.give_back(5)
    second.give_back(5)
    for _ in range(8):
        first.take(10)
        first.give_back(10)
    for caller in (first, second):  # 94 of the 100 of this second are taken
        with pytest.raises(RefusedError, match="100 a second"):
            caller.take(7)
    clock[0] += 0.015
    second.take(7)


@pytest.mark.parametrize("body_bytes", [1, 20_000], ids=["together", "by itself"])
def test_a_quota_holds_for_its_caller_alone(body_bytes):
    """By the short way and by that of large requests; what has been answered is no more in flight."""
    few = "of-few name=few queries_in_flight=3 queries_per_second=1000000"
    text = f"{few}\nof-slow name=slow queries_per_second=0.001\nof-all"
    two = {"k": 2, "queries": [{"query_id": 1}, {"query_id": 2}]}

    def asked(server, token, content):
        body = json.dumps(content).encode().ljust(body_bytes)
        return servers.http.post(f"{server.url}/v1/select", content=body, headers=bearer(token))

    with servers.Thread({"docs": CORPUS}, token=text) as server:
        assert [asked(server, "of-few", two).status_code for _ in range(4)] == [200] * 4
        four = asked(server, "of-few", {**two, "queries": two["queries"] * 2})
        assert (four.status_code, four.json()["error"]["code"]) == (422, "invalid_argument")
        assert asked(server, "of-slow", two).status_code == 200
        refused = asked(server, "of-slow", two)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
        assert int(refused.headers["retry-after"]) > 1000
        assert asked(server, "of-all", two).status_code == 200
        assert (
            servers.metric(server.url, "ragsys_token_requests_total", '"slow"', '"429"', headers=bearer("of-all")) == 1
        )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rerank", {"query": "1", "texts": ["2", "3"]}),
        ("/v1/path", {"query_id": 1, "k": 2}),
        ("/v2/models/docs/infer", {"inputs": [{"name": "query_id", "datatype": "INT64", "shape": [1], "data": [1]}]}),
        ("/v1/select?k=2", servers.arrow(pa.table({"query_id": [1]}))),
    ],
    ids=["rerank", "path", "infer", "arrow"],
)
def test_every_route_has_the_quota(path, body):
    headers = {**bearer("t"), **(servers.ARROW if isinstance(body, bytes) else {})}
    answers = servers.posted({"docs": CORPUS}, *[(path, body, headers)] * 2, token="t queries_per_second=0.001")
    assert [answer.status_code for answer in answers] == [200, 429]
    content = answers[1].json()
    assert (content.get("code") or content["error"]["code"]) == "quota_exceeded"


def test_streams_of_flight_wait_for_their_quota(monkeypatch):
    batch, ids = pa.record_batch({"query_id": pa.array(np.arange(20) % 40)}), []
    options = flight.FlightCallOptions(
        headers=[(b"authorization", b"Bearer of-readers"), (b"x-request-id", b"of-tests")]
    )
    text = "of-readers name=search role=read queries_in_flight=3"
    with servers.Thread({"docs": CORPUS}, flight=True, token=text, limits=Limits()) as server:
        submit, counts = server.service.batcher.submit, []

        def counted(asked, *given, **more):
            counts.append(asked.count)
            return submit(asked, *given, **more)

        monkeypatch.setattr(server.service.batcher, "submit", counted)
        monkeypatch.setattr(server.service.log, "add", lambda request, *_: ids.append((request.id, request.queries)))
        with flight.connect(server.flight) as client:
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b'{"k": 3}'), options)
            writer.begin(batch.schema)
            writer.write_batch(batch)
            writer.done_writing()
            assert len(reader.read_all()) == 20
        found = servers.until(
            lambda: servers.metric(server.url, "ragsys_token_requests_total", headers=bearer("of-readers"))
        )
    assert counts == [3, 3, 3, 3, 3, 3, 2]
    assert found >= 1
    assert (b"of-tests", 20) in ids
