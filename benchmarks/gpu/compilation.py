"""What is compiled without a device: Triton's kernels in every configuration that a launcher chooses, CUDA C++ files.

``selection_kernels.py`` and ``scoring_kernels.py`` list the former; ``resources.py`` compiles them.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ragsys_kernels._base import sources
from ragsys_kernels.selection.cuda.configuration import CLUSTER_CAPABILITY, RESIDENT_SOURCE

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
NVIDIA = ARCHITECTURES[:3]
HOPPER = "sm_90"

# Each has `ahead_of_time()`, the list of its op's compilations.
TRITON_MODULES = ("benchmarks.gpu.selection_kernels", "benchmarks.gpu.scoring_kernels")


class Compilation(NamedTuple):
    """One Triton kernel in one configuration that its launcher can choose.

    Tests hold each to a budget, and the static report has what each needs.
    """

    name: str  # unique: the kernel's, then what sets this configuration apart ("gram 128 mmr plain float16")
    kernel: Any  # triton.runtime.JITFunction
    signature: dict[str, str]  # "*fp16", "i32", "fp32", ... of the run-time arguments; constexprs may be left out
    constexprs: dict[str, object]
    divisible: tuple[str, ...] = ()  # arguments known to be multiples of 16: aligned pointers, row strides
    num_warps: int = 4
    num_stages: int = 2
    dot16: bool = False  # multiplies 16-bit tiles: matrix instructions are expected
    wide_loads: bool = False  # loads of 16 bytes from global memory are expected
    amd_warps: int | None = None  # where the launcher takes others on AMD, whose warps have 64 lanes
    maxnreg: int | None = None  # registers that a thread may take on NVIDIA; None: what the assembler finds best
    fp_fusion: bool = True  # the launcher's enable_fp_fusion: may a product and a sum become one multiply-add
    archs: tuple[str, ...] = ARCHITECTURES  # where the launcher chooses it

    def on(self, arch: str) -> Compilation:
        """Return what the launcher has compiled on an architecture."""
        if not arch.startswith("gfx"):
            return self._replace(amd_warps=None)
        return self._replace(num_warps=self.amd_warps or self.num_warps, amd_warps=None, maxnreg=None)


def describe(
    name: str,
    kernel: Any,
    types: Mapping[str, str],
    constexprs: Mapping[str, object],
    *,
    absent: Iterable[str] = (),
    multiples: Iterable[str] = (),
    **options: Any,
) -> Compilation:
    """Describe a kernel from the names of its arguments.

    ``types`` has the type of each; those of ``constexprs`` are compiled in, and those that are ``absent`` are None.
    Pointers are aligned, and the integers that ``multiples`` names are multiples of 16.
    """
    left_out, whole = set(absent), set(multiples)
    compiled_in = {**constexprs, **{argument: None for argument in kernel.arg_names if argument in left_out}}
    signature = {argument: types[argument] for argument in kernel.arg_names if argument not in compiled_in}
    divisible = tuple(argument for argument, kind in signature.items() if kind[0] == "*" or argument in whole)
    return Compilation(name, kernel, signature, compiled_in, divisible, **options)


def by_generation(listed: Callable[[bool], Iterable[Compilation]]) -> list[Compilation]:
    """Return what ``listed`` has for Hopper, whose tiles are others, and for the rest (`compilers.is_hopper`)."""
    on_hopper, elsewhere = ({made.name: made for made in listed(hopper)} for hopper in (True, False))
    found = []
    for hopper, here, there in ((True, on_hopper, elsewhere), (False, elsewhere, on_hopper)):
        for name, made in here.items():
            if there.get(name) == made:
                found += [made] if hopper else []
                continue
            archs = tuple(arch for arch in made.archs if (arch == HOPPER) == hopper)
            found += [made._replace(archs=archs)] if archs else []
    return found


@dataclass(frozen=True)
class Task:
    """One thing to compile for an architecture: a Triton configuration of a module, or a CUDA C++ file.

    ``source`` is a digest of all that decides the machine code, but for the compiler.
    """

    arch: str
    name: str
    source: str
    module: str = ""
    index: int = 0
    path: Path | None = None


def triton_tasks(module: str) -> list[Task]:
    """Return all that a module lists, for each of its architectures; in a process without TRITON_INTERPRET."""
    return [
        Task(arch, compilation.name, _source_of(compilation.on(arch)), module, index)
        for index, compilation in enumerate(import_module(module).ahead_of_time())
        for arch in compilation.archs
    ]


def _source_of(compilation: Compilation) -> str:
    import triton

    apart = ("name", "kernel", "amd_warps", "archs")
    options = [str(value) for name, value in compilation._asdict().items() if name not in apart]
    options = [re.sub(r"JITFunction\([\w.]+:", "JITFunction(", option) for option in options]  # wherever its file is
    code = dict(_code(compilation.kernel))
    for value in compilation.constexprs.values():  # functions that the kernel is given
        if isinstance(value, triton.runtime.JITFunction):
            code |= _code(value)
    return sources.of_text("\0".join([*code.values(), *options]))


@functools.cache
def _code(kernel: Any) -> dict[str, str]:
    return _code_of(kernel, {})


def _code_of(kernel: Any, found: dict[str, str]) -> dict[str, str]:
    """Return the code of a kernel and of all that it calls, by name, and the constants in it.

    Triton's own key of a kernel also has the line where it stands and what it says in comments.
    """
    import triton

    if kernel.__name__ in found:
        return found
    tree = kernel.parse()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            if ast.get_docstring(node) is not None:
                del node.body[0]
        elif isinstance(node, ast.arg) and node.annotation is not None and "tl." not in ast.unparse(node.annotation):
            node.annotation = None
    found[kernel.__name__] = ast.unparse(tree)
    for name in sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}):
        value = kernel.fn.__globals__.get(name)
        if isinstance(value, triton.runtime.JITFunction):
            _code_of(value, found)
        elif isinstance(value, triton.language.constexpr):
            found[name] = str(value)
    return found


def cuda_tasks(paths: Sequence[Path]) -> list[Task]:
    """Return the CUDA C++ files, for every architecture of NVIDIA that they have kernels for."""
    return [
        Task(
            arch,
            path.name,
            sources.of_cuda(path),
            path=path,
        )
        for arch in NVIDIA
        for path in paths
        if path.stem != RESIDENT_SOURCE or int(arch.removeprefix("sm_")) >= CLUSTER_CAPABILITY
    ]
