"""Triton kernels for torch tensors on a GPU: which of the three regimes runs a problem.

``gram.py`` is regime a, or ``estimates.py`` for MMR of float32 rows;
``bounds.py`` (MMR) and ``stream.py`` (VRSD, MSD) are b,
``whole_corpus.py`` is c; ``README.md`` says what each reads. Nothing
waits for the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._base import arrays, env
from ..._base.types import Array
from ..._dispatch import BackendUnavailableError
from ..._gpu import compilers, variants
from .. import filtered_problems, torch_search
from ..capabilities import WHOLE
from ..problem import Problem, Selection
from . import bounds, estimates, gram, stream, whole_corpus
from .launch import num_initial, outputs
from .objectives import OBJECTIVES, most_taken

# What the kernels have (capabilities.py), some of it not in all regimes.
RULES = frozenset(OBJECTIVES)
CONSTRAINTS = frozenset(("budget", "max_similarity", WHOLE))


def relevance(problem: Problem, num_threads: int) -> Array:
    return _given_back(problem, torch_search.relevance(problem, num_threads))


def search(problem: Problem, num_threads: int) -> tuple[Array, Array]:
    rows, scores = whole_corpus.search(_tensors(problem))
    return _given_back(problem, rows), _given_back(problem, scores)


def _tensors(problem: Problem) -> Problem:
    """Return the problem with tensors, which on a device it has: to copy its fields takes longer than a launch."""
    return problem if arrays.library_of(problem.rows.data) == "torch" else arrays.tensors(problem)


def _given_back(problem: Problem, made: Array) -> Array:
    """Return what was made in the library of the problem: NumPy's on the host, where Triton interprets."""
    return made.numpy() if isinstance(problem.rows.data, np.ndarray) else made


def _select(problem: Problem, num_threads: int) -> Selection:
    given, problem = problem, _tensors(problem)
    if problem.pool + num_initial(problem) <= gram.GRAM_SLOTS:
        problem = filtered_problems.as_pools(problem)
    _refuse(problem)
    out = outputs(problem)
    _regime(problem).select(problem, out)
    return Selection(*(_given_back(given, made) for made in out))


mmr = vrsd = msd = dpp = ssd = sift = coverage = _select


def _refuse(problem: Problem) -> None:
    """Raise the reason that no kernel runs a problem, by its shape and its options."""
    options, limits = problem.options, problem.constraints
    slots, most = problem.pool + num_initial(problem), gram.GRAM_SLOTS
    asked = ["a budget"] if limits.costs is not None else []
    asked += ["max_similarity"] if limits.max_similarity is not None else []
    reason = None
    if slots > most and problem.op not in ("mmr", "vrsd", "msd"):
        reason = f"its kernels take {problem.op} for pools and initial items of up to {most} items, got {slots}"
    elif slots > most and _is_corpus(problem) and (asked or problem.op == "msd"):
        asked = ([problem.op] if problem.op == "msd" else []) + asked
        reason = f"its kernels take {' with '.join(asked)} for pools, and for a whole corpus of up to {most} rows"
    elif problem.op == "dpp" and 0 < options.window < most_taken(problem):
        reason = "its kernels have no dpp in a window"
    elif getattr(options, "aspects", None) is not None:
        reason = "its kernels cover the items of the pool, not aspects of their own"
    elif getattr(options, "graph", None) is not None:
        reason = "its kernels cover all rows, not the neighbors of each"
    elif getattr(options, "density", False):
        reason = "its kernels do not pick by gain per cost"
    elif problem.op == "coverage" and problem.rows.dtype == "float32" and not env.triton_interpreter():
        reason = compilers.why_no_matrix_of_float32(compilers.architecture())
    if reason is not None:
        raise BackendUnavailableError(f"{problem.op}: backend 'triton' cannot run here: {reason}")


def _regime(problem: Problem) -> Any:
    """Return the module that runs a problem, by shape alone."""
    slots = problem.pool + num_initial(problem)
    if slots <= gram.GRAM_SLOTS:
        return estimates if estimates.takes(problem) and variants.variant("float32") == "estimates" else gram
    if _is_corpus(problem):
        return whole_corpus
    return bounds if problem.op == "mmr" else stream


def _is_corpus(problem: Problem) -> bool:
    return problem.candidates is None and not problem.pool_stride
