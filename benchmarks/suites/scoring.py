"""The problems of log-probabilities, and who is timed on them: the library, torch, NumPy, and the floors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

import ragsys_kernels as rk
from benchmarks.harness import data, gate, memory
from benchmarks.harness.contender import FLOOR, OURS, PRODUCT, Contender
from benchmarks.harness.floors import fastest_read
from benchmarks.harness.race import Race
from benchmarks.suites.scoring_shapes import (
    COMPILED,
    CROSS_ENTROPY,
    FALLBACK,
    FRESH,
    LEDGER,
    LINEAR,
    LSE,
    MOST_PROBABLE,
    NAIVE,
    RANK,
    TOP,
    WARM,
    WITH_LOGITS,
    Shape,
)  # fmt: skip

functional = torch.nn.functional

ROUNDED = 0.2  # how far a result in bfloat16 may be off, for log p of 16 or less
EAGER = 1e-3  # and a result of torch or NumPy in float32


class Problem:
    """Normal logits of standard deviation 4, as language models have; or hidden states and a matrix that give such."""

    def __init__(self, shape: Shape, device: Any = "cpu") -> None:
        self.shape, self.dtype = shape, shape.dtype
        generator = torch.Generator(device=device).manual_seed(0)
        dtype = getattr(torch, shape.dtype)

        def normal(*sizes: int, deviation: float) -> Any:
            return (torch.randn(sizes, generator=generator, device=device) * deviation).to(dtype)

        self.weight = None
        if shape.model:
            rows, self.targets = (torch.from_numpy(x) for x in data.recorded_logits(shape.model, shape.T))
            self.rows = rows.to(dtype)
            assert self.rows.shape == (shape.T, shape.V)
            return
        self.targets = torch.randint(shape.V, (shape.T,), generator=generator, device=device)
        if shape.D is None:
            self.rows = normal(shape.T, shape.V, deviation=4)
        else:
            self.rows = normal(shape.T, shape.D, deviation=1)
            self.weight = normal(shape.V, shape.D, deviation=4 / shape.D**0.5)

    @property
    def read(self) -> Any:
        """What every contender must read at least once, the large array."""
        return self.rows if self.weight is None else self.weight

    @property
    def inputs(self) -> list[Any]:
        """What a contender may read and must not change."""
        return [x for x in (self.rows, self.weight, self.targets) if x is not None]

    @property
    def bytes(self) -> int:
        """Bytes of one read of everything."""
        return sum(x.numel() * x.element_size() for x in (self.rows, self.weight) if x is not None)

    @property
    def floor_bytes(self) -> int:
        return self.bytes

    @property
    def flops(self) -> float:
        """Flops of the product with the weight; exponentials are not counted."""
        return 0.0 if self.weight is None else 2.0 * self.rows.numel() * self.weight.shape[0]

    def arguments(self, host: bool = False) -> dict[str, Any]:
        """Return the arguments of the library's call; ``host``: on the processor."""
        form = {"logits": self.rows} if self.weight is None else {"hidden": self.rows, "weight": self.weight}
        return {name: x.cpu() if host else x for name, x in {**form, "targets": self.targets}.items()}

    @cached_property
    def exact(self) -> np.ndarray:
        """log p in float64, some rows at a time."""
        weight = None if self.weight is None else self.weight.double().T
        found = []
        for begin in range(0, self.shape.T, 16):
            rows = self.rows[begin : begin + 16].double()
            logits = rows if weight is None else rows @ weight
            found.append(gathered(torch.log_softmax(logits, -1), self.targets[begin : begin + 16]).cpu())
        return np.asarray(torch.cat(found))

    def check(self, contender: Contender, result: Any) -> float:
        """Assert that log p is right; return the largest error."""
        return gate.log_probs(contender, torch.as_tensor(result).double().cpu(), self.exact)


class Scoring(Race):
    """A race for log p: a turn is one call."""

    ledger = LEDGER
    LEAST_ROUNDS, SECONDS = 3, 6.0

    def __init__(self, problem: Problem, contenders: Sequence[Contender]) -> None:
        super().__init__(problem.shape.op, problem, contenders)
        torch.set_num_threads(problem.shape.threads)

    def facts(self, contender: Contender) -> dict[str, Any]:
        error = None if contender.error is None else self.problem.check(contender, contender.run())
        peak = memory.growth(contender.run)
        return {"max_error": error, "peak_mb": None if peak is None else peak / 1e6}

    def columns(self, contender: Contender) -> dict[str, Any]:
        return {name: getattr(self.problem.shape, name) for name in ("T", "V", "D", "threads")}


def gathered(logps: Any, targets: Any) -> Any:
    return logps.gather(1, targets[:, None])[:, 0]


