"""Load on a server: as many requests as it answers by wrk, more than that by h2load, a constant rate by `constant`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.harness.ledger import ROOT

_SCRIPT = Path(__file__).with_name("replay.lua")
_PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client"}


@dataclass(frozen=True)
class Loaded:
    """What a server did under a load; times in microseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    broken: int = 0  # connections that failed, answers that did not come
    statuses: dict[int, int] = field(default_factory=dict)  # of answers; empty: all are below 400

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def need_tools() -> None:
    """Say what is missing before anything is measured."""
    for tool, package in _PACKAGES.items():
        if shutil.which(tool) is None:
            raise SystemExit(f"error: {tool} is missing: apt-get install {package}")


def saturate(url: str, bodies: Path, kind: str, connections: int, seconds: float, core: int) -> Loaded:
    """Send the requests of a file over so many connections, on each the next when the last was answered."""
    command = [
        "wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{max(1, round(seconds))}s",
        "--timeout", "30s", "--script", str(_SCRIPT), url, "--", str(bodies), kind,
    ]  # fmt: skip
    found = json.loads(_run(command, core).splitlines()[-1])
    if found["refused"]:
        raise SystemExit(f"error: {found['refused']} of {found['requests']} requests were refused by {url}")
    return Loaded(found["requests"], found["seconds"], found["p50"], found["p99"], found["broken"])


def constant(url: str, bodies: Path, kind: str, rate: float, connections: int, seconds: float, core: int) -> Loaded:
    """Send the requests of a file at a constant rate, whatever the server answers, over so many connections."""
    numbers = (f"{rate:.6f}", str(connections), f"{seconds:g}")
    command = [sys.executable, "-m", "benchmarks.serve.constant", url, str(bodies), kind, *numbers]
    found = json.loads(_run(command, core))
    statuses = {int(status): count for status, count in found.pop("statuses").items()}
    return Loaded(**found, statuses=statuses)


def flood(url: str, body: bytes, kind: str, rate: float, connections: int, seconds: float, core: int) -> Loaded:
    """Send one request again and again, at a rate that may be more than the server can answer.

    Each connection sends at its share of the rate; one whose last request is not answered yet waits for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        log, sent = Path(folder, "log"), Path(folder, "body")
        sent.write_bytes(body)
        command = [
            "h2load", "--h1", "--threads", "1", "--clients", str(connections), "--rps", f"{rate / connections:.6f}",
            "--duration", f"{max(1, round(seconds))}", "--header", f"content-type: {kind}", "--data", str(sent),
            "--log-file", str(log), url,
        ]  # fmt: skip
        _run(command, core)
        rows = np.loadtxt(log, dtype=np.int64, ndmin=2)
    statuses = Counter(rows[:, 1].tolist())
    broken = statuses.pop(-1, 0)
    taken = rows[rows[:, 1] >= 0, 2]
    p50, p99 = np.percentile(taken, [50, 99])
    return Loaded(len(taken), max(1, round(seconds)), float(p50), float(p99), broken, dict(statuses))


def replayed(path: Path, bodies: Sequence[bytes]) -> Path:
    """Write requests as the script reads them; return the file."""
    path.write_bytes(b"".join(b"%08d%b" % (len(body), body) for body in bodies))
    return path


def _run(command: list[str], core: int) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout
