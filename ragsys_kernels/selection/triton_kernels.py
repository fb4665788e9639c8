"""Triton kernels for torch tensors on a GPU: which of the three regimes runs a problem.

``triton_gram.py`` is regime a; ``triton_coded.py`` (MMR out of a coded corpus), ``triton_bounds.py`` (MMR) and
``triton_stream.py`` (VRSD) are b, ``triton_whole_corpus.py`` is c; ``README.md`` says what each reads. Nothing waits
for the device.
"""

from __future__ import annotations

from typing import Any

from .. import _arrays
from .._types import Array
from . import filtered_problems, triton_bounds, triton_coded, triton_gram, triton_stream, triton_whole_corpus
from .problem import Problem, Selection
from .triton_launch import num_initial, outputs

# What the kernels have (capabilities.py).
RULES = frozenset(("mmr", "vrsd"))
CONSTRAINTS: frozenset[str] = frozenset()


def mmr(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def vrsd(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def search(problem: Problem, num_threads: int) -> tuple[Array, Array]:
    return triton_whole_corpus.search(_arrays.tensors(problem))


def _select(problem: Problem) -> Selection:
    problem = _arrays.tensors(problem)
    if problem.pool + num_initial(problem) <= triton_gram.GRAM_SLOTS:
        problem = filtered_problems.as_pools(problem)
    out = outputs(problem)
    _regime(problem).select(problem, out)
    return out


def _regime(problem: Problem) -> Any:
    """Return the module that runs a problem, by shape alone."""
    slots = problem.pool + num_initial(problem)
    if slots <= triton_gram.GRAM_SLOTS:
        return triton_gram
    if problem.candidates is None and not problem.pool_stride:
        return triton_whole_corpus
    if problem.op == "vrsd":
        return triton_stream
    return triton_bounds if problem.rows.codes is None else triton_coded
