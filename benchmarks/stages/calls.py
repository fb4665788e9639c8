"""Calls of the library on the device, for checks and tools: each command is a step of a stage.

    python -m benchmarks.stages.calls config|picks|answer|sanitize|soak|profile|linear
                                      [--backends NAMES] [--small] [--budget SECONDS]

``config``: what is installed, and that the backends can run. ``picks``: the small problems of every form against the
references, in processes that ``answer``. ``sanitize``: small calls once, for compute-sanitizer. ``soak``: each 1,000
times, to the same bits. ``profile``: the most usual call of each kind of kernel, between cudaProfilerStart and Stop,
for ncu. ``linear``: the error of log p from hidden states as D grows.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np
import torch

import ragsys_kernels as rk
from benchmarks.harness import facts, gate, ledger, parent
from benchmarks.stages import picks as all_picks
from benchmarks.stages.problems import SEARCH, SELECTED, Form, Small, forms
from ragsys_kernels import _dispatch, testing
from ragsys_kernels._base import env as _env

RUNS = 1000
MOST_OFF = 1e-5  # of values of unit vectors, of 16 and 8 bits
SAME_BITS = ("float32=estimates",)  # variants of which all results are the default's, to the last bit
LINEAR_DIMS = (640, 1024, 2048, 4096)

Backends = tuple[str, ...]
Call = Callable[[], tuple[Any, ...]]


def on_device(problem: dict[str, Any]) -> dict[str, Any]:
    arrays = {name: torch.as_tensor(x) if hasattr(x, "shape") else x for name, x in problem.items()}
    return {name: x.to(device()) if isinstance(x, torch.Tensor | rk.Corpus) else x for name, x in arrays.items()}


def device() -> str:
    return "cpu" if _env.triton_interpreter() else "cuda"


def config(backends: Backends, small: bool) -> list[str]:
    """Print what is installed; a backend that is asked for and cannot run is wrong."""
    rk.show_config()
    if device() == "cuda":
        about = torch.cuda.get_device_properties(0)
        print(about, "CUDA", torch.version.cuda, "HIP", getattr(torch.version, "hip", None))
        facts.tell(device=about.name)
    facts.tell(commit=ledger.environment()["commit"])
    return [f"backend {name}: {reason}" for name in backends if (reason := _dispatch.why_not(name)) is not None]


# --- Small problems of every form.


def call_of(form: Form, small: Small) -> tuple[dict[str, Any], Call]:
    """Return the arguments of a problem, on the host, and a call of the library with them on the device."""
    arguments = small.make()
    given = on_device(arguments)

    def call() -> tuple[Any, ...]:
        with _env.changed(RAGSYS_KERNELS_VARIANTS=form.variants):
            if small.op == SEARCH:
                return tuple(given["corpus"].search(given["queries"], given["n"], backend=form.backend))
            if small.op in SELECTED:
                return tuple(getattr(rk, small.op)(**given, backend=form.backend))
            found = rk.answer_logprobs(**given, backend=form.backend)
            return tuple(x for x in (found.logp, found.sum, found.rank) if x is not None)

    return arguments, call


def check(small: Small, arguments: dict[str, Any], found: tuple[Any, ...]) -> None:
    """Assert that a result is right: in float64, and where sums are exact to the last place of a tie."""
    on_host = [np.asarray(torch.as_tensor(x).cpu()) for x in found]
    if small.op == SEARCH:
        check_search(small, arguments, *on_host)
    elif small.op in SELECTED:
        tolerance = None if small.dtype == "float32" else MOST_OFF
        testing.check_selection(small.op, arguments, rk.Selection(*on_host), tolerance=tolerance)
        if small.exact:
            expected = getattr(rk, small.op)(**arguments, backend="reference").indices
            np.testing.assert_array_equal(on_host[0], np.asarray(expected), "picks are not the reference's")
    else:
        fields = ["logp", *(["sum"] if arguments.get("reduce") != () else []), *arguments.get("want", ())[1:]]
        check_scores(arguments, **dict(zip(fields, on_host, strict=True)))


def check_search(small: Small, arguments: dict[str, Any], indices: np.ndarray, scores: np.ndarray) -> None:
    """Assert that the rows are the nearest, of equal ones the first."""
    values = arguments["corpus"].search(arguments["queries"], len(arguments["corpus"]), backend="reference")
    exact = np.empty(values.scores.shape)
    np.put_along_axis(exact, np.asarray(values.indices), np.asarray(values.scores, np.float64), 1)
    best = np.argsort(-exact, axis=1, kind="stable")[:, : arguments["n"]]
    if small.exact:
        np.testing.assert_array_equal(indices, best, "rows are not the nearest")
    gate.nearest(small.name, exact, indices)
    np.testing.assert_allclose(scores, np.take_along_axis(exact, indices, 1), atol=MOST_OFF)


def check_scores(arguments: dict[str, Any], logp: np.ndarray, sum: Any = None, rank: Any = None) -> None:
    x = arguments["logits"].double() if "logits" in arguments else product(arguments)
    cap, targets = arguments.get("softcap"), arguments["targets"][:, None]
    x = x if cap is None else cap * torch.tanh(x / cap)
    x = x if "rows" not in arguments else x[arguments["rows"]]
    exact = np.asarray(torch.log_softmax(x, -1).gather(1, targets)[:, 0])
    error = float(np.abs(logp - exact).max())
    assert error <= most_off(72), f"log p is off by {error:.3g}"
    if sum is not None:
        expected = [exact[a:b].sum() for a, b in itertools.pairwise(arguments["cu_answers"])]
        np.testing.assert_allclose(sum, expected, atol=len(exact) * most_off(72))
    if rank is not None and "logits" in arguments:
        above = (x > x.gather(1, targets)).sum(1)
        np.testing.assert_array_equal(rank, np.asarray(above), "ranks")


def picks(backends: Backends, small: bool, budget: float = math.inf) -> list[str]:
    """Check all small problems of all forms, in processes of their own."""
    return all_picks.run(backends, small, budget)


def answer(backends: Backends, small: bool) -> list[str]:
    """Check the problems that lines of the input name, a number and a form, and tell of each why it is not right."""
    parent.end_with()  # in the middle of a problem too; between two the input ends
    every = {form.name: form for backend in backends for form in forms(backend, small)}
    for line in sys.stdin:
        number, _, name = line.strip().partition(" ")
        form, stays = every[name], False
        try:
            arguments, call = call_of(form, form.problems[int(number)])
            found = call()
            check(form.problems[int(number)], arguments, found)
            if form.variants in SAME_BITS:
                default = call_of(replace(form, variants=""), form.problems[int(number)])[1]()
                assert all(map(bits_equal, found, default)), "bits are not those of the default variant"
            why = ""
        except Exception as error:  # a kernel may raise anything, and the others are still to be seen
            why = f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:300]
            stays = not is_well()
        facts.tell(answer={"why": why, "stays": stays})
    return []


def is_well() -> bool:
    """Return whether the device still answers: an illegal access is an error of every later call."""
    try:
        synchronize()
    except Exception:
        return False
    return True


def product(problem: dict[str, Any]) -> Any:
    return problem["hidden"].double() @ problem["weight"].double().T


def most_off(D: int) -> float:
    """Return by how much log p of sums over D dimensions may be off: float32 errors that do not lean to one side."""
    return 2e-5 * float(max(1, D / 1024) ** 0.5)


def calls(backend: str, few: bool = False) -> Iterator[tuple[str, Call]]:
    """Yield a name and a call for each small problem; it returns tensors."""
    for form in forms(backend, few):
        for small in form.problems:
            yield f"{form.name}: {small.name}", call_of(form, small)[1]


def sanitize(backends: Backends, small: bool) -> list[str]:
    """Call small problems once, those of the newest kernels first; one that fails is wrong, with a tool or without."""
    wrong = []
    for backend in sorted(backends):  # CUDA C++ before Triton
        for name, call in calls(backend, few=True):
            print(name, flush=True)
            try:
                call()
                synchronize()
            except Exception as error:  # a kernel may raise anything, and the others are still to be seen
                wrong.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0][:300])
                if not is_well():
                    return wrong
    return wrong


def soak(backends: Backends, small: bool, budget: float = math.inf) -> list[str]:
    """Run each call many times, every other time beside other work; all must give the bits of the first."""
    wrong, runs, fewest = [], 3 if small else RUNS, RUNS
    every = [each for backend in backends for each in calls(backend, few=small)]
    begin = monotonic()
    noise = torch.randn((1024, 1024), device=device())
    side = torch.cuda.Stream() if device() == "cuda" else None
    for place, (name, call) in enumerate(every):
        first, differing, made = call(), 0, 0
        # Each call has its share of the time; what one does not need is left to the others.
        while made < runs and (made < 3 or monotonic() - begin < budget * (place + 1) / len(every)):
            if side is not None and made % 2:
                with torch.cuda.stream(side):
                    noise @ noise
            differing += not all(bits_equal(a, b) for a, b in zip(first, call(), strict=True))
            made += 1
        fewest = min(fewest, made)
        print(f"{name}: {differing} of {made} runs differ", flush=True)
        if differing:
            wrong.append(f"{name}: {differing} of {made} runs differ")
    facts.tell(soak={"calls": len(every), "runs of each, at least": fewest})
    return wrong


def bits_equal(a: Any, b: Any) -> bool:
    """Return whether two tensors are the same, NaN for NaN."""
    return bool(torch.equal(a, b) or torch.equal(torch.nan_to_num(a, nan=7e7), torch.nan_to_num(b, nan=7e7)))


def synchronize() -> None:
    if device() == "cuda":
        torch.cuda.synchronize()


# --- The most usual problem of each kind of kernel.


def usual(backends: Backends, small: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield a name, the problem and the library's contender for each kind of kernel and backend."""
    from benchmarks.gpu import bench, shapes

    for shape in shapes.one_of_each(shapes.ALL):
        problem = bench.problem_of(shape.small() if small else shape, torch.device(device()))
        entries, _ = bench.contenders_of(problem, backends, compiling=False)
        for entry in entries:
            if entry.name == bench.OURS:
                yield f"{shape.regime}, {entry.backend}", problem, entry


