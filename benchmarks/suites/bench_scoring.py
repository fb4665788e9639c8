"""log p of one target a row: from logits, and from hidden states without logits, against torch, NumPy and the floors.

The rows go into a ledger of their own, `results/scoring.csv`; with ``--ledger PATH`` into scoring.csv beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import ragsys_kernels as rk
from benchmarks.harness import data, ledger
from benchmarks.harness.contender import FLOOR, OURS, PRODUCT
from benchmarks.suites import selection as contenders

torch = pytest.importorskip("torch")
functional = torch.nn.functional

KEY = ("op", "backend", "isa", "shape", "dtype", "hardware", "contender")
LEDGER = ledger.Ledger(
    ledger.RESULTS / "scoring.csv",
    KEY,
    (
        *KEY,
        "T",
        "V",
        "D",  # empty: logits are given
        "threads",
        "rounds",
        "us",  # of one call, median over the rounds
        "iqr_us",
        "ratio",  # its time over the library's, median over the rounds
        "max_error",  # of log p, against float64
        "peak_mb",  # most memory above what was there before the call
        "note",
        "commit",
        "versions",
        "date",
    ),
)

RANK = f"{OURS}, rank and entropy"
FALLBACK, NAIVE = f"{OURS}, NumPy fallback", "NumPy"
ROUNDS, RACE_SECONDS = 15, 6.0
ROUNDED = 0.2  # what a result in bfloat16 may be off by, for log p of 16 or less


@dataclass(frozen=True)
class Shape:
    """``D`` None: logits are given, else hidden states and a (V, D) matrix. ``model``: whose logits, else random."""

    T: int
    V: int
    D: int | None = None
    dtype: str = "float32"
    model: str = ""
    threads: int = 1

    @property
    def op(self) -> str:
        return "token_logprobs" if self.D is None else "answer_logprobs"

    def __str__(self) -> str:
        parts = [self.model, f"T{self.T}", f"V{self.V}", "" if self.D is None else f"D{self.D}", self.dtype]
        return "-".join([*filter(None, parts), *([f"threads{self.threads}"] if self.threads > 1 else [])])

    def small(self) -> Shape:
        return replace(self, T=min(self.T, 8), V=500, D=self.D and 48, model="", threads=1)


TOKENS = (1, 8, 64, 512)
VOCABULARIES = {32_000: 2048, 50_257: 768, 151_936: 1024, 262_144: 640}  # and the hidden size of a model that has it
DTYPES = ("float32", "bfloat16")
LOGITS = [Shape(T, V, None, dtype) for V in VOCABULARIES for T in TOKENS for dtype in DTYPES]
LONGEST = 151_936  # the vocabulary that 512 rows of hidden states are taken with: seconds a call
HIDDEN = [
    Shape(T, V, D, dtype)
    for V, D in VOCABULARIES.items()
    for T in TOKENS
    for dtype in DTYPES
    if T < 512 or V == LONGEST
]
RECORDED = [
    Shape(512, V, None, dtype, model)
    for model, V in (("smollm2", 49_152), ("gemma3", 262_144))
    for dtype in DTYPES
]  # fmt: skip
THREADS = [
    Shape(T, LONGEST, D, dtype, threads=2)
    for D, some in ((None, (8, 512)), (VOCABULARIES[LONGEST], (8, 64, 512)))
    for T in some
    for dtype in DTYPES
]


class Problem:
    """Normal logits of standard deviation 4, as language models have; or hidden states and a matrix that give such."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        generator = torch.Generator().manual_seed(0)
        dtype = getattr(torch, shape.dtype)
        self.weight = None
        if shape.model:
            recorded = data.recorded_logits(shape.model, shape.T)
            self.rows, self.targets = (torch.from_numpy(array) for array in recorded)
            self.rows = self.rows.to(dtype)
            assert self.rows.shape == (shape.T, shape.V)
            return
        self.targets = torch.randint(shape.V, (shape.T,), generator=generator)
        rows = shape.V if shape.D is None else shape.D
        self.rows = (torch.randn((shape.T, rows), generator=generator) * (4 if shape.D is None else 1)).to(dtype)
        if shape.D is not None:
            self.weight = (torch.randn((shape.V, shape.D), generator=generator) * (4 / shape.D**0.5)).to(dtype)

    @property
    def read(self) -> Any:
        """What every contender must read at least once."""
        return self.rows if self.weight is None else self.weight

    def logits(self) -> Any:
        return self.rows if self.weight is None else self.rows @ self.weight.T

    def exact(self) -> np.ndarray:
        logits = self.rows.double() if self.weight is None else self.rows.double() @ self.weight.double().T
        return np.asarray(gathered(torch.log_softmax(logits, -1), self.targets))


