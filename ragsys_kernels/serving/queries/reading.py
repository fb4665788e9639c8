"""Queries as callers write them, JSON values, into blocks of columns; each bad query gets an error of its own.

Queries that give the same fields are read together, column by column. If a column has a bad value, the halves are read
by themselves, until the query is found: good requests cost no more for it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pybase64

from ..asked import BLOCK, Asked
from ..corpora import Served
from ..kernel import Block
from ..limits import Limits, RefusedError, invalid
from .cursors import decoded
from .own_vectors import Given
from .rules import SHARED, Rules, rules_of, shown, wrong

_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}

_from_base64 = functools.partial(pybase64.b64decode, validate=True)


def read(op: str, queries: Sequence[Any], common: dict[str, Any], served: Served, limits: Limits) -> Asked:
    """Return the blocks of a request's queries.

    Parameters
    ----------
    queries : sequence of dict
        Fields as in the JSON of ``/v1/select``.
    common : dict
        Fields of those queries that do not have them.

    Raises
    ------
    RefusedError
        ``common`` has a field that there is not.
    """
    asked = Asked(served, len(queries), strings=served.named)
    reader = Reader(rules_of(op, common, served, limits))
    alike: dict[tuple[Any, ...], list[int]] = {}
    for i, query in enumerate(queries):
        if type(query) is not dict:
            asked.errors[i] = invalid(op, "queries", "be objects", shown(query))
            continue
        key = tuple(query)
        if not SHARED.isdisjoint(query):
            key += tuple(repr(query[name]) for name in key if name in SHARED)
        if "vectors" in query:
            key += _kind_of(query["vectors"])[1:]
        alike.setdefault(key, []).append(i)
    for positions in alike.values():
        for begin in range(0, len(positions), BLOCK):
            part = positions[begin : begin + BLOCK]
            for block, of in reader.blocks([queries[i] for i in part], part, asked.errors):
                asked.add(block, of, limits)
    return asked


class Reader:
    """The columns of queries, from what JSON has for them."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def blocks(
        self, queries: list[dict[str, Any]], positions: list[int], errors: dict[int, RefusedError]
    ) -> Iterator[tuple[Block, list[int]]]:
        """Yield the blocks of queries with equal fields; put those that cannot be read into ``errors``."""
        try:
            yield self._block(queries), positions
            return
        except RefusedError as error:
            if len(queries) == 1:
                errors[positions[0]] = error.kept()
                return
        middle = len(queries) // 2
        yield from self.blocks(queries[:middle], positions[:middle], errors)
        yield from self.blocks(queries[middle:], positions[middle:], errors)

    def _block(self, queries: list[dict[str, Any]]) -> Block:
        rules, first, n = self._rules, queries[0], len(queries)
        rules.known(first)
        values: dict[str, list[Any]] = {name: [x] * n for name, x in rules.columns.items()}
        for name in first:
            given = [query[name] for query in queries]
            if None in given:  # null is no value
                given = [rules.common.get(name) if x is None else x for x in given]
            if given != [None] * n:
                values[name] = given
        columns: dict[str, Any] = {}
        shared = rules.shared(first)
        skipped: dict[int, dict[Any, None]] | None = {} if shared.skips else None
        own, dims, lengths = None, rules.served.dims, None
        if "vectors" in values:
            own = self._given(shared.metric, values["vectors"], values.pop("candidates", None))
            dims, lengths = own.rows.data.shape[1], own.lengths
        else:
            rules.has_corpus()
        if "cursor" in values:
            named = rules.served.named if own is None else own.named
            values["initial"] = self._shown_before(values.get("initial", [None] * n), values["cursor"], named)
        for name in ("candidates", "initial", "allowed", "exclude"):
            if name in values:
                columns[name] = self.ids(name, values[name], skipped, own)
        if "query" in values:
            columns["vectors"] = self._vectors(values["query"], dims)
        if "query_id" in values and own is None:
            columns["query_rows"] = rules.rows(
                "query_id", self._plain("query_id", values["query_id"], rules.served.named)
            )
        elif "query_id" in values:
            raise rules.invalid("query_id", "be left out with vectors", "both")
        if "relevance" in values:
            if own is None and "candidates" in values:
                lengths = [0 if x is None else len(x) for x in values["candidates"]]
            columns["relevance"] = self._relevance(values["relevance"], lengths)
        if own is not None:
            columns |= {"given": own.rows, "names": own.names, "candidates": own.candidates}
        return rules.block(n, first, values, skipped=skipped, **columns)

    def _given(self, metric: str, given: list[Any], candidates: list[Any] | None) -> Given:
        """Return the candidates that come with their vectors, little-endian bytes in base64."""
        rules, parts, lengths, kinds = self._rules, [], [], set()
        for x in given:
            if type(x) is not dict or not x.keys() <= {"b64", "shape", "dtype"}:
                raise rules.invalid("vectors", "be an object with b64, shape and dtype", shown(x))
            rows, dtype, dims = _kind_of(x)
            if not dims:
                raise rules.invalid("vectors.shape", "be [P, D] with D of at least 1", str(x.get("shape"))[:100])
            if dtype not in _DTYPES:
                raise rules.invalid("vectors.dtype", "be one of 'float32', 'float16'", shown(x.get("dtype")))
            try:
                part = _from_base64(x["b64"])
            except (KeyError, TypeError, ValueError):
                raise rules.invalid("vectors.b64", "be base64", shown(x.get("b64"))) from None
            size = rows * dims * _DTYPES[dtype].itemsize
            if len(part) != size:
                raise rules.invalid("vectors", f"be {size} bytes, as shape and dtype say", f"{len(part)} bytes")
            parts.append(part)
            lengths.append(rows)
            kinds.add((dtype, dims))
        if len(kinds) > 1:
            raise rules.invalid("vectors", "be alike in dtype and dimensions", "others")
        flat: np.ndarray = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), _DTYPES[dtype])
        vectors = flat.reshape(-1, dims)
        if candidates is None or candidates == [None] * len(given):
            return Given(rules, metric, vectors, lengths)
        if set(map(type, candidates)) != {list}:
            raise rules.invalid("candidates", "be a list of ids", wrong(candidates, list))
        named = any(type(ids[0]) is str for ids in candidates if ids)
        ids = self._plain("candidates", _end_to_end(candidates), named)
        return Given(rules, metric, vectors, lengths, ids, list(map(len, candidates)))

    def _vectors(self, given: list[Any], dims: int) -> np.ndarray:
        rules, kind = self._rules, type(given[0])
        if kind not in (list, dict) or set(map(type, given)) != {kind}:
            rule = "be a list of numbers, or an object with b64, shape and dtype"
            raise rules.invalid("query", rule, shown(given[0]))
        if kind is dict:
            return rules.finite("query", self._decoded(given, dims))
        if any(len(x) != dims for x in given):
            got = next(len(x) for x in given if len(x) != dims)
            raise rules.invalid("query", f"have the corpus's {dims} dimensions, or those of its vectors", got)
        vectors = rules.numbers("query", _end_to_end(given), "f")
        return rules.finite("query", vectors.reshape(len(given), dims))

    def _decoded(self, given: list[dict[str, Any]], dims: int) -> np.ndarray:
        """Return vectors of little-endian bytes in base64."""
        rules, dtype = self._rules, given[0].get("dtype", "float32")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise rules.invalid("query.dtype", "be one of 'float32', 'float16'", shown(dtype))
        size, parts = dims * _DTYPES[dtype].itemsize, []
        for x in given:
            if x.get("dtype", "float32") != dtype:
                raise rules.invalid("query.dtype", f"be {dtype!r}", shown(x["dtype"]))
            if x.get("shape") not in (None, [dims]):
                raise rules.invalid("query.shape", f"be [{dims}]", str(x["shape"])[:100])
            try:
                part = _from_base64(x["b64"])
            except (KeyError, TypeError, ValueError):
                raise rules.invalid("query.b64", "be base64", shown(x.get("b64"))) from None
            if len(part) != size or len(x) > 3 or not x.keys() <= {"b64", "shape", "dtype"}:
                raise rules.invalid("query", f"be {size} bytes, with shape and dtype alone", f"{len(part)} bytes")
            parts.append(part)
        flat: np.ndarray = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), _DTYPES[dtype])
        return flat.reshape(len(given), dims).astype(np.float32, copy=False)

    def ids(
        self, name: str, lists: list[Any], skipped: dict[int, dict[Any, None]] | None = None, own: Given | None = None
    ) -> np.ndarray:
        """Return the rows of lists of ids, padded with -1; see `Rules.id_rows`."""
        if None in lists:
            lists = [[] if x is None else x for x in lists]
        if set(map(type, lists)) != {list}:
            raise self._rules.invalid(name, "be a list of ids", wrong(lists, list))
        flat = self._plain(name, _end_to_end(lists), self._rules.served.named if own is None else own.named)
        return (self._rules if own is None else own).id_rows(name, flat, list(map(len, lists)), skipped)

    def _plain(self, name: str, ids: Any, named: bool) -> np.ndarray | list[Any]:
        """Return ids as `Rules.rows` takes them."""
        if not named:
            return self._rules.numbers(name, ids, "q")
        names = list(ids)
        if not set(map(type, names)) <= {str}:
            raise self._rules.invalid(name, "be ids, strings in this corpus", wrong(names, str))
        return names

    def _relevance(self, lists: list[Any], lengths: list[int] | None) -> np.ndarray:
        if set(map(type, lists)) != {list}:
            raise self._rules.invalid("relevance", "be a list of numbers", wrong(lists, list))
        values = self._rules.numbers("relevance", _end_to_end(lists), "f")
        return self._rules.scores(values, list(map(len, lists)), lengths)

    def _shown_before(self, initial: list[Any], cursors: list[Any], named: bool) -> list[Any]:
        """Return ``initial`` with the ids of the pages that cursors follow."""
        lists = []
        for ids, cursor in zip(initial, cursors, strict=True):
            before = [] if cursor is None else decoded(cursor)
            if before is None:
                raise self._rules.invalid("cursor", "be one of an answer", shown(cursor))
            ids = [] if ids is None else ids
            if type(ids) is not list:
                raise self._rules.invalid("initial", "be a list of ids", shown(ids))
            for name, each in (("initial", ids), ("cursor", before)):
                self._rules.within(name, [len(each)])
                self._plain(name, each, named)  # what is no id may have no hash
            known = set(ids)
            lists.append([*ids, *(x for x in before if x not in known)])
        return lists


def _kind_of(vectors: Any) -> tuple[int, str, int]:
    """Return the number of vectors, their dtype and dimensions, as they are said to be; 0 and '' for what is wrong."""
    if type(vectors) is not dict:
        return 0, "", 0
    shape, dtype = vectors.get("shape"), vectors.get("dtype", "float32")
    if type(dtype) is not str:
        dtype = ""
    if type(shape) is not list or len(shape) != 2 or set(map(type, shape)) != {int} or shape[0] < 0 or shape[1] < 1:
        return 0, dtype, 0
    return shape[0], dtype, shape[1]


def _end_to_end(lists: list[list[Any]]) -> Any:
    """Return what lists hold, one after the other."""
    return lists[0] if len(lists) == 1 else chain.from_iterable(lists)