def profile(backends: Backends, small: bool) -> list[str]:
    for name, _, entry in usual(backends, small):
        print(name, flush=True)
        for _ in range(2):  # compiles
            entry.run()
        synchronize()
        if device() == "cuda":
            torch.cuda.cudart().cudaProfilerStart()
            torch.cuda.nvtx.range_push(name)
        entry.run()
        synchronize()
        if device() == "cuda":
            torch.cuda.nvtx.range_pop()
            torch.cuda.cudart().cudaProfilerStop()
    return []


def linear(backends: Backends, small: bool) -> list[str]:
    """Measure how far log p from hidden states is off, and to which side, as sums get longer."""
    from benchmarks.gpu.shapes import Scores
    from benchmarks.suites.scoring import Problem

    wrong = []
    for D, dtype, backend in itertools.product(LINEAR_DIMS, ("float32", "bfloat16", "float16"), backends):
        shape = Scores(8, 500, D, dtype) if small else Scores(70, 32_000, D, dtype)
        problem = Problem(shape, torch.device(device()))
        found = rk.answer_logprobs(**problem.arguments(), reduce=(), backend=backend).logp
        errors = np.asarray(found.double().cpu()) - problem.exact
        worst, bias = float(np.abs(errors).max()), float(errors.mean())
        print(f"D={D}, {dtype}, {backend}: off by {worst:.2e} at most, {bias:+.2e} on average", flush=True)
        facts.tell(linear={f"D={D}, {dtype}, {backend}": [worst, bias]})
        if worst > most_off(D):
            wrong.append(f"D={D}, {dtype}, {backend}: log p is off by {worst:.3g}")
    return wrong


COMMANDS = {f.__name__: f for f in (config, picks, answer, sanitize, soak, profile, linear)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages.calls", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--backends", default="triton,cuda", help="with commas")
    parser.add_argument("--small", action="store_true", help="small problems, few runs: shows that it works")
    parser.add_argument("--budget", type=float, help="seconds of picks or a soak")
    given = parser.parse_args(arguments)
    if given.budget is not None and given.command not in ("picks", "soak"):
        parser.error(f"--budget must be given with picks or soak only, got {given.command}")
    options = {} if given.budget is None else {"budget": given.budget}
    wrong = COMMANDS[given.command](tuple(given.backends.split(",")), given.small, **options)
    for line in wrong:
        print(f"WRONG: {line}")
    facts.tell(wrong=wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
