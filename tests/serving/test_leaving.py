"""The end of a server: what it still answers after SIGTERM, and that it cuts nobody off."""

import re
import select
import socket
import ssl
import sys
import threading

import httpx
import numpy as np
import orjson
import pytest
import servers
from certificates import certificate

import ragsys_kernels as rk
from ragsys_kernels.serving.http import refusing, tls
from ragsys_kernels.serving.listening import asking, bound, let_nobody_in

ROWS = np.random.default_rng(8).standard_normal((64, 8), dtype=np.float32)
BODY = orjson.dumps({"k": 3, "queries": [{"query_id": 7}]})
PROMISED = b"POST /v1/select HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY)
WORKERS = [1, 2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora") / "docs"
    rk.Corpus(ROWS).save(folder)
    return folder


def process(folder, workers, *arguments):
    return servers.Process("--corpus", f"docs={folder}", "--workers", workers, "--no-access-log", *arguments)


def uploads(server, count):
    """Connections that have sent the head of a request, so many that each worker has one."""
    found = [socket.create_connection(("127.0.0.1", server.port), timeout=servers.HANGS) for _ in range(count)]
    for client in found:
        client.sendall(PROMISED)
    return found


def everything(client):
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


def ready(server):
    return servers.http.get(f"{server.url}/health/ready")


@pytest.mark.parametrize("workers", WORKERS)
def test_while_a_request_is_under_way_all_others_are_answered(folder, workers):
    with process(folder, workers, "--drain", 0) as server, httpx.Client(timeout=servers.HANGS, verify=False) as kept:
        assert kept.get(f"{server.url}/health/live").status_code == 200
        waiting = uploads(server, 8)
        for client in waiting[:4]:  # those of the others are in the backlog, or have just been accepted
            client.sendall(BODY)
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
            client.close()
        server.process.terminate()
        answer = servers.until(lambda: (found := ready(server)).status_code == 503 and found)
        assert answer.json() == {"status": "stopping"}
        assert answer.headers["connection"] == "close"
        for path in ("/v1/select", "/rerank"):
            content = BODY if path == "/v1/select" else orjson.dumps({"query": "1", "texts": ["1", "2"]})
            answer = servers.http.post(f"{server.url}{path}", content=content)
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert servers.http.get(f"{server.url}/health/live").status_code == 200
        for client in waiting[4:]:
            client.sendall(BODY)
            found = everything(client)
            assert found.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in found
            client.close()
        assert server.stop()[0] == 0


@pytest.mark.parametrize("workers", WORKERS)
def test_a_connection_that_was_open_has_its_next_request_answered(folder, workers):
    with process(folder, workers, "--drain", 600) as server:
        limits = httpx.Limits(max_keepalive_connections=1)
        with httpx.Client(timeout=servers.HANGS, verify=False, limits=limits) as kept:
            assert "connection" not in kept.post(f"{server.url}/v1/select", content=BODY).headers
            server.process.terminate()
            servers.until(lambda: ready(server).status_code == 503)
            answer = kept.post(f"{server.url}/v1/select", content=BODY)
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert server.stop()[0] == 0  # a second signal: at once


class Client(threading.Thread):
    """Asks without pause until it is refused to connect; what else goes wrong is kept."""

    def __init__(self, url, keeps):
        super().__init__()
        self._url, self._keeps, self.answers, self.wrong = url, keeps, 0, []

    def run(self):
        limits = httpx.Limits(max_keepalive_connections=1 if self._keeps else 0)
        with httpx.Client(timeout=servers.HANGS, verify=False, limits=limits) as client:
            while True:
                try:
                    answer = client.post(f"{self._url}/v1/select", content=BODY)
                except httpx.ConnectError:
                    return
                except httpx.TransportError as error:
                    self.wrong.append(repr(error))
                    continue
                self.answers += 1
                if answer.status_code != 200:
                    self.wrong.append(answer.status_code)


def served_until_the_end(folder, workers, number=3):
    """Return how many requests clients had answered by a server that ended under their load, and what went wrong."""
    with process(folder, workers, "--drain", 0.3) as server:
        clients = [Client(server.url, keeps) for keeps in (True, False) * number]
        for client in clients:
            client.start()
        servers.until(lambda: all(client.answers > 5 for client in clients))
        code, _, errors = server.stop()
        for client in clients:
            client.join(servers.HANGS)
        assert (code, errors.count("\n")) == (0, 1)
        return sum(client.answers for client in clients), [each for client in clients for each in client.wrong]


@pytest.mark.parametrize("workers", WORKERS)
def test_no_request_is_cut_off_or_waits_for_ever(folder, workers):
    _, wrong = served_until_the_end(folder, workers)
    assert wrong == []


@pytest.mark.slow
def test_of_ten_thousand_requests_none_is_cut_off(folder):
    total = 0
    while total < 10_000:
        for workers in (1, 2, 4):
            count, wrong = served_until_the_end(folder, workers, number=6)
            assert wrong == []
            total += count


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's filter is Linux's")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_has_connected_is_accepted_and_who_comes_later_is_refused(host):
    try:
        listening = bound(host, 0)
    except OSError:
        pytest.skip("the machine has no IPv6")
    with listening:
        listening.listen()
        assert not asking([listening])
        with socket.create_connection(listening.getsockname()[:2], timeout=servers.HANGS) as early:
            let_nobody_in([listening])
            late = socket.socket(listening.family)
            late.setblocking(False)
            late.connect_ex(listening.getsockname()[:2])
            early.sendall(b"question")
            assert asking([listening])
            accepted, _ = listening.accept()
            with accepted:
                assert not asking([listening])  # the kernel has let nobody else in
                accepted.setblocking(True)
                assert accepted.recv(100) == b"question"
                accepted.sendall(b"answer")
                listening.close()
                assert early.recv(100) == b"answer"
        with late:
            assert select.select([], [late], [], servers.HANGS)[1]
            assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0  # refused, not reset


def test_who_waits_while_no_worker_runs_is_refused_and_not_reset():
    """The backlog of the address is answered before it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        refuser = refusing.Refuser([listening], "no worker can start")
        clients = [socket.create_connection(listening.getsockname(), timeout=servers.HANGS) for _ in range(20)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nX-Request-ID: of-%d\r\nhost: here\r\n\r\n" % client.fileno())
            client.shutdown(socket.SHUT_WR)
        refuser.stop(last=True)
    for client in clients:
        name = b"of-%d" % client.fileno()
        status, answer = whole(client)
        assert status.startswith(b"HTTP/1.1 503 ")
        assert answer.startswith(b"%b\r\n" % name)


def test_who_sends_no_id_while_no_worker_runs_gets_one():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        refuser = refusing.Refuser([listening], "100 % of them cannot start")
        found = []
        for sent in (b"", b"x-request-id: \xff\r\n", b"x-request-id: one two\r\n"):
            client = socket.create_connection(listening.getsockname(), timeout=servers.HANGS)
            client.sendall(b"GET / HTTP/1.1\r\n%b\r\n" % sent)
            client.shutdown(socket.SHUT_WR)
            found.append(whole(client)[1])
        refuser.stop()
    assert all(re.fullmatch(rb"[0-9a-f]{32}\r\n\r\n.*100 % of them.*", each, re.DOTALL) for each in found)
    assert len({each[:32] for each in found}) == len(found)


def whole(client):
    """Return the first line of an answer, and what follows the name of its id."""
    with client, client.makefile("rb") as stream:
        return stream.readline(), stream.read().partition(b"x-request-id: ")[2]


def test_who_speaks_tls_is_refused_too_and_who_says_nothing_holds_up_no_end(tmp_path, monkeypatch):
    monkeypatch.setattr(refusing, "_PATIENCE", 3.0)
    certificate(tmp_path, "localhost")
    context = tls.Certificate(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")).context()
    client = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = listening.getsockname()
        refuser = refusing.Refuser([listening], "no worker can start", context)
        silent = socket.create_connection(place)
        clients = [socket.create_connection(place, timeout=servers.HANGS) for _ in range(2)]
        clients = [client.wrap_socket(each, server_hostname="localhost") for each in clients]
        threading.Thread(target=refuser.stop, args=(True,)).start()
        for each in clients:
            each.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for each in clients:
            assert everything(each).startswith(b"HTTP/1.1 503 ")
            each.close()
        refuser._thread.join(50)  # a handshake may take 60 s, unless one says otherwise
        assert not refuser._thread.is_alive()
        silent.close()
