"""Calls of the library on the device, for checks and tools: each command is a step of a stage.

    python -m benchmarks.stages.calls config|picks|sanitize|soak|profile|linear
                                      [--backends NAMES] [--small] [--budget SECONDS]

``config``: what is installed, and that the backends can run. ``picks``: small problems against the references.
``sanitize``: each small call once, for compute-sanitizer. ``soak``: each 1,000 times, to the same bits. ``profile``:
the most usual call of each kind of kernel, between cudaProfilerStart and Stop, for ncu. ``linear``: the error of log p
from hidden states as D grows.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any

import numpy as np
import torch

import ragsys_kernels as rk
from benchmarks.harness import facts, ledger
from ragsys_kernels import _dispatch, testing
from ragsys_kernels._base import env as _env

RUNS = 1000
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


# --- Small problems of every kind of kernel.


def selections(few: bool = False) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, op and arguments: odd sizes, caps of groups, items shown before, pools with holes."""
    forms = (("on chip", 3, 57, 33, 6), ("on chip, full", 2, 128, 40, 9), ("streamed", 3, 201, 37, 7))
    dtypes = ("float32",) if few else ("float32", "float16")
    for (form, Q, P, D, K), dtype, op in itertools.product(forms, dtypes, ("mmr", "vrsd")):
        made = testing.selection_problem(Q, P, K, D, dtype=dtype, ragged=True, groups=True, bias=op == "mmr")
        made["initial"] = np.stack([np.random.default_rng(q).permutation(2 * P)[:3] for q in range(Q)])
        yield f"{op}, {form}, {dtype}", op, made
    for op in ("mmr", "vrsd"):
        made = testing.selection_problem(2, 700, 5, 29, N=700)
        del made["candidates"]
        yield f"{op}, whole corpus", op, made


