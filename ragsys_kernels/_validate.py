"""Checks of arguments, and the wording of every error: ``<op>: <argument> must <rule>, got <value>``.

``selection`` checks what costs nothing (kinds, shapes, ranges of options). Values of large arrays are checked where
they are read: the compiled kernels report a query that has a bad one and ``values`` finds and words it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any, NoReturn

import numpy as np

from . import _arrays, _env
from ._arrays import HOST, Place
from ._problem import Problem, Rows
from ._warn import warn

# Squares of norms must stay in the range of float32, in which the kernels accumulate.
NORM_MIN, NORM_MAX = 1e-15, 1e15


class PoolSizeWarning(UserWarning):
    """The pool is no larger than k, so that the selection only reorders it."""


class ConversionWarning(UserWarning):
    """Embeddings are float64, which is not stored, and are converted to float32."""


def shape_text(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def count(op: str, name: str, value: Any) -> int:
    """A whole number of at least 1."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} must be an integer, got {type(value).__name__}") from None
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{op}: {name} must be at least 1, got {value}")
    return number


def choice(op: str, name: str, value: Any, allowed: Collection[str]) -> str:
    if value not in allowed:
        raise ValueError(f"{op}: {name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return str(value)


def threads(op: str, num_threads: Any) -> int:
    return _env.num_threads() if num_threads is None else count(op, "num_threads", num_threads)


def floats(op: str, name: str, x: Any, place: Place = HOST) -> Any:
    """Any floating-point array as contiguous float32."""
    array, dtype = place.view(op, name, x)
    if dtype == "float32":
        return place.packed(array) if array.ndim else array
    if "float" not in dtype:
        raise TypeError(f"{op}: {name} must be floating point, got {dtype}")
    return place.float32(array, dtype)


def integers(op: str, name: str, x: Any, place: Place = HOST) -> Any:
    """Any integer array as contiguous int64."""
    array, dtype = place.view(op, name, x)
    if "int" not in dtype or dtype == "uint64":
        raise TypeError(f"{op}: {name} must be integers, got {dtype}")
    return place.int64(array)


def ids(op: str, name: str, x: Any, num_queries: int | None, place: Place = HOST) -> Any:
    """int32 or int64 ids (Q, P) as they are, contiguous."""
    array, dtype = place.view(op, name, x)
    if dtype not in ("int32", "int64"):
        raise TypeError(f"{op}: {name} must be int32 or int64, got {dtype}")
    rows = "Q" if num_queries is None else str(num_queries)
    if array.ndim != 2 or (num_queries is not None and array.shape[0] != num_queries):
        raise ValueError(f"{op}: {name} must have shape ({rows}, any), got {shape_text(array.shape)}")
    return place.packed(array)


def storage(op: str, name: str, x: Any, place: Place = HOST) -> tuple[Any, str]:
    """Embeddings as they are stored, or float64 to be converted, which is said; never a copy."""
    array, dtype = place.view(op, name, x)
    if dtype not in _arrays.STORAGE and dtype != "float64":
        raise TypeError(
            f"{op}: {name} must be float32, float16 or bfloat16, got {dtype}; convert it once with .astype('float32')"
        )
    if array.ndim < 2 or 0 in array.shape[-2:]:
        raise ValueError(
            f"{op}: {name} must have at least one row and one dimension, got shape {shape_text(array.shape)}"
        )
    if not place.is_native(array):
        raise ValueError(f"{op}: {name} must be aligned and in native byte order; copy it once with np.array")
    if dtype == "float64":
        warn(f"{op}: {name} are float64 and are converted to float32; pass float32 to spare that", ConversionWarning)
    return array, dtype


def per_query(op: str, name: str, x: Any, num_queries: int, low: float, high: float, place: Place = HOST) -> Any:
    """A number, or one per query, in [low, high], as (Q,) float32; values on a device are not looked at."""
    if isinstance(x, (float, int)) and not isinstance(x, bool):
        if not low <= x <= high:
            raise ValueError(f"{op}: {name} must be within [{low:g}, {high:g}], got {x}")
        return place.filled(num_queries, x)
    if place is not HOST and _arrays.device_of(x) != "cpu":
        there = floats(op, name, x, place)
        _expect(op, name, there, ((num_queries,), "(Q,)"))
        return there
    array = np.asarray(_arrays.host_view(op, name, x)[0])
    if array.dtype.kind not in "fiu" or (array.dtype == np.uint16):
        raise TypeError(f"{op}: {name} must be a number or a float array of shape (Q,), got {array.dtype}")
    if array.shape not in ((), (num_queries,)):
        raise ValueError(f"{op}: {name} must be a number or have shape ({num_queries},), got {shape_text(array.shape)}")
    bad = ~((array >= low) & (array <= high))
    if bad.any():
        raise ValueError(f"{op}: {name} must be within [{low:g}, {high:g}], got {array[bad].flat[0]:g}")
    return place.upload(np.array(np.broadcast_to(array, (num_queries,)), np.float32))


def _counts(op: str, name: str, x: Any, num_queries: int) -> tuple[int, np.ndarray | None]:
    """k: a number, or one per query with their maximum, for which an array on a device is brought to the host."""
    if isinstance(x, int):
        return count(op, name, x), None
    x = _arrays.to_host(x)
    array = integers(op, name, x)
    if array.shape == ():
        return count(op, name, int(array)), None
    if array.shape != (num_queries,):
        raise ValueError(f"{op}: {name} must be a number or have shape ({num_queries},), got {shape_text(array.shape)}")
    if array.size == 0:
        return 1, array
    if array.min() < 1:
        q = int(np.argmin(array >= 1))
        raise ValueError(f"{op}: {name} must be at least 1, got {array[q]} for query {q}")
    return int(array.max()), array


def _expect(op: str, name: str, array: np.ndarray, *shapes: tuple[tuple[int, ...], str], hint: str = "") -> None:
    if not any(array.shape == shape for shape, _ in shapes):
        rule = " or ".join(f"{symbols} = {shape_text(shape)}" for shape, symbols in shapes)
        raise ValueError(f"{op}: {name} must have shape {rule}, got {shape_text(array.shape)}{hint}")


def library_and_device(op: str, arrays: dict[str, Any]) -> tuple[str, str]:
    """The library of the results, and the one device that all the arrays are on."""
    for x in arrays.values():  # the common case, quickly
        if x is not None and type(x.data if isinstance(x, Rows) else x) is not np.ndarray:
            break
    else:
        return "numpy", "cpu"
    given = {name: x.data if isinstance(x, Rows) else x for name, x in arrays.items() if x is not None}
    return _arrays.library_of(*given.values()), same_device(op, given)


def same_device(op: str, arrays: dict[str, Any]) -> str:
    """The one device that all the arrays are on."""
    devices = {
        name: _arrays.device_of(x.data if isinstance(x, Rows) else x) for name, x in arrays.items() if x is not None
    }
    if len(set(devices.values())) > 1:
        found = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"{op}: all arrays must be on one device, got {found}")
    return next(iter(devices.values()), "cpu")


