"""Every op on the device against its floor and its peers, timed by events; `gpu_check.py` runs it.

    python -m benchmarks.gpu.bench [--match REGEX] [--one-of-each] [--budget SECONDS] [--passes N] [--no-compile]
                                   [--rest] [--device-only] [--seconds SECONDS]
                                   [--variants] [--backends NAMES] [--ledger CSV] [--small]

The most usual shape of each kind of kernel comes first, and what the budget leaves no time for is named at the end.
With two passes every shape is timed twice, from the first to the last and then again: `spread` is how far apart.

Before each turn the last-level cache is overwritten and the device is kept busy for twice as long as the host needs to
enqueue the call, so that a pair of events spans the device's time without the launch; `host_us` says how long the host
took. Beside it every contender that can be captured is replayed from a CUDA graph, `graph_us`. No contender is timed
before its result was checked, and none whose call changed the input.

Floors: a copy kernel that moves as many bytes as one read of what the last-level cache cannot serve has (half of them
read, half of them written), and the bare matrix product where there is one.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import forms, scoring, selection
from benchmarks.gpu.events import EventTimer
from benchmarks.gpu.forms import Form
from benchmarks.gpu.scoring import AbsentError
from benchmarks.gpu.shapes import ALL, LEDGER, Pools, Scores, by_value, one_of_each
from benchmarks.harness import facts, ledger, machine
from benchmarks.harness.contender import COPY, OURS, Contender
from benchmarks.harness.race import Race, Turn, wall
from benchmarks.suites.scoring import Problem as ScoreProblem
from benchmarks.suites.scoring_shapes import COMPILED
from ragsys_kernels import _dispatch
from ragsys_kernels._base import env as _env

SAMPLES, WARM_UPS = 50, 5
HOST_SAMPLES = 5  # of the CPU path, which no event can time
STEADY = 0.03  # two passes that are further apart are no measurement


class OnDevice(Race):
    """A race on a device: a turn is one call, timed by events. Wrong results are named and not timed."""

    ledger = LEDGER
    LEAST_ROUNDS, SECONDS = 7, 4.0

    def __init__(
        self,
        problem: Any,
        contenders: Sequence[Contender],
        device: str = "",
        timer: Any = None,
        samples: int = SAMPLES,
        state: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(problem.shape.op, problem, contenders, rounds=samples)
        self.device, self.timer, self.state = device, timer, state
        self.wrong: list[str] = []
        self._first: np.ndarray | None = None  # the library's picks
        self._facts: dict[int, dict[str, Any]] = {}
        self._replays: dict[int, list[float]] = {}
        self._sums = checksums(problem)

    def check(self) -> None:
        """Check all results, and leave out the contenders whose results are wrong."""
        right = []
        for contender in self.contenders:
            try:
                self.enter(contender)
                right.append(contender)
            except Exception as error:  # a peer may raise anything, and the others are still to be timed
                where = f"{self.op} {self.problem.shape}, {contender.name} {contender.backend}"
                self.wrong.append(f"{where}: {type(error).__name__}: {error}".splitlines()[0])
        self.contenders = right

    def enter(self, contender: Contender) -> dict[str, Any]:
        """Check the result of a contender, which may then be timed; return what it says."""
        self._facts[id(contender)] = self._check(contender)
        self._unchanged()
        return self._facts[id(contender)]

    def _unchanged(self) -> None:
        """Raise, and make the inputs what they were, where the last call has changed them."""
        if checksums(self.problem) == self._sums:
            return
        for x, made in zip(self.problem.inputs, problem_of(self.problem.shape, self.problem.rows.device).inputs,
                           strict=True):  # fmt: skip
            x.copy_(made)
        raise AssertionError("its call changed the input")

    def _check(self, contender: Contender) -> dict[str, Any]:
        result = contender.run()
        if isinstance(self.problem, ScoreProblem):
            return {} if contender.error is None else {"max_error": self.problem.check(contender, result)}
        picks = self.problem.check(contender, result)
        if picks is None:
            return {}
        self._first = picks if self._first is None else self._first
        return {"same_picks": float((picks == self._first[: len(picks)]).all(1).mean())}

    def facts(self, contender: Contender) -> dict[str, Any]:
        return self._facts[id(contender)]

    def columns(self, contender: Contender) -> dict[str, Any]:
        libraries = ("torch", "triton", "cupy-cuda13x", "liger-kernel", "cut-cross-entropy", "flash-attn")
        versions = f"{ledger.versions(libraries)}; CUDA {torch.version.cuda}"
        sizes = {name: getattr(self.problem, name) for name in ("bytes", "floor_bytes", "flops")}
        state = device_state() if self.state is None else self.state
        return {"backend": contender.backend, "device": self.device, "versions": versions, **sizes, **state}

    def turn(self, contender: Contender, quick: bool) -> Turn:
        if contender.on_host:
            contender.run()
            return Turn(contender.run, rounds=HOST_SAMPLES)
        host = [wall(contender.run)[0] for _ in range(1 if quick else WARM_UPS)]
        replay, replays = self._replay(contender), self._replays.setdefault(id(contender), [])

        def clock(run: Callable[[], Any]) -> tuple[float, float]:
            seconds: tuple[float, float] = self.timer.seconds(run, host[-1])
            if replay is not None:
                replays.append(self.timer.seconds(replay)[0])
            return seconds

        return Turn(contender.run, work=contender.share, clock=clock)

    def _replay(self, contender: Contender) -> Callable[[], Any] | None:
        """Return what replays a contender's call from a CUDA graph, None where it cannot be captured."""
        if self.timer.capture is None:
            return None
        try:
            replay: Callable[[], Any] = self.timer.capture(contender.run)
        except RuntimeError:  # the call waits for the device, or its memory
            return None
        return replay

    def rounds_of(self, turns: Sequence[Turn]) -> int:
        return super().rounds_of([turn for turn in turns if turn.rounds is None])

    def run(self, benchmark: Any = None, quick: bool = False) -> list[dict[str, Any]]:
        rows = super().run(benchmark, quick)
        for contender, row in zip(self.contenders, rows, strict=True):
            replays = self._replays.get(id(contender))
            row["graph_us"] = 1e6 * float(np.median(replays)) / contender.share if replays else None
        if checksums(self.problem) != self._sums:
            raise AssertionError(f"{_title(self.problem.shape)}: a contender changed the input while it was timed")
        return rows


