"""What the Triton backends share: the description of a kernel as a launcher would compile it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Compilation(NamedTuple):
    """One kernel in one configuration that its launcher can choose, for compilation ahead of time.

    Each ``triton_kernels.py`` lists its own in ``ahead_of_time()``; ``resources.compile_for`` compiles them without a
    device, which is how tests hold them to budgets and the static report gets its numbers.
    """

    name: str  # unique: the kernel's, then what sets this configuration apart ("_mmr_gram_kernel, fp16, P=128, EVEN_D")
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

    def on(self, arch: str) -> Compilation:
        """What the launcher has compiled on an architecture."""
        if not arch.startswith("gfx"):
            return self._replace(amd_warps=None)
        return self._replace(num_warps=self.amd_warps or self.num_warps, amd_warps=None, maxnreg=None)
