"""What operators and clients expect of any service: request ids, codes of errors, CORS, gzip, metrics, TLS."""

import asyncio
import datetime
import gzip
import json
import re
import ssl
import threading
import time
import tracemalloc

import httpx
import numpy as np
import pyarrow as pa
import pytest
import servers
from certificates import certificate

import ragsys_kernels as rk
from ragsys_kernels.serving import Client, Limits, limits
from ragsys_kernels.serving.http import openapi
from ragsys_kernels.serving.http.hosts import Hosts
from ragsys_kernels.serving.metrics import Metrics
from ragsys_kernels.serving.server import Settings

CORPUS = rk.Corpus(np.random.default_rng(4).standard_normal((60, 8), dtype=np.float32))
QUERY = {"k": 3, "queries": [{"query_id": 1}, {"query_id": 2}]}
TOKEN = "of-tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def server():
    with servers.Thread({"docs": CORPUS}, token=TOKEN, limits=Limits(body_bytes=1 << 20)) as server:
        yield server


ARROW_BODY = servers.arrow(pa.table({"query_id": [1]}))
ANSWERS = {
    "together": ("POST", "/v1/select", QUERY, BEARER),
    "by itself": ("POST", "/v1/select", json.dumps(QUERY).encode().ljust(20_000), BEARER),
    "arrow": ("POST", "/v1/select?k=2", ARROW_BODY, {**BEARER, **servers.ARROW}),
    "a bad query": ("POST", "/v1/select", {"queries": [{"query_id": 999}]}, BEARER),
    "a bad body": ("POST", "/v1/select", b"{", BEARER),
    "no token": ("POST", "/v1/select", QUERY, {}),
    "rerank": ("POST", "/rerank", {"query": "1", "texts": ["2", "3"]}, BEARER),
    "infer": ("POST", "/v2/models/none/infer", {}, BEARER),
    "no path": ("GET", "/nowhere", None, BEARER),
    "no method": ("DELETE", "/info", None, BEARER),
    "health": ("GET", "/health/live", None, {}),
    "page": ("GET", "/", None, {}),
    "info": ("GET", "/info", None, BEARER),
}


def asked(server, name, **more):
    method, path, body, headers = ANSWERS[name]
    how = {"content": body} if isinstance(body, bytes) else {"json": body}
    return servers.http.request(method, f"{server.url}{path}", headers={**headers, **more}, **how)


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_has_the_id_of_its_request(server, name):
    for given in ("abc-123", "00-4bf92f3577b34da6/x:y", "~" * 128):
        assert asked(server, name, **{"x-request-id": given}).headers.get_list("x-request-id") == [given]
    made = [asked(server, name).headers["x-request-id"] for _ in range(2)]
    for bad in ("a b", "~" * 129, ""):
        made += asked(server, name, **{"x-request-id": bad}).headers.get_list("x-request-id")
    assert len({*made}) == 5
    assert all(8 <= len(each) <= 64 and each.isalnum() for each in made)