@dataclass(frozen=True)
class Contender:
    name: str
    run: Callable[[], Any]
    error: float | None = None  # most that its log p may be off by; None: it gives none
    note: str = ""


def gathered(logps: Any, targets: Any) -> Any:
    return logps.gather(1, targets[:, None])[:, 0]


def ours(problem: Problem, name: str = OURS) -> Contender:
    form = {"logits": problem.rows} if problem.weight is None else {"hidden": problem.rows, "weight": problem.weight}
    options: dict[str, Any] = {"want": ("logp", "rank", "entropy") if name == RANK else ("logp",), "reduce": ()}
    options |= {"backend": "numpy" if name == FALLBACK else "auto", "num_threads": problem.shape.threads}

    def run() -> Any:
        return rk.answer_logprobs(**form, targets=problem.targets, **options).logp

    return Contender(name, run, 3e-6 if problem.weight is None else 1.5e-5)


def of_logits(problem: Problem) -> list[Contender]:
    x, targets = problem.rows, problem.targets
    warm = torch.empty(x.shape, dtype=torch.float32)
    half = x.dtype != torch.float32

    def log_softmax() -> Any:
        return gathered(torch.log_softmax(x, -1, dtype=torch.float32), targets)

    def into_warm() -> Any:
        torch.log_softmax(x, -1, dtype=torch.float32, out=warm)
        return gathered(warm, targets)

    def logsumexp() -> Any:
        return gathered(x, targets).float() - torch.logsumexp(x.float(), -1)

    def cross_entropy() -> Any:
        return -functional.cross_entropy(x.float(), targets, reduction="none")

    def naive() -> np.ndarray:
        z = x.float().numpy()
        z = z - z.max(axis=1, keepdims=True)
        logps = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        return np.asarray(logps[np.arange(len(z)), targets.numpy()])

    error = 1e-3
    found = [
        Contender("log_softmax + gather", log_softmax, error),
        Contender("log_softmax + gather, warm", into_warm, error, "its output is there already"),
        Contender("logsumexp", logsumexp, error),
        Contender("F.cross_entropy", cross_entropy, error),
        Contender("torch.compile", lambda: compiled()(x, targets), error, "of gather - logsumexp in float32"),
        Contender(NAIVE, naive, error),
    ]
    if not half:
        found.append(ours(problem, FALLBACK))
    else:
        found.append(
            Contender("log_softmax + gather, rounded", lambda: gathered(torch.log_softmax(x, -1), targets), ROUNDED)
        )
    return found


@lru_cache(maxsize=1)
def compiled() -> Callable[..., Any]:
    def logps(logits: Any, targets: Any) -> Any:
        z = logits.float()
        return gathered(z, targets) - torch.logsumexp(z, -1)

    return torch.compile(logps, dynamic=True)  # type: ignore[no-any-return]


def of_hidden(problem: Problem) -> list[Contender]:
    x, weight, targets = problem.rows, problem.weight, problem.targets
    out = torch.empty((len(x), len(weight)), dtype=x.dtype)
    error = 1e-3 if x.dtype == torch.float32 else ROUNDED

    def with_logits() -> Any:
        return gathered(torch.log_softmax(x @ weight.T, -1, dtype=torch.float32), targets)

    def fused() -> Any:
        options = torch.nn.LinearCrossEntropyOptions()  # in chunks, without all logits at a time
        return -functional.linear_cross_entropy(x, weight, targets, reduction="none", options=options)

    found = [
        Contender(PRODUCT, lambda: torch.mm(x, weight.T, out=out), None, "torch, into memory that is there already"),
        Contender("product + log_softmax", with_logits, error),
    ]
    if hasattr(functional, "linear_cross_entropy") and len(x) <= 64:  # minutes for more
        found.append(Contender("F.linear_cross_entropy", fused, error))
    return found


_readers = ThreadPoolExecutor()


