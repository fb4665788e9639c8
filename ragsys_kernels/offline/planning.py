"""What a corpus spread over a cluster takes: a model of the time of a query, its constants, and how to measure them.

The model is linear (docs/planning.md). Its constants are of a processor: those of the table, or what a few small jobs
take here. A trial is a job over holders of segments (`spread`) in one process, on one thread; what goes to a holder and
what comes back is pickled and counted, as between nodes.
"""

from __future__ import annotations

import itertools
import math
import pickle
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import ragsys_kernels as rk

from .. import _info
from .._base import checks
from .._base.types import Storage
from ..corpus import segments, versions
from ..selection import codes
from ..selection.request import Request
from . import spread
from ._held import Held
from ._options import JobSpec
from ._spec import Inputs
from ._worker import Worker

_OP = "plan"
QUERIES, POOL, K = 256, 100, 6  # of a trial; it is one chunk
_ELEMENTS = 1 << 25  # of the largest trial of `measured`: more than caches hold
_TURNS = 5
# What the constants belong to.
TERMS = ("a query", "a row", "an element of a row", "a row that a holder's pool takes in", "an element of a pool")
BYTES: dict[Storage, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}  # of an element


@dataclass(frozen=True)
class Size:
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


@dataclass(frozen=True)
class Constants:
    """Seconds of a thread for each of `TERMS`, bytes of float32 rows that it builds a second, and of what they are."""

    seconds: tuple[float, ...]
    build: float
    where: str

    def of(self, size: Size) -> float:
        """Return the seconds of a query."""
        return math.fsum(a * b for a, b in zip(size.terms, self.seconds, strict=True))


# By `python -m benchmarks.reports.planning`, of int8 rows; None: nothing has been measured.
TABLE: dict[str, Constants | None] = {
    "avx2": Constants(
        (1.522e-5, 1.343e-9, 3.469e-11, 7.612e-8, 0.0),
        0.54e9,
        "AMD EPYC, 2 cores, avx2, int8 rows, commit ae4908e5",
    ),
    "avx512": Constants(
        (4.539e-5, 3.476e-9, 3.111e-11, 1.124e-7, 0.0),
        0.40e9,
        "Intel(R) Xeon(R) Processor @ 2.50GHz, 2 cores, avx512, int8 rows that were multiplied as floats, commit "
        "fef56ce",
    ),
    "arm": None,
}


