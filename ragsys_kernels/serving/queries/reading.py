"""Queries as callers write them in JSON: those that give the same fields are read together, column by column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pybase64

from ..asked import BLOCK, Asked
from ..corpora import Served
from ..fields import OF_ASPECTS, OF_CANDIDATES, VECTORS
from ..limits import Limits, invalid, shown
from .columns import Ids, add_block
from .cursors import decoded
from .own_vectors import Given
from .rules import FIELDS, MOST_DIMS, MOST_LISTS, SHARED, Hits, Rules, rules_of, wrong

_CODED = frozenset(("b64", "shape", "dtype"))  # fields of vectors in base64
_TELLING = SHARED | {"vectors", "aspects"}
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}


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
        ``common`` has an unknown field.
    """
    return read_by(rules_of(op, common, served, limits), queries)


def read_by(rules: Rules, queries: Sequence[Any]) -> Asked:
    """Return the blocks of queries by the rules of their request."""
    op, asked = rules.op, Asked(rules.served, len(queries), strings=rules.served.named)
    alike: dict[tuple[Any, ...], tuple[list[int], list[dict[str, Any]]]] = {}
    for i, query in enumerate(queries):
        if type(query) is not dict:
            asked.errors[i] = invalid(op, "queries", "be objects", shown(query))
            continue
        if None in query.values():
            query = _present(query)
        key = tuple(query)
        if not _TELLING.isdisjoint(query):
            key += _told(query)
        positions, group = alike.setdefault(key, ([], []))
        positions.append(i)
        group.append(query)
    for positions, group in alike.values():
        for begin in range(0, len(positions), BLOCK):
            part = slice(begin, begin + BLOCK)
            add_block(asked, rules, JsonColumns(rules, group[part]), positions[part])
    return asked


def _present(query: dict[str, Any]) -> dict[str, Any]:
    """Return a query without its null fields, which count as absent; except `pool`, for which null is a value."""
    return {name: x for name, x in query.items() if x is not None or name == "pool" or name not in FIELDS}


def _told(query: dict[str, Any]) -> tuple[Any, ...]:
    """Return what queries with the same fields must share beside these to be read together."""
    found = tuple(_word(query[name]) for name in query if name in SHARED)
    if "vectors" in query:
        found += _kind_of(query)
    return found + _number_of(query["aspects"]) if "aspects" in query else found


def _word(value: Any) -> Any:
    """Return the key of a field that the queries of a block share: its value, or the type of a value to refuse."""
    if type(value) is list:
        return tuple([(type(x), x) if isinstance(x, (int, float)) else type(x) for x in value])
    if type(value) is dict:
        return (dict, *value, _word([*value.values()]))
    return (type(value), value) if isinstance(value, (str, int, float)) else type(value)


