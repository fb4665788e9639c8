"""Every op on the device against its floor and its peers, timed by events; `gpu_check.py` runs it.

Contenders take turns, round after round. Before each turn the last-level cache is overwritten and the device is kept
busy while the host enqueues the call, so that an event pair has the device's time and no launch in it; `host_us` says
how long the host took. No contender is timed before its result was checked.

Floor: a copy kernel that moves as many bytes as one read of the input has (half of them read, half of them written).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import ragsys_kernels as rk
from benchmarks.gpu import static as report_static
from benchmarks.gpu.static import TOKENS, VOCABULARIES
from benchmarks.harness import ledger
from ragsys_kernels import _dispatch, testing

KEY = ("op", "backend", "shape", "dtype", "device", "contender")
LEDGER = ledger.Ledger(
    ledger.RESULTS / "gpu.csv",
    KEY,
    (
        *KEY,
        "samples",
        "us",  # of one call: median
        "iqr_us",
        "host_us",  # until the call returned, median
        "ratio",  # its time over the library's (the first backend that runs), median over the rounds
        "floor_us",
        "max_error",  # of log p, against float64
        "same_picks",  # share of queries with the picks of the library's first backend
        "note",
        "commit",
        "versions",
        "date",
    ),
)
OURS, FLOOR, CPU = "ragsys_kernels", "copy of as many bytes", "ragsys_kernels on the CPU"
COMPOSITE, COMPILED = "torch", "torch.compile"

SAMPLES, WARM_UPS = 50, 5
HOST_SAMPLES = 5  # of the CPU path, which no event can time
BUSY_CYCLES = 1_000_000  # about half a millisecond, longer than the host needs for a call
REPLAYED = 8  # queries whose picks are replayed in float64
ROUNDED = 0.2  # what a log p in bfloat16 may be off by, for 16 or less
HALF_POOL_BYTES = 1 << 28  # queries a call: pools of twice so many bytes, more than any cache holds


class EventTimer:
    """Times of calls on the current stream. ``cuda`` is torch.cuda; ``flush`` and ``busy`` enqueue work before each."""

    def __init__(self, cuda: Any, flush: Callable[[], Any], busy: Callable[[], Any]) -> None:
        self._cuda, self._flush, self._busy = cuda, flush, busy

    @classmethod
    def on(cls, device: Any) -> EventTimer:
        size = 2 * max(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0), 128 << 20)
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        return cls(torch.cuda, memory.zero_, lambda: torch.cuda._sleep(BUSY_CYCLES))

    def seconds(self, run: Callable[[], Any]) -> tuple[float, float]:
        """Of one call: on the device, and on the host until it returned."""
        begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._flush()
        self._busy()
        begin.record()
        start = perf_counter()
        run()
        host = perf_counter() - start
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3, host


@dataclass(frozen=True)
class Contender:
    name: str
    run: Callable[[], Any]
    backend: str = ""
    on_host: bool = False  # it works on the CPU and is timed by the clock
    picks: bool = False  # its result is a Selection, or picks
    error: float | None = None  # its result is log p, which may be off by so much
    note: str = ""


# --- Problems.


@dataclass(frozen=True)
class Pools:
    """MMR out of pools of P rows; ``P`` None: out of the whole corpus."""

    P: int | None
    K: int
    D: int
    dtype: str
    Q: int = 2_000
    N: int = 100_000
    op: str = "mmr"

    def __str__(self) -> str:
        return f"N{self.N}-D{self.D}-P{self.P or 'all'}-K{self.K}-Q{self.Q}"

    def small(self) -> Pools:
        return replace(self, P=self.P and min(self.P, 30), K=min(self.K, 4), D=24, Q=5, N=60)


@dataclass(frozen=True)
class Scores:
    """log p of one target a row; ``D`` None: logits are given."""

    T: int
    V: int
    D: int | None
    dtype: str

    @property
    def op(self) -> str:
        return "token_logprobs" if self.D is None else "answer_logprobs"

    def __str__(self) -> str:
        return f"T{self.T}-V{self.V}" + ("" if self.D is None else f"-D{self.D}")

    def small(self) -> Scores:
        return replace(self, T=min(self.T, 6), V=200, D=self.D and 32)


def _queries(P: int, D: int, dtype: str) -> int:
    """So many that the pools of a call are in no cache, and 2,000 at most."""
    return min(2_000, max(64, 2 * HALF_POOL_BYTES // (P * D * (4 if dtype == "float32" else 2))))


POOLS = [
    Pools(P, K, D, dtype, _queries(P, D, dtype))
    for P, K in report_static.POOLS
    for D in report_static.DIMS
    for dtype in ("float32", "float16")
]
VRSD = [replace(pools, op="vrsd") for pools in POOLS if pools.D == 384]
WHOLE = [Pools(None, report_static.WHOLE_K, 384, dtype, report_static.WHOLE_Q) for dtype in ("float32", "float16")]
SEARCH = [replace(pools, op="search", K=100) for pools in WHOLE]
LOGITS = [Scores(T, V, None, dtype) for V in VOCABULARIES for T in TOKENS for dtype in ("float32", "bfloat16")]
HIDDEN = [Scores(T, V, D, dtype) for V, D in VOCABULARIES.items() for T in TOKENS for dtype in ("float32", "bfloat16")]
ALL: tuple[Pools | Scores, ...] = (*POOLS, *VRSD, *WHOLE, *SEARCH, *LOGITS, *HIDDEN)


class PoolProblem:
    """Unit rows in clusters, queries near them, and pools of random rows."""

    def __init__(self, shape: Pools, device: Any) -> None:
        self.shape = shape
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn((50, shape.D), generator=generator)

        def vectors(count: int) -> Any:
            near = centres[torch.randint(50, (count,), generator=generator)]
            rows = near + torch.randn((count, shape.D), generator=generator)
            return rows / rows.norm(dim=1, keepdim=True)

        self.rows = vectors(shape.N).to(device, getattr(torch, shape.dtype))
        self.queries = vectors(shape.Q).to(device)
        self.candidates = None
        if shape.P is not None:
            # Distinct rows without a sort of all: every so-manieth from a random one on.
            steps = torch.arange(shape.P) * (shape.N // shape.P)
            first = torch.randint(shape.N, (shape.Q, 1), generator=generator)
            self.candidates = ((first + steps) % shape.N).to(device)

    @property
    def bytes(self) -> int:
        rows = self.shape.N if self.candidates is None else self.candidates.numel()
        return rows * self.shape.D * self.rows.element_size()

    def arguments(self, queries: slice = slice(None), host: bool = False) -> dict[str, Any]:
        """Of the library's call. The rows are unit vectors, so that "dot" gives cosines and nothing is scaled."""
        moved = {"queries": self.queries[queries], "embeddings": self.rows}
        if self.candidates is not None:
            moved["candidates"] = self.candidates[queries]
        return {**{name: x.cpu() if host else x for name, x in moved.items()}, "k": self.shape.K, "metric": "dot"}


