"""The race: each call that has a goal on a device, in every form that differs for it, against what it must read.

    python -m benchmarks.gpu.race --ledger CSV [--budget SECONDS] [--match REGEX] [--peers] [--small]
    python -m benchmarks.gpu.race --table --ledger CSV      # what a ledger has, and what it lacks and why
    python -m benchmarks.gpu.race --rehearse [--budget SECONDS]   # what takes how long, and what is left out first

A *roof* is what no kernel is faster than: one read of what the last-level cache cannot serve, at the rate of this
device's copy, or the bare product of the rows with the queries, at the rate of the vendor's library, both timed on the
same shape. A goal is a share of the roof. The fastest right form of a row wins; below its *stop* it is not kept.

Every shape has a process of its own (`heat.py`), which is ended at its time. A form is in the ledger before the next
begins, also one that failed; when it takes its process along, the rest of the shape goes on in a fresh one. ``--peers``
times torch and other libraries. Nothing here touches the device or needs torch.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from benchmarks.gpu import forms
from benchmarks.gpu.forms import Form
from benchmarks.gpu.shapes import LEDGER, POOLS_ON_CHIP, STREAMED, WHOLE_K, WHOLE_N, WHOLE_Q, Pools, Scores
from benchmarks.harness import facts, machine
from benchmarks.harness.contender import COPY, PRODUCT
from benchmarks.harness.ledger import Row

LONG = 151_936  # tokens of the longest vocabulary
SAMPLES, SECONDS = 25, 1.0  # of one form at most

# Why a row has no time, or must not win.
BEGUN, WRONG, FAILED, KILLED, LEFT_OUT, ABSENT = "begun", "wrong", "failed", "killed", "left out", "absent"


class Goal(NamedTuple):
    """Shares of the roof: what is to be reached, and below which a new form is not kept."""

    shape: Pools | Scores
    share: float
    stop: float
    roof: str = COPY

    @property
    def title(self) -> str:
        return f"{self.shape.op} {self.shape}, {self.shape.dtype}"


def _pools(P: int, K: int, **more: Any) -> Pools:
    return replace(Pools(P, K, 384, "float16"), **more)


_WHOLE = Pools(None, WHOLE_K, 384, "float16", WHOLE_Q, WHOLE_N)

# Those first whose outcome decides most.
GOALS = (
    Goal(_pools(100, 10), 0.70, 0.40),
    Goal(_pools(100, 10, op="vrsd"), 0.60, 0.30),
    Goal(_pools(100, 10, op="msd"), 0.60, 0.30),
    Goal(_pools(100, 10, Q=100_000), 0.70, 0.40),
    Goal(replace(_WHOLE, op="search", K=100), 0.33, 0.21, PRODUCT),
    Goal(_WHOLE, 0.20, 0.07, PRODUCT),
    Goal(replace(_WHOLE, lambda_d=0.5), 0.10, 0.05, PRODUCT),
    Goal(_pools(1000, 10, op="vrsd"), 0.50, 0.30),
    Goal(Scores(512, LONG, None, "bfloat16"), 0.80, 0.75),
    Goal(Scores(512, 50_257, None, "bfloat16"), 0.80, 0.65),
    Goal(Scores(512, 32_000, None, "bfloat16"), 0.80, 0.60),
    Goal(Scores(512, LONG, 1024, "bfloat16"), 0.69, 0.56, PRODUCT),
    Goal(Scores(8, LONG, 1024, "bfloat16"), 0.85, 0.75),
    Goal(_pools(1000, 10), 0.65, 0.42),
    Goal(_pools(1000, 10, D=768), 0.65, 0.52),
    Goal(_pools(20, 4, Q=100_000), 0.70, 0.50),
    # What a pick costs beside the one read of the pool, and a row that does not begin at 16 bytes.
    Goal(_pools(1000, 5, op="vrsd"), 0.55, 0.35),
    Goal(_pools(1000, 1, op="vrsd"), 0.65, 0.45),
    Goal(Scores(512, 50_256, None, "bfloat16"), 0.80, 0.65),
)


def goals(small: bool = False) -> tuple[Goal, ...]:
    """Return the goals; ``small``: those of problems as small as take the same forms, for a processor."""
    return tuple(goal._replace(shape=_small(goal.shape, n)) for n, goal in enumerate(GOALS)) if small else GOALS


def _small(shape: Pools | Scores, number: int) -> Pools | Scores:
    """Return a small shape that no other goal has."""
    if isinstance(shape, Scores):
        T, D = min(shape.T, 70), shape.D and 256
        return replace(shape, T=T if D else 3, V=300 + 2 * number + shape.V % 2, D=D)
    size = {"D": 24, "Q": 2 + number % 5, "K": {1: 1, 5: 2}.get(shape.K, 3), "N": 61}
    if shape.P is None:
        size |= {"N": 2_050, "K": 2, "Q": 2}
    elif shape.P > 128:
        size |= {"D": 40, "N": 401, "Q": 2 + shape.D // 768}
    return replace(shape, P=shape.P and {20: 20, 100: 100}.get(shape.P, 140), **size)


# --- What a ledger says.


@dataclass(frozen=True)
class Found:
    """A form of ours on the shape of a goal."""

    goal: Goal
    form: Form
    us: float  # nan: it was not timed
    roof: float  # µs, nan: unknown
    torch: float  # µs of its fastest form, here or else in the published ledger; nan: unknown
    measured_here: bool  # what torch takes
    state: str  # empty: it is right and timed
    reason: str

    @property
    def share(self) -> float:
        return self.roof / self.us

    @property
    def timed(self) -> bool:
        """Whether it may win."""
        return not self.state and self.us > 0

    @property
    def above_stop(self) -> bool:
        return self.share >= self.goal.stop


def found(rows: Iterable[Row], among: Iterable[Goal] = GOALS) -> list[Found]:
    """Return every form of every goal, those of a goal that may win first, the fastest before the others."""
    rows, every = list(rows), list[Found]()
    published = [row for row in LEDGER.read() if row["device"]]
    for goal in among:
        own, before = ([row for row in some if _is_of(row, goal)] for some in (rows, published))
        here = _torch(own)
        roof = min((float(row["us"]) for row in own if row["contender"] == goal.roof and row["us"]), default=math.nan)
        some = []
        for form in forms.of(goal.shape):
            row: Mapping[str, str] = _row_of(own, form) or {"us": "", "state": LEFT_OUT, "reason": "not reached"}
            us = float(row["us"] or math.nan)
            torch = _torch(before) if math.isnan(here) else here
            some.append(Found(goal, form, us, roof, torch, not math.isnan(here), row["state"], row["reason"]))
        every += sorted(some, key=lambda one: (not one.timed, one.us if one.timed else 0.0))
    return every


def _is_of(row: Row, goal: Goal) -> bool:
    return (row["op"], row["shape"], row["dtype"]) == (goal.shape.op, str(goal.shape), goal.shape.dtype)


def _row_of(rows: Iterable[Row], form: Form) -> Row | None:
    mine = [row for row in rows if (row["backend"], row["contender"]) == (form.backend, form.contender)]
    return next((row for row in mine if row["us"]), mine[-1] if mine else None)


def _torch(rows: Iterable[Row]) -> float:
    times = [float(row["us"]) for row in rows if row["contender"].startswith("torch") and row["us"]]
    return min(times, default=math.nan)


def winners(every: Iterable[Found]) -> dict[Goal, Found]:
    """Return the fastest right form of each goal that has one, also one below its stop."""
    best: dict[Goal, Found] = {}
    for one in every:
        if one.timed and (one.goal not in best or one.us < best[one.goal].us):
            best[one.goal] = one
    return best


def verdict(one: Found, winner: Found | None) -> str:
    """Return what a person reads of a form."""
    if not one.timed or winner is None:
        return {BEGUN: "ended with the race"}.get(one.state, one.state.upper()) + (f": {one.reason}" * bool(one.reason))
    level = "roof unknown" if math.isnan(one.share) else "" if one.above_stop else "below its stop"
    if one is not winner:
        return ", ".join(filter(None, (f"lost by {one.us / winner.us - 1:.0%}", level)))
    reached = "reached" if one.share >= one.goal.share else f"goal {one.goal.share:.0%} missed"
    return f"wins, {level or reached}"


def told(rows: Sequence[Row], among: Sequence[Goal] = GOALS) -> str:
    """Return the table that a person reads: every form of every goal, with its time or the reason that it has none."""
    every = found(rows, among)
    best, lines = winners(every), list[str]()
    for goal in among:
        own = [one for one in every if one.goal == goal]
        head = own[0]
        where = "here" if head.measured_here else "published, not timed here"
        against = "torch: none known" if math.isnan(head.torch) else f"torch {head.torch:.1f} µs ({where})"
        lines.append(f"{goal.title}: roof {_number(head.roof)} µs, {against}")
        for one in own:
            times = f"{one.torch / one.us:5.1f}x" if one.us > 0 and one.torch > 0 else ""
            share = f"{one.share:4.0%}" if one.share > 0 else ""
            text = verdict(one, best.get(goal))
            lines.append(f"  {one.form.name:48} {_number(one.us):>9} {share:>5} {times:>6}  {text}".rstrip())
        lines += [f"      {text}" for text in _causes(rows, best.get(goal))]
        lines += [f"  {text}" for text in _peers(rows, goal)]
    missing = [one for one in every if not one.timed]
    lines.append(f"{len(best)} of {len(among)} rows have a winner; {len(missing)} of {len(every)} forms have no time.")
    return "\n".join(lines)


def _number(us: float) -> str:
    return "-" if math.isnan(us) else f"{us:.1f}"


def _causes(rows: Iterable[Row], winner: Found | None) -> Iterator[str]:
    row = winner and _row_of([row for row in rows if _is_of(row, winner.goal)], winner.form)
    for name, unit in (("clock_mhz", " MHz under load"), ("counts", ""), ("kernels", " µs")) if row else ():
        if row and row.get(name):
            yield f"{row[name]}{unit}"


def _peers(rows: Iterable[Row], goal: Goal) -> Iterator[str]:
    """Yield a line for each contender of another library, and why it has no time."""
    own = {row["contender"]: row for row in rows if _is_of(row, goal) and not row["backend"]}
    for name in (*roofs(goal), *forms.peers(goal.shape)):
        row = own.get(name)
        if row is None or row["state"]:
            why = "not reached" if row is None else f"{row['state']}: {row['reason']}".rstrip(": ")
            yield f"{name:48} {'-':>9}  {why}"
        elif name not in roofs(goal):
            yield f"{name:48} {_number(float(row['us'])):>9}"


def roofs(goal: Goal) -> tuple[str, ...]:
    return (COPY,) if goal.roof == COPY else (COPY, goal.roof)


# --- The course.


class Heat(NamedTuple):
    """What one process is to time: pairs of backend and contender, the shape of a goal."""

    goal: int
    title: str
    entries: tuple[tuple[str, str], ...]
    seconds: float  # what it may take, by estimate
    patience: float  # seconds of silence after which it hangs


# Seconds of a process with its problem; of a form whose kernels are compiled; of torch's own; of what torch compiles.
START, FORM, PEER, COMPILING = 5.0, 2.0, 1.5, 20.0
PATIENCE, PATIENCE_WITH_COMPILER = 45.0, 120.0
LEAST = START + 2 * FORM  # with less no process is started
TIME_UP = "the time was up"


def heats(
    small: bool,
    match: str = "",
    peers: bool = False,
    backends: Sequence[str] = forms.BACKENDS,
    patience: float = PATIENCE,
) -> list[Heat]:
    """Return what is timed, in the order of its value."""
    found = []
    for number, goal in enumerate(goals(small)):
        if peers:
            entries = [("", name) for name in forms.peers(goal.shape)]
        else:
            own = [form for form in forms.of(goal.shape, backends) if re.search(match, f"{goal.title}: {form.name}")]
            entries = [(form.backend, form.contender) for form in own]
            entries = [("", name) for name in roofs(goal)] + entries if own else []
        if entries and (not peers or re.search(match, goal.title)):
            compiling = sum("compile" in name for _, name in entries)
            seconds = START + (PEER if peers else FORM) * len(entries) + COMPILING * compiling
            silent = PATIENCE_WITH_COMPILER if compiling else patience
            found.append(Heat(number, goal.title, tuple(entries), seconds, silent))
    return found


class Course:
    """Runs heats one after the other until its time is up, and keeps the ledger and the table."""

    def __init__(self, ledger: Path, small: bool, end: float, process: Any, suspects: Mapping[str, str]) -> None:
        self.ledger, self.goals, self.end = LEDGER.at(ledger), goals(small), end
        self.process, self.clock = process, process.clock
        self.job = {
            "ledger": str(ledger), "small": small, "samples": 3 if small else SAMPLES, "seconds": SECONDS,
            "suspects": dict(suspects), "columns": machine.columns(),
        }  # fmt: skip

    def run(self, planned: Sequence[Heat]) -> None:
        for heat in planned:
            self.goal, begin = self.goals[heat.goal], self.clock()
            self._heat(heat)
            self.show()
            print(f"{heat.title}: {self.clock() - begin:.1f} s of about {heat.seconds:.0f}", flush=True)

    def _heat(self, heat: Heat) -> None:
        """Run the entries of a heat, in as many processes as it takes."""
        left = heat.entries
        while left:
            if self.end - self.clock() < LEAST:
                self._write(left, LEFT_OUT, TIME_UP)
                return
            self._write(left, None)
            job = {**self.job, "goal": heat.goal, "entries": left}
            reason = self.process.run(job, self.ledger.path, heat.patience, self.end)
            states = self._states()
            ended = LEFT_OUT if reason == TIME_UP else KILLED
            self._write([entry for entry in left if states.get(entry) == BEGUN], ended, reason)
            after = tuple(entry for entry in left if entry not in states)
            if len(after) == len(left) and ended == KILLED:
                self._write(after, KILLED, f"before its turn: {reason}")
                return
            left = after

    def _states(self) -> dict[tuple[str, str], str]:
        own = [row for row in self.ledger.read() if _is_of(row, self.goal)]
        return {(row["backend"], row["contender"]): row["state"] for row in own}

    def _write(self, entries: Iterable[tuple[str, str]], state: str | None, reason: str = "") -> None:
        """Write the state of entries; None: nothing is known of them."""
        entries, rows = set(entries), self.ledger.read()
        device = next((row["device"] for row in rows if row["device"]), "")
        kept = [row for row in rows if not (_is_of(row, self.goal) and (row["backend"], row["contender"]) in entries)]
        shape = self.goal.shape
        of_shape = {"op": shape.op, "shape": str(shape), "dtype": shape.dtype, "device": device}
        if state is not None:
            columns = {**of_shape, "state": state, "reason": reason}
            kept += [{**columns, "backend": backend, "contender": name} for backend, name in sorted(entries)]
        self.ledger.replace(kept)

    def show(self) -> str:
        """Write the table beside the ledger, and return it."""
        text = told(self.ledger.read(), self.goals)
        self.ledger.path.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
        return text


class Processes:
    """Processes of `heat.py`. The next one is started while one runs: it imports what it needs, and waits for its job."""

    clock = staticmethod(monotonic)

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "benchmarks.gpu.heat")) -> None:
        self._command = command
        self._next = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdin=subprocess.PIPE)

    def run(self, job: Mapping[str, Any], ledger: Path, patience: float, end: float) -> str:
        """Have a process do a job; return how it ended, where it did not end well.

        One that has not written to the ledger for so many seconds hangs, and is ended.
        """
        process, self._next = self._next, self._start()
        try:
            with suppress(OSError), process.stdin as pipe:  # type: ignore[union-attr]  # its status says that it is dead
                pipe.write(json.dumps(job).encode() + b"\n")
            return self._watched(process, ledger, patience, end)
        finally:
            _kill(process)

    def _watched(self, process: subprocess.Popen[bytes], ledger: Path, patience: float, end: float) -> str:
        written, since = 0, self.clock()
        while process.poll() is None:
            now, last = self.clock(), ledger.stat().st_mtime_ns if ledger.exists() else 0
            written, since = (written, since) if last == written else (last, now)
            if now > end:
                return TIME_UP
            if now - since > patience:
                return f"hung for {patience:.0f} s"
            sleep(POLL)
        status = process.returncode
        return "" if status == 0 else f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"

    def close(self) -> None:
        _kill(self._next)


POLL = 0.02


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process; one that its driver holds is left alone."""
    process.kill()
    with suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)


