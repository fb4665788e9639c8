"""What Triton's compiler makes of a kernel between its source and the machine code."""

import re
from importlib import import_module

from ragsys_kernels._gpu import resources


def stages_of(module, name, arch):
    """The text of each stage ("ttir", "ttgir", ..) of the one compilation of a module with this name.

    In a process without TRITON_INTERPRET: of `resources.pool`.
    """
    import triton

    (compilation,) = (c for c in import_module(module).ahead_of_time() if c.name == name)
    made, compile = [], triton.compile
    triton.compile = lambda *args, **kwargs: made.append(compile(*args, **kwargs)) or made[-1]
    try:
        resources.compile_for(compilation, arch)
    finally:
        triton.compile = compile
    return {stage: text for stage, text in made[0].asm.items() if isinstance(text, str)}


def accumulators(ttir):
    """What each product of matrices is added to: the line that defines it."""
    names = re.findall(r"= tt\.dot %\w+, %\w+, (%\w+)", ttir)
    return [re.search(rf"^\s*{name}(?::\d+)? = (.*)", ttir, re.M) for name in names]
