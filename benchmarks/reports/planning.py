"""What a corpus spread over a cluster takes: constants measured here, a model made of them, and runs that it predicts.

A job over holders of segments (`ragsys_kernels/offline/spread.py`) is run in one process, on one thread, for several
numbers of rows, dimensions and holders. What goes to a holder and what comes back is pickled, as between nodes, and
counted. The constants are fitted to the processor time of the first runs; the model then predicts that of three others,
which are larger, as some of the first are than the caches. Runs take turns, and the least time of each counts. With
``--write`` the result goes to docs/planning.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import ledger
from benchmarks.reports.places import fill
from ragsys_kernels import _info
from ragsys_kernels.offline import planning
from ragsys_kernels.offline.planning import Constants, Size, Trial

ROOT = Path(__file__).parents[2]

FITTED = (
    Size(20_000, 96, 2), Size(120_000, 96, 2), Size(20_000, 768, 2), Size(60_000, 384, 3), Size(20_000, 96, 24),
    Size(40_000, 96, 8, 30), Size(20_000, 384, 2, 300), Size(60_000, 64, 1), Size(90_000, 768, 4), Size(250_000, 96, 6),
)  # fmt: skip
PREDICTED = (Size(300_000, 128, 5), Size(150_000, 768, 12), Size(600_000, 48, 30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="int8", help="how rows are stored (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="(%(default)s)")
    parser.add_argument("--rows", type=float, default=1e9, help="of the corpus to plan for (%(default)g)")
    parser.add_argument("--queries", type=float, default=1e7, help="(%(default)g)")
    parser.add_argument("--cores", type=int, default=64, help="of a node (%(default)s)")
    parser.add_argument("--memory", default="256G", help="of a node for the corpus, as of plan (%(default)s)")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/planning.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jobs = planning.trials(Path(folder), (*FITTED, *PREDICTED), options.dtype, options.rounds)
    isa = _info.active()[1]
    where = (
        f"{ledger.hardware()}, {isa}, {options.dtype} rows, commit {ledger.environment()['commit']}, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    found = planning.fitted(jobs[: len(FITTED)])
    found = Constants(tuple(float(f"{x:.4g}") for x in found.seconds), float(f"{found.build:.2g}"), where)
    print(f"{isa}: {found!r}\n")  # for planning.TABLE
    compared = predictions(options.rounds, jobs[len(FITTED) :], found)
    large = planned(found, options.rows, options.queries, options.dtype, options.cores, options.memory)
    text = "\n".join([*compared, "", *large]) + "\n"
    print(text)
    if options.write:
        fill(ROOT, f"planning-{isa}", text)
        fill(ROOT, "planning", "\n".join(constants()) + "\n")


def constants() -> Iterator[str]:
    """The table of constants of the page."""
    kinds = [(kind, found) for kind, found in planning.TABLE.items() if found is not None]
    yield f"| processor time of | {' | '.join(kind for kind, _ in kinds)} |"
    yield f"| --- |{' ---: |' * len(kinds)}"
    for number, name in enumerate(planning.TERMS):
        yield f"| {name} | {' | '.join(f'{1e9 * found.seconds[number]:,.4g} ns' for _, found in kinds)} |"
    yield f"| GB of float32 rows built a second | {' | '.join(f'{found.build / 1e9:.2f}' for _, found in kinds)} |"
    yield ""
    for kind, found in kinds:
        yield f"- {kind}: {found.where}."
    for kind in (kind for kind, found in planning.TABLE.items() if found is None):
        yield f"- {kind}: not measured."


def predictions(rounds: int, jobs: Sequence[Trial], found: Constants) -> Iterator[str]:
    """What the model says of jobs that it has not seen."""
    yield f"{found.where}; chunks of {planning.QUERIES} queries, the least of {rounds} turns:"
    yield ""
    compared = ("µs a query, predicted | measured | error", "bytes a query, predicted | measured | error")
    yield f"| rows | D | holders | {' | '.join(compared)} |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for job in jobs:
        size, asked = job.size, job.bytes / planning.QUERIES
        time_, bytes_ = found.of(size), size.network(job.row_bytes)
        yield (
            f"| {size.rows:,} | {size.dims} | {size.holders} | {1e6 * time_:,.0f} | {1e6 * job.least:,.0f} | "
            f"{time_ / job.least - 1:+.1%} | {bytes_:,.0f} | {asked:,.0f} | {bytes_ / asked - 1:+.1%} |"
        )


def planned(
    found: Constants, rows: float = 1e9, queries: float = 1e7, dtype: str = "int8", cores: int = 64,
    memory: str = "256G",
) -> Iterator[str]:  # fmt: skip
    """What the model says of a large job."""
    plans = [
        planning.planned(int(rows), int(queries), dims, dtype, planning.POOL, cores, memory, found)
        for dims in (96, 384, 768)
    ]
    yield f"{queries:,.0f} queries over {rows:,.0f} rows, on nodes with {plans[0].node}:"
    yield ""
    yield "| D | bytes a row | all rows | nodes | bytes a query | hours | hours to build, on one core of each node |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for plan in plans:
        yield (
            f"| {plan.dims} | {plan.row_bytes:,} | {plan.corpus_bytes / 1e9:,.0f} GB | {plan.nodes} | "
            f"{plan.query_bytes:,} | {plan.hours:,.1f} | {plan.build_hours:,.1f} |"
        )


if __name__ == "__main__":
    main()
