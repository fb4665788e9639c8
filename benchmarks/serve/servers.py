"""Servers in processes of their own, each held to the cores that it is given."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.harness.ledger import ROOT

_READY_SECONDS = 60


@dataclass(frozen=True)
class Cores:
    """The core of the server, and that of the load."""

    server: int
    load: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise SystemExit("error: the server and the load need a core each, got one core")
        return cls(cores[0], cores[-1])


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str
    pid: int

    def resident(self) -> float:
        """Return its resident memory in MB, that of its workers too."""
        return sum(_resident(pid) for pid in (self.pid, *self.workers()))

    def processor(self) -> float:
        """Return the seconds of processor that it has taken so far, without its workers."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def workers(self) -> list[int]:
        """Return the processes that it has started and that are alive."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in children if "spawn_main" in _command(pid)]


@contextlib.contextmanager
def serving(folder: Path, cores: Sequence[int], *options: str) -> Iterator[Server]:
    """Yield ``ragsys-kernels serve`` with the corpus of a folder, under the name docs."""
    command = ["-m", "ragsys_kernels.cli", "serve", "--corpus", f"docs={folder}", "--no-access-log", *options]
    with _running([*command, "--port"], cores, "/health/ready") as server:
        yield server


@contextlib.contextmanager
def empty(cores: Sequence[int]) -> Iterator[Server]:
    """Yield a server whose handler does nothing."""
    with _running(["-m", "benchmarks.serve.empty"], cores, "/") as server:
        yield server


@contextlib.contextmanager
def _running(command: list[str], cores: Sequence[int], path: str) -> Iterator[Server]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, *command, str(port)], cwd=ROOT, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + _READY_SECONDS
        while not _answers(url + path):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"error: the server did not become ready: {' '.join(command)}")
            time.sleep(0.05)
        yield Server(url, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError):
        return False


def _resident(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _command(pid: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
