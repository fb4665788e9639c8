"""The selection job: check all inputs, hold the corpus, stream the queries through it, write shards."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import ragsys_kernels as rk
from ragsys_kernels import _env, _info
from ragsys_kernels.offline import sources
from ragsys_kernels.offline.sinks import ShardSink
from ragsys_kernels.offline.sources import Column, PathLike

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Summary:
    """What a job did; as text, one line.

    ``seconds`` runs from the first query read to the last shard in place; ``corpus_seconds`` is the time before that,
    to read and normalise the corpus.
    """

    queries: int
    seconds: float
    corpus_seconds: float
    method: str
    k: int
    pool: str
    backend: str
    instruction_set: str
    num_threads: int
    out: Path
    shards: int

    @property
    def rate(self) -> float:
        """Queries per second."""
        return self.queries / self.seconds

    def __str__(self) -> str:
        backend = f"{self.backend} ({self.instruction_set})" if self.instruction_set else self.backend
        return (
            f"{self.queries} queries in {self.seconds:.2f} s ({self.rate:.0f} queries/s, corpus read in "
            f"{self.corpus_seconds:.2f} s), {self.method}, k={self.k}, pool={self.pool}, backend {backend}, "
            f"{self.num_threads} thread{'s' * (self.num_threads > 1)} -> {self.out} "
            f"({self.shards} shard{'s' * (self.shards > 1)})"
        )


@dataclass(frozen=True)
class _Inputs:
    """The opened columns of all input files; they agree in their numbers of rows."""

    corpus: Column
    corpus_ids: Column | None
    bias: Column | None
    groups: Column | None
    queries: Column
    query_ids: Column | None
    query_groups: Column | None
    candidates: Column | None


def select(
    *,
    corpus: PathLike,
    queries: PathLike,
    out: PathLike,
    candidates: PathLike | None = None,
    bias: PathLike | None = None,
    groups: PathLike | None = None,
    query_groups: PathLike | None = None,
    vector_column: str | None = None,
    id_column: str | None = None,
    bias_column: str | None = None,
    group_column: str | None = None,
    query_vector_column: str | None = None,
    query_id_column: str | None = None,
    query_group_column: str | None = None,
    candidate_column: str | None = None,
    method: Literal["mmr", "vrsd"] = "mmr",
    k: int = 6,
    pool: int | Literal["all"] | None = None,
    lambda_d: float | None = None,
    lambda_b: float | None = None,
    max_per_group: int | None = None,
    metric: Literal["cosine", "dot"] = "cosine",
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32",
    backend: str = "auto",
    num_threads: int | None = None,
    chunk_size: int = 1024,
    shard_size: int = 1_000_000,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Pick `k` corpus rows for every query of a file and write the picks as Parquet shards.

    The corpus is held in memory; queries and candidates are read `chunk_size` rows at a time, so memory does not grow
    with their number. `out` appears when the job is complete; after an error nothing of it is left, and what was
    at `out` before is untouched.

    Parameters
    ----------
    corpus, queries : path
        Vectors, ``.npy`` (N, D) and (Q, D), float32 or float16, or ``.parquet`` with a column of float lists, all
        of length D.
    out : path
        Folder to write: ``part-00000.parquet``, ... and ``_job.json``. Must be empty or new unless `overwrite`.
        Columns: ``query_id``; ``ids``, the picks, best first; ``scores``, ``relevance`` and ``redundancy`` as in
        `Selection`. Ids are those of the id columns, or row numbers in files without one.
    candidates : path, optional
        Rows of the corpus to choose from, by row number: ``.npy`` (Q, P) int32 or int64, padded with -1,
        or ``.parquet`` with a column of integer lists of any length. Default: the `pool` most relevant rows.
    bias : path, optional
        ``.npy`` (N,), quality of each corpus row; or name a column of the corpus file with `bias_column`.
    groups, query_groups : path, optional
        ``.npy`` (N,) and (Q,) integers; or `group_column`, `query_group_column`. A query is not given rows of its
        own group.
    vector_column, query_vector_column, candidate_column : str, optional
        Needed if a Parquet file has several columns of that kind (none of them called "embedding" or "vector").
    id_column, query_id_column : str, optional
        Default: the column "id", if the Parquet file has one.
    method : {"mmr", "vrsd"}
    k : int
        Picks of each query; fewer where it has fewer candidates.
    pool : int or "all", optional
        How many of the most relevant rows to choose from; "all" is exact over the whole corpus. Default: 100, or the
        candidates if given.
    lambda_d, lambda_b : float, optional
        Weights of relevance against redundancy, and of similarity against bias, in [0, 1]. MMR only.
        Default: 0.75 and 0.95.
    max_per_group : int, optional
        Largest number of picks from one group.
    metric : {"cosine", "dot"}
    dtype : {"float32", "float16", "bfloat16", "int8"}
        How the corpus is held in memory.
    backend, num_threads
        As in `ragsys_kernels.mmr`.
    chunk_size : int
        Queries read, selected for and handed to the writer in one step. Does not change the result.
    shard_size : int
        Rows of a Parquet shard.
    overwrite : bool
        Replace an earlier job's folder. A folder that holds anything else is refused all the same.
    progress : callable, optional
        Called with the queries done and their number, first with 0 when the corpus is in memory.

    Returns
    -------
    Summary

    Raises
    ------
    ValueError, TypeError, OSError, BackendUnavailableError
        Everything that can be checked from options and file headers is, before anything is written.
    """
    for name, value in (("chunk_size", chunk_size), ("shard_size", shard_size)):
        if value < 1:
            raise ValueError(f"select: {name} must be at least 1, got {value}")
    inputs = _Inputs(
        corpus=sources.vectors(corpus, "corpus", vector_column),
        corpus_ids=sources.ids(corpus, "corpus", id_column),
        bias=sources.numbers("bias", float, bias, bias_column, corpus),
        groups=sources.numbers("groups", int, groups, group_column, corpus),
        queries=sources.vectors(queries, "queries", query_vector_column),
        query_ids=sources.ids(queries, "queries", query_id_column),
        query_groups=sources.numbers("query_groups", int, query_groups, query_group_column, queries),
        candidates=sources.candidates(candidates, candidate_column),
    )
    _check_sizes(inputs)
    rule = _rule(method, pool, lambda_d, lambda_b, max_per_group, inputs)
    held: dict[str, Any] = {"metric": metric, "dtype": dtype}
    run: dict[str, Any] = {"backend": backend, "num_threads": num_threads}
    _try_options(inputs.corpus.dims, k, held, {**rule, **run})

    target = Path(out).resolve()
    schema = _schema(inputs)
    with ShardSink(target, schema, shard_size, overwrite) as sink:
        start = time.perf_counter()
        rows = _load_corpus(inputs, held)
        corpus_ids = None if inputs.corpus_ids is None else _takeable(inputs.corpus_ids.whole())
        loaded = time.perf_counter()
        total = inputs.queries.rows
        if progress is not None:
            progress(0, total)
        for done, query_ids, picks in _selections(inputs, rows, k, {**rule, **run}, chunk_size):
            sink.write(_table(schema, query_ids, corpus_ids, picks))
            if progress is not None:
                progress(done, total)
        used, instruction_set = _active(backend)
        sink.finish(
            {
                "version": rk.__version__,
                "backend": used,
                "instruction_set": instruction_set,
                "options": {"k": k, **rule, **held},
                "corpus": _described(inputs.corpus),
                "queries": _described(inputs.queries),
                "candidates": None if inputs.candidates is None else _described(inputs.candidates),
            }
        )
        end = time.perf_counter()
    return Summary(
        queries=total,
        seconds=end - loaded,
        corpus_seconds=loaded - start,
        method=method,
        k=k,
        pool="candidates" if inputs.candidates is not None else str(rule["pool"] or "all"),
        backend=used,
        instruction_set=instruction_set,
        num_threads=num_threads or _env.num_threads(),
        out=target,
        shards=len(sink.shards),
    )


