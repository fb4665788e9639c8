"""Kernels that the budgets must refuse, each with the one defect of its name, and one that is fine."""

import triton
import triton.language as tl

from benchmarks.gpu.compilation import Compilation


@triton.jit
def _gram_kernel(E, out, D, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, EVEN_D: tl.constexpr, BY_DOT: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_D)
    gram = tl.zeros((BLOCK_P, BLOCK_P), tl.float32)
    for begin in range(0, D, BLOCK_D):
        places = E + rows[:, None] * D + begin + columns[None, :]
        if EVEN_D:
            e = tl.load(places)  # [BLOCK_P, BLOCK_D]
        else:
            e = tl.load(places, mask=(begin + columns < D)[None, :], other=0.0)
        if BY_DOT:
            gram = tl.dot(e, tl.trans(e), gram)
        else:
            norms = tl.sum(e.to(tl.float32) * e.to(tl.float32), 1)
            gram += norms[:, None] + norms[None, :]
    tl.store(out + rows[:, None] * BLOCK_P + rows[None, :], gram)


def _gram(name, block_d=64, even_d=True, by_dot=True, warps=8, stages=2, block_p=128):
    constexprs = {"BLOCK_P": block_p, "BLOCK_D": block_d, "EVEN_D": even_d, "BY_DOT": by_dot}
    divisible = ("E", "out", "D") if even_d else ("E", "out")
    signature = {"E": "*fp16", "out": "*fp32", "D": "i32"}
    return Compilation(name, _gram_kernel, signature, constexprs, divisible, warps, stages, True, True)


def ahead_of_time():
    return [
        _gram("fine"),
        _gram("spills", warps=1),
        _gram("D mask known at run time only", even_d=False),
        _gram("no matrix instructions", by_dot=False),
        _gram("too much shared memory", block_d=256, stages=6),
    ]
