"""Random selections and searches against brute force.

`python tests/fuzz/fuzz_selections.py --seed 1 --selections 100000`

A case is drawn from (seed, number) alone. It makes a call, checks every query of it with `fuzz_oracle`, then makes the
call again in another way (other threads, some of the queries, another order of them, another layout of the arrays) that
must not change a bit, and with another instruction set, which is checked like the first. What fails is printed with the
command that repeats it, and with the least of its arguments that still fail.
"""

import os
import sys
import tempfile
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from fuzz_oracle import Question, unit_rows, walk
from fuzz_runs import Fuzzer, WrongError, main
from selecting import ISA, draw_isa, in_words, of_queries, same, short, strict

import ragsys_kernels as rk
from ragsys_kernels.corpus import rows as corpus_rows
from ragsys_kernels.selection import cpu

EIGHTHS = np.arange(-24, 25) / 8  # of which sums and products are exact in float32
HALF = ("float16", "bfloat16")


@dataclass
class Case:
    """What is asked, as an engineer would say it; how arrays are laid out is decided in `call`."""

    call: str  # "mmr" | "vrsd" | "search" | "select"
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
    method = "vrsd" if rng.random() < 0.3 and shape not in ("large corpus", "search") else "mmr"

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
        case.pool = None if rng.random() < 0.15 else int(rng.integers(1, 61))
    return case


PARTS = (0.4, 0.13, 0.1, 0.12, 0.1, 0.15)


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

    if case.method == "mmr":
        if rng.random() < (0.8 if shape == "large corpus" else 0.5):
            by_row = shape not in ("pools", "dense") or (shape == "pools" and rng.random() < 0.6)
            bias = values(N) if by_row else values(Q, pool)
            options["bias"] = bias * np.float32(rng.choice((0.25, 1.0)))
        if shape != "search":
            options["lambda_d"] = weights()
        options["lambda_b"] = weights()
    if shape in ("pools", "dense") and rng.random() < 0.3:
        options["relevance"] = values(Q, pool)
    if rng.random() < (0.7 if shape == "search" else 0.3):
        groups = rng.integers(0, max(1, int(N ** rng.random())), N)
        options["groups"] = groups.reshape(Q, P) if shape == "dense" else groups
        own = rng.random() < 0.6
        if own:
            options["query_groups"] = rng.choice(groups, Q)
        if (not own or rng.random() < 0.5) and shape != "search":
            options["max_per_group"] = int(rng.integers(1, 4))
    if shape != "search" and rng.random() < 0.2:
        size = P if shape == "dense" else N
        initial = np.stack([rng.permutation(size)[: min(size, 4)] for _ in range(Q)])
        initial[rng.random(initial.shape) < 0.3] = -1
        options["initial"] = initial
    if rng.random() < 0.3:
        options.update(_filter(rng, Q, P if shape == "dense" else N))
    return options


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


def _stored(case: Case, rng) -> Any:
    """The rows as an array of their type, laid out in one of the ways that are taken as they are."""
    x = case.rows
    layout = rng.choice(("plain", "wide", "every second", "file", "torch"))
    if layout in ("wide", "every second") and not case.dense:
        N, D = x.shape
        around = np.full((2 * N, D + 3), np.nan, np.float32)
        view = around[:N, :D] if layout == "wide" else around[::2, 1 : D + 1]
        if case.dtype == "float32":
            view[:] = x
            return view
    if case.dtype == "bfloat16" or (layout == "torch" and case.dtype != "int8"):
        import torch

        return torch.from_numpy(np.ascontiguousarray(x)).to(getattr(torch, _given(case)))
    x = x.astype(_given(case))
    if layout == "file":
        with tempfile.TemporaryFile() as file:
            file.write(x.tobytes())
            file.flush()
            return np.memmap(file, x.dtype, "r", shape=x.shape)
    return x


def _given(case: Case) -> str:
    return "float32" if case.dtype == "int8" else case.dtype


