"""The ledgers, CSVs of measurements. A row replaces the one with the same key, or is added."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import ragsys_kernels as rk
from ragsys_kernels import _info

PATH = Path(__file__).resolve().parents[1] / "results" / "ledger.csv"

KEY = ("op", "backend", "isa", "shape", "dtype", "lambda_d", "hardware", "contender")
COLUMNS = (
    *KEY,
    "N",
    "D",
    "P",  # empty: the whole corpus
    "K",
    "Q",  # queries of one call
    "duplicates",  # 1: half of each pool are near-duplicates
    "threads",
    "rounds",
    "queries",  # timed in each round
    "us_per_query",  # median over the rounds
    "iqr_us",
    "ratio",  # its time over the library's (float32, relevance computed), median over the rounds
    "floor_us",  # the read floor of its storage type in the same rounds
    "same_picks",  # share of queries with the library's float32 picks
    "products",  # dot products a query
    "dense_products",  # of the dense rule
    "bytes",  # of corpus rows read a query
    "note",
    "commit",
    "versions",
    "date",
)

Row = dict[str, str]

_CHANGED = "-dirty"  # ends the commit of a measurement with changes that were not committed
_LIBRARIES = ("numpy", "torch", "pyversity", "langchain-core", "llama-index-core", "faiss-cpu")


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def published(rows: Iterable[Row]) -> list[Row]:
    """The rows that pages may show: of a commit, not of changes that are in none."""
    return [row for row in rows if not row["commit"].endswith(_CHANGED)]


def update(
    path: Path,
    rows: Iterable[Mapping[str, object]],
    key: tuple[str, ...] = KEY,
    columns: tuple[str, ...] = COLUMNS,
) -> None:
    found = {tuple(row[name] for name in key): row for row in read(path)}
    for row in rows:
        text = {name: _text(row.get(name, "")) for name in columns}
        found[tuple(text[name] for name in key)] = text
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_suffix(".partial")
    with staging.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found.values())
    staging.replace(path)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


@lru_cache(maxsize=1)
def environment() -> dict[str, str]:
    """The columns that are the same for all rows of a run."""
    backend, isa = _info.active()
    return {
        "backend": backend,
        "isa": isa,
        "hardware": hardware(),
        "commit": _commit(),
        "versions": "; ".join([f"ragsys_kernels {rk.__version__}", *filter(None, map(version, _LIBRARIES))]),
        "date": date.today().isoformat(),
    }


def hardware() -> str:
    """Name of the processor and the number of cores this process may use."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def _commit() -> str:
    """Of the code that was measured: results, which benchmarks write as they run, do not make it another."""
    describe = ["git", "rev-parse", "--short", "HEAD"]
    changes = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)benchmarks/results"]
    try:
        commit, changed = (
            subprocess.run(command, cwd=PATH.parents[2], capture_output=True, text=True, check=True).stdout.strip()
            for command in (describe, changes)
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit}{_CHANGED}" if changed else commit


def version(name: str) -> str | None:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return None
