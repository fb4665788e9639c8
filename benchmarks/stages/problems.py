"""The small problems that reach every kernel of a backend, by which each is checked before anything is timed.

A *form* is a backend's kernels of one kind, by default or under a variant. The problems of each are there so that its
kernels, and no others of the kind, do the work: `tests/tools/gpu/test_forms.py` holds them to the launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import ragsys_kernels as rk
from benchmarks.gpu.shapes import FEW_HIDDEN, FROM_LOGITS, MANY_HIDDEN, POOLS_ON_CHIP, STREAMED, WHOLE_CORPUS
from ragsys_kernels import testing

SEARCH = "search"
SELECTED = ("mmr", "vrsd", "msd")
ON_CHIP = 128  # items of a pool whose products lie on the chip
SHOWN = 3  # items that were shown before


class Small(NamedTuple):
    """A problem: the op and kind of kernel, and what makes the arguments of the call, arrays on the host."""

    name: str
    op: str
    kind: str
    dtype: str
    make: Callable[[], dict[str, Any]]
    exact: bool = False  # all sums are exact in float32: picks are those of the reference


@dataclass(frozen=True)
class Form:
    name: str
    backend: str
    problems: tuple[Small, ...]
    variants: str = ""  # a value of RAGSYS_KERNELS_VARIANTS


# --- What problems are made of.


def _selection(op: str, dtype: str, *sizes: int, whole: bool = False, **made: Any) -> dict[str, Any]:
    """Return the arguments of a selection of `testing.selection_problem`; of int8 a corpus has the rows."""
    options = {name: made.pop(name) for name in ("lambda_d", "initial") if name in made}
    if op == "vrsd":
        made.pop("bias", None)
    problem = testing.selection_problem(*sizes, dtype="float32" if dtype == "int8" else dtype, **made)
    Q, P = sizes[:2]
    if whole:
        del problem["candidates"]
    if dtype == "int8":
        if made.get("kind") == "integers":
            problem["embeddings"] = problem["embeddings"].astype(np.int8)
        problem["embeddings"] = rk.Corpus(problem["embeddings"], dtype="int8", metric=problem.get("metric", "cosine"))
    if op == "vrsd":
        problem = {name: x for name, x in problem.items() if name not in ("lambda_d", "lambda_b")}
    elif "lambda_d" in options:
        problem["lambda_d"] = options["lambda_d"]
    if "initial" in options:
        problem["initial"] = np.stack([np.random.default_rng(q).permutation(P)[:SHOWN] for q in range(Q)])
    return problem


def pools(
    op: str, dtype: str, P: int, D: int, K: int = 7, *, shown: bool = True, grouped: bool = True
) -> Iterator[Small]:
    """Yield pools with holes and options, and full ones with duplicates, whose ties go to the lowest position."""
    kind = POOLS_ON_CHIP if P <= ON_CHIP else STREAMED

    def small(said: str, Q: int, items: int, exact: bool = False, **made: Any) -> Small:
        make = functools.partial(_selection, op, dtype, Q, items, K, D, **made)
        return Small(f"{op}, P={P}, D={D}, {dtype}, {said}", op, kind, dtype, make, exact)

    options = {"ragged": True, "bias": True, "lambda_d": 0.75, **({"groups": True} if grouped else {})}
    # Items that were shown before take slots too.
    taken = SHOWN if shown and kind == POOLS_ON_CHIP else 0
    yield small("options", 3, P - taken, **options, **({"initial": True} if shown else {}))
    yield small("integers", 2, P, op != "vrsd", kind="integers")
    if op != "vrsd":
        yield small("duplicates", 2, P, kind="duplicates", lambda_d=0.3)


# Rows of a corpus whose picks are drafted from a search, and proven; the fewest for two picks.
ROWS, FEW_ROWS, DIMS = 4_200, 2_050, 24
COPIES = 200  # more than a pool has room for


def corpora(op: str, dtype: str, K: int, lambda_d: float = 0.75, N: int = ROWS, Q: int = 3, **made: Any) -> Small:
    """Return a whole corpus, whose rows have duplicates."""
    made = {"kind": "duplicates", "lambda_d": lambda_d, **made}
    said = [f"{op}, N={N}, K={K}", *([] if op == "vrsd" else [f"λ {lambda_d}"]), dtype, made["kind"]]
    said += [name for name in made if made[name] is True]
    make = functools.partial(_selection, op, dtype, Q, N, K, DIMS, N=N, whole=True, **made)
    return Small(", ".join(said), op, WHOLE_CORPUS, dtype, make, made["kind"] == "integers")


def _copies(dtype: str, N: int, K: int, Q: int, D: int = DIMS) -> dict[str, Any]:
    """Return a corpus in which the row that is nearest to each query lies so often that no pool holds its copies."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((N, D)).astype(np.float32)
    queries = rng.standard_normal((Q, D)).astype(np.float32)
    places = rng.permutation(N)
    for q in range(Q):
        rows[places[q * COPIES : (q + 1) * COPIES]] = queries[q] + 0.05 * rng.standard_normal(D)
    stored: Any = rows if dtype == "float32" else rows.astype(dtype)
    return {"queries": queries, "embeddings": stored, "k": K, "lambda_d": 0.75}


