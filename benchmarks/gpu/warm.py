"""Compile the kernels of the race's forms into Triton's cache, without a device, several shapes at once.

    python -m benchmarks.gpu.warm [--match REGEX] [--processes N]

Each form is called with arrays of zeros that count as arrays on a device, and a driver that launches nothing
(`host.py`). So nothing here uses the device, and a process of the race finds the compiled kernels on disk. Kernels that
cannot be compiled here are listed, and the race compiles them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import torch

import ragsys_kernels as rk
from benchmarks.gpu import forms, goals, host, selection
from benchmarks.gpu.shapes import Pools, Scores
from benchmarks.harness import facts, ledger, parent
from benchmarks.suites.scoring import Problem as ScoreProblem
from ragsys_kernels._base import arrays as _arrays

SHARE = 2  # one of so many processors is taken: picks are checked meanwhile


def calls(shape: Pools | Scores) -> dict[str, Callable[[], Any]]:
    """Return the library's call by each backend, with arrays of zeros whose memory is never touched.

    The arrays are made before they count as arrays on a device; the calls come afterwards.
    """
    if isinstance(shape, Scores):
        problem, options = _scores(shape), {} if shape.D is None else {"reduce": ()}
    else:
        problem, options = _pools(shape), {}
    if shape.op == "search":
        own = rk.Corpus(np.zeros((shape.N, shape.D), np.float32), metric="dot", dtype=shape.dtype)
        corpus = _arrays.changed(own, data=problem.rows)
        return {"triton": lambda: corpus.search(problem.queries, shape.K)}
    op = getattr(rk, shape.op)
    return {name: partial(op, **problem.arguments(), **options, backend=name) for name in forms.BACKENDS}


def zeros(*shape: int, dtype: str) -> Any:
    """Return zeros that take no memory until they are written; torch would write its zeros."""
    stored = "int16" if dtype == "bfloat16" else dtype
    return torch.from_numpy(np.zeros(shape, stored)).view(getattr(torch, dtype))


def _pools(shape: Pools) -> Any:
    problem = selection.Problem.__new__(selection.Problem)
    problem.shape, problem.dtype, problem.candidates = shape, shape.dtype, None
    problem.rows = zeros(shape.N, shape.D, dtype=shape.dtype)
    problem.queries = zeros(shape.Q, shape.D, dtype="float32")
    if shape.P is not None:
        problem.candidates = zeros(shape.Q, shape.P, dtype="int64")
    return problem


def _scores(shape: Scores) -> Any:
    problem = ScoreProblem.__new__(ScoreProblem)
    problem.shape, problem.dtype, problem.weight = shape, shape.dtype, None
    problem.targets = zeros(shape.T, dtype="int64")
    problem.rows = zeros(shape.T, shape.D or shape.V, dtype=shape.dtype)
    if shape.D is not None:
        problem.weight = zeros(shape.V, shape.D, dtype=shape.dtype)
    return problem


def compiled(number: int, form: forms.Form) -> float:
    """Compile the kernels that a form launches for a goal; return the seconds."""
    begin = monotonic()
    call = calls(goals.GOALS[number].shape)[form.backend]
    with host.stubbed(host.Driver()), form.entered():
        call()
    return monotonic() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.warm", description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only forms whose line this regular expression is found in")
    parser.add_argument("--processes", type=int, default=max(1, ledger.cores() // SHARE))
    given = parser.parse_args(arguments)
    tasks = {
        f"{goal.title}: {form.name}": partial(compiled, number, form)
        for number, goal in enumerate(goals.GOALS)
        for form in forms.of(goal.shape, ("triton",))  # CUDA C++ is compiled already, or by its first call
    }
    failed = []
    spawned, ends = multiprocessing.get_context("spawn"), (os.getpid(),)
    with ProcessPoolExecutor(given.processes, spawned, parent.end_with, ends) as pool:
        running = {pool.submit(task): name for name, task in tasks.items() if re.search(given.match, name)}
        for future in as_completed(running):
            try:
                print(f"{future.result():6.1f} s  {running[future]}", flush=True)
            except Exception as error:  # the race will say what is wrong with it
                failed.append(f"{running[future]}: not compiled ahead: {error}"[:300])
    facts.tell(absent=failed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
