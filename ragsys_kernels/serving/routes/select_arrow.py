"""``POST /v1/select`` with an Arrow stream: queries in columns, picks in the columns of offline jobs.

Columns in: ``vector`` (a list of floats of any kind) or ``query_id``; as wanted ``id``, ``candidates``, ``vectors``
(a list of vectors, those of the candidates), ``lists`` (of structs), ``k``, and the fields of JSON that are numbers or
lists, by their names. A null is no value, as in JSON. Rules for all queries are in the URL:
``/v1/select?corpus=docs&k=6&pool=all``. Those of a stream by Flight and of a handle of Ray Serve may have lists of ids
too, for all queries without one of their own. Columns out: `arrow_answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from ..._base.arrow_sizes import unpacked_bytes
from ...selection.parameters import BY_GROUP, BY_NAME
from ..asked import BLOCK, Asked
from ..corpora import Corpora, Served
from ..fields import ID_LISTS, NUMBERS, OF_ASPECTS, OF_CALL, OF_CANDIDATES, TYPES, VECTORS, wording
from ..http.messages import ARROW, Request, Response, url_parameters
from ..limits import Limits, RefusedError, invalid, shown
from ..queries.columns import Ids, add_block
from ..queries.own_vectors import Given
from ..queries.reading import ids_of
from ..queries.rules import FIELDS, MOST_LISTS, OF_URL, Hits, Rules, rules_of
from .arrow_answers import arrow, written

if TYPE_CHECKING:
    from ..service import Service

_COLUMNS = (
    *("id", "vector", "query_id", "candidates", "vectors", *OF_CANDIDATES, *ID_LISTS[1:], "k", *NUMBERS),
    *("query_groups", *VECTORS, *OF_ASPECTS, "lists"),
)
_OF_IDS = ("id", "query_id", "groups", "query_groups", "lists", *ID_LISTS)
_NO_ROWS = np.zeros(0, np.int64)
# Longer streams, and of more queries, are read and answered in a thread: they would hold up the event loop.
_LARGE, _MANY = 1 << 20, 1024
_DICTIONARIES = 64  # messages beside those of the queries
_LONGEST = 400  # bytes of a URL's rules that are kept for later requests
_WRONG = (pa.ArrowException, OSError, ValueError)
# Rules for all queries of a stream by Flight or of a handle.
_BESIDE = (*OF_URL, *ID_LISTS)
# Of what kind a rule in the URL is, where it is no text, and how each kind is read.
_KINDS_OF: dict[str, str] = {name: BY_NAME[name].kind for name in (*NUMBERS, *OF_CALL)}
_KINDS_OF |= {"k": "count", "pool": "count", "fusion_weights": "numbers", **dict.fromkeys(BY_GROUP, "quota")}


def quota_of(text: str) -> Any:
    """Read an integer, or an object of integers as JSON has it."""
    return orjson.loads(text) if text.startswith("{") else int(text)


_READ: dict[str, Callable[[str], Any]] = {
    "number": float,
    "count": int,
    "flag": {"true": True, "false": False}.__getitem__,
    "numbers": lambda text: list(map(float, text.split(","))),
    "quota": quota_of,
}


async def select_arrow(service: Service, request: Request) -> Response:
    """Answer a request."""
    deadline = request.deadline()
    common = rules_of_url(request.scope["query_string"])
    body = await request.body()
    request.stage("read")
    size = await service.beside(len(body) > _LARGE, unpacked, body, service.limits)
    request.unpacks_to(size)
    asked = await service.beside(len(body) + size > _LARGE, _parsed, body, common, service.corpora, service.limits)
    await service.answer(asked, request, deadline)
    content = await service.beside(asked.count > _MANY, written, asked)
    request.stage("write")
    return Response(content, asked.status, ARROW)


def rules_of_url(query: bytes) -> dict[str, Any]:
    """Return the rules in the query of a URL, as the JSON would have them."""
    return dict(_kept_rules(query) if len(query) <= _LONGEST else _rules_of_url(query))


def _rules_of_url(query: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in url_parameters("select", query).items():
        kind = _KINDS_OF.get(name, "choice")
        try:
            found[name] = None if (name, value) == ("pool", "all") else _READ.get(kind, str)(value)
        except (KeyError, ValueError):
            what = (
                "numbers with commas"
                if kind == "numbers"
                else wording(OF_CALL[name])
                if name in OF_CALL
                else TYPES[kind][0]
            )
            rule = f"be {what}{', or all' if name == 'pool' else ''}"
            raise invalid("select", name, rule, repr(value)[:100]) from None
    _known(found, OF_URL)
    return found


_kept_rules = lru_cache(256)(_rules_of_url)  # a client has the same in all its requests


def _known(rules: Mapping[str, Any], taken: Sequence[str]) -> None:
    """Refuse names that no rule has; those of fields that only a query can have are told by `_check_rules`."""
    for name in rules:
        if name not in FIELDS and name != "corpus":
            raise invalid("select", name[:100], f"be one of {', '.join(sorted(taken))}", shown(rules[name]))


def asked_of(table: pa.Table, common: dict[str, Any], served: Served, limits: Limits) -> Asked:
    """Return the blocks of queries in columns, and the error of each bad one by its row.

    Raises
    ------
    RefusedError
        A column or a rule that is wrong for all queries.
    """
    names = table.column_names
    check_columns(table.schema)
    table, size = spelled(table, limits)
    if not 1 <= table.num_rows <= limits.queries:
        raise invalid("select", "queries", f"be 1 to {limits.queries}", table.num_rows)
    _known(common, _BESIDE)
    rules = rules_of("select", common, served, limits)
    rules.fits(rules.shared({}).method, {})  # it is the rule of all queries
    columns = {name: _one(table.column(name)) for name in names}
    if "vectors" not in columns:
        rules.has_corpus()
    strings, shared = _strings(columns, served), rules.shared({})
    asked = Asked(served, table.num_rows, ids=columns.pop("id", None), strings=strings, skips=shared.skips)
    asked.nbytes, asked.nearest = size, bool(shared.options.get("nearest"))
    asked.unmet = "min_per_group" in shared.options
    _check_rules(rules)
    for given, positions in _alike(columns, table.num_rows):
        for begin in range(0, len(positions), BLOCK):
            part = {name: column.slice(begin, BLOCK) for name, column in given.items()}
            block = positions[begin : begin + BLOCK]
            add_block(asked, rules, ArrowColumns(rules, part, len(block), strings), block)
    return asked


def _alike(columns: dict[str, pa.Array], count: int) -> Iterator[tuple[dict[str, pa.Array], Sequence[int]]]:
    """Yield the columns of queries with nulls in the same columns and as many aspects, and their places."""
    holed = [name for name, column in columns.items() if column.null_count]
    aspects = [name for name in VECTORS if name in columns and _is_list(columns[name].type)]
    kinds = np.zeros(count if holed or aspects else 0, np.int64)
    for name in aspects:
        kinds = np.unique(np.array(columns[name].fill_null([]).value_lengths().to_pylist()), return_inverse=True)[1]
    if not holed and not kinds.any():
        yield columns, range(count)
        return
    for name in holed:
        kinds = 2 * kinds + np.array(columns[name].is_valid().to_pylist())
    for kind in np.unique(kinds).tolist():
        rows = np.flatnonzero(kinds == kind)
        lacking = {name for bit, name in enumerate(reversed(holed)) if not kind >> bit & 1}
        given = {name: _taken(name, column, rows) for name, column in columns.items() if name not in lacking}
        yield given, rows.tolist()


def _taken(name: str, column: pa.Array, rows: np.ndarray) -> pa.Array:
    try:
        return column.take(arrow(rows, pa.int64()))
    except pa.ArrowException:
        raise invalid("select", name, "be a column of numbers, strings or lists", str(column.type)[:100]) from None


def check_columns(schema: pa.Schema) -> None:
    """Refuse unknown columns, and types whose values would take more memory than their bytes."""
    names = schema.names
    for place, name in enumerate(names):
        if name not in _COLUMNS or name in names[:place]:
            got = "two of it" if name in names[:place] else "another column"
            raise invalid("select", name[:100], f"be one column of {', '.join(_COLUMNS)}", got)
        kind = schema.field(place).type
        if name in ("k", *NUMBERS) and not _is_number(kind):
            raise invalid("select", name, "be a column of numbers", str(kind)[:100])
        if name == "id" and not _is_plain(_usual(kind)):
            raise invalid("select", name, "be a column of plain values", str(kind)[:100])


def _is_number(kind: pa.DataType) -> bool:
    return any((pa.types.is_integer(kind), pa.types.is_floating(kind), pa.types.is_null(kind)))


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values of a type have bytes of their own."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _is_plain(kind.storage_type)
    checks = (types.is_primitive, types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(check(kind) for check in (*checks, types.is_fixed_size_binary, types.is_null))


def spelled(table: pa.Table, limits: Limits) -> tuple[pa.Table, int]:
    """Return a table whose ids stand in their columns themselves, and the bytes that this has added.

    Values by a dictionary and views of strings become numbers and strings: a few bytes of theirs may stand for many.
    """
    added = 0
    for place, name in enumerate(table.column_names):
        kind = table.schema.field(place).type
        usual = _usual(kind)
        if name not in _OF_IDS or usual is kind:
            continue
        column = _one(table.column(name))
        added += (size := _spelled_bytes(column))
        if size > limits.body_bytes:
            raise invalid("select", name, f"have at most {limits.body_bytes} bytes", f"values of {size}")
        try:
            table = table.set_column(place, name, column.cast(usual))
        except pa.ArrowException:
            raise invalid("select", name, "hold ids, integers or strings", str(kind)[:100]) from None
    return table, added


def _usual(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without dictionaries and views; itself where it has none."""
    if pa.types.is_primitive(kind):  # the usual case, before types are written out
        return kind
    is_dictionary, is_nested = pa.types.is_dictionary(kind), _is_list(kind)
    value = kind.value_type if is_dictionary or is_nested else None
    if is_dictionary and _is_plain(value) and not isinstance(value, pa.BaseExtensionType):
        return value
    if str(kind) == "string_view":  # which older versions do not know
        return pa.large_string()
    if is_nested and (usual := _usual(value)) is not value:
        return pa.large_list(usual)
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        made = [field.with_type(_usual(field.type)) for field in fields]
        return kind if made == fields else pa.struct(made)
    return kind