def copies(dtype: str, N: int = ROWS, K: int = 2, Q: int = 2) -> Small:
    """Return a whole corpus whose picks no draft proves: all values of all rows are looked at."""
    make = functools.partial(_copies, dtype, N, K, Q)
    return Small(f"mmr, N={N}, K={K}, {dtype}, {COPIES} copies", "mmr", WHOLE_CORPUS, dtype, make)


def searches(dtype: str, N: int = ROWS, kind: str = "integers") -> Small:
    """Return a search, of duplicates or of whole numbers, of which many are equally near."""

    n = 8

    def make() -> dict[str, Any]:
        problem = _selection("mmr", "float32", 3, N, n, DIMS, N=N, whole=True, kind=kind)
        rows = problem["embeddings"].astype(np.int8 if (dtype, kind) == ("int8", "integers") else np.float32)
        corpus = rk.Corpus(rows, dtype=dtype, metric=problem.get("metric", "cosine"))  # type: ignore[arg-type]
        return {"queries": problem["queries"], "n": n, "corpus": corpus}

    return Small(f"search, {n} of {N}, {dtype}, {kind}", SEARCH, SEARCH, dtype, make, kind == "integers")


def _scores(T: int, V: int, D: int | None, dtype: str, options: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    random = torch.Generator().manual_seed(0)
    stored = getattr(torch, dtype)
    if D is None:
        form = {"logits": 4 * torch.randn((T, V), generator=random).to(stored)}
    else:
        weight = torch.randn((V, D), generator=random) * (4 / D**0.5)
        form = {"hidden": torch.randn((T, D), generator=random).to(stored), "weight": weight.to(stored)}
    options = dict(options)
    each = 2 if options.pop("grouped", False) else 1  # targets of a row
    if each > 1:
        form["rows"] = torch.arange(T).repeat(each)
    targets = torch.randint(V, (each * T,), generator=random)
    return {**form, "targets": targets, "cu_answers": torch.tensor([0, T // 2, each * T]), **options}


def scores(T: int, V: int, D: int | None, dtype: str, **options: Any) -> Small:
    """Return log p of tokens and answers, from logits or hidden states; ``grouped``: of several tokens of each row."""
    kind = FROM_LOGITS if D is None else FEW_HIDDEN if T <= 64 else MANY_HIDDEN
    name = (
        f"log p, T={T}, V={V}{'' if D is None else f', D={D}'}, {dtype}{''.join(f', {option}' for option in options)}"
    )
    op = "token_logprobs" if D is None else "answer_logprobs"
    return Small(name, op, kind, dtype, functools.partial(_scores, T, V, D, dtype, options))


RANKS: dict[str, Any] = {"want": ("logp", "rank")}
ALONE: dict[str, Any] = {"reduce": ()}  # log p and nothing of answers, which takes ranks


# --- The forms.

SIXTEEN = ("float16", "bfloat16")


def forms(backend: str, few: bool = False) -> tuple[Form, ...]:
    """Return the forms of a backend, the newest kernels first; ``few``: all paths, but not of every type and size."""
    if backend in ("cuda", "triton"):
        made = (_of_cuda if backend == "cuda" else _of_triton)(few)
        return tuple(
            Form(", ".join(filter(None, (f"{backend} {name}", variants))), backend, tuple(found), variants)
            for name, variants, found in made
        )
    found = [x for op in ("mmr", "vrsd") for P in (57, 201) for x in pools(op, "float32", P, 37)]
    found += [corpora(op, "float32", 5, N=700) for op in ("mmr", "vrsd")]
    found += [scores(T, 5003, D, dtype) for T in (3, 70) for D in (None, 72) for dtype in ("float32", "bfloat16")]
    return (Form(backend, backend, tuple(found)),)


Made = Iterator[tuple[str, str, Iterable[Small]]]  # name, variants, problems


def _of_cuda(few: bool) -> Made:
    stored = ("float16", "int8") if few else (*SIXTEEN, "int8")
    sizes = ((57, 40), (124, 144)) if few else ((20, 40), (57, 40), (100, 72), (124, 144))
    yield "gram", "", _each(sizes, SELECTED, stored)
    resident = ((201, 40), (500, 768), (1000, 384))
    if not few:
        resident += ((201, 768), (500, 384), (1000, 768))
    yield "resident", "", _each(resident, SELECTED, ("float16",) if few else SIXTEEN, shown=False)
    streamed = ((1030, 40),) if few else ((201, 776), (1030, 40), (2100, 384))
    yield "streamed", "", _each(streamed, SELECTED, ("float16",) if few else SIXTEEN, shown=False)


def _of_triton(few: bool) -> Made:
    every = ("float32", *SIXTEEN, "int8")
    stored = ("float16",) if few else every[1:]
    N, K, Q = (FEW_ROWS, 2, 1) if few else (ROWS, 4, 3)
    proven = [corpora("mmr", dtype, K, 0.75, N, Q) for dtype in (stored if few else every)]
    proven += [corpora("mmr", dtype, min(K, 3), 0.3, N, Q) for dtype in (("float32",) if few else every)]
    proven += [corpora("mmr", "float16", 2, 0.5, N, Q, kind="integers")]
    proven += [corpora("mmr", "float16", min(K, 3), 0.75, N, Q, bias=True, groups=True, initial=True)]
    yield "proof", "", [*proven, *(copies(dtype, N, Q=min(Q, 2)) for dtype in (stored if few else every[:2]))]
    yield (
        "search",
        "",
        [*(searches(dtype, N) for dtype in (stored if few else every)), searches("float16", N, "duplicates")],
    )
    on_chip = [*_each(((20, 40), (57, 33)), ("mmr",), ("float16",)), *_each(((124, 72),), ("mmr",), stored)]
    on_chip += _each(((57, 33), (128, 40)), ("vrsd", "msd"), ("float16",))
    on_chip += _each(((124, 70),), ("mmr", "vrsd"), stored)  # rows that cannot be read 16 bytes at a time
    yield "gram", "", [*on_chip, *_each(((57, 33),), ("mmr", "vrsd"), ("float32",))]
    free: dict[str, Any] = {"shown": False, "grouped": False}
    sizes = ((100, 64),) if few else ((100, 64), (128, 384), (65, 768))
    yield "estimates", "float32=estimates", _each(sizes, ("mmr",), ("float32",), **free)
    yield "bounds", "", _each(((201, 37),), ("mmr",), stored if few else every)
    yield "stream", "", _each(((201, 37),), ("vrsd", "msd"), stored if few else every)
    yield "dense", "", [corpora(op, dtype, 5, N=700) for op in ("mmr", "vrsd") for dtype in every[:2]]
    read = [corpora("mmr", dtype, K, lambda_d, N, Q) for dtype in stored for lambda_d in (0.75, 0.3)]
    yield "dense", "corpus=dense", [*read, copies("float16", N, Q=min(Q, 2))]
    yield "search", "search=values", [searches(dtype, N) for dtype in stored]
    ways: list[dict[str, Any]] = [{}, {"grouped": True}, RANKS, ALONE]
    yield "logits", "", _logits(few, (20_008, 20_003), ways)
    yield "linear", "", _linear(("bfloat16",) if few else every[:3], ((3, 128), (70, 128), (70, 72)), ways)


def _logits(few: bool, vocabularies: Iterable[int], ways: Iterable[Mapping[str, Any]]) -> list[Small]:
    dtypes = ("bfloat16",) if few else ("float32", *SIXTEEN)
    return [scores(3, V, None, dtype, **way) for V in vocabularies for dtype in dtypes for way in ways]


def _linear(dtypes: Iterable[str], sizes: Iterable[tuple[int, int]], ways: Iterable[Mapping[str, Any]]) -> list[Small]:
    return [scores(T, 5_008, D, dtype, **way) for dtype in dtypes for T, D in sizes for way in ways]


def _each(sizes: Iterable[tuple[int, int]], ops: Iterable[str], dtypes: Iterable[str], **how: Any) -> list[Small]:
    return [x for P, D in sizes for op in ops for dtype in dtypes for x in pools(op, dtype, P, D, **how)]
