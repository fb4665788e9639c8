"""Limits of connections: clients that do not read, too many of them, too few descriptors, requests refused unread."""

import http.client
import select
import socket
import ssl

import numpy as np
import orjson
import pytest
import servers
import uvicorn
from certificates import certificate
from uvicorn.server import ServerState

import ragsys_kernels as rk
from ragsys_kernels.serving import Limits, make_service
from ragsys_kernels.serving.limits import SPARE
from ragsys_kernels.serving.protocol import Protocol

ROWS = np.random.default_rng(7).standard_normal((1200, 8), dtype=np.float32)
CORPORA = {"docs": rk.Corpus(ROWS)}
JSON = {"content-type": "application/json"}
ONE = orjson.dumps({"k": 1, "queries": [{"query": ROWS[0].tolist()}]})
# An answer of 14 MB, for its ids are long: more than the kernel takes of it for a client that does not read.
LONG = {"docs": rk.Corpus(ROWS[:10], ids=[f"{i}" * 4000 for i in range(10)])}
LARGE = orjson.dumps({"k": 10, "queries": [{"query": ROWS[i].tolist()} for i in range(150)]})
MEMORY = 20 << 20  # one answer of 14 MB fits, and no other beside it, whatever the kernel's buffers take


def connected(server, content=b""):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(servers.HANGS)
    client.connect(("127.0.0.1", server.port))
    if server.url.startswith("https:"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = context.wrap_socket(client)
    client.sendall(content)
    return client


def request(body, *more):
    head = (
        f"POST /v1/select HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    head = "\r\n".join([head, *more])
    return f"{head}\r\n\r\n".encode() + body


def posted(server, body, **headers):
    return servers.http.post(f"{server.url}/v1/select", content=body, headers={**JSON, **headers})


def closed(server, reason):
    return servers.metric(server.url, "ragsys_closed_connections_total", f'"{reason}"')


def everything(client):
    """What a client receives until the server closes the connection."""
    found = b""
    try:
        while part := client.recv(1 << 16):
            found += part
    except ConnectionError:
        found += b" (reset)"
    return found


@pytest.fixture(params=["http", "https"])
def tls(request, tmp_path):
    """Options of a server."""
    if request.param == "http":
        return {}
    certificate(tmp_path, "localhost")
    return {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}


@pytest.mark.parametrize("more", [(), ("content-encoding: identity",)], ids=["short", "asgi"])
def test_an_answer_is_counted_until_its_client_has_taken_it(more, tls):
    limits = Limits(body_bytes=1 << 20, memory_bytes=MEMORY, write_seconds=3600)
    with servers.Thread(LONG, limits=limits, **tls) as server:
        load = server.service.load
        with connected(server, request(LARGE, *more)) as reader:
            servers.until(lambda: load.bytes and not load.requests)
            assert load.bytes > 5 << 20
            refused = posted(server, LARGE)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "the bodies and answers of other requests fill its memory" in refused.json()["error"]["message"]
            assert refused.json()["error"]["code"] == "unavailable"
            assert posted(server, ONE).status_code == 200
            found = b""
            while not found.endswith(b"]}"):
                found += reader.recv(1 << 20)
        servers.until(lambda: not load.bytes)
        assert len(orjson.loads(found[found.index(b'{"results') :])["results"]) == 150
        assert posted(server, LARGE).status_code == 200
        with connected(server, request(LARGE)):
            servers.until(lambda: load.bytes and not load.requests)
        servers.until(lambda: not load.bytes)  # it has left


def test_a_client_that_does_not_read_is_closed(tls):
    with (
        servers.Thread(LONG, limits=Limits(write_seconds=0.3), **tls) as server,
        connected(server, request(LARGE)) as client,
    ):
        events = select.poll()
        events.register(client, select.POLLHUP)
        assert events.poll(20_000)  # the client is told, though it reads nothing of what has come
        assert closed(server, "reads slowly") == 1
        servers.until(lambda: not server.service.load.bytes)
        found = everything(client)
        assert found.startswith(b"HTTP/1.1 200 ")
        assert not found.endswith(b"]}")


def test_a_request_whose_answer_alone_would_fill_the_memory_is_too_large():
    limits = Limits(body_bytes=1 << 20, memory_bytes=1 << 24)
    many = orjson.dumps({"k": 1000, "pool": 1000, "queries": [{"query_id": i} for i in range(200)]})
    large, one = servers.posted(CORPORA, ("/v1/select", many), ("/v1/select", ONE), limits=limits)
    assert (large.status_code, one.status_code) == (413, 200)
    assert "request must take at most 16777216 bytes with its answer" in large.json()["error"]["message"]


def test_a_connection_with_tls_is_closed_behind_its_last_answer(tls):
    with servers.Thread(LONG, **tls) as server, connected(server, request(LARGE, "connection: close")) as client:
        found = everything(client)
        assert len(orjson.loads(found[found.index(b'{"results') :])["results"]) == 150
        assert not found.endswith(b" (reset)")
        servers.until(lambda: not servers_open(server) and not server.service.load.bytes)


class Transport:
    """What a connection writes to, with as many bytes left as a test says."""

    left = 0
    aborted = False

    def get_write_buffer_size(self):
        return self.left

    def get_extra_info(self, name):
        return None

    def is_closing(self):
        return self.aborted

    def abort(self):
        self.aborted = True


@pytest.mark.parametrize(
    ("left", "closes"),
    [
        ([3 << 20] * 40, 21),
        ([(3 << 20) - i for i in range(40)], 21),  # a byte a second
        ([(3 << 20) - (i << 16) for i in range(48)] + [0] * 30, None),  # a MiB in 16 s
        ([5 << 10] * 15 + [0] + [5 << 10] * 15, None),  # another answer
    ],
)
def test_a_client_has_to_take_a_mebibyte_in_the_time_for_writing(left, closes):
    service = make_service(CORPORA)
    config = uvicorn.Config(service.asgi, http="httptools", lifespan="off")
    connection, transport = Protocol(service.asgi, config, ServerState(), {}, object()), Transport()
    connection.connection_made(transport)
    connection.waiting_since = None
    for second, size in enumerate(left):
        transport.left = size
        connection.close_if_slow(float(second), Limits(write_seconds=20), -1.0)
        assert service.load.bytes == size
        if transport.aborted:
            break
    assert (second if transport.aborted else None) == closes
    connection.connection_lost(OSError())
    assert service.load.bytes == 0


def test_connections_beyond_the_limit_are_told_and_health_is_answered():
    with servers.Thread(CORPORA, limits=Limits(connections=4)) as server:
        idle = [connected(server) for _ in range(4)]
        servers.until(lambda: len(server.service.load.beyond) == 0 and servers_open(server) == 4)
        refused = posted(server, ONE)
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/json")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert refused.json()["error"]["message"] == "serve: too many connections are open; ask again"
        for path in ("/health", "/health/live", "/health/ready"):
            assert servers.http.get(f"{server.url}{path}").status_code == 200
        idle[0].sendall(request(ONE))
        assert idle[0].recv(100).startswith(b"HTTP/1.1 200 ")  # it was there before
        idle[0].close()
        servers.until(lambda: servers_open(server) == 3)
        assert posted(server, ONE).status_code == 200
        assert servers.metric(server.url, "ragsys_requests_total{", '"503"') == 1
        assert servers.metric(server.url, "ragsys_refused_connections_total") == 4
        for client in idle[1:]:
            client.close()


def servers_open(server):
    return len(server._server.server_state.connections)


def test_idle_connections_beyond_the_limit_make_room_for_others():
    with servers.Thread(CORPORA, limits=Limits(connections=1)) as server:
        clients = [connected(server) for _ in range(1 + SPARE)]
        servers.until(lambda: len(server.service.load.beyond) == SPARE)
        assert servers.http.get(f"{server.url}/health/live").status_code == 200
        with clients[1]:
            assert everything(clients[1]) in (b"", b" (reset)")  # the first of those beyond
        with clients[2]:
            clients[2].sendall(request(ONE))
            assert everything(clients[2]).startswith(b"HTTP/1.1 503 ")
        clients[0].close()
        servers.until(lambda: servers_open(server) == SPARE - 2)
        clients[3].sendall(request(ONE))
        assert clients[3].recv(100).startswith(b"HTTP/1.1 200 ")  # there is room now
        for client in clients[3:]:
            client.close()


def test_connections_are_as_many_as_there_are_descriptors(run_python):
    """In a process of its own, with little room."""
    code = """
import resource
from ragsys_kernels.serving.listening import room
for limits in ((160, 4000), (160, 160), (50, 50)):
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    print(room(400), resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
"""
    said = run_python(code, check=False)
    (enough, more), (few, files) = (map(int, line.split()) for line in said.stdout.splitlines())
    assert enough == 400 < more < 1000
    assert 0 < few < 160 - SPARE
    assert files == 160
    warning, *_, error = said.stderr.splitlines()
    assert warning.startswith(f"serve: {few} connections are the most that can be open; for 400, open files must be ")
    assert error.startswith("OSError: serve: open files must be at least ")
    assert error.endswith(", got 50")


UNREAD = {
    "413": (request(b" " * 20_000_000), b"HTTP/1.1 413 ", b"body must have at most 1000000 bytes"),
    "413 in chunks": (
        request(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
        + b"186a00\r\n%b\r\n" % (b" " * 1_600_000) * 12 + b"0\r\n\r\n",
        b"HTTP/1.1 413 ",
        b"body must have at most 1000000 bytes",
    ),
    "431": (b"GET /health HTTP/1.1\r\nx: " + b"a" * 20_000_000 + b"\r\n\r\n", b"HTTP/1.1 431 ", b"headers must have"),
    "400": (b"\0" * 20_000_000, b"HTTP/1.1 400 ", b"request must be HTTP/1.1"),
}  # fmt: skip


@pytest.fixture(scope="module")
def strict():
    limits = Limits(body_bytes=1_000_000, body_seconds=3600)
    with servers.Thread(CORPORA, limits=limits) as server:
        yield server


CODES = {"413": "too_large", "413 in chunks": "too_large", "431": "headers_too_large", "400": "bad_request"}


@pytest.mark.parametrize("name", UNREAD)
def test_a_client_that_sends_all_before_it_reads_sees_why_it_is_refused(strict, name):
    sent, status, words = UNREAD[name]
    with socket.create_connection(("127.0.0.1", strict.port), timeout=servers.HANGS) as client:
        client.sendall(sent)
        found = everything(client)
    assert found.startswith(status)
    assert words in found
    assert b"connection: close" in found
    assert b"\r\nx-request-id: " in found
    assert f'"code":"{CODES[name]}"'.encode() in found
    assert found.count(b"HTTP/1.1 ") == 1
    servers.until(lambda: strict.service.load.requests == strict.service.load.bytes == 0)


def test_a_client_of_the_standard_library_sees_why_its_body_is_refused(strict):
    for _ in range(3):
        client = http.client.HTTPConnection("127.0.0.1", strict.port, timeout=servers.HANGS)
        client.request("POST", "/v1/select", b"x" * 4_000_000, JSON)
        assert client.getresponse().status == 413
        client.close()


@pytest.mark.parametrize("name", ["413", "431"])
def test_who_is_refused_and_goes_on_for_ever_is_closed(name):
    with servers.Thread(CORPORA, limits=Limits(body_bytes=1_000_000, body_seconds=0.3)) as server:
        with connected(server, UNREAD[name][0][:1_000_000]) as client:  # more is promised
            assert client.recv(9) == UNREAD[name][1][:9]
            servers.until(lambda: not servers_open(server))
        assert servers.http.get(f"{server.url}/health/live").status_code == 200


def test_refusals_of_headers_have_what_the_client_asks_for(strict):
    head = b"GET /health HTTP/1.1\r\nx-request-id: mine\r\naccept: application/problem+json\r\n"
    with connected(strict, head + b"x: 1\r\n" * 200 + b"\r\n") as client:
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"\r\ncontent-type: application/problem+json\r\n" in answer
    assert b"\r\nx-request-id: mine\r\n" in answer
    assert (b'"code":"headers_too_large"' in answer, b'"request_id":"mine"' in answer) == (True, True)


def test_a_slow_body_is_told_and_given_up():
    with servers.Thread(CORPORA, limits=Limits(body_seconds=0.3)) as server:
        with connected(server, request(ONE)[:-5]) as short, connected(server, b"GET /health") as headers:
            for client in (short, headers):
                answer = everything(client)
                assert answer.startswith(b"HTTP/1.1 408 ")
                assert b"\r\nx-request-id: " in answer
                assert b'"code":"request_timeout"' in answer
        servers.until(lambda: server.service.load.requests == 0 and not servers_open(server))
        assert closed(server, "sends slowly") == 2