def checksums(problem: Any) -> list[int]:
    """Return a sum of the bits of each input."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return [int(x.view(kinds[x.element_size()]).sum(dtype=torch.int64)) for x in problem.inputs]


@functools.cache
def device_state() -> dict[str, str]:
    return machine.columns()


def problem_of(shape: Pools | Scores, device: Any) -> Any:
    return selection.Problem(shape, device) if isinstance(shape, Pools) else ScoreProblem(shape, device)


def contenders_of(
    problem: Any, backends: tuple[str, ...], compiling: bool = True, variants: bool = False, host: bool = True
) -> tuple[list[Contender], list[str]]:
    """Return the contenders that are installed, ours first, and why the others are not.

    ``variants``: also the library under each variant that differs for the shape. ``host``: also those that the
    processor works for, which take most of the time.
    """
    makers: dict[str, Callable[..., Iterator[Any]]] = {
        "mmr": selection.of_pools,
        "vrsd": selection.of_pools,
        "msd": selection.of_pools,
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
    if not host:
        found = [contender for contender in found if not contender.on_host and contender.name != selection.LOOP]
    if not compiling:
        found = [contender for contender in found if COMPILED not in contender.name]
    if variants:
        ours = {contender.backend: contender for contender in found if contender.name == OURS}
        others = [form for form in forms.of(problem.shape, ours) if form.variant and not form.change]
        found += [in_form(ours[form.backend], form) for form in others]
    return [*found, floor_of(problem)], absent


def in_form(contender: Contender, form: Form) -> Contender:
    """Return the library's contender with every call of it in a form."""

    def run() -> Any:
        with form.entered():
            return contender.run()

    return replace(contender, name=form.contender, run=run)


