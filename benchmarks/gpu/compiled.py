"""The ledger of compiled GPU kernels, results/compiled.csv: which resources each needs on each architecture.

Triton's kernels have rows by each of its compilers that has been at hand: the one that is installed, and those in the
folders build/triton/VERSION, which `TRITON_VERSIONS="..." make bench-static` makes. Rows by others stay, as long as the
kernels are what they compiled. The tests want the oldest and the newest that the library is held to.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu import compilation, resources
from benchmarks.gpu.compilation import Task
from benchmarks.gpu.resources import Compiled
from benchmarks.harness.ledger import RESULTS, ROOT, Ledger, Row, read
from ragsys_kernels._gpu import compilers

# The module that compiles the kernels and reads their needs from what the compilers say.
READER = Path(resources.__file__)
# Other Tritons than the one that is installed.
TRITONS = ROOT / "build" / "triton"
# Whose rows have to be there, of all kernels; the last is the one of pages and budgets.
NEEDED = tuple(f"triton {version}" for version in (compilers.OLDEST, compilers.NEWEST))

_KEY = ("kernel", "arch", "compiler")
LEDGER = Ledger(
    RESULTS / "compiled.csv",
    _KEY,
    (
        *_KEY,
        "source",  # digest of all that decides the machine code but the compiler
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


def installed() -> str:
    """Return the Triton that is installed."""
    return f"triton {metadata.version('triton')}"


def at_hand() -> dict[str, Path | None]:
    """Return the Tritons that there are, and the folders of those that are not installed."""
    folders = sorted(TRITONS.iterdir()) if TRITONS.is_dir() else []
    return {**{f"triton {folder.name}": folder for folder in folders}, installed(): None}


@lru_cache(maxsize=1)
def nvcc() -> str:
    said = subprocess.run([str(resources.nvcc()), "--version"], capture_output=True, text=True, check=True).stdout
    return f"nvcc {re.findall(r'V([0-9.]+)', said)[0]}"


def row_of(task: Task, kernel: Compiled, compiler: str) -> dict[str, object]:
    """Return the row of compiled.csv for a kernel."""
    columns = ("threads", "registers", "stack", "spills", "shared")
    return {
        "kernel": kernel.name,
        "arch": kernel.arch,
        "compiler": compiler,
        "source": task.source,
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


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return the rows by the compilers of pages and budgets: nvcc, and one Triton."""
    return [row for row in rows if row["compiler"] == NEEDED[-1] or not is_triton(row["compiler"])]


def is_triton(compiler: str) -> bool:
    return compiler.startswith("triton ")


def refresh(path: Path, processes: int | None = None) -> list[Row]:
    """Bring compiled.csv up to date; compile only what has changed."""
    todo = tasks(processes)
    triton = [task for task in todo if task.path is None]
    found = read(path) if vouches(path, path, READER) else []
    # What other compilers made of kernels that are as they were.
    current, here = {(task.name, task.arch, task.source) for task in triton}, at_hand()
    others = [row for row in found if is_triton(row["compiler"]) and row["compiler"] not in here]
    rows = [row for row in others if (row["kernel"], row["arch"], row["source"]) in current]

    jobs = [(compiler, folder, triton) for compiler, folder in here.items()]
    if len(triton) < len(todo):
        jobs.append((nvcc(), None, [task for task in todo if task.path is not None]))
    missing: list[tuple[str, Path | None, list[Task]]] = []
    for compiler, folder, listed in jobs:
        known, left = _known(found, compiler, listed)
        rows += known
        missing.append((compiler, folder, left))
    failed = []
    for compiler, folder, left in missing:
        for done, (task, result) in enumerate(resources.compile_all(left, processes, folder), 1):
            if isinstance(result, str):
                failed.append(f"{compiler}: {result}")
            else:
                rows += [LEDGER.texts(row_of(task, kernel, compiler)) for kernel in result]
            if done % 20 == 0 or done == len(left):
                print(f"{compiler}: {done} of {len(left)} compiled", flush=True)
                _save(path, rows)  # a run that is stopped keeps what it compiled
    _save(path, rows)
    if failed:
        raise SystemExit("error: not everything compiles:\n" + "\n".join(failed))
    return read(path)


def _known(found: list[Row], compiler: str, listed: list[Task]) -> tuple[list[Row], list[Task]]:
    """Return the rows by a compiler that are of these tasks, and the tasks that have none.

    Configurations with different names may compile to the same; a CUDA C++ file has many kernels. What is refused is
    no task.
    """
    by_source: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        if row["compiler"] == compiler:
            by_source.setdefault((row["source"], row["arch"]), []).append(row)
    rows, left = [], []
    for task in listed:
        if refused(compiler, task.arch):
            continue
        of_task = by_source.get((task.source, task.arch), [])
        of_task = [row for row in of_task if task.path is not None or row["kernel"] == task.name]
        rows += of_task
        if not of_task:
            left.append(task)
    return rows, left


def refused(compiler: str, arch: str) -> bool:
    """Return whether the library refuses a compiler for an architecture."""
    return is_triton(compiler) and (compilers.numbers(compiler.split()[1]), arch) in compilers.REFUSED


def _save(path: Path, rows: list[Row]) -> None:
    path.unlink(missing_ok=True)  # a kernel that is gone leaves no row
    rows = sorted(rows, key=lambda row: (row["kernel"], row["arch"], row["compiler"]))
    LEDGER.at(path).update(rows)
    path.with_suffix(".sha256").write_text("".join(f"{_checksum(file)}\n" for file in (path, READER)), encoding="utf-8")
