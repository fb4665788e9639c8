"""The measurements, each a function that returns rows for the ledger."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ledger
from benchmarks.serve import load, servers, streams
from benchmarks.serve.load import Loaded
from benchmarks.serve.problem import ARROW, JSON, MANY, Problem
from benchmarks.serve.servers import Cores, Server

KEY = ("measure", "contender", "setting", "shape", "hardware", "backend", "isa")
LEDGER = ledger.Ledger(
    ledger.RESULTS / "serve.csv",
    KEY,
    (
        *KEY,
        "value",
        "unit",
        "ratio",  # the value over that of the contender beside it, median over the rounds
        "p50_us",
        "p99_us",
        "cpu_us",  # the server's processor time, a query
        "requests",
        "seconds",
        "note",
        "commit",
        "versions",
        "date",
    ),
)
EMPTY, IDS, BYTES, ALONE = "empty handler", "query by id", "query in bytes", "in process, one thread"
BATCHED, FLIGHT = "64 queries a request, Arrow", "Flight, batches of 1,000"
IN_JSON = "64 queries a request, JSON"
ONE, SIXTEEN = "1 connection", "16 connections"
LOADS = (0.1, 0.25, 0.5, 0.75, 0.9)  # of the saturated rate
FLIGHT_BATCH = 1_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What all measurements of a run share."""

    problem: Problem
    cores: Cores
    seconds: float  # of one turn
    rounds: int

    def alone(self, count: int) -> tuple[float, float]:
        """Return the queries a second of the library itself, on the server's core, and its processor time of one."""
        os.sched_setaffinity(0, {self.cores.server})
        try:
            self.problem.select(count)
            calls, begun, before = 0, time.perf_counter(), time.process_time()
            while (taken := time.perf_counter() - begun) < self.seconds:
                self.problem.select(count, calls * count)
                calls += 1
            cpu = time.process_time() - before
        finally:
            os.sched_setaffinity(0, {self.cores.load})
        return calls * count / taken, cpu / (calls * count) * 1e6


def one_query(run: Run) -> Iterator[Row]:
    """One query a request, with 1 and with 16 connections, beside the empty handler; who answers takes turns."""
    with servers.empty([run.cores.server]) as empty, servers.serving(run.problem.folder, [run.cores.server]) as served:
        select = f"{served.url}/v1/select"
        turns = {
            EMPTY: (empty, f"{empty.url}/", run.problem.by_bytes),
            IDS: (served, select, run.problem.by_id),
            BYTES: (served, select, run.problem.by_bytes),
        }
        for setting, connections in ((ONE, 1), (SIXTEEN, 16)):
            found: dict[str, list[tuple[Loaded, float]]] = {name: [] for name in turns}
            for _ in range(run.rounds):
                for name, (server, url, bodies) in turns.items():
                    found[name].append(_loaded(run, server, url, bodies, connections))
            yield from _compared(setting, found)


def _loaded(
    run: Run, server: Server, url: str, bodies: Path, connections: int, kind: str = JSON
) -> tuple[Loaded, float]:
    """Return what a server did, and its processor time of a request in microseconds."""
    before = server.processor()
    loaded = load.saturate(url, bodies, kind, connections, run.seconds, run.cores.load)
    return loaded, (server.processor() - before) / loaded.requests * 1e6


def _compared(setting: str, found: dict[str, list[tuple[Loaded, float]]]) -> Iterator[Row]:
    """Rows of latency and of rate, each over those of the empty handler in the same round."""
    for name, turns in found.items():
        loads = [loaded for loaded, _ in turns]
        pairs = [(loaded, beside) for loaded, (beside, _) in zip(loads, found[EMPTY], strict=True)]
        shared = {
            "contender": name,
            "setting": setting,
            "p50_us": statistics.median(loaded.p50 for loaded in loads),
            "p99_us": statistics.median(loaded.p99 for loaded in loads),
            "cpu_us": statistics.median(cpu for _, cpu in turns),
            "requests": sum(loaded.requests for loaded in loads),
            "seconds": sum(loaded.seconds for loaded in loads),
        }
        slower = statistics.median(loaded.p50 / beside.p50 for loaded, beside in pairs)
        yield {**shared, "measure": "latency", "value": shared["p50_us"], "unit": "µs", "ratio": slower}
        rate = statistics.median(loaded.rate for loaded in loads)
        share = statistics.median(loaded.rate / beside.rate for loaded, beside in pairs)
        yield {**shared, "measure": "rate", "value": rate, "unit": "requests/s", "ratio": share}


