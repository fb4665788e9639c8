"""Blocks of queries, and the kernel call that answers one.

The kernels give a query the same bits in any batch. This module preserves that: every query keeps its own k, weights
and pool, and padding of one query never affects another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple

import numpy as np

from .. import _dispatch
from .._base import arrays as _arrays
from .._base import checks
from .._base.warn import muted
from ..corpus import certified, retrieve
from ..selection.parameters import TABLE
from ..selection.problem import Problem, Rows, Selection
from ..selection.request import Request
from ..selection.validate import PoolSizeWarning
from .corpora import Served
from .fields import ID_LISTS, LACKS, NUMBERS, OF_ASPECTS, OF_CALL, OF_CANDIDATES, PADDING, VECTORS
from .limits import FAILED, failed

_NUMBERS = ("k", *NUMBERS)  # one for all queries, or one for each
_ARRAYS = ("queries", "query_groups", *VECTORS, *OF_ASPECTS, *OF_CANDIDATES, *ID_LISTS)
_PLAIN = ("mmr", "vrsd")
_of_call = attrgetter("op", *OF_CALL)
# An empty list of these is none.
_optional = attrgetter(*(each for each in (*NUMBERS, *_ARRAYS) if each not in ("initial", "exclude")))
_lists = attrgetter(*_ARRAYS[1:])
# Work as a share of that of reading rows with a query: of a search, once and again for each query; of a pick, whose
# products with other items are left out where bounds allow it. Measured in searches for 4 to 256 queries, and with
# pools of 200 and 2,000 rows of 384, random and clustered, and up to 51 picks: within a factor of three of these.
_SEARCH, _OF_QUERY, _PICK, _PICKS = 2.5, 0.5, 0.75, {"mmr": 0.25, "dpp": 0.1, "ssd": 0.1}
# What the quick way to the kernels takes of the table, and what it leaves to the other, of what its rules have.
_OF_PLAIN = {"candidates", "lambda_d", "lambda_b", "relevance_scale", "metric", "nearest"}
_others = attrgetter("half_life", *(each.name for each in TABLE if each.name not in LACKS["mmr"] | _OF_PLAIN))

# The wording of the library's errors: "mmr: queries must be finite, got ...".
_ERROR = re.compile(r"\w+: (\w+) must")
_WIRE = {"queries": "query", "embeddings": "vectors"}
_TWICE = re.compile(r"(?<=, got )\d+(?= twice$)")
_ROW = re.compile(rf"(?<= in row )\d+|{_TWICE.pattern}")


class Cost(NamedTuple):
    """What a call of the kernels should cost: what it works through, in elements of rows, roughly.

    Attributes
    ----------
    kind : tuple
        What queries have in common of which an element takes equally long.
    shared, own : float
        Once for all queries, and for each of them.
    """

    kind: tuple[Any, ...]
    shared: float
    own: float


@dataclass(slots=True, eq=False)
class Block:
    """Queries with equal rules: a request is cut into blocks, and blocks of one key share a kernel call.

    The `Request` is what the library is asked for, with rows in the place of ids. Its lists are padded with -1, which
    may also stand between rows. A number is one of all queries, or (Q,) int64 (k), float64 (budget) or float32. If
    candidates come with their vectors, these are its embeddings, of all queries end to end, and rows are places among
    the query's own candidates; what they have beside them, groups too, are lists (Q, P).
    """

    served: Served
    request: Request
    size: int  # Q
    pool: int | None = None  # rows to retrieve; None: candidates, or else the whole corpus
    names: np.ndarray | None = None  # (Q, P) ids of what is given: int64, or objects; None: their places
    skipped: dict[int, list[Any]] | None = None  # unknown ids that were left out, by query
    positions: Sequence[int] = ()  # of its queries in their request
    group_names: list[str] | None = None  # the strings that groups of what is given are numbers of
    given: Rows | None = field(init=False)  # the candidates' own vectors; None: the corpus's
    cost: Cost = field(init=False)  # what a call of its queries should cost

    def __post_init__(self) -> None:
        rows: Rows = self.request.embeddings
        self.given = None if rows is self.served.corpus else rows
        self.cost = self._costs()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> Block:
        """Return some of the queries."""
        begin, end, _ = part.indices(self.size)
        request, given = self.request.take(part), self.given
        if given is not None:
            ends = np.concatenate([[0], (self.request.candidates >= 0).sum(axis=1).cumsum()])
            data = given.data[ends[begin] : ends[end]]
            request = request.changed(embeddings=Rows.of(data, given.dtype, given.metric, given.norm))
        names = None if self.names is None else self.names[part]
        skipped = {q - begin: ids for q, ids in (self.skipped or {}).items() if begin <= q < end}
        positions = self.positions[part]
        return Block(self.served, request, end - begin, self.pool, names, skipped, positions, self.group_names)

    @property
    def k(self) -> int | np.ndarray:
        k: int | np.ndarray = self.request.k
        return k

    @property
    def most(self) -> int:
        """The largest k."""
        k = self.k
        return int(k.max()) if isinstance(k, np.ndarray) else k

    @property
    def key(self) -> tuple[Any, ...]:
        """What queries must have in common to share a call.

        Pools may differ in width by less than a factor of two. Aspects must be as many: the sums of a padded list may
        have other bits.
        """
        request, rows = self.request, self.given
        width = -1 if request.candidates is None else request.candidates.shape[1].bit_length()
        aspects = 0 if request.aspects is None else request.aspects.shape[1]
        known = tuple(map(is_, _optional(request), repeat(None)))
        source = id(self.served) if rows is None else (rows.data.dtype, rows.data.shape[1], rows.metric)
        return source, self.pool, width, aspects, known, _of_call(request)

    @property
    def nbytes(self) -> int:
        """Bytes of the lists: padded, they may be many times those of the request."""
        given = self.given
        size: int = sum([each.nbytes for each in (self.names, *_lists(self.request)) if each is not None])
        return size if given is None else size + int(given.data.nbytes)

    def _costs(self) -> Cost:
        request, k = self.request, self.k
        dims = self.served.dims if self.given is None else self.given.data.shape[1]
        searched = given_width = 0
        if request.candidates is not None:
            width = given_width = request.candidates.shape[1]
        elif self.pool is None and request.op != "mmr":
            width = self.served.rows
        else:  # MMR searches a whole corpus about twice, for small pools
            width = self.pool or 0
            searched = self.served.rows * dims
        most, mean = (k, k) if isinstance(k, int) else (int(k.max()), float(k.mean()))
        picks = min(width, mean)
        per_pick = dims * _PICKS.get(request.op, _PICK)
        if request.op in ("coverage", "gist"):  # whose items meet the aspects, or each other, once
            per_pick = width if request.aspects is None else request.aspects.shape[1]
            dims *= per_pick
        own = (1 if self.pool else 2) * _OF_QUERY * searched
        pool = 0 if self.pool is None else self.pool.bit_length()
        kind = (self.served.name, request.op, given_width.bit_length(), pool, most.bit_length(), self.given is None)
        return Cost(kind, _SEARCH * searched, own + width * (dims + picks * per_pick) + 1)

    def ids_of(self, picked: np.ndarray) -> np.ndarray:
        """Return the ids of picks (Q, K): int64, or objects that are strings; of padding, any."""
        if self.given is None:
            return self.served.ids_of(picked)
        if self.names is None or not self.names.shape[1]:
            return picked
        named: np.ndarray = np.take_along_axis(self.names, picked, axis=1)
        return named

    def unmet_of(self, picks: Selection) -> list[dict[str, int]] | None:
        """Return what the groups of each query lack, by their names as text."""
        names = self.group_names
        return picks.unmet and [
            {str(group if names is None else names[group]): lacking for group, lacking in each.items()}
            for each in picks.unmet
        ]

    def shown(self, query: int) -> np.ndarray:
        """Return the ids of a query's ``initial``."""
        before = self.request.initial[query]
        before = before[before >= 0]
        if self.given is None:
            return self.served.ids_of(before)
        shown: np.ndarray = before if self.names is None else self.names[query][before]
        return shown

    def named(self, query: int, message: str) -> str:
        """Return an error of the library about a query, with the id that was sent twice in the place of its row."""
        if self.given is None:
            return with_id(message, self.served.ids_of)
        return message if self.names is None else with_id(message, self.names[query].__getitem__)


