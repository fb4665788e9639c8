"""What a kernel needs of a device, without one: it is compiled ahead of time and its machine code is read.

Registers, stack and shared memory come from ptxas and the tools in Triton's wheel (NVIDIA) or from the notes in the
assembly (AMD); matrix instructions and the widths of loads are counted in the assembly. Nothing here runs a kernel.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.compilation import Compilation, Task
from ragsys_kernels._base import env
from ragsys_kernels._gpu import cuda_module


class CompileError(RuntimeError):
    """A kernel that the compiler refuses, with what it said."""


@dataclass(frozen=True)
class Compiled:
    """What one kernel needs on one architecture. Registers are of a thread, memory in bytes."""

    name: str
    arch: str
    threads: int  # of a block; 0: the launcher decides
    registers: int
    stack: int  # of a thread: spilled registers and arrays that are indexed at run time
    spills: int  # bytes spilled by a thread: stores and loads as the compiler counts them; of AMD registers
    shared: int  # of a block
    matrix: dict[str, int] = field(default_factory=dict)  # matrix instructions by kind
    loads: dict[int, int] = field(default_factory=dict)  # instructions that read global memory, by bytes a thread
    dot16: bool = False
    wide_loads: bool = False
    asm: str = field(default="", repr=False, compare=False)
    ir: str = field(default="", repr=False, compare=False)  # Triton's own, in which addresses are still of the source
    cubin: bytes = field(default=b"", repr=False, compare=False)  # of Triton's kernels for NVIDIA

    @property
    def widest_load(self) -> int:
        return max(self.loads, default=0)


def compile_for(compilation: Compilation, arch: str) -> Compiled:
    """Compile one configuration for "sm_80", "sm_90", "sm_100" or "gfx942", in a cache of its own.

    Needs Triton and no device. In a process of `pool`: with TRITON_INTERPRET nothing can be compiled.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    compilation = compilation.on(arch)
    kernel, constexprs = compilation.kernel, compilation.constexprs
    names = list(kernel.arg_names)
    given = {**compilation.signature, **dict.fromkeys(constexprs, "constexpr")}
    source = ASTSource(
        kernel,
        {name: given[name] for name in names},
        constexprs,
        {(names.index(name),): [["tt.divisibility", 16]] for name in compilation.divisible},
    )
    target = GPUTarget("hip", arch, 64) if arch.startswith("gfx") else GPUTarget("cuda", int(arch[3:]), 32)
    options = {
        "num_warps": compilation.num_warps,
        "num_stages": compilation.num_stages,
        "enable_fp_fusion": compilation.fp_fusion,
        **({} if compilation.maxnreg is None else {"maxnreg": compilation.maxnreg}),
    }
    with tempfile.TemporaryDirectory() as folder, env.changed(TRITON_CACHE_DIR=folder):
        try:
            binary = triton.compile(source, target=target, options=options)
        except Exception as error:  # the compiler's own errors have no common type
            raise CompileError(f"{compilation.name}, {arch}: {type(error).__name__}: {error}") from error
        facts = _amd(binary.asm["amdgcn"]) if arch.startswith("gfx") else _nvidia(binary, Path(folder), arch)
    return Compiled(
        name=compilation.name,
        arch=arch,
        threads=compilation.num_warps * target.warp_size,
        shared=int(binary.metadata.shared),
        dot16=compilation.dot16,
        wide_loads=compilation.wide_loads,
        ir=binary.asm["ttir"],
        **facts,
    )


def _tool(name: str) -> str:
    """Return the path of a program of the CUDA toolkit: the one in Triton's wheel, or the name for one on PATH."""
    import triton

    inside = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return str(inside) if inside.is_file() else name


def _run(command: list[str]) -> str:
    """Return what a program prints, standard error included."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise CompileError(f"{Path(command[0]).name} {command[-1]}: {result.stdout.strip()}")
    return result.stdout


def _nvidia(binary: Any, folder: Path, arch: str) -> dict[str, Any]:
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    said = _run([_tool("cuobjdump"), "--dump-resource-usage", str(cubin)])
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
    ptx = binary.asm["ptx"]
    return {
        "registers": usage["REG"],
        "stack": usage["STACK"],
        "spills": usage["STACK"] + usage["LOCAL"],  # the kernels have no arrays of their own
        "matrix": _count(
            ptx, {"mma.sync": r"\bmma\.sync", "wgmma": r"\bwgmma\.mma_async", "tcgen05": r"\btcgen05\.mma"}
        ),
        "loads": ptx_loads(ptx),
        "asm": ptx,
        "cubin": binary.asm["cubin"],
    }


def _count(text: str, kinds: dict[str, str]) -> dict[str, int]:
    counts = {kind: len(re.findall(pattern, text)) for kind, pattern in kinds.items()}
    return {kind: count for kind, count in counts.items() if count}


def ptx_loads(ptx: str) -> dict[int, int]:
    """Count loads and asynchronous copies from global memory in PTX, by the bytes that one instruction moves."""
    loads = Counter(
        int(count or 1) * int(bits) // 8
        for count, bits in re.findall(r"\bld\.global(?:\.[\w:]+?)*?(?:\.v(\d))?\.[bsuf](\d+)\b", ptx)
    )
    loads.update(int(size, 0) for size in re.findall(r"\bcp\.async\.c[ag]\.shared\.global[^;]*?, (0x\w+|\d+)", ptx))
    return dict(loads)


def _amd(asm: str) -> dict[str, Any]:
    def note(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s+(\d+)", asm)[-1])

    loads = re.findall(r"\b(?:global|buffer)_load_(dword|[us]?short|[us]?byte)(?:x(\d))?", asm)
    return {
        "registers": note("vgpr_count"),
        "stack": note("private_segment_fixed_size"),
        "spills": note("vgpr_spill_count"),
        "matrix": _count(asm, {"mfma": r"\bv_mfma_"}),
        "loads": dict(Counter(_AMD_BYTES[kind[-4:]] * int(count or 1) for kind, count in loads)),
        "asm": asm,
    }


_AMD_BYTES = {"word": 4, "hort": 2, "byte": 1}


# --- CUDA C++.


def nvcc() -> str | None:
    """Return the path of the CUDA toolkit's compiler, or None."""
    found = shutil.which("nvcc")
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return found or (f"{home}/bin/nvcc" if Path(home, "bin", "nvcc").is_file() else None)


