"""The race: times each call that has a goal on a device (`goals.py`) in every form that differs for it (`forms.py`).

    python -m benchmarks.gpu.race --ledger CSV [--budget SECONDS] [--match REGEX] [--peers] [--small]
    python -m benchmarks.gpu.race --table --ledger CSV      # what a ledger has, and what it lacks and why
    python -m benchmarks.gpu.race --rehearse [--budget SECONDS]   # what takes how long, and what is left out first

Every shape runs in a process of its own (`heat.py`), which has a time limit. Each form is written to the ledger before
the next begins, even if it failed; if it ends its process, the other forms of the shape run in a fresh one. ``--peers``
times torch and other libraries. Nothing here uses the device or needs torch.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from benchmarks.gpu import forms, goals
from benchmarks.gpu.forms import Form
from benchmarks.gpu.shapes import LEDGER, POOLS_ON_CHIP, STREAMED, Pools, Scores
from benchmarks.harness import facts, machine, parent
from benchmarks.harness.ledger import Row

SAMPLES, SECONDS = 25, 1.0  # of one form at most


# --- The course.


class Heat(NamedTuple):
    """The work of one process: pairs of a backend and a contender, on the shape of a goal."""

    goal: int
    title: str
    entries: tuple[tuple[str, str], ...]
    seconds: float  # what it may take, by estimate
    patience: float  # seconds of silence after which it hangs


# Seconds to start a process with its problem; of a form with compiled kernels; of a form of torch; of torch.compile.
START, FORM, PEER, COMPILING = 5.0, 2.0, 1.5, 20.0
PATIENCE, PATIENCE_WITH_COMPILER = 45.0, 120.0
LEAST = START + 2 * FORM  # with less time left, no process is started
TIME_UP = "the time was up"


def heats(
    small: bool,
    match: str = "",
    peers: bool = False,
    backends: Sequence[str] = forms.BACKENDS,
    patience: float = PATIENCE,
) -> list[Heat]:
    """Return the work of all processes, the most valuable first: of ``peers`` those that came nearest to winning."""
    planned = []
    for number, goal in enumerate(goals.of(small)):
        if peers:
            entries = [("", name) for name in forms.peers(goal.shape)]
        else:
            own = [form for form in forms.of(goal.shape, backends) if re.search(match, f"{goal.title}: {form.name}")]
            entries = [(form.backend, form.contender) for form in own]
            entries = [("", name) for name in goals.roofs(goal)] + entries if own else []
        if entries and (not peers or re.search(match, goal.title)):
            compiling = sum("compile" in name for _, name in entries)
            seconds = START + (PEER if peers else FORM) * len(entries) + COMPILING * compiling
            silent = PATIENCE_WITH_COMPILER if compiling else patience
            planned.append(Heat(number, goal.title, tuple(entries), seconds, silent))
    leads = goals.published_leads() if peers else {}
    return sorted(planned, key=lambda heat: leads.get(goals.GOALS[heat.goal], 1.0)) if peers else planned


class Course:
    """Runs heats one after the other until the time is up, and writes the ledger and the table."""

    def __init__(self, ledger: Path, small: bool, end: float, process: Any, suspects: Mapping[str, str]) -> None:
        self.ledger, self.goals, self.end = LEDGER.at(ledger), goals.of(small), end
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
                self._write(left, goals.LEFT_OUT, TIME_UP)
                return
            self._write(left, None)
            job = {**self.job, "goal": heat.goal, "entries": left}
            reason = self.process.run(job, self.ledger.path, heat.patience, self.end)
            states = self._states()
            ended = goals.LEFT_OUT if reason == TIME_UP else goals.KILLED
            self._write([entry for entry in left if states.get(entry) == goals.BEGUN], ended, reason)
            after = tuple(entry for entry in left if entry not in states)
            if len(after) == len(left) and ended == goals.KILLED:
                self._write(after, goals.KILLED, f"{goals.BEFORE_ITS_TURN}{reason}")
                return
            left = after

    def _states(self) -> dict[tuple[str, str], str]:
        own = [row for row in self.ledger.read() if goals.is_of(row, self.goal)]
        return {(row["backend"], row["contender"]): row["state"] for row in own}

    def _write(self, entries: Iterable[tuple[str, str]], state: str | None, reason: str = "") -> None:
        """Write the state of entries; None: it is not known."""
        entries, rows = set(entries), self.ledger.read()
        device = next((row["device"] for row in rows if row["device"]), "")
        kept = [
            row for row in rows if not (goals.is_of(row, self.goal) and (row["backend"], row["contender"]) in entries)
        ]
        shape = self.goal.shape
        of_shape = {"op": shape.op, "shape": str(shape), "dtype": shape.dtype, "device": device}
        if state is not None:
            columns = {**of_shape, "state": state, "reason": reason}
            kept += [{**columns, "backend": backend, "contender": name} for backend, name in sorted(entries)]
        self.ledger.replace(kept)

    def show(self) -> str:
        """Write the table beside the ledger, and return it."""
        text = goals.told(self.ledger.read(), self.goals)
        self.ledger.path.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
        return text


class Processes:
    """Processes of `heat.py`. While one runs, the next one is started, imports what it needs and waits for its job."""

    clock = staticmethod(monotonic)

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "benchmarks.gpu.heat")) -> None:
        self._command = command
        self._next = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # It ends with this process, even if this one is killed: otherwise it would go on writing, and disturb the next
        # race.
        return subprocess.Popen(parent.bound(self._command), stdin=subprocess.PIPE)

    def run(self, job: Mapping[str, Any], ledger: Path, patience: float, end: float) -> str:
        """Let a process do a job; return how it ended if it failed.

        A process that does not write to the ledger for this many seconds hangs, and is ended.
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
    """End a process; leave it alone if the driver holds it."""
    process.kill()
    with suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)