def test_the_log_has_the_id_and_the_trace(tmp_path):
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    sent = [
        {"x-request-id": "mine", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
        {"traceparent": "00-nothing"},
    ]

    async def use(client, _):
        return [await client.post("/v1/select", json=QUERY, headers=headers) for headers in sent]

    with (tmp_path / "log").open("wb") as log:
        answers = servers.run({"docs": CORPUS}, use, log=log.fileno())
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (first["request_id"], first["trace_id"], first["corpus"]) == ("mine", trace, "docs")
    assert second["request_id"] == answers[1].headers["x-request-id"]
    assert "trace_id" not in second
    assert "token" not in first


# Statuses and codes do not change: clients compare them.
ERRORS = [
    ("no token", 401, "unauthenticated"),
    ("no path", 404, "not_found"),
    ("no method", 405, "method_not_allowed"),
    ("a bad body", 422, "invalid_argument"),
    ("infer", 404, "unknown_corpus"),
]


@pytest.mark.parametrize(("name", "status", "code"), ERRORS)
def test_errors_have_codes_and_are_problem_details_for_those_who_ask(server, name, status, code):
    plain = asked(server, name, accept="application/json, application/problem")
    content = plain.json()
    assert (plain.status_code, plain.headers["content-type"]) == (status, "application/json")
    open_inference = isinstance(content["error"], str)
    error = content if open_inference else content["error"]
    assert error["code"] == code
    problem = asked(server, name, accept=f"application/json, {PROBLEM.upper()};q=0.9")
    assert (problem.status_code, problem.headers["content-type"]) == (status, PROBLEM)
    found = problem.json()
    assert found == {
        "type": "about:blank",
        "title": httpx.codes.get_reason_phrase(status),
        "status": status,
        "detail": content["error"] if open_inference else error["message"],
        "code": code,
        "argument": found["argument"] if open_inference else error["argument"],
        "request_id": problem.headers["x-request-id"],
    }


def test_queries_have_codes_of_their_own(server):
    body = {"queries": [{"query_id": 1}, {"query_id": 999}, {"query_id": 1, "k": 0}]}
    headers = {**BEARER, "accept": PROBLEM}
    results = servers.http.post(f"{server.url}/v1/select", json=body, headers=headers).json()["results"]
    assert [result.get("error", {}).get("code") for result in results] == [None, "unknown_id", "invalid_argument"]
    table = servers.arrow(pa.table({"query_id": [1, 999, 1], "k": [1, 1, 0]}))
    in_columns = servers.http.post(f"{server.url}/v1/select", content=table, headers={**BEARER, **servers.ARROW})
    assert servers.table_of(in_columns)["code"].to_pylist() == [None, "unknown_id", "invalid_argument"]
    other = servers.http.post(f"{server.url}/v1/select", json={**QUERY, "corpus": "other"}, headers=BEARER)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "unknown_corpus")


def test_clients_of_python_have_the_code_and_the_id(server):
    with Client(server.url, token="wrong") as client, pytest.raises(Exception, match="authorization") as caught:
        client.info()
    assert (caught.value.status, caught.value.code) == (401, "unauthenticated")
    assert len(caught.value.request_id) == 32


def test_while_the_document_is_made_others_are_answered_and_it_is_made_once(monkeypatch):
    answered, begun, make = threading.Event(), [], openapi.document

    def slow(*given):
        begun.append(given)
        assert answered.wait(servers.HANGS)
        return make(*given)

    monkeypatch.setattr(openapi, "document", slow)

    async def use(client, _):
        asked = [asyncio.ensure_future(client.get("/openapi.json")) for _ in range(3)]
        while not begun:
            await asyncio.sleep(0.01)
        asked[0].cancel()  # whoever goes does not end it for the others
        health = await client.get("/health")
        answered.set()
        return health.status_code, [(await each).json()["openapi"] for each in asked[1:]]

    assert servers.run({"docs": CORPUS}, use) == (200, ["3.1.0"] * 2)
    assert len(begun) == 1


def test_every_documented_error_has_a_code_and_every_operation_an_id():
    assert set(openapi._ERRORS) <= set(limits.CODES)

    async def use(client, _):
        return (await client.get("/openapi.json")).json()

    paths = servers.run({"docs": CORPUS}, use)["paths"]
    names = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(names) == len({*names})
    assert {"post_v1_select", "get_info", "get_health_live", "put_v1_corpora_name", "post_v2_models_name_infer"} <= {
        *names
    }
    refused = paths["/v1/select"]["post"]["responses"]["422"]["content"]
    assert {"application/json", PROBLEM} <= set(refused)


ORIGIN = "https://search.example"


def test_pages_of_allowed_origins_may_call():
    hosts = Hosts(None, (), (ORIGIN,))
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }

    async def use(client, _):
        return [
            await client.options("/v1/select", headers={"origin": ORIGIN, **preflight}),  # which has no token
            await client.options("/v1/select", headers={"origin": "https://evil.example", **preflight}),
            await client.options(
                "/v1/select",
                headers={"origin": ORIGIN, **preflight, "access-control-request-headers": "x-requested-with"},
            ),
            await client.post("/v1/select", json=QUERY, headers={**BEARER, "origin": ORIGIN}),
            await client.post("/v1/select", json=QUERY, headers={"origin": ORIGIN}),
            await client.post("/v1/select", json=QUERY, headers={**BEARER, "origin": "https://evil.example"}),
            await client.post("/v1/select", json=QUERY, headers=BEARER),
        ]

    answers = servers.run({"docs": CORPUS}, use, token=TOKEN, hosts=hosts)
    assert [answer.status_code for answer in answers] == [200, 400, 400, 200, 401, 403, 200]
    allowed = [answer.headers.get("access-control-allow-origin") for answer in answers]
    assert allowed == [ORIGIN, None, ORIGIN, ORIGIN, ORIGIN, None, None]
    assert "POST" in answers[0].headers["access-control-allow-methods"]
    assert "x-request-id" in answers[3].headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answers[0].headers
    assert all("x-request-id" in answer.headers for answer in answers)


