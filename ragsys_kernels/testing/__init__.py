"""Problems to try a selection on, and a check of its picks that depends on no backend.

`check_selection` replays the picks in float64: at each step the pick must be worth as much as the best item still
available, within the rounding error of float32 products. So it accepts near-ties and no other difference, from any
implementation, backend or instruction set.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np

from .._base.arrays import HOST
from ..selection import mmr, options, validate, vrsd
from ..selection.calls import aspects, volume
from ..selection.methods import METHODS
from ..selection.problem import Problem, Selection
from ..selection.request import Request
from .replay import Replay

KINDS = ("random", "clustered", "duplicates", "integers")

# Rules that pick an item at a time, which can be looked at pick by pick.
_REPLAYED = tuple(name for name in METHODS if name != "gist")


def selection_problem(
    Q: int,
    P: int,
    K: int,
    D: int,
    *,
    N: int | None = None,
    dtype: str = "float32",
    kind: str = "random",
    dense: bool = False,
    ragged: bool = False,
    bias: bool = False,
    groups: bool = False,
    budget: bool = False,
    ceiling: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Return arguments for `mmr` (and, without ``bias``, for `vrsd`).

    Parameters
    ----------
    Q, P, K, D : int
        Queries, pool size, picks, dimensions.
    N : int, optional
        Rows of the corpus. Default: 2 P. ``N == P`` gives every query the whole corpus in its own order.
    dtype : {"float32", "float16", "bfloat16"}
        Storage type of the embeddings. bfloat16 needs torch and gives a torch tensor.
    kind : {"random", "clustered", "duplicates", "integers"}
        Normal rows; rows close to few centres; rows of which many are equal; whole numbers in [-3, 3] with
        ``metric="dot"`` and lambdas of 1/2, so that every float32 sum is exact and ties are ties.
    dense : bool
        Pools (Q, P, D) instead of a corpus with candidates.
    ragged : bool
        Replace a random share of every query's candidates by -1, in any place.
    bias, groups : bool
        Add a bias per row; add groups of about four rows with ``query_groups`` and ``max_per_group=2``.
    budget, ceiling : bool
        Add costs of 0 to 9 and budgets for about half of the picks; a largest similarity that many items exceed.

    Returns
    -------
    dict
        Keyword arguments: ``mmr(**selection_problem(...))``.
    """
    if kind not in KINDS:
        raise ValueError(f"selection_problem: kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    rng = np.random.default_rng(seed)
    N = Q * P if dense else N or 2 * P
    rows = _rows(rng, N, D, kind)
    queries = _rows(rng, Q, D, "integers" if kind == "integers" else "random")
    problem: dict[str, Any] = {"queries": queries, "k": K}
    if dtype == "bfloat16":
        import torch

        embeddings: Any = torch.from_numpy(rows).to(torch.bfloat16)
    else:
        embeddings = rows.astype(dtype)
    if dense:
        problem["embeddings"] = embeddings.reshape(Q, P, D)
    else:
        problem["embeddings"] = embeddings
        candidates = np.stack([rng.permutation(N)[:P] for _ in range(Q)])
        if ragged:
            candidates[rng.random((Q, P)) < rng.random((Q, 1))] = -1
        problem["candidates"] = candidates
    shape = (Q, P) if dense else (N,)
    if kind == "integers":
        problem.update(metric="dot", lambda_d=0.5, lambda_b=0.5)
    if bias:
        integers = rng.integers(-3, 4, shape)
        problem["bias"] = (integers if kind == "integers" else rng.standard_normal(shape)).astype(np.float32)
    if groups:
        problem["groups"] = rng.integers(0, max(1, N // 4), shape)
        problem["query_groups"] = rng.choice(problem["groups"].reshape(-1), Q)
        problem["max_per_group"] = 2
    if budget:
        problem["costs"] = rng.integers(0, 10, shape).astype(np.float64)
        problem["budget"] = rng.integers(K, 4 * K + 1, Q).astype(np.float64)
    if ceiling:
        problem["max_similarity"] = rng.uniform(-0.2, 0.6, Q).astype(np.float32)
    return problem


def _rows(rng: np.random.Generator, N: int, D: int, kind: str) -> np.ndarray:
    if kind == "integers":
        return rng.integers(-3, 4, (N, D)).astype(np.float32)
    rows = rng.standard_normal((N, D)).astype(np.float32)
    if kind == "clustered":
        centres = rng.standard_normal((max(1, N // 10), D)).astype(np.float32)
        rows = centres[rng.integers(0, len(centres), N)] + np.float32(0.1) * rows
    elif kind == "duplicates":
        rows = rows[rng.integers(0, max(1, N // 3), N)]
    return rows


class Work(NamedTuple):
    """The work of a selection on the CPU backend, summed over the queries."""

    products: int  # dot products of D dimensions
    rows_read: int  # rows of the corpus that were read
    bytes_read: int  # their bytes
    dense_products: int  # dot products without bounds
    code_products: int  # products of 8-bit codes, which read no row


def selection_work(method: str, problem: dict[str, Any], *, bounds: str = "automatic") -> tuple[Selection, Work]:
    """Run a selection on the CPU backend and count its work.

    Parameters
    ----------
    method : str
        A rule of `METHODS`.
    problem : dict
        The arguments of the call, as for the function of that name.
    bounds : {"automatic", "dense", "pruned", "coded", "coarse"}
        Which bounds leave out dot products: "automatic" lets the kernel choose, "dense" uses none, "pruned" the
        triangle inequality, "coded" the codes of a `Corpus`, "coarse" codes of 4 bits that a query makes of its rows. A
        rule without such bounds uses its own. The picks are the same.
    """
    from ..selection import cpu

    checked = checked_problem(method, problem)
    selection, (products, rows_read, code_products) = cpu.run(checked, 1, bounds)
    relevance = 0 if checked.relevance is not None and method != "vrsd" else 1
    pools = [len(checked.eligible(q)[0]) for q in range(checked.num_queries)]
    picks = [min(n, int(k)) for n, k in zip(pools, np.broadcast_to(problem["k"], len(pools)), strict=True)]
    if method == "coverage":
        given = checked.options.aspects
        dense = sum(n * (relevance + (n if given is None else given.shape[1])) for n in pools)
    else:
        dense = sum(n * relevance + sum(n - step for step in range(1, k)) for n, k in zip(pools, picks, strict=True))
    row_bytes = checked.rows.data.shape[1] * checked.rows.data.itemsize
    return selection, Work(int(products), int(rows_read), int(rows_read) * row_bytes, dense, int(code_products))


def checked_problem(method: str, problem: dict[str, Any]) -> Problem:
    """Return the checked problem of a call of a rule, with the defaults of its function."""
    functions = {"mmr": mmr, "vrsd": vrsd, "coverage": aspects.coverage}
    call = inspect.signature(functions.get(method) or getattr(volume, method)).parameters
    given = {name: parameter.default for name, parameter in call.items()} | problem
    request = Request(method, **given)
    return validate.problem_of(request, HOST, options=options.of_rule(request))


def check_selection(method: str, problem: dict[str, Any], result: Any, *, tolerance: float | None = None) -> None:
    """Assert that a selection is one that exact arithmetic allows.

    Parameters
    ----------
    method : str
        A rule of `METHODS` but "gist", whose picks are chosen together.
    problem : dict
        The arguments of the call, as for the function of that name; ``embeddings`` may be a Corpus, ``lambda_d`` not
        "adagres".
    result : Selection
        What the call returned.
    tolerance : float, optional
        The error that a value may have for unit vectors. Default: that of float32 products, eps * (8 + sqrt(D)). It is
        scaled by the largest product with ``metric="dot"``, and by the cancellation in the sum for VRSD.

    Raises
    ------
    AssertionError
        With query and step: an item was not available or not best; the number of picks or the padding is wrong; a
        score, relevance, redundancy or nearest pick is not that of the item; or `Selection.unmet` is wrong.
    """
    if method not in _REPLAYED:
        raise ValueError(f"check_selection: method must be one of {', '.join(map(repr, _REPLAYED))}, got {method!r}")
    indices, scores, relevance, redundancy, lengths = (np.asarray(field) for field in result)
    replay = Replay(method, problem, tolerance)
    k = np.asarray(problem["k"])
    assert indices.shape == scores.shape == relevance.shape == redundancy.shape == (replay.Q, int(k.max())), (
        f"check_selection: results must have shape (Q, K) = ({replay.Q}, {k.max()}), got {indices.shape}"
    )
    assert lengths.shape == (replay.Q,)
    for q, wanted in enumerate(np.broadcast_to(k, (replay.Q,))):
        made = replay.query(q, int(wanted), indices[q], scores[q], relevance[q], redundancy[q])
        assert lengths[q] == made, f"query {q}: lengths must be {made}, got {lengths[q]}"
        if (unmet := getattr(result, "unmet", None)) is not None:
            lacking = replay.unmet(q, indices[q, :made])
            assert unmet[q] == lacking, f"query {q}: unmet must be {lacking}, got {unmet[q]}"
        rest = slice(made, None)
        padded = (indices[q, rest] == -1).all() and np.isneginf(scores[q, rest]).all()
        assert padded and np.isnan([relevance[q, rest], redundancy[q, rest]]).all(), (
            f"query {q}: padding after {made} picks"
        )
        if problem.get("nearest"):
            replay.check_nearest(q, indices[q, :made], np.asarray(result.nearest)[q])
