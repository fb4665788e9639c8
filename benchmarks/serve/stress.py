"""The service under more than it can answer, when a worker is killed, and with requests that make no sense."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.harness.ledger import ROOT
from benchmarks.serve import load, servers
from benchmarks.serve.bits import answers
from benchmarks.serve.measures import Row, Run
from benchmarks.serve.problem import JSON, LAMBDA_D
from benchmarks.serve.servers import Server
from ragsys_kernels.serving.client import Client, ServiceError

FACTOR, CONNECTIONS = 4, 512
RECOVERY_SECONDS = 2.0


def overload(run: Run, seconds: float) -> Iterator[Row]:
    """Send four times the saturated rate, of requests of 64 queries, so that more queries wait than the queue holds."""
    problem, core = run.problem, run.cores.load
    with servers.serving(problem.folder, [run.cores.server]) as served:
        url = f"{served.url}/v1/select"
        most = load.saturate(url, problem.many, JSON, 16, run.seconds, core).rate
        before = load.saturate(url, problem.by_bytes, JSON, 1, run.seconds, core)
        sizes: list[float] = [served.resident()]
        ended = threading.Event()
        watching = threading.Thread(target=_watch, args=(served, sizes, ended))
        watching.start()
        loaded = load.flood(url, problem.many_body(), JSON, FACTOR * most, CONNECTIONS, seconds, core)
        ended.set()
        watching.join()
        time.sleep(RECOVERY_SECONDS)
        after = load.saturate(url, problem.by_bytes, JSON, 1, run.seconds, core)
        half, whole = max(sizes[: len(sizes) // 2]), max(sizes)
    others = {status: n for status, n in loaded.statuses.items() if status not in (200, 429, 503)}
    statuses = dict(sorted(loaded.statuses.items()))
    note = f"of {FACTOR}x {most:,.0f} requests/s, {loaded.rate:,.0f} were taken; statuses {statuses}"
    shared = {
        "measure": "overload", "contender": "served", "setting": f"{FACTOR}x", "requests": loaded.requests,
        "seconds": loaded.seconds, "p50_us": loaded.p50, "p99_us": loaded.p99, "note": note,
    }  # fmt: skip
    yield {**shared, "value": sum(others.values()) + loaded.broken, "unit": "errors but 429 and 503"}
    yield {
        **shared,
        "measure": "overload: memory",
        "value": whole,
        "unit": "MB",
        "ratio": whole / half,
        "note": f"{sizes[0]:.0f} MB before, {half:.0f} at most in the first half",
    }
    yield {
        **shared,
        "measure": "overload: afterwards",
        "value": after.p50,
        "unit": "µs",
        "ratio": after.p50 / before.p50,
        "p50_us": after.p50,
        "p99_us": after.p99,
        "note": f"one connection, {RECOVERY_SECONDS:g} s after the load; {before.p50:.0f} µs before",
    }


def _watch(served: Server, sizes: list[float], ended: threading.Event) -> None:
    while not ended.wait(0.5):
        sizes.append(served.resident())


def killed_worker(run: Run, seconds: float, threads: int = 8) -> Iterator[Row]:
    """Kill one of two workers under the load of clients with retries; every call must have the right answer."""
    problem = run.problem
    expected = answers(problem.select(len(problem.queries)))
    stop = threading.Event()

    def ask(seed: int) -> tuple[int, int]:
        calls = failures = 0
        rng = np.random.default_rng(seed)
        with Client(served.url, corpus="docs") as client:
            while not stop.is_set():
                rows = rng.integers(0, len(problem.queries), 4)
                calls += 1
                try:
                    picks = client.select(
                        problem.queries[rows], problem.shape.K, candidates=problem.candidates[rows], pool=None,
                        lambda_d=LAMBDA_D,
                    )  # fmt: skip
                except ServiceError:
                    failures += 1
                else:
                    ids = np.asarray(picks.ids)
                    failures += any(
                        row.astype("<i8").tobytes() != expected[q][0] for row, q in zip(ids, rows, strict=True)
                    )
        return calls, failures

    with servers.serving(problem.folder, [run.cores.server, run.cores.load], "--workers", "2") as served:
        with ThreadPoolExecutor(threads) as pool:
            asking = [pool.submit(ask, seed) for seed in range(threads)]
            time.sleep(seconds / 3)
            victim = served.workers()[0]
            os.kill(victim, signal.SIGKILL)
            time.sleep(2 * seconds / 3)
            stop.set()
            found = [each.result() for each in asking]
        replaced = len(set(served.workers()) - {victim})
    yield {
        "measure": "killed worker",
        "contender": "served",
        "setting": "2 workers",
        "value": sum(failures for _, failures in found),
        "unit": "failed calls",
        "requests": sum(calls for calls, _ in found),
        "seconds": seconds,
        "note": f"{threads} clients with retries; {replaced} workers at the end",
    }


def malformed(requests: int, examples: int) -> Iterator[Row]:
    """Run the fuzzers of the test suite: own requests, and those that schemathesis makes of the OpenAPI document."""
    commands = {
        "own": ["tests/fuzz/fuzz_requests.py", "--requests", str(requests)],
        "of the OpenAPI document": ["tests/fuzz/fuzz_document.py", "--examples", str(examples)],
    }
    for setting, command in commands.items():
        begun = time.perf_counter()
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        printed = (done.stdout.strip() or done.stderr.strip()).splitlines()
        yield {
            "measure": "malformed",
            "contender": "served",
            "setting": setting,
            "value": done.returncode,
            "unit": "exit code",
            "requests": requests if setting == "own" else None,
            "seconds": time.perf_counter() - begun,
            "note": printed[-1] if printed else "",
        }