def test_a_server_answers_allowed_origins_by_the_short_way_too():
    with servers.Thread({"docs": CORPUS}, allowed_origins=(ORIGIN,)) as server:
        for origin, status, allowed in ((ORIGIN, 200, ORIGIN), ("https://evil.example", 403, None)):
            answer = servers.http.post(f"{server.url}/v1/select", json=QUERY, headers={"origin": origin})
            assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (status, allowed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allowed_origins": ("*",)}, "allowed_origins must name each origin without a token, got '*'"),
        ({"allowed_origins": ("search.example",)}, "allowed_origins must be SCHEME://HOST"),
        ({"allowed_origins": ("https://search.example/path",)}, "allowed_origins must be SCHEME://HOST"),
        ({"tls_key": "key"}, "tls_key must come with tls_cert"),
        ({"tls_cert": __file__}, "tls_cert and tls_key must be PEM files"),
        ({"load_from": "nowhere"}, "load_from must be a folder, got 'nowhere'"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(options, words):
    with pytest.raises(ValueError, match=r"^serve: ") as caught:
        Settings(corpora={}, **options)
    assert words in str(caught.value)


PLAIN = {"content-type": "text/plain"}
CHANGES = [  # of corpora at run time: method, path behind /v1/corpora/, headers, body; the status, argument and error
    ("POST", "docs/reload", {}, None, 409, "name", "reload: name must be of a corpus loaded from a folder, got 'docs'"),
    ("POST", "own/reload", {}, None, 409, "name", "reload: name must be of a corpus whose folder loads, got 'own'; "),
    ("POST", "none/reload", {}, None, 404, "name", "reload: name must be of a corpus that is served, got 'none'"),
    ("DELETE", "none", {}, None, 404, "name", "unload: name must be of a corpus that is served, got 'none'"),
    ("PUT", "none", {}, {}, 409, "name", "load: name must be of a corpus whose folder loads, got 'none'; "),
    ("PUT", "none", {}, {"folder": "no"}, 409, "folder", "load: folder must be one that loads, got 'no'; "),
    ("PUT", "none", {}, {"folder": "../no"}, 422, "folder", "load: folder must be the name of a folder in that of "),
    ("PUT", "a:b", {}, {}, 422, "name", "load: name must be of 1 to 200 characters without / : { and }, got 'a:b'"),
    ("PUT", "none", {}, {"path": "no"}, 422, "path", "load: path must be one of folder, got 'no'"),
    ("PUT", "none", {}, [], 422, "body", "load: body must be an object, got a list"),
    ("PUT", "none?folder=no", {}, {}, 422, "folder", "load: folder must stand in the body, which is JSON, got it in "),
    ("PUT", "none", PLAIN, {}, 415, "content-type", "load: content-type must be application/json, got "),
    ("PUT", "none", {}, {"folder": "n" * 2000}, 413, "body", "serve: body must have at most 1000 bytes, got more"),
    ("PUT", "none", {"authorization": "Bearer no"}, {}, 401, "authorization", "serve: authorization must be 'Bearer' "),
    ("PUT", "none", {"authorization": "Bearer read"}, {}, 403, "authorization", "load: authorization must be a token "),
]


def test_errors_of_changes_of_corpora_name_an_argument_that_was_sent(tmp_path):
    CORPUS.save(tmp_path / "own")

    async def use(client, _):
        (tmp_path / "own" / "data.npy").unlink()
        for method, path, headers, content, *expected in CHANGES:
            given = {"content-type": "application/json", **BEARER, **headers}
            answer = await client.request(method, f"/v1/corpora/{path}", headers=given, json=content)
            error = answer.json()["error"]
            assert [answer.status_code, error["argument"], error["message"][: len(expected[2])]] == expected
            assert re.match(rf"(load|unload|reload|serve): {error['argument']} must .+, got .+", error["message"])

    options = {"token": f"{TOKEN}\nread name=r role=read", "load_from": tmp_path}
    servers.run({"docs": CORPUS, "own": tmp_path / "own"}, use, **options, limits=Limits(body_bytes=1000))


GZIP = {"content-encoding": "gzip"}


def test_bodies_may_be_compressed():
    body = json.dumps(QUERY).encode()
    packed = gzip.compress(body)
    bad = {"cut": packed[:-9], "two": packed + packed, "not gzip": body, "empty": b""}
    answers = servers.posted(
        {"docs": CORPUS},
        ("/v1/select", body),
        ("/v1/select", packed, GZIP),
        ("/v1/select?k=3", gzip.compress(servers.arrow(pa.table({"query_id": [1, 2]}))), {**GZIP, **servers.ARROW}),
        ("/v1/select", packed, {"content-encoding": "br"}),
        *(("/v1/select", each, GZIP) for each in bad.values()),
    )
    assert [answer.status_code for answer in answers] == [200, 200, 200, 415, 422, 422, 422, 422]
    assert answers[1].content == answers[0].content
    assert servers.table_of(answers[2])["ids"].to_pylist() == [each["ids"] for each in answers[0].json()["results"]]
    for answer in answers[4:]:
        assert "body must be what its content-encoding says, gzip" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("limit", "status"), [({"body_bytes": 1 << 20}, 413), ({"memory_bytes": 40 << 20}, 503)])
def test_what_a_compressed_body_unpacks_to_has_the_limits(limit, status):
    size = 200 << 20 if status == 413 else 30 << 20
    packer = gzip.zlib.compressobj(wbits=31)
    bomb = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)), packer.flush()])

    async def use(client, service):
        service.load.bytes += 20 << 20 if status == 503 else 0  # of others
        tracemalloc.start()
        answer = await client.post("/v1/select", content=bomb, headers=GZIP)
        return answer, tracemalloc.get_traced_memory()[1], service.load.bytes

    try:
        answer, peak, held = servers.run({"docs": CORPUS}, use, limits=Limits(**limit))
    finally:
        tracemalloc.stop()
    assert answer.status_code == status
    assert peak < 36 << 20
    assert held == (20 << 20 if status == 503 else 0)