class JsonColumns:
    """Queries with equal fields, as JSON has them; see `Columns`."""

    order: tuple[str, ...] = ("query", "query_id", *OF_CANDIDATES, *VECTORS, *OF_ASPECTS)

    def __init__(self, rules: Rules, queries: Sequence[dict[str, Any]]) -> None:
        self._rules, self._queries, n = rules, queries, len(queries)
        self.first: Mapping[str, Any] = queries[0]
        self._values: dict[str, list[Any]] = {name: [x] * n for name, x in rules.columns.items()}
        self._values.update({name: [query[name] for query in queries] for name in self.first})
        self.fields: Collection[str] = self._values

    def __getitem__(self, part: slice) -> JsonColumns:
        return JsonColumns(self._rules, self._queries[part])

    def given(self, metric: str) -> Given | None:
        values, found = self._values, None
        if "vectors" in values:
            found = self._given(metric, values["vectors"], values.pop("candidates", None))
        else:
            self._rules.has_corpus()
        if "cursor" in values:
            named = self._rules.served.named if found is None else found.named
            initial = values.get("initial", [[]] * len(self._queries))
            values["initial"] = self._shown_before(initial, values["cursor"], named)
        return found

    def ids(self, name: str, named: bool | None) -> tuple[Ids, list[int]]:
        return ids_of(self._rules, name, self._values[name], named)

    def hits(self, named: bool) -> list[Hits]:
        rules, given, found = self._rules, self._values["lists"], []
        for lists in given:
            if type(lists) is not list or not 1 <= len(lists) <= MOST_LISTS:
                got = len(lists) if type(lists) is list else shown(lists)
                raise rules.invalid("lists", f"be a list of 1 to {MOST_LISTS} objects", got)
            odd = [x for x in lists if type(x) is not dict or not {"ids"} <= x.keys() <= {"ids", "scores"}]
            if odd:
                raise rules.invalid("lists", "be objects with ids and scores", shown(odd[0]))
        for part in zip(*given, strict=True):
            scores = [x["scores"] for x in part if x.get("scores") is not None]
            flat = self._numbers("lists.scores", scores, "d") if scores else (None, [])
            found.append(Hits(*ids_of(rules, "lists.ids", [x["ids"] for x in part], named), *flat))
        return found

    def of_queries(self, name: str, named: bool | None) -> Ids:
        return _plain(self._rules, name, self._values[name], named)

    def numbers(self, name: str) -> Sequence[Any]:
        return self._values[name]

    def values(self, name: str) -> tuple[np.ndarray, list[int]]:
        return self._numbers(name, self._values[name], "d" if name == "costs" else "f")

    def _numbers(self, name: str, lists: list[Any], code: str) -> tuple[np.ndarray, list[int]]:
        if set(map(type, lists)) != {list}:
            raise self._rules.invalid(name, "be a list of numbers", wrong(lists, list))
        return self._rules.flat(name, _end_to_end(lists), code), list(map(len, lists))

    def aspects(self, name: str, dims: int) -> tuple[np.ndarray, list[int]]:
        rules, given = self._rules, self._values[name]
        if type(given[0]) is dict:
            vectors, lengths = self._coded(name, given)
            rules.has_dims(name, dims, vectors.shape[1])
            return vectors.astype(np.float32, copy=False), lengths
        rows = [row for x in given if type(x) is list for row in x]
        if set(map(type, given)) != {list} or not set(map(type, rows)) <= {list}:
            rule = "be a list of lists of numbers, or an object with b64, shape and dtype"
            raise rules.invalid(name, rule, wrong([*given, *rows], list))
        rules.has_dims(name, dims, *map(len, rows))
        return rules.flat(name, chain.from_iterable(rows), "f").reshape(-1, dims), list(map(len, given))

    def _given(self, metric: str, given: list[Any], candidates: list[Any] | None) -> Given:
        """Return the candidates that come with their vectors."""
        rules, (vectors, lengths) = self._rules, self._coded("vectors", given)
        if candidates is None:
            return Given(rules, metric, vectors, lengths)
        return Given(rules, metric, vectors, lengths, *ids_of(rules, "candidates", candidates, None))

    def _coded(self, name: str, given: list[Any]) -> tuple[np.ndarray, list[int]]:
        """Return lists of vectors, little-endian bytes in base64, end to end, and the length of each.

        `read` puts queries together whose vectors are alike in dtype and dimensions.
        """
        rules, parts, lengths = self._rules, [], []
        for x in given:
            if type(x) is not dict or not x.keys() <= _CODED:
                raise rules.invalid(name, "be an object with b64, shape and dtype", shown(x))
            rows, dims, dtype = _shape_of(x)
            if not dims:
                rule = f"be [{'A' if name in VECTORS else 'P'}, D] with D of 1 to {MOST_DIMS}"
                raise rules.invalid(f"{name}.shape", rule, _shown_shape(x.get("shape")))
            if dtype not in _DTYPES:
                raise rules.invalid(f"{name}.dtype", "be one of 'float32', 'float16'", shown(x.get("dtype")))
            part = _bytes_of(rules, name, x)
            size = rows * dims * _DTYPES[dtype].itemsize
            if len(part) != size:
                raise rules.invalid(name, f"be {size} bytes, as shape and dtype say", f"{len(part)} bytes")
            parts.append(part)
            lengths.append(rows)
        return _array(parts, dtype).reshape(-1, dims), lengths

    def vectors(self, dims: int) -> np.ndarray:
        rules, given = self._rules, self._values["query"]
        kind = type(given[0])
        if kind not in (list, dict) or set(map(type, given)) != {kind}:
            rule = "be a list of numbers, or an object with b64, shape and dtype"
            raise rules.invalid("query", rule, shown(given[0]))
        if kind is dict:
            return rules.finite("query", self._decoded(given, dims))
        rules.has_dims("query", dims, *map(len, given))
        vectors = rules.flat("query", _end_to_end(given), "f")
        return rules.finite("query", vectors.reshape(len(given), dims))

    def _decoded(self, given: list[dict[str, Any]], dims: int) -> np.ndarray:
        """Return vectors of little-endian bytes in base64."""
        rules, dtype = self._rules, given[0].get("dtype", "float32")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise rules.invalid("query.dtype", "be one of 'float32', 'float16'", shown(dtype))
        size, shapes, parts = dims * _DTYPES[dtype].itemsize, (None, [dims]), []
        for x in given:
            if x.get("dtype", "float32") != dtype:
                raise rules.invalid("query.dtype", f"be {dtype!r}", shown(x["dtype"]))
            if x.get("shape") not in shapes:
                raise rules.invalid("query.shape", f"be [{dims}]", _shown_shape(x["shape"]))
            part = _bytes_of(rules, "query", x)
            if len(part) != size or not x.keys() <= _CODED:
                raise rules.invalid("query", f"be {size} bytes, with shape and dtype alone", f"{len(part)} bytes")
            parts.append(part)
        return _array(parts, dtype).reshape(len(given), dims).astype(np.float32, copy=False)

    def _shown_before(self, initial: list[Any], cursors: list[Any], named: bool) -> list[Any]:
        """Return ``initial`` with the ids of the pages that cursors follow."""
        lists = []
        for ids, cursor in zip(initial, cursors, strict=True):
            before = decoded(cursor)
            if before is None:
                raise self._rules.invalid("cursor", "be one of an answer", shown(cursor))
            if type(ids) is not list:
                raise self._rules.invalid("initial", "be a list of ids", shown(ids))
            for name, each in (("initial", ids), ("cursor", before)):
                self._rules.within(name, [len(each)])
                _plain(self._rules, name, each, named)  # what is no id may have no hash
            known = set(ids)
            lists.append([*ids, *(x for x in before if x not in known)])
        return lists


