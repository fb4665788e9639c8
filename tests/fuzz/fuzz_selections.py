"""Random selections, by every rule that picks an item at a time, and searches, against their replay in float64.

`python tests/fuzz/fuzz_selections.py --seed 1 --selections 100000`

A case is drawn from (seed, number) alone. It makes a call, holds its picks against exact arithmetic and, where
sums are exact, against the reference, then makes the call again in another way (other threads, some of the queries,
another order of them, another layout of the arrays) that must not change a bit, and with another instruction set, which
is checked like the first. What fails is printed with the command that repeats it, and with the least of its arguments
that still fail.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from fuzz_runs import Fuzzer, WrongError, main
from selecting import BESIDE, ISA, draw_isa, in_words, of_queries, same, short, strict

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.corpus import rows as corpus_rows
from ragsys_kernels.selection import cpu

EIGHTHS = np.arange(-24, 25) / 8  # of which sums and products are exact in float32


@dataclass
class Case:
    """What is asked, as an engineer would say it; how arrays are laid out is decided in `call`."""

    call: str  # a rule, "search" or "select"
    kind: str
    metric: str
    rows: np.ndarray  # (N, D), or (Q, P, D) for dense pools, float32 that the storage type holds exactly
    dtype: str
    corpus: bool
    queries: np.ndarray  # (Q, D) float32
    k: Any
    method: str = "mmr"
    pool: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    backend: str = "auto"
    small: bool = False  # whether the steps of large corpora are taken with small ones

    @property
    def dense(self) -> bool:
        return self.rows.ndim == 3

    @property
    def exact(self) -> bool:
        """Whether every value that MMR compares is exact in float32."""
        return {"signs": self.dtype != "int8", "integers": self.metric == "dot" and self.dtype != "int8"}.get(
            self.kind, False
        )

    def __str__(self) -> str:
        stored = f"Corpus(dtype={self.dtype})" if self.corpus else self.dtype
        return (
            f"{self.call}[{self.method}] of {self.kind} rows {self.rows.shape} {stored} {self.metric}, "
            f"queries {self.queries.shape}, k={short(self.k)}, pool={self.pool}, backend={self.backend}, "
            f"small={self.small}, {in_words(self.options)}"
        )


# Data


def _held(x: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest values that the storage type holds, as float32."""
    x = np.asarray(x, np.float32)
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return x