class ScoreProblem:
    """Normal logits of standard deviation 4, or hidden states and a matrix that give such."""

    def __init__(self, shape: Scores, device: Any) -> None:
        self.shape = shape
        generator = torch.Generator(device=device).manual_seed(0)
        dtype = getattr(torch, shape.dtype)

        def normal(*sizes: int, deviation: float = 1.0) -> Any:
            return (torch.randn(sizes, generator=generator, device=device) * deviation).to(dtype)

        self.targets = torch.randint(shape.V, (shape.T,), generator=generator, device=device)
        self.weight = None
        if shape.D is None:
            self.rows = normal(shape.T, shape.V, deviation=4)
        else:
            self.rows, self.weight = normal(shape.T, shape.D), normal(shape.V, shape.D, deviation=4 / shape.D**0.5)

    @property
    def bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.rows, self.weight) if x is not None)

    def form(self, host: bool = False) -> dict[str, Any]:
        form = {"logits": self.rows} if self.weight is None else {"hidden": self.rows, "weight": self.weight}
        return {name: x.cpu() if host else x for name, x in {**form, "targets": self.targets}.items()}

    @cached_property
    def exact(self) -> np.ndarray:
        """In float64, some rows at a time."""
        found = []
        for begin in range(0, self.shape.T, 16):
            rows = self.rows[begin : begin + 16].double()
            logits = rows if self.weight is None else rows @ self.weight.double().T
            found.append(gathered(torch.log_softmax(logits, -1), self.targets[begin : begin + 16]).cpu())
        return np.asarray(torch.cat(found))


# --- Contenders.


def gathered(logps: Any, targets: Any) -> Any:
    return logps.gather(1, targets[:, None])[:, 0]


