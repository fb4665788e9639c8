"""Input that is made to do harm: bombs, endless headers, pages of other sites, clients that go, encoders that lie."""

import asyncio
import contextlib
import gc
import json
import socket
import struct
import threading
import time
import tracemalloc

import httpx
import numpy as np
import pyarrow as pa
import pytest
import servers
from pyarrow import flight

import ragsys_kernels as rk
from ragsys_kernels._base.arrow_sizes import unpacked_bytes
from ragsys_kernels.serving import Limits, batcher
from ragsys_kernels.serving.encoder import Encoder
from ragsys_kernels.serving.http import refusing
from ragsys_kernels.serving.http.hosts import Hosts
from ragsys_kernels.serving.limits import RefusedError
from ragsys_kernels.serving.routes.flight_messages import fields_of, flight_data

N, D = 60, 4
ROWS = np.random.default_rng(5).standard_normal((N, D), dtype=np.float32)
CORPUS = rk.Corpus(ROWS)
ARROW = servers.ARROW


def lists(count):
    """A query with a list of so many zeros."""
    zeros = pa.array(np.zeros(count, np.int64))
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), zeros)


BOMBS = {
    "list": pa.table({"query_id": [1], "candidates": lists(1 << 20)}),
    "text": pa.table({"query_id": [1], "id": ["x" * (1 << 22)]}),
    "dictionary": pa.table({"query_id": [1], "id": pa.array(["x" * (1 << 22)]).dictionary_encode()}),
}


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("name", BOMBS)
def test_what_an_arrow_stream_unpacks_to_is_known_before_it_is_unpacked(name, compression):
    body = servers.arrow(BOMBS[name], compression)
    assert len(body) < 1 << 16

    async def use(client, _):
        before = pa.total_allocated_bytes()
        answer = await client.post("/v1/select?k=1", content=body, headers=ARROW)
        return answer, pa.total_allocated_bytes() - before

    answer, allocated = servers.run({"docs": CORPUS}, use, limits=Limits(body_bytes=1 << 20))
    assert answer.status_code == 413
    assert "unpack to at most 1048576 bytes" in answer.json()["error"]["message"]
    assert allocated == 0


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_sizes_are_those_that_pyarrow_unpacks(compression):
    table = pa.table(
        {
            "n": np.arange(1000),
            "l": [[1.0] * n for n in range(1000)],
            "t": ["x" * n for n in range(1000)],
            "nested": [[["a"] * 3]] * 1000,
            "none": pa.nulls(1000, pa.int32()),
        }
    )
    body = servers.arrow(table, compression)
    found = unpacked_bytes(pa.ipc.MessageReader.open_stream(body), 10)
    # Each buffer is as long as pyarrow's own; the writer leaves out those that hold no null.
    own = sum(buffer.size for column in table.columns for buffer in column.chunk(0).buffers() if buffer is not None)
    assert found == 0 if compression is None else own <= found + 1000 // 8 + 8
    assert found <= own + 64 * 20


def test_ids_by_a_dictionary_are_counted_as_written_out():
    encoded = pa.DictionaryArray.from_arrays(pa.array(np.zeros(64, np.int8)), pa.array(["x" * 30_000]))
    body = servers.arrow(pa.table({"query_id": np.arange(64) % N, "id": encoded}))

    limits = Limits(body_bytes=1 << 20)
    [answer] = servers.posted({"docs": CORPUS}, ("/v1/select?k=1", body, ARROW), limits=limits)
    assert answer.status_code == 422
    assert "id must have at most 1048576 bytes" in answer.json()["error"]["message"]


