"""A stage: steps in the order in which they are worth their time, within a budget, and the files that it writes.

Every step is a process (or several at once), so that a kernel that crashes, hangs or leaves the device in a bad state
costs its own step only. What a step finds it prints (`harness/facts.py`); the stage keeps everything in STAGE.log and
the facts in STAGE.json, which is written anew after each step. Nothing here needs a library.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from benchmarks.harness import facts, machine, parent

ROOT = Path(__file__).resolve().parents[2]
LOG_BYTES = 2 << 20  # of one process; of a longer output the end is kept
SHOWN = 12  # lines of a kind that are printed at the end

DONE, WRONG, REFUSED, LEFT_OUT = "done", "wrong", "refused", "left out"
INTERRUPTED = "interrupted"
_WORST_FIRST = (WRONG, LEFT_OUT, REFUSED, DONE)

# Of a process: its exit status (None: it was stopped), the end of its output; returns what that means, and the reason.
Judge = Callable[[int | None, str], tuple[str, str]]


def vital(status: int | None, output: str) -> tuple[str, str]:
    """Whatever a process does but end well is wrong."""
    if status == 0:
        return DONE, ""
    return WRONG, "did not end in its time" if status is None else f"status {status}: {last_line(output)}"


def checked(status: int | None, output: str) -> tuple[str, str]:
    """What a check finds is wrong; what it has no time for is not."""
    return (LEFT_OUT, "stopped at its time") if status is None else vital(status, output)


def helpful(status: int | None, output: str) -> tuple[str, str]:
    """What a tool cannot do here is no defect; what it found is: it says so, or ends with status 9."""
    if status == 9 or facts.told(output.splitlines()).get("wrong"):
        return WRONG, f"status {status}: {last_line(output)}"
    if status == 0:
        return DONE, ""
    return (LEFT_OUT, "stopped at its time") if status is None else (REFUSED, f"status {status}: {last_line(output)}")


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(facts.MARK)]
    return lines[-1].strip()[:300] if lines else "no output"


@dataclass(frozen=True)
class Step:
    """What is run: ``commands(seconds)`` are the processes, by name, for a step that has so long; all at once."""

    name: str
    commands: Callable[[float], Mapping[str, Sequence[str | Path]]]
    most: float  # seconds
    judge: Judge = vital
    environment: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""  # why it cannot run here
    least: float = 5.0  # seconds; with less it is not begun
    always: bool = False  # also when the time is up, and after the stage was interrupted


@dataclass
class Result:
    name: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    clocks: dict[str, str] = field(default_factory=dict)  # after it


def python(*arguments: object) -> list[str]:
    """Return a command of the interpreter in use."""
    return [sys.executable, *map(str, arguments)]


def run(name: str, steps: Sequence[Step], out: Path, budget: float, given: Mapping[str, Any]) -> bool:
    """Run steps for at most ``budget`` seconds; return whether nothing is wrong.

    An interrupt ends the step that runs, and leaves out the others but those that are for always.
    """
    begin = monotonic()
    out.mkdir(parents=True, exist_ok=True)
    log = out / f"{name}.log"
    log.write_text("", encoding="utf-8")
    summary: dict[str, Any] = {
        "stage": name,
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "given": dict(given),
        "machine": machine.state(),
        "versions": machine.versions(),
    }
    results: list[Result] = []
    for step in steps:
        left = budget - (monotonic() - begin)
        if step.absent:
            result = Result(step.name, REFUSED, reason=step.absent)
        elif step.always:
            result = _execute(step, step.most, log)
        elif any(result.reason == INTERRUPTED for result in results):
            result = Result(step.name, LEFT_OUT, reason=INTERRUPTED)
        elif left < step.least:
            result = Result(step.name, LEFT_OUT, reason=f"{max(left, 0):.0f} s were left of the budget of {budget:g} s")
        else:
            result = _execute(step, min(step.most, left), log)
        results.append(result)
        print(f"{name}: {step.name}: {result.status} in {result.seconds:.0f} s {result.reason}".rstrip(), flush=True)
        summary |= {"seconds": round(monotonic() - begin, 1), "right": all(r.status != WRONG for r in results)}
        summary |= {kind: _lines(results, kind) for kind in ("wrong", "unsteady", "absent", "left_out")}
        summary["steps"] = [asdict(result) for result in results]
        (out / f"{name}.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for kind in ("absent", "left_out", "unsteady", "wrong"):
        lines = summary.get(kind, [])
        for line in lines[:SHOWN]:
            print(f"{name}: {kind.replace('_', ' ')}: {line}")
        if len(lines) > SHOWN:
            print(f"{name}: {kind.replace('_', ' ')}: {len(lines) - SHOWN} more, in {name}.json")
    return bool(summary.get("right", True))


def _lines(results: Sequence[Result], kind: str) -> list[str]:
    """Return what steps say of a kind, and the steps that are of this kind themselves."""
    own = {"wrong": WRONG, "absent": REFUSED, "left_out": LEFT_OUT}.get(kind)
    found: list[str] = []
    for result in results:
        if result.status == own:
            found.append(f"{result.name}: {result.reason}")
        found += [str(line) for line in result.facts.get(kind, ())]
    return list(dict.fromkeys(found))


def _execute(step: Step, seconds: float, log: Path) -> Result:
    """Run the processes of a step, at once; the worst of their ends is its own."""
    begin = monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **step.environment}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    commands = step.commands(seconds)
    with tempfile.TemporaryDirectory() as folder:
        outputs = {name: Path(folder, str(number)) for number, name in enumerate(commands)}
        running = {name: _start(command, outputs[name], environment) for name, command in commands.items()}
        ends: dict[str, int | None] = dict.fromkeys(running)
        interrupted = False
        try:
            for name, process in running.items():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ends[name] = process.wait(max(begin + seconds - monotonic(), 0))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            for process in running.values():
                _stop(process)
        found, worst, reasons = dict[str, Any](), DONE, list[str]()
        for name, command in commands.items():
            output = _end_of(outputs[name])
            with log.open("a", encoding="utf-8") as file:
                file.write(f"\n===== {step.name}: {name}, status {ends[name]}\n")
                file.write(f"$ {' '.join(map(str, command))}\n{output}\n")
            status, reason = step.judge(ends[name], output)
            if reason:
                reasons.append(f"{name}: {reason}" if len(commands) > 1 else reason)
            worst = min(worst, status, key=_WORST_FIRST.index)
            if status == WRONG and not interrupted:
                print("\n".join(output.splitlines()[-25:]), flush=True)
            _add(found, facts.told(output.splitlines()))
    if interrupted:
        worst, reasons = LEFT_OUT, [INTERRUPTED]
    return Result(step.name, worst, round(monotonic() - begin, 1), "; ".join(reasons), found, machine.moving())


def _add(found: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        found[name] = [*found.get(name, []), *value] if isinstance(value, list) else value


def _start(command: Sequence[str | Path], output: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            parent.bound(command), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
        except ProcessLookupError:
            break
        for _ in range(20):
            if process.poll() is not None and sent == signal.SIGTERM:
                break
            sleep(0.05)
    process.wait()


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - LOG_BYTES, 0))
        return file.read().decode("utf-8", "replace")