def mmr_of_torch(queries: Any, rows: Any, candidates: Any, K: int, lambda_d: float) -> Any:
    """The picks (positions) of MMR by torch's own ops, a batched product and an arg-max a pick."""
    e = rows[candidates]  # [Q, P, D]
    relevance = torch.bmm(e, queries.to(e.dtype)[:, :, None])[:, :, 0].float()  # [Q, P]
    most = torch.full_like(relevance, -torch.inf)
    w, picks = relevance, []
    for step in range(K):
        pick = w.argmax(1, keepdim=True)  # [Q, 1]
        picks.append(pick)
        relevance = relevance.scatter(1, pick, -torch.inf)
        if step + 1 < K:
            chosen = e.gather(1, pick[:, :, None].expand(-1, 1, e.shape[2]))  # [Q, 1, D]
            most = torch.maximum(most, torch.bmm(e, chosen.transpose(1, 2))[:, :, 0].float())
            w = lambda_d * relevance - (1 - lambda_d) * most
    return candidates.gather(1, torch.cat(picks, 1))


def logps_of_torch(x: Any, targets: Any, weight: Any = None) -> Any:
    logits = x if weight is None else x @ weight.T
    return gathered(logits, targets).float() - torch.logsumexp(logits.float(), -1)


@lru_cache(maxsize=2)
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)  # type: ignore[no-any-return]


class AbsentError(Exception):
    """A contender that is not here; the text says why."""