def _check_sizes(inputs: _Inputs) -> None:
    """Check the inputs against each other, from their headers alone."""
    for argument, column in (("corpus", inputs.corpus), ("queries", inputs.queries)):
        if not column.rows:
            raise ValueError(f"select: {argument} must have at least one row, got none in {column.path}")
        if not column.dims:
            raise ValueError(f"select: {argument} must have at least one dimension, got none in {column.path}")
    if inputs.queries.dims != inputs.corpus.dims:
        raise ValueError(
            f"select: queries must have the corpus's {inputs.corpus.dims} dimensions, "
            f"got {inputs.queries.dims} in {inputs.queries.path}"
        )
    owners = {"bias": "corpus", "groups": "corpus", "query_groups": "queries", "candidates": "queries"}
    for argument, owner in owners.items():
        dependent, expected = getattr(inputs, argument), getattr(inputs, owner).rows
        if dependent is not None and dependent.rows != expected:
            raise ValueError(
                f"select: {argument} must have one row for each of the {expected} rows of {owner}, "
                f"got {dependent.rows} in {dependent.path}"
            )


def _rule(
    method: str,
    pool: int | str | None,
    lambda_d: float | None,
    lambda_b: float | None,
    max_per_group: int | None,
    inputs: _Inputs,
) -> dict[str, Any]:
    """Fill in the defaults; refuse options that the others leave without effect."""
    if pool is not None and inputs.candidates is not None:
        raise ValueError(f"select: pool must be left out when candidates are given, got {pool}")
    if inputs.query_groups is not None and inputs.groups is None:
        raise ValueError(f"select: query_groups must come with groups, got {inputs.query_groups.path} alone")
    if max_per_group is not None and inputs.groups is None:
        raise ValueError(f"select: max_per_group must come with groups, got {max_per_group} alone")
    if inputs.groups is not None and inputs.query_groups is None and max_per_group is None:
        raise ValueError("select: groups must come with query_groups or max_per_group, got groups alone")
    if isinstance(pool, str) and pool != "all":
        raise ValueError(f"select: pool must be a number or 'all', got {pool!r}")
    rule: dict[str, Any] = {"method": method, "max_per_group": max_per_group}
    if inputs.candidates is not None or pool == "all":
        rule["pool"] = None
    else:
        rule["pool"] = 100 if pool is None else pool
    if method == "mmr":
        rule["lambda_d"] = 0.75 if lambda_d is None else lambda_d
        rule["lambda_b"] = 0.95 if lambda_b is None else lambda_b
        return rule
    for name, value in (("lambda_d", lambda_d), ("lambda_b", lambda_b), ("bias", inputs.bias and inputs.bias.path)):
        if value is not None:
            raise ValueError(f"select: {name} must be left out with method {method!r}, got {value}")
    return rule


