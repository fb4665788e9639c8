"""The rules for the pairs of a call, for kernels that read them as they were given (`Pairs`)."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..problem import Pairs

# What `temperatures` gives a kernel whose slots have their inverse temperatures already.
NO_TEMPERATURES: dict[str, Any] = {
    "inverse": 1.0,
    "temperature": None,
    "begin": None,
    "answers": None,
    "num_answers": 0,
    "PER_PAIR": False,
}


def temperatures(pairs: Pairs) -> dict[str, Any]:
    """Return the arguments of `inverse_of`."""
    if isinstance(pairs.temperature, float):
        return {**NO_TEMPERATURES, "inverse": 1 / pairs.temperature}
    one = pairs.temperature.numel() == 1
    return {
        "inverse": 1.0,
        "temperature": pairs.temperature,
        "begin": None if one else pairs.begin,
        "answers": None if one else pairs.answers,
        "num_answers": 1 if one else pairs.num_answers,
        "PER_PAIR": not one and not pairs.per_answer,
    }


@triton.jit
def is_ignored(target, ignore):
    """Whether targets are those that are left out; ``ignore`` is None where none are."""
    if ignore is not None:
        ignored = target == ignore
    else:
        ignored = target != target
    return ignored


@triton.jit
def counts(target, ignore, num_columns):
    """Whether pairs have a column to read."""
    return (target >= 0) & (target < num_columns) & (is_ignored(target, ignore) == 0)


@triton.jit
def masked(column, allowed, num_allowed):
    """Return the columns of targets, and -1 for those that are not among ``allowed``; None: all are."""
    result = column
    if allowed is not None:
        at = _below(column, allowed, num_allowed)
        found = tl.load(allowed + tl.minimum(at, num_allowed - 1))
        result = tl.where((at < num_allowed) & (found == column), column, -1)
    return result


@triton.jit
def _below(x, ascending, size):
    """Return how many elements of an ascending array are less than x, by halving."""
    low = x * 0
    high = low + size
    span = size
    while span > 0:
        middle = (low + high) // 2
        below = (low < high) & (tl.load(ascending + middle, mask=low < high, other=0) < x)
        high = tl.where(below, high, middle)
        low = tl.where(below, middle + 1, low)
        span = span // 2
    return low


@triton.jit
def inverse_of(pair, inverse, temperature, begin, answers, num_answers, PER_PAIR: tl.constexpr):
    """Return 1 / temperature of pairs: that of all, their own, or that of their answers."""
    if temperature is None:
        result = inverse
    else:
        if PER_PAIR:
            at = pair
        elif answers is not None:
            at = tl.minimum(tl.maximum(tl.load(answers + pair), 0), num_answers - 1)
        elif begin is not None:
            # The answers that end at or before the pair.
            at = tl.minimum(_below(pair + 1, begin + 1, num_answers), num_answers - 1)
        else:
            at = pair * 0
        result = (1.0 / tl.load(temperature + at).to(tl.float64)).to(tl.float32)
    return result
