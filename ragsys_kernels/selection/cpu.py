"""The compiled kernels (csrc/cpu) on host arrays."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import numpy as np

from .. import _dispatch
from .._base.types import Array
from . import certificate, codes, continued, validate
from .capabilities import BINARY
from .filtered_problems import few_rows
from .parameters import NOT_EVERYWHERE
from .problem import Problem, Selection, SelectionPath, unit

# What the kernels have (capabilities.py).
RULES = frozenset(("mmr", "vrsd", "msd", "dpp", "ssd", "sift", "facility", "cover", "xquad", "mmr_path"))
CONSTRAINTS = frozenset((*NOT_EVERYWHERE, BINARY))
# Coverage keeps so many similarities of a query's items to its aspects (1 GiB a thread). More of them, up to those of
# 131,072 rows with one another, it computes in blocks, again for each item whose gain it renews.
_KEPT_SIMILARITIES, _MOST_SIMILARITIES = 1 << 28, 1 << 34
_POOL_TOO_SMALL = 5

_QUERY_BLOCK = 256

# MMR over a whole corpus of at least _WHOLE_CORPUS rows goes in stages; a smaller corpus is simply a pool. A stage is a
# number of picks that its scan takes into account, and the size of its pool. Where that is more than _SHARE of the
# corpus, the corpus itself is the pool. A scan by codes costs less and its bounds are looser, so it takes more of both.
_WHOLE_CORPUS = 2048
_STAGES = ((0, 128), (1, 128), (2, 512), (3, 2048), (4, 8192))
_SHARE = 1 / 8
_CODED_STAGES = ((0, 128), (1, 512), (4, 1024), (8, 4096))
_CODED_SHARE = 1 / 3
# A scan for at most _FEW queries takes as long as reading the codes does: more picks taken into account and a larger
# pool add next to nothing. Hence few scans, with pools that grow with the corpus: the third number is the power of two
# that divides its rows.
_FEW = 8
_FEW_STAGES = ((0, 128, 10), (8, 512, 7), (8, 4096, 5))
# Where relevance weighs more than this, the second stage takes as few rows as the first.
_RELEVANT = 0.7
# A stage that leaves more than this share of a block's queries undone is left out for the next block.
_MOSTLY = 0.5


def _run_rule(problem: Problem, num_threads: int) -> Selection:
    return run(problem, num_threads)[0]


mmr = vrsd = msd = dpp = ssd = sift = coverage = _run_rule


def run(
    problem: Problem,
    num_threads: int,
    bounds: str = "automatic",
    kept: int = _KEPT_SIMILARITIES,
    shared_items: int = 0,
) -> tuple[Selection, Any]:
    """Return the selection and its work: dot products, rows read, products of codes.

    The selection is the same with any bounds, and however many similarities coverage keeps. Where there are more
    threads than queries, threads share the items of a query in blocks of ``shared_items`` (0: the default); the work
    depends on these.
    """
    graph = problem.op == "coverage" and problem.options.graph is not None
    by_number = graph or continued.awaited()
    if problem.constraints.filter is not None and not by_number and (few := few_rows(problem)) is not None:
        with suppress(ValueError):  # which names a row of all of them: raised below
            picks, work = run(few[0], num_threads, bounds, kept, shared_items)
            return picks._replace(indices=_renumbered(picks.indices, few[1])), work
    if problem.op == "coverage" and not graph:
        _expect_size(problem)
    if bounds == "automatic" and problem.op == "mmr" and problem.pool >= _WHOLE_CORPUS and _by_stages(problem):
        return _mmr_whole_corpus(problem, num_threads)
    selection, status, work = _call(problem, num_threads, bounds, kept=kept, shared_items=shared_items)
    if status is not None:
        _raise_for(problem, status)
    return selection, work


def _by_stages(problem: Problem) -> bool:
    """Return whether MMR goes in stages: over all rows, what weighs and limits them being theirs in all queries."""
    whole = problem.candidates is None and not problem.pool_stride and problem.relevance is None
    costs = problem.constraints.costs
    of_rows = (problem.bias is None or problem.bias.ndim == 1) and (costs is None or costs.ndim == 1)
    quotas = problem.constraints.quotas
    if quotas is not None and quotas.minima is not None:  # what a pool lacks may be of a group that lacks picks
        return False
    # Signs meet the picks faster than any scan bounds them.
    return whole and of_rows and problem.rows.metric == "cosine" and problem.rows.dtype != "binary"


def _expect_size(problem: Problem) -> None:
    """Raise where a query has more similarities to aspects than are computed."""
    given = problem.options.aspects
    aspects = problem.pool if given is None else given.shape[1]
    if problem.pool * aspects > _MOST_SIMILARITIES:
        name, instead = ("aspects", "") if given is not None else ("candidates", "; Corpus.subset takes neighbors=64")
        raise ValueError(
            f"{problem.op}: {name} must leave at most {_MOST_SIMILARITIES} similarities of items to aspects a query, "
            f"got {problem.pool} x {aspects}{instead}"
        )


@dataclasses.dataclass(slots=True, eq=False)
class Stage:
    """What MMR out of a pool knows of the rows outside it, and of the pool (``Stage`` in csrc/cpu/selection/args.h)."""

    max_bias: float
    outside: np.ndarray | None = None  # (Q,) float32
    relevance_error: np.ndarray | None = None  # (Q,) float32
    forced: np.ndarray | None = None  # (Q, K) int64
    ceiling: np.ndarray | None = None  # (Q, P) float32
    best_first: bool = False
    indices: np.ndarray | None = None  # (Q, K) int64: where picks are written when they are made


def _call(
    problem: Problem,
    num_threads: int,
    bounds: str = "automatic",
    stage: Stage | None = None,
    kept: int = _KEPT_SIMILARITIES,
    shared_items: int = 0,
) -> tuple[Selection, np.ndarray | None, Any]:
    """Return the selection, the status of each query (None: all are well), and the work."""
    if stage is None and problem.outside is not None:
        stage = Stage(_most_bias(problem))
    if stage is None and (made := continued.taken(problem)) is not None:
        stage = Stage(0.0, forced=made.copy() if made[0, 0] >= 0 else None, indices=made)
    module, isa = _dispatch.kernels()
    *fields, needed, status, work = module.select(problem, stage, bounds, isa, num_threads, kept, shared_items)
    picks = Selection(*fields)
    picks.pool_needed = needed
    return picks, status, work


def _most_bias(problem: Problem) -> float:
    most = certificate.most_bias(problem)
    return 0.0 if most is None else most


def _renumbered(indices: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rows of numbers among some rows; -1 stays."""
    return np.where(indices < 0, -1, rows[indices])