def _vectors(rng, kind, count, dims):
    if kind == "signs":  # norms are powers of two, and so cosines are exact
        x = np.zeros((count, dims), np.float32)
        most = [n for n in (1, 4, 16) if n <= dims]
        for row in x:
            places = rng.permutation(dims)[: rng.choice(most)]
            row[places] = rng.choice((-1, 1), len(places))
        return x * np.float32(2.0) ** rng.integers(-2, 3, (count, 1)).astype(np.float32)
    if kind == "integers":
        return rng.integers(-3, 4, (count, dims)).astype(np.float32)
    x = rng.standard_normal((count, dims)).astype(np.float32)
    if kind == "clustered":
        centres = rng.standard_normal((max(1, count // 8), dims)).astype(np.float32)
        x = centres[rng.integers(0, len(centres), count)] + np.float32(0.05) * x
    elif kind == "opposite":  # sums that nearly cancel
        half = x[: count // 2]
        x[count - len(half) :] = -half * (1 + np.float32(1e-3) * rng.standard_normal((len(half), 1), np.float32))
    elif kind == "positive":
        x = np.abs(x)
    elif kind == "scaled":
        x *= np.float32(10.0) ** rng.integers(-4, 5, (count, 1)).astype(np.float32)
    return x


KINDS = ("signs", "integers", "random", "clustered", "opposite", "positive", "scaled")


def draw(seed: int, number: int) -> Case:
    rng = np.random.default_rng([seed, number])
    shape = rng.choice(("pools", "dense", "small corpus", "large corpus", "search", "select"), p=PARTS)
    kind = str(rng.choice(KINDS, p=(0.25, 0.15, 0.2, 0.15, 0.1, 0.1, 0.05)))
    Q, D, N = int(rng.integers(1, 25)), int(rng.integers(1, 41)), int(rng.integers(1, 121))
    P, K = int(rng.integers(1, 65)), int(rng.integers(1, 9))
    if rng.random() < 0.1:
        D = int(rng.choice((1, 2, 64, 96, 130)))
    if shape == "large corpus" or (shape in ("search", "select") and rng.random() < 0.3):
        N, D, Q = int(rng.choice((2048, 2600, 3200, 6000))), int(rng.integers(2, 25)), int(rng.integers(8, 25))
        K = int(rng.integers(1, 7))
    elif rng.random() < 0.1:
        N, P = int(rng.integers(100, 400)), int(rng.integers(60, 300))
    metric = "cosine"
    if kind == "integers" or (kind != "signs" and shape != "large corpus" and rng.random() < 0.25):
        metric = "dot"
    corpus = shape in ("search", "select") or (shape != "dense" and rng.random() < 0.6)
    kinds = ("float32", "float16", "bfloat16", "int8") if corpus else ("float32", "float16", "bfloat16")
    dtype = str(rng.choice(kinds, p=(0.55, 0.15, 0.15, 0.15) if corpus else (0.6, 0.2, 0.2)))
    method = "mmr" if shape in ("large corpus", "search") else str(rng.choice(RULES, p=OFTEN))
    other = method not in ("mmr", "vrsd")
    if other and kind != "integers":
        metric = "cosine"

    if shape == "dense":
        N = Q * P
    rows = _held(_vectors(rng, kind, N, D), dtype)
    if rng.random() < 0.35:  # equal rows: now and then so many that a search keeps not all of its ties
        rows = rows[rng.integers(0, 2 if shape == "search" and N > 2_000 else max(1, int(N ** rng.random())), N)]
    if rng.random() < 0.3:
        rows = rows * (rng.random((N, 1)) > 0.1)
    queries = _vectors(rng, "signs" if kind == "signs" else "integers" if kind == "integers" else "random", Q, D)
    if rng.random() < 0.1:
        queries[rng.integers(0, Q)] = 0
    case = Case(
        {"search": "search", "select": "select"}.get(shape, method),
        kind,
        metric,
        rows.astype(np.float32),
        dtype,
        corpus,
        queries,
        K,
        "mmr" if shape == "search" else method,
    )
    case.options.update(_options(rng, case, shape, Q, P, N, K))
    if shape in ("pools", "dense", "small corpus") and rng.random() < 0.03:
        case.backend = "reference"
    if shape == "dense":
        case.rows = case.rows.reshape(Q, P, D)
    case.small = rng.random() < 0.5
    if rng.random() < 0.2 and shape != "search":
        case.k = rng.integers(1, K + 1, Q)
    if shape == "select":
        case.pool = None if rng.random() < 0.15 and not (other and N > 400) else int(rng.integers(1, 61))
    return case


PARTS = (0.4, 0.13, 0.1, 0.12, 0.1, 0.15)
RULES = ("mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage")
OFTEN = (0.45, 0.2, 0.07, 0.07, 0.07, 0.07, 0.07)


def _options(rng, case, shape, Q, P, N, K):
    """Those of the call, each left out as often as not."""
    exact = case.exact
    options: dict[str, Any] = {}
    pool = P if shape == "dense" else N
    if shape == "pools":
        P = min(P, N)
        candidates = np.stack([rng.permutation(N)[:P] for _ in range(Q)])
        if rng.random() < 0.4:
            candidates[rng.random((Q, P)) < rng.random((Q, 1))] = -1
        options["candidates"] = candidates.astype(rng.choice(("int32", "int64")))
        pool = P

    def values(*shape):
        return (rng.choice(EIGHTHS, shape) if exact else rng.standard_normal(shape)).astype(np.float32)

    def weights():
        drawn = rng.choice((0, 0.25, 0.5, 0.75, 1), Q) if exact or rng.random() < 0.3 else rng.random(Q)
        return drawn.astype(np.float32) if rng.random() < 0.3 else float(np.float32(drawn[0]))

    taken = rk.METHODS[case.method].parameters
    if "bias" in taken:
        if rng.random() < (0.8 if shape == "large corpus" else 0.5):
            by_row = shape not in ("pools", "dense") or (shape == "pools" and rng.random() < 0.6)
            bias = values(N) if by_row else values(Q, pool)
            options["bias"] = bias * np.float32(rng.choice((0.25, 1.0)))
        if shape != "search":
            options["lambda_d"] = weights()
        options["lambda_b"] = weights()
    if shape in ("pools", "dense") and case.method in ("mmr", "vrsd") and rng.random() < 0.3:
        options["relevance"] = values(Q, pool)
    if rng.random() < (0.7 if shape == "search" else 0.3):
        groups = rng.integers(0, max(1, int(N ** rng.random())), N)
        options["groups"] = groups.reshape(Q, P) if shape == "dense" else groups
        own = rng.random() < 0.6
        if own:
            options["query_groups"] = rng.choice(groups, Q)
        if (not own or rng.random() < 0.5) and shape != "search":
            options["max_per_group"] = int(rng.integers(1, 4))
        if shape != "search" and rng.random() < 0.5:
            options.update(_quotas(rng, options["groups"], own))
    if shape != "search" and rng.random() < 0.2:
        size = P if shape == "dense" else N
        initial = np.stack([rng.permutation(size)[: min(size, 4)] for _ in range(Q)])
        initial[rng.random(initial.shape) < 0.3] = -1
        options["initial"] = initial
    if rng.random() < 0.3:
        options.update(_filter(rng, Q, P if shape == "dense" else N))
    items = (Q, P) if shape == "dense" else (N,)
    if shape != "search" and rng.random() < 0.3:
        options["costs"] = rng.integers(0, 10, items).astype(np.float64)
        options["budget"] = rng.integers(K, 4 * K + 1, Q).astype(np.float64)
    if shape != "search" and rng.random() < 0.2:
        options["max_similarity"] = rng.uniform(-0.2, 0.6, Q).astype(np.float32)
    if shape != "search" and rng.random() < 0.2:
        options["min_relevance"] = rng.uniform(-0.3, 0.4, Q).astype(np.float32)
    if shape != "search" and rng.random() < 0.2:
        options["nearest"] = True
    options.update(_of_rule(rng, case, Q, items))
    if options.get("density") and "budget" not in options:
        options["density"] = False
    return options


def _quotas(rng, groups: np.ndarray, own: bool) -> dict[str, Any]:
    """Caps of single groups, minima, or another level of groups."""
    names = np.unique(groups)
    some = rng.permutation(names)[: int(rng.integers(1, 6))].tolist()
    if rng.random() < 0.3:
        caps = [int(rng.integers(1, 4)), {name: int(rng.integers(0, 3)) for name in some}]
        levels = np.stack([groups, rng.integers(0, 5, groups.shape)], axis=-1)
        return {"groups": levels, "max_per_group": caps if rng.random() < 0.7 else caps[0]}
    found: dict[str, Any] = {}
    if rng.random() < 0.5:
        found["max_per_group"] = {name: int(rng.integers(2, 4)) for name in some}
    if rng.random() < 0.7:
        least = {name: int(rng.integers(0, 3)) for name in [*some, -1]}
        found["min_per_group"] = least if rng.random() < 0.6 else 1
        found.setdefault("max_per_group", None)
    return found


def _of_rule(rng, case: Case, Q: int, items: tuple[int, ...]) -> dict[str, Any]:
    """What the rule takes of its own."""
    if case.method == "dpp":
        own = {"quality": rng.uniform(0.5, 2, items)} if rng.random() < 0.4 else {}
        return {**own, "scale": float(rng.choice((0.5, 1.0, 2.0))), "window": [None, 2, 4][rng.integers(3)]}
    if case.method == "ssd":
        return {"gamma": float(rng.choice((0.3, 1.0))), "window": [None, 1, 2, 4][rng.integers(4)]}
    if case.method == "sift":
        return {"noise": float(rng.choice((0.05, 0.3, 1.0))), "min_gain": float(rng.choice((0.0, 0.0, 0.01)))}
    if case.method != "coverage":
        return {}
    made: dict[str, Any] = {"kind": str(rng.choice(("facility", "cover", "xquad"))), "density": rng.random() < 0.3}
    if made["kind"] == "cover":
        made["gamma"] = float(rng.choice((0.3, 0.5, 1.0)))
    if rng.random() < 0.5:
        made["aspects"] = rng.standard_normal((Q, 5, case.rows.shape[-1])).astype(np.float32)
        if rng.random() < 0.5:
            made["weights"] = rng.uniform(0, 1, (Q, 5))
    return made


def _filter(rng, Q: int, N: int) -> dict[str, Any]:
    """What may be picked, what may not, or both: masks or rows, of all queries or of each."""
    found = {}
    for name in ("allowed", "exclude") if rng.random() < 0.3 else (rng.choice(("allowed", "exclude")),):
        size = (Q, N) if rng.random() < 0.5 else (N,)
        if rng.random() < 0.5:
            found[str(name)] = rng.random(size) < rng.random()
        else:
            found[str(name)] = rng.integers(-1, N, (*size[:-1], int(rng.integers(0, N + 1))))
    return found


# The call


def _plain(case: Case) -> Any:
    """The rows as an array of their type."""
    if case.dtype == "bfloat16":
        import torch

        return torch.from_numpy(np.ascontiguousarray(case.rows)).to(torch.bfloat16)
    return case.rows.astype("float32" if case.dtype == "int8" else case.dtype)


def _stored(case: Case, rng) -> Any:
    """The same, laid out in one of the ways that are taken as they are."""
    layout = rng.choice(("plain", "wide", "every second", "file", "torch"))
    x = _plain(case)
    if layout in ("wide", "every second") and not case.dense and case.dtype == "float32":
        N, D = x.shape
        around = np.full((2 * N, D + 3), np.nan, np.float32)
        view = around[:N, :D] if layout == "wide" else around[::2, 1 : D + 1]
        view[:] = x
        return view
    if layout == "torch" and case.dtype in ("float32", "float16"):
        import torch

        return torch.from_numpy(x)
    if layout == "file" and case.dtype != "bfloat16":
        with tempfile.TemporaryFile() as file:
            file.write(x.tobytes())
            file.flush()
            return np.memmap(file, x.dtype, "r", shape=x.shape)
    return x


def _embeddings(case: Case, stored: Callable[[], Any], **columns: np.ndarray) -> Any:
    return rk.Corpus(stored(), metric=case.metric, dtype=case.dtype, **columns) if case.corpus else stored()


def make(case: Case, rng, queries: Any = slice(None), threads: int | None = None) -> list[np.ndarray]:
    """Make the call for some of its queries; its results as arrays."""
    options = of_queries(case.options, queries, case.dense)
    k = of_queries({"k": case.k}, queries)["k"]
    chosen = case.queries[queries]
    if rng.random() < 0.2:
        chosen = np.asfortranarray(chosen.astype(np.float64))
    if threads is not None:
        options["num_threads"] = threads
    columns = {}
    for name in ("bias", "groups") if case.corpus else ():
        if name in options and options[name].ndim == 1 and (case.call == "search" or rng.random() < 0.5):
            columns[name] = options.pop(name)
    part = replace(case, rows=case.rows[queries]) if case.dense else case
    embeddings = _embeddings(case, lambda: _stored(part, rng), **columns)
    if case.call == "search":
        found = embeddings.search(chosen, k, backend=case.backend, **options)
    elif case.call == "select":
        found = embeddings.select(chosen, k, method=case.method, pool=case.pool, backend=case.backend, **options)
    else:
        if not case.corpus:
            options["metric"] = case.metric
        found = getattr(rk, case.method)(chosen, embeddings, k, backend=case.backend, **options)
    beside = (getattr(found, name, None) for name in BESIDE)
    return [np.asarray(x) for x in (*found, *beside) if x is not None]


# The check


def judge(case: Case, found: list[np.ndarray]) -> None:
    """Hold the picks against their replay in float64, those of equal items against the order of the pool."""
    options = {name: x for name, x in case.options.items() if name not in ("allowed", "exclude")}
    if not case.corpus:
        options["metric"] = case.metric
    if case.call == "search":
        options["lambda_d"] = 1.0
        if "query_groups" not in options:
            options.pop("groups", None)
    problem = {**options, "queries": case.queries, "k": case.k, "candidates": _pools(case)}
    problem["embeddings"] = _embeddings(case, lambda: _plain(case))
    if case.call == "search":  # which are picks by relevance alone
        picks = [np.asarray(x) for x in rk.mmr(**problem)]
        same(picks[:2], found, "from picks of the same rows")
        found = picks
    few = np.arange(len(case.queries))[:: 8 if len(case.rows) > 1_000 else 1]
    problem_of_few, tolerance = (
        of_queries(problem, few, case.dense),
        0.0 if case.exact and case.method == "mmr" else None,
    )
    width = np.max(problem_of_few["k"])
    some = [x[few, :width] if x.ndim == 2 else x[few] for x in found]
    picks = rk.Selection(*some[:5])
    picks.nearest = some[-1] if "nearest" in options else None
    testing.check_selection(case.method, problem_of_few, picks, tolerance=tolerance)
    _, of_row = np.unique(case.rows.reshape(-1, case.rows.shape[-1]), axis=0, return_inverse=True)
    for q in few.tolist():
        _in_order(case, q, problem["candidates"][q], of_row.ravel(), found[0][q])


def _pools(case: Case) -> np.ndarray:
    """The items that each query may pick, in the order that ties go by; -1 for others. `select` retrieves them by a
    search, which is checked as such."""
    options, Q, N = case.options, len(case.queries), case.rows.shape[-2]
    if case.call == "select" and case.pool is not None:
        names = ("bias", "lambda_b") if "bias" in rk.METHODS[case.method].parameters else ()
        if "query_groups" in options:
            names = (*names, "groups", "query_groups")
        own = {name: options[name] for name in (*names, "allowed", "exclude") if name in options}
        if "groups" in own and own["groups"].ndim == 2:
            own["groups"] = own["groups"][:, 0]
        shown = options["initial"].shape[1] if "initial" in options else 0
        search = replace(case, call="search", method="mmr", k=min(case.pool + shown, N), options=own)
        found = make(search, np.random.default_rng(0))
        judge(search, found)
        own_shown = (options["initial"] >= 0).sum(axis=1) if shown else np.zeros(Q, np.int64)
        return np.where(np.arange(found[0].shape[1]) < (case.pool + own_shown)[:, None], found[0], -1)
    pools = np.array(options.get("candidates", np.tile(np.arange(N), (Q, 1))), np.int64)
    for name, wanted in (("allowed", True), ("exclude", False)):
        if name in options:
            for q, given in enumerate(np.broadcast_to(options[name], (Q, options[name].shape[-1]))):
                among = given if given.dtype == bool else np.isin(np.arange(N), given)
                pools[q, among[pools[q]] != wanted] = -1
    return pools


def _in_order(case: Case, q: int, pool: np.ndarray, of_row: np.ndarray, picks: np.ndarray) -> None:
    """Refuse picks of items that are equal in all that counts, but for the first of them in their order."""
    options = case.options
    positions = np.flatnonzero((pool >= 0) & ~np.isin(pool, options.get("initial", [[]] * (q + 1))[q]))
    ids = pool[positions]
    rows = ids + q * case.rows.shape[1] if case.dense else ids
    counts = [of_row[rows]]
    if "groups" in options:
        counts.append([tuple(x) for x in options["groups"].reshape(len(of_row), -1)[rows].tolist()])
    for name in ("relevance", "bias", "costs", "quality"):
        if name in options and options[name].ndim == 1:
            counts.append(options[name][rows])
        elif name in options:
            counts.append(options[name][q, positions])
    kinds: dict[Any, list[int]] = {}
    for item, kind in zip(ids.tolist(), zip(*counts, strict=True), strict=True):
        kinds.setdefault(kind, []).append(item)
    kind_of = {item: equal for equal in kinds.values() for item in equal}
    for item in picks[picks >= 0].tolist():
        first = kind_of[item].pop(0)
        if first != item:
            raise WrongError(f"query {q}: item {item} was picked, item {first} is worth the same and comes before")


@contextmanager
def _sizes(small: bool, rng):
    """Blocks of few rows and queries, and the stages of whole corpora with pools of few."""
    if not small:
        yield
        return
    pools = np.sort(rng.integers(1, 30, 5))
    sizes = {
        (corpus_rows, "_BLOCK_BYTES"): int(rng.integers(100, 5_000)),
        (cpu, "_QUERY_BLOCK"): int(rng.integers(1, 10)),
        (cpu, "_FEW"): int(rng.integers(0, 10)),
        (cpu, "_FEW_STAGES"): tuple((terms, int(n), 6) for terms, n in zip((0, 8, 8), pools, strict=False)),
        (cpu, "_WHOLE_CORPUS"): int(rng.integers(1, 50)),
        (cpu, "_STAGES"): tuple((terms, int(n)) for terms, n in enumerate(pools)),
        (cpu, "_CODED_STAGES"): tuple((terms, int(n)) for terms, n in zip((0, 1, 4, 8), pools, strict=False)),
    }
    usual = {place: getattr(*place) for place in sizes}  # an AttributeError if there is no such size any more
    try:
        for place, size in sizes.items():
            setattr(*place, size)
        yield
    finally:
        for place, size in usual.items():
            setattr(*place, size)


def check(case: Case, rng) -> int:
    """Make a case's call and hold it against the rules, then in ways that must not change a bit; returns the number of
    selections that were checked against the rules."""
    with _sizes(case.small, rng):
        return _check(case, rng)


def _check(case: Case, rng) -> int:
    draw_isa(rng)
    Q = len(case.queries)
    found = make(case, rng, threads=int(rng.integers(1, 4)))
    judge(case, found)
    if case.backend == "reference":
        return Q
    if case.exact and case.method == "mmr":  # where ties go by the order of the pool, also of rows that differ
        same(found, make(replace(case, backend="reference"), rng), "from the reference's, and all sums are exact")
    same(found, make(case, rng, threads=int(rng.integers(1, 4))), "with other threads")
    order = rng.permutation(Q)[: int(rng.integers(1, Q + 1))]
    # Whole dense pools are one array, so that another order is another array; all else is the same.
    again = make(case, rng, order, threads=int(rng.integers(1, 4)))
    same([x[order] for x in found], again, f"for queries {order.tolist()}")
    # How many picks there are to be counts for a window of all of them, the best single item, and minima.
    looks_ahead = case.options.get("density") or case.options.get("min_per_group") is not None or case.method == "ssd"
    if np.ndim(case.k) == 0 and case.k > 1 and not looks_ahead:
        size = 2 if case.call == "search" else 4
        less = make(replace(case, k=case.k - 1), rng, threads=1)
        same(found[:size], less[:size], "with a smaller k")
    if rng.random() < 0.1 and not (case.method == "mmr" and "relevance" in case.options):
        _skips(case, found, rng)
    if rng.random() < 0.5:
        return Q
    draw_isa(rng, but=os.environ[ISA])
    judge(case, make(case, rng))
    return 2 * Q


def _skips(case: Case, found: list[np.ndarray], rng) -> None:
    """A query that is NaN is skipped where that is asked for, and the others are answered as before."""
    q = int(rng.integers(len(case.queries)))
    poisoned = case.queries.copy()
    poisoned[q] = np.nan
    again = make(replace(case, queries=poisoned, options={**case.options, "on_error": "skip"}), rng)
    if again[0][q].max() >= 0:
        raise WrongError(f"query {q} is NaN and has {again[0][q].tolist()}")
    others = np.arange(len(poisoned)) != q
    same([x[others] for x in found], [x[others] for x in again], f"where query {q} is skipped")


# Runs


def run_one(seed: int, number: int) -> int:
    with strict():
        return check(draw(seed, number), np.random.default_rng([seed, number, 1]))


def smallest(seed: int, number: int) -> str:
    """The case in words; of one that fails the least of its queries and options that still fail."""

    def fails(case: Case) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(case, np.random.default_rng([seed, number, 1]))
        except Exception:
            return True
        return False

    case = draw(seed, number)
    if not fails(case):
        return f"{case}"
    for q in range(len(case.queries)):
        one = _only(case, q)
        if fails(one):
            case = one
            break
    for name in list(case.options):
        less = replace(case, options={key: value for key, value in case.options.items() if key != name})
        if fails(less):
            case = less
    return str(case)


def _only(case: Case, q: int) -> Case:
    """The case with one query."""
    one = of_queries({"queries": case.queries, "embeddings": case.rows, "k": case.k}, slice(q, q + 1))
    options = of_queries(case.options, slice(q, q + 1), case.dense)
    return replace(case, queries=one["queries"], rows=one["embeddings"], k=one["k"], options=options)


FUZZER = Fuzzer(__file__, "selections", 100_000, run_one, smallest)

if __name__ == "__main__":
    sys.exit(main(FUZZER, __doc__))
