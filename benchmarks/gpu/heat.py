"""One process of the race: it times forms of one shape and writes each to the ledger before the next begins.

    python -m benchmarks.gpu.heat < JOB         # one line of JSON, the fields of a `Heat`

It imports what it needs before it reads its job, so it can be started while another process times. An error of a form
ends the process, because the error may have damaged the state of the device for later forms.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import bench, causes, forms, goals, race
from benchmarks.gpu.events import EventTimer
from benchmarks.gpu.scoring import AbsentError
from benchmarks.harness import ledger
from benchmarks.harness.contender import OURS, Contender
from ragsys_kernels import _dispatch
from ragsys_kernels._base import env as _env

RAISED = 3  # the status of a process whose last form raised
PROMISED = 2e-5  # how far log p may be off for a form to win
MEASURED_ERROR = 1e-2  # for a change, whose error is one of the questions
PROFILED = 2


@dataclass
class Heat:
    """What is timed: entries are pairs of a backend and a contender; our own contenders are forms."""

    ledger: str
    goal: int
    small: bool
    entries: list[list[str]]
    samples: int
    seconds: float  # of the rounds of one entry
    suspects: dict[str, str]  # forms whose picks were wrong elsewhere, and how
    columns: dict[str, str]  # what the driver says of the device
    rows: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    first: float = 0.0  # µs of the first form

    def run(self) -> int:
        self.known = bench.LEDGER.at(Path(self.ledger))
        self.device = ""
        try:
            self._prepare()
        except Exception as error:
            for backend, name in self.entries:
                self._put(self._row(backend, name), state=goals.FAILED, reason=f"{goals.ITS_PROBLEM}{_text(error)}")
            return RAISED
        for backend, name in self.entries:
            if not self._entry(backend, name):
                return RAISED
        self._explain()
        return 0

    def _prepare(self) -> None:
        self.asked = goals.of(self.small)[self.goal]
        self.where = torch.device("cpu" if _env.triton_interpreter() else "cuda")
        self.device = torch.cuda.get_device_name(self.where) if self.where.type == "cuda" else ledger.hardware()
        self.problem = bench.problem_of(self.asked.shape, self.where)
        entries, self.absent = bench.contenders_of(self.problem, forms.BACKENDS, host=False)
        self.contenders = {(entry.backend, entry.name): entry for entry in entries}
        self.race = bench.OnDevice(
            self.problem, [], self.device, EventTimer.on(self.where), self.samples, self.columns
        )  # fmt: skip
        self.race.SECONDS = self.seconds

    def _row(self, backend: str, name: str) -> dict[str, Any]:
        shape = goals.of(self.small)[self.goal].shape
        row = {**ledger.environment(), "op": shape.op, "shape": str(shape), "dtype": shape.dtype}
        return {**row, "backend": backend, "device": self.device, "contender": name}

    def _entry(self, backend: str, name: str) -> bool:
        """Check and time one entry, and write its row; return whether the process may go on."""
        row = self._row(backend, name)
        self._put(row, state=goals.BEGUN)
        try:
            form = next((f for f in forms.of(self.asked.shape) if (f.backend, f.contender) == (backend, name)), None)
            entry = self._contender(backend, name, form)
            if form is None:
                row |= self._timed(entry)
            else:
                with form.entered():
                    row |= self._timed(entry)
                    row |= causes.while_it_runs(entry.run, 1 if self.small else causes.LOADED)
        except (AbsentError, _dispatch.BackendUnavailableError) as error:
            self._put(row, state=goals.ABSENT, reason=str(error))
            return True
        except AssertionError as error:  # of its result
            self._put(row, state=goals.WRONG, reason=_text(error))
            return True
        except Exception as error:  # a kernel may raise anything
            self._put(row, state=goals.FAILED, reason=_text(error))
            return False
        reason = self._why_wrong(row, form)
        self._put(row, state=goals.WRONG if reason else "", reason=reason)
        print(f"  {row['us']:12.1f} µs  {name} {backend}  {reason}", flush=True)
        return True

    def _contender(self, backend: str, name: str, form: forms.Form | None) -> Contender:
        found = self.contenders.get((backend, name if form is None else OURS))
        if found is None:
            raise AbsentError("; ".join(self.absent) or "nothing of this name can be timed here")
        if form is None:
            return found
        if (why := _dispatch.why_not(backend)) is not None:
            raise AbsentError(why)
        error = MEASURED_ERROR if form.change and found.error is not None else found.error
        return replace(found, name=name, error=error)

    def _timed(self, entry: Contender) -> dict[str, Any]:
        self.race.enter(entry)
        causes.synchronize()  # what a kernel did wrong is its own
        self.race.contenders = [entry]
        (row,) = self.race.run(quick=self.small)
        causes.synchronize()
        self.first = self.first or row["us"]
        return {**row, "ratio": row["us"] / self.first}

    def _why_wrong(self, row: dict[str, Any], form: forms.Form | None) -> str:
        """Return why a form that was timed cannot win."""
        if form is None:
            return ""
        off = row.get("max_error")
        if off is not None and off > PROMISED:
            return f"log p is off by {off:.2g}, promised are {PROMISED:g}"
        return race.suspicion(self.asked.shape, form, self.suspects)

    def _put(self, row: dict[str, Any], state: str, reason: str = "") -> None:
        self.rows[row["backend"], row["contender"]] = {**row, "state": state, "reason": reason}
        self.known.update([self.rows[row["backend"], row["contender"]]])

    def _explain(self) -> None:
        """If the goal was missed, write the time of each kernel of the fastest forms."""
        mine = [one for one in goals.found(self.known.read(), [self.asked]) if one.timed]
        for one in mine[:PROFILED] if mine and not mine[0].share >= self.asked.share else ():
            key = one.form.backend, one.form.contender
            if key in self.rows:
                with one.form.entered():
                    row = {**self.rows[key], "kernels": causes.kernels(self._contender(*key, one.form).run)}
                self.known.update([row])


def _text(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main() -> int:
    line = sys.stdin.readline()
    return Heat(**json.loads(line)).run() if line.strip() else 0  # nobody asked


if __name__ == "__main__":
    sys.exit(main())
