"""Malformed requests to a service in this process, each between good ones of other callers in the same round.

None may be answered with 500, or be kept; the good ones must see nothing of it.

python tests/fuzz/fuzz_requests.py --seed 1 --requests 20000
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import random
import resource
import sys

import numpy as np
import pyarrow as pa

import ragsys_kernels as rk
from ragsys_kernels.serving import Limits, make_service
from ragsys_kernels.serving.http.hosts import Hosts

METHODS = ("mmr", "vrsd", "msd", "dpp", "ssd", "sift")

N, D = 64, 8
ALLOWED = {200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 421, 422, 429, 503, 504}


def deep(n: int) -> list:
    """Return a list within so many others."""
    return [deep(n - 1)] if n else []


ODD = [
    None, True, False, 0, -1, 1, 2, 63, 64, 2**31, 2**63, 2**64, -(2**63), 1e39, -1e-300, 0.5, "", "x", "0", "mmr",
    "\u0000", "\U0001f600", "skip", "dot", [], {}, [[]], [None], [1, "a"], [1.5], [True], {"b64": 3}, [0] * 300,
    {"b64": "AAAA", "shape": [1, 2]}, {"b64": "", "shape": [0, 8]}, {"b64": "AAAA", "shape": [2**62, 2**62]},
    -0.0, 1e308, 2**70, "id:", "id:5", "1,2", "é\0", "A" * 44, {"b64": "AA"}, {"id": 5}, {"text": None}, {"id": {}},
    {"b64": "A" * 43 + "=", "dtype": "float16"}, "docs::", "::", "docs:mmr:1e999", "docs:mmr:-0", "names:vrsd",
    "FP32", "INT8", "BYTES", [1, 8], [2**40, 2**40], [0, 8], [-1],
    {"b64": "", "shape": [0, 2**61]}, [0, 2**61], [0, 2**63], [2**62, 0], deep(900),
]  # fmt: skip
FIELDS = [
    "budget", "x", "", "corpus", "queries", "relevance", "query", "top_n", "query_id", "pool_size", "model",
    "parameters", "lambda_d", "k", "shape", "texts", "method",
]  # fmt: skip


def arrow(table: pa.Table, compression: str | None = None) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return out.getvalue()


def bombs() -> list[bytes]:
    """Return streams that unpack to a thousand times their bytes: lists, texts, and ids by a dictionary."""
    zeros = pa.array(np.zeros(1 << 20, np.int64))
    lists = pa.table(
        {"query_id": [1], "candidates": pa.ListArray.from_arrays(pa.array([0, 1 << 20], pa.int32()), zeros)}
    )
    texts = pa.table({"query_id": [1], "id": ["x" * (1 << 22)]})
    encoded = pa.DictionaryArray.from_arrays(pa.array(np.zeros(64, np.int8)), pa.array(["x" * 60_000]))
    names = pa.table({"query_id": np.arange(64), "id": encoded})
    return [*(arrow(each, codec) for each in (lists, texts) for codec in ("zstd", "lz4")), arrow(names, "zstd")]


def good(rng: random.Random) -> dict:
    """Return a body of `/v1/select` that is answered."""
    vector = [rng.uniform(-1, 1) for _ in range(D)]
    query: dict = {"query": vector}
    if rng.random() < 0.3:
        query = {"query": {"b64": base64.b64encode(np.array(vector, "<f4").tobytes()).decode(), "shape": [D]}}
    elif rng.random() < 0.5:
        query = {"query_id": rng.randrange(N)}
    for name, value in {
        "candidates": rng.sample(range(N), 12), "initial": rng.sample(range(N), 3), "exclude": rng.sample(range(N), 3),
        "allowed": rng.sample(range(N), 40),
        "k": 4, "lambda_d": 0.5, "lambda_b": 0.5, "pool": 9, "method": rng.choice(METHODS), "cursor": None,
        "max_per_group": 2, "unknown": rng.choice(["skip", "error"]), "metric": rng.choice(["dot", "cosine"]),
        "relevance_scale": "as-is",
    }.items():  # fmt: skip
        if rng.random() < 0.3:
            query[name] = value
    if "query" in query and "max_per_group" not in query and rng.random() < 0.4:  # with the candidates' vectors
        rows = np.array([rng.uniform(-1, 1) for _ in range(12 * D)], rng.choice(["<f2", "<f4"])).reshape(12, D)
        text = base64.b64encode(rows.tobytes()).decode()
        query["vectors"] = {"b64": text, "shape": [12, D], "dtype": str(rows.dtype)}
        query["unknown"] = "skip"
        if rng.random() < 0.5:
            query["candidates"] = rng.choice([[f"d{i}" for i in range(12)], rng.sample(range(2**40), 12)])
    if ("candidates" in query or "vectors" in query) and rng.random() < 0.3:
        query["relevance"] = [rng.random() for _ in range(12)]
        query["relevance_scale"] = rng.choice(["minmax", "zscore", "rank", None])
    named = {} if "vectors" in query and rng.random() < 0.5 else {"corpus": "docs"}
    return {**named, "k": 3, "queries": [dict(query) for _ in range(rng.choice([1, 1, 2, 5]))]}


def spoiled(value: object, rng: random.Random) -> object:
    """Return a JSON value with one part replaced, left out or added."""
    if rng.random() < 0.25 or not isinstance(value, (dict, list)) or not value:
        return rng.choice(ODD)
    if isinstance(value, dict):
        key = rng.choice(list(value))
        if rng.random() < 0.2:
            return {name: x for name, x in value.items() if name != key}
        if rng.random() < 0.2:
            return {**value, rng.choice(FIELDS): rng.choice(ODD)}
        return {**value, key: spoiled(value[key], rng)}
    place = rng.randrange(len(value))
    return [*value[:place], spoiled(value[place], rng), *value[place + 1 :]]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with some changed, left out or repeated."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(content) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            content[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del content[at : at + rng.randrange(1, 20)]
        elif kind == 2:
            content[at:at] = content[at : at + rng.randrange(1, 40)]
        else:
            content[at : at + 8] = rng.randbytes(8)
    return bytes(content)


def request(rng: random.Random, streams: list[bytes]) -> tuple[str, str, list[tuple[bytes, bytes]], list[bytes]]:
    """Return method, path, headers and the parts of the body of a request with something wrong."""
    method, path, kind = "POST", "/v1/select", b"application/json"
    if rng.random() < 0.25:
        kind, body = b"application/vnd.apache.arrow.stream", rng.choice(streams)
        if rng.random() < 0.9:
            body = damaged(body, rng)
        path += rng.choice(
            [
                *("", "?k=3", "?k=x", "?pool=all", "?pool=0", "?lambda_d=nan", "?k=1&k=2", "?%ff=%00", "?corpus="),
                *("?unknown=skip", "?unknown=skip&metric=dot", "?unknown=x", "?corpus=vectors"),
            ]
        )
    elif rng.random() < 0.3:
        body = damaged(json.dumps(good(rng)).encode(), rng)
    else:
        body = json.dumps(spoiled(good(rng), rng)).encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if rng.random() < 0.15:
        name = rng.choice(
            b"content-type content-length x-timeout-ms authorization x-request-id content-encoding host origin".split()
        )
        value = rng.choice(
            [
                *(b"", b"0", b"-1", b"\xff\xfe", b"text/html", b"9" * 40, b"Bearer " + rng.randbytes(4), b"50"),
                *(b"gzip", b"[::1", b"evil.example:80", b"http://evil.example", b"null"),
            ]
        )
        headers = [header for header in headers if header[0] != name] + [(name, value)]
    if rng.random() < 0.05:
        method, path = (
            rng.choice(["GET", "PUT", "HEAD", "DELETE"]),
            rng.choice(["/v1/select", "/x", "/info", "/", "//"]),
        )
    if rng.random() < 0.05:
        path = rng.choice(["/v1/corpora/docs/reload", "/v1/corpora/../reload", "/v1/corpora/%00/reload", "/v1/select/"])
    cut = rng.randrange(len(body) + 1)
    return method, path, headers, [body] if rng.random() < 0.8 else [body[:cut], body[cut:]]


async def call(asgi, method, path, headers, parts) -> tuple[int, bytes]:
    """Return the status and body of a request to an application."""
    path, _, query = path.partition("?")
    messages = [
        {"type": "http.request", "body": part, "more_body": i + 1 < len(parts)} for i, part in enumerate(parts)
    ] + [{"type": "http.disconnect"}]
    sent = []

    async def receive():
        return messages.pop(0) if len(messages) > 1 else messages[0]

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": headers, "root_path": "", "scheme": "http", "http_version": "1.1", "client": ("fuzz", 1),
        "server": ("fuzz", 80),
    }  # fmt: skip
    await asgi(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def fuzz(seed: int, requests: int) -> dict[int, int]:
    """Send so many requests; return how often each status came."""
    rng, rows = random.Random(seed), np.random.default_rng(seed)
    corpus = rk.Corpus(rows.standard_normal((N, D), dtype=np.float32), groups=np.arange(N) % 9)
    hosts = Hosts("127.0.0.1")
    service = make_service({"docs": corpus}, hosts=hosts, limits=Limits(body_bytes=1 << 16, queries=64, queue=64))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.standard_normal(3 * D).astype(np.float32)), D)
    table = pa.table({"id": [1, 2, 3], "vector": vectors, "candidates": [[1, 2, 3], [4, 5], [6]]})
    rows = pa.FixedSizeListArray.from_arrays(pa.array(rows.standard_normal(6 * D).astype(np.float16)), D)
    given = pa.table({"vector": vectors, "vectors": pa.ListArray.from_arrays([0, 3, 5, 6], rows)})
    given = given.append_column("candidates", [[["a", "b", "c"], ["d", "e"], ["f"]]])
    encoded = {"b64": base64.b64encode(np.ones(4 * D, "<f4").tobytes()).decode(), "shape": [4, D]}
    streams = [arrow(table), arrow(table, "zstd"), arrow(table, "lz4"), arrow(given), arrow(given, "zstd"), *bombs()]
    good = [{"query_id": 5}, {"query_id": 6, "candidates": [1, 2, 3, 4]}, {"query": [1.0] * D, "vectors": encoded}]
    sound = [json.dumps({"k": 3, "queries": [query]}).encode() for query in good]
    seen: dict[int, int] = {}

    async def answer(body: bytes) -> tuple[int, bytes]:
        return await call(service.asgi, "POST", "/v1/select", [], [body])

    async with service.app.router.lifespan_context(service.app):
        expected = [await answer(body) for body in sound]
        assert all(status == 200 for status, _ in expected)
        for _ in range(requests):
            wrong = request(rng, streams)
            first, (status, content), *others = await asyncio.gather(
                answer(sound[0]), call(service.asgi, *wrong), *map(answer, sound[1:])
            )
            assert status in ALLOWED, (status, wrong, content)
            assert [first, *others] == expected, (wrong, content)
            if b"\n" not in content and status != 200 and wrong[0] != "HEAD" and content[:1] == b"{":
                json.loads(content)
            seen[status] = seen.get(status, 0) + 1
        assert service.batcher.queued == 0
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=20_000)
    options = parser.parse_args()
    asyncio.run(fuzz(options.seed, 2000))  # what is made once is made
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = asyncio.run(fuzz(options.seed + 1, options.requests))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{sum(seen.values())} requests, by status: {dict(sorted(seen.items()))}; {grown:.1f} MB more memory")
    if grown > 20:
        sys.exit("memory grew")


if __name__ == "__main__":
    main()
