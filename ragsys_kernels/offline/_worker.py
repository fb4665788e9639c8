"""The worker that every engine runs: it holds the corpus and makes shards of the result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, fields, replace
from itertools import groupby, repeat
from typing import Any

import numpy as np
import pyarrow as pa

import ragsys_kernels as rk

from .._base.types import NDArray as Array
from ..corpus import retrieve
from ..selection.quotas import warn_of_unknown
from ..selection.run import planned_run
from ._device import Placed, Selector
from ._held import Held
from ._manifest import JobFolder, ShardRecord, errors_file, shard_file
from ._options import UNMET, JobSpec, as_map, of_groups
from ._pipeline import ahead, side_by_side
from ._recall import Sample, sampled
from ._spec import Inputs, pool_of
from .sinks import ROW_GROUP, parquet
from .sources import Column, Fused, Lists, id_values
from .spread import Spread

_CHUNKS_AHEAD = 2
_CHUNKS_OF_HOLDERS = 3
_CHUNK_OF_VECTORS = 256  # queries whose candidates come with their vectors: 100 of 768 floats each are 79 MB
_ROW = re.compile(r" in row \d+.*")  # a row among vectors that were read together means nothing to the caller


@dataclass
class _Piece:
    """Consecutive queries of one shard, with what the inputs have for them; ``bad`` are those that cannot be used."""

    start: int
    queries: Array | Placed
    query_ids: pa.Array | None
    query_groups: Array | None
    candidates: Lists | None
    own: Lists | None  # the candidates' vectors
    relevance: Lists | None
    bad: dict[int, str] = field(default_factory=dict)


def _make_harmless(piece: _Piece) -> None:
    """Replace what could not be read by harmless values."""
    if piece.bad:
        rows = np.array(sorted(piece.bad)) - piece.start
        piece.queries = np.array(piece.queries)
        piece.queries[rows] = 0
        for name in ("candidates", "own", "relevance"):
            if (lists := getattr(piece, name)) is not None:
                setattr(piece, name, lists.without(rows))


@dataclass(frozen=True)
class _Picked:
    """The part of a piece that is kept after the selection, without its vectors, until it is written."""

    start: int
    query_ids: pa.Array | None
    bad: dict[int, str]
    picks: rk.Selection
    sample: Sample | None = None  # of them, with an index
    unknown: int = 0
    ids: pa.Array | None = None  # of candidates with their vectors, whose places the picks are


@dataclass(frozen=True)
class ResultRows:
    """Consecutive rows of the result, all of one shard.

    ``errors`` has the queries that were skipped among them; ``counts`` are what `ShardRecord` sums up.
    """

    start: int
    picks: pa.Table
    errors: pa.Table
    counts: dict[str, int]
    sample: Sample | None = None

    @property
    def stop(self) -> int:
        return self.start + int(self.picks.num_rows)


class Worker:
    """The corpus of a job in memory, ready to make any of its shards; built once in a process.

    The corpus and the files of the spec are read and opened here where they are not given. ``rows`` are the queries of
    the whole job, ``schema`` is that of the result.
    """

    def __init__(self, spec: JobSpec, corpus: Held | None = None, inputs: Inputs | None = None) -> None:
        here = spec.settled()
        if spec.instruction_set not in (None, here.instruction_set):
            raise ValueError(
                f"select: instruction_set must be that of the job, {spec.instruction_set}, got {here.instruction_set}"
            )
        opened = corpus.corpus if corpus is not None and isinstance(corpus.corpus, Spread) else None
        known = None if corpus is None else corpus.usable
        self._inputs = inputs or Inputs.open(spec, saved=opened, known=known)
        self.spec = replace(spec, request=of_groups("select", spec.request, self._inputs.named))
        self.rows, self.schema = self._inputs.queries.rows, result_schema(spec, self._inputs)
        self._pool, self._index = pool_of(spec, self._inputs), False if spec.exact else spec.search_parameters
        self._approximate = self._inputs.index is not None or self._inputs.by_own_index(spec)
        corpus = corpus or Held.of(spec, self._inputs)
        if self._inputs.own is None and not isinstance(corpus.corpus, Spread):
            warn_of_unknown("select", self.spec.request, corpus.corpus)
        self._corpus = Selector(corpus.corpus, spec.device)
        self._corpus_ids = id_values(corpus.corpus.ids) if corpus.ids is None else corpus.ids
        self._candidates: Any = self._inputs.candidates
        if self._candidates is not None and self._inputs.own is None:
            self._candidates = self._inputs.usable.listed(self._candidates, corpus.lookup, spec.unknown_ids == "skip")
        if self._inputs.index is not None:
            self._index = self._inputs.index.of(corpus.corpus)
        self._errors_schema = pa.schema(
            [("query_row", pa.int64()), self.schema.field("query_id"), ("reason", pa.string())]
        )

    def write_shard(self, index: int, job: JobFolder) -> ShardRecord:
        """Make one shard, put it into the folder and record it there.

        Running it twice, even at the same time, writes the same bytes: the file is replaced atomically.
        """
        with closing(self.write_shards([index], job)) as records:
            return next(records)

    def write_shards(
        self, indices: Sequence[int], job: JobFolder, advance: Callable[[int], None] | None = None
    ) -> Generator[ShardRecord, None, None]:
        """Make shards, in the order of their rows, and yield each one's record when it is in its place.

        Consecutive shards are read in one pass, unless an index is given. `advance` is called with the queries done
        since its last call.
        """
        # An index may find other rows in other batches, so a shard always begins a new batch.
        runs = _runs(indices) if self._inputs.index is None else (range(index, index + 1) for index in indices)
        for run in runs:
            rows = range(self.spec.shard(run.start, self.rows).start, self.spec.shard(run.stop - 1, self.rows).stop)
            with closing(self.tables(rows.start, rows.stop)) as pieces:
                for index in run:
                    yield self._write(index, pieces, job, advance)

    def tables(self, start: int, stop: int) -> Generator[ResultRows, None, None]:
        """Yield the result of queries `start` to `stop` in order, some at a time.

        Reading and selecting run in their own threads, a few chunks ahead of the caller.
        """
        read = ahead(self._pieces(start, stop), _CHUNKS_AHEAD)
        if self._corpus.places:  # a thread more, which copies while the kernels of the chunk before run
            read = ahead(self._placed(read), 1)
        # Results are small, so enough are buffered for the selection to go on while a row group is synced.
        # Holders of segments have the next chunks to search while the slowest of them is at this one.
        at_once = _CHUNKS_OF_HOLDERS if isinstance(self._corpus.corpus, Spread) else 1
        selected = ahead(
            side_by_side(self._picked, read, at_once), max(_CHUNKS_AHEAD, ROW_GROUP // self.spec.chunk_size)
        )
        with closing(selected):
            for picked in selected:
                yield self._result(picked)

    def _write(
        self, index: int, pieces: Iterator[ResultRows], job: JobFolder, advance: Callable[[int], None] | None
    ) -> ShardRecord:
        """Write the next rows, those of one shard."""
        rows, skipped, counts, sample = self.spec.shard(index, self.rows), [], Counter[str](), Sample()
        with parquet(job.folder, shard_file(index), self.schema) as (table, file):
            for piece in pieces:
                table.write(piece.picks)
                counts.update(piece.counts)
                if piece.errors.num_rows:
                    skipped.append(piece.errors)
                if piece.sample is not None:
                    sample.extend(piece.sample)
                if advance is not None:
                    advance(piece.picks.num_rows)
                if piece.stop == rows.stop:
                    break
            if table.rows != len(rows):
                raise ValueError(
                    f"select: queries must keep their rows while they are read, got {table.rows} of {len(rows)} in "
                    f"rows {rows.start} to {rows.stop - 1} of {self._inputs.queries.path}"
                )
        errors_sha256 = None
        recall = sample.measured(self._corpus.corpus, self.spec.request, self._pool, self._index)
        if skipped:
            with parquet(job.folder, errors_file(index), self._errors_schema) as (table, errors):
                for piece_errors in skipped:
                    table.write(piece_errors)
            errors_sha256 = errors.sha256
        record = ShardRecord(
            index=index,
            file=shard_file(index),
            first_row=rows.start,
            rows=len(rows),
            sha256=file.sha256,
            skipped=sum(piece_errors.num_rows for piece_errors in skipped),
            short=counts["short"],
            errors_sha256=errors_sha256,
            certified=counts["certified"] if self._inputs.certifies(self.spec) else None,
            recall=None if recall is None else list(vars(recall).values()),
            unknown=None if self.spec.unknown_ids == "error" else counts["unknown"],
            unmet=None if self.spec.request.min_per_group is None else counts["unmet"],
        )
        job.add(record)
        return record

    def _pieces(self, start: int, stop: int) -> Generator[_Piece, None, None]:
        """Read queries `start` to `stop`: a chunk at a time, cut where a shard ends."""
        inputs = self._inputs
        size = self.spec.chunk_size if inputs.own is None else min(self.spec.chunk_size, _CHUNK_OF_VECTORS)
        names = [field.name for field in fields(_Piece) if field.name not in ("start", "bad")]
        columns = {**{name: getattr(inputs, name) for name in names}, "candidates": self._candidates}
        bad: dict[str, dict[int, str]] = {name: {} for name in names}

        def chunks(name: str) -> Iterator[Any]:
            if columns[name] is None:
                return repeat(None)
            found: Iterator[Any] = columns[name].chunks(
                size, start, stop, bad[name] if self.spec.on_error == "skip" else None
            )
            return found

        first = start
        for parts in map(list, zip(*map(chunks, names), strict=False)):
            if isinstance(self._candidates, Fused):
                pair = names.index("candidates"), names.index("relevance")
                parts[pair[0]], parts[pair[1]] = parts[pair[0]]
            start_of_chunk, last = first, first + len(parts[0])
            while first < last:
                end = min(last, (first // self.spec.shard_size + 1) * self.spec.shard_size)
                cut = slice(first - start_of_chunk, end - start_of_chunk)
                cut_parts: list[Any] = [None if part is None else part[cut] for part in parts]
                piece = _Piece(first, *cut_parts)
                for reasons in filter(None, bad.values()):
                    for row in range(first, end):  # a damaged row group enters rows of many pieces at once
                        if row in reasons:
                            piece.bad.setdefault(row, reasons.pop(row))
                self._check_lengths(piece)
                yield piece
                first = end

    def _check_lengths(self, piece: _Piece) -> None:
        """Check that each candidate of a query has a vector and a score, if vectors or scores are given."""
        for lists, rule in (
            (piece.own, "candidates must have an id for each of the vectors, got another number"),
            (piece.relevance, "relevance must have a number for each of the candidates, got others"),
        ):
            if lists is None or piece.candidates is None:
                continue
            for query in np.flatnonzero(lists.lengths != piece.candidates.lengths).tolist():
                row = piece.start + query
                if self.spec.on_error == "raise":
                    raise ValueError(
                        f"select: {rule} in {(self._inputs.candidates or self._inputs.queries).where(row)}"
                    )
                piece.bad.setdefault(row, rule)

    def _placed(self, pieces: Generator[_Piece, None, None]) -> Generator[_Piece, None, None]:
        """Move the queries to the device, except queries with candidates, which are moved with their candidates."""
        with closing(pieces):
            for piece in pieces:
                if piece.candidates is None and not isinstance(piece.queries, Placed):
                    _make_harmless(piece)
                    piece.queries = self._corpus.placed(piece.queries)
                yield piece

    def _picked(self, piece: _Piece) -> _Picked:
        picks = self._picks(piece)
        unknown = 0
        if self.spec.unknown_ids == "skip" and piece.candidates is not None:
            unknown = int((piece.candidates.values < 0).sum())
        sample = self._sampled(piece, picks)
        ids = None
        if piece.own is not None and piece.candidates is not None:
            ids = pa.array(piece.candidates.values)
        return _Picked(piece.start, piece.query_ids, piece.bad, picks, sample, unknown, ids)

    def _sampled(self, piece: _Piece, picks: rk.Selection) -> Sample | None:
        if not self._approximate or isinstance(piece.queries, Placed):
            return None
        rows = sampled(piece.start, len(picks.lengths), self.rows)
        sample = Sample()
        rows = rows[[row + piece.start not in piece.bad for row in rows.tolist()]]
        sample.add(rows, piece.queries, piece.query_groups, picks.indices)
        return sample

    def _picks(self, piece: _Piece) -> rk.Selection:
        if not isinstance(piece.queries, Placed):
            _make_harmless(piece)
        runs = [slice(0, len(piece.queries))] if piece.candidates is None else piece.candidates.runs()
        picks = rk.Selection.joined([self._selection(piece, run) for run in runs])
        for query, error in (picks.errors or {}).items():
            row, reason = piece.start + query, error.partition(": ")[2]
            if self.spec.on_error == "raise":
                column = self._inputs.candidates if reason.startswith(("candidates ", "relevance ")) else None
                raise ValueError(f"select: {reason} in {(column or self._inputs.queries).where(row)}")
            piece.bad.setdefault(row, reason)
        return picks

    def _selection(self, piece: _Piece, run: slice) -> rk.Selection:
        """Select for some queries of a piece."""
        if piece.own is not None:
            return self._of_own(piece, piece.own, run)
        with nullcontext() if self._inputs.index is None else self._inputs.index.searched():
            request = self.spec.request.changed(
                queries=piece.queries if isinstance(piece.queries, Placed) else piece.queries[run],
                query_groups=None if piece.query_groups is None else piece.query_groups[run],
                candidates=None if piece.candidates is None else piece.candidates[run].padded(),
                relevance=None if piece.relevance is None else piece.relevance[run].padded(),
                on_error="skip",
            )
            return self._corpus.select(request, self._pool, self._index)

    def _of_own(self, piece: _Piece, own: Lists, run: slice) -> rk.Selection:
        """Select out of candidates with their vectors; picks are places among those of the whole piece."""
        lengths, begins = own.lengths[run], own.offsets[run.start : run.stop]
        width = max(1, int(lengths.max(initial=0)))
        if not lengths.any():
            return rk.Selection.empty(len(lengths), self.spec.request.k, self.spec.request.nearest).with_errors({})
        first, places = int(begins[0]), np.arange(width)
        candidates = np.where(places < lengths[:, None], (begins - first)[:, None] + places, -1)
        picks: rk.Selection = planned_run(retrieve.completed(self.spec.request).changed(
            queries=piece.queries[run],  # type: ignore[index]
            embeddings=own.values[first : int(own.offsets[run.stop])],
            candidates=candidates,
            relevance=None if piece.relevance is None else piece.relevance[run].padded(),
            metric=self._inputs.held["metric"],
            on_error="skip",
        ))  # fmt: skip
        errors = {q: _ROW.sub("", why) for q, why in (picks.errors or {}).items()}
        moved = np.where(picks.indices >= 0, picks.indices + first, -1)
        return picks._replace(indices=moved).with_errors(errors)

    def _result(self, picked: _Picked) -> ResultRows:
        """Turn padded rows into lists of the real picks, empty ones for the queries that are skipped."""
        start, picks = picked.start, picked.picks
        lengths = np.asarray(picks.lengths).copy()
        query_ids = pa.array(np.arange(start, start + len(lengths))) if picked.query_ids is None else picked.query_ids
        bad = np.array(sorted(picked.bad), np.int64)
        lengths[bad - start] = 0
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        if (lengths == picks.indices.shape[1]).all():
            flat, *values = (pa.array(np.ravel(column)) for column in picks.columns)
        else:
            real = np.arange(picks.indices.shape[1]) < lengths[:, None]
            flat, *values = (pa.array(column[real]) for column in picks.columns)
        kind = self.schema.field("ids").type.value_type
        names = self._corpus_ids if picked.ids is None else picked.ids
        ids = flat if names is None else names.take(flat).cast(kind)
        lists = (pa.ListArray.from_arrays(offsets, item) for item in (ids, *values))
        table, certified = [query_ids, *lists], 0
        short = int((lengths < self.spec.request.k).sum()) - len(bad)
        lacking = 0
        if picks.unmet is not None:
            lacking = sum(bool(each) and start + q not in picked.bad for q, each in enumerate(picks.unmet))
            unmet = [None if start + q in picked.bad else as_map(each) for q, each in enumerate(picks.unmet)]
            table.append(pa.array(unmet, UNMET))
        if self.schema.names[-1] == "certified":
            proven = np.asarray(picks.certified)
            certified, skipped = int(proven.sum()), np.isin(np.arange(start, start + len(lengths)), bad)
            table.append(pa.array(proven, mask=skipped))
        reasons = [picked.bad[row] for row in bad.tolist()]
        errors = [bad, query_ids.take(pa.array(bad - start)), reasons]
        return ResultRows(
            start,
            pa.table(table, schema=self.schema),
            pa.table(list(errors), schema=self._errors_schema),
            {"short": short, "certified": certified, "unknown": picked.unknown, "unmet": lacking},
            picked.sample,
        )


def result_schema(spec: JobSpec, inputs: Inputs) -> pa.Schema:
    """Return the columns of the result and their types."""

    def kind(column: Column | None) -> pa.DataType:
        return pa.int64() if column is None else next(iter(column.chunks(1, 0, 1, {}))).type

    values, of_ids = pa.list_(pa.float32()), kind(inputs.corpus_ids)
    if inputs.own is not None and inputs.candidates is not None:
        texts = next(iter(inputs.candidates.chunks(1, 0, 1, {}))).values.dtype == object
        of_ids = pa.string() if texts else pa.int64()
    return pa.schema(
        [
            ("query_id", kind(inputs.query_ids)),
            ("ids", pa.list_(of_ids)),
            ("scores", values),
            ("relevance", values),
            ("redundancy", values),
            *([("nearest", pa.list_(pa.int32()))] if spec.request.nearest else []),
            *([("unmet", UNMET)] if spec.request.min_per_group is not None else []),
            *([("certified", pa.bool_())] if inputs.certifies(spec) else []),
        ]
    )


def _runs(indices: Sequence[int]) -> Iterator[range]:
    """Yield the runs of consecutive numbers, in order."""
    for _, run in groupby(enumerate(sorted(set(indices))), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        yield range(numbers[0], numbers[-1] + 1)
