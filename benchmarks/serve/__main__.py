"""Measure the service against its bars; rows go to results/serve.csv, the page and its plot beside it.

python -m benchmarks.serve [--quick] [--only NAME ...] [--source SOURCE]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import ledger
from benchmarks.serve import bits, load, measures, problem, stress
from benchmarks.serve.servers import Cores
from benchmarks.suites.shapes import SOURCES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="show that everything works; record nothing")
    parser.add_argument("--only", nargs="+", choices=tuple(_measurements(False)), help="some measurements")
    parser.add_argument("--source", choices=tuple(SOURCES), default=problem.SHAPE.source, help="vectors (%(default)s)")
    parser.add_argument("--ledger", type=Path, default=measures.LEDGER.path, help="of the service (%(default)s)")
    given = parser.parse_args()
    load.need_tools()
    shape = problem.SHAPE.small() if given.quick else replace(problem.SHAPE, source=given.source)
    cores = Cores.of_this_machine()
    with tempfile.TemporaryDirectory() as folder:
        asked = problem.Problem(shape, Path(folder))
        os.sched_setaffinity(0, {cores.load})
        run = measures.Run(asked, cores, 0.5 if given.quick else 5.0, 1 if given.quick else 5)
        print(f"{shape}: the server on core {cores.server}, the load on core {cores.load}", flush=True)
        for name, measure in _measurements(given.quick).items():
            if given.only and name not in given.only:
                continue
            rows = list(measures.rows_of(run, measure(run)))
            for row in rows:
                print(_shown(row), flush=True)
            if not given.quick:
                measures.LEDGER.at(given.ledger).update(rows)
    if not given.quick and given.ledger == measures.LEDGER.path:
        subprocess.run([sys.executable, "-m", "benchmarks.reports.serve"], cwd=ledger.ROOT, check=True)


def _measurements(quick: bool) -> dict[str, Callable[[measures.Run], Iterable[measures.Row]]]:
    """Return the measurements by name, in the order in which they are made."""
    return {
        "one": measures.one_query,
        "many": measures.many_queries,
        "flight": measures.flight,
        "load": measures.latency_by_load,
        "bits": lambda run: bits.compared(run, 500 if quick else 100_000),
        "overload": lambda run: stress.overload(run, 1 if quick else 60),
        "kill": lambda run: stress.killed_worker(run, 3 if quick else 15),
        "malformed": lambda run: stress.malformed(*((200, 5) if quick else (20_000, 200))),
    }


def _shown(row: measures.Row) -> str:
    text = f"{row['measure']:22} {row['contender']:22} {row['setting']:16} {row['value']:12,.5g} {row['unit']}"
    text += "".join(f", {name} {row[name]:,.4g}" for name in ("ratio", "p50_us", "p99_us", "cpu_us") if row.get(name))
    return f"{text}; {row['note']}" if row.get("note") else text


if __name__ == "__main__":
    main()