def make(case: Case, rng, queries: Any = slice(None), threads: int | None = None) -> list[np.ndarray]:
    """Make the call for some of its queries; its results as arrays."""
    options = of_queries(case.options, queries)
    k = of_queries({"k": case.k}, queries)["k"]
    chosen = case.queries[queries]
    if rng.random() < 0.2:
        chosen = np.asfortranarray(chosen.astype(np.float64))
    if threads is not None:
        options["num_threads"] = threads
    if case.corpus:
        columns = {}
        for name in ("bias", "groups"):
            if name in options and options[name].ndim == 1 and (case.call == "search" or rng.random() < 0.5):
                columns[name] = options.pop(name)
        embeddings: Any = rk.Corpus(_stored(case, rng), metric=case.metric, dtype=case.dtype, **columns)
    else:
        embeddings = _stored(replace(case, rows=case.rows[queries]) if case.dense else case, rng)
    if case.call == "search":
        found = embeddings.search(chosen, k, **options)
    elif case.call == "select":
        found = embeddings.select(chosen, k, method=case.method, pool=case.pool, **options)
    else:
        if not case.corpus:
            options["metric"] = case.metric
        function = rk.mmr if case.method == "mmr" else rk.vrsd
        found = function(chosen, embeddings, k, backend=case.backend, **options)
    return [np.asarray(x) for x in found]


# The check


def questions(case: Case):
    """Each query of a case with its pool."""
    options = case.options
    Q = len(case.queries)
    flat = case.rows.reshape(-1, case.rows.shape[-1])
    vectors = _formula_rows(case, flat)
    unit = case.metric == "cosine" or case.method == "vrsd"
    queries = unit_rows(case.queries) if unit else case.queries.astype(np.float64)
    ks = np.broadcast_to(case.k, Q)
    column = {name: np.broadcast_to(np.asarray(options.get(name, d), np.float64), Q) for name, d in LAMBDAS.items()}
    for q in range(Q):
        if case.dense:
            positions = ids = np.arange(case.rows.shape[1])
            rows = q * case.rows.shape[1] + ids
        else:
            positions = np.arange(len(flat))
            ids = positions
            if "candidates" in options:
                positions = np.flatnonzero(options["candidates"][q] >= 0)
                ids = options["candidates"][q][positions].astype(np.int64)
            rows = ids
        if case.call != "select" or case.pool is None:  # else the pool has none of the others
            may = np.array([_may(options, q, item) for item in ids.tolist()], bool)
            positions, ids, rows = positions[may], ids[may], rows[may]
        groups = options["groups"].reshape(-1) if "groups" in options else None
        question = Question(
            case.method,
            ids,
            vectors[rows],
            flat[rows],
            int(ks[q]),
            queries[q],
            lambda_d=1.0 if case.call == "search" else float(column["lambda_d"][q]),
            lambda_b=float(column["lambda_b"][q]),
            cap=options.get("max_per_group"),
            precise=case.backend != "reference",
            exact=case.exact and (case.method == "mmr" or case.kind == "signs"),
        )
        if "relevance" in options:
            question.relevance = options["relevance"][q, positions].astype(np.float64)
        if "bias" in options:
            bias = options["bias"].astype(np.float64)
            question.bias = bias[rows] if bias.ndim == 1 else bias[q, positions]
        if groups is not None:
            question.groups = groups[rows]
            if "query_groups" in options:
                question.own_group = options["query_groups"][q]
        if "initial" in options:
            shown = options["initial"][q]
            question.shown = shown[shown >= 0]
            shown_rows = question.shown + (q * case.rows.shape[1] if case.dense else 0)
            question.shown_vectors = vectors[shown_rows]
            question.shown_groups = None if groups is None else groups[shown_rows]
        yield question


def _may(options: dict[str, Any], q: int, item: int) -> bool:
    """Whether a query may pick an item."""
    for name, wanted in (("allowed", True), ("exclude", False)):
        if name in options:
            given = options[name][q] if options[name].ndim == 2 else options[name]
            if (bool(given[item]) if given.dtype == bool else item in given) != wanted:
                return False
    return True