def with_id(message: str, ids_of: Callable[[np.ndarray], np.ndarray]) -> str:
    """Return an error of the library with the id that was sent twice in the place of its row."""
    return _TWICE.sub(lambda row: repr(ids_of(np.array([int(row[0])])).tolist()[0]), message)


def joined(blocks: Sequence[Block]) -> Block:
    """Return blocks of one key as one."""
    if len(blocks) == 1:
        return blocks[0]
    requests = [block.request for block in blocks]
    columns: dict[str, Any] = {}
    for name in _NUMBERS:
        parts = [getattr(each, name) for each in requests]
        if parts[0] is not None:
            columns[name] = _spread(parts, blocks)
    for name in _ARRAYS:
        parts = [getattr(each, name) for each in requests]
        if any(part is not None for part in parts):
            columns[name] = _stacked(name, parts, blocks)
    if (first := blocks[0].given) is not None:
        data = np.concatenate([each.embeddings.data for each in requests])
        columns["embeddings"] = Rows.of(data, first.dtype, first.metric, first.norm)
    return replace(blocks[0], size=sum(map(len, blocks)), request=requests[0].changed(**columns))


def _spread(parts: list[Any], blocks: Sequence[Block]) -> Any:
    """Return the number that all blocks have, or one for each query."""
    first = parts[0]
    if not isinstance(first, np.ndarray) and all(not isinstance(part, np.ndarray) and part == first for part in parts):
        return first
    arrays = (np.full(len(block), part) for part, block in zip(parts, blocks, strict=True))
    return np.concatenate(list(arrays))