@pytest.mark.parametrize("way", ["asgi", "short"])
def test_answers_are_compressed_where_the_server_and_the_client_want_it(way):
    many = {"k": 20, "queries": [{"query_id": 1}] * 4}
    cases = [
        ({"accept-encoding": "gzip"}, many, True),
        ({"accept-encoding": "identity"}, many, False),
        ({"accept-encoding": "br, gzip; q=0.5"}, many, True),
        ({"accept-encoding": "br, gzip; q=0.0"}, many, False),
        ({"accept-encoding": "gzip"}, {"k": 1, "queries": [{"query_id": 1}]}, False),
    ]
    if way == "asgi":

        async def use(client, _):
            return [await client.post("/v1/select", json=body, headers=headers) for headers, body, _ in cases]

        answers = servers.run({"docs": CORPUS}, use, gzip_bytes=1000)
    else:
        with servers.Thread({"docs": CORPUS}, gzip_bytes=1000) as server:
            url = f"{server.url}/v1/select"
            answers = [servers.http.post(url, json=body, headers=headers) for headers, body, _ in cases]
    packed = [answer.headers.get("content-encoding") == "gzip" for answer in answers]
    assert packed == [wanted for *_, wanted in cases]
    assert answers[0].json() == answers[1].json()
    assert int(answers[0].headers["content-length"]) < int(answers[1].headers["content-length"]) / 2
    [plain] = servers.posted({"docs": CORPUS}, ("/v1/select", many, {"accept-encoding": "gzip"}))
    assert "content-encoding" not in plain.headers  # unless the server is told to


def test_requests_are_shown_by_route_by_corpus_and_by_token():
    metrics = Metrics()
    for route, code, corpus, token in (
        ("/a", 200, "docs", "one"),
        ("/a", 200, "docs", ""),
        ("/b", 200, "docs", "one"),
        ("/a", 422, "more", "one"),
        ("/b", 401, "", ""),
    ):
        metrics.request(route, code, 0.001, corpus, token)
    found = [line for line in metrics.text().decode().splitlines() if "requests_total{" in line]
    assert sorted(found) == [
        'ragsys_corpus_requests_total{code="200",corpus="docs"} 3.0',
        'ragsys_corpus_requests_total{code="422",corpus="more"} 1.0',
        'ragsys_requests_total{code="200",route="/a"} 2.0',
        'ragsys_requests_total{code="200",route="/b"} 1.0',
        'ragsys_requests_total{code="401",route="/b"} 1.0',
        'ragsys_requests_total{code="422",route="/a"} 1.0',
        'ragsys_token_requests_total{code="200",token="one"} 2.0',
        'ragsys_token_requests_total{code="422",token="one"} 1.0',
    ]


