"""What a corpus spread over a cluster takes: constants measured here, a model made of them, and runs that it predicts.

A job over holders of segments (`ragsys_kernels/offline/spread.py`) is run in one process, on one thread, for several
numbers of rows, dimensions and holders. What goes to a holder and what comes back is pickled, as between nodes, and
counted. The constants are fitted to the processor time of the first runs; the model then predicts that of three others,
which are larger, as some of the first are than the caches. Runs take turns, and the least time of each counts. With
``--write`` the result goes to docs/planning.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import pickle
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import ledger
from benchmarks.reports.places import fill
from ragsys_kernels import _info
from ragsys_kernels.corpus import segments, versions
from ragsys_kernels.offline import spread
from ragsys_kernels.offline._spec import Inputs, JobSpec
from ragsys_kernels.offline._worker import Held, Worker
from ragsys_kernels.selection.request import Request

QUERIES, POOL, K = 256, 100, 6  # of a run; it is one chunk


@dataclass(frozen=True)
class Run:
    """So many rows of D dimensions in so many holders, and pools of so many rows."""

    rows: int
    dims: int
    holders: int
    pool: int = POOL

    @property
    def terms(self) -> list[float]:
        """What the processor time of a query is linear in."""
        own = self.rows / self.holders
        kept = self.holders * self.pool * (1 + math.log(max(1.0, own / self.pool)))  # rows that a heap takes in
        return [1.0, self.rows, self.rows * self.dims, kept, self.pool * self.dims]

    def network(self, row_bytes: float, shared: bool = True) -> float:
        """Return the bytes that travel for a query; ``shared``: rows of several pools of a chunk travel once."""
        asked = QUERIES * self.pool
        different = self.rows * -math.expm1(-asked / self.rows) / asked if shared else 1.0
        there = 4 * self.dims + 12 * self.pool  # the query; rows and scores of the best
        return self.holders * there + self.pool * different * (row_bytes + 9) + 16 * K  # numbers, rows; ids


TERMS = ("a query", "a row", "an element of a row", "a row that a holder's pool takes in", "an element of a pool")
FITTED = (
    Run(20_000, 96, 2), Run(120_000, 96, 2), Run(20_000, 768, 2), Run(60_000, 384, 3), Run(20_000, 96, 24),
    Run(40_000, 96, 8, 30), Run(20_000, 384, 2, 300), Run(60_000, 64, 1), Run(90_000, 768, 4), Run(250_000, 96, 6),
)  # fmt: skip
PREDICTED = (Run(300_000, 128, 5), Run(150_000, 768, 12), Run(600_000, 48, 30))


class Job:
    """The job of a run, over a folder that is built for it."""

    def __init__(self, folder: Path, run: Run, dtype: str) -> None:
        self.run, self.bytes, self.least = run, 0, math.inf
        self.built = -time.process_time()
        made = ((part, part.ids) for part in self._parts(dtype))
        versions.build("build", folder / "corpus", lambda _: made, -(-run.rows // run.holders), False)
        self.built += time.process_time()
        rng = np.random.default_rng(1)
        np.save(folder / "queries.npy", rng.standard_normal((QUERIES, run.dims), np.float32))
        spec = JobSpec(
            corpus=folder / "corpus", queries=folder / "queries.npy", pool=run.pool, chunk_size=QUERIES,
            request=Request("mmr", None, None, K, lambda_d=None, lambda_b=None, num_threads=1),
        )  # fmt: skip
        inputs = Inputs.open(spec)
        assert inputs.saved is not None
        described = segments.described(folder / "corpus")
        self.row_bytes = described["bytes"] / run.rows
        shares = spread.shares("plan", folder / "corpus", inputs.saved, max(x["bytes"] for x in described["segments"]))
        assert len(shares) == run.holders
        holders = [spread.Holder(share, 1, None) for share in shares]
        self.worker = Worker(
            spec, Held.spread(spec, inputs, spread.held_by(holders, shares, inputs.saved, self._asked))
        )

    def _parts(self, dtype: Any) -> Iterator[rk.Corpus]:
        rng = np.random.default_rng(0)
        ends = np.linspace(0, self.run.rows, self.run.holders + 1).astype(int)
        for begin, end in itertools.pairwise(ends):
            start = time.process_time()
            rows = rng.standard_normal((end - begin, self.run.dims), np.float32)
            self.built -= time.process_time() - start
            yield rk.Corpus(rows, dtype=dtype, ids=np.arange(begin, end))

    def _asked(self, calls: Sequence[tuple[Any, str, tuple[Any, ...]]]) -> list[Any]:
        found = []
        for holder, method, arguments in calls:
            sent = pickle.dumps(arguments, 5)
            back = pickle.dumps(getattr(holder, method)(*pickle.loads(sent)), 5)
            self.bytes += len(sent) + len(back)
            found.append(pickle.loads(back))
        return found

    def once(self) -> None:
        self.bytes = 0
        start = time.process_time()
        for _ in self.worker.tables(0, QUERIES):
            pass
        self.least = min(self.least, (time.process_time() - start) / QUERIES)


def fitted(jobs: Sequence[Job]) -> np.ndarray:
    """Return the seconds of each term, none below 0, by least squares of the relative errors."""
    terms = np.array([job.run.terms for job in jobs]) / np.array([[job.least] for job in jobs])
    found, some = np.zeros(len(TERMS)), np.arange(len(TERMS))
    while True:
        found[some] = np.linalg.lstsq(terms[:, some], np.ones(len(jobs)), rcond=None)[0]
        if (found >= 0).all():
            return found
        some = some[found[some] > found.min()]
        found[:] = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="int8", help="how rows are stored (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--rows", type=float, default=1e9, help="of the corpus to plan for (%(default)g)")
    parser.add_argument("--queries", type=float, default=1e7, help="(%(default)g)")
    parser.add_argument("--cores", type=int, default=64, help="of a node (%(default)s)")
    parser.add_argument("--memory", type=float, default=256, help="GB of a node for the corpus (%(default)g)")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/planning.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for number, run in enumerate((*FITTED, *PREDICTED)):
            (Path(folder) / str(number)).mkdir()
            jobs.append(Job(Path(folder) / str(number), run, options.dtype))
        for _ in range(options.rounds):
            for job in jobs:
                job.once()
        seconds = fitted(jobs[: len(FITTED)])
        text = "\n".join(lines(options, jobs, seconds)) + "\n"
    print(text)
    if options.write:
        fill(Path(__file__).parents[2], "planning", text)


def lines(options: argparse.Namespace, jobs: Sequence[Job], seconds: np.ndarray) -> Iterator[str]:
    rate = 1e-9 / seconds[2]
    built = sum(4 * job.run.rows * job.run.dims for job in jobs) / sum(job.built for job in jobs)
    yield "| of | processor time |"
    yield "| --- | ---: |"
    for name, each in zip(TERMS, seconds, strict=True):
        yield f"| {name} | {1e9 * each:,.4g} ns |"
    yield ""
    yield (
        f"A thread multiplies {rate:.1f} G elements a second, and builds segments from {built / 1e9:.2f} GB of float32 "
        f"rows a second. {options.dtype} rows, chunks of {QUERIES} queries, {ledger.hardware()}, "
        f"{' '.join(_info.active())}; the least of {options.rounds} turns; load {os.getloadavg()[0]:.1f}; "
        f"commit {ledger.environment()['commit']}."
    )
    yield ""
    compared = ("µs a query, predicted | measured | error", "bytes a query, predicted | measured | error")
    yield f"| rows | D | holders | {' | '.join(compared)} |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for job in jobs[len(FITTED) :]:
        run = job.run
        time_, bytes_ = float(np.dot(run.terms, seconds)), run.network(job.row_bytes)
        yield (
            f"| {run.rows:,} | {run.dims} | {run.holders} | {1e6 * time_:,.0f} | {1e6 * job.least:,.0f} | "
            f"{time_ / job.least - 1:+.1%} | {bytes_:,.0f} | {job.bytes / QUERIES:,.0f} | "
            f"{bytes_ / (job.bytes / QUERIES) - 1:+.1%} |"
        )
    yield ""
    yield (
        f"{options.queries:,.0f} queries over {options.rows:,.0f} rows, on nodes with {options.cores} cores and "
        f"{options.memory:g} GB for the corpus:"
    )
    yield ""
    yield "| D | bytes a row | all rows | nodes | bytes a query | hours | hours to build, on one core of each node |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    over = min(job.row_bytes - row_bytes(options.dtype, job.run.dims) for job in jobs)
    for dims in (96, 384, 768):
        each = row_bytes(options.dtype, dims) + over
        nodes = math.ceil(options.rows * each / (1e9 * options.memory))
        run = Run(int(options.rows), dims, nodes)
        build = 4 * options.rows * dims / built / nodes / 3600
        hours = options.queries * float(np.dot(run.terms, seconds)) / (nodes * options.cores) / 3600
        yield (
            f"| {dims} | {each:,.0f} | {options.rows * each / 1e9:,.0f} GB | {nodes} | "
            f"{run.network(each, shared=False):,.0f} | {hours:,.1f} | {build:,.1f} |"
        )


def row_bytes(dtype: str, dims: int) -> int:
    """Return the bytes of a row with cosines: its elements, its scale, and its codes."""
    from ragsys_kernels.selection.codes import row_bytes as of_codes

    size = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}[dtype]
    return size * dims + (4 if dtype != "float32" else 0) + (0 if dtype == "int8" else of_codes(dims))


if __name__ == "__main__":
    main()
