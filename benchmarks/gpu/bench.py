"""Every op on the device against its floor and its peers, timed by events; `gpu_check.py` runs it.

Before each turn the last-level cache is overwritten and the device is kept busy while the host enqueues the call, so
that a pair of events spans the device's time without the launch; `host_us` says how long the host took. No contender
is timed before its result was checked.

Floor: a copy kernel that moves as many bytes as one read of the input has (half of them read, half of them written).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import scoring, selection
from benchmarks.gpu.events import EventTimer
from benchmarks.gpu.scoring import AbsentError
from benchmarks.gpu.shapes import ALL, Pools, Scores
from benchmarks.harness import ledger
from benchmarks.harness.contender import COPY, OURS, Contender
from benchmarks.harness.race import Race, Turn
from benchmarks.suites.scoring import Problem as ScoreProblem
from ragsys_kernels import _dispatch

KEY = ("op", "backend", "shape", "dtype", "device", "contender")
LEDGER = ledger.Ledger(
    ledger.RESULTS / "gpu.csv",
    KEY,
    (
        *KEY,
        "samples",
        "us",  # of one call: median
        "iqr_us",
        "host_us",  # until the call returned, median
        "ratio",  # its time over the library's (the first backend that runs), median over the rounds
        "floor_us",
        "max_error",  # of log p, against float64
        "same_picks",  # share of queries with the picks of the library's first backend
        "note",
        "commit",
        "versions",
        "date",
    ),
)
SAMPLES, WARM_UPS = 50, 5
HOST_SAMPLES = 5  # of the CPU path, which no event can time


class OnDevice(Race):
    """A race on a device: a turn is one call, timed by events. Wrong results are named and not timed."""

    ledger = LEDGER

    def __init__(
        self, problem: Any, contenders: Sequence[Contender], device: str = "", timer: Any = None, samples: int = SAMPLES
    ) -> None:
        super().__init__(problem.shape.op, problem, contenders, rounds=samples)
        self.device, self.timer = device, timer
        self.wrong: list[str] = []
        self._first: np.ndarray | None = None  # the library's picks
        self._facts: dict[int, dict[str, Any]] = {}

    def check(self) -> None:
        """Check all results, and leave out the contenders whose results are wrong."""
        right = []
        for contender in self.contenders:
            try:
                self._facts[id(contender)] = self._check(contender)
                right.append(contender)
            except Exception as error:  # a peer may raise anything, and the others are still to be timed
                where = f"{self.op} {self.problem.shape}, {contender.name} {contender.backend}"
                self.wrong.append(f"{where}: {type(error).__name__}: {error}".splitlines()[0])
        self.contenders = right

    def _check(self, contender: Contender) -> dict[str, Any]:
        result = contender.run()
        if isinstance(self.problem, ScoreProblem):
            return {} if contender.error is None else {"max_error": self.problem.check(contender, result)}
        picks = self.problem.check(contender, result)
        if picks is None:
            return {}
        self._first = picks if self._first is None else self._first
        return {"same_picks": float((picks == self._first).all(1).mean())}

    def facts(self, contender: Contender) -> dict[str, Any]:
        return self._facts[id(contender)]

    def columns(self, contender: Contender) -> dict[str, Any]:
        libraries = ("torch", "triton", "cupy-cuda13x", "liger-kernel", "cut-cross-entropy", "flash-attn")
        versions = f"{ledger.versions(libraries)}; CUDA {torch.version.cuda}"
        return {"backend": contender.backend, "device": self.device, "versions": versions}

    def turn(self, contender: Contender, quick: bool) -> Turn:
        for _ in range(1 if contender.on_host else WARM_UPS):
            contender.run()
        if contender.on_host:
            return Turn(contender.run, rounds=HOST_SAMPLES)
        return Turn(contender.run, clock=self.timer.seconds)

    def rounds_of(self, turns: Sequence[Turn]) -> int:
        return self.rounds


def problem_of(shape: Pools | Scores, device: Any) -> Any:
    return selection.Problem(shape, device) if isinstance(shape, Pools) else ScoreProblem(shape, device)


def contenders_of(problem: Any, backends: tuple[str, ...]) -> tuple[list[Contender], list[str]]:
    """Return the contenders that are installed, ours first, and why the others are not."""
    makers: dict[str, Callable[..., Iterator[Any]]] = {
        "mmr": selection.of_pools,
        "vrsd": selection.of_pools,
        "search": selection.of_search,
        "token_logprobs": scoring.of_logits,
        "answer_logprobs": scoring.of_hidden,
    }
    found, absent = [], []
    for entry in makers[problem.shape.op](problem, backends):
        try:
            found.append(entry if isinstance(entry, Contender) else entry())
        except AbsentError as error:
            absent.append(str(error))
    return [*found, floor_of(problem)], absent


def floor_of(problem: Any) -> Contender:
    half = max(problem.bytes // 2, 1)
    here, there = (torch.empty(half, dtype=torch.uint8, device=problem.rows.device) for _ in range(2))
    return Contender(COPY, lambda: there.copy_(here))


@dataclass
class Outcome:
    """What `run` did, and what it could not."""

    device: str
    rows: int = 0
    absent: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def run(
    path: Path,
    shapes: tuple[Pools | Scores, ...] = ALL,
    device: str = "cuda",
    backends: tuple[str, ...] = ("triton", "cuda"),
    timer: Any = None,
    samples: int = SAMPLES,
) -> Outcome:
    """Check and time all shapes and write the ledger, shape by shape."""
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else ledger.hardware()
    outcome = Outcome(name)
    reasons = {backend: _dispatch.why_not(backend) for backend in backends}
    outcome.absent += [f"backend {backend}: {reason}" for backend, reason in reasons.items() if reason]
    backends = tuple(backend for backend, reason in reasons.items() if reason is None)
    if not backends:
        return outcome
    timer = timer or EventTimer.on(where)
    for shape in shapes:
        torch.compiler.reset()  # torch gives up compiling a function after a few shapes
        try:
            problem = problem_of(shape, where)
            entries, absent = contenders_of(problem, backends)
            race = OnDevice(problem, entries, name, timer, samples)
            race.check()
            outcome.absent += [line for line in absent if line not in outcome.absent]
            # A peer that cannot run here is no defect of ours.
            for line in race.wrong:
                (outcome.wrong if f", {OURS}" in line else outcome.absent).append(line)
            if not any(entry.name == OURS for entry in race.contenders):
                continue
            rows = race.run()
        except torch.OutOfMemoryError:
            outcome.absent.append(f"{shape.op} {shape}, {shape.dtype}: the device has too little memory")
            continue
        LEDGER.at(path).update(rows)
        outcome.rows += len(rows)
        print(f"{shape.op} {shape}, {shape.dtype}")
        for row in rows:
            print(f"  {row['us']:12.1f} µs  {row['ratio']:8.2f}x  {row['contender']} {row['backend']}", flush=True)
    return outcome