def test_metrics_have_the_process_the_build_and_the_corpora():
    async def use(client, _):
        for body in (QUERY, QUERY, {"queries": [{"query_id": 999}]}):
            await client.post("/v1/select", json=body)
        return (await client.get("/metrics")).text

    text = servers.run({"docs": CORPUS}, use)
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert values['process_resident_memory_bytes{worker="0"}'] > 10 << 20
    assert values['process_cpu_seconds_total{worker="0"}'] > 0
    assert values['process_open_fds{worker="0"}'] > 3
    assert values['ragsys_corpus_requests_total{code="200",corpus="docs"}'] == 2
    assert values['ragsys_corpus_requests_total{code="422",corpus="docs"}'] == 1
    assert values['ragsys_corpus_rows{corpus="docs"}'] == 60
    age = datetime.datetime.now().timestamp() - values['ragsys_corpus_loaded_timestamp_seconds{corpus="docs"}']
    assert 0 < age < 3600
    [build] = [name for name in values if name.startswith("ragsys_build_info")]
    assert f'version="{rk.__version__}"' in build


def test_the_server_speaks_tls_with_the_certificate_of_its_files(tmp_path, caplog):
    first = certificate(tmp_path, "first")
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    with servers.Thread({"docs": CORPUS}, flight=True, token=TOKEN, **files) as server:

        def post(pem):
            trust = ssl.create_default_context(cadata=pem.decode())
            with httpx.Client(verify=trust, timeout=servers.HANGS) as client:
                return client.post(f"https://localhost:{server.port}/v1/select", json=QUERY, headers=BEARER)

        def shown():
            return ssl.get_server_certificate(("127.0.0.1", server.port)).encode()

        assert post(first).status_code == 200
        with pytest.raises(httpx.TransportError):
            servers.http.get(f"http://localhost:{server.port}/health/live")
        place = server.flight.replace("grpc://", "grpc+tls://localhost:").replace("localhost:127.0.0.1", "localhost")
        assert streamed(place, first) == 1
        before = shown()
        kept = (tmp_path / "key.pem").read_bytes()
        second = certificate(tmp_path, "second")
        key = (tmp_path / "key.pem").read_bytes()
        (tmp_path / "key.pem").write_bytes(kept)  # the certificate comes first, and does not fit the key
        servers.until(lambda: "connections have the certificate before it" in caplog.text)
        assert shown() == before
        assert post(first).status_code == 200
        (tmp_path / "key.pem").write_bytes(key)
        servers.until(lambda: shown() != before)
        assert post(second).status_code == 200
        with pytest.raises(httpx.ConnectError):
            post(first)
        assert streamed(place, second) == 1
        for missing, argument in (("key.pem", "tls_key"), ("cert.pem", "tls_cert")):
            before = len(caplog.messages)
            (tmp_path / missing).rename(tmp_path / "gone")
            servers.until(lambda before=before: len(caplog.messages) > before)
            time.sleep(0.6)  # looks
            [told] = caplog.messages[before:]
            rule = f"serve: {argument} must be a file that can be read, got none at {tmp_path / missing}"
            assert told == f"{rule}; connections have the certificate before it"
            assert post(second).status_code == 200
            (tmp_path / "gone").rename(tmp_path / missing)
        counted = servers.http.get(f"https://localhost:{server.port}/metrics", headers=BEARER).text
        assert 'ragsys_file_reloads_total{file="certificate",outcome="refused"} 3.0' in counted


def streamed(place, pem):
    """The answers to a query by Flight."""
    from pyarrow import flight

    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    batch = pa.record_batch({"query_id": pa.array([1])})
    with flight.connect(place, tls_root_certs=pem) as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b'{"k": 3}'), options)
        writer.begin(batch.schema)
        writer.write_batch(batch)
        writer.done_writing()
        return len(reader.read_all())