def _stacked(name: str, parts: list[np.ndarray | None], blocks: Sequence[Block]) -> np.ndarray:
    """Return the columns of blocks one under the other; lists are padded to the longest."""
    if name not in PADDING:
        return np.concatenate([part for part in parts if part is not None])
    arrays = [part for part in parts if part is not None]
    width = max(array.shape[1] for array in arrays)
    if len(arrays) == len(parts) and all(array.shape[1] == width for array in arrays):
        return np.concatenate(arrays)
    whole = np.full((sum(map(len, blocks)), width), PADDING[name], arrays[0].dtype)
    begin = 0
    for part, block in zip(parts, blocks, strict=True):
        if part is not None:
            whole[begin : begin + len(block), : part.shape[1]] = part
        begin += len(block)
    return whole


# What a selection has of each query that is no item of the tuple.
_BESIDE = ("certified", "cost", "unmet")


def apart(block: Block, num_threads: int | None = None) -> Selection:
    """Answer in halves the queries of a block whose call failed; a query that fails alone gets the error `FAILED`."""
    picks, errors = _nothing(block), dict[int, str]()
    first: Exception | None = None
    waiting = [range(len(block))]
    while waiting:
        part = waiting.pop()
        rows = slice(part.start, part.stop)
        try:
            found = answer(block[rows], num_threads)
        except Exception as error:
            if len(part) > 1:
                waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
            else:
                first, errors[part[0]] = first or error, FAILED
            continue
        for whole, some in zip(picks.columns, found.columns, strict=True):
            whole[rows, : some.shape[1]] = some
        picks.lengths[rows] = found.lengths
        errors.update({part[q]: why for q, why in (found.errors or {}).items()})
        for name in _BESIDE:
            if (values := getattr(found, name)) is not None:  # then all other parts have it too
                if getattr(picks, name) is None:
                    setattr(picks, name, np.zeros(len(block), values.dtype))
                getattr(picks, name)[rows] = values
    if first is not None:
        failed(f"select: the kernel call of {list(errors.values()).count(FAILED)} queries", first)
    return picks.with_errors(errors)


def _nothing(block: Block) -> Selection:
    """Return no picks for each query of a block."""
    picks = Selection.empty(len(block), block.most, bool(block.request.nearest))
    picks.cost = None if block.request.budget is None else np.zeros(len(block))
    if (asked := block.request.min_per_group) is not None:
        minima = asked.items() if isinstance(asked, dict) else ()  # a number is of the groups that there are
        picks.unmet = [{group: least for group, least in minima if least} for _ in range(len(block))]
    return picks


def split(picks: Selection, blocks: Sequence[Block]) -> list[Selection]:
    """Return the selection of each block of a joint call, as wide as the largest k of the block."""
    if len(blocks) == 1:
        return [picks]
    parts, begin = [], 0
    for block in blocks:
        end = begin + len(block)
        errors = {q - begin: why for q, why in (picks.errors or {}).items() if begin <= q < end}
        columns = [each[begin:end, : block.most] for each in picks.columns]
        part = Selection.of_columns(columns, picks.lengths[begin:end]).with_errors(errors)
        for name in _BESIDE:
            if (values := getattr(picks, name)) is not None:
                setattr(part, name, values[begin:end])
        parts.append(part)
        begin = end
    return parts


def answer(block: Block, num_threads: int | None = None, on_error: str = "skip") -> Selection:
    """Answer the queries of a block in one call of the kernels.

    Every query gets the bits of ``served.corpus.select`` of that query alone, or of the rule's function with its own
    vectors. ``errors`` of the result has the reasons of queries that could not be answered.
    """
    request, given = block.request, block.given
    if given is None or (block.size == 1 and len(given.data)):
        return _answer(block, num_threads, on_error)
    counts = (request.candidates >= 0).sum(axis=1)
    begins = (np.cumsum(counts) - counts)[:, None]
    if not counts.any():
        return _nothing(block).with_errors({})
    lists = {name: each for name in ID_LISTS if (each := getattr(request, name)) is not None}
    moved: dict[str, Any] = {name: np.where(each >= 0, each + begins, -1) for name, each in lists.items()}
    picks = _answer(replace(block, request=request.changed(**moved)), num_threads, on_error)
    found = picks._replace(indices=np.where(picks.indices >= 0, picks.indices - begins, -1))
    if picks.errors:
        found.errors = {
            q: _ROW.sub(lambda row, begin=int(begins[q, 0]): str(int(row[0]) - begin), why)  # type: ignore[misc]
            for q, why in picks.errors.items()
        }
    return found