def _spelled_bytes(column: pa.Array) -> int:
    """Return what the values of a column take without dictionaries and views."""
    kind = column.type
    if _is_list(kind):
        return _spelled_bytes(column.values)
    if pa.types.is_struct(kind):
        each = (column.field(i) for i in range(kind.num_fields))
        return sum(_spelled_bytes(field) for field in each if _usual(field.type) != field.type)
    if pa.types.is_dictionary(kind):
        words = column.dictionary
        if not (_is_text(words.type) or pa.types.is_binary(words.type) or pa.types.is_large_binary(words.type)):
            return len(column) * -(-int(words.nbytes) // max(1, len(words)))
        import pyarrow.compute as pc

        total: int | None = pc.sum(pc.binary_length(words).take(column.indices)).as_py()
        return total or 0
    views = np.frombuffer(column.buffers()[1] or b"", np.int32).reshape(-1, 4)  # a length, then where it is
    return int(np.maximum(views[column.offset : column.offset + len(column), 0], 0).sum(dtype=np.int64))


def _strings(columns: dict[str, pa.Array], served: Served) -> bool:
    """Return whether ids of picks are strings."""
    if "vectors" not in columns:
        return served.named
    ids = columns.get("candidates")
    kind = None if ids is None or not _is_list(ids.type) else ids.type.value_type
    return kind is not None and _is_text(kind)


def _check_rules(rules: Rules) -> None:
    """Check the lists of ids among the rules, which hold for all queries without their own."""
    for name in rules.columns:
        if name not in ID_LISTS and name not in NUMBERS:
            raise rules.invalid(name, "be left out of the rules beside columns", "a value for all queries")
    if rules.served.nothing:  # there a query's ids are its own
        return
    skips = rules.shared({}).skips
    for name in ID_LISTS:
        if name in rules.columns:
            ids, lengths = ids_of(rules, name, [rules.columns[name]], rules.served.named)
            rules.id_rows(name, ids, lengths, {} if skips else None)


def unpacked(body: bytes, limits: Limits, what: str = "body") -> int:
    """Return the bytes that the compressed parts of a stream unpack to."""
    try:
        return unpacked_bytes(pa.ipc.MessageReader.open_stream(body), limits.queries + _DICTIONARIES)
    except _WRONG as error:
        raise _not_arrow(what, error) from None


def table_of(body: bytes, what: str = "body") -> pa.Table:
    """Return the queries of a stream, checked: the offsets of foreign bytes may lead anywhere."""
    try:
        with pa.ipc.open_stream(body) as reader:
            check_columns(reader.schema)
            table = reader.read_all()
        table.validate(full=True)
    except _WRONG as error:
        raise _not_arrow(what, error) from None
    return table


def _parsed(body: bytes, common: dict[str, Any], corpora: Corpora, limits: Limits) -> Asked:
    table = table_of(body)
    name = common.pop("corpus", None)
    served = corpora.without(name) if "vectors" in table.column_names else corpora.get(name)
    return asked_of(table, common, served, limits)


def _not_arrow(what: str, error: Exception) -> RefusedError:
    return RefusedError(422, f"select: {what} must be an Arrow stream: {str(error)[:200]}", what)


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


class ArrowColumns:
    """Some rows of a table of queries; see `Columns`."""

    order: tuple[str, ...] = (*OF_CANDIDATES, "vector", "query_id", *VECTORS, *OF_ASPECTS)
    first: Mapping[str, Any] = {}

    def __init__(self, rules: Rules, columns: dict[str, pa.Array], n: int, strings: bool) -> None:
        self._rules, self._columns, self._n = rules, columns, n
        self._strings = strings  # whether the ids of picks are strings: of all queries, since they are one column
        self.fields: Collection[str] = {*columns, *rules.columns}

    def __getitem__(self, part: slice) -> ArrowColumns:
        columns = {name: x[part] for name, x in self._columns.items()}
        return ArrowColumns(self._rules, columns, len(range(self._n)[part]), self._strings)

    def given(self, metric: str) -> Given | None:
        rules, found = self._rules, None
        if "vectors" in self._columns:
            found = self._given(metric)
        else:
            rules.has_corpus()
        if (rules.served.named if found is None else found.named) != self._strings:
            # A null here would give ids of another kind than the rest of the column of answers has.
            name, whose = ("vectors", "the corpus") if found is None else ("candidates", "places")
            kind = "strings" if self._strings else "integers"
            raise rules.invalid(name, f"be given: ids of the answers are {kind}, those of {whose} are not", "null")
        return found

    def ids(self, name: str, named: bool | None) -> tuple[Ids, list[int]]:
        if name not in self._columns:  # of all queries
            return ids_of(self._rules, name, [self._rules.columns[name]] * self._n, named)
        values, lengths = _lists(self._rules, name, self._columns[name])
        return _plain(self._rules, name, values, named), lengths

    def hits(self, named: bool) -> list[Hits]:
        rules, found = self._rules, []
        structs, counts = _lists(rules, "lists", self._columns["lists"])
        number, kind = counts[0], structs.type
        if set(counts) != {number} or not 1 <= number <= MOST_LISTS:
            raise rules.invalid("lists", f"be lists of 1 to {MOST_LISTS} structs", number)
        names = [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
        if sorted(names) not in (["ids"], ["ids", "scores"]):
            raise rules.invalid("lists", "be lists of structs with ids and scores", str(kind)[:100])
        for i in range(number):
            places = np.arange(i, len(structs), number)
            parts = {name: _taken(f"lists.{name}", structs.field(name), places) for name in names}
            flat: tuple[np.ndarray | None, list[int]] = None, []
            if "scores" in parts and parts["scores"].null_count < self._n:
                values, lengths = _lists(rules, "lists.scores", _whole(rules, "lists.scores", parts["scores"]))
                flat = _floats(rules, "lists.scores", values, np.float64), lengths
            values, lengths = _lists(rules, "lists.ids", _whole(rules, "lists.ids", parts["ids"]))
            found.append(Hits(_plain(rules, "lists.ids", values, named), lengths, *flat))
        return found

    def of_queries(self, name: str, named: bool | None) -> Ids:
        return _plain(self._rules, name, self._columns[name], named)

    def numbers(self, name: str) -> Sequence[Any]:
        if name not in self._columns:  # of all queries
            return [self._rules.columns[name]] * self._n
        found: list[Any] = self._columns[name].to_pylist()
        return found

    def values(self, name: str) -> tuple[np.ndarray, list[int]]:
        values, lengths = _lists(self._rules, name, self._columns[name])
        return _floats(self._rules, name, values, np.float64 if name == "costs" else np.float32), lengths

    def vectors(self, dims: int) -> np.ndarray:
        rules = self._rules
        values, lengths = _lists(rules, "vector", self._columns["vector"])
        rules.has_dims("vector", dims, *lengths)
        return rules.finite("vector", _floats(rules, "vector", values).reshape(-1, dims))

    def aspects(self, name: str, dims: int) -> tuple[np.ndarray, list[int]]:
        vectors, lengths = self._listed(name)
        if len(vectors):
            self._rules.has_dims(name, dims, vectors.shape[1])
        return vectors.astype(np.float32, copy=False), lengths

    def _given(self, metric: str) -> Given:
        """Return the candidates that come with their vectors, a list of vectors for each query."""
        rules, columns = self._rules, self._columns
        vectors, lengths = self._listed("vectors")
        if "candidates" in columns:
            ids, lengths_of_ids = _lists(rules, "candidates", columns["candidates"])
            plain = _plain(rules, "candidates", ids, _is_text(ids.type))
            return Given(rules, metric, vectors, lengths, plain, lengths_of_ids)
        if "candidates" in rules.columns:
            raise rules.invalid("candidates", "be a column, as vectors are", "a list for all queries")
        return Given(rules, metric, vectors, lengths)

    def _listed(self, name: str) -> tuple[np.ndarray, list[int]]:
        """Return lists of vectors end to end, float16 as such, and the length of each."""
        rules, columns = self._rules, self._columns
        rows, lengths = _lists(rules, name, columns[name])
        rules.within(name, lengths)
        if pa.types.is_fixed_size_list(rows.type):
            dims = rows.type.list_size  # before the values: of lists without any there may be any number
            values = rows.values.slice(rows.offset * dims, len(rows) * dims)
            if values.null_count:
                raise rules.invalid(name, "hold no null", "null")
        else:
            values, sizes = _lists(rules, name, rows)
            if not sizes:  # no vectors: the dimensions of the first query
                sizes = _lists(rules, "vector", columns["vector"])[1][:1] if "vector" in columns else [1]
            dims = sizes[0] if len(set(sizes)) < 2 else 0
        if not dims:
            raise rules.invalid(name, "hold vectors of one length, at least 1", "others")
        numbers = _numbers(values, np.float16) if values.type == pa.float16() else _floats(rules, name, values)
        return numbers.reshape(-1, dims), lengths


def _floats(rules: Rules, name: str, values: pa.Array, dtype: Any = np.float32) -> np.ndarray:
    is_whole = dtype is np.float64 and pa.types.is_integer(values.type)  # such as tokens
    if not (pa.types.is_floating(values.type) or is_whole):
        raise rules.invalid(name, "be lists of floats", values.type)
    return _numbers(values, dtype)


def _whole(rules: Rules, name: str, column: pa.Array) -> pa.Array:
    if column.null_count:
        raise rules.invalid(name, "hold no null", "null")
    return column


def _numbers(values: pa.Array, dtype: Any) -> np.ndarray:
    """Return values, none of them null, as an array: their own memory if that is aligned and of this type."""
    kind, size = np.dtype(values.type.to_pandas_dtype()), len(values)
    stored = np.frombuffer(values.buffers()[1] or b"", np.uint8)[values.offset * kind.itemsize :]
    numbers: np.ndarray = stored[: size * kind.itemsize].view(kind)
    if kind == dtype and numbers.flags.aligned:
        return numbers
    with np.errstate(over="ignore"):  # seen as inf
        return numbers.astype(dtype)


def _lists(rules: Rules, name: str, column: pa.Array) -> tuple[pa.Array, list[int]]:
    """Return the values of all lists of a column, none of which is null, and their lengths."""
    kind = column.type
    if not _is_list(kind):
        raise rules.invalid(name, "be a column of lists", kind)
    if pa.types.is_fixed_size_list(kind):
        lengths = [kind.list_size] * len(column)
        begin, end = column.offset * kind.list_size, (column.offset + len(column)) * kind.list_size
    else:
        offsets = _numbers(column.offsets, np.int64)
        lengths, begin, end = np.diff(offsets).tolist(), int(offsets[0]), int(offsets[-1])
    values = column.values.slice(begin, end - begin)  # `flatten` would copy them
    if values.null_count:
        raise rules.invalid(name, "hold no null", "null")
    return values, lengths


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _plain(rules: Rules, name: str, values: pa.Array, named: bool | None) -> Ids:
    """Return ids as `Rules.rows` takes them: int64, or a list of strings."""
    kind = values.type
    if pa.types.is_null(kind):  # of lists that are all empty
        return [] if named else _NO_ROWS
    if _is_text(kind):
        names: list[Any] = values.to_pylist()
        return names
    if kind == pa.uint64():
        try:
            values = values.cast(pa.int64())
        except pa.ArrowException:
            raise rules.invalid(name, "hold integers of 64 bits with a sign", "one beyond") from None
    if pa.types.is_integer(kind):
        return _numbers(values, np.int64)
    raise rules.invalid(name, "hold ids, integers or strings", kind)
