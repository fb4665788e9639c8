"""Checks of the arguments of a selection.

`selection` checks what costs nothing: kinds, shapes, ranges of options. Values of large arrays are checked by the
kernels, as they read them: they report which query has a bad value, then `values` finds it and words the error.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np

from .._base import arrays
from .._base.arrays import HOST, Place
from .._base.checks import (
    choice,
    count,
    expect_shape,
    floats,
    ids,
    in_rows,
    integers,
    per_query,
    shape_text,
    shown,
    storage,
)
from .._base.warn import warn
from . import constraints, definite
from .constraints import NONE
from .parameters import BY_NAME
from .problem import Problem, Rows
from .relevance import check_scale, scaled
from .request import Request

# Columns beyond the size of the pool are padding: whoever asks for more of them than this made a mistake.
MOST_PADDED = 65_536

# Calls that read the queries even where relevance is given.
NEEDS_QUERIES = ("vrsd", "sift", "search")
# Calls whose values depend on the lengths of rows, whatever the metric.
NEEDS_LENGTHS = ("vrsd", "dpp", "ssd", "sift", "coverage")

_WEIGHT = BY_NAME["lambda_d"].range_of("mmr")  # and of lambda_b
_METRICS = BY_NAME["metric"].choices

# Arguments that forbid a query some items of its pool.
_FILTERS = ("allowed", "exclude", "initial", "query_groups")

# Squares of norms must stay in the range of float32, in which the kernels accumulate.
NORM_MIN, NORM_MAX = 1e-15, 1e15


class PoolSizeWarning(UserWarning):
    """The queries of a call have picked all that they may pick, so that the selection has only put it in order."""


def _counts(
    op: str, name: str, x: Any, num_queries: int, errors: dict[int, str] | None
) -> tuple[int, np.ndarray | None]:
    """Return the largest k, and (Q,) int64 where k is one number per query. An array on a device is waited for.

    With ``errors``, a query whose k is below 1 is put there and gets 1 instead.
    """
    if isinstance(x, (int, np.bool_)):
        return count(op, name, x), None
    if x is None or isinstance(x, str):
        raise TypeError(f"{op}: {name} must be an integer or an array of integers, got {shown(x)}")
    try:
        x = arrays.to_host(x)
    except NotImplementedError:  # a tensor of torch's device "meta"
        raise TypeError(f"{op}: {name} must be an integer or integers, got a tensor without data") from None
    array = integers(op, name, x).copy()  # another thread may write to the caller's array during the call
    if array.shape == ():
        return count(op, name, int(array)), None
    if array.shape != (num_queries,):
        raise ValueError(f"{op}: {name} must be a number or have shape ({num_queries},), got {shape_text(array.shape)}")
    if array.size == 0:
        return 1, array
    for q in np.flatnonzero(array < 1).tolist():
        if errors is None:
            raise ValueError(f"{op}: {name} must be at least 1, got {array[q]} for query {q}")
        errors.setdefault(q, f"{op}: {name} must be at least 1, got {array[q]}")
    array = np.maximum(array, 1)
    return int(array.max()), array


def _without_padded(
    op: str, name: str, ks: np.ndarray, pool: int, candidates: Any, errors: dict[int, str]
) -> tuple[int, np.ndarray]:
    """Return the largest k, and (Q,) int64. Queries that ask for too much padding get an error, and 1."""
    for q in np.flatnonzero(ks > MOST_PADDED).tolist():
        own = pool if candidates is None else int((candidates[q] >= 0).sum())
        if ks[q] > own:
            rule = f"be at most {MOST_PADDED} where the pool has fewer items"
            errors.setdefault(q, f"{op}: {name} must {rule}, got {ks[q]} for a pool of {own}")
            ks[q] = 1
    return int(ks.max()), ks


def _rows(op: str, embeddings: Any, metric: str, place: Place) -> tuple[Rows, int]:
    """Return the rows that ids refer to, and P for dense pools, else 0."""
    choice(op, "metric", metric, _METRICS)
    if isinstance(embeddings, Rows):
        if metric != "cosine" and metric != embeddings.metric:
            raise ValueError(f"{op}: metric must be the corpus's own, {embeddings.metric!r}, got {metric!r}")
        pairs = embeddings.similarity
        return embeddings, 0 if pairs is None else pairs.shape[1]
    array, dtype = storage(op, "embeddings", embeddings, place, ("int8",))
    if dtype == "int8" and place is not HOST:
        rule = "floating point on a device, or a Corpus"
        raise TypeError(f"{op}: embeddings must be {rule}, got int8; make the corpus on the host and use .to(device)")
    if array.ndim > 3:
        raise ValueError(f"{op}: embeddings must have shape (N, D) or (Q, P, D), got {shape_text(array.shape)}")
    if dtype == "float64":
        array, dtype = place.float32(array, dtype), "float32"
    pool_stride = 0
    if array.ndim == 3:
        pool_stride = array.shape[1]
        array = in_rows(op, "embeddings", array, place).reshape(-1, array.shape[2])
    else:
        array = in_rows(op, "embeddings", array, place)
    return Rows.of(array, dtype, metric, "computed" if metric == "cosine" else "as_given"), pool_stride


def _signs(op: str, queries: Any, num_bytes: int) -> Any:
    """Return queries to binary rows as packed signs (Q, D / 8) uint8, or None where they are other numbers."""
    array, dtype = HOST.view(op, "queries", queries)
    if dtype not in arrays.BYTES or array.shape[-1:] != (num_bytes,):
        return None
    return HOST.packed(arrays.signs(array))


def selection(
    op: str,
    queries: Any,
    embeddings: Any,
    k: Any,
    *,
    k_name: str = "k",
    place: Place = HOST,
    errors: dict[int, str] | None = None,
    options: Any = None,
    **given: Any,
) -> Problem:
    """Return the problem that some arguments describe, by the names that `mmr` has for them; see `problem_of`."""
    return problem_of(Request(op, queries, embeddings, k, **given), place, errors, options, k_name)


def problem_of(
    request: Request, place: Place, errors: dict[int, str] | None = None, options: Any = None, k_name: str = "k"
) -> Problem:
    """Return the problem that a request describes, or raise the error that names the bad argument.

    With ``errors``, a query with a bad number of its own, such as k or a weight, is put there instead. ``options``:
    what makes those of the rule, as `options.of_rule` returns it.
    """
    op, queries, candidates = request.op, request.queries, request.candidates
    relevance, bias, relevance_scale = request.relevance, request.bias, request.relevance_scale
    rows, pool_stride = _rows(op, request.embeddings, request.metric, place)
    num_rows, dims = rows.data.shape
    packed = rows.dtype == "binary"

    if queries is None:
        if op in NEEDS_QUERIES or relevance is None:
            need = "be given" if op in NEEDS_QUERIES else "be given unless relevance is"
            raise ValueError(f"{op}: queries must {need}, got None")
        unit_queries, array = False, None
    else:
        unit_queries = op in ("vrsd", "sift") or rows.metric == "cosine"
        array = _signs(op, queries, dims) if packed else None
        if array is None:
            dims = rows.dims if packed else dims
            array = floats(op, "queries", queries, place, arrays.BYTES)
        if array.ndim != 2:
            hint = "; use queries[None, :] for one query" if array.ndim == 1 else ""
            raise ValueError(f"{op}: queries must have shape (Q, D), got {shape_text(array.shape)}{hint}")
        if array.shape[1] != dims:
            bytes_of = f", or D / 8 = {dims // 8} bytes of packed signs" if packed else ""
            raise ValueError(
                f"{op}: queries must have the embeddings' D = {dims} dimensions{bytes_of}, got {array.shape[1]}"
            )

    ids_array = (
        None if candidates is None else ids(op, "candidates", candidates, None if array is None else len(array), place)
    )
    scores = None if relevance is None else floats(op, "relevance", relevance, place)
    if array is not None:
        num_queries = len(array)
    elif pool_stride:
        num_queries = num_rows // pool_stride
    elif ids_array is not None:
        num_queries = len(ids_array)
    else:
        assert scores is not None  # else queries had to be given
        if scores.ndim != 2:
            raise ValueError(f"{op}: relevance must have shape (Q, N), got {shape_text(scores.shape)}")
        num_queries = len(scores)

    if pool_stride:
        if num_rows != num_queries * pool_stride:
            raise ValueError(
                f"{op}: embeddings must have one pool per query, Q = {num_queries}, got {num_rows // pool_stride} pools"
            )
        if ids_array is not None:
            raise ValueError(f"{op}: candidates must be None with dense pools (Q, P, D), got an array")
        pool = pool_stride
    else:
        pool = num_rows if ids_array is None else ids_array.shape[1]
    if pool == 0:
        raise ValueError(f"{op}: candidates must have at least one column, got shape ({num_queries}, 0)")
    items = ((num_queries, pool), "(Q, P)")
    if scores is not None:
        expect_shape(op, "relevance", scores, items)
    given = scores
    if not (type(relevance_scale) is str and relevance_scale == "as-is"):
        check_scale(op, relevance_scale, relevance)
        live = rows.live if ids_array is None and not pool_stride else None
        scores = scaled(scores, ids_array, live, relevance_scale, place)

    if bias is None:
        bias_array = rows.bias
    else:
        bias_array = floats(op, "bias", bias, place)
        if pool_stride:
            expect_shape(op, "bias", bias_array, items)
        else:
            expect_shape(op, "bias", bias_array, ((num_rows,), "(N,)"), items)

    # Without any of these the call is three quarters of a microsecond faster.
    if (
        request.initial is request.groups is request.query_groups is request.max_per_group is request.min_per_group
        is request.allowed is request.exclude is request.costs is request.budget is request.max_similarity
        is request.min_relevance is rows.live is None
    ):  # fmt: skip
        limits = NONE
    else:
        shape = (num_queries, pool, num_rows, pool_stride)
        limits, ids_array = constraints.read(request, ids_array, given, rows, shape, place, errors)

    if options is not None:
        shapes = items if pool_stride else ((num_rows,), "(N,)")
        options = options((shapes, items), rows, place, errors)

    number, ks = _counts(op, k_name, request.k, num_queries, errors)
    if number > MOST_PADDED and errors is not None and ks is not None:
        number, ks = _without_padded(op, k_name, ks, pool, ids_array, errors)
    if number > pool and number > MOST_PADDED:
        raise ValueError(
            f"{op}: {k_name} must be at most {MOST_PADDED} where the pool has fewer items, "
            f"got {number} for a pool of {pool}"
        )
    if op in ("vrsd", "sift"):
        bias_array = None
    weights = per_query(op, "lambda_d", request.lambda_d, num_queries, *_WEIGHT, place, errors)
    # On a device an array is a launch, and without a bias nothing reads lambda_b.
    unread = weights if bias_array is None and place is not HOST else None
    return Problem(  # by position: keywords take longer
        op,
        rows,
        num_queries,
        pool,
        number,
        pool_stride,
        None if op not in NEEDS_QUERIES and scores is not None else array,  # queries that are not read
        unit_queries,
        weights,
        per_query(op, "lambda_b", request.lambda_b, num_queries, *_WEIGHT, place, errors, unread),
        ids_array,
        scores,
        bias_array,
        None if ks is None else place.upload(ks),
        limits,
        options,
    )


def warn_small_pool(
    problem: Problem, request: Request, k: int, lengths: Any, errors: dict[int, str] | None = None
) -> None:
    """Warn where every query that is answered has picked all that it may pick.

    On a device, whose values are not read, the pool has to be no larger than k, and nothing else may leave items out.

    Parameters
    ----------
    k
        The largest that was asked for.
    lengths : (Q,) integers
        The number of picks of each query.
    """
    if request.min_relevance is not None:  # which is to leave few
        return
    pool, candidates = problem.pool, problem.candidates
    if isinstance(lengths, np.ndarray):
        full = candidates is None or candidates.item(candidates.argmin()) >= 0
        if full and pool > k and problem.constraints is NONE:  # the usual call, at the least cost
            return
        for q in range(problem.num_queries):
            if not (errors and q in errors) and _may_pick_more(problem, q, lengths.item(q)):
                return
        most = int(lengths.max())
        if not most:  # nothing is no order
            return
        pool = most if pool > k else pool
    elif pool > k or problem.ks is not None or _leaves_out(problem):
        return
    of_all = not problem.pool_stride and (request.candidates is None or problem.pool >= len(problem.rows.data))
    filtered = any(getattr(request, name) is not None for name in _FILTERS) or problem.rows.live is not None
    warn_only_reorders(problem.op, pool, k, of_all, filtered)


def _may_pick_more(problem: Problem, q: int, picked: int) -> bool:
    """Return whether query q may pick more items than it has picked."""
    limits, candidates = problem.constraints, problem.candidates
    items = problem.pool if candidates is None else int(np.count_nonzero(candidates[q] >= 0))
    shown = 0 if limits.initial is None else limits.initial.shape[1]
    if limits.filter is None and limits.query_groups is None and items > picked + shown:
        return True
    return items > picked and any(len(problem.eligible(q, first)[0]) > picked for first in (64 + 4 * picked, None))


def _leaves_out(problem: Problem) -> bool:
    """Return whether a selection may end before k picks while queries could pick other items."""
    limits, options = problem.constraints, problem.options
    if limits.budget is not None or limits.max_similarity is not None or limits.max_per_group:
        return True
    if problem.op == "dpp":  # ends once the picks span the others
        return problem.rows.similarity is not None or problem.pool > problem.rows.dims
    return problem.op == "gist" or (problem.op == "sift" and options.min_gain > 0)


def warn_only_reorders(op: str, pool: int, k: int, of_all: bool = False, filtered: bool = False) -> None:
    """Warn of a small pool; one that is ``of_all`` rows there are cannot be larger."""
    warn(
        f"{op}: the pool of {pool} is no larger than k = {k}, so that the selection only reorders "
        f"{'what of it may be picked' if filtered else 'it'}; use {'' if of_all else 'a larger pool or '}a smaller k",
        PoolSizeWarning,
    )


def values(problem: Problem, q: int, named: bool = True, of_rows: bool = True) -> None:
    """Raise for the first bad value that query q reads, if there is one.

    ``named``: the message has the number q. ``of_rows``: embeddings are looked at.
    """
    op = problem.op

    def where(position: Any = None) -> str:
        """Return where a value of query q is, for the message."""
        if not named:
            return "" if position is None else f" at position {position}"
        return f" in row {q}" + ("" if position is None else f", position {position}")

    of_query = f" for query {q}" if named else ""
    for name, id_array in (("initial", problem.constraints.initial), ("candidates", problem.candidates)):
        if id_array is None:
            continue
        listed(op, name, id_array[q], problem.num_ids, of_query, bool(problem.pool_stride))
    if problem.queries is not None and not np.isfinite(problem.queries[q]).all():
        _not_finite(op, "queries", where())
    rows, positions = problem.eligible(q)
    if problem.relevance is not None and not (finite := np.isfinite(problem.relevance[q, positions])).all():
        _not_finite(op, "relevance", where(positions[np.argmin(finite)]))
    bias = problem.item_bias(q, rows, positions)
    if bias is not None and not (finite := np.isfinite(bias)).all():
        bad = int(np.argmin(finite))
        by_row = problem.bias is not None and problem.bias.ndim == 1
        _not_finite(op, "bias", f" in row {rows[bad]}" if by_row else where(positions[bad]))
    if op == "dpp" and isinstance(problem.rows.similarity, np.ndarray):
        items = np.isin(np.arange(problem.pool), positions)
        definite.check(op, problem.rows.similarity[q], items, of_query)
    if of_rows and not _checked(problem):
        read = np.concatenate([problem.initial_rows(q), rows])
        _row_values(problem, q, read, problem.rows.data[read], problem.rows.dtype, where)


def listed(op: str, name: str, ids: np.ndarray, num_ids: int | None, of_query: str = "", of_pool: bool = False) -> None:
    """Raise if a query's list of ids (P,) has an id that does not exist, or one twice; -1 is padding.

    Without ``num_ids``, every id of at least 0 exists.
    """
    found = ids[ids != -1]
    outside = found[(found < 0) | (found >= (np.inf if num_ids is None else num_ids))]
    if outside.size:
        what = "-1 or positions of the pool, below P" if of_pool else "-1 or rows of the corpus, below N"
        what = "-1 or at least 0" if num_ids is None else f"{what} = {num_ids}"
        raise ValueError(f"{op}: {name} must be {what}, got {int(outside[0])}{of_query}")
    unique, counts = np.unique(found, return_counts=True)
    if unique.size < found.size:
        got = int(unique[counts > 1][0])
        raise ValueError(f"{op}: {name} must not repeat an id within a query, got {got} twice{of_query}")


def suspicious(ids: np.ndarray, num_ids: int | None) -> np.ndarray:
    """Return the queries for which `listed` raises; ids (Q, P)."""
    if not ids.shape[1]:
        return np.zeros(len(ids), bool)
    ordered = np.sort(ids, axis=1)
    bad: np.ndarray = ordered[:, 0] < -1
    if num_ids is not None:
        bad |= ordered[:, -1] >= num_ids
    repeated = ordered[:, 1:] == ordered[:, :-1]
    return bad | (repeated & (ordered[:, 1:] >= 0)).any(axis=1) if repeated.any() else bad


def device_values(problem: Problem) -> None:
    """Check the `values` of every query of a problem on a device, which is waited for."""
    suspects, check = _device_check(problem, True)
    for q in suspects:
        check(q)


def bad_queries(problem: Problem, place: Place, errors: dict[int, str]) -> None:
    """Put every query that has a bad value into ``errors``, with the reason."""
    if place is HOST:
        # With the whole corpus, only queries that the kernels do not answer have the rows checked.
        whole = problem.candidates is None and not problem.pool_stride
        check: Callable[[int], None] = functools.partial(values, problem, named=False, of_rows=not whole)
        suspects: Iterable[int] = range(problem.num_queries)
    else:
        suspects, check = _device_check(problem, False)
    for q in suspects:
        try:
            check(q)
        except ValueError as error:
            errors.setdefault(q, str(error))


def _device_check(problem: Problem, named: bool) -> tuple[Iterable[int], Callable[[int], None]]:
    """Return the queries of a problem on a device that may have a bad value, and what checks the `values` of one."""
    rows = problem.rows
    place = arrays.place_of(arrays.device_of(rows.data), "", arrays.library_of(rows.data))
    assert not isinstance(place, arrays.Host)
    host = arrays.hosted(problem)
    norms = np.ones(len(rows.data)) if _checked(problem) else place.norms(rows.data, rows.dtype)
    if rows.scales is not None and not _checked(problem):
        norms *= host.rows.scales
    usable = np.isfinite(norms)
    if _lengths_count(problem):
        usable &= (norms == 0) | ((norms >= NORM_MIN) & (norms <= NORM_MAX))
    host.rows = arrays.changed(host.rows, data=np.empty((len(norms), 0), np.float32))

    def check(q: int) -> None:
        values(host, q, named, of_rows=False)
        read = np.concatenate([host.initial_rows(q), host.eligible(q)[0]])
        if not usable[read].all():
            row = read[[int(np.argmin(usable[read]))]]
            stored = arrays.to_host(place.float32(rows.data[int(row[0])][None], rows.dtype))
            _row_values(host, q, row, stored, "float32", lambda position: f" in row {q}, position {position}")

    return _suspects(host, usable), check


def _suspects(problem: Problem, usable: np.ndarray) -> Iterable[int]:
    """Return the queries of a problem on the host that may have a bad value, by whole arrays; ``usable``: the rows.

    A value counts whether or not its item may be picked, so that some of these queries may be good ones.
    """
    shared = (problem.bias,) if problem.bias is not None and problem.bias.ndim == 1 else ()
    if not (usable.all() and all(np.isfinite(x).all() for x in shared)):
        return range(problem.num_queries)  # which of them read it is for the check of each
    bad = np.zeros(problem.num_queries, bool)
    for array in (problem.queries, problem.relevance, None if shared else problem.bias):
        if array is not None:
            bad |= ~np.isfinite(array).all(axis=1)
    for array in (problem.constraints.initial, problem.candidates):
        if array is not None:
            bad |= suspicious(array, problem.num_ids)
    if problem.op == "dpp" and problem.rows.similarity is not None:
        bad[:] = True  # which pairs are looked at depends on what a query may pick
    return np.flatnonzero(bad).tolist()  # type: ignore[no-any-return]


def _checked(problem: Problem) -> bool:
    """Return whether a `Corpus` has checked the rows for all that matters here."""
    return problem.rows.max_norm is not None and not _lengths_count(problem)


def _lengths_count(problem: Problem) -> bool:
    """Return whether squares of the rows' norms must be in the range of float32."""
    return problem.rows.norm == "computed" or (problem.rows.metric == "dot" and problem.op in NEEDS_LENGTHS)