def test_a_long_id_that_is_unknown_costs_its_own_bytes():
    """Ids as an array of NumPy would each be as wide as the longest."""
    named = rk.Corpus(ROWS, ids=[f"d{i}" for i in range(N)])
    query = {"query_id": "d1", "candidates": ["d1"] * 5000 + ["x" * (1 << 20)]}

    async def use(client, _):
        tracemalloc.start()
        answer = await client.post("/v1/select", json={"queries": [query]})
        return answer, tracemalloc.get_traced_memory()[1]

    try:
        answer, peak = servers.run({"docs": named}, use)
    finally:
        tracemalloc.stop()
    assert answer.status_code == 422
    assert peak < 40 << 20


@pytest.mark.parametrize("arrow", [False, True])
def test_short_lists_beside_long_ones_do_not_fill_the_memory(arrow):
    """Lists are padded to the longest of their block: here to a thousand times what the request has."""
    long, short = list(range(N)) * 100, [1]
    rows = [{"query_id": 1, "candidates": long if i % 256 == 0 else short} for i in range(1024)]
    path, body, headers = "/v1/select", json.dumps({"k": 1, "queries": rows}).encode(), {}
    if arrow:
        path, body, headers = "/v1/select?k=1", servers.arrow(pa.Table.from_pylist(rows)), ARROW

    async def use(client, service):
        return await client.post(path, content=body, headers=headers), service.load.bytes

    limits = {"body_bytes": 1 << 20, "queries": 1024}
    answer, held = servers.run({"docs": CORPUS}, use, limits=Limits(memory_bytes=1 << 24, **limits))
    assert (answer.status_code, held) == (413, 0)
    assert "queries must take at most 16777216 bytes" in answer.json()["error"]["message"]
    answer, held = servers.run({"docs": CORPUS}, use, limits=Limits(memory_bytes=1 << 26, **limits))
    assert (answer.status_code, held) == (200, 0)