def floor(problem: Problem) -> Contender:
    memory = problem.read.reshape(-1).view(torch.int16).numpy()
    memory = memory[: memory.size // 4 * 4].view(np.float32)
    name, read = contenders.fastest_read()
    if problem.shape.threads == 1:
        return Contender(FLOOR, lambda: read(memory), None, f"by {name}")
    parts = np.array_split(memory, problem.shape.threads)
    return Contender(FLOOR, lambda: list(_readers.map(read, parts)), None, f"by {name}, a part each thread")


def check(problem: Problem, entries: list[Contender]) -> dict[str, float]:
    """Assert that every log p is right; returns the largest error of each."""
    exact = problem.exact()
    errors = {}
    for entry in entries:
        if entry.error is None:
            continue
        error = float(np.abs(np.asarray(torch.as_tensor(entry.run()).double()) - exact).max())
        assert error <= entry.error, f"{entry.name}: log p is off by {error:.3g}"
        errors[entry.name] = error
    return errors


def peak_bytes(run: Callable[[], Any]) -> float | None:
    """Most resident memory during a call above what was there before; None where the system does not say."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        reset.write_text("5")
        before = _kilobytes(status, "VmRSS")
        run()
        return 1024.0 * (_kilobytes(status, "VmHWM") - before)
    except OSError:
        return None


def _kilobytes(status: Path, name: str) -> float:
    return float(next(line for line in status.read_text().splitlines() if line.startswith(name)).split()[1])


@pytest.fixture
def race(request, benchmark):
    """As `race` of conftest.py: all are checked, then take turns; pytest-benchmark times the library."""
    config = request.config
    quick = config.getoption("--quick")
    given = config.getoption("--ledger")
    into = LEDGER.beside(given) if given else None if quick else LEDGER

    def run(op: str, shape: Shape, entries_of: Callable[[Problem], list[Contender]]) -> None:
        shape = shape.small() if quick else shape
        torch.set_num_threads(shape.threads)
        problem = Problem(shape)
        entries = [ours(problem), ours(problem, RANK), *entries_of(problem), floor(problem)]
        errors = check(problem, entries)
        peaks = {entry.name: peak_bytes(entry.run) for entry in entries}
        rounds = 2 if quick else max(min(ROUNDS, int(RACE_SECONDS / sum(_seconds(entry) for entry in entries))), 3)
        times: dict[str, list[float]] = {entry.name: [] for entry in entries}

        def others() -> None:
            for entry in entries[1:]:
                times[entry.name].append(_seconds(entry))

        benchmark.group = f"{op} {shape}"
        benchmark.pedantic(entries[0].run, setup=others, rounds=rounds)
        if benchmark.stats is None:  # --benchmark-disable
            return
        times[OURS] = benchmark.stats.stats.data
        micro = {name: 1e6 * np.array(taken) for name, taken in times.items()}
        rows = []
        for entry in entries:
            low, median, high = np.percentile(micro[entry.name], [25, 50, 75])
            peak = peaks[entry.name]
            rows.append(
                {
                    **ledger.environment(),
                    "op": op,
                    "shape": str(shape),
                    "dtype": shape.dtype,
                    "contender": entry.name,
                    "T": shape.T,
                    "V": shape.V,
                    "D": shape.D,
                    "threads": shape.threads,
                    "rounds": rounds,
                    "us": float(median),
                    "iqr_us": float(high - low),
                    "ratio": float(np.median(micro[entry.name] / micro[OURS])),
                    "max_error": errors.get(entry.name),
                    "peak_mb": None if peak is None else peak / 1e6,
                    "note": entry.note,
                }
            )
        if into is not None:
            into.update(rows)
        benchmark.extra_info.update(contenders=[{name: row[name] for name in ("contender", "ratio")} for row in rows])

    return run


def _seconds(entry: Contender) -> float:
    start = perf_counter()
    entry.run()
    return perf_counter() - start


@pytest.mark.parametrize("shape", LOGITS, ids=str)
def bench_logits(race, shape):
    race("token_logprobs", shape, of_logits)


@pytest.mark.parametrize("shape", HIDDEN, ids=str)
def bench_hidden(race, shape):
    race("answer_logprobs", shape, of_hidden)


@pytest.mark.parametrize("shape", RECORDED, ids=str)
def bench_recorded_logits(race, shape):
    race("token_logprobs", shape, of_logits)


@pytest.mark.skipif(ledger.cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("shape", THREADS, ids=str)
def bench_threads(race, shape):
    race("token_logprobs" if shape.D is None else "answer_logprobs", shape, of_logits if shape.D is None else of_hidden)
