"""The ledger of compiled GPU kernels, results/compiled.csv: which resources each needs on each architecture."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.harness.ledger import RESULTS, ROOT, Ledger, Row, read
from ragsys_kernels._gpu import compilation, resources
from ragsys_kernels._gpu.compilation import Task
from ragsys_kernels._gpu.resources import Compiled

# The module that compiles the kernels and reads their needs from what the compilers say.
READER = Path(resources.__file__)
_KEY = ("kernel", "arch")
LEDGER = Ledger(
    RESULTS / "compiled.csv",
    _KEY,
    (
        *_KEY,
        "source",  # digest of all that decides the machine code but the compiler
        "compiler",
        "threads",  # of a block; 0: the launcher decides
        "registers",
        "stack",
        "spills",
        "shared",  # static, for CUDA C++
        "matrix",  # kinds of matrix instructions, and how many
        "loads",  # bytes of a load from global memory, and how many
        "dot16",
        "wide_loads",
    ),
)


def tasks(processes: int | None = None) -> list[Task]:
    """Return all that has to be compiled."""
    found = []
    with resources.pool(processes) as executor:
        for listed in executor.map(compilation.triton_tasks, compilation.TRITON_MODULES):
            found += listed
    if resources.nvcc() is not None:
        found += compilation.cuda_tasks(sorted((ROOT / "csrc" / "cuda").glob("*.cu")))
    return found


def compiler(task: Task) -> str:
    return _nvcc() if task.path is not None else f"triton {metadata.version('triton')}"


@lru_cache(maxsize=1)
def _nvcc() -> str:
    said = subprocess.run([str(resources.nvcc()), "--version"], capture_output=True, text=True, check=True).stdout
    return f"nvcc {re.findall(r'V([0-9.]+)', said)[0]}"


def row_of(task: Task, kernel: Compiled) -> dict[str, object]:
    """Return the row of compiled.csv for a kernel."""
    columns = ("threads", "registers", "stack", "spills", "shared")
    return {
        "kernel": kernel.name,
        "arch": kernel.arch,
        "source": task.source,
        "compiler": compiler(task),
        **{name: getattr(kernel, name) for name in columns},
        "matrix": _counts(kernel.matrix),
        "loads": _counts(kernel.loads),
        "dot16": int(kernel.dot16),
        "wide_loads": int(kernel.wide_loads),
    }


def compiled_of(row: Mapping[str, str]) -> Compiled:
    """Return the kernel that a row of compiled.csv describes."""
    numbers = {name: int(row[name]) for name in ("threads", "registers", "stack", "spills", "shared")}
    flags = {name: row[name] == "1" for name in ("dot16", "wide_loads")}
    loads = {int(size): count for size, count in _read_counts(row["loads"]).items()}
    return Compiled(row["kernel"], row["arch"], **numbers, **flags, matrix=_read_counts(row["matrix"]), loads=loads)


def _counts(counts: Mapping[Any, int]) -> str:
    return " ".join(f"{kind}:{count}" for kind, count in sorted(counts.items()))


def _read_counts(text: str) -> dict[str, int]:
    return {kind: int(count) for kind, _, count in (part.partition(":") for part in text.split())}


def vouches(path: Path, *files: Path) -> bool:
    """Return whether the checksums beside a compiled.csv are the files': its own, of the code that made it."""
    checksums = path.with_suffix(".sha256")
    if not (path.is_file() and checksums.is_file()):
        return False
    return set(map(_checksum, files)) <= set(checksums.read_text(encoding="utf-8").splitlines())


def _checksum(file: Path) -> str:
    return f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}"


def refresh(path: Path, processes: int | None = None) -> list[Row]:
    """Bring compiled.csv up to date; compile only what has changed."""
    todo = tasks(processes)
    known: dict[tuple[str, str, str], list[Row]] = {}
    for row in read(path) if vouches(path, path, READER) else []:
        known.setdefault((row["source"], row["arch"], row["compiler"]), []).append(row)

    def rows_for(task: Any) -> list[Row]:
        """Configurations with different names may compile to the same; a CUDA C++ file has many kernels."""
        found = known.get((task.source, task.arch, compiler(task)), [])
        return [row for row in found if task.path is not None or row["kernel"] == task.name]

    rows: list[Mapping[str, object]] = [row for task in todo for row in rows_for(task)]
    todo = [task for task in todo if not rows_for(task)]
    failed = []
    for done, (task, result) in enumerate(resources.compile_all(todo, processes), 1):
        if isinstance(result, str):
            failed.append(result)
        else:
            rows += [row_of(task, kernel) for kernel in result]
        if done % 20 == 0 or done == len(todo):
            print(f"{done} of {len(todo)} compiled", flush=True)
            _save(path, rows)  # a run that is stopped keeps what it compiled
    _save(path, rows)
    if failed:
        raise SystemExit("error: not everything compiles:\n" + "\n".join(failed))
    return read(path)


def _save(path: Path, rows: list[Mapping[str, object]]) -> None:
    path.unlink(missing_ok=True)  # a kernel that is gone leaves no row
    rows = sorted(rows, key=lambda row: (str(row["kernel"]), str(row["arch"])))
    LEDGER.at(path).update(rows)
    path.with_suffix(".sha256").write_text("".join(f"{_checksum(file)}\n" for file in (path, READER)), encoding="utf-8")