def _try_options(dims: int, k: int, held: dict[str, Any], options: dict[str, Any]) -> None:
    """Let the library check the options, on one zero row, before any work is done on the files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rk.PoolSizeWarning)
        zero = np.zeros((1, dims), np.float32)
        groups = np.zeros(1, np.int64)
        rk.Corpus(zero, groups=groups, **held).select(zero, k, **options)


def _load_corpus(inputs: _Inputs, held: dict[str, Any]) -> rk.Corpus:
    try:
        return rk.Corpus(
            inputs.corpus.whole(),
            bias=None if inputs.bias is None else np.asarray(inputs.bias.whole(), np.float32),
            groups=None if inputs.groups is None else inputs.groups.whole(),
            **held,
        )
    except ValueError as error:
        if str(error).startswith("select: "):  # from reading, with the file's name
            raise
        raise ValueError(f"select: corpus must be usable, got {inputs.corpus.path}: {error}") from error


def _selections(
    inputs: _Inputs, corpus: rk.Corpus, k: int, options: dict[str, Any], chunk_size: int
) -> Iterator[tuple[int, pa.Array, rk.Selection]]:
    """Yield, for chunk after chunk, the number of queries done, the chunk's query ids and its picks."""

    def chunks(column: Column | None) -> Iterator[Any]:
        return repeat(None) if column is None else column.chunks(chunk_size)

    start = 0
    columns = (inputs.query_ids, inputs.query_groups, inputs.candidates)
    for queries, ids, groups, candidates in zip(inputs.queries.chunks(chunk_size), *map(chunks, columns), strict=False):
        end = start + len(queries)
        if inputs.candidates is not None:
            _check_range(candidates, len(corpus), start, inputs.candidates.path)
        try:
            picks = corpus.select(queries, k, query_groups=groups, candidates=candidates, **options)
        except ValueError:
            _name_bad_row(inputs, start, queries, candidates)
            raise
        yield end, pa.array(np.arange(start, end)) if ids is None else ids, picks
        start = end


