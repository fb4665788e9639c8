"""Machine code of kernels for Hopper with its encodings, which say how the compiler schedules it (`chain.py`)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu import resources
from benchmarks.gpu.compilation import Task
from ragsys_kernels._gpu import cuda_module


def compile_all(tasks: Sequence[Task], processes: int | None, triton: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the code of each kernel that the tasks compile to; ``triton`` as in `resources.pool`."""
    for task, result in resources.compile_all([task for task in tasks if task.path is None], processes, triton):
        if isinstance(result, str):
            raise SystemExit(f"error: {task.name}: {result}")
        for kernel in result:
            yield kernel.name, "".join(_listings(kernel.cubin).values())
    for task in tasks:
        if task.path is not None:
            yield from _listings(_cubin(task.path, task.arch)).items()


def _cubin(path: Path, arch: str) -> bytes:
    """Return a CUDA C++ file as `resources.compile_cu` compiles it, which keeps no code."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        resources._run(
            [str(resources.nvcc()), "-cubin", f"-arch={arch}", *cuda_module.OPTIONS, "-o", str(cubin), str(path)]
        )
        return cubin.read_bytes()


def _listings(cubin: bytes) -> dict[str, str]:
    """Return what `nvdisasm -c -hex` prints of each kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        listing = resources._run([resources._tool("nvdisasm"), "-c", "-hex", str(path)])
    parts = re.split(r"^\.text\.([\w.$]+):\s*$", listing, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