def _row_values(
    problem: Problem, q: int, rows: np.ndarray, stored: np.ndarray, dtype: str, where: Callable[[Any], str]
) -> None:
    with np.errstate(invalid="ignore"):  # a NaN of float16 that signals
        vectors = arrays.widen(stored, dtype).astype(np.float64)
    if problem.rows.scales is not None:
        vectors *= problem.rows.scales[rows, None]
    if not (finite := np.isfinite(vectors).all(axis=1)).all():
        row = int(rows[np.argmin(finite)])
        pool = problem.pool_stride
        _not_finite(problem.op, "embeddings", where(row - q * pool) if pool else f" in row {row}")
    norms = np.sqrt(np.square(vectors).sum(axis=1))
    usable = (norms == 0) | ((norms >= NORM_MIN) & (norms <= NORM_MAX))
    if _lengths_count(problem) and not usable.all():
        bad = int(np.argmin(usable))
        raise ValueError(
            f"{problem.op}: embeddings must have row norms of 0 or within [{NORM_MIN:g}, {NORM_MAX:g}], "
            f"got {norms[bad]:g} in row {rows[bad]}; rescale them"
        )


def overflow(problem: Problem, q: int) -> NoReturn:
    """Raise the error of values outside the range of float32; cosines are always within it."""
    at_fault = {"dpp": "scale", "ssd": "gamma", "coverage": "weights"}.get(problem.op)
    if problem.op == "dpp" and problem.options.quality is not None:
        at_fault = "quality"
    if at_fault is None and problem.relevance is not None:
        at_fault = "relevance"
    if at_fault is None or problem.rows.metric == "dot":
        rule, advice = "queries and embeddings must have products", "; rescale them"
    else:
        rule, advice = f"{at_fault} must give values", ""
    raise ValueError(f"{problem.op}: {rule} within the range of float32, got one beyond it for query {q}{advice}")


def concerns_all(problem: Problem, error: ValueError) -> bool:
    """Return whether an error is about rows that every query reads, so it belongs to no single query."""
    whole = problem.candidates is None and not problem.pool_stride and problem.constraints.filter is None
    return whole and problem.relevance is None and _of_a_query(error) is None


def reason(problem: Problem, q: int, error: ValueError) -> str | None:
    """Return why query q, which raised this error, has no answer; None: the error is not its own."""
    found = _of_a_query(error)
    if found is None:
        try:
            values(problem, q, named=False)
        except ValueError as why:
            found = str(why)
    return found


def _of_a_query(error: ValueError) -> str | None:
    """Return the text of an error that names a query, without the name; None if it names none."""
    text, named = re.subn(r" for query \d+\b", "", str(error))
    return text if named else None


def _not_finite(op: str, name: str, where: str) -> NoReturn:
    raise ValueError(f"{op}: {name} must be finite, got NaN or inf{where}")
