"""FAISS indexes as retrievers, and usearch's: they find rows, the selection kernels rank them.

Stored rows carry the quality bias in one more column and queries its weight (RAGSys, section 5.3)::

    [e_i, b_i / U] . [lambda_b * q, U * (1 - lambda_b)] = lambda_b * cos(q, e_i) + (1 - lambda_b) * b_i = v_i

so that the nearest rows by inner product are those of largest v, for any lambda_b, chosen at query time. The unit U is
a power of two, which changes no bit of the product. It keeps the column small beside the unit vector e_i: indexes build
their graphs and clusters on products of rows, and the bias itself would dominate these.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from .._base import checks
from .._base.extras import needed
from ..selection import validate
from ..selection.problem import Problem, Rows, unit
from . import index_rows, usearch_index

# U. Measured on 20,000 clustered rows, log-probabilities as bias, lambda_b = 0.95: of the best 20 rows HNSW32 finds 98%
# with U = 64 and 4% with 1, IVF64 98% and 47%. A larger U gains nothing more, and quantizers would lose the column.
BIAS_UNIT = 64

# Bytes of a block of rows while they are widened, in float64.
_BLOCK_BYTES = 1 << 24

# FAISS trains on 256 vectors per centroid; product and scalar quantizers have up to 256 centroids.
_TRAIN_PER_CENTROID = 256

# Queries searched at once, and ids with their distances held at once (48 MB).
_QUERY_BLOCK = 1024
_CELLS = 1 << 22
_TOGETHER = 16


def _faiss(op: str) -> Any:
    with needed(op, "faiss"):
        import faiss
    return faiss


def read(op: str, file: str, path: object) -> Any:
    """Read the index of a file, which messages call `path`."""
    return _read(op, file, os.stat(file).st_size, path)


def _read(op: str, source: Any, size: int, path: object) -> Any:
    """Read an index of so many bytes from a file, or from what FAISS reads."""
    faiss = _faiss(op)
    try:
        with _limited(faiss, size):  # which tables that are computed from it may exceed
            index = faiss.read_index(source, getattr(faiss, "IO_FLAG_SKIP_PRECOMPUTE_TABLE", 0))
        inverted = faiss.try_extract_index_ivf(index)
        if isinstance(inverted, faiss.IndexIVFPQ) and not isinstance(inverted, faiss.IndexIVFPQR):
            inverted.precompute_table()
    except RuntimeError as error:
        raise ValueError(f"{op}: index must be a readable FAISS index file, got {path}: {_reason(error)}") from error
    return index


@contextmanager
def _limited(faiss: Any, size: int) -> Iterator[None]:
    """Let FAISS make no array, and repeat nothing, for more elements than a file has bytes, where it knows limits."""
    limits = [name for name in ("vector_byte_limit", "loop_limit") if hasattr(faiss, f"set_deserialization_{name}")]
    before = {name: getattr(faiss, f"get_deserialization_{name}")() for name in limits}
    try:
        for name in limits:
            getattr(faiss, f"set_deserialization_{name}")(size)
        yield
    finally:
        for name, limit in before.items():
            getattr(faiss, f"set_deserialization_{name}")(limit)


def build(op: str, rows: Rows, index: Any) -> Any:
    """Train an index on the rows of a corpus and fill it with them; see ``Corpus.to_faiss``."""
    columns = rows.dims + (rows.bias is not None)
    given = repr(index) if isinstance(index, str) else type(index).__name__
    index = empty(op, columns, index)
    if index.d != columns:
        rule = f"D + 1 = {columns} columns, the last for the bias" if columns > rows.dims else f"D = {columns} columns"
        raise ValueError(f"{op}: index must have {rule}, got {index.d}")
    if index.ntotal:
        raise ValueError(f"{op}: index must be empty, got {index.ntotal} rows")
    num_rows = len(rows.data)
    with buildable(op, given, num_rows):
        if not index.is_trained:
            index.train(stored(rows, sample(num_rows, wanted(centroids(op, index), num_rows))))
        fill(index, rows)
    return index


def empty(op: str, columns: int, index: Any) -> Any:
    """Return an index for inner products: of a factory string, the exact one for None, or the caller's own."""
    faiss = _faiss(op)
    if index is None:
        return faiss.IndexFlatIP(columns)
    if isinstance(index, str):
        try:
            return faiss.index_factory(columns, index, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise ValueError(
                f"{op}: index must be a FAISS factory string for inner product over {columns} columns, "
                f"got {index!r}: {_reason(error)}"
            ) from error
    if not isinstance(index, faiss.Index):
        raise TypeError(f"{op}: index must be None, a factory string or a faiss.Index, got {type(index).__name__}")
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ValueError(f"{op}: index must have the inner-product metric, got metric_type {index.metric_type}")
    return index


@contextmanager
def buildable(op: str, given: str, num_rows: int) -> Iterator[None]:
    """Word what FAISS says of an index that cannot be made of so many rows."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(
            f"{op}: index must be one that can be built from the corpus's N = {num_rows} rows, "
            f"got {given}: {_reason(error)}"
        ) from error


def set_parameters(op: str, index: Any, parameters: str) -> None:
    """Set what an index is searched with, as FAISS's ParameterSpace takes it; "" changes nothing.

    FAISS takes any number, so one search with it follows, once the index is trained.
    """
    if not parameters:
        return
    try:
        _faiss(op).ParameterSpace().set_index_parameters(index, parameters)
        if index.is_trained:
            index.search(np.zeros((1, index.d), np.float32), 1)
    except RuntimeError as error:
        raise ValueError(
            f"{op}: search_parameters must be ones of the index, as 'nprobe=32' is of an inverted file, "
            f"got {parameters!r}: {_reason(error)}"
        ) from error


def fill(index: Any, rows: Rows) -> None:
    """Add all rows to a trained index, in blocks."""
    step = max(1, _BLOCK_BYTES // (8 * index.d))
    for begin in range(0, len(rows.data), step):
        index.add(stored(rows, slice(begin, begin + step)))


# --- Indexes in files of a corpus.


def write(index: Any, put: Callable[[bytes], Any]) -> None:
    """Write an index, a block of bytes at a time."""
    faiss = _faiss("index")
    faiss.write_index(index, faiss.PyCallbackIOWriter(put, 1 << 20))


def mapped(op: str, content: np.ndarray, path: object) -> Any:
    """Return the index of the bytes of a file, which it goes on reading; releases before 1.11 copy them."""
    faiss = _faiss(op)
    if not hasattr(faiss, "ZeroCopyIOReader"):
        return _copied(op, content, path)
    return _read(op, faiss.ZeroCopyIOReader(faiss.swig_ptr(content), len(content)), len(content), path)


def _copied(op: str, content: np.ndarray, path: object) -> Any:
    faiss = _faiss(op)
    reader = faiss.VectorIOReader()
    faiss.copy_array_to_vector(content, reader.data)
    return _read(op, reader, len(content), path)


def emptied(op: str, content: np.ndarray, path: object) -> Any:
    """Return the index of the bytes of a file without its rows, as it was trained."""
    index = _copied(op, content, path)
    index.reset()
    return index


def copied(op: str, index: Any) -> Any:
    """Return a copy of an index."""
    return _faiss(op).clone_index(index)


@contextmanager
def threads(op: str, count: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield `map` on so many threads, in each of which FAISS uses one."""
    faiss = _faiss(op)
    with ThreadPoolExecutor(count, initializer=partial(faiss.omp_set_num_threads, 1)) as pool:
        yield pool.map


class _Selecting:
    """An index of which some rows alone are found."""

    def __init__(self, index: Any, parameters: Any, *kept: Any) -> None:
        self.d, self._index, self._parameters, self._kept = index.d, index, parameters, kept

    def search(self, vectors: np.ndarray, n: int) -> Any:
        return self._index.search(vectors, n, params=self._parameters)


def selecting(op: str, index: Any, mask: np.ndarray) -> _Selecting | None:
    """Return an index of the rows of a mask (N,) alone, None for kinds that cannot leave out rows.

    Graphs can, but then find fewer rows than there are.
    """
    faiss = _faiss(op)
    bits = np.packbits(mask, bitorder="little")
    selector = faiss.IDSelectorBitmap(len(mask), faiss.swig_ptr(bits))
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    if isinstance(inner, faiss.IndexIVF):
        parameters = faiss.SearchParametersIVF(sel=selector, nprobe=inner.nprobe, max_codes=inner.max_codes)
    elif isinstance(inner, faiss.IndexFlat):
        parameters = faiss.SearchParameters(sel=selector)
    else:
        return None
    if inner is not index:
        inner = parameters
        parameters = faiss.SearchParametersPreTransform(index_params=inner)
    return _Selecting(index, parameters, bits, selector, inner)


def alone(op: str, index: Any) -> int:
    """Return how many queries can be searched for at once, each with the bits that it has alone.

    FAISS multiplies fewer than 20 queries with centroids or rows one by one; rotations and tables of codes it computes
    with BLAS for all.
    """
    faiss = _faiss(op)
    one_by_one = (faiss.IndexFlat, faiss.IndexHNSWFlat)
    if isinstance(index, (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer)):
        index = faiss.downcast_index(index.quantizer)
    return _TOGETHER if isinstance(index, one_by_one) else 1


def nearest(problem: Problem, index: Any, queries: range, together: int) -> np.ndarray:
    """Return the n nearest rows (q, n) of an index that some queries may pick, so many at once; padded with -1."""
    blocks = (slice(begin, min(begin + together, queries.stop)) for begin in queries[::together])
    return np.concatenate([_nearest(problem, index, None, block) for block in blocks])


def consecutive(op: str, indexes: list[Any]) -> Any:
    """Return one index of several whose rows follow one another."""
    if all(map(usearch_index.is_one, indexes)):
        return usearch_index.Retriever(op, [part for index in indexes for part in index.parts])
    if any(map(usearch_index.is_one, indexes)):
        raise ValueError(f"{op}: index must have parts of one library, got some of usearch and some of FAISS")
    faiss = _faiss(op)
    whole = faiss.IndexShards(indexes[0].d, True, True)  # in threads, with successive ids
    for index in indexes:
        if index.d != whole.d or index.metric_type != indexes[0].metric_type:
            raise ValueError(
                f"{op}: index must have parts of one width and metric, got {whole.d} columns of metric_type "
                f"{indexes[0].metric_type} and {index.d} of {index.metric_type}"
            )
        whole.add_shard(index)
    return whole


def search(problem: Problem, index: Any, implementation: ModuleType, num_threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k rows that the index finds for each query, ranked by v, as ``search`` of a backend does."""
    given = index
    if usearch_index.is_one(index) and not isinstance(index, usearch_index.Retriever):
        index = usearch_index.Retriever(problem.op, [index])
    by_distance = _check(problem, index)
    held = index.held if isinstance(index, usearch_index.Retriever) else partial(_held, _faiss(problem.op), index)
    rows_of = index_rows.translation(problem, index, given, held, by_distance)
    assert problem.queries is not None
    for q in np.flatnonzero(~np.isfinite(problem.queries).all(axis=1)):
        validate.values(problem, int(q))
    blocks = (slice(begin, begin + _QUERY_BLOCK) for begin in range(0, problem.num_queries, _QUERY_BLOCK))
    candidates = np.concatenate([_nearest(problem, index, rows_of, block) for block in blocks])
    candidates.sort(axis=1)  # ties go to the lowest position: to the lowest row
    candidates[:, 1:][candidates[:, 1:] == candidates[:, :-1]] = -1  # an index of the caller's may repeat ids
    return ranked(problem, candidates, implementation, num_threads)


def _check(problem: Problem, index: Any) -> bool:
    """Check kind, width and metric of an index; return whether it finds rows by their distance."""
    op = problem.op
    dims = problem.rows.dims
    if isinstance(index, usearch_index.Retriever):
        by_product, by_distance, metric = index.metric == "IP", index.metric in ("Cos", "L2sq"), index.metric
    else:
        faiss = _faiss(op)
        if not isinstance(index, faiss.Index):
            raise TypeError(
                f"{op}: index must be None, False, a faiss.Index, a usearch Index, a Corpus or, of a corpus with an "
                f"index, a str of its search parameters, got {type(index).__name__}; Corpus.to_faiss makes one"
            )
        by_product, by_distance = (index.metric_type == each for each in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2))
        metric = f"metric_type {index.metric_type}"
    if not 1 <= index.d <= dims and (index.d != dims + 1 or problem.bias is None):
        rule = f"at most D = {dims} columns"
        rule += "" if problem.bias is None else f", or D + 1 = {dims + 1} with the bias"
        raise ValueError(f"{op}: index must have {rule}, got {index.d}")
    # |q - e|² = 2 - 2 cos(q, e) for unit vectors: the order is that of the cosine.
    unit_rows = problem.rows.metric == "cosine" and index.d <= dims
    if not by_product and not (unit_rows and by_distance):
        rule = "inner-product or L2 metric" if unit_rows else "inner-product metric"
        raise ValueError(f"{op}: index must have the {rule}, got {metric}")
    return not by_product


def _held(faiss: Any, index: Any) -> index_rows.Held:
    """Return what a FAISS index holds."""
    if isinstance(index, faiss.IndexShards):  # rows that follow one another
        parts = [faiss.downcast_index(index.at(i)) for i in range(index.count())]
        starts = np.cumsum([0, *(part.ntotal for part in parts)])

        def of_parts(wanted: np.ndarray) -> np.ndarray | None:
            of_part = np.searchsorted(starts, wanted, side="right") - 1
            found = []
            for number in np.unique(of_part).tolist():
                part = _given_back(faiss, parts[number], wanted[of_part == number] - starts[number])
                if part is None:
                    return None
                found.append(part)
            return np.concatenate(found)

        return index_rows.Held(None, of_parts, all(_is_exact(faiss, part) for part in parts))
    numbers = None
    if isinstance(index, faiss.IndexIDMap):  # also of version 2
        numbers = faiss.vector_to_array(index.id_map)
    elif (inverted := faiss.try_extract_index_ivf(index)) is not None and not isinstance(index, faiss.IndexRefine):
        numbers = np.concatenate(_lists(faiss, inverted))
    return index_rows.Held(numbers, partial(_given_back, faiss, index), _is_exact(faiss, index))


def _is_exact(faiss: Any, index: Any) -> bool:
    """Return whether an index keeps the floats that it is given."""
    if isinstance(index, faiss.IndexIDMap):
        index = faiss.downcast_index(index.index)
    return isinstance(index, (faiss.IndexFlat, faiss.IndexHNSWFlat, faiss.IndexIVFFlat, faiss.IndexNSGFlat))


def _given_back(faiss: Any, index: Any, wanted: np.ndarray) -> np.ndarray | None:
    """Return vectors of an index by the numbers of its rows; None where it has none to give back."""
    try:
        return _vectors(faiss, index, wanted)
    except (RuntimeError, AttributeError):
        return None


def _vectors(faiss: Any, index: Any, wanted: np.ndarray) -> np.ndarray:
    if isinstance(index, faiss.IndexIDMap):
        places = _places(faiss.vector_to_array(index.id_map), wanted)
        return _vectors(faiss, faiss.downcast_index(index.index), places)
    found = np.empty((len(wanted), index.d), np.float32)
    if isinstance(index, faiss.IndexPreTransform):
        inner = np.ascontiguousarray(_vectors(faiss, faiss.downcast_index(index.index), wanted), np.float32)
        index.reverse_chain(len(wanted), faiss.swig_ptr(inner), faiss.swig_ptr(found))
    elif isinstance(index, faiss.IndexIVF):  # whose own `reconstruct` needs a map of all rows
        lists = _lists(faiss, index)
        starts = np.cumsum([0, *map(len, lists)])
        places = _places(np.concatenate(lists), wanted)
        for row, place in zip(found, places.tolist(), strict=True):
            number = int(np.searchsorted(starts, place, side="right")) - 1
            index.reconstruct_from_offset(number, int(place - starts[number]), faiss.swig_ptr(row))
    else:
        for row, place in zip(found, wanted.tolist(), strict=True):
            index.reconstruct(place, row)
    return found


def _places(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where numbers are among others; for one that is not there the place of another, whose vector differs."""
    order = np.argsort(numbers, kind="stable")
    return np.asarray(order[np.minimum(np.searchsorted(numbers[order], wanted), len(order) - 1)])


def _lists(faiss: Any, index: Any) -> list[np.ndarray]:
    """Return the numbers of the rows in each inverted list."""
    found, lists = [], index.invlists
    for number in range(index.nlist):
        ids = lists.get_ids(number)
        size = lists.list_size(number)
        found.append(np.array(faiss.rev_swig_ptr(ids, size), np.int64) if size else np.zeros(0, np.int64))
        lists.release_ids(number, ids)
    return found


def _nearest(problem: Problem, index: Any, rows_of: index_rows.Translate | None, block: slice) -> np.ndarray:
    """Return the n nearest rows (Q, n) that queries of a block may pick; padded with -1."""
    num_rows = len(problem.rows.data)
    vectors = _searched(problem, index, block)
    n = min(problem.k, num_rows)
    found = np.full((len(vectors), n), -1, np.int64)
    own = None if problem.constraints.query_groups is None else problem.constraints.query_groups[block, None]
    # FAISS cannot leave out rows per query: ask for twice as many rows again, until no query is short of them.
    fetch = n if own is None and problem.constraints.filter is None else min(2 * n, num_rows)
    left = np.arange(len(vectors))
    while left.size:
        short = []
        step = max(1, _CELLS // fetch)
        for begin in range(0, len(left), step):
            part = left[begin : begin + step]
            try:
                ids = index.search(vectors[part], fetch)[1]
            except RuntimeError as error:
                raise ValueError(
                    f"{problem.op}: index must be one that can be searched, got {type(index).__name__}: "
                    f"{_reason(error)}"
                ) from error
            exhausted = (ids < 0).any(axis=1)
            if rows_of is not None:
                ids = rows_of(ids)
            if (outside := ids >= num_rows).any():
                raise ValueError(
                    f"{problem.op}: index must find rows of the corpus, below N = {num_rows}, got {ids[outside][0]}"
                )
            keep = ids >= 0
            if own is not None:
                assert problem.constraints.groups is not None
                keep &= problem.constraints.groups[ids] != own[part]
            if problem.constraints.filter is not None:
                keep &= np.stack(
                    [problem.constraints.filter.keeps(block.start + q, ids[i]) for i, q in enumerate(part.tolist())]
                )
            order = np.argsort(~keep, axis=1, kind="stable")[:, :n]
            found[part] = np.take_along_axis(np.where(keep, ids, -1), order, axis=1)
            short.append(part[(keep.sum(axis=1) < n) & ~exhausted])
        left = np.concatenate(short) if fetch < num_rows else left[:0]
        fetch = min(2 * fetch, num_rows)
    return found


def ranked(
    problem: Problem, candidates: np.ndarray, implementation: ModuleType, num_threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rank candidates, given in ascending order, by their v; padded to k columns."""
    limits = problem.constraints.filtered(None)
    pools = dataclasses.replace(problem, candidates=candidates, pool=candidates.shape[1], constraints=limits)
    ranked: tuple[np.ndarray, np.ndarray] = implementation.search(pools, num_threads)
    return ranked


def stored(rows: Rows, part: np.ndarray | slice) -> np.ndarray:
    """Return [e_i, b_i / U] of some rows in float32."""
    vectors = rows.vectors(part).astype(np.float32)
    return vectors if rows.bias is None else np.column_stack([vectors, rows.bias[part] / np.float32(BIAS_UNIT)])


def _searched(problem: Problem, index: Any, block: slice) -> np.ndarray:
    """Return [lambda_b q, U (1 - lambda_b)] of some queries in float32, or q for an index without the bias."""
    queries = problem.query_vectors(block)
    queries = queries[:, : index.d]
    vectors = unit(queries) if problem.unit_queries else queries.astype(np.float64)
    if index.d > vectors.shape[1]:
        lambda_b = problem.lambda_b[block, None].astype(np.float64)
        vectors = np.hstack([lambda_b * vectors, BIAS_UNIT * (1 - lambda_b)])
    return vectors.astype(np.float32)


def centroids(op: str, index: Any) -> int:
    """Return how many centroids are trained: cells of the coarse quantizer, or the most that codes have."""
    inverted = _faiss(op).try_extract_index_ivf(index)
    return max(256, 0 if inverted is None else inverted.nlist)


def cells(op: str, index: Any) -> tuple[int, int] | None:
    """Return how many cells an inverted file searches, and has; None for other kinds."""
    inverted = _faiss(op).try_extract_index_ivf(index)
    return None if inverted is None else (inverted.nprobe, inverted.nlist)


def wanted(centroids: int, most: int) -> int:
    """Return on how many rows FAISS trains so many centroids, of ``most`` that there are."""
    return min(_TRAIN_PER_CENTROID * centroids, most)


def sample(num_rows: int, count: int) -> np.ndarray | slice:
    """Return a fixed sample of so many rows, or all rows."""
    if count >= num_rows:
        return slice(None)
    return np.sort(np.random.default_rng(0).choice(num_rows, count, replace=False))


def _reason(error: RuntimeError) -> str:
    """Return what FAISS says, without its function and source line."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", checks.line(error))
