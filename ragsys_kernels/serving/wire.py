"""What the client writes and reads: NumPy arrays to JSON with base64, or to an Arrow stream, and back."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np

from .._base import times
from .fields import ID_LISTS, NUMBERS, OF_ASPECTS, OF_CALL, OF_CANDIDATES, TYPES, VECTORS

_JSON, _ARROW = "application/json", "application/vnd.apache.arrow.stream"
_BYTES = 8 << 20  # of the vectors of candidates in one request
_TYPES = {int, float, str, list, type(None)}
_WIRE = {"query_ids": "query_id"}
_VALUES = ("scores", "relevance", "redundancy")
_MOST_NUMBER = float(np.finfo(np.float64).max)


@dataclass(frozen=True, eq=False)
class Picks:
    """The picks of Q queries; K is the most that one has.

    Attributes
    ----------
    ids : (Q, K) int64, or objects that are strings
        In the order of the picks; -1, or None among strings, where a query has fewer.
    scores, relevance, redundancy : (Q, K) float32
        As `Selection` has them, with the same bits; NaN where there is no pick, and redundancy with VRSD.
    lengths : (Q,) int64
        Picks of each query.
    errors : dict of int to str
        Reasons of the queries that were not answered, by their number.
    certified : (Q,) bool, or None
        Whether the picks are proven to be those of the whole corpus; None where the server does not know it of all.
    skipped : dict of int to list
        Ids that the corpus does not have, of the queries that were answered without them (``unknown="skip"``).
    nearest : (Q, K) int32, or None
        With ``nearest=True``, as `Selection` has it: the column of the most similar earlier pick, -2 - j for the id in
        place j of ``initial``; -1 where there is none.
    unmet : list of dict, or None
        With ``min_per_group``: of each query, how many picks groups lack; those that lack none do not appear. Names are
        text, of integers their digits. Empty for a query that was not answered.
    """

    ids: np.ndarray
    scores: np.ndarray
    relevance: np.ndarray
    redundancy: np.ndarray
    lengths: np.ndarray
    errors: dict[int, str]
    certified: np.ndarray | None = None
    skipped: dict[int, list[Any]] = field(default_factory=dict)
    nearest: np.ndarray | None = None
    unmet: list[dict[str, int]] | None = None

    def __len__(self) -> int:
        return len(self.lengths)


class Queries:
    """The queries of one call. What JSON or Arrow cannot hold is refused here, and types; the server checks the rest.

    ``arguments`` are those of a selection by their names, None where one is not given.
    """

    def __init__(
        self,
        queries: Any,
        query_ids: Any,
        arguments: Mapping[str, Any],
        candidate_vectors: Any = None,
        hits: Sequence[tuple[Any, Any]] | None = None,
    ) -> None:
        arguments = {name: x for name, x in arguments.items() if x is not None}
        names = [name for name in (*ID_LISTS, *OF_CANDIDATES, *OF_ASPECTS) if name in arguments]
        self.vectors = None if queries is None else _vectors(queries)
        of_queries = {"query_ids": query_ids, "query_groups": arguments.get("query_groups")}
        self.of_queries = {name: _listed(name, x, "(Q,) ids") for name, x in of_queries.items() if x is not None}
        self.candidate_vectors = (
            None if candidate_vectors is None else _of_vectors("candidate_vectors", candidate_vectors)
        )
        # Lists of vectors: of candidates by their name on the wire.
        self.of_vectors = {name: _of_vectors(name, arguments[name]) for name in VECTORS if name in arguments}
        rows = {name: _rows(name, arguments[name]) for name in names}
        self.hits = None if hits is None else _hits(hits)
        counts = {
            name: len(x)
            for name, x in {
                "queries": self.vectors,
                **self.of_queries,
                **rows,
                **self.of_vectors,
                "candidate_vectors": self.candidate_vectors,
                "lists": self.hits,
            }.items()
            if x is not None
        }
        if not counts:
            raise ValueError(
                "select: queries must be given, or query_ids, or relevance of candidates, or lists, got none"
            )
        self.count = next(iter(counts.values()))
        for name, count in counts.items():
            if count != self.count:
                raise ValueError(f"select: {name} must have a row for each of {self.count} queries, got {count}")
        others = [x for x in (*map(rows.get, OF_CANDIDATES), self.candidate_vectors) if x is not None]
        for name in names:
            if name in ID_LISTS and not _is_plain(arguments[name]):
                _drop_padding(rows[name], others if name == "candidates" else ())
        self.values: dict[str, list[Any]] = {}  # lists of numbers
        for name in names:
            if name in (*ID_LISTS, "groups"):
                continue
            each, given = rows.pop(name), arguments[name]
            is_float = isinstance(given, np.ndarray) and given.ndim == 2 and given.dtype.char in "efd"
            self.values[name] = each if is_float else _numbers(name, each)
        self.lists = rows
        for name, ids in self.of_queries.items():
            _check_ids(name, [[x for x in ids if x is not None]])
        for name, ids in rows.items():
            if not _is_plain(arguments[name]):
                _check_ids(name, ids)
        named = rows.get("candidates", ())
        if candidate_vectors is not None and None in named and str in _kinds(named):
            rule = "be given for each query where they are strings of candidate_vectors"
            raise ValueError(f"select: candidates must {rule}, got None for query {named.index(None)}")
        self.common: dict[str, Any] = {name: one_value(name, x) for name, x in arguments.items() if name in OF_CALL}
        self.numbers: dict[str, list[Any]] = {}
        for name in ("k", *NUMBERS):
            if name not in arguments:
                continue
            array = _array(arguments[name])
            own: Any = array.tolist()
            if name == "budget":
                own = list(map(_limit, own)) if array.ndim == 1 else _limit(own)
            kinds = set(map(type, own if array.ndim else [own]))
            if array.shape not in ((), (self.count,)) or not kinds <= {int, float, type(None)}:
                got = f"{array.dtype} of shape {array.shape}" if array.ndim else repr(own)[:100]
                raise ValueError(f"select: {name} must be a number or ({self.count},) numbers, got {got}")
            if array.ndim:
                self.numbers[name] = own
            else:
                self.common[name] = own

    def parts(self, size: int) -> Iterator[slice]:
        sizes = [max(each.nbytes for each in lists if each is not None) for lists in self._vectors().values() if lists]
        if sizes:
            size = max(1, min(size, _BYTES // max(1, *sizes)))
        for begin in range(0, self.count, size):
            yield slice(begin, min(begin + size, self.count))

    def _vectors(self) -> dict[str, list[Any]]:
        """Return the lists of vectors by their names on the wire."""
        own = {} if self.candidate_vectors is None else {"vectors": self.candidate_vectors}
        return {**own, **self.of_vectors}

    def json(self, part: slice, common: dict[str, Any]) -> tuple[bytes, str]:
        """Return a part of the queries as a body of JSON, and its content type."""
        queries: list[dict[str, Any]] = [{} for _ in range(part.stop - part.start)]
        if self.vectors is not None:
            dtype, shape = str(self.vectors.dtype), [self.vectors.shape[1]]
            for query, vector in zip(queries, self.vectors[part], strict=True):
                text = base64.b64encode(vector.tobytes()).decode()
                query["query"] = {"b64": text, "shape": shape, "dtype": dtype}
        for name, lists in self._vectors().items():
            for query, rows in zip(queries, lists[part], strict=True):
                if rows is not None:
                    text = base64.b64encode(rows.tobytes()).decode()
                    query[name] = {"b64": text, "shape": list(rows.shape), "dtype": str(rows.dtype)}
        columns: dict[str, Sequence[Any]] = {**self.lists, **self.numbers, **self.values}
        if self.hits is not None:
            columns["lists"] = self.hits
        columns |= {_WIRE.get(name, name): ids for name, ids in self.of_queries.items()}
        for name, column in columns.items():
            for query, value in zip(queries, column[part], strict=True):
                query[name] = value
        content = {**self.common, **common, "queries": queries}
        try:
            text = json.dumps(content, allow_nan=False)
        except ValueError:
            text = json.dumps(_as_text(content))
        return text.encode(), _JSON

    def arrow(self, part: slice) -> tuple[bytes, str]:
        """Return a part of the queries as an Arrow stream, and its content type; `common` goes to the URL."""
        import io

        import pyarrow as pa

        columns: dict[str, Any] = {}
        if self.vectors is not None:
            flat = pa.array(np.ascontiguousarray(self.vectors[part]).ravel())
            columns["vector"] = pa.FixedSizeListArray.from_arrays(flat, self.vectors.shape[1])
        for name, ids in self.of_queries.items():
            columns[_WIRE.get(name, name)] = pa.array(ids[part])
        for name, lists in self.lists.items():
            columns[name] = pa.array(lists[part])
        if self.hits is not None:
            columns["lists"] = pa.array(self.hits[part])
        for name, lists in self._vectors().items():
            given = lists[part]
            rows = [each for each in given if each is not None]
            if not rows:
                continue
            flat = np.concatenate(rows)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])
            offsets = np.cumsum([0, *(0 if each is None else len(each) for each in given)], dtype=np.int32)
            lacking = pa.array([each is None for each in given])
            columns[name] = pa.ListArray.from_arrays(pa.array(offsets), vectors, mask=lacking)
        for name, values in self.values.items():
            columns[name] = pa.array(values[part], pa.list_(pa.float64() if name == "costs" else pa.float32()))
        for name, numbers in self.numbers.items():
            columns[name] = pa.array(numbers[part])
        table, out = pa.table(columns), io.BytesIO()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        return out.getvalue(), _ARROW


class Part(NamedTuple):
    """The answers to some queries: what they have, end to end, and how much of it is whose."""

    ids: np.ndarray  # int64, or objects that are strings
    values: list[np.ndarray]  # scores, relevance and redundancy
    lengths: np.ndarray
    errors: dict[int, str]
    proven: list[bool | None]
    skipped: dict[int, list[Any]]
    nearest: np.ndarray | None  # where that is asked for
    unmet: list[dict[str, int]] | None  # likewise


def read(body: bytes, content_type: str) -> Part:
    """Return what an answer says; `ValueError`, `KeyError` or `TypeError` where it is none."""
    part = _read_arrow(body) if content_type.startswith(_ARROW) else _read_json(body)
    others = () if part.nearest is None else (part.nearest,)
    if any(len(flat) != part.lengths.sum() for flat in (part.ids, *part.values, *others)):
        raise ValueError("lists of a query that differ in length")
    return part


def joined(parts: list[Part]) -> Picks:
    """Return the picks of the parts of a call as one."""
    lengths = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)])
    real = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
    flat = np.concatenate([np.zeros(0, np.int64), *(part.ids for part in parts)])
    ids = np.full(real.shape, None if flat.dtype == object else -1, flat.dtype)
    ids[real] = flat
    numbers = {name: np.full(real.shape, np.nan, np.float32) for name in _VALUES}
    for i, array in enumerate(numbers.values()):
        array[real] = np.concatenate([np.zeros(0, np.float32), *(part.values[i] for part in parts)])
    nearest = None
    if found := [part.nearest for part in parts if part.nearest is not None]:
        nearest = np.full(real.shape, -1, np.int32)
        nearest[real] = np.concatenate(found)
    unmet = None
    if any(part.unmet is not None for part in parts):  # none where no query of a part was answered
        unmet = [each for part in parts for each in part.unmet or [{}] * len(part.lengths)]
    proven: list[bool | None] = []
    errors: dict[int, str] = {}
    skipped: dict[int, list[Any]] = {}
    for part in parts:
        begin = len(proven)
        errors |= {begin + i: why for i, why in part.errors.items()}
        skipped |= {begin + i: ids for i, ids in part.skipped.items()}
        proven += part.proven
    certified = None
    if all(each is not None or i in errors for i, each in enumerate(proven)):
        certified = np.array([each is True for each in proven], bool)
    return Picks(
        ids,
        lengths=lengths,
        errors=errors,
        certified=certified,
        skipped=skipped,
        nearest=nearest,
        unmet=unmet,
        **numbers,
    )


def _read_json(body: bytes) -> Part:
    results = json.loads(body)["results"]
    lists = [result.get("ids", []) for result in results]
    ids = [x for each in lists for x in each]
    values = [[np.nan if x is None else x for each in results for x in each.get(name, [])] for name in _VALUES]
    nearest = [x for each in results for x in each.get("nearest", [])]
    asked = any("nearest" in result for result in results)
    return Part(
        np.array(ids, object if type(next(iter(ids), None)) is str else np.int64),
        [np.array(each, np.float32) for each in values],
        np.array(list(map(len, lists)), np.int64),
        {i: result["error"]["message"] for i, result in enumerate(results) if "error" in result},
        [result.get("certified") for result in results],
        {i: result["skipped"] for i, result in enumerate(results) if "skipped" in result},
        np.array(nearest, np.int32) if asked else None,
        [result.get("unmet", {}) for result in results] if any("unmet" in result for result in results) else None,
    )


def _read_arrow(body: bytes) -> Part:
    import pyarrow as pa

    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    table.validate(full=True)  # before anything follows its offsets
    names = ("ids", *_VALUES, *(["nearest"] if "nearest" in table.column_names else []))
    lists = [table.column(name).combine_chunks() for name in names]
    lists = [x.chunk(0) if isinstance(x, pa.ChunkedArray) else x for x in lists]
    ids, *values = (column.flatten().to_numpy(zero_copy_only=False) for column in lists)
    others: dict[str, list[Any]] = {"certified": [None] * table.num_rows, "skipped": []}
    others |= {name: table.column(name).to_pylist() for name in others if name in table.column_names}
    return Part(
        ids.astype(object if pa.types.is_string(lists[0].type.value_type) else np.int64, copy=False),
        values[: len(_VALUES)],
        np.array([n or 0 for n in lists[0].value_lengths().to_pylist()], np.int64),
        {i: why for i, why in enumerate(table.column("error").to_pylist()) if why is not None},
        others["certified"],
        {i: names for i, names in enumerate(others["skipped"]) if names},
        values[-1] if len(values) > len(_VALUES) else None,
        [dict(x or ()) for x in table.column("unmet").to_pylist()] if "unmet" in table.column_names else None,
    )


def _limit(value: Any) -> Any:
    """Return a budget; the largest number for inf, which JSON cannot hold."""
    return _MOST_NUMBER if value == math.inf else value


def one_value(name: str, given: Any) -> Any:
    """Return an argument that is one value for all queries as Python has it; the server checks its range."""
    option = OF_CALL.get(name)
    if option is not None and option.by_group and isinstance(given, Mapping):
        return _by_group(name, given)
    given = times.scalar("select", name, given)
    array = _array(given)
    value = given if array.ndim else array.tolist()
    what, types = TYPES["count"] if name == "pool" else ("a string", (str,))
    if option is not None:
        what, types = TYPES.get(option.kind) or (f"one of {', '.join(map(repr, option.choices))}", (str,))
        what += ", or a mapping of groups to integers" if option.by_group else ""
    if type(value) not in types:
        raise ValueError(f"select: {name} must be {what}, got {repr(value)[:100]}")
    if type(value) in (int, float) and not abs(value) <= _MOST_NUMBER:  # JSON has no NaN and no inf
        raise ValueError(f"select: {name} must be a finite number, got {repr(value)[:100]}")
    return value


def _by_group(name: str, given: Mapping[Any, Any]) -> dict[str, int]:
    """Return numbers of single groups as JSON has them, whose names are text."""
    found: dict[str, int] = {}
    for group, number in given.items():
        key, value = (x.item() if isinstance(x, np.generic) else x for x in (group, number))
        if type(key) not in (int, str) or type(value) is not int or str(key) in found:
            got = f"{group!r}: {number!r}{' beside an equal name' if str(key) in found else ''}"
            raise ValueError(
                f"select: {name} must be an integer for each group, by integers or strings, got {got[:100]}"
            )
        found[str(key)] = value
    return found


def _vectors(queries: Any) -> np.ndarray:
    """Return little-endian float32 or float16 vectors."""
    vectors = _array(queries)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise ValueError(f"select: queries must be (Q, D) numbers, got {vectors.dtype} of shape {vectors.shape}")
    return vectors.astype("<f2" if vectors.dtype == np.float16 else "<f4", copy=False)


def _of_vectors(name: str, given: Any) -> list[Any]:
    """Return little-endian float32 or float16 vectors, a list for each query; aspects may be None, as lists may."""
    rows = [
        None if each is None and name in VECTORS else _array(each)
        for each in (given if isinstance(given, Iterable) else [given])
    ]
    some = [each for each in rows if each is not None]
    for each in some:
        if each.ndim != 2 or each.dtype.kind not in "fiu" or each.shape[1] != some[0].shape[1]:
            got = f"{each.dtype} of shape {each.shape}"
            sizes = "A" if name in VECTORS else "P"
            raise ValueError(f"select: {name} must be (Q, {sizes}, D) numbers, or Q arrays (any, D), got {got}")
    dtype = "<f2" if all(each.dtype == np.float16 for each in some) else "<f4"
    return [None if each is None else each.astype(dtype, copy=False) for each in rows]


def _array(given: Any) -> np.ndarray:
    """Return an array; one of objects of rows of several lengths, which is refused as such."""
    try:
        return np.asarray(given)
    except ValueError:
        return np.asarray(given, object)


def _rows(name: str, given: Any) -> list[Any]:
    """Return Q lists, padding included; None in the place of a list stays: its query is sent without."""
    rule = "(Q, any) or Q lists"
    if isinstance(given, np.ndarray) and given.ndim == 2:
        listed: list[Any] = given.tolist()
        return listed
    return [None if row is None else _listed(name, row, rule) for row in _listed(name, given, rule)]


def _listed(name: str, given: Any, rule: str) -> list[Any]:
    """Return a list, an array, a column of a table or a tensor as a list of Python's values."""
    how = next((how for how in ("tolist", "to_pylist", "to_list") if hasattr(given, how)), None)
    found = given if how is None else getattr(given, how)()
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
        raise ValueError(f"select: {name} must be {rule}, got {repr(found)[:100]} in the place of a list")
    if type(found) is list and set(map(type, found)) <= _TYPES:  # most are, and need no copy
        return found
    return [x.item() if isinstance(x, np.generic) else x for x in found]


