"""Requests of rerank and Open Inference clients with changed parts, each between good ones of other callers.

No answer but 200 and those of bad requests; the good ones must see nothing of it.

python tests/fuzz/fuzz_protocols.py --seed 1 --requests 10000
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
from typing import Any

import numpy as np
from fuzz_requests import call, damaged, spoiled

import ragsys_kernels as rk
from ragsys_kernels.serving import make_service

ANSWERS = {200, 404, 413, 415, 422}
TENSORS = [
    {"name": "vector", "shape": [2, 8], "datatype": "FP32", "data": [0.5] * 16},
    {"name": "k", "shape": [2], "datatype": "INT64", "data": [1, 2]},
    {"name": "candidates", "shape": [2, 2], "datatype": "INT64", "data": [1, 2, 3, -1]},
]
GIVEN = [
    TENSORS[0],
    {"name": "vectors", "shape": [2, 2, 8], "datatype": "FP16", "data": [0.25] * 32},
    {"name": "candidates", "shape": [2, 2], "datatype": "BYTES", "data": ["a", "b", "c", ""]},
]
NAMES = [
    {"name": "query_id", "shape": [1], "datatype": "BYTES", "data": ["d3"]},
    {"name": "exclude", "shape": [1, 2], "datatype": "BYTES", "data": ["d3", ""]},
]
WANTED = [{"name": "ids", "parameters": {"binary_data": True}}]
SOUND: list[tuple[str, dict[str, Any]]] = [
    ("/rerank", {"query": "5", "texts": ["1", "2", "3"], "raw_scores": False}),
    ("/v2/rerank", {"model": "docs:mmr:0.5", "query": "5", "documents": ["1", {"text": "2"}, {"id": 3}], "top_n": 2}),
    (
        "/v2/rerank",
        {"model": "docs", "query_id": 5, "documents": [1, 2], "initial": [4], "exclude": [6], "lambda_d": 0.5},
    ),
    ("/rerank", {"model": "names", "query": "d5", "documents": ["d1", "d2"], "property": "text"}),
    ("/models/docs:vrsd/rerank", {"query": [0.1] * 8, "input": [1, 2, 3], "top_n": 1, "max_per_group": 1}),
    ("/v2/models/docs/infer", {"id": "x", "inputs": TENSORS, "outputs": WANTED, "parameters": {"pool": 5}}),
    ("/rerank", {"query": "5", "texts": ["1", "x", "999"], "unknown": "skip"}),
    ("/v2/models/vectors/infer", {"inputs": GIVEN, "parameters": {"k": 1, "unknown": "skip", "metric": "dot"}}),
    (
        "/v2/models/docs/infer",
        {
            "inputs": [*TENSORS, {"name": "relevance", "shape": [2, 2], "datatype": "FP32", "data": [0.1, 7, 2, 0]}],
            "parameters": {"relevance_scale": "rank"},
        },
    ),
    ("/v2/models/docs/infer", {"inputs": GIVEN[:2], "outputs": WANTED}),
    ("/v2/models/names:vrsd/infer", {"inputs": NAMES, "parameters": {"k": 3, "binary_data_output": True}}),
]
URLS = ["?top_n=x", "?model=docs:mmr:0.1", "?pool_size=5", "?top_n=%D9%A3", "?%00"]


def request(rng: random.Random) -> tuple[str, list[tuple[bytes, bytes]], bytes]:
    """Return the path, headers and body of a request."""
    path, body = rng.choice(SOUND)
    value: Any = body
    for _ in range(rng.randrange(1, 4)):
        value = spoiled(value, rng)
    content, headers = json.dumps(value).encode(), []
    if rng.random() < 0.1:
        content = damaged(content, rng)
    if path.endswith("infer") and rng.random() < 0.2:
        length = rng.choice([len(content), len(content) // 2, 0, 10**20])
        headers = [(b"inference-header-content-length", str(length).encode())]
        content += bytes(rng.randrange(64))
    return path + (rng.choice(URLS) if rng.random() < 0.1 else ""), headers, content


async def fuzz(seed: int, requests: int) -> collections.Counter[int]:
    """Send the requests; return how many got which status."""
    rng, seen = random.Random(seed), collections.Counter[int]()
    rows = np.random.default_rng(0).standard_normal((64, 8), dtype=np.float32)
    names = rk.Corpus(rows, ids=[f"d{i}" for i in range(64)])
    service = make_service({"docs": rk.Corpus(rows, groups=np.arange(64) % 7), "names": names})
    sane: list[tuple[str, dict[str, Any]]] = [
        ("/rerank", {"model": "docs", "query": "5", "texts": ["1", "2", "3"]}),
        ("/v2/models/docs/infer", {"inputs": TENSORS}),
        ("/v1/select", {"corpus": "docs", "queries": [{"query_id": 5, "candidates": [1, 2]}]}),
    ]
    sound = [(path, json.dumps(body).encode()) for path, body in sane]

    async with service.app.router.lifespan_context(service.app):
        expected = [await call(service.asgi, "POST", path, [], [body]) for path, body in sound]
        assert all(status == 200 for status, _ in expected)
        for number in range(requests):
            path, headers, content = request(rng)
            beside, body = sound[number % len(sound)]
            (status, answer), good = await asyncio.gather(
                call(service.asgi, "POST", path, headers, [content]), call(service.asgi, "POST", beside, [], [body])
            )
            assert good == expected[number % len(sound)], (seed, number, path, content, headers)
            assert status in ANSWERS, (seed, number, path, content, headers, answer)
            if status != 200:
                assert "error" in json.loads(answer), (path, content, answer)
            seen[status] += 1
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=10_000)
    given = parser.parse_args()
    print(dict(asyncio.run(fuzz(given.seed, given.requests))))


if __name__ == "__main__":
    main()