def compile_cu(path: Path, arch: str) -> list[Compiled]:
    """Compile a CUDA C++ file with nvcc and read each of its kernels; warnings are errors.

    Shared memory is the static part: the launcher adds the dynamic one.
    """
    compiler = nvcc()
    if compiler is None:
        raise CompileError(f"{path.name}, {arch}: nvcc is not installed")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        flags = [*cuda_module.OPTIONS, "-Werror", "all-warnings", "-Xptxas", "-v"]
        said = _run([compiler, "-cubin", f"-arch={arch}", *flags, "-o", str(cubin), str(path)])
        listing = _run([_tool("nvdisasm"), "-c", str(cubin)])
    parts = re.split(r"^\.text\.([\w.$]+):\s*$", listing, flags=re.M)
    code = dict(zip(parts[1::2], parts[2::2], strict=True))
    parts = re.split(r"Compiling entry function '([^']+)'", said)
    return [
        Compiled(
            name=name,
            arch=arch,
            threads=0,
            registers=_number(r"Used (\d+) registers", about),
            stack=_number(r"(\d+) bytes stack frame", about),
            spills=_number(r"(\d+) bytes spill stores", about) + _number(r"(\d+) bytes spill loads", about),
            shared=_number(r"(\d+) bytes smem", about),
            matrix=_count(code[name], {"mma.sync": r"\bHMMA\b", "wgmma": r"\bHGMMA\b", "tcgen05": r"\bUTC\w*MMA\b"}),
            loads=sass_loads(code[name]),
            asm=code[name],
        )
        for name, about in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _number(pattern: str, text: str) -> int:
    """Return the number that a pattern finds; 0 where ptxas leaves it out."""
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def sass_loads(sass: str) -> dict[int, int]:
    """Count loads and asynchronous copies from global memory in SASS, by bytes a thread; the suffix has the width."""
    loads: Counter[int] = Counter()
    for suffixes in re.findall(r"\bLDG(?:STS)?\.([\w.]+)", sass):
        width = re.search(r"\b(?:[US](?=8|16))?(8|16|64|128|256)\b", suffixes)
        loads[int(width[1]) // 8 if width else 4] += 1
    return dict(loads)


def sass_of(kernel: Compiled) -> str:
    """Return the machine code of a kernel for NVIDIA, as `nvdisasm -c` prints it."""
    if not kernel.cubin:  # of CUDA C++
        return kernel.asm
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(kernel.cubin)
        return _run([_tool("nvdisasm"), "-c", str(cubin)])


# --- Anything, in processes of their own.


def attempt(task: Task) -> list[Compiled] | str:
    """Return what a task compiles to, or the error's text."""
    try:
        if task.path is not None:
            return compile_cu(task.path, task.arch)
        return [compile_for(import_module(task.module).ahead_of_time()[task.index], task.arch)]
    except CompileError as error:
        return str(error)


def compile_all(
    tasks: Sequence[Task], processes: int | None = None, triton: Path | None = None
) -> Iterator[tuple[Task, list[Compiled] | str]]:
    """Yield the tasks in order, each with what it compiled to or the error's text.

    A compiler that dies takes all processes of a pool with it: what it was at is compiled again, one task at a time.
    """
    todo, alone = list(tasks), False
    while todo:
        with pool(1 if alone else processes, triton) as executor:
            running = [executor.submit(attempt, task) for task in (todo[:1] if alone else todo)]
            for task, future in zip(list(todo), running, strict=False):
                try:
                    result = future.result()
                except BrokenProcessPool:
                    if not alone:
                        alone = True
                        break
                    result = f"{task.name}, {task.arch}: the compiler died"
                yield task, result
                del todo[0]
            else:
                alone = False


def pool(processes: int | None = None, triton: Path | None = None) -> ProcessPoolExecutor:
    """Return processes that can compile, without TRITON_INTERPRET, whatever this one has imported.

    ``triton`` is a folder with the Triton to compile with, if it is not the one that is installed.
    """
    # Not forked: this process may have threads, and Triton's choice between interpreter and compiler is for good.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes or os.cpu_count(), context, _begin, (triton,))


def _begin(triton: Path | None) -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    if triton is not None:
        sys.path.insert(0, str(triton))