def of_cuda() -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Yield name, op, arguments and variant of what only CUDA C++ is to run.

    Pools in the registers of clusters; small pools that take all slots, of int8 too, and MSD, whose kernels are there
    without compiling more.
    """
    ops, held = ("mmr", "vrsd", "msd"), ((3, 201, 40, 7), (2, 1000, 384, 10), (2, 500, 768, 10))
    pools = [(*size, op, "float16", "pools=held") for size in held for op in ops]
    pools += [(3, 124, 144, 9, op, dtype, "") for dtype in ("float16", "int8") for op in ops]
    pools += [(3, P, 37, 7, "msd", dtype, "") for P in (57, 201) for dtype in ("float32", "int8")]
    for Q, P, D, K, op, dtype, variant in pools:
        stored = "float32" if dtype == "int8" else dtype
        made = testing.selection_problem(Q, P, K, D, dtype=stored, ragged=True, groups=True, bias=op != "vrsd")
        if dtype == "int8":
            made["embeddings"] = rk.Corpus(made["embeddings"], dtype=dtype)
        yield f"{op}, {variant or dtype}, P={P}, D={D}", op, made, variant or _env.variants()


def scores(few: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and arguments of `answer_logprobs`."""
    random = torch.Generator().manual_seed(0)
    for T, V, D, dtype in itertools.product(
        (3,) if few else (3, 70), (5003,), (None, 72), (torch.float32, torch.bfloat16)
    ):
        targets = torch.randint(V, (T,), generator=random)
        if D is None:
            form = {"logits": 4 * torch.randn((T, V), generator=random).to(dtype)}
        else:
            weight = torch.randn((V, D), generator=random) * (4 / D**0.5)
            form = {"hidden": torch.randn((T, D), generator=random).to(dtype), "weight": weight.to(dtype)}
        name = f"log p, {'logits' if D is None else 'hidden states'}, T={T}, {str(dtype).removeprefix('torch.')}"
        yield name, {**form, "targets": targets, "cu_answers": torch.tensor([0, T // 2, T])}


def calls(backend: str, few: bool = False) -> Iterator[tuple[str, Call]]:
    """Yield a name and a call for each small problem; it returns tensors."""
    for name, op, problem in selections(few):
        given, function = on_device(problem), getattr(rk, op)
        yield name, lambda given=given, function=function: tuple(function(**given, backend=backend))
    for name, op, problem, variant in of_cuda() if backend == "cuda" else ():
        given, function = on_device(problem), getattr(rk, op)

        def selected(given: Any = given, function: Any = function, variant: str = variant) -> tuple[Any, ...]:
            with _env.changed(RAGSYS_KERNELS_VARIANTS=variant):
                return tuple(function(**given, backend=backend))

        yield name, selected
    for name, problem in scores(few):
        given = on_device(problem)

        def scored(given: dict[str, Any] = given) -> tuple[Any, ...]:
            found = rk.answer_logprobs(**given, backend=backend)
            return found.logp, found.sum

        yield name, scored


def picks(backends: Backends, small: bool) -> list[str]:
    """Compare the picks and log p of all backends with a replay in float64."""
    wrong = []

    def compare(name: str, backend: str, check: Callable[[], None]) -> None:
        try:
            check()
            print(f"right: {name}, {backend}")
        except Exception as error:  # a kernel may raise anything, and the others are still to be seen
            wrong.append(f"{name}, {backend}: {type(error).__name__}: {error}".splitlines()[0][:300])

    for backend in backends:
        every = [(*each, _env.variants()) for each in selections(few=True)]
        for name, op, problem, variant in (*every, *(of_cuda() if backend == "cuda" else ())):

            def replay(
                op: str = op, problem: dict[str, Any] = problem, backend: str = backend, variant: str = variant
            ) -> None:
                with _env.changed(RAGSYS_KERNELS_VARIANTS=variant):
                    found = getattr(rk, op)(**on_device(problem), backend=backend)
                tolerance = None if str(problem["embeddings"].dtype) == "float32" else 2e-3
                on_host = rk.Selection(*(np.asarray(field.cpu()) for field in found))
                testing.check_selection(op, problem, on_host, tolerance=tolerance)

            compare(name, backend, replay)
        for name, problem in scores(few=True):

            def score(problem: dict[str, Any] = problem, backend: str = backend) -> None:
                found = rk.answer_logprobs(**on_device(problem), backend=backend).logp.cpu()
                x = problem["logits"].double() if "logits" in problem else product(problem)
                exact = torch.log_softmax(x, -1).gather(1, problem["targets"][:, None])[:, 0]
                error = float((found - exact).abs().max())
                assert error <= most_off(72), f"log p is off by {error:.3g}"

            compare(name, backend, score)
    return wrong


def product(problem: dict[str, Any]) -> Any:
    return problem["hidden"].double() @ problem["weight"].double().T


def most_off(D: int) -> float:
    """Return by how much log p of sums over D dimensions may be off: float32 errors that do not lean to one side."""
    return 2e-5 * float(max(1, D / 1024) ** 0.5)


def sanitize(backends: Backends, small: bool) -> list[str]:
    for backend in backends:
        for name, call in calls(backend, few=small):
            print(name, backend, flush=True)
            call()
            synchronize()
    return []


def soak(backends: Backends, small: bool, budget: float = math.inf) -> list[str]:
    """Run each call many times, every other time beside other work; all must give the bits of the first."""
    wrong, runs, fewest = [], 3 if small else RUNS, RUNS
    every = [(name, backend, call) for backend in backends for name, call in calls(backend, few=small)]
    begin = monotonic()
    noise = torch.randn((1024, 1024), device=device())
    side = torch.cuda.Stream() if device() == "cuda" else None
    for place, (name, backend, call) in enumerate(every):
        first, differing, made = call(), 0, 0
        # Each call has its share of the time; what one does not need is left to the others.
        while made < runs and (made < 3 or monotonic() - begin < budget * (place + 1) / len(every)):
            if side is not None and made % 2:
                with torch.cuda.stream(side):
                    noise @ noise
            differing += not all(bits_equal(a, b) for a, b in zip(first, call(), strict=True))
            made += 1
        fewest = min(fewest, made)
        print(f"{name}, {backend}: {differing} of {made} runs differ", flush=True)
        if differing:
            wrong.append(f"{name}, {backend}: {differing} of {made} runs differ")
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


COMMANDS = {f.__name__: f for f in (config, picks, sanitize, soak, profile, linear)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages.calls", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--backends", default="triton,cuda", help="with commas")
    parser.add_argument("--small", action="store_true", help="small problems, few runs: shows that it works")
    parser.add_argument("--budget", type=float, help="seconds of a soak")
    given = parser.parse_args(arguments)
    if given.budget is not None and given.command != "soak":
        parser.error(f"--budget must be given with soak only, got {given.command}")
    options = {} if given.budget is None else {"budget": given.budget}
    wrong = COMMANDS[given.command](tuple(given.backends.split(",")), given.small, **options)
    for line in wrong:
        print(f"WRONG: {line}")
    facts.tell(wrong=wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
