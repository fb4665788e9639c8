"""The small problems of every form, checked in processes of their own: what is wrong, dies or hangs hides no other.

Several processes, side by side, are asked one problem after another (``calls.py answer``). One that dies, does not
answer in its time, or has an error that stays is followed by a fresh one, and the other problems of its form are left.
What is known of a form is told as soon as it is done (`harness/facts.py`), so that it is there if all of this is ended.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

from benchmarks.harness import facts, ledger
from benchmarks.stages.problems import Form, Small, forms
from benchmarks.stages.stage import last_line, python
from ragsys_kernels._base import env

RIGHT, WRONG, DIED, HUNG, LEFT_OUT = "right", "wrong", "died", "hung", "left out"
ANSWER_SECONDS, INTERPRETED = 60.0, 10  # of a problem, most of them for a compiler; so many times in an interpreter
END_SECONDS = 5.0
MOST_CHILDREN, CORES_OF_EACH = 8, 2

Unit = tuple[str, int]  # a form and the number of a problem of it


class Child:
    """A process that answers problems, and the lines that it prints meanwhile."""

    def __init__(self, arguments: Sequence[str]) -> None:
        # In the process group of its parent, to end with it; and by itself where that is killed.
        self.process = subprocess.Popen(
            python("-m", "benchmarks.stages.calls", "answer", *arguments),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ledger.ROOT,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._asked, self._output = self.process.stdin, self.process.stdout
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._output:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def ask(self, unit: Unit, seconds: float) -> tuple[str, str, bool]:
        """Return the state of a problem, why it is not right, and whether the process is of no use any more."""
        output, end = list[str](), monotonic() + seconds
        with contextlib.suppress(OSError):  # of one that has ended, as its output will say
            self._asked.write(f"{unit[1]} {unit[0]}\n")
            self._asked.flush()
        while True:
            try:
                line = self._lines.get(timeout=max(end - monotonic(), 0))
            except queue.Empty:
                return HUNG, f"no answer in {seconds:.0f} s", True
            if line is None:
                self.process.wait()
                return DIED, f"status {self.process.returncode}: {last_line(chr(10).join(output))}", True
            told = facts.told([line]).get("answer")
            if told is not None:
                return (WRONG if told["why"] else RIGHT), told["why"], told["stays"]
            output.append(line)
            print(line, flush=True)

    def end(self) -> None:
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):  # one that a driver holds ends when it can
            self.process.wait(END_SECONDS)
            self._reader.join()
            self._output.close()
            self._asked.close()


@dataclass
class Found:
    """What is known of a form."""

    form: Form
    left: int
    state: str = LEFT_OUT
    seconds: float = 0.0
    reasons: dict[Small, str] = field(default_factory=dict)  # of the problems that were seen: why one is not right

    @property
    def wrong(self) -> list[tuple[Small, str]]:
        return [(small, why) for small, why in self.reasons.items() if why]

    def add(self, small: Small, state: str, why: str, seconds: float) -> None:
        if state == LEFT_OUT:
            return
        self.seconds += seconds
        self.reasons[small] = why
        if self.state in (LEFT_OUT, RIGHT) or state in (DIED, HUNG):
            self.state = state

    def tell(self, picks: dict[str, str]) -> None:
        """Tell what is known; ``picks`` has the reasons of all forms so far, by op, and by op and kind of kernel."""
        backend, variants, keys = self.form.backend, self.form.variants, set[str]()
        known = {small: f"{small.name}: {why}" if why else "" for small, why in self.reasons.items()}
        if self.state in (DIED, HUNG):  # what was not seen is not right for that
            ended = next(text for text in reversed(known.values()) if text)
            known = {small: known.get(small, ended) for small in self.form.problems}
        for small, text in known.items():
            for where in (small.op, f"{small.op}, {small.kind}"):
                key = f"{where}: {', '.join(filter(None, (backend, variants)))}"
                keys.add(key)
                picks[key] = picks.get(key) or text
        entry = {"form": self.form.name, "backend": backend, "variants": variants}
        about = {"state": self.state, "problems": len(self.reasons), "seconds": round(self.seconds, 1)}
        facts.tell(
            forms={self.form.name: about},
            picks={key: picks[key] for key in sorted(keys)},
            wrong_forms=[
                {**entry, "op": small.op, "kind": small.kind, "dtype": small.dtype, "problem": small.name, "why": why}
                for small, why in self.wrong
            ],
        )


class Picks:
    """A run over the forms of some backends."""

    def __init__(self, backends: Sequence[str], few: bool, seconds: float) -> None:
        self.end = monotonic() + seconds
        self.most = ANSWER_SECONDS * (INTERPRETED if env.triton_interpreter() else 1)
        self.arguments = ["--backends", ",".join(backends), *(["--small"] if few else [])]
        every = [form for backend in backends for form in forms(backend, few)]
        self.found = {form.name: Found(form, len(form.problems)) for form in every}
        self.units = deque(units for form in every for units in parts(form))
        self.reasons: dict[str, str] = {}
        self._lock = threading.Lock()

    def run(self, children: int) -> list[str]:
        threads = [threading.Thread(target=self._work) for _ in range(min(children, len(self.units)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = [name for name, found in self.found.items() if found.state == LEFT_OUT]
        facts.tell(left_out=[f"{name}: its problems, as the time was up" for name in left])
        return [
            f"{found.form.name}: {small.name}: {why}" for found in self.found.values() for small, why in found.wrong
        ]

    def _work(self) -> None:
        child: Child | None = None
        try:
            while units := self._next():
                for unit in units:
                    found = self.found[unit[0]]
                    left = self.end - monotonic()
                    if found.state in (DIED, HUNG) or left <= 0:
                        self._add(unit, LEFT_OUT, "", 0.0)
                        continue
                    child = child or Child(self.arguments)
                    begin = monotonic()
                    state, why, useless = child.ask(unit, min(left, self.most))
                    if state == HUNG and left < self.most:
                        state = LEFT_OUT
                    self._add(unit, DIED if useless and state == WRONG else state, why, monotonic() - begin)
                    if useless:
                        child.end()
                        child = None
        finally:
            if child is not None:
                child.end()

    def _next(self) -> list[Unit]:
        with self._lock:
            return self.units.popleft() if self.units else []

    def _add(self, unit: Unit, state: str, why: str, seconds: float) -> None:
        with self._lock:
            found = self.found[unit[0]]
            small = found.form.problems[unit[1]]
            found.add(small, state, why, seconds)
            found.left -= 1
            if state != LEFT_OUT:
                where = f"{found.form.name}: {small.name}"
                print(f"right: {where}" if state == RIGHT else f"WRONG: {where}: {why}", flush=True)
            if not found.left:
                found.tell(self.reasons)


def parts(form: Form) -> Iterator[list[Unit]]:
    """Yield problems that one process is to answer: those that have the same kernels, which it then compiles once."""
    numbers = itertools.groupby(range(len(form.problems)), lambda number: form.problems[number][1:4])
    for _, some in numbers:
        yield [(form.name, number) for number in some]


def run(backends: Sequence[str], few: bool, seconds: float = math.inf) -> list[str]:
    """Check all forms of backends for so many seconds at most; return what is wrong."""
    return Picks(backends, few, seconds).run(max(1, min(MOST_CHILDREN, ledger.cores() // CORES_OF_EACH)))