def many_queries(run: Run) -> Iterator[Row]:
    """64 queries a request, beside the library itself in calls of as many: as Arrow streams, and as JSON."""
    problem = run.problem
    with servers.serving(problem.folder, [run.cores.server]) as served:
        url = f"{served.url}/v1/select"
        for measure, address, bodies, kind, note in (
            (BATCHED, f"{url}?{problem.rules}", problem.many_in_arrow, ARROW, "vectors and pools of ids in columns"),
            (IN_JSON, url, problem.many, JSON, "vectors in base64, pools of ids"),
        ):

            def turn(address: str = address, bodies: Path = bodies, kind: str = kind) -> tuple[float, float]:
                loaded, cpu = _loaded(run, served, address, bodies, 16, kind)
                return loaded.rate * MANY, cpu / MANY

            yield from _beside_alone(run, measure, MANY, turn, f"{SIXTEEN}, {note}")


def flight(run: Run) -> Iterator[Row]:
    """Batches of 1,000 over Arrow Flight."""
    port = servers.free_port()
    with servers.serving(run.problem.folder, [run.cores.server], "--flight-port", str(port)) as served:

        def turn() -> tuple[float, float]:
            before = served.processor()
            count, seconds = streams.exchanged(run.problem, port, FLIGHT_BATCH, run.seconds)
            return count / seconds, (served.processor() - before) / count * 1e6

        yield from _beside_alone(run, FLIGHT, FLIGHT_BATCH, turn, "one stream")


def _beside_alone(
    run: Run, measure: str, count: int, turn: Callable[[], tuple[float, float]], note: str
) -> Iterator[Row]:
    rates = [(turn(), run.alone(count)) for _ in range(run.rounds)]
    shared = {"measure": measure, "setting": str(count), "unit": "queries/s"}
    yield {
        **shared,
        "contender": "served",
        "value": statistics.median(rate for (rate, _), _ in rates),
        "ratio": statistics.median(rate / beside for (rate, _), (beside, _) in rates),
        "cpu_us": statistics.median(cpu for (_, cpu), _ in rates),
        "note": note,
    }
    yield {
        **shared,
        "contender": ALONE,
        "value": statistics.median(rate for _, (rate, _) in rates),
        "cpu_us": statistics.median(cpu for _, (_, cpu) in rates),
    }


def latency_by_load(run: Run) -> Iterator[Row]:
    """Median and 99th percentile at constant rates, parts of the saturated one."""
    connections = 32
    with servers.serving(run.problem.folder, [run.cores.server]) as served:
        url = f"{served.url}/v1/select"
        most = load.saturate(url, run.problem.by_bytes, JSON, 16, run.seconds, run.cores.load).rate
        for part in LOADS:
            asked = part * most
            loaded = load.constant(url, run.problem.by_bytes, JSON, asked, connections, 2 * run.seconds, run.cores.load)
            yield {
                "measure": "load",
                "contender": BYTES,
                "setting": f"{part:g}",
                "value": loaded.rate,
                "unit": "requests/s",
                "ratio": loaded.rate / asked,
                "p50_us": loaded.p50,
                "p99_us": loaded.p99,
                "requests": loaded.requests,
                "seconds": loaded.seconds,
                "note": f"{connections} connections; saturated at {most:,.0f}; statuses {loaded.statuses}",
            }


def rows_of(run: Run, rows: Iterable[Row]) -> Iterator[Row]:
    """Complete rows with what is the same for all of a run."""
    shared = {**ledger.environment(), "shape": str(run.problem.shape), "versions": ledger.versions(_LIBRARIES)}
    for row in rows:
        yield {**shared, **row}


_LIBRARIES = ("numpy", "fastapi", "uvicorn", "uvloop", "httptools", "orjson", "pyarrow")