def _drop_padding(rows: list[Any], others: Iterable[list[Any]]) -> None:
    """Drop -1 and None from lists of ids, and what other columns have for them."""
    for q, ids in enumerate(rows):
        if ids is None or not (None in ids or -1 in ids):
            continue
        real = [x is not None and x != -1 for x in ids]
        rows[q] = list(compress(ids, real))
        for column in others:
            if (each := column[q]) is not None and len(each) == len(real):
                column[q] = each[real] if isinstance(each, np.ndarray) else list(compress(each, real))


def _hits(given: Any) -> list[list[dict[str, Any]]]:
    """Return, for each query, what retrievers found: pairs (ids, scores) as `fuse` takes them."""
    found: list[list[dict[str, Any]]] = []
    for pair in given if isinstance(given, (list, tuple)) and given else [given]:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or pair[0] is None:
            raise ValueError(f"select: lists must be a list of pairs (ids, scores), got {repr(pair)[:100]}")
        ids = [row or [] for row in _rows("lists", pair[0])]
        scores = [None] * len(ids) if pair[1] is None else _numbers("lists", _rows("lists", pair[1]))
        if len(scores) != len(ids) or (found and len(ids) != len(found)):
            got = sorted({len(ids), len(scores), len(found) or len(ids)})
            raise ValueError(f"select: lists must have a row for each query, got {got} rows")
        _drop_padding(ids, [scores])
        found = found or [[] for _ in ids]
        for each, x, numbers in zip(found, ids, scores, strict=True):
            each.append({"ids": x} if numbers is None else {"ids": x, "scores": numbers})
    _check_ids("lists", [hits["ids"] for each in found for hits in each])
    return found


