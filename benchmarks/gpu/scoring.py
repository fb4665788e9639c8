"""Who is timed for log-probabilities on a GPU: the library, torch, and fused losses of other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import ragsys_kernels as rk
from benchmarks.gpu.forms import BLOCKS
from benchmarks.gpu.selection import COMPOSITE, CPU
from benchmarks.harness.contender import OURS, PRODUCT, Contender
from benchmarks.suites import scoring
from benchmarks.suites.scoring import EAGER, ROUNDED, Problem, compiled
from benchmarks.suites.scoring_shapes import COMPILED

ENTROPY = f"{OURS}, entropy"
TRL = ("selective_log_softmax", "entropy_from_logits")
# What calls of other libraries do beside log p.
FORWARD = "a loss of training, forward alone"
LOSS = f"{FORWARD}; waits for the device"


# Log p of blocks of logits is off by as much as one chain of sums over all dimensions drifts.
BLOCKS_ERROR = 1e-3


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
        return Contender("Liger", lambda: -loss(x, targets, reduction="none"), error=ROUNDED, note=LOSS)

    def flash() -> Contender:
        loss = _imported("flash_attn.ops.triton.cross_entropy", "cross_entropy_loss")
        return Contender("flash-attn", lambda: -loss(x, targets)[0], error=EAGER, note=FORWARD)

    def trl() -> Contender:
        log_probs, entropies = (_imported("trl.trainer.utils", name) for name in TRL)

        def both() -> Any:
            entropies(x)
            return log_probs(x, targets)

        return Contender("TRL, entropy", both, error=ROUNDED, note="its two functions one after the other")

    yield from (liger, flash, trl)
    on_cpu = partial(rk.token_logprobs, **problem.arguments(host=True), backend="cpu")
    yield Contender(CPU, on_cpu, backend="cpu", on_host=True, error=3e-6, note="all cores")


def logps_of_blocks(hidden: Any, targets: Any, weight: Any, columns: int) -> Any:
    """Return log p by torch's own ops, without rounding logits to 16 bits: a block of columns in float32 at a time."""
    on_device = {"out_dtype": torch.float32} if hidden.is_cuda else {}
    parts, own = [], torch.empty(len(hidden), device=hidden.device)
    for first in range(0, len(weight), columns):
        z = torch.mm(hidden, weight[first : first + columns].T, **on_device).float()
        parts.append(z.logsumexp(1))
        here = (targets - first).clamp(0, z.shape[1] - 1)
        within = (targets >= first) & (targets < first + columns)
        own = torch.where(within, z.gather(1, here[:, None])[:, 0], own)
    return own - torch.stack(parts).logsumexp(0)


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
    if x.dtype != torch.float32:
        for columns in BLOCKS:
            run = partial(logps_of_blocks, x, targets, weight, columns)
            yield Contender(f"{COMPOSITE}, float32 blocks of {columns:,}", run, error=BLOCKS_ERROR)

    def cut() -> Contender:
        loss = _imported("cut_cross_entropy", "linear_cross_entropy")
        run = partial(loss, x, weight, targets, reduction="none")
        return Contender("cut-cross-entropy", lambda: -run(), error=error, note=FORWARD)

    def liger() -> Contender:
        loss = _imported("liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy")
        note = f"{LOSS}, clears a gradient of the hidden states"
        return Contender("Liger", lambda: -loss(x, weight, targets, reduction="none"), error=error, note=note)

    def liger_by_cutedsl() -> Contender:
        _imported("cutlass", "cute")  # without it another form answers under the same name
        if x.dtype != torch.bfloat16:
            raise AbsentError(f"Liger's kernels in CuTe DSL take bfloat16, got {x.dtype}")
        loss = _imported("liger_kernel.ops", "LigerFusedLinearScaledCrossEntropyFunction").apply
        return Contender("Liger, CuTe DSL", lambda: -loss(x, weight, targets), error=error, note=FORWARD)

    yield from (cut, liger, liger_by_cutedsl)
    on_cpu = partial(ours, problem.arguments(host=True), "cpu")
    yield Contender(CPU, on_cpu, backend="cpu", on_host=True, error=2e-5, note="all cores")