# --- The command.


# Seconds of the other steps of the stage (`stages/steps.py`) on a device, by estimate, before the race and after it.
BEFORE = {"build": 2.0, "config": 10.0, "machine": 6.0, "picks": 75.0}
AFTER = {"headline": 50.0, "sanitizers": 100.0, "table": 1.0}
HOST = 15.0
SHARE = 0.62  # of the stage's budget, for the race


def rehearsed(budget: float) -> str:
    """Return an estimate of when each step and shape begins, and of what a budget leaves out."""
    lines, at = [f"{'begins':>8} {'takes':>6}"], 0.0

    def step(name: str, seconds: float, end: float, least: float) -> None:
        nonlocal at
        takes = min(seconds, end - at)
        there = takes >= min(least, seconds)
        when = f"{at:6.0f} s {takes:4.0f} s" if there else "left out".rjust(15)
        lines.append(f"{when}  {name}" + ", cut short" * (there and takes < seconds))
        at += takes if there else 0.0

    for name, seconds in BEFORE.items():
        step(name, seconds, budget, LEAST)
    end = min(at + SHARE * budget, budget)
    for heat in heats(False):
        step(f"race: {heat.title}: {len(heat.entries)} entries", heat.seconds, end, LEAST)
    step("host", HOST, budget, LEAST)
    for heat in heats(False, peers=True):
        step(f"peers: {heat.title}: {len(heat.entries)} entries", heat.seconds, budget, LEAST)
    for name, seconds in AFTER.items():
        step(name, seconds, math.inf if name == "table" else budget, seconds)
    return "\n".join([*lines, f"{at:6.0f} s in all"])


def suspicion(shape: Pools | Scores, form: Form, known: Mapping[str, str]) -> str:
    """Return why a form is suspect on a shape: its kernel was wrong on another problem of this kind."""
    kind = shape.regime
    if isinstance(shape, Pools) and shape.P is not None:
        kind = POOLS_ON_CHIP if shape.P <= 128 else STREAMED
    name = form._replace(change="").name
    return known.get(f"{shape.op}, {kind}: {name}", known.get(f"{shape.op}: {name}", ""))


def suspects(path: Path | None) -> dict[str, str]:
    """Return from a stage's summary, for each form with checked picks, why they were wrong; '' if they were right."""
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
        print(rehearsed(given.budget))
        return 0
    if given.ledger is None:
        parser.error("--ledger must be given")
    try:
        rows = _read(given.ledger) if given.table or given.ledger.exists() else []
        among = _goals_in(rows, given.small, given.ledger) if given.table else ()
    except (OSError, ValueError, csv.Error) as error:
        parser.error(str(error))
    if given.table:
        print(goals.told(rows, among))
        return 0
    if rows:
        LEDGER.at(given.ledger).replace(rows)  # with all columns
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


def _read(path: Path) -> list[Row]:
    """Return the rows of a ledger, with all columns; raise ValueError if the file is no ledger."""
    path.stat()  # raises if the file is missing; a ledger would just have no rows
    rows = LEDGER.at(path).read()
    if rows and (lacks := [name for name in LEDGER.key if name not in rows[0]]):
        raise ValueError(f"{path}: must be the CSV of a race, got one without {', '.join(lacks)}")
    texts = [LEDGER.texts(row) for row in rows]
    for number, row in enumerate(texts, 1):
        try:
            right = not row["us"] or 0 < float(row["us"]) < math.inf
        except ValueError:
            right = False
        if not right:
            raise ValueError(f"{path}: us must be a number above 0, got {row['us']!r} in row {number}")
    return texts


def _goals_in(rows: Sequence[Row], small: bool, path: Path) -> tuple[goals.Goal, ...]:
    """Return the goals that rows belong to, large or small; if rows of both exist, those that were asked for."""
    for size in (small, not small):
        found = goals.of(size)
        if not rows or any(goals.is_of(row, goal) for row in rows for goal in found):
            return found
    shapes = sorted({f"{row['op']} {row['shape']}, {row['dtype']}" for row in rows})
    some = "; ".join(shapes[:3]) + "; ..." * (len(shapes) > 3)
    raise ValueError(f"{path}: no row has a shape of the race; there are {some}")


def _report(course: Course, peers: bool) -> int:
    """Report the results; return 1 if a form is wrong, or if none of ours was timed."""
    rows = course.ledger.read()
    facts.tell(rows=sum(bool(row["us"]) for row in rows), ledger=str(course.ledger.path))
    if peers:
        return 0
    every = goals.found(rows, course.goals)
    bad = [one for one in every if one.state in (goals.WRONG, goals.FAILED, goals.KILLED)]
    facts.tell(wrong=[f"{one.goal.title}: {one.form.name}: {one.state}: {one.reason}" for one in bad])
    facts.tell(
        left_out=[f"{one.goal.title}: {one.form.name}: {one.reason}" for one in every if one.state == goals.LEFT_OUT]
    )
    facts.tell(stopped=[f"{one.goal.title}: {one.form.name}" for one in every if one.timed and not one.above_stop])
    return int(bool(bad) or not any(one.timed for one in every))


if __name__ == "__main__":
    sys.exit(main())
