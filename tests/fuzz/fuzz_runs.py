"""Runs the cases of a fuzzer in processes of their own, so that one that crashes or hangs is seen and named.

A case is a number; `Fuzzer.run_one(seed, number)` makes it, returns how much it has done, and raises WrongError if it
went wrong. Process p of n makes the cases p, p + n, p + 2n, ... until its share is done.
"""

import argparse
import json
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HANGS = 60  # seconds that a case may take, on a busy machine too
MEMORY = 8 << 30
ENOUGH = 50  # failures of a process


class WrongError(AssertionError):
    """What a case found."""


def ended(op: str, call: Callable[[], Any], documented: tuple[type[Exception], ...]) -> tuple[Any, str | None]:
    """What a call returns, or the text of the error that it ends in: one line that begins with its name."""
    try:
        return call(), None
    except documented as error:
        text = str(error)
        plain = type(error).__module__ == "builtins" and not isinstance(error, UnicodeError)
        if not (plain and text.startswith(f"{op}: ") and "\n" not in text):
            raise WrongError(f"{op}: its error is {error!r}") from error
        return None, text


class Fuzzer(NamedTuple):
    file: str
    what: str  # of which a run makes so many
    amount: int
    run_one: Callable[[int, int], int]
    describe: Callable[[int, int], str]  # a case that went wrong, in words
    prepare: Callable[[], None] = lambda: None  # a process that makes nothing but cases


class Share(NamedTuple):
    seed: int
    first: int
    step: int
    amount: int


def run(fuzzer: Fuzzer, share: Share, begun: Callable[[int, int], None] = lambda *_: None) -> list[tuple[int, str]]:
    """Cases of this process; the numbers of those that went wrong, and how."""
    failures: list[tuple[int, str]] = []
    number, done = share.first, 0
    while done < share.amount and len(failures) < ENOUGH:
        begun(number, done)
        try:
            done += fuzzer.run_one(share.seed, number)
        except Exception as error:
            what = error if isinstance(error, WrongError) else traceback.format_exc()
            failures.append((number, f"{what}\n  {fuzzer.describe(share.seed, number)}"))
            done += 1
        number += share.step
    begun(number, done)
    return failures


def _work(fuzzer: Fuzzer, share: Share, progress: str) -> None:
    """`run` in a process that may die: where it is goes to a file."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    fuzzer.prepare()
    with open(progress, "r+b") as file, mmap.mmap(file.fileno(), 16) as place:

        def begun(number: int, done: int) -> None:
            place[:] = struct.pack("qq", number, done)
            signal.alarm(HANGS)

        for failure in run(fuzzer, share, begun):
            print(json.dumps(failure), flush=True)


def _watched(fuzzer: Fuzzer, share: Share) -> tuple[int, int, list[tuple[int, str]]]:
    """`run` in processes, a new one after each that died; the next case, what was done and what went wrong."""
    failures, done = [], 0
    while done < share.amount and len(failures) < ENOUGH:
        with tempfile.NamedTemporaryFile() as progress:
            progress.write(struct.pack("qq", -1, 0))
            progress.flush()
            command = [sys.executable, fuzzer.file, "--worker", *map(str, share._replace(amount=share.amount - done))]
            process = subprocess.run(
                [*command, progress.name],
                capture_output=True,
                text=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
            last, made = struct.unpack("qq", Path(progress.name).read_bytes())
        done += made
        share = share._replace(first=last)
        failures += [(int(number), str(text)) for number, text in map(json.loads, process.stdout.splitlines())]
        if process.returncode == 0:
            break
        if last < 0:
            raise SystemExit(f"a process of the fuzzer did not start: {process.stderr}")
        code = process.returncode
        how = f"crashes with {signal.Signals(-code).name}" if code < 0 else f"ends its process with {code}"
        if code == -signal.SIGALRM:
            how = f"hangs for {HANGS} s"
        failures.append((last, f"{how}\n{process.stderr[-500:]}"))
        share = share._replace(first=last + share.step)
    return share.first, done, failures


def printed(script: str, *arguments: Any) -> Any:
    """What a script of this folder prints, as JSON."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, script, *map(str, arguments)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return json.loads(ended.stdout)


def main(fuzzer: Fuzzer, doc: str) -> int:
    """The command line of a fuzzer."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(f"--{fuzzer.what}", dest="amount", type=int, default=fuzzer.amount)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--case", type=int, help="make this case alone, in this process")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.worker:
        _work(fuzzer, Share(*map(int, wanted.worker[:4])), wanted.worker[4])
        return 0
    if wanted.case is not None:
        print(fuzzer.describe(wanted.seed, wanted.case))
        print(f"{fuzzer.run_one(wanted.seed, wanted.case)} {fuzzer.what} are right")
        return 0
    begin, n = time.perf_counter(), wanted.processes
    shares = [Share(wanted.seed, p, n, -(-wanted.amount // n)) for p in range(n)]
    with ThreadPoolExecutor(n) as pool:
        parts = list(pool.map(_watched, [fuzzer] * n, shares))
    failures = sorted(failure for part in parts for failure in part[2])
    command = f"python {os.path.relpath(fuzzer.file)} --seed {wanted.seed} --case"
    for number, text in failures:
        print(f"case {number}: {text}\n  {command} {number}")
    cases, done = sum((part[0] - p) // n for p, part in enumerate(parts)), sum(part[1] for part in parts)
    seconds = time.perf_counter() - begin
    print(
        f"{fuzzer.what}: {done} in {cases} cases of seed {wanted.seed}, {len(failures)} failures, {seconds:.0f} s",
        flush=True,
    )
    return 1 if failures or done < wanted.amount else 0
