"""Triton kernels for torch tensors on a GPU: which of the three regimes runs a problem.

``triton_gram.py`` is regime a, ``triton_bounds.py`` (MMR) and ``triton_stream.py`` (VRSD) b, ``triton_whole_corpus.py``
c; ``README.md`` says what each reads. Nothing waits for the device.
"""

from __future__ import annotations

from typing import Any

from .. import _arrays
from .._types import Array
from . import triton_bounds, triton_gram, triton_stream, triton_whole_corpus
from .problem import Problem, Selection
from .triton_launch import num_initial, outputs


def mmr(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def vrsd(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def search(problem: Problem, num_threads: int) -> tuple[Array, Array]:
    return triton_whole_corpus.search(_arrays.tensors(problem))


def _select(problem: Problem) -> Selection:
    problem = _arrays.tensors(problem)
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
    return triton_bounds if problem.op == "mmr" else triton_stream