def _check_range(candidates: Array, N: int, start: int, path: str | Path) -> None:
    """Refuse ids beyond the corpus, and negative ones other than -1, which the library takes for padding too."""
    if candidates.min(initial=-1) < -1 or candidates.max(initial=-1) >= N:
        outside = (candidates < -1) | (candidates >= N)
        row = int(np.argmax(outside.any(axis=1)))
        value = candidates[row][outside[row]][0]
        raise ValueError(
            f"select: candidates must be rows of the corpus, 0 to {N - 1}, or -1, "
            f"got {value} in row {start + row} of {path}"
        )


def _name_bad_row(inputs: _Inputs, start: int, queries: Array, candidates: Array | None) -> None:
    """Raise the library's error with the row of the file; the library only knows the row of the chunk."""
    finite = np.isfinite(queries).all(axis=1)
    if not finite.all():
        row = start + int(np.argmin(finite))
        raise ValueError(f"select: queries must be finite, got NaN or inf in row {row} of {inputs.queries.path}")
    if candidates is None or inputs.candidates is None:
        return
    ordered = np.sort(candidates, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row = int(np.argmax(twice.any(axis=1)))
        value = ordered[row, 1:][twice[row]][0]
        raise ValueError(
            f"select: candidates must be distinct, got {value} twice in row {start + row} of {inputs.candidates.path}"
        )


def _schema(inputs: _Inputs) -> pa.Schema:
    def kind(column: Column | None) -> pa.DataType:
        return pa.int64() if column is None else next(column.chunks(1)).type

    values = pa.list_(pa.float32())
    return pa.schema(
        [
            ("query_id", kind(inputs.query_ids)),
            ("ids", pa.list_(kind(inputs.corpus_ids))),
            ("scores", values),
            ("relevance", values),
            ("redundancy", values),
        ]
    )


def _takeable(ids: pa.ChunkedArray) -> pa.Array:
    """Return one array to take from; strings get 64-bit offsets, since the text of all ids may exceed 2 GiB."""
    return (ids.cast(pa.large_string()) if pa.types.is_string(ids.type) else ids).combine_chunks()


def _table(schema: pa.Schema, query_ids: pa.Array, corpus_ids: pa.Array | None, picks: rk.Selection) -> pa.Table:
    """Turn padded rows into lists of the real picks."""
    real = np.arange(picks.indices.shape[1]) < picks.lengths[:, None]
    offsets = pa.array(np.concatenate(([0], np.cumsum(picks.lengths, dtype=np.int32))), pa.int32())
    flat = pa.array(picks.indices[real])
    ids = flat if corpus_ids is None else corpus_ids.take(flat).cast(schema.field("ids").type.value_type)
    values = (ids, *(pa.array(field[real]) for field in (picks.scores, picks.relevance, picks.redundancy)))
    return pa.table([query_ids, *(pa.ListArray.from_arrays(offsets, item) for item in values)], schema=schema)


def _active(backend: str) -> tuple[str, str]:
    """Return the names of the backend that ran and of its instruction set."""
    name, instruction_set = _info.active()
    return (name, instruction_set) if backend in ("auto", name) else (backend, "")


def _described(column: Column) -> dict[str, Any]:
    return {"path": str(column.path.resolve() if isinstance(column.path, Path) else column.path), "rows": column.rows}
