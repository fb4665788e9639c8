"""The options of a benchmark run, and its fixtures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
if any(os.environ.get(name) != "1" for name in THREAD_VARIABLES):
    raise pytest.UsageError(
        f"benchmarks compare single threads: run `ragsys-kernels bench`, or set {', '.join(THREAD_VARIABLES)} to 1"
    )

from benchmarks.harness import ledger  # noqa: E402
from benchmarks.harness.race import Race  # noqa: E402
from benchmarks.suites import shapes  # noqa: E402
from benchmarks.suites.peers import missing  # noqa: E402

_SHOWN = ("contender", "dtype", "us", "iqr_us", "ratio", "same_picks", "max_error", "peak_mb")
_lines = pytest.StashKey[list[str]]()
_made: dict[Any, Any] = {}  # the problem that was made last


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ragsys_kernels")
    group.addoption("--quick", action="store_true", help="few synthetic vectors; times go only where --results says")
    group.addoption("--results", type=Path, help="folder whose ledgers get the times (default: results, none if quick)")


def pytest_report_header(config: pytest.Config) -> list[str]:
    absent = missing()
    return [f"benchmarks: {ledger.hardware()}" + (f"; not installed: {', '.join(absent)}" if absent else "")]


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Keep one of the shapes that are the same when small: a quick run takes it once."""
    if not config.getoption("--quick"):
        return
    once = {}
    for item in items:
        given = item.callspec.params
        what = given.get("lambda_d"), given.get("strategy")
        once.setdefault((item.path, item.originalname, given["shape"].small(), *what), item)
    items[:] = once.values()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_lines] = []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print µs a query, or a call, of every contender, and its time over ours."""
    for line in config.stash[_lines]:
        terminalreporter.write_line(line)


@pytest.fixture
def problem(request: pytest.FixtureRequest) -> Any:
    """Make the arrays of a shape, a small one where the run is quick."""
    quick = request.config.getoption("--quick")

    def made(shape: Any, kind: Any = shapes.Problem) -> Any:
        key = kind, shape.small() if quick else shape
        if key not in _made:
            _made.clear()
            _made[key] = kind(key[1])
        return _made[key]

    return made


@pytest.fixture
def race(request: pytest.FixtureRequest, benchmark: Any) -> Any:
    """Run a race, its first contender timed by pytest-benchmark, and record it."""
    config = request.config
    quick, folder = config.getoption("--quick"), config.getoption("--results")

    def run(contest: Race) -> None:
        benchmark.group = f"{contest.name} {contest.problem.shape}"
        rows = contest.run(benchmark, quick)
        if not rows:
            return
        if folder is not None or not quick:
            contest.ledger.within(folder or ledger.RESULTS).update(rows)
        shown = [{name: row[name] for name in _SHOWN if name in row} for row in rows]
        benchmark.extra_info.update(queries=rows[0]["queries"], contenders=shown)
        lambda_d = rows[0].get("lambda_d")
        config.stash[_lines].append(benchmark.group + ("" if lambda_d is None else f", lambda {lambda_d}"))
        config.stash[_lines] += [
            f"  {row['us']:12.1f} µs  {row['ratio']:8.2f}x  {row['contender']}, {row['dtype']}" for row in rows
        ]

    return run
