"""Triton kernels on torch tensors; under ``TRITON_INTERPRET=1`` on the CPU as well.

The columns of a slot are cut into splits, whose size and number depend on V (and D) alone; ``triton_logits.py`` and
``triton_linear.py`` sum the splits, ``triton_merge.py`` puts those of a slot together in a fixed order. Tiles have one
shape whatever the number of slots, every sum over columns stays within its row, ranks are whole numbers, and numbers of
the call are not compiled in: so a row has the same bits whatever else is in the call. Nothing is compiled with fused
products and sums (but for the products of matrices): z is one number, rounded once, in the sum, in comparisons and as a
target.
"""

from __future__ import annotations

from typing import Any

from .. import _arrays
from .._gpu import interpreter
from . import triton_linear, triton_logits
from .problem import Partials, ScoringProblem
from .triton_answers import answer_sums as answer_sums  # which the device path prefers to its own
from .triton_merge import Parts, merge


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Partials of a problem whose arrays are torch tensors, or NumPy arrays for the interpreter."""
    tensors: Any = _arrays.tensors(problem)
    with interpreter.quiet(tensors.rows):
        return merge(tensors, _parts_of(tensors))


def _parts_of(problem: Any) -> Parts:
    return triton_linear.parts_of(problem) if problem.logits is None else triton_logits.parts_of(problem)
