"""Who is timed for log-probabilities on a GPU: the library, torch, and fused losses of other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import ragsys_kernels as rk
from benchmarks.gpu.selection import COMPOSITE, CPU
from benchmarks.harness.contender import OURS, PRODUCT, Contender
from benchmarks.suites import scoring
from benchmarks.suites.scoring import EAGER, ROUNDED, Problem, compiled
from benchmarks.suites.scoring_shapes import COMPILED

ENTROPY = f"{OURS}, entropy"
TRL = ("selective_log_softmax", "entropy_from_logits")


class AbsentError(Exception):
    """A contender that is not installed; the text says why."""


def _imported(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise AbsentError(f"{module}.{name}: {error}") from None


def of_logits(problem: Problem, backends: tuple[str, ...]) -> Iterator[Contender | Callable[[], Contender]]:
    """Return all that is timed from logits; a function where it may not be installed."""
    x, targets, arguments = problem.rows, problem.targets, problem.arguments()
    for backend in backends:
        yield Contender(OURS, partial(rk.token_logprobs, **arguments, backend=backend), backend=backend, error=3e-6)
    for backend in backends:

        def with_entropy(backend: str = backend) -> Any:
            return rk.answer_logprobs(**arguments, want=("logp", "entropy"), reduce=(), backend=backend).logp

        yield Contender(ENTROPY, with_entropy, backend=backend, error=3e-6)
    yield from scoring.torch_on_logits(problem)

    def liger() -> Contender:
        loss = _imported("liger_kernel.transformers.functional", "liger_cross_entropy")
        return Contender("Liger", lambda: -loss(x, targets, reduction="none"), error=ROUNDED)

    def flash() -> Contender:
        loss = _imported("flash_attn.ops.triton.cross_entropy", "cross_entropy_loss")
        return Contender("flash-attn", lambda: -loss(x, targets)[0], error=EAGER)

    def trl() -> Contender:
        log_probs, entropies = (_imported("trl.trainer.utils", name) for name in TRL)

        def both() -> Any:
            entropies(x)
            return log_probs(x, targets)

        return Contender("TRL, entropy", both, error=ROUNDED, note="its two functions one after the other")

    yield from (liger, flash, trl)
    on_cpu = partial(rk.token_logprobs, **problem.arguments(host=True), backend="cpu")
    yield Contender(CPU, on_cpu, backend="cpu", on_host=True, error=3e-6, note="all cores")


def of_hidden(problem: Problem, backends: tuple[str, ...]) -> Iterator[Contender | Callable[[], Contender]]:
    """Return all that is timed from hidden states; a function where it may not be installed."""
    x, weight, targets = problem.rows, problem.weight, problem.targets
    error = EAGER if x.dtype == torch.float32 else ROUNDED

    def ours(arguments: dict[str, Any], backend: str) -> Any:
        return rk.answer_logprobs(**arguments, reduce=(), backend=backend).logp

    def with_logits() -> Any:
        return scoring.logps_of_torch(x, targets, weight)

    for backend in backends:
        yield Contender(OURS, partial(ours, problem.arguments(), backend), backend=backend, error=2e-5)
    yield Contender(PRODUCT, lambda: x @ weight.T, note="makes the logits and no log p")
    yield Contender(COMPOSITE, with_logits, error=error, note="product, then logsumexp")
    yield Contender(COMPILED, lambda: compiled(scoring.logps_of_torch)(x, targets, weight), error=error)

    def cut() -> Contender:
        loss = _imported("cut_cross_entropy", "linear_cross_entropy")
        return Contender("cut-cross-entropy", lambda: -loss(x, weight, targets, reduction="none"), error=error)

    def liger() -> Contender:
        loss = _imported("liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy")
        return Contender("Liger", lambda: -loss(x, weight, targets, reduction="none"), error=error)

    yield from (cut, liger)
    on_cpu = partial(ours, problem.arguments(host=True), "cpu")
    yield Contender(CPU, on_cpu, backend="cpu", on_host=True, error=2e-5, note="all cores")
