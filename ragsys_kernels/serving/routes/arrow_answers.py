"""The answers to queries as Arrow: columns for streams, Flight and Ray Serve, a row for each query.

``query_id`` (the column ``id`` of the queries, else the number of the row), ``ids``, ``scores``, ``relevance``,
``redundancy``, ``certified`` (null: not known), ``error``; with the rule ``nearest=true`` ``nearest``, with
``min_per_group`` ``unmet`` (a map), with ``unknown=skip`` ``skipped``; then ``code``, of the error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ..asked import Asked

ANSWER = ["query_id", "ids", "scores", "relevance", "redundancy", "certified", "error"]
_UNMET = pa.map_(pa.string(), pa.int64())
_NO_ROWS, _NO_FLOATS, _NO_LENGTHS = np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int32)
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_MARK = 0x2B5F_71C3_6D4E_9A81  # no number that a message has of its own


def batch_of(asked: Asked) -> pa.RecordBatch:
    """Return the picks of all queries in columns; a query with an error has empty lists."""
    picks, count = asked.picks, asked.count
    ids = arrow(np.arange(count), pa.int64()) if asked.ids is None else asked.ids
    order = [position for block in asked.blocks for position in block.positions]
    lengths = np.concatenate([*(picked.lengths for picked in picks), _NO_LENGTHS])
    offsets = np.zeros(len(order) + 1, np.int32)
    lengths.cumsum(out=offsets[1:])
    # Blocks may lack queries, or hold them in another order: lists are put into that of the request by their offsets.
    taken = None
    if order != list(range(count)):
        places = np.full(count, -1, np.int64)
        places[order] = np.arange(len(order))
        taken = pa.array(places, mask=places < 0)
    full = offsets[-1] == sum(picked.indices.size for picked in picks)
    rows = np.concatenate([*(_end_to_end(picked.indices, picked.lengths, full) for picked in picks), _NO_ROWS])
    floats = [_end_to_end(picked[i], picked.lengths, full) for i in (1, 2, 3) for picked in picks]
    if any(block.given is not None for block in asked.blocks):
        parts = [_end_to_end(b.ids_of(picked.indices), picked.lengths, full) for b, picked in asked.answered()]
        ids_of_picks = np.concatenate(parts)
    else:
        ids_of_picks = asked.served.ids_of(rows)
    flat = [pa.array(ids_of_picks.tolist(), pa.string()) if asked.strings else arrow(ids_of_picks, pa.int64())]
    values = arrow(np.concatenate([*floats, _NO_FLOATS]), pa.float32())
    flat += [values.slice(i * len(rows), len(rows)) for i in range(3)]
    begins = arrow(offsets, pa.int32())
    if asked.nearest:
        nearest = [_end_to_end(picked.nearest, picked.lengths, full) for picked in picks]
        flat.append(arrow(np.concatenate([*nearest, np.zeros(0, np.int32)]), pa.int32()))
    lists = [pa.ListArray.from_arrays(begins, each) for each in flat]
    if taken is not None:
        lists = [each.take(taken) for each in lists]
    errors = codes = pa.nulls(count, pa.string())
    if asked.errors:
        found = [asked.errors.get(i) for i in range(count)]
        errors = pa.array([None if each is None else str(each) for each in found], pa.string())
        codes = pa.array([None if each is None else each.code for each in found], pa.string())
    lists, more = lists[:4], lists[4:]
    columns = [ids, *lists, _certified(asked), errors, *more]
    if asked.unmet:
        unmet = asked.lacking()
        columns.append(pa.array([list(unmet[i].items()) if i in unmet else None for i in range(count)], _UNMET))
    if asked.skips:
        skipped = asked.skipped()
        columns.append(pa.array([skipped.get(i, []) for i in range(count)], lists[0].type))
    return pa.RecordBatch.from_arrays([*columns, codes], schema=_schema(ids.type, asked)[0])


def written(asked: Asked) -> list[bytes | memoryview]:
    """Return the parts of the answer as a stream."""
    arrays = _alike(asked)
    if arrays is None:
        answer = batch_of(asked)
        return _stream(answer, _schema(answer.schema.field(0).type, asked)[1])
    parts = _between(*arrays[0].shape)
    held = [array.reshape(-1).view(np.uint8).data for array in arrays]
    return [*(each for pair in zip(parts, held, strict=False) for each in pair), parts[-1]]


def _alike(asked: Asked) -> tuple[np.ndarray, ...] | None:
    """Return ids, scores, relevance and redundancy, each (Q, K), of one block whose answer has nothing else, or None.

    Of most requests every query has k picks, and no value is null.
    """
    if len(asked.blocks) != 1 or asked.ids is not None or asked.strings or asked.errors:
        return None
    block, picked = asked.blocks[0], asked.picks[0]
    if (
        asked.nearest
        or asked.unmet
        or asked.skips
        or picked.certified is not None
        or block.positions != range(asked.count)
    ):
        return None
    values = [np.ascontiguousarray(each, np.float32) for each in picked[1:4]]  # the relevance of no pick is NaN
    if any(np.logical_or.reduce(np.isnan(each), axis=None) for each in values):
        return None
    return np.ascontiguousarray(block.ids_of(picked.indices), np.int64), *values


@lru_cache(64)
def _between(count: int, width: int) -> list[bytes]:
    """Return what stands before, between and behind the arrays of `_alike` in a stream: it is the same in all of them.

    Arrow takes as long to write it as a dozen queries take.
    """
    arrays = [np.full(count * width, _MARK), *(np.full(count * width, x, np.float32) for x in (0.1, 0.2, 0.3))]
    begins = arrow(np.arange(0, count * width + 1, width, dtype=np.int32), pa.int32())
    kinds = (pa.int64(), *[pa.float32()] * 3)
    lists = [pa.ListArray.from_arrays(begins, arrow(*each)) for each in zip(arrays, kinds, strict=True)]
    nulls = [pa.nulls(count, kind) for kind in (pa.bool_(), pa.string(), pa.string())]
    schema, message = _schema_of(pa.int64(), False, False, False, False)
    columns = [arrow(np.arange(count), pa.int64()), *lists, *nulls]
    content = b"".join(_stream(pa.RecordBatch.from_arrays(columns, schema=schema), message))
    parts, begin = list[bytes](), 0
    for array in arrays:
        place = content.index(array.tobytes(), begin)
        parts.append(content[begin:place])
        begin = place + array.nbytes
    return [*parts, content[begin:]]


def _stream(batch: pa.RecordBatch, schema: pa.Buffer) -> list[bytes | memoryview]:
    return [memoryview(schema), memoryview(batch.serialize()), _END]  # a writer takes five times as long


def _schema(kind: pa.DataType, asked: Asked) -> tuple[pa.Schema, pa.Buffer]:
    return _schema_of(kind, asked.strings, asked.nearest, asked.unmet, asked.skips)


@lru_cache(64)
def _schema_of(
    kind: pa.DataType, strings: bool, nearest: bool, unmet: bool, skips: bool
) -> tuple[pa.Schema, pa.Buffer]:
    """Return the schema of answers to queries with names of a type, and its message."""
    ids, floats = pa.list_(pa.string() if strings else pa.int64()), pa.list_(pa.float32())
    fields = list(zip(ANSWER, (kind, ids, floats, floats, floats, pa.bool_(), pa.string()), strict=True))
    fields += [("nearest", pa.list_(pa.int32()))] * nearest + [("unmet", _UNMET)] * unmet + [("skipped", ids)] * skips
    schema = pa.schema([*fields, ("code", pa.string())])
    return schema, schema.serialize()


def _certified(asked: Asked) -> pa.Array:
    """Return which queries are proven, null where that is not known and where there is an error."""
    if all(picked.certified is None for picked in asked.picks):
        return pa.nulls(asked.count, pa.bool_())
    proven, known = np.zeros(asked.count, bool), np.zeros(asked.count, bool)
    for block, picked in asked.answered():
        if picked.certified is not None:
            proven[block.positions], known[block.positions] = picked.certified, True
    known[list(asked.errors)] = False
    bits = [pa.py_buffer(np.packbits(each, bitorder="little")) for each in (known, proven)]
    return pa.Array.from_buffers(pa.bool_(), asked.count, bits)


def arrow(array: np.ndarray, kind: Any) -> pa.Array:
    """Return numbers as an Arrow array, NaN as null. `pa.array` would import pandas, which takes seconds, to look."""
    nulls, count = None, 0
    if array.dtype.kind == "f" and (missing := np.isnan(array)).any():
        nulls, count = pa.py_buffer(np.packbits(~missing, bitorder="little")), int(missing.sum())
    return pa.Array.from_buffers(kind, len(array), [nulls, pa.py_buffer(np.ascontiguousarray(array))], count)


def _end_to_end(rows: np.ndarray, lengths: np.ndarray, full: bool) -> np.ndarray:
    """Return the first values of each row, one row after the other."""
    if full:
        return rows.reshape(-1)
    found: np.ndarray = rows[np.arange(rows.shape[1]) < lengths[:, None]]
    return found
