"""Served answers against those of the library in process, bit for bit, at any concurrency."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.serve import servers
from benchmarks.serve.measures import Row, Run
from benchmarks.serve.problem import Problem, in_base64
from ragsys_kernels import Selection, mmr, vrsd

FIELDS = ("scores", "relevance", "redundancy")
MOST = 64  # queries of a request
Answer = tuple[bytes, ...]


def compared(run: Run, queries: int, threads: int = 16) -> Iterator[Row]:
    """Send queries of all rules, mixed, in requests of 1 to 64 from 1 and from many connections; count what differs."""
    problem = run.problem
    rules = rules_of(problem)
    expected = [answers(selected(problem, rule)) for rule in rules]
    with servers.serving(problem.folder, [run.cores.server]) as served:
        for connections, share in ((1, 0.1), (threads, 0.9)):
            count = max(connections, round(queries * share))
            with ThreadPoolExecutor(connections) as pool:
                parts = [
                    (problem, rules, expected, served.url, count // connections, seed) for seed in range(connections)
                ]
                found = list(pool.map(lambda part: differing(*part), parts))
            yield {
                "measure": "differing",
                "contender": "served",
                "setting": f"{connections} connection{'s' * (connections > 1)}",
                "value": sum(wrong for wrong, _ in found),
                "unit": "queries",
                "requests": sum(asked for _, asked in found),
                "note": f"ids and the bits of scores, relevance and redundancy; {len(rules)} rules mixed in a request",
            }


def rules_of(problem: Problem) -> list[dict[str, Any]]:
    """Return rules that share kernel calls and others that do not."""
    P, K = problem.shape.P or 1, problem.shape.K
    found: list[dict[str, Any]] = [
        {"method": "mmr", "k": k, "lambda_d": lambda_d, "candidates": width}
        for k, lambda_d, width in ((K, 0.75, P), (K, 0.5, P), (1, 0.75, P), (K // 2, 0.9, P // 2), (K, 0.25, P // 3))
    ]
    found += [{"method": "vrsd", "k": K, "candidates": P}, {"method": "vrsd", "k": K // 2, "candidates": P // 2}]
    found += [{"method": "mmr", "k": K, "lambda_d": 0.75, "pool": P}, {"method": "vrsd", "k": K, "pool": P}]
    return found


def selected(problem: Problem, rule: dict[str, Any]) -> Selection:
    """Return the library's picks of all queries by a rule, in one call."""
    options = {name: rule[name] for name in ("lambda_d",) if name in rule}
    if "pool" in rule:
        return problem.corpus.select(
            problem.queries, rule["k"], method=rule["method"], pool=rule["pool"], num_threads=1, **options
        )
    select = mmr if rule["method"] == "mmr" else vrsd
    pools = problem.candidates[:, : rule["candidates"]]
    return select(problem.queries, problem.corpus, rule["k"], candidates=pools, num_threads=1, **options)


def answers(picks: Selection) -> list[Answer]:
    """Return each query's answer as bits."""
    return [
        (ids[:n].astype("<i8").tobytes(), *(bits(getattr(picks, name)[q][:n]) for name in FIELDS))
        for q, (ids, n) in enumerate(zip(picks.indices, picks.lengths, strict=True))
    ]


def bits(values: Any) -> bytes:
    """Return floats as bytes; JSON has no NaN, but null."""
    return np.array([np.nan if value is None else value for value in values], "<f4").tobytes()


def differing(
    problem: Problem, rules: list[dict[str, Any]], expected: list[list[Answer]], url: str, count: int, seed: int
) -> tuple[int, int]:
    """Return how many of the answers to so many queries differ, and how many were asked."""
    rng = random.Random(seed)
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    wrong = asked = 0
    while asked < count:
        pairs = [
            (rng.randrange(len(rules)), rng.randrange(len(problem.queries)))
            for _ in range(min(rng.choice((1, 1, 3, 16, MOST)), count - asked))
        ]
        body = {"corpus": "docs", "queries": [query(problem, rules[rule], q) for rule, q in pairs]}
        connection.request("POST", "/v1/select", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        content = json.loads(response.read())
        results = content["results"] if response.status == 200 else [{}] * len(pairs)
        for (rule, q), result in zip(pairs, results, strict=True):
            wrong += "ids" not in result or answer(result) != expected[rule][q]
        asked += len(pairs)
    connection.close()
    return wrong, asked


def query(problem: Problem, rule: dict[str, Any], q: int) -> dict[str, Any]:
    asked = {**rule, "query": in_base64(problem.queries[q])}
    if "candidates" in rule:
        asked["candidates"] = problem.candidates[q, : rule["candidates"]].tolist()
    return asked


def answer(result: dict[str, Any]) -> Answer:
    return np.array(result["ids"], "<i8").tobytes(), *(bits(result[name]) for name in FIELDS)
