"""Triton kernels on torch tensors; under ``TRITON_INTERPRET=1`` on the CPU as well.

The columns of a slot are cut into splits, whose size and number depend on V (and D) alone; ``logits.py`` and
``linear.py`` sum the splits, ``merge.py`` puts those of a slot together in a fixed order. Tiles have one
shape whatever the number of slots, every sum over columns stays within its row, ranks are whole numbers, and numbers of
the call are not compiled in: so a row has the same bits whatever else is in the call. Nothing is compiled with fused
products and sums (but for the products of matrices). Comparisons and the linear form have one z, rounded once. The sums
of logits and log p of their targets take z as it is: `logits.py` keeps what rounding leaves of the largest.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..._base import arrays
from ..._gpu import interpreter
from ..problem import Pairs, Partials, ScoringProblem
from . import linear, logits, slots
from .answers import answer_sums as answer_sums  # which the device path prefers to its own
from .answers import answers
from .finish import finish
from .merge import merge


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Partials of a problem whose arrays are torch tensors, or NumPy arrays for the interpreter."""
    tensors: Any = arrays.tensors(problem)
    with interpreter.quiet(tensors.rows):
        form = linear if tensors.logits is None else logits
        parts = form.parts_of(tensors)
        found = merge(tensors, parts)
        if not tensors.top:
            return found
        best, ids = form.largest(tensors, parts)
        return found._replace(top=best, top_ids=ids)


def results(problem: ScoringProblem, pairs: Pairs, wanted: frozenset[str]) -> dict[str, Any]:
    """Return what is wanted of the pairs, rows and answers of a call, in four steps of one launch each.

    Logits of pairs that each have a row of their own need no slots, and up to half a million columns one launch has the
    sums and what becomes of them; ranks are set to zero in a launch of their own. The linear form may have several
    kernels.
    """
    is_linear, of_pairs = problem.logits is None, set(wanted)
    if wanted & {"sum", "mean"}:
        of_pairs.add("logp64")
    if wanted & {"mean", "count", "greedy"}:
        of_pairs.add("state")
    with interpreter.quiet(pairs.targets):
        layout: slots.Slots | None = None
        if pairs.rows is not None:
            layout = slots.grouped(problem, pairs)
        elif is_linear:
            layout = slots.aligned(problem, pairs)
        if layout is None and logits.merges(problem):
            found = logits.results(problem, pairs, frozenset(of_pairs))
        else:
            if layout is None:
                parts = logits.parts_of(problem, pairs)
            else:
                fields = ("rows", "inverse_temperature", "pair_begin", "columns")
                problem = dataclasses.replace(problem, **{name: getattr(layout, name) for name in fields})
                parts = (linear if is_linear else logits).parts_of(problem, rank=layout.rank)
            found = finish(problem, pairs, layout if pairs.rows is not None else None, parts, frozenset(of_pairs))
        logp64, state = found.pop("logp64", None), found.pop("state", None)
        return found | answers(pairs, logp64, state, wanted)