def logps_of_torch(x: Any, targets: Any, weight: Any = None) -> Any:
    z = (x if weight is None else x @ weight.T).float()
    return gathered(z, targets) - torch.logsumexp(z, -1)


@lru_cache(maxsize=8)
def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, **options)  # type: ignore[no-any-return]


def ours(problem: Problem, name: str = OURS) -> Contender:
    options: dict[str, Any] = {"want": ("logp", "rank", "entropy") if name == RANK else ("logp",), "reduce": ()}
    options |= {"backend": "numpy" if name == FALLBACK else "auto", "num_threads": problem.shape.threads}

    def run() -> Any:
        return rk.answer_logprobs(**problem.arguments(), **options).logp

    return Contender(name, run, error=3e-6 if problem.weight is None else 1.5e-5)


def of_most_probable(problem: Problem) -> list[Contender]:
    """Return log p of one target a row, and what finds the most probable tokens as well."""
    form = {name: x for name, x in problem.arguments().items() if name != "targets"}

    def run() -> Any:
        return rk.top_logprobs(**form, k=MOST_PROBABLE, num_threads=problem.shape.threads)

    return [ours(problem), Contender(TOP, run), floor(problem)]


def torch_on_logits(problem: Problem, **compiling: Any) -> list[Contender]:
    """Return what torch offers for logits, on any device."""
    x, targets = problem.rows, problem.targets

    def log_softmax() -> Any:
        return gathered(torch.log_softmax(x, -1, dtype=torch.float32), targets)

    def cross_entropy() -> Any:
        return -functional.cross_entropy(x.float(), targets, reduction="none")

    note = "of gather - logsumexp in float32"
    return [
        Contender(FRESH, log_softmax, error=EAGER),
        Contender(LSE, lambda: logps_of_torch(x, targets), error=EAGER),
        Contender(CROSS_ENTROPY, cross_entropy, error=EAGER),
        Contender(COMPILED, lambda: compiled(logps_of_torch, **compiling)(x, targets), error=EAGER, note=note),
    ]


def of_logits(problem: Problem) -> list[Contender]:
    """Return all that is timed from logits, on the processor."""
    x, targets = problem.rows, problem.targets
    warm = torch.empty(x.shape, dtype=torch.float32)

    def into_warm() -> Any:
        torch.log_softmax(x, -1, dtype=torch.float32, out=warm)
        return gathered(warm, targets)

    def rounded() -> Any:
        return gathered(torch.log_softmax(x, -1), targets)

    def naive() -> np.ndarray:
        z = x.float().numpy()
        z = z - z.max(axis=1, keepdims=True)
        logps = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        return np.asarray(logps[np.arange(len(z)), targets.numpy()])

    fresh, *others = torch_on_logits(problem, dynamic=True)
    half = x.dtype != torch.float32
    return [
        ours(problem),
        ours(problem, RANK),
        fresh,
        Contender(WARM, into_warm, error=EAGER, note="its output is there already"),
        *others,
        Contender(NAIVE, naive, error=EAGER),
        Contender(f"{FRESH}, rounded", rounded, error=ROUNDED) if half else ours(problem, FALLBACK),
        floor(problem),
    ]


def of_hidden(problem: Problem) -> list[Contender]:
    """Return all that is timed from hidden states, on the processor."""
    x, weight, targets = problem.rows, problem.weight, problem.targets
    out = torch.empty((len(x), len(weight)), dtype=x.dtype)
    error = EAGER if x.dtype == torch.float32 else ROUNDED

    def with_logits() -> Any:
        return gathered(torch.log_softmax(x @ weight.T, -1, dtype=torch.float32), targets)

    def fused() -> Any:
        options = torch.nn.LinearCrossEntropyOptions()  # in chunks, without all logits at a time
        return -functional.linear_cross_entropy(x, weight, targets, reduction="none", options=options)

    note = "torch, into memory that is there already"
    found = [
        ours(problem),
        ours(problem, RANK),
        Contender(PRODUCT, lambda: torch.mm(x, weight.T, out=out), note=note),
        Contender(WITH_LOGITS, with_logits, error=error),
    ]
    if hasattr(functional, "linear_cross_entropy") and len(x) <= 64:  # minutes for more
        found.append(Contender(LINEAR, fused, error=error))
    return [*found, floor(problem)]


_readers = ThreadPoolExecutor()


def floor(problem: Problem) -> Contender:
    """Return a plain read of the large array, a part by each thread."""
    floats = problem.read.reshape(-1).view(torch.int16).numpy()
    floats = floats[: floats.size // 4 * 4].view(np.float32)
    name, read = fastest_read()
    if problem.shape.threads == 1:
        return Contender(FLOOR, lambda: read(floats), note=f"by {name}")
    parts = np.array_split(floats, problem.shape.threads)
    return Contender(FLOOR, lambda: list(_readers.map(read, parts)), note=f"by {name}, a part each thread")