def _rows(op: str, embeddings: Any, metric: str, place: Place) -> tuple[Rows, int]:
    """The rows that ids refer to, and P for dense pools, else 0."""
    if isinstance(embeddings, Rows):
        if metric != "cosine" and metric != embeddings.metric:
            raise ValueError(f"{op}: metric must be the corpus's own, {embeddings.metric!r}, got {metric!r}")
        return embeddings, 0
    choice(op, "metric", metric, ("cosine", "dot"))
    array, dtype = storage(op, "embeddings", embeddings, place)
    if array.ndim > 3:
        raise ValueError(f"{op}: embeddings must have shape (N, D) or (Q, P, D), got {shape_text(array.shape)}")
    if dtype == "float64":
        array, dtype = place.float32(array, dtype), "float32"
    pool_stride = 0
    if array.ndim == 3:
        pool_stride = array.shape[1]
        if not place.is_packed(array):
            raise ValueError(f"{op}: embeddings must be C-contiguous; copy it once with np.ascontiguousarray")
        array = array.reshape(-1, array.shape[2])
    else:
        strides, itemsize = place.strides(array), array.dtype.itemsize
        if (array.shape[1] > 1 and strides[1] != itemsize) or strides[0] % itemsize or strides[0] < 0:
            raise ValueError(
                f"{op}: embeddings must have a contiguous last axis, got strides {strides}; "
                "copy it once with np.ascontiguousarray"
            )
    return Rows(array, dtype, metric, "computed" if metric == "cosine" else "as_given"), pool_stride