def _imported(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise AbsentError(f"{module}.{name}: {error}") from None


def _ours(call: Callable[[str], Any], backends: tuple[str, ...], **options: Any) -> list[Contender]:
    return [Contender(OURS, partial(call, backend), backend, **options) for backend in backends]


def of_pools(problem: PoolProblem, backends: tuple[str, ...]) -> Iterator[Callable[[], Contender] | Contender]:
    shape = problem.shape
    arguments, op = problem.arguments(), getattr(rk, shape.op)
    yield from _ours(lambda backend: op(**arguments, backend=backend), backends, picks=True)
    candidates = problem.candidates
    if shape.op == "mmr" and candidates is not None:
        given = (problem.queries, problem.rows, candidates, shape.K, 0.75)
        yield Contender(COMPOSITE, lambda: mmr_of_torch(*given), picks=True, note="gathers the pools")
        yield Contender(COMPILED, lambda: compiled(mmr_of_torch)(*given), picks=True, note="of the same")
    host = problem.arguments(host=True)
    yield Contender(CPU, lambda: op(**host, backend="cpu"), "cpu", on_host=True, picks=True, note="all cores")


def of_search(problem: PoolProblem, backends: tuple[str, ...]) -> Iterator[Contender]:
    shape = problem.shape
    corpus = rk.Corpus(problem.rows, metric="dot", dtype=shape.dtype)
    host = rk.Corpus(problem.rows.cpu(), metric="dot", dtype=shape.dtype)
    on_host = problem.queries.cpu()
    yield Contender(OURS, lambda: corpus.search(problem.queries, shape.K), backends[0])
    rounded = problem.queries.to(problem.rows.dtype)
    yield Contender(COMPOSITE, lambda: (rounded @ problem.rows.T).topk(shape.K), note="product and topk")
    yield Contender(CPU, lambda: host.search(on_host, shape.K), "cpu", on_host=True, note="all cores")


def of_logits(problem: ScoreProblem, backends: tuple[str, ...]) -> Iterator[Callable[[], Contender] | Contender]:
    x, targets, host = problem.rows, problem.targets, problem.form(host=True)
    functional = torch.nn.functional
    arguments = {"logits": x, "targets": targets}
    yield from _ours(lambda backend: rk.token_logprobs(**arguments, backend=backend), backends, error=3e-6)

    def log_softmax() -> Any:
        return gathered(torch.log_softmax(x, -1, dtype=torch.float32), targets)

    yield Contender("log_softmax + gather", log_softmax, error=1e-3)
    yield Contender("logsumexp", lambda: logps_of_torch(x, targets), error=1e-3)

    def cross_entropy() -> Any:
        return -functional.cross_entropy(x.float(), targets, reduction="none")

    yield Contender("F.cross_entropy", cross_entropy, error=1e-3)
    yield Contender(COMPILED, lambda: compiled(logps_of_torch)(x, targets), error=1e-3)

    def liger() -> Contender:
        loss = _imported("liger_kernel.transformers.functional", "liger_cross_entropy")
        return Contender("Liger", lambda: -loss(x, targets, reduction="none"), error=ROUNDED)

    def flash() -> Contender:
        loss = _imported("flash_attn.ops.triton.cross_entropy", "cross_entropy_loss")
        return Contender("flash-attn", lambda: -loss(x, targets)[0], error=1e-3)

    yield from (liger, flash)
    on_cpu = partial(rk.token_logprobs, **host, backend="cpu")
    yield Contender(CPU, on_cpu, "cpu", on_host=True, error=3e-6, note="all cores")


def of_hidden(problem: ScoreProblem, backends: tuple[str, ...]) -> Iterator[Callable[[], Contender] | Contender]:
    x, weight, targets, host = problem.rows, problem.weight, problem.targets, problem.form(host=True)
    arguments = {"hidden": x, "weight": weight, "targets": targets, "reduce": ()}

    def ours(backend: str) -> Any:
        return rk.answer_logprobs(**arguments, backend=backend).logp

    error = 1e-3 if x.dtype == torch.float32 else ROUNDED
    yield from _ours(ours, backends, error=2e-5)
    yield Contender("matrix product", lambda: x @ weight.T, note="makes the logits and no log p")
    yield Contender(COMPOSITE, lambda: logps_of_torch(x, targets, weight), error=error, note="product, then logsumexp")
    yield Contender(COMPILED, lambda: compiled(logps_of_torch)(x, targets, weight), error=error)

    def cut() -> Contender:
        loss = _imported("cut_cross_entropy", "linear_cross_entropy")
        return Contender("cut-cross-entropy", lambda: -loss(x, weight, targets, reduction="none"), error=error)

    def liger() -> Contender:
        loss = _imported("liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy")
        return Contender("Liger", lambda: -loss(x, weight, targets, reduction="none"), error=error)

    yield from (cut, liger)

    def on_cpu() -> Any:
        return rk.answer_logprobs(**host, reduce=(), backend="cpu").logp

    yield Contender(CPU, on_cpu, "cpu", on_host=True, error=2e-5, note="all cores")


def problem_of(shape: Pools | Scores, device: Any) -> PoolProblem | ScoreProblem:
    return PoolProblem(shape, device) if isinstance(shape, Pools) else ScoreProblem(shape, device)


def contenders_of(problem: PoolProblem | ScoreProblem, backends: tuple[str, ...]) -> tuple[list[Contender], list[str]]:
    """All that are here, ours first, and why the others are not."""
    makers: dict[str, Callable[..., Iterator[Any]]]
    makers = {"mmr": of_pools, "vrsd": of_pools, "search": of_search, "token_logprobs": of_logits}
    found, absent = [], []
    for entry in makers.get(problem.shape.op, of_hidden)(problem, backends):
        try:
            found.append(entry if isinstance(entry, Contender) else entry())
        except AbsentError as error:
            absent.append(str(error))
    return [*found, floor_of(problem)], absent


def floor_of(problem: PoolProblem | ScoreProblem) -> Contender:
    half = max(problem.bytes // 2, 1)
    here, there = (torch.empty(half, dtype=torch.uint8, device=problem.rows.device) for _ in range(2))
    return Contender(FLOOR, lambda: there.copy_(here))


# --- Checks and times.


def check(
    problem: PoolProblem | ScoreProblem, entries: list[Contender]
) -> tuple[dict[int, dict[str, float]], list[str]]:
    """What the results of the contenders say, by position; and what is wrong, which is then not timed."""
    facts: dict[int, dict[str, float]] = {}
    wrong: list[str] = []
    first: np.ndarray | None = None
    for place, entry in enumerate(entries):
        facts[place] = {}
        where = f"{problem.shape.op} {problem.shape}, {entry.name} {entry.backend}"
        try:
            result = entry.run()
            if entry.error is not None and isinstance(problem, ScoreProblem):
                error = float(np.abs(np.asarray(torch.as_tensor(result).double().cpu()) - problem.exact).max())
                facts[place]["max_error"] = error
                if not error <= entry.error:
                    raise AssertionError(f"log p is off by {error:.3g}")
            if problem.shape.op == "search" and entry.name in (OURS, CPU):
                _check_search(problem, result[0])
            if entry.picks and isinstance(problem, PoolProblem):
                if entry.name == OURS:
                    _replay(problem, result)
                picks = np.asarray(torch.as_tensor(result.indices if isinstance(result, tuple) else result).cpu())
                first = picks if first is None else first
                facts[place]["same_picks"] = float((picks == first).all(1).mean())
        except Exception as error:  # a peer may raise anything, and the others are still to be timed
            del facts[place]
            wrong.append(f"{where}: {type(error).__name__}: {error}".splitlines()[0])
    return facts, wrong


def _replay(problem: PoolProblem, result: Any) -> None:
    """Assert that the first picks are ones that exact arithmetic allows."""
    few = problem.arguments(slice(REPLAYED), host=True)
    fields = [np.asarray(torch.as_tensor(field)[:REPLAYED].cpu()) for field in result]
    testing.check_selection(problem.shape.op, few, rk.Selection(*fields))


def _check_search(problem: PoolProblem, found: Any) -> None:
    """Assert that the rows found are as near as the nearest, in float64 up to the rounding of float32."""
    queries, rows = problem.queries[:REPLAYED].double(), problem.rows.double()
    cosines = queries @ rows.T
    found = torch.as_tensor(found)[:REPLAYED].to(cosines.device)
    nearest = cosines.topk(problem.shape.K).values
    error = float((cosines.gather(1, found) - nearest).abs().max())
    assert error < 4e-6, f"cosines differ by {error:.3g} from the nearest rows'"


def race(entries: list[Contender], timer: Any, samples: int = SAMPLES) -> dict[int, tuple[list[float], list[float]]]:
    """Seconds of every contender on the device and on the host, in turns."""
    times: dict[int, tuple[list[float], list[float]]] = {place: ([], []) for place in range(len(entries))}
    for entry in entries:
        for _ in range(1 if entry.on_host else WARM_UPS):
            entry.run()
    for turn in range(samples):
        for place, entry in enumerate(entries):
            if not entry.on_host:
                device, host = timer.seconds(entry.run)
            elif turn < HOST_SAMPLES:
                start = perf_counter()
                entry.run()
                device = host = perf_counter() - start
            else:
                continue
            times[place][0].append(device)
            times[place][1].append(host)
    return times


def rows_of(
    problem: PoolProblem | ScoreProblem,
    entries: list[Contender],
    facts: list[dict[str, float]],
    times: dict[int, tuple[list[float], list[float]]],
    device: str,
) -> Iterator[dict[str, object]]:
    """Rows for the ledger."""
    shape = problem.shape
    micro = {place: 1e6 * np.array(taken) for place, (taken, _) in times.items()}
    floor = next(float(np.median(micro[p])) for p, entry in enumerate(entries) if entry.name == FLOOR)
    for place, entry in enumerate(entries):
        low, median, high = np.percentile(micro[place], [25, 50, 75])
        together = min(len(micro[place]), len(micro[0]))
        yield {
            **{name: ledger.environment()[name] for name in ("commit", "date")},
            "versions": versions(),
            "op": shape.op,
            "backend": entry.backend,
            "shape": str(shape),
            "dtype": shape.dtype,
            "device": device,
            "contender": entry.name,
            "samples": len(micro[place]),
            "us": float(median),
            "iqr_us": float(high - low),
            "host_us": 1e6 * float(np.median(times[place][1])),
            "ratio": float(np.median(micro[place][:together] / micro[0][:together])),
            "floor_us": floor,
            "note": entry.note,
            **facts[place],
        }


def versions() -> str:
    libraries = ("torch", "triton", "cupy-cuda13x", "liger-kernel", "cut-cross-entropy", "flash-attn")
    return f"{ledger.versions(libraries)}; CUDA {torch.version.cuda}"


@dataclass
class Outcome:
    device: str
    rows: int = 0
    absent: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def run(
    path: Path,
    shapes: tuple[Pools | Scores, ...] = ALL,
    device: str = "cuda",
    backends: tuple[str, ...] = ("triton", "cuda"),
    timer: Any = None,
    samples: int = SAMPLES,
) -> Outcome:
    """Check and time all shapes and write the ledger, shape by shape."""
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else ledger.hardware()
    outcome = Outcome(name)
    reasons = {backend: _dispatch.why_not(backend) for backend in backends}
    outcome.absent += [f"backend {backend}: {reason}" for backend, reason in reasons.items() if reason]
    backends = tuple(backend for backend, reason in reasons.items() if reason is None)
    if not backends:
        return outcome
    timer = timer or EventTimer.on(where)
    for shape in shapes:
        torch.compiler.reset()  # torch gives up compiling a function after a few shapes
        try:
            problem = problem_of(shape, where)
            entries, absent = contenders_of(problem, backends)
            facts, wrong = check(problem, entries)
            entries = [entry for place, entry in enumerate(entries) if place in facts]
            outcome.absent += [line for line in absent if line not in outcome.absent]
            # A peer that cannot run here is no defect of ours.
            for line in wrong:
                (outcome.wrong if f", {OURS}" in line else outcome.absent).append(line)
            if not any(entry.name == OURS for entry in entries):
                continue
            rows = list(rows_of(problem, entries, list(facts.values()), race(entries, timer, samples), name))
        except torch.OutOfMemoryError:
            outcome.absent.append(f"{shape.op} {shape}, {shape.dtype}: the device has too little memory")
            continue
        LEDGER.at(path).update(rows)
        outcome.rows += len(rows)
        print(f"{shape.op} {shape}, {shape.dtype}")
        for row in rows:
            print(f"  {row['us']:12.1f} µs  {row['ratio']:8.2f}x  {row['contender']} {row['backend']}", flush=True)
    return outcome