# --- The command.


def rehearsed(budget: float, peers: bool, match: str = "") -> str:
    """Return what is timed, by estimated seconds: when it begins, and what a budget leaves out."""
    lines, at = [f"{'begins':>7} {'takes':>6}"], 0.0
    for heat in heats(False, match, peers):
        there = at + LEAST <= budget
        when = f"{at:6.0f}s {heat.seconds:5.0f}s" if there else "left out".rjust(14)
        cut = ", cut short" if there and at + heat.seconds > budget else ""
        lines.append(f"{when}  {heat.title}: {len(heat.entries)} entries{cut}")
        at += heat.seconds if there else 0.0
    return "\n".join([*lines, f"{min(at, budget):6.0f}s in all, of {budget:.0f}"])


def suspicion(shape: Pools | Scores, form: Form, known: Mapping[str, str]) -> str:
    """Return why a form is under suspicion on a shape: its kernel was wrong on another problem of this kind."""
    kind = shape.regime
    if isinstance(shape, Pools) and shape.P is not None:
        kind = POOLS_ON_CHIP if shape.P <= 128 else STREAMED
    name = form._replace(change="").name
    return known.get(f"{shape.op}, {kind}: {name}", known.get(f"{shape.op}: {name}", ""))


def suspects(path: Path | None) -> dict[str, str]:
    """Return what a stage's summary says of the picks of forms, the reasons of those that were wrong."""
    if path is None or not path.is_file():
        return {}
    steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
    picks = {name: why for step in steps for name, why in step["facts"].get("picks", {}).items()}
    return {name: why and f"picks: {why}" for name, why in picks.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.race", description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds, after which nothing is timed")
    parser.add_argument("--ledger", type=Path, help="file of the rows; the table is written beside it")
    parser.add_argument("--backends", default=",".join(forms.BACKENDS), help="with commas")
    parser.add_argument("--match", default="", help="only forms whose line this regular expression is found in")
    parser.add_argument("--suspects", type=Path, help="summary of a stage, whose picks mark forms as wrong")
    parser.add_argument("--peers", action="store_true", help="torch and other libraries, not the library's forms")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds after which a silent process hangs")
    parser.add_argument("--small", action="store_true", help="small problems, few samples: shows that it works")
    parser.add_argument("--table", action="store_true", help="print what the ledger has and lacks; time nothing")
    parser.add_argument("--rehearse", action="store_true", help="print what would be timed when; time nothing")
    given = parser.parse_args(arguments)
    if given.rehearse:
        print(rehearsed(given.budget, given.peers, given.match))
        return 0
    if given.ledger is None:
        parser.error("--ledger must be given")
    if given.table:
        print(told(LEDGER.at(given.ledger).read(), goals(given.small)))
        return 0
    end, backends = monotonic() + given.budget, given.backends.split(",")
    planned = heats(given.small, given.match, given.peers, backends, given.patience)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    processes = Processes()
    course = Course(given.ledger, given.small, end, processes, suspects(given.suspects))
    try:
        course.run(planned)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    finally:
        processes.close()
        print(course.show(), flush=True)
    return _report(course, given.peers)


def _report(course: Course, peers: bool) -> int:
    """Tell what was found; return 1 where a form is wrong, or nothing of ours is timed."""
    rows = course.ledger.read()
    every = found(rows, course.goals)
    bad = [one for one in every if one.state in (WRONG, FAILED, KILLED)]
    facts.tell(wrong=[f"{one.goal.title}: {one.form.name}: {one.state}: {one.reason}" for one in bad])
    facts.tell(left_out=[f"{one.goal.title}: {one.form.name}: {one.reason}" for one in every if one.state == LEFT_OUT])
    facts.tell(stopped=[f"{one.goal.title}: {one.form.name}" for one in every if one.timed and not one.above_stop])
    facts.tell(rows=sum(bool(row["us"]) for row in rows), ledger=str(course.ledger.path))
    return 0 if peers else int(bool(bad) or not any(one.timed for one in every))


if __name__ == "__main__":
    sys.exit(main())