def selection(
    op: str,
    queries: Any,
    embeddings: Any,
    k: Any,
    *,
    candidates: Any = None,
    relevance: Any = None,
    bias: Any = None,
    lambda_d: Any = 1.0,
    lambda_b: Any = 1.0,
    groups: Any = None,
    query_groups: Any = None,
    max_per_group: Any = None,
    initial: Any = None,
    metric: str = "cosine",
    k_name: str = "k",
    place: Place = HOST,
) -> Problem:
    """The problem that a call describes, or the error that says which argument cannot be."""
    rows, pool_stride = _rows(op, embeddings, metric, place)
    num_rows, dims = rows.data.shape
    by_row = "(N,)"

    if queries is None:
        if op != "mmr" or relevance is None:
            need = "be given" if op != "mmr" else "be given unless relevance is"
            raise ValueError(f"{op}: queries must {need}, got None")
        unit_queries, array = False, None
    else:
        unit_queries = op == "vrsd" or rows.metric == "cosine"
        array = floats(op, "queries", queries, place)
        if array.ndim != 2:
            hint = "; use queries[None, :] for one query" if array.ndim == 1 else ""
            raise ValueError(f"{op}: queries must have shape (Q, D), got {shape_text(array.shape)}{hint}")
        if array.shape[1] != dims:
            raise ValueError(f"{op}: queries must have the embeddings' D = {dims} dimensions, got {array.shape[1]}")

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
        assert scores is not None  # or the queries would have been asked for
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
        pool, by_row = pool_stride, "(Q, P)"
    else:
        pool = num_rows if ids_array is None else ids_array.shape[1]
    if pool == 0:
        raise ValueError(f"{op}: candidates must have at least one column, got shape ({num_queries}, 0)")
    items = ((num_queries, pool), "(Q, P)")
    if scores is not None:
        _expect(op, "relevance", scores, items)

    if bias is None:
        bias_array = rows.bias
    else:
        bias_array = floats(op, "bias", bias, place)
        if pool_stride:
            _expect(op, "bias", bias_array, items)
        else:
            _expect(op, "bias", bias_array, ((num_rows,), "(N,)"), items)

    if groups is None:
        group_array = rows.groups
    else:
        group_array = integers(op, "groups", groups, place)
        _expect(op, "groups", group_array, items if pool_stride else ((num_rows,), by_row))
        group_array = group_array.reshape(-1)
        if query_groups is None and max_per_group is None:
            raise ValueError(f"{op}: groups must come with query_groups or max_per_group, got neither")
    if group_array is None and (query_groups is not None or max_per_group is not None):
        name = "query_groups" if query_groups is not None else "max_per_group"
        raise ValueError(f"{op}: {name} must come with groups, got groups=None")
    query_group_array = None
    if query_groups is not None:
        query_group_array = integers(op, "query_groups", query_groups, place)
        _expect(op, "query_groups", query_group_array, ((num_queries,), "(Q,)"))

    number, ks = _counts(op, k_name, k, num_queries)
    return Problem(  # by position: 18 names would take half a microsecond
        op,
        rows,
        num_queries,
        pool,
        number,
        pool_stride,
        None if op == "mmr" and scores is not None else array,  # queries: not read
        unit_queries,
        per_query(op, "lambda_d", lambda_d, num_queries, 0.0, 1.0, place),
        per_query(op, "lambda_b", lambda_b, num_queries, 0.0, 1.0, place),
        ids_array,
        None if initial is None else ids(op, "initial", initial, num_queries, place),
        scores,
        bias_array if op != "vrsd" else None,
        None if ks is None else place.upload(ks),
        group_array,
        query_group_array,
        0 if max_per_group is None else count(op, "max_per_group", max_per_group),
    )


def warn_small_pool(problem: Problem) -> None:
    if problem.ks is None:
        fewest = problem.k
    else:  # on a device they are not looked at
        fewest = int(problem.ks.min()) if isinstance(problem.ks, np.ndarray) else 0
    if problem.pool <= fewest:
        warn(
            f"{problem.op}: the pool of {problem.pool} is no larger than k = {problem.k}, so that the selection only "
            "reorders it; use a larger pool or a smaller k",
            PoolSizeWarning,
        )