def _raise_for(problem: Problem, status: np.ndarray) -> None:
    """Raise the error of the first query that the kernel could not answer."""
    if status.any():
        q = int(np.flatnonzero(status)[0])
        validate.values(problem, q)
        validate.overflow(problem, q)


def mmr_path(problem: Problem, low: float, high: float, num_threads: int) -> SelectionPath:
    """Return the picks of MMR for every λ_d from low to high."""
    module, isa = _dispatch.kernels()
    *fields, status = module.path(problem, low, high, isa, num_threads)
    _raise_for(problem, status)
    return SelectionPath(*fields)


def _check_queries(problem: Problem) -> np.ndarray:
    """Return the queries of the formulas; raise for one that is not finite or whose products leave float32."""
    queries = problem.query_vectors(slice(None))
    for q in np.flatnonzero(~np.isfinite(queries).all(axis=1)):
        validate.values(problem, int(q))
    queries = np.asarray(unit(queries) if problem.unit_queries else queries, np.float32)
    largest = np.linalg.norm(queries.astype(np.float64), axis=1) * _largest_norm(problem)
    for q in np.flatnonzero(largest > np.finfo(np.float32).max / 4):
        validate.overflow(problem, int(q))
    return queries


def _largest_norm(problem: Problem) -> float:
    if problem.rows.metric == "cosine":
        return 1.0
    assert problem.rows.max_norm is not None
    return problem.rows.max_norm


def _largest_bias(problem: Problem) -> float:
    return 0.0 if problem.bias is None else float(max(problem.bias.max(), -problem.bias.min()))