SIZE = 1 << 17
TENSOR = {"name": "k", "shape": [1], "datatype": "INT64"}
REFUSED = {
    "a query": ("/v1/select", {"queries": [{"query_id": 1, "candidates": [0] * (SIZE // 2)}]}),
    "one of several": ("/v1/select", {"queries": [{"query_id": 1}, {"query_id": 1, "candidates": [0] * (SIZE // 2)}]}),
    "a rule": ("/v1/select", {"queries": [{"query_id": 1, "x": "y" * SIZE}], "k": 0}),
    "rerank": ("/rerank", {"query": "1", "texts": ["0"] * (SIZE // 4)}),
    "infer": ("/v2/models/docs/infer", {"inputs": [{**TENSOR, "data": ["1" * SIZE]}]}),
    "not JSON": ("/v1/select", b"{" + b" " * SIZE),
    "an encoding": ("/v1/select", b"{" + b" " * SIZE),
    "arrow": ("/v1/select", servers.arrow(pa.table({"query_id": [1, 1], "candidates": [[0] * (SIZE // 8), [1]]}))),
    "not arrow": ("/v1/select", b"x" * SIZE),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_body_is_not_kept(name):
    """No error holds the frames that it came through: without the garbage collector, bodies would add up."""
    path, content = REFUSED[name]
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = ARROW if "arrow" in name else {"content-type": "application/json"}
    if name == "an encoding":
        headers = {**headers, "content-encoding": "br"}

    async def use(client, _):
        async def ask(times):
            for _ in range(times):
                answer = await client.post(path, content=body, headers=headers)
                assert answer.status_code in (200, 415, 422), answer.text
            del answer

        await ask(2)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        await ask(2)
        before = tracemalloc.get_traced_memory()[0]
        await ask(8)
        return tracemalloc.get_traced_memory()[0] - before

    try:
        kept = servers.run({"docs": CORPUS}, use)
    finally:
        gc.enable()
        tracemalloc.stop()
    assert kept < 2 * len(body)  # of eight


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora") / "docs"
    rng = np.random.default_rng(6)
    rk.Corpus(rng.standard_normal((3000, 32), dtype=np.float32)).save(folder)
    limits = Limits(header_bytes=20_000, body_bytes=1 << 20)
    with servers.Thread({"docs": str(folder)}, flight=True, limits=limits, grace=20) as server:
        yield server


def answer_to(server, parts):
    """What a server answers to bytes that it is sent until it has answered, or there are no more."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=servers.HANGS) as client:
        with contextlib.suppress(OSError):
            for part in parts:
                client.sendall(part)
        received = b""
        with contextlib.suppress(OSError):
            while more := client.recv(1 << 16):
                received += more
    return received


HEAD = b"POST /v1/select HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /health/live HTTP/1.1\r\nx: ", *[b"a" * 1000] * 10_000],
        [b"GET /" + b"a" * 30_000 + b" HTTP/1.1\r\n\r\n"],
        [b"GET /health/live HTTP/1.1\r\nx: " + b"a" * 30_000 + b"\r\n\r\n"],
        [b"GET /health/live HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % i for i in range(200)) + b"\r\n"],
        [HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx: ", *[b"a" * 1000] * 10_000],
        [HEAD + b"transfer-encoding: chunked\r\n\r\n1;", *[b"a" * 1000] * 10_000],
    ],
    ids=["endless", "url", "long", "many", "trailer", "extension"],
)
def test_headers_have_limits(server, parts):
    received = answer_to(server, parts)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert b"headers must have at most 100 fields and 20000 bytes" in received
    assert servers.http.get(f"{server.url}/health/live").status_code == 200


def test_headers_within_the_limits_and_long_bodies_are_taken(server):
    headers = {f"x-{i}": "y" * 150 for i in range(80)}
    assert servers.http.get(f"{server.url}/info", headers=headers).status_code == 200
    body = json.dumps({"queries": [{"query_id": 1}], "x": ["y"] * 100_000}).encode()
    assert servers.http.post(f"{server.url}/v1/select", content=body).status_code == 422
    assert servers.http.post(f"{server.url}/v1/select", content=iter([body])).status_code == 422  # in chunks


def queued(server):
    return servers.metric(server.url, "ragsys_queued_queries ")


MANY = {"k": 4, "queries": [{"query_id": i} for i in range(100)]}
FEW = {**MANY, "queries": MANY["queries"][:4]}
RESET = struct.pack("ii", 1, 0)


def asking(server, path, content, count):
    """Connections that have each asked and wait; that are reset when they are closed."""
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    clients = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.sendall(head + body)
        clients.append(client)
    return clients


@pytest.fixture
def gate(monkeypatch):
    """The kernels work once it is open."""
    gate, answer = threading.Event(), batcher.answer
    monkeypatch.setattr(batcher, "answer", lambda *given: gate.wait(servers.HANGS) and answer(*given))
    monkeypatch.setattr(batcher, "_INLINE", 0)
    yield gate
    gate.set()


@pytest.mark.parametrize(("content", "count"), [(MANY, 30), (FEW, 150)], ids=["many", "few"])
def test_queries_of_clients_that_have_gone_leave_the_queue(server, gate, content, count):
    clients = asking(server, "/v1/select", content, count)
    servers.until(lambda: server.service.load.requests == count and server.service.batcher.queued)
    for client in clients:
        client.close()
    servers.until(lambda: not server.service.batcher.queued)  # while the first of them are still in the kernels
    gate.set()
    answer = servers.http.post(f"{server.url}/v1/select", json={"k": 1, "queries": [{"query_id": 1}]})
    assert answer.status_code == 200
    assert queued(server) == 0


def test_requests_of_other_routes_end_with_their_clients(server, gate):
    def ended():
        return servers.metric(server.url, "ragsys_requests_total{", '"/rerank"', '"499"')

    before, [first] = ended(), asking(server, "/v1/select", FEW, 1)
    servers.until(lambda: server.service.load.requests == 1)
    waiting = asking(server, "/rerank", {"query": "1", "texts": ["1", "2", "3"]}, 5)
    servers.until(lambda: server.service.load.requests == 6)
    assert ended() == before
    for client in waiting:
        client.close()
    servers.until(lambda: ended() == before + 5)
    first.close()


@pytest.mark.parametrize(
    ("bound", "allowed", "host", "origin", "status"),
    [
        ("127.0.0.1", (), "localhost:8080", None, 0),
        ("127.0.0.1", (), "127.0.0.1", None, 0),
        ("127.0.0.1", (), "[::1]:80", None, 0),
        ("127.0.0.1", (), "evil.example:8080", None, 421),
        ("127.0.0.1", (), "127.0.0.1.evil.example", None, 421),
        ("127.0.0.1", (), "10.0.0.1", None, 421),
        ("localhost", (), "127.0.0.1:1", None, 0),
        ("0.0.0.0", (), "10.0.0.1:80", None, 0),
        ("::", (), "[fe80::1]", None, 0),
        ("0.0.0.0", (), "search.example", None, 421),
        ("0.0.0.0", ("search.example",), "Search.Example:80", None, 0),
        ("127.0.0.1", ("*",), "evil.example", None, 0),
        (None, (), "any.example", None, 0),
        ("127.0.0.1", (), None, None, 0),  # no browser
        ("127.0.0.1", (), "localhost:8080", "http://localhost:8080", 0),
        ("127.0.0.1", (), "localhost:8080", "http://localhost:9090", 403),
        ("127.0.0.1", (), "localhost:8080", "http://evil.example", 403),
        ("127.0.0.1", (), "localhost:8080", "null", 403),
        (None, (), "any.example", "https://evil.example", 403),
        ("127.0.0.1", ("search.example",), "localhost:8080", "https://search.example", 0),
    ],
)
def test_hosts_and_origins(bound, allowed, host, origin, status):
    headers = {name: x.encode() for name, x in ((b"host", host), (b"origin", origin)) if x is not None}
    if not status:
        Hosts(bound, allowed).check(headers)
        return
    with pytest.raises(RefusedError) as caught:
        Hosts(bound, allowed).check(headers)
    assert caught.value.status == status


def test_allowed_hosts_are_names():
    for bad in ("search.example:80", ""):
        with pytest.raises(ValueError, match="allowed_hosts must be names or addresses without a port"):
            Hosts("127.0.0.1", (bad,))


def test_pages_of_other_sites_cannot_call_a_server_without_a_token(server):
    body = {"k": 2, "queries": [{"query_id": 3}]}
    own = {"origin": f"http://127.0.0.1:{server.port}"}
    for headers, status in (
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        (own, 200),
    ):
        answer = servers.http.post(f"{server.url}/v1/select", json=body, headers=headers)
        assert answer.status_code == status
        assert servers.http.get(f"{server.url}/", headers=headers).status_code == 200  # the page holds no data
    reload = f"{server.url}/v1/corpora/docs/reload"
    assert servers.http.post(reload, headers={"content-type": "text/plain"}).status_code == 403
    assert servers.http.post(reload, headers={"x-requested-with": "test", **own}).status_code == 200


def exchanged(client, options=None, rules=b'{"k": 3}'):
    return client.do_exchange(flight.FlightDescriptor.for_command(rules), options)


def test_streams_that_say_nothing_end_and_others_are_served():
    batch = pa.record_batch({"query_id": pa.array([1])})
    with (
        servers.Thread({"docs": CORPUS}, flight=True, limits=Limits(idle_seconds=0.5)) as server,
        flight.connect(server.flight) as silent,
        flight.connect(server.flight) as other,
    ):
        held = [exchanged(silent) for _ in range(64)]
        for writer, _ in held:
            writer.begin(batch.schema)
        hangs = time.monotonic() + servers.HANGS
        while True:
            try:
                writer, reader = exchanged(other)
                writer.begin(batch.schema)
                writer.write_batch(batch)
                writer.done_writing()
                assert reader.read_chunk().data.num_rows == 1
                break
            except flight.FlightError:  # they take all threads; or this process was too slow itself
                assert time.monotonic() < hangs
                time.sleep(0.05)
        words = []
        for _, reader in held:
            with pytest.raises(flight.FlightError) as caught:
                reader.read_chunk()
            words.append(str(caught.value))
        assert sum("batches must come within 0.5 seconds" in each for each in words) > 50  # others had come first


def test_batches_of_a_stream_are_not_unpacked_beyond_the_size_of_a_body(server):
    for table in BOMBS.values():
        batch = table.to_batches()[0]
        with flight.connect(server.flight) as client:
            writer, reader = exchanged(client)
            writer.begin(batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
            writer.write_batch(batch)
            with pytest.raises(flight.FlightServerError, match="batches must have at most 1048576 bytes"):
                reader.read_chunk()


def test_compressed_batches_and_dictionaries_are_answered(server):
    ids = pa.array(["a", "b", "a"]).dictionary_encode()
    batch = pa.record_batch({"query_id": pa.array([1, 2, 3]), "id": ids})
    with flight.connect(server.flight) as client:
        writer, reader = exchanged(client)
        writer.begin(batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        for _ in range(2):
            writer.write_batch(batch)
        writer.done_writing()
        assert reader.read_all()["query_id"].to_pylist() == ["a", "b", "a"] * 2


def test_calls_that_do_not_exist_are_unimplemented_without_a_traceback(server):
    with flight.connect(server.flight) as client:
        for call in (lambda: client.do_get(flight.Ticket(b"x")).read_all(), lambda: list(client.list_flights())):
            with pytest.raises(NotImplementedError) as caught:
                call()
            assert "Traceback" not in str(caught.value)


def test_messages_of_flight_are_read_as_they_are_written():
    rng = np.random.default_rng(1)
    for size in (0, 1, 127, 128, 20_000):
        content = rng.bytes(size)
        fields = fields_of(flight_data(b"m" * 200, content))
        assert bytes(fields[2]) == b"m" * 200
        assert bytes(fields.get(1000, b"")) == content
    for bad in (b"\x12", b"\x12\x05abc", b"\xff" * 11, b"\x13", b"\x12" + b"\xff" * 9 + b"\x01"):
        with pytest.raises(ValueError, match=r"a (field|number)"):
            fields_of(bad)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("large", "answer with at most 65696 bytes"),
        ("slow", "answer within 0.2 seconds"),
        ("gzip", "answer with a body that is not compressed"),
    ],
)
def test_an_encoder_that_answers_without_end_fails_soon(mode, words):
    sent = []

    async def endless():
        for _ in range(2000):
            await asyncio.sleep(0.05 if mode == "slow" else 0)
            sent.append(b" " if mode == "slow" else b" " * 65536)
            yield sent[-1]

    async def ask():
        headers = {"content-encoding": "gzip"} if mode == "gzip" else {}
        answer = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=endless()))
        encoder = Encoder("http://encoder", seconds=0.2 if mode == "slow" else 10, transport=answer)
        begin = time.monotonic()
        with pytest.raises(RefusedError, match=words) as caught:
            await encoder.encode("text", D, asyncio.get_running_loop().time() + 30, "rerank")
        taken = time.monotonic() - begin
        await encoder.close()
        return caught.value.status, taken

    status, taken = asyncio.run(ask())
    assert status == 502
    assert taken < 60  # of 100 that the answer would last
    assert sum(map(len, sent)) < 1 << 20


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n"])
def test_a_silent_client_is_refused_and_let_go_while_no_worker_runs(monkeypatch, sent):
    monkeypatch.setattr(refusing, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        refuser = refusing.Refuser([listening], "no worker can start")
        try:
            with socket.create_connection(listening.getsockname(), timeout=servers.HANGS) as client:
                client.sendall(sent)
                answer = b"".join(iter(lambda: client.recv(1 << 16), b""))  # until the server closes
        finally:
            refuser.stop()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"serve: no worker can start" in answer
