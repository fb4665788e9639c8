"""The ledgers, CSVs of measurements in results/. A row replaces the one with the same key, or is added."""

from __future__ import annotations

import csv
import io
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path

import ragsys_kernels as rk
from ragsys_kernels import _info
from ragsys_kernels._base.extras import installed

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DIRTY = "-dirty"  # the end of a commit to which the measured code had changes

Row = dict[str, str]


@dataclass(frozen=True)
class Ledger:
    """A file of rows; ``key`` are the columns by which a row is known, ``columns`` all of them, in order."""

    path: Path
    key: tuple[str, ...]
    columns: tuple[str, ...]

    def at(self, path: Path) -> Ledger:
        """Return the same kind of ledger in another file."""
        return replace(self, path=path)

    def within(self, folder: Path) -> Ledger:
        """Return the ledger of this name in another folder."""
        return self.at(folder / self.path.name)

    def read(self) -> list[Row]:
        return read(self.path)

    def texts(self, row: Mapping[str, object]) -> Row:
        """Return a row as the file has it."""
        return {name: text(row.get(name, "")) for name in self.columns}

    def update(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Put rows in the places of those with the same key, or at the end."""
        found = {tuple(row[name] for name in self.key): row for row in self.read()}
        for row in rows:
            texts = self.texts(row)
            found[tuple(texts[name] for name in self.key)] = texts
        self.replace(found.values())

    def replace(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Write these rows and no others; who reads meanwhile sees those of before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staging = self.path.with_suffix(".partial")
        with staging.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        staging.replace(self.path)


def read(path: Path) -> list[Row]:
    """Return the rows of a ledger, none where there is no file.

    A last row without its newline, or with fewer columns than the header, was cut: it is named and ignored, as no one
    knows how its last figure went on. ValueError: what is no UTF-8 or no CSV, or another row of other columns.
    """
    if not path.exists():
        return []
    whole, newline, cut = path.read_bytes().rpartition(b"\n")
    try:
        header, *lines = list(csv.reader(io.StringIO((whole + newline).decode(), newline=""))) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: must be a CSV in UTF-8: {error}") from None
    lines = [line for line in lines if line]
    incomplete = cut.decode(errors="replace")
    if lines and len(lines[-1]) < len(header):
        incomplete = ",".join(lines.pop()) + newline.decode() + incomplete
    if incomplete:
        print(f"{path}: the last row is incomplete and ignored: {incomplete.strip()[:200]!r}", file=sys.stderr)
    for number, line in enumerate(lines, 1):
        if len(line) != len(header):
            raise ValueError(f"{path}: row {number} must have the {len(header)} columns of its header, got {len(line)}")
    return [dict(zip(header, line, strict=True)) for line in lines]


def published(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that pages may show: of committed code, so that it can be measured again."""
    return [row for row in rows if not row["commit"].endswith(DIRTY)]


def text(value: object) -> str:
    """Return a value as a ledger has it."""
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


_LIBRARIES = ("numpy", "torch", "pyversity", "langchain-core", "llama-index-core", "faiss-cpu")


@lru_cache(maxsize=1)
def environment() -> dict[str, str]:
    """Return the columns that are the same for all rows of a run."""
    backend, isa = _info.active()
    return {
        "backend": backend,
        "isa": isa,
        "hardware": hardware(),
        "commit": _commit(),
        "versions": versions(_LIBRARIES),
        "date": date.today().isoformat(),
    }


def hardware() -> str:
    """Return the name of the processor and the number of cores this process may use."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{name}, {cores()} cores"


def is_processor(device: str) -> bool:
    """Return whether a device is a processor, as `hardware` names it."""
    return re.search(r", \d+ cores$", device) is not None


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions(distributions: Iterable[str]) -> str:
    """Return the library's version and those of the distributions that are installed."""
    found = {"ragsys_kernels": rk.__version__, **installed(distributions)}
    return "; ".join(f"{name} {version}" for name, version in found.items())


def _commit() -> str:
    """Return the commit of the measured code; results, which benchmarks write as they run, are no changes to it.

    A copy of the tree may have no commit of its own, or another's: RAGSYS_KERNELS_COMMIT names it.
    """
    named = os.environ.get("RAGSYS_KERNELS_COMMIT")
    if named is not None or not (ROOT / ".git").exists():  # git would look for one above
        return named or ""
    describe = ["git", "rev-parse", "--short", "HEAD"]
    changes = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)benchmarks/results"]
    try:
        commit, changed = (
            subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (describe, changes)
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit}{DIRTY}" if changed else commit