class Trial:
    """A job of this size over a folder that is built for it, in an empty folder."""

    def __init__(self, folder: Path, size: Size, dtype: Storage) -> None:
        self.size, self.bytes, self.least = size, 0, math.inf
        self.built = -time.process_time()
        made = ((part, part.ids) for part in self._parts(dtype))
        versions.build(_OP, folder / "corpus", lambda _: made, -(-size.rows // size.holders), False)
        self.built += time.process_time()
        rng = np.random.default_rng(1)
        np.save(folder / "queries.npy", rng.standard_normal((QUERIES, size.dims), np.float32))
        spec = JobSpec(
            corpus=folder / "corpus", queries=folder / "queries.npy", pool=size.pool, chunk_size=QUERIES,
            request=Request("mmr", None, None, K, lambda_d=None, lambda_b=None, num_threads=1),
        )  # fmt: skip
        inputs = Inputs.open(spec)
        assert inputs.saved is not None
        described = segments.described(folder / "corpus")
        self.row_bytes = described["bytes"] / size.rows
        shares = spread.shares(_OP, folder / "corpus", inputs.saved, max(x["bytes"] for x in described["segments"]))
        assert len(shares) == size.holders
        holders = [spread.Holder(share, 1, None) for share in shares]
        self._worker = Worker(
            spec, Held.spread(spec, inputs, spread.held_by(holders, shares, inputs.saved, self._asked))
        )

    def _parts(self, dtype: Storage) -> Iterator[rk.Corpus]:
        rng = np.random.default_rng(0)
        ends = np.linspace(0, self.size.rows, self.size.holders + 1).astype(int)
        for begin, end in itertools.pairwise(ends):
            start = time.process_time()
            rows = rng.standard_normal((end - begin, self.size.dims), np.float32)
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
        """Run the job; `least` is the least processor time of a query so far, `bytes` what travelled."""
        self.bytes = 0
        start = time.process_time()
        for _ in self._worker.tables(0, QUERIES):
            pass
        self.least = min(self.least, (time.process_time() - start) / QUERIES)


def trials(folder: Path, sizes: Sequence[Size], dtype: Storage, turns: int) -> list[Trial]:
    """Return trials of these sizes, which took turns."""
    made = []
    for number, size in enumerate(sizes):
        (folder / str(number)).mkdir()
        made.append(Trial(folder / str(number), size, dtype))
    for _ in range(turns):
        for trial in made:
            trial.once()
    return made


def fitted(of: Sequence[Trial], terms: Sequence[int] = range(len(TERMS))) -> Constants:
    """Return the constants, none below 0, by least squares of the relative errors; 0 for all but some of the terms."""
    a = np.array([trial.size.terms for trial in of]) / np.array([[trial.least] for trial in of])
    seconds, some = np.zeros(len(TERMS)), np.asarray(terms)
    while True:
        seconds[some] = np.linalg.lstsq(a[:, some], np.ones(len(of)), rcond=None)[0]
        if (seconds >= 0).all():
            break
        some = some[seconds[some] > seconds.min()]
        seconds[:] = 0
    built = sum(4 * trial.size.rows * trial.size.dims for trial in of) / sum(trial.built for trial in of)
    return Constants(tuple(seconds.tolist()), built, "")


def measured(dims: int, dtype: Storage, pool: int = POOL) -> Constants:
    """Return the constants of this machine for rows of D dimensions, from three small jobs.

    At one D an element of a row stands for a row too, and a query for the elements of its pool.
    """
    rows = max(_ELEMENTS // dims, 32 * pool)
    sizes = Size(rows, dims, 1, pool), Size(rows // 4, dims, 1, pool), Size(rows // 4, dims, 8, pool)
    with tempfile.TemporaryDirectory() as folder:
        found = fitted(trials(Path(folder), sizes, dtype, _TURNS), (0, 2, 3))
    return Constants(found.seconds, found.build, f"measured here, {' '.join(_info.active())}")


def row_bytes(dtype: Storage, dims: int) -> int:
    """Return the bytes of a row with cosines: its elements, its scale, its codes, and its id, an integer."""
    scale = 0 if dtype == "float32" else 4
    return dims * BYTES[dtype] + scale + (codes.row_bytes(dims) if codes.useful(dtype, "cosine", dims) else 0) + 8


@dataclass(frozen=True)
class Plan:
    """What a corpus spread over nodes takes; as text, a few lines.

    ``memory`` is of a node, in bytes, and ``memory_given`` as it was given; ``row_bytes`` and ``corpus_bytes`` are of
    the rows with their ids, ``query_bytes`` what travels between nodes for a query, ``query_seconds`` the processor
    time of a query over all nodes, and ``hours`` and ``build_hours`` the time of all queries on all cores, and of the
    build on one core of each node.
    """

    rows: int
    queries: int
    dims: int
    dtype: Storage
    pool: int
    nodes: int
    cores: int
    memory: int
    memory_given: int | str
    row_bytes: int
    query_bytes: int
    query_seconds: float
    build_hours: float
    constants: Constants

    @property
    def node(self) -> str:
        """What a node has."""
        size = f"{self.memory:,} bytes"
        given = f"{self.memory_given} ({size})" if isinstance(self.memory_given, str) else size
        return f"{self.cores:,} cores and {given} for the corpus"

    @property
    def corpus_bytes(self) -> int:
        """The bytes of all rows."""
        return self.rows * self.row_bytes

    @property
    def hours(self) -> float:
        """The hours of all queries."""
        return self.queries * self.query_seconds / (self.nodes * self.cores) / 3600

    def __str__(self) -> str:
        return "\n".join((
            f"{self.rows:,} rows of {self.dims} x {self.dtype}: {self.row_bytes:,} bytes a row, "
            f"{_shown(self.corpus_bytes / 1e9)} GB",
            f"nodes: {self.nodes:,}, of {self.node}",
            f"hours: {_shown(self.hours)} for {self.queries:,} queries with pools of {self.pool:,}, "
            f"{_shown(1e3 * self.query_seconds)} ms of a core each",
            f"hours to build: {_shown(self.build_hours)}, on one core of each node",
            f"network: {self.query_bytes:,} bytes a query, {_shown(self.queries * self.query_bytes / 1e9)} GB in all",
            f"constants: {self.constants.where}",
        ))  # fmt: skip


def _shown(value: float) -> str:
    """Return three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plan(
    rows: float,
    queries: float,
    *,
    dims: int = 384,
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "int8",
    pool: int = POOL,
    cores: int = 64,
    memory: int | str = "256G",
    measure: bool = True,
    processor: Literal["avx2", "avx512", "arm"] | None = None,
) -> Plan:
    """Return what a job of `select` over a corpus spread over nodes takes: nodes, hours, bytes.

    Parameters
    ----------
    rows, queries : int
        Sizes of the corpus and of the job; floats that are integers, as 1e9, too.
    dims, dtype, pool
        Dimensions of a row, how it is stored ("float32", "float16", "bfloat16" or "int8"), rows of a pool.
    cores, memory
        Cores of a node, and its bytes for the corpus, a number or text such as "256G", of powers of 1,024.
    measure : bool
        Measure what a query takes on this machine, in seconds, on one thread; nothing else should run here. False: by
        the constants of `processor`, which are of int8 rows (docs/planning.md).
    processor : str, optional
        "avx2", "avx512" or "arm", with ``measure=False``. Default: as this machine's.

    Returns
    -------
    Plan
        As text, a few lines. Times are of processors that do nothing else, and whose cores are as fast together as one
        alone.

    Raises
    ------
    ValueError
        For sizes below 1, another type, and a processor that is not in the table or has not been measured.
    """
    rows, queries = (_whole(name, value) for name, value in (("rows", rows), ("queries", queries)))
    dims, pool, cores = (checks.count(_OP, *each) for each in (("dims", dims), ("pool", pool), ("cores", cores)))
    checks.choice(_OP, "dtype", dtype, BYTES)
    each = row_bytes(dtype, dims)
    if checks.size(_OP, "memory", memory) < each:
        raise ValueError(f"{_OP}: memory must be at least {each}, the bytes of a row, got {memory}")
    if pool > rows:
        raise ValueError(f"{_OP}: pool must be at most rows, {rows}, got {pool}")
    if checks.flag(_OP, "measure", measure):
        if processor is not None:
            raise ValueError(f"{_OP}: processor must come with measure=False, got {processor!r}")
        constants = measured(dims, dtype, pool)
    else:
        constants = _of_table(processor, dtype)
    return planned(rows, queries, dims, dtype, pool, cores, memory, constants)


def planned(
    rows: int,
    queries: int,
    dims: int,
    dtype: Storage,
    pool: int,
    cores: int,
    memory: int | str,
    constants: Constants,
) -> Plan:
    """Return a plan by these constants."""
    each, room = row_bytes(dtype, dims), checks.size(_OP, "memory", memory)
    nodes = -(-rows * each // room)
    size = Size(rows, dims, nodes, pool)
    return Plan(
        rows, queries, dims, dtype, pool, nodes, cores, room, memory, each,
        query_bytes=round(size.network(each, shared=False)),
        query_seconds=constants.of(size),
        build_hours=4 * rows * dims / constants.build / nodes / 3600,
        constants=constants,
    )  # fmt: skip


def _whole(name: str, value: Any) -> int:
    """Return a number that is an integer, at least 1; 1e9 too."""
    number = checks.number(_OP, name, value)
    if not (number >= 1 and number.is_integer()):
        raise ValueError(f"{_OP}: {name} must be an integer, at least 1, got {checks.shown(value)}")
    return int(number)


def _of_table(processor: str | None, dtype: str) -> Constants:
    if processor is None:
        here = _info.active()[1]
        processor = "arm" if platform.machine() in ("aarch64", "arm64") else here
    checks.choice(_OP, "processor", processor, TABLE)
    if dtype != "int8":
        raise ValueError(f"{_OP}: dtype must be 'int8' with measure=False, whose table has no other, got {dtype!r}")
    found = TABLE[processor]
    if found is None:
        raise ValueError(
            f"{_OP}: processor must be one that was measured, got {processor!r}: measure on such a machine"
        )
    return found
