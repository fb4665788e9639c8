"""z of a logit: what the kernels of both forms share.

Exponentials are `tl.exp2`, which on NVIDIA is one instruction with an error of 2 ulp: a sum of them is as precise as
its terms, and one that is rounded rightly would cost more than all else. Logarithms are taken of the merged float64
sums.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..problem import ScoringProblem

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

# From this on, z is what `scaled` rounds it to: exp of what rounding leaves might be infinite.
UNROUNDED = tl.constexpr(2.0**29)


def scales(problem: ScoringProblem) -> dict[str, Any]:
    """Return the arguments of z = x outer / temperature, or with SOFTCAP of tanh(x inner) outer / temperature."""
    if problem.softcap is None:
        return {"inner": 1.0, "outer": problem.logit_scale, "SOFTCAP": False}
    return {"inner": problem.logit_scale / problem.softcap, "outer": problem.softcap, "SOFTCAP": True}


@triton.jit
def _quotient(x, y):
    """Return x / y for y from 1 to 2, within 1 ulp.

    `tl.div_rn` has a branch for what is not a normal number, and all elements of a split would keep registers for it:
    208 of a thread instead of 128. So an approximate inverse, and the remainder that it leaves.
    """
    inverse = 1.0 / y
    near = x * inverse
    return tl.fma(tl.fma(-near, y, x), inverse, near)


@triton.jit
def _tanh(y):
    """Return tanh y to 2 ulp: a polynomial where 1 - exp(-2|y|) would cancel."""
    s = y * y
    near = -0.05378668349208466 + s * (0.02080538432198749 + s * -0.0059058681056563455)
    near = y + y * s * (-0.3333329927203443 + s * (0.1333195824178422 + s * near))
    e = tl.exp2(tl.abs(y) * -2.8853900817779268)
    far = _quotient(1 - e, 1 + e)
    return tl.where(tl.abs(y) < 0.6, near, tl.where(y < 0, -far, far))


@triton.jit
def scaled(x, inner, factor, SOFTCAP: tl.constexpr):
    """Return z of x: x factor, or tanh(x inner) factor where ±inf stays. Every z of a call is computed here."""
    if SOFTCAP:
        z = tl.where(tl.abs(x) == float("inf"), x, _tanh(x * inner) * factor)
    else:
        z = x * factor
    return z


@triton.jit
def unrounded(x, inner, factor, SOFTCAP: tl.constexpr):
    """Return the same in float64, where x factor needs no rounding; above `UNROUNDED` it is rounded all the same."""
    z = scaled(x, inner, factor, SOFTCAP)
    result = z.to(tl.float64)
    if not SOFTCAP:
        result = tl.where(tl.abs(z) < UNROUNDED, x.to(tl.float64) * factor, result)
    return result


@triton.jit
def finite(x, instead):
    """Return x, and ``instead`` where x is infinite or NaN."""
    return tl.where(tl.abs(x) < float("inf"), x, instead)


@triton.jit
def nan_for_inf(x):
    """Return x, and NaN for +inf: the sum of a row that holds +inf."""
    return tl.where(x < float("inf"), x, float("nan"))