LAMBDAS = {"lambda_d": 0.75, "lambda_b": 0.95}


def _formula_rows(case: Case, rows: np.ndarray) -> np.ndarray:
    """What the formulas have for each row: unit vectors under cosine, and what rounding to a corpus's type leaves."""
    cosine = case.metric == "cosine"
    exact = unit_rows(rows) if cosine else rows.astype(np.float64)
    if not case.corpus:
        return exact
    if case.dtype == "float32":
        return exact.astype(np.float32).astype(np.float64)
    if case.dtype == "int8":
        # Steps are rounded in float32, a half up or down: they are taken from the corpus and held against the rows.
        corpus = rk.Corpus(rows, metric=case.metric, dtype="int8")
        steps = np.asarray(corpus.data, np.float64)
        largest = np.abs(exact).max(axis=1, keepdims=True)
        if (np.abs(127 * exact - steps * largest) > (0.5 + 1e-4) * largest).any():
            raise WrongError("a row is more than half a step from the one stored")
        return unit_rows(steps) if cosine else steps * (largest / 127)
    if not cosine:
        return exact  # they were drawn so that the type holds them
    if case.dtype == "float16":
        return unit_rows(exact.astype(np.float32).astype(np.float16))
    bits = exact.astype(np.float32).view(np.uint32).astype(np.uint64)  # to nearest, ties to even
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return unit_rows(bits.astype(np.uint32).view(np.float32))


def judge(case: Case, found: list[np.ndarray]) -> None:
    indices, scores = found[:2]
    width = int(np.max(case.k))
    if indices.shape != (len(case.queries), width):
        raise WrongError(f"indices have shape {indices.shape}, not {(len(case.queries), width)}")
    pools = _pools(case) if case.call == "select" and case.pool is not None else None
    for q, question in enumerate(questions(case)):
        try:
            if pools is not None:
                question = _within(question, pools[q])
            if case.call == "search":
                walk(question, indices[q], scores[q])
                continue
            made = walk(question, indices[q], scores[q], found[2][q], found[3][q])
            if found[4][q] != made:
                raise WrongError(f"lengths is {found[4][q]}, not {made}")
        except WrongError as error:
            raise WrongError(f"query {q}: {error}") from None


def _pools(case: Case) -> np.ndarray:
    """What `select` retrieves: the search of its pool, which is checked as a search."""
    names = ("bias", "lambda_b") if case.method == "mmr" else ()
    options = {
        name: case.options[name]
        for name in (*names, "groups", "query_groups", "allowed", "exclude")
        if name in case.options
    }
    if "query_groups" not in options:
        options.pop("groups", None)
    shown = case.options["initial"].shape[1] if "initial" in case.options else 0
    n = min(case.pool + shown, len(case.rows))
    search = replace(case, call="search", method="mmr", k=n, options=options)
    found = make(search, np.random.default_rng(0))
    try:
        judge(search, found)
    except WrongError as error:
        raise WrongError(f"its search: {error}") from None
    return found[0]


def _within(question: Question, ids: np.ndarray) -> Question:
    """The question over a pool of its own, in the order of that."""
    ids = ids[ids >= 0]
    part = {}
    for name in ("vectors", "given", "bias", "groups"):
        if getattr(question, name) is not None:
            part[name] = getattr(question, name)[ids]
    return replace(question, ids=ids, **part)


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
    same(found, make(case, rng, threads=int(rng.integers(1, 4))), "with other threads")
    order = rng.permutation(Q)[: int(rng.integers(1, Q + 1))]
    # Whole dense pools are one array, so that another order is another array; all else is the same.
    again = make(case, rng, order, threads=int(rng.integers(1, 4)))
    same([x[order] for x in found], again, f"for queries {order.tolist()}")
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
    options = of_queries(case.options, slice(q, q + 1))
    return replace(case, queries=one["queries"], rows=one["embeddings"], k=one["k"], options=options)


FUZZER = Fuzzer(__file__, "selections", 100_000, run_one, smallest)

if __name__ == "__main__":
    sys.exit(main(FUZZER, __doc__))