def _is_plain(ids: Any) -> bool:
    """Return whether lists of ids are an array of integers without padding, in which nothing has to be looked for."""
    fits = isinstance(ids, np.ndarray) and ids.ndim == 2 and ids.dtype.kind in "iu" and ids.dtype != np.uint64
    return fits and not bool((ids == -1).any())


def _kinds(rows: Iterable[list[Any] | None]) -> set[type]:
    """Return the types of what lists hold."""
    return set(map(type, chain.from_iterable(row or () for row in rows)))


def _check_ids(name: str, rows: list[list[Any] | None]) -> None:
    """Refuse what is no id, and ids of two types, which a column of Arrow cannot hold."""
    kinds = _kinds(rows)
    low, high = -(2**63), 2**63 - 1
    if kinds <= {str} or (kinds == {int} and all(min(row) >= low and max(row) <= high for row in rows if row)):
        return
    every = chain.from_iterable(row or () for row in rows)
    odd = [x for x in every if type(x) is not str and not (type(x) is int and low <= x <= high)]
    got = repr(odd[0])[:100] if odd else "both"
    what = "" if "groups" in name else "ids, "
    raise ValueError(f"select: {name} must be {what}all integers of 64 bits or all strings, got {got}")


def _numbers(name: str, rows: list[list[Any] | None]) -> list[list[float] | None]:
    """Return lists of numbers as floats."""
    try:
        if _kinds(rows) <= {int, float}:
            return [None if row is None else list(map(float, row)) for row in rows]
    except OverflowError:
        pass
    odd = next((x for row in rows for x in row or () if type(x) not in (int, float)), "one beyond their range")
    raise ValueError(f"select: {name} must be numbers, got {repr(odd)[:100]}")


def _as_text(value: Any) -> Any:
    """Return what JSON can hold: it has no NaN and no inf, which as text are refused for their query alone."""
    if isinstance(value, dict):
        return {name: _as_text(x) for name, x in value.items()}
    if isinstance(value, list):
        return list(map(_as_text, value))
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