def floor_of(problem: Any) -> Contender:
    half = max(problem.floor_bytes // 2, 1)
    here, there = (torch.empty(half, dtype=torch.uint8, device=problem.rows.device) for _ in range(2))
    return Contender(COPY, lambda: there.copy_(here))


@dataclass
class Outcome:
    """What `run` did, and what it could not."""

    device: str
    rows: int = 0
    absent: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # by the budget

    def add(self, kind: str, lines: Sequence[str]) -> None:
        known: list[str] = getattr(self, kind)
        known += [line for line in lines if line not in known]


def run(
    path: Path,
    shapes: Sequence[Pools | Scores] = ALL,
    device: str = "cuda",
    backends: tuple[str, ...] = ("triton", "cuda"),
    timer: Any = None,
    samples: int = SAMPLES,
    *,
    passes: int = 1,
    budget: float = math.inf,
    compiling: bool = True,
    variants: bool = False,
    host: bool = True,
    seconds: float = OnDevice.SECONDS,
) -> Outcome:
    """Check and time shapes, the most usual first, and write the ledger after each; stop after ``budget`` seconds."""
    begin = perf_counter()
    where = torch.device(device)
    outcome = Outcome(torch.cuda.get_device_name(where) if where.type == "cuda" else ledger.hardware())
    reasons = {backend: _dispatch.why_not(backend) for backend in backends}
    outcome.absent += [f"backend {backend}: {reason}" for backend, reason in reasons.items() if reason]
    backends = tuple(backend for backend, reason in reasons.items() if reason is None)
    if not backends:
        return outcome
    timer = timer or EventTimer.on(where)
    left, timed = by_value(shapes), dict[Pools | Scores, list[dict[str, Any]]]()
    for number in range(passes):
        started = perf_counter()
        for done, shape in enumerate(left):
            now = perf_counter()
            if done and now + (now - started) / done > begin + budget * (number + 1) / passes:
                outcome.add("left_out", [_title(other) for other in left[done:]] if number == 0 else [])
                break
            rows = _timed(shape, where, backends, timer, samples, outcome, seconds, compiling, variants, host)
            if not rows:
                continue
            if shape in timed:
                rows = both(timed[shape], rows)
                outcome.unsteady += unsteady(rows)
            timed[shape] = rows
            LEDGER.at(path).update(rows)
            print(_title(shape), f"(pass {number + 1} of {passes})" if passes > 1 else "")
            for row in rows:
                print(f"  {row['us']:12.1f} µs  {row['ratio']:8.2f}x  {row['contender']} {row['backend']}", flush=True)
        left = list(timed)
    outcome.rows = sum(map(len, timed.values()))
    return outcome


def _title(shape: Pools | Scores) -> str:
    return f"{shape.op} {shape}, {shape.dtype}"


def _timed(
    shape: Pools | Scores, where: Any, backends: tuple[str, ...], timer: Any, samples: int, outcome: Outcome,
    seconds: float, *which: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the rows of those contenders whose results are right; none where none of them is ours."""
    torch.compiler.reset()  # torch gives up compiling a function after a few shapes
    try:
        problem = problem_of(shape, where)
        entries, absent = contenders_of(problem, backends, *which)
        outcome.add("absent", absent)
        race = OnDevice(problem, entries, outcome.device, timer, samples)
        race.SECONDS = seconds
        race.check()
        # A peer that cannot run here is no defect of ours.
        for line in race.wrong:
            outcome.add("wrong" if f", {OURS}" in line else "absent", [line])
        return race.run() if any(entry.name == OURS for entry in race.contenders) else []
    except torch.OutOfMemoryError:
        outcome.add("absent", [f"{_title(shape)}: the device has too little memory"])
        return []


def both(first: list[dict[str, Any]], again: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of two passes as one: means of their times, and how far apart these are."""
    before = {(row["contender"], row["backend"]): row for row in first}
    rows = []
    for row in again:
        other = before.get((row["contender"], row["backend"]))
        if other is not None:
            names = ("us", "host_us", "graph_us", "ratio", "floor_us")
            means = {name: (row[name] + other[name]) / 2 for name in names if row.get(name) and other.get(name)}
            row = {
                **row,
                **means,
                "iqr_us": max(row["iqr_us"], other["iqr_us"]),
                "samples": row["samples"] + other["samples"],
                "spread": abs(row["us"] - other["us"]) / means["us"],
            }
        rows.append(row)
    return rows


def unsteady(rows: list[dict[str, Any]]) -> list[str]:
    return [
        f"{row['op']} {row['shape']}, {row['dtype']}, {row['contender']} {row['backend']}: {row['spread']:.1%} apart"
        for row in rows
        if row.get("spread", 0) > STEADY
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--match", type=re.compile, default="", help="only shapes whose line this is found in")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--one-of-each", action="store_true", help="only the most usual shape of each kind of kernel")
    some.add_argument("--rest", action="store_true", help="all shapes but those")
    parser.add_argument("--device-only", action="store_true", help="without the processor and a loop of its calls")
    parser.add_argument("--seconds", type=float, default=OnDevice.SECONDS, help="of the rounds of a shape, at most")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no shape is begun")
    parser.add_argument("--passes", type=int, default=1, help="how often every shape is timed")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes most of the time")
    parser.add_argument("--variants", action="store_true", help="also every variant of the kernels")
    parser.add_argument("--backends", default="triton,cuda", help="with commas")
    parser.add_argument("--ledger", type=Path, default=LEDGER.path)
    parser.add_argument("--small", action="store_true", help="small problems, few samples: shows that it works")
    given = parser.parse_args(arguments)
    for name in ("budget", "seconds"):
        if not getattr(given, name) > 0:
            parser.error(f"--{name} must be above 0, got {getattr(given, name):g}")
    shapes = [shape for shape in ALL if re.search(given.match, _title(shape))]
    usual = one_of_each(shapes)
    shapes = usual if given.one_of_each else [shape for shape in shapes if not given.rest or shape not in usual]
    outcome = run(
        given.ledger,
        list(dict.fromkeys(shape.small() for shape in shapes)) if given.small else shapes,
        "cpu" if _env.triton_interpreter() else "cuda",
        backends=tuple(given.backends.split(",")),
        samples=3 if given.small else SAMPLES,
        passes=given.passes,
        budget=given.budget,
        compiling=not given.no_compile,
        variants=given.variants,
        host=not given.device_only,
        seconds=given.seconds,
    )
    for kind in ("wrong", "unsteady", "absent", "left_out"):
        facts.tell(**{kind: getattr(outcome, kind)})
    facts.tell(rows=outcome.rows, ledger=str(given.ledger), device=outcome.device)
    return 1 if outcome.wrong or not outcome.rows else 0


if __name__ == "__main__":
    sys.exit(main())
