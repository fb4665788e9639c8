"""What Triton's compiler makes of a kernel between its source and the machine code."""

import re
from importlib import import_module

from benchmarks.gpu import resources


def stages_of(module, name, arch, **changes):
    """The text of each stage ("ttir", "ttgir", ..) of a module's compilation of this name, and its ``num_stages``.

    In a process without TRITON_INTERPRET: of `resources.pool`. ``changes``: other fields of the compilation.
    """
    import triton

    (compilation,) = (c for c in import_module(module).ahead_of_time() if c.name == name and arch in c.archs)
    compilation = compilation._replace(**changes)
    made, compile = [], triton.compile
    triton.compile = lambda *args, **kwargs: made.append(compile(*args, **kwargs)) or made[-1]
    try:
        resources.compile_for(compilation, arch)
    finally:
        triton.compile = compile
    texts = {stage: text for stage, text in made[0].asm.items() if isinstance(text, str)}
    return {**texts, "num_stages": compilation.num_stages}


def accumulators(ttir):
    """What each product of matrices is added to: the line that defines it."""
    names = re.findall(r"= tt\.dot %\w+, %\w+, (%\w+)", ttir)
    return [re.search(rf"^\s*{name}(?::\d+)? = (.*)", ttir, re.M) for name in names]


def overwritten(ttgir, num_stages, **_):
    """Whether a slice may be loaded into a buffer that Hopper's matrix units still read.

    Loads of ``num_stages`` are that many slices ahead of the products, less one. Where a product is still under way
    when the next slice but those is loaded, the slices of all stages need a buffer each.
    """
    pending = [int(n) for n in re.findall(r"warp_group_dot_wait.*?pendings = (\d+)", ttgir)]
    buffers = [int(n) for n in re.findall(r"memdesc_index [^:]*: !ttg.memdesc<(\d+)x\d+x\d+x\w+,", ttgir)]
    assert pending, "no matrix product of Hopper's"
    return max(pending) > 0 and bool(buffers) and min(buffers) < num_stages