def _answer(block: Block, num_threads: int | None, on_error: str) -> Selection:
    problem = plain(block)
    if problem is not None:
        backend = _dispatch.choose(problem.op, "selection", "cpu", "auto")[1]
        try:
            plainly: Selection = getattr(backend, problem.op)(problem, checks.threads(problem.op, num_threads))
            return plainly
        except ValueError:  # of one of the queries
            if on_error == "raise":
                raise
    rows, errors, route = block.request.embeddings, None, None
    request = block.request.changed(num_threads=num_threads, on_error=on_error)
    if not isinstance(rows.data, np.ndarray):
        request = request.changed(**{name: placed(rows, getattr(request, name)) for name in (*_NUMBERS, *_ARRAYS)})
    if block.pool is not None:
        request, errors, route = retrieve.retrieve(rows, request, block.pool)
    with muted(PoolSizeWarning):  # a short list of candidates is a request like any other
        picks = retrieve.select(rows, _widened(request, block), None, None, route)
    retrieve.add_errors(picks, errors)
    if block.pool is None and block.request.candidates is None and rows.device == "cpu":
        certified.of_all_rows(picks)  # also of rows that `_widened` has named
    return picks if isinstance(picks.indices, np.ndarray) else picks.mapped(host)


def _widened(request: Request, block: Block) -> Request:
    """Return a request with more candidates than picks, so that a query reads the same rows alone and beside others."""
    rows, candidates = request.embeddings, request.candidates
    if request.groups is not None:  # of rows that are the candidates, end to end
        request = request.changed(groups=request.groups[candidates >= 0])
    if candidates is None and block.served.rows <= block.most:
        candidates = np.tile(np.arange(block.served.rows), (len(block), 1))
    if candidates is None or candidates.shape[1] > block.most:
        return request
    lacking = ((0, 0), (0, block.most + 1 - candidates.shape[1]))
    changes = {
        name: placed(rows, np.pad(host(values), lacking, constant_values=PADDING[name]))
        for name, values in (("candidates", candidates), *((each, getattr(request, each)) for each in OF_CANDIDATES))
        if values is not None and name != "groups"
    }
    return request.changed(**changes)


def plain(block: Block) -> Problem | None:
    """Return the problem of queries over candidates alone, which is what most requests are; None: it is another.

    The library's validation takes as long as the kernel does for one such query, and has nothing to find here: `rules`
    has checked all that it checks, and what the kernels find as they read is the same.
    """
    request = block.request
    rows, candidates, k, queries = request.embeddings, request.candidates, request.k, request.queries
    if (
        request.op not in _PLAIN
        or candidates is None
        or queries is None
        or not isinstance(rows.data, np.ndarray)
        or request.nearest
        or not all(map(is_, _others(request), repeat(None)))
    ):
        return None
    most = int(k.max()) if isinstance(k, np.ndarray) else k
    if candidates.shape[1] <= most:  # a pool of which nothing is left out
        return None
    mmr = request.op == "mmr"
    return Problem(
        request.op,
        rows,
        block.size,
        candidates.shape[1],
        most,
        0,
        queries,
        not mmr or rows.metric == "cosine",
        _weights(request.lambda_d if mmr else 1.0, block.size),
        _weights(request.lambda_b if mmr else 1.0, block.size),
        candidates,
        None,
        rows.bias if mmr else None,
        k if isinstance(k, np.ndarray) else None,
    )


def _weights(weight: float | np.ndarray, size: int) -> np.ndarray:
    if isinstance(weight, np.ndarray):
        return weight
    return _full(size, weight) if weight else np.full(size, weight, np.float32)  # -0.0 is equal to 0.0


@lru_cache(256)
def _full(size: int, weight: float) -> np.ndarray:
    """Return one weight for each query; nothing writes into it, and `np.full` takes as long as a few picks."""
    weights = np.full(size, weight, np.float32)
    weights.flags.writeable = False
    return weights


def argument_of(message: str) -> str | None:
    """Return which argument of a request an error of the library is about."""
    found = _ERROR.match(message)
    return _WIRE.get(found[1], found[1]) if found else None


def placed(rows: Rows, array: Any) -> Any:
    """Return an array where the rows are; a number, or none, as it is."""
    if not isinstance(array, np.ndarray) or isinstance(rows.data, np.ndarray):
        return array
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(rows.data.device)


def host(array: Any) -> np.ndarray:
    """Return an array on the host, wherever it is."""
    found: np.ndarray = np.asarray(_arrays.to_host(array))
    return found