def _scan(
    problem: Problem, vectors: np.ndarray, weights: tuple[np.ndarray, np.ndarray], n: int, num_threads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return about n rows of largest weights[0] * product + weights[1] * bias, by their codes where that is faster.

    A row's product with a query is its least with that query's T vectors, of (T, Q, D). Returned are the rows
    (Q, width), best first and padded with -1, their products, a bound that no other row exceeds, and the error of each
    of these values.
    """
    score_weight, bias_weight = weights if problem.bias is not None else (None, None)
    module, isa = _dispatch.kernels()
    *found, well = module.scan(
        problem,
        vectors,
        n,
        by_codes=codes.can_scan(problem.rows, len(vectors) * problem.num_queries),
        max_norm=_largest_norm(problem),
        largest_bias=_largest_bias(problem),
        score_weight=score_weight,
        bias_weight=bias_weight,
        isa=isa,
        num_threads=num_threads,
    )
    for q in range(0 if well else problem.num_queries):  # a bad row that no query may pick does no harm
        validate.values(problem, q)
    return tuple(found)


def search(problem: Problem, num_threads: int) -> tuple[Array, Array]:
    """Return the k items of largest v of each pool, ties to the lowest position."""
    if problem.candidates is not None:
        return _rank(problem, num_threads)
    if problem.constraints.filter is not None and (few := few_rows(problem)) is not None:
        with suppress(ValueError):
            indices, scores = search(few[0], num_threads)
            return _renumbered(indices, few[1]), scores
    if problem.rows.metric == "dot":
        _check_queries(problem)
    module, isa = _dispatch.kernels()
    indices, scores, status = module.search(problem, _largest_bias(problem), isa, num_threads)
    _raise_for(problem, status)
    return indices, scores


def _rank(problem: Problem, num_threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best of the candidates, by the kernels' own dot product."""
    indices = np.full((problem.num_queries, problem.k), -1, np.int64)
    scores = np.full(indices.shape, -np.inf, np.float32)
    for begin in range(0, problem.num_queries, _QUERY_BLOCK):
        block = slice(begin, begin + _QUERY_BLOCK)
        part = problem.take(block)
        if part.constraints.query_groups is not None:
            assert part.constraints.groups is not None
            assert part.candidates is not None
            own = part.constraints.groups[part.candidates] == part.constraints.query_groups[:, None]
            part.candidates = np.where(own, -1, part.candidates)
        values = relevance(part, num_threads)
        order = np.argsort(-values, axis=1, kind="stable")[:, : problem.k]
        assert part.candidates is not None
        indices[block, : order.shape[1]] = np.take_along_axis(part.candidates, order, 1)
        scores[block, : order.shape[1]] = np.take_along_axis(values, order, 1)
    return indices, scores


def relevance(problem: Problem, num_threads: int) -> Array:
    """Return v of the items of each pool (Q, P), by the kernels' own dot product; -inf for padding."""
    if problem.candidates is None:
        every = np.tile(np.arange(problem.pool), (problem.num_queries, 1))
        problem = dataclasses.replace(problem, candidates=every)
    values: np.ndarray
    module, isa = _dispatch.kernels()
    values, status = module.relevance(problem, isa, num_threads)
    _raise_for(problem, status)
    return values


def _mmr_whole_corpus(problem: Problem, num_threads: int) -> tuple[Selection, Any]:
    """Select by exact MMR over all rows, from small pools (README.md, "The whole corpus").

    A stage scans all rows for a pool and selects from it. The kernel stops at a pick that a row outside the pool might
    beat; the picks before it stand. The next stage's pool has the rows that are best after the first of these picks, or
    the first two, and so on. A query that no stage completes is selected densely.
    """
    out = Selection.empty(problem.num_queries, problem.k)
    queries = _check_queries(problem)
    work = np.zeros(3, np.int64)
    plan, share = _plan(problem)
    stages = list(range(len(plan) + 1))
    for begin in range(0, problem.num_queries, _QUERY_BLOCK):
        waiting = np.arange(begin, min(begin + _QUERY_BLOCK, problem.num_queries))
        for stage in tuple(stages):
            part = problem.take(waiting)
            terms, size = plan[stage] if stage < len(plan) else (0, problem.pool)
            size = max(size, 2 * problem.k)
            # Later stages start from a first pick: initial items or a tie leave a query without one.
            lacks_first_pick = stage > 0 and (out.lengths[waiting] == 0).any()
            if size > share * problem.pool or lacks_first_pick:
                found, status, done = _call(part, num_threads)
            elif stage == 0:
                found, status, done = _by_relevance(part, queries[waiting], size, num_threads)
            else:
                made = Selection(*(field[waiting] for field in out))
                found, status, done = _by_value(part, queries[waiting], made, terms, size, num_threads)
            work += done
            status = np.zeros(len(waiting), np.uint8) if status is None else status
            again = status == _POOL_TOO_SMALL
            for q in waiting[(status != 0) & ~again]:
                validate.values(problem, int(q))
                validate.overflow(problem, int(q))
            for field, values in zip(out, found, strict=True):
                field[waiting] = values
            again &= ~_exhausted(problem, waiting, out)
            # The first two stages stay: they make the picks that later stages start from.
            if stage > 1 and again.mean() > _MOSTLY:
                stages.remove(stage)
            waiting = waiting[again]
            if len(waiting) == 0:
                break
    return out, work


def _exhausted(problem: Problem, queries: np.ndarray, made: Selection) -> np.ndarray:
    """Return which queries have less left of their budget than any row of the corpus costs."""
    limits = problem.constraints
    if limits.costs is None:
        return np.zeros(len(queries), bool)
    picks = made.indices[queries]
    spent = np.where(picks < 0, 0.0, limits.costs[picks]).cumsum(axis=1)[:, -1]  # in the order of the picks
    return ~np.asarray(spent + certificate.remaining(problem, limits.costs).min() <= limits.budget[queries])


def _plan(problem: Problem) -> tuple[tuple[tuple[int, int], ...], float]:
    """Return the stages, and the largest share of the corpus that a pool may be; a larger one becomes the corpus."""
    if not codes.can_scan(problem.rows, problem.num_queries):
        return _STAGES, _SHARE
    if problem.num_queries <= _FEW:
        return tuple((terms, max(size, problem.pool >> shift)) for terms, size, shift in _FEW_STAGES), _CODED_SHARE
    first, (terms, size), *later = _CODED_STAGES
    size = first[1] if problem.lambda_d.mean() > _RELEVANT else size
    return (first, (terms, size), *later), _CODED_SHARE


def _by_relevance(problem: Problem, queries: np.ndarray, n: int, num_threads: int) -> Any:
    """Select from the n rows of largest v. Until a row is read, its product of the scan stands for its relevance."""
    weights = problem.lambda_b, 1 - problem.lambda_b
    candidates, scores, outside, error = _scan(problem, queries[None], weights, n, num_threads)
    pools = _pools(problem, candidates, relevance=scores)
    stage = Stage(_most_bias(pools), outside + error, relevance_error=error, best_first=True)
    return _call(pools, num_threads, stage=stage)


def _pools(problem: Problem, candidates: np.ndarray, **changes: Any) -> Problem:
    """Return the problem with rows that may be picked as its pools."""
    limits = problem.constraints.filtered(None)
    return dataclasses.replace(problem, candidates=candidates, pool=candidates.shape[1], constraints=limits, **changes)


def _by_value(problem: Problem, queries: np.ndarray, made: Selection, t: int, n: int, num_threads: int) -> Any:
    """Keep the picks made, and select the others from the n rows of largest value after the first t of them.

    A row's value after pick c is at most its product with λ_d λ_b q - (1-λ_d) e_c, plus λ_d (1-λ_b) times its bias. The
    value is the least of these over the picks made; further picks only lower it.
    """
    lambda_d, lambda_b = problem.lambda_d[:, None], problem.lambda_b[:, None]
    relevance_weight = lambda_d * (lambda_b if problem.bias is not None else 1)
    t = min(t, int(made.lengths.max()))
    known = [made.indices[np.arange(len(queries)), np.minimum(s, made.lengths - 1)] for s in range(t)]
    vectors = np.stack([relevance_weight * queries - (1 - lambda_d) * problem.rows.vectors(rows) for rows in known])
    weights = np.ones_like(problem.lambda_d), problem.lambda_d * (1 - problem.lambda_b)
    rows, values, outside, error = _scan(problem, vectors.astype(np.float32), weights, n, num_threads)
    rows[(rows[:, :, None] == made.indices[:, None, :]).any(axis=2)] = -1
    if problem.bias is not None:
        values += weights[1][:, None] * problem.bias[rows]
    candidates = np.concatenate([made.indices, rows], axis=1)
    ceiling = np.concatenate([np.full(made.indices.shape, np.inf, np.float32), values + error[:, None]], axis=1)
    pools = _pools(problem, candidates)
    stage = Stage(_most_bias(pools), outside + error, forced=made.indices, ceiling=ceiling, best_first=True)
    return _call(pools, num_threads, stage=stage)
