"""`/v1/select` on a connection, which goes without ASGI, and by ASGI: the same answers, and HTTP as it should be."""

import socket
import time

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk

N, D, MOST = 300, 16, 16
TOKEN = "secret"
JSON = "application/json"
ONE = {"query_id": 7, "candidates": list(range(40))}


@pytest.fixture(scope="module")
def corpus():
    return rk.Corpus(np.random.default_rng(1).standard_normal((N, D), dtype=np.float32))


@pytest.fixture(scope="module")
def server(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora") / "docs"
    corpus.save(folder)
    limits = rk.serving.Limits(body_bytes=60_000, requests=MOST)
    with servers.Thread({"docs": str(folder)}, token=TOKEN, limits=limits) as server:
        yield server


def body(*queries, **rules):
    return orjson.dumps({"k": 3, **rules, "queries": list(queries)})


REQUESTS = {
    "one query": (body(ONE), {}),
    "a query that is bad": (body(ONE, {"query_id": N}), {}),
    "all are bad": (body({"query_id": N}, {}), {}),
    "more than go together": (body(*[ONE] * 20), {}),
    "a large body": (body(*[{"query": [0.25] * D}] * 200), {}),
    "a deadline": (body(ONE), {"x-timeout-ms": "9000"}),
    "a bad deadline": (body(ONE), {"x-timeout-ms": "soon"}),
    "Arrow": (servers.arrow(pa.table({"query_id": [1, 2, 3]})), servers.ARROW),
    "Arrow that is none": (b"ARROW", servers.ARROW),
    "rules of JSON in the URL": (body(ONE), {}),
    "another type": (body(ONE), {"content-type": "text/plain"}),
    "no JSON": (b"{", {}),
    "nothing": (b"", {}),
    "a rule that there is not": (body(ONE, colour=1), {}),
    "no corpus": (body(ONE, corpus="other"), {}),
    "too large": (b" " * 60_001, {}),
    "another token": (body(ONE), {"authorization": "Bearer other"}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answers_are_those_by_asgi(server, corpus, name):
    content, headers = REQUESTS[name]
    headers = {"content-type": JSON, "authorization": f"Bearer {TOKEN}", "x-request-id": name[:1], **headers}
    limits = rk.serving.Limits(body_bytes=60_000)
    path = "/v1/select?corpus=docs&k=3" if name.startswith(("Arrow", "rules")) else "/v1/select"

    async def use(client, _):
        return await client.post(path, content=content, headers=headers)

    expected = servers.run({"docs": corpus}, use, token=TOKEN, limits=limits)
    with httpx.Client(timeout=servers.HANGS, verify=False) as client:
        for _ in range(2):  # the connection goes on, but after an error that closes it
            found = client.post(f"{server.url}{path}", content=content, headers=headers)
            assert (found.status_code, found.content) == (expected.status_code, expected.content)
            given = {key: value for key, value in found.headers.items() if key != "date"}
            assert given == dict(expected.headers)


def request(content=None, path="/v1/select", version="1.1", method="POST", **headers):
    """Return a request as it is sent."""
    content = body(ONE) if content is None else content
    lines = [f"{method} {path} HTTP/{version}", "host: x", f"authorization: Bearer {TOKEN}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "transfer_encoding" not in headers:
        lines.append(f"content-length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def received(server, *parts, pause=0.01):
    """Return the answers to what is sent on one connection, which the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=servers.HANGS) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(pause)
        found = b""
        while part := client.recv(1 << 16):
            found += part
    answers = []
    while found:
        head, _, found = found.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines[1:])
        size = int(headers.get(b"content-length", 0))
        answers.append((int(lines[0].split()[1]), headers, found[:size]))
        found = found[size:]
    return answers


def test_connections_are_as_http_has_them(server):
    whole, info = request(), request(b"", "/info", method="GET")
    close = request(connection="close")
    ((status, headers, expected),) = received(server, close)
    assert (status, headers[b"connection"]) == (200, b"close")
    assert len(orjson.loads(expected)["results"][0]["ids"]) == 3

    def told(*parts):
        return [(status, content == expected) for status, _, content in received(server, *parts)]

    assert told(whole[:30], whole[30:-9], whole[-9:-4], whole[-4:], close) == [(200, True)] * 2
    assert told(whole * 3 + info + whole + close) == [(200, True)] * 3 + [(200, False)] + [(200, True)] * 2
    assert told(request(body(*[ONE] * 9)) + whole + close) == [(200, False)] + [(200, True)] * 2  # in their order
    assert told(close + whole) == [(200, True)]
    assert told(request(version="1.0")) == [(200, True)]
    assert told(request(expect="100-continue"), close) == [(100, False), (200, True), (200, True)]
    chunks = request(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body(ONE)), body(ONE)), transfer_encoding="chunked")
    assert told(chunks, close) == [(200, True)] * 2
    for path, method, status in (
        ("/v1/selects", "POST", 404), ("/v1/select/x", "POST", 404), ("/v1/select", "GET", 405)
    ):  # fmt: skip
        assert received(server, request(b"", path, method=method, connection="close"))[0][0] == status
    assert received(server, request(b"", "/v1/select#x", connection="close"))[0][0] == 422
    assert received(server, b"POST /v1/select HTTP/1.1\r\ncontent-length: x\r\n\r\n")[0][0] == 400


def test_requests_that_are_refused_while_they_are_read_are_not_counted_for_ever(server):
    """Lengths that Python would not read, or that no body has."""
    for digits in (b"0" * 5000 + b"5", b"9" * 18, b"0" * 18 + b"5"):
        for _ in range(MOST):
            head = request(b"", content_type=JSON)[:-4].replace(b"content-length: 0", b"content-length: " + digits)
            assert [status for status, _, _ in received(server, head + b"\r\n\r\n", pause=0)] == [413]
    assert received(server, request(connection="close"))[0][0] == 200


def test_a_client_that_leaves_is_counted_and_holds_nothing(server):
    def left():
        headers = {"authorization": f"Bearer {TOKEN}"}
        return servers.metric(server.url, "ragsys_requests_total{", 'code="499"', "/v1/select", headers=headers)

    before = left()
    for part in (request()[:-9], request(b"x" * 50_000)[:-9]):
        with socket.create_connection(("127.0.0.1", server.port), timeout=servers.HANGS) as client:
            client.sendall(part)
            time.sleep(0.02)
    servers.until(lambda: left() == before + 2)
