"""Benchmarks: contenders take turns in the same rounds, after their picks were checked, and go into the ledger."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
if any(os.environ.get(name) != "1" for name in THREAD_VARIABLES):
    raise pytest.UsageError(
        f"benchmarks compare single threads: run `ragsys-kernels bench`, or set {', '.join(THREAD_VARIABLES)} to 1"
    )

import numpy as np  # noqa: E402

from benchmarks.harness import gate, ledger  # noqa: E402
from benchmarks.suites import shapes  # noqa: E402
from benchmarks.suites.selection import DENSE, FLOOR, LEDGER, OURS, Contender, missing  # noqa: E402
from ragsys_kernels import testing  # noqa: E402

TURN_SECONDS = 0.03  # a contender's turn takes about so long
ROUNDS, LEAST_ROUNDS = 15, 5
RACE_SECONDS = 10.0  # fewer rounds than asked for where they would take longer
COUNTED = 64  # queries whose dot products are counted


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ragsys_kernels")
    group.addoption("--quick", action="store_true", help="few synthetic vectors; times are recorded only with --ledger")
    group.addoption("--ledger", type=Path, help="CSV that gets the times (default: that of results/, none if quick)")


def pytest_report_header(config: pytest.Config) -> list[str]:
    absent = missing()
    return [f"benchmarks: {ledger.hardware()}" + (f"; not installed: {', '.join(absent)}" if absent else "")]


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Many shapes have the same small one, which a quick run takes once."""
    if not config.getoption("--quick"):
        return
    once = {}
    for item in items:
        given = item.callspec.params
        once.setdefault((item.path, item.originalname, given["shape"].small(), given.get("lambda_d")), item)
    items[:] = once.values()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_lines] = []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """µs a query of every contender, and its time over ours."""
    for line in config.stash[_lines]:
        terminalreporter.write_line(line)


_lines = pytest.StashKey[list[str]]()
_problem = lru_cache(maxsize=2)(shapes.Problem)


@pytest.fixture
def problem(request: pytest.FixtureRequest) -> Any:
    """The arrays of a shape."""
    quick = request.config.getoption("--quick")
    return lambda shape: _problem(shape.small() if quick else shape)


@pytest.fixture
def race(request: pytest.FixtureRequest, benchmark: Any) -> Any:
    """Check the contenders, time them in turn and record them.

    The first contender is the one that pytest-benchmark times and the others are compared with; they run in the set-up
    of each of its rounds, so that all see the same machine at the same time.
    """
    config = request.config
    quick = config.getoption("--quick")
    given = config.getoption("--ledger")
    into = LEDGER.at(given) if given else None if quick else LEDGER

    def run(
        op: str,
        problem: shapes.Problem,
        contenders: list[Contender],
        *,
        lambda_d: float | None = None,
        queries: int | None = None,
        rounds: int = ROUNDS,
        recorded: str | None = None,
    ) -> None:
        shape = problem.shape
        shares = gate.check(op, problem, lambda_d, contenders)
        turns = [Turn(c, queries) if queries else _calibrate(c, 0.0 if quick else TURN_SECONDS) for c in contenders]
        if quick:
            rounds = 2
        elif queries is None:
            seconds = sum(turn.seconds() for turn in turns)
            rounds = max(min(rounds, int(RACE_SECONDS / seconds)), LEAST_ROUNDS)
        times: list[list[float]] = [[] for _ in contenders]

        def others() -> None:
            for turn, taken in list(zip(turns, times, strict=True))[1:]:
                taken.append(turn.seconds() / turn.all_queries)

        name = recorded or op  # in the ledger
        benchmark.group = f"{name} {shape}"
        benchmark.pedantic(turns[0].run, setup=others, rounds=rounds)
        if benchmark.stats is None:  # --benchmark-disable
            return
        times[0] = [seconds / turns[0].all_queries for seconds in benchmark.stats.stats.data]

        micro = {(c.name, c.dtype): 1e6 * np.array(taken) for c, taken in zip(contenders, times, strict=True)}
        main = next(iter(micro.values()))
        rows = []
        for contender, turn in zip(contenders, turns, strict=True):
            key = contender.name, contender.dtype
            low, median, high = np.percentile(micro[key], [25, 50, 75])
            floor = micro.get((FLOOR, contender.dtype))
            rows.append(
                {
                    **ledger.environment(),
                    "op": name,
                    "shape": str(shape),
                    "dtype": contender.dtype,
                    "lambda_d": lambda_d,
                    "contender": contender.name,
                    **{name: getattr(shape, name) for name in ("N", "D", "P", "K", "Q")},
                    "duplicates": int(shape.duplicates),
                    "threads": contender.threads,
                    "rounds": rounds,
                    "queries": turn.all_queries,
                    "us_per_query": float(median),
                    "iqr_us": float(high - low),
                    "ratio": float(np.median(micro[key] / main)),
                    "floor_us": None if floor is None else float(np.median(floor)),
                    "same_picks": shares.get(key),
                    "note": contender.note,
                    **_work(op, contender, shape),
                }
            )
        if into is not None:
            into.update(rows)
        benchmark.extra_info.update(
            queries=turns[0].all_queries, contenders=[{name: row[name] for name in _SHOWN} for row in rows]
        )
        config.stash[_lines].append(f"{name} {shape}" + ("" if lambda_d is None else f", lambda {lambda_d}"))
        config.stash[_lines] += [
            f"  {row['us_per_query']:12.1f} µs  {row['ratio']:8.2f}x  {row['contender']}, {row['dtype']}"
            for row in rows
        ]

    return run


_SHOWN = ("contender", "dtype", "us_per_query", "iqr_us", "ratio", "same_picks")


@dataclass(frozen=True)
class Turn:
    """What a contender does until the next one's turn: the same queries, several times where it is soon done."""

    contender: Contender
    queries: int
    passes: int = 1

    @property
    def all_queries(self) -> int:
        return self.queries * self.passes

    def run(self) -> None:
        for _ in range(self.passes):
            self.contender.run(self.queries)

    def seconds(self) -> float:
        start = perf_counter()
        self.run()
        return perf_counter() - start


def _calibrate(contender: Contender, seconds: float) -> Turn:
    """The turn that takes about so long, in whole units, out of the queries at hand."""
    most = max(shapes.HELD_OUT // contender.unit, 1) * contender.unit
    count = contender.unit
    while (taken := Turn(contender, count).seconds()) < seconds / 4 and count < most:
        count = min(4 * count, most)
    wanted = int(count * seconds / taken) // contender.unit * contender.unit
    return Turn(contender, min(max(wanted, contender.unit), most), max(wanted // most, 1))


def _work(op: str, contender: Contender, shape: shapes.Shape) -> dict[str, float]:
    """Dot products and bytes a query: counted for the library, by definition for its dense rule."""
    if contender.arguments is None or not contender.name.startswith(OURS) or contender.name == DENSE:
        return {}
    count = min(COUNTED, shape.Q) if shape.P else 8
    work = testing.selection_work(op, contender.arguments(count))[1]
    return {
        "products": work.products / count,
        "dense_products": work.dense_products / count,
        "bytes": work.bytes_read / count,
    }