def values(problem: Problem, q: int) -> None:
    """Raise for the first bad value that query q reads; return if there is none."""
    op = problem.op
    for name, id_array in (("initial", problem.initial), ("candidates", problem.candidates)):
        if id_array is None:
            continue
        found = id_array[q][id_array[q] != -1]
        outside = found[(found < 0) | (found >= problem.num_ids)]
        if outside.size:
            what = (
                "-1 or positions of the pool, below P" if problem.pool_stride else "-1 or rows of the corpus, below N"
            )
            got = int(outside[0])
            raise ValueError(f"{op}: {name} must be {what} = {problem.num_ids}, got {got} for query {q}")
        unique, counts = np.unique(found, return_counts=True)
        if unique.size < found.size:
            got = int(unique[counts > 1][0])
            raise ValueError(f"{op}: {name} must not repeat an id within a query, got {got} twice for query {q}")
    if problem.queries is not None and not np.isfinite(problem.queries[q]).all():
        _not_finite(op, "queries", q)
    rows, positions = problem.eligible(q)
    if problem.relevance is not None and not (finite := np.isfinite(problem.relevance[q, positions])).all():
        _not_finite(op, "relevance", q, f", position {positions[np.argmin(finite)]}")
    bias = problem.item_bias(q, rows, positions)
    if bias is not None and not (finite := np.isfinite(bias)).all():
        bad = int(np.argmin(finite))
        if problem.bias is not None and problem.bias.ndim == 1:
            _not_finite(op, "bias", int(rows[bad]))
        _not_finite(op, "bias", q, f", position {positions[bad]}")
    if problem.rows.max_norm is None:  # a Corpus has checked its rows
        read = np.concatenate([problem.initial_rows(q), rows])
        _row_values(problem, q, read, problem.rows.data[read], problem.rows.dtype)


def device_values(problem: Problem) -> None:
    """`values` of every query of a problem whose arrays are on a device; waits for the device."""
    rows = problem.rows
    place = _arrays.place_of(_arrays.device_of(rows.data), "", _arrays.library_of(rows.data))
    assert not isinstance(place, _arrays.Host)
    host = _arrays.hosted(problem)
    checked = rows.max_norm is not None
    norms = np.ones(len(rows.data)) if checked else place.norms(rows.data, rows.dtype)
    usable = np.isfinite(norms)
    if rows.norm == "computed":
        usable &= (norms == 0) | ((norms >= NORM_MIN) & (norms <= NORM_MAX))
    host.rows = _arrays.changed(host.rows, data=np.empty((len(norms), 0), np.float32), max_norm=1.0)
    for q in range(problem.num_queries):
        values(host, q)
        read = np.concatenate([host.initial_rows(q), host.eligible(q)[0]])
        if not usable[read].all():
            row = read[[int(np.argmin(usable[read]))]]
            stored = rows.data[int(row[0])][None]
            _row_values(host, q, row, _arrays.to_host(place.float32(stored, rows.dtype)), "float32")


def _row_values(problem: Problem, q: int, rows: np.ndarray, stored: np.ndarray, dtype: str) -> None:
    vectors = _arrays.widen(stored, dtype).astype(np.float64)
    if not (finite := np.isfinite(vectors).all(axis=1)).all():
        row = int(rows[np.argmin(finite)])
        if problem.pool_stride:
            _not_finite(problem.op, "embeddings", q, f", position {row - q * problem.pool_stride}")
        _not_finite(problem.op, "embeddings", row)
    norms = np.sqrt(np.square(vectors).sum(axis=1))
    usable = (norms == 0) | ((norms >= NORM_MIN) & (norms <= NORM_MAX))
    if problem.rows.norm == "computed" and not usable.all():
        bad = int(np.argmin(usable))
        raise ValueError(
            f"{problem.op}: embeddings must have row norms of 0 or within [{NORM_MIN:g}, {NORM_MAX:g}], "
            f"got {norms[bad]:g} in row {rows[bad]}; rescale them"
        )


def overflow(problem: Problem, q: int) -> NoReturn:
    raise ValueError(
        f"{problem.op}: queries and embeddings must have products within the range of float32, "
        f"got one beyond it for query {q}; rescale them"
    )


def _not_finite(op: str, name: str, row: int, where: str = "") -> NoReturn:
    raise ValueError(f"{op}: {name} must be finite, got NaN or inf in row {row}{where}")