def ids_of(rules: Rules, name: str, lists: list[Any], named: bool | None) -> tuple[Ids, list[int]]:
    """Return lists of ids end to end, and their lengths."""
    if set(map(type, lists)) != {list}:
        raise rules.invalid(name, f"be a list of {'groups' if name == 'groups' else 'ids'}", wrong(lists, list))
    return _plain(rules, name, _end_to_end(lists), named), list(map(len, lists))


def _plain(rules: Rules, name: str, ids: Any, named: bool | None) -> Ids:
    """Return ids as `Rules.rows` takes them."""
    if named is False:
        return rules.flat(name, ids, "q")
    names = list(ids)
    if named is None and not (names and type(names[0]) is str):
        return rules.flat(name, names, "q")
    if not set(map(type, names)) <= {str}:
        rule = "be all integers or all strings" if named is None else "be ids, strings in this corpus"
        raise rules.invalid(name, rule, wrong(names, str))
    return names


def _bytes_of(rules: Rules, name: str, given: dict[str, Any]) -> bytes:
    try:
        return pybase64.b64decode(given["b64"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise rules.invalid(f"{name}.b64", "be base64", shown(given.get("b64"))) from None


def _array(parts: list[bytes], dtype: str) -> np.ndarray:
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), _DTYPES[dtype])


def _shape_of(vectors: dict[str, Any]) -> tuple[int, int, str]:
    """Return the number of vectors, their dimensions and dtype as the query gives them; 0 and '' for wrong ones."""
    shape, dtype = vectors.get("shape"), vectors.get("dtype", "float32")
    if type(dtype) is not str:
        dtype = ""
    if type(shape) is not list or len(shape) != 2 or set(map(type, shape)) != {int}:
        return 0, 0, dtype
    rows, dims = shape
    return (rows, dims, dtype) if rows >= 0 and 1 <= dims <= MOST_DIMS else (0, 0, dtype)


def _shown_shape(shape: Any) -> str:
    whole = type(shape) is list and set(map(type, shape)) <= {int}
    return str(shape)[:100] if whole else shown(shape)


def _kind_of(query: dict[str, Any]) -> tuple[Any, ...]:
    """Return what queries with vectors must share to be read together: dimensions, dtype, whether ids are strings."""
    vectors, ids = query["vectors"], query.get("candidates")
    named = type(ids) is list and bool(ids) and type(ids[0]) is str
    return (*_shape_of(vectors)[1:], named) if type(vectors) is dict else ()


def _number_of(aspects: Any) -> tuple[Any, ...]:
    """Return what queries with aspects must share to be read together: how many, and how they are written."""
    if type(aspects) is dict:
        return _shape_of(aspects)
    return (len(aspects),) if type(aspects) is list else (type(aspects),)


def _end_to_end(lists: list[list[Any]]) -> Any:
    """Return what lists hold, one after the other."""
    return lists[0] if len(lists) == 1 else chain.from_iterable(lists)
