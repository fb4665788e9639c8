"""Blocks of queries, and the kernel call that answers one.

The kernels give a query the same bits in any batch. This module preserves that: every query keeps its own k, weights
and pool, and padding of one query never affects another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import _dispatch
from .._base import arrays as _arrays
from .._base import checks
from .._base.warn import muted
from ..corpus import certified, retrieve
from ..selection.parameters import DEFAULTS
from ..selection.problem import Problem, Rows, Selection
from ..selection.request import Request
from ..selection.run import planned_run
from ..selection.validate import PoolSizeWarning
from .corpora import Served
from .limits import FAILED, failed

_SCALARS = ("k", "lambda_d", "lambda_b", "budget", "max_similarity")
_LISTS = ("candidates", "initial", "allowed", "exclude")
# Numbers of each candidate.
OF_CANDIDATES = ("relevance", "quality")
_COLUMNS = (*_SCALARS, "vectors", *OF_CANDIDATES, *_LISTS)
_PLAIN = ("mmr", "vrsd")
# What stands where a list is shorter than another query's.
PADDING = {**dict.fromkeys(_LISTS, -1), "relevance": 0.0, "quality": 1.0}

# The wording of the library's errors: "mmr: queries must be finite, got ...".
_ERROR = re.compile(r"\w+: (\w+) must")
_WIRE = {"queries": "query", "embeddings": "vectors"}
_TWICE = re.compile(r"(?<=, got )\d+(?= twice$)")
_ROW = re.compile(rf"(?<= in row )\d+|{_TWICE.pattern}")


@dataclass(slots=True, eq=False)
class Block:
    """Queries with equal rules, in columns: a request is cut into blocks, and blocks of one key share a kernel call.

    Rows stand for ids here; lists of them are padded with -1, which may also stand between rows. With ``given`` they
    are places among the query's own candidates.
    """

    served: Served
    method: str  # one of METHODS
    size: int  # Q
    k: int | np.ndarray  # one for all queries, or (Q,) int64
    lambda_d: float | np.ndarray  # or (Q,) float32; vrsd and sift have no use for it, nor for lambda_b
    lambda_b: float | np.ndarray
    vectors: np.ndarray | None = None  # (Q, D) float32; None: relevance is all that MMR needs
    pool: int | None = None  # rows to retrieve; None: candidates, or else the whole corpus
    candidates: np.ndarray | None = None  # (Q, P) int64
    relevance: np.ndarray | None = None  # (Q, P) float32
    quality: np.ndarray | None = None  # (Q, P) float32, of dpp
    initial: np.ndarray | None = None  # (Q, S) int64
    allowed: np.ndarray | None = None  # (Q, A) int64: nothing else may be picked
    exclude: np.ndarray | None = None  # (Q, E) int64
    max_per_group: int | None = None
    budget: float | np.ndarray | None = None  # or (Q,) float64: what the picks may cost, by the corpus's costs
    max_similarity: float | np.ndarray | None = None  # or (Q,) float32
    given: Rows | None = None  # the candidates' own vectors, those of all queries end to end; None: the corpus's
    names: np.ndarray | None = None  # (Q, P) ids of what is given: int64, or objects; None: their places
    skipped: dict[int, list[Any]] | None = None  # unknown ids that were left out, by query
    relevance_scale: str = "as-is"
    options: tuple[tuple[str, Any], ...] = ()  # of the rule alone, by their names
    positions: Sequence[int] = ()  # of its queries in their request

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> Block:
        """Return some of the queries."""
        columns: dict[str, Any] = {
            name: x[part] for name in (*_COLUMNS, "names") if isinstance(x := getattr(self, name), np.ndarray)
        }
        begin, end, _ = part.indices(self.size)
        if self.given is not None:
            assert self.candidates is not None
            of_query = np.repeat(np.arange(self.size), (self.candidates >= 0).sum(axis=1))
            data = self.given.data[np.searchsorted(of_query, begin) : np.searchsorted(of_query, end)]
            columns["given"] = Rows.of(data, self.given.dtype, self.given.metric, self.given.norm)
        skipped = {q - begin: ids for q, ids in (self.skipped or {}).items() if begin <= q < end}
        return replace(self, size=end - begin, skipped=skipped, positions=self.positions[part], **columns)

    @property
    def most(self) -> int:
        """The largest k."""
        return int(self.k.max()) if isinstance(self.k, np.ndarray) else self.k

    @property
    def key(self) -> tuple[Any, ...]:
        """What queries must have in common to share a call. Pools may differ in width by less than a factor of two."""
        width = -1 if self.candidates is None else self.candidates.shape[1].bit_length()
        optional = (self.vectors, self.relevance, self.quality, self.allowed, self.budget, self.max_similarity)
        known = tuple(each is None for each in optional)
        rows = self.given
        source = id(self.served) if rows is None else (rows.data.dtype, rows.data.shape[1], rows.metric)
        return source, self.method, self.max_per_group, self.pool, known, width, self.relevance_scale, self.options

    @property
    def rows(self) -> Rows:
        """What the picks are made of."""
        return self.served.corpus if self.given is None else self.given

    @property
    def nbytes(self) -> int:
        """Bytes of the lists: padded, they may be many times those of the request."""
        lists = (self.candidates, self.relevance, self.quality, self.initial, self.allowed, self.exclude, self.names)
        size = sum([each.nbytes for each in lists if each is not None])
        return size if self.given is None else size + int(self.given.data.nbytes)

    @property
    def work(self) -> int:
        """Elements of rows that a call reads, roughly."""
        width = self.served.rows if self.candidates is None else self.candidates.shape[1]
        return len(self) * width * (self.served.dims if self.given is None else int(self.given.data.shape[1]))

    def ids_of(self, picked: np.ndarray) -> np.ndarray:
        """Return the ids of picks (Q, K): int64, or objects that are strings; of padding, any."""
        if self.given is None:
            return self.served.ids_of(picked)
        if self.names is None or not self.names.shape[1]:
            return picked
        named: np.ndarray = np.take_along_axis(self.names, picked, axis=1)
        return named

    def shown(self, query: int) -> np.ndarray:
        """Return the ids of a query's ``initial``."""
        assert self.initial is not None
        before = self.initial[query]
        before = before[before >= 0]
        if self.given is None:
            return self.served.ids_of(before)
        shown: np.ndarray = before if self.names is None else self.names[query][before]
        return shown

    def named(self, query: int, message: str) -> str:
        """Return an error of the library about a query, with the id that was sent twice in the place of its row."""

        def id_of(row: re.Match[str]) -> str:
            rows = np.array([int(row[0])])
            if self.given is None:
                rows = self.served.ids_of(rows)
            elif self.names is not None:
                rows = self.names[query][rows]
            return repr(rows.tolist()[0])

        return _TWICE.sub(id_of, message)


def joined(blocks: Sequence[Block]) -> Block:
    """Return blocks of one key as one."""
    if len(blocks) == 1:
        return blocks[0]
    columns: dict[str, Any] = {"size": sum(map(len, blocks))}
    for name in _COLUMNS:
        parts = [getattr(block, name) for block in blocks]
        if name in _SCALARS and parts[0] is not None:
            columns[name] = _spread(parts, blocks)
        elif any(part is not None for part in parts):
            columns[name] = _stacked(name, parts, blocks)
    if (first := blocks[0].given) is not None:
        data = np.concatenate([block.given.data for block in blocks if block.given is not None])
        columns["given"] = Rows.of(data, first.dtype, first.metric, first.norm)
    return replace(blocks[0], **columns)


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


def apart(block: Block, num_threads: int | None = None) -> Selection:
    """Answer in halves the queries of a block whose call failed; a query that fails alone gets the error `FAILED`."""
    picks, errors = Selection.empty(len(block), block.most), dict[int, str]()
    first: Exception | None = None
    proven: np.ndarray | None = None
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
        for whole, some in zip(picks[:-1], found[:-1], strict=True):
            whole[rows, : some.shape[1]] = some
        picks.lengths[rows] = found.lengths
        errors.update({part[q]: why for q, why in (found.errors or {}).items()})
        if found.certified is not None:  # then all other parts have it too
            proven = np.zeros(len(block), bool) if proven is None else proven
            proven[rows] = found.certified
    if first is not None:
        failed(f"select: the kernel call of {list(errors.values()).count(FAILED)} queries", first)
    picks.certified = proven
    return picks.with_errors(errors)


def split(picks: Selection, blocks: Sequence[Block]) -> list[Selection]:
    """Return the selection of each block of a joint call, as wide as the largest k of the block."""
    if len(blocks) == 1:
        return [picks]
    parts, begin = [], 0
    for block in blocks:
        end = begin + len(block)
        errors = {q - begin: why for q, why in (picks.errors or {}).items() if begin <= q < end}
        arrays = [array[begin:end, : block.most] for array in picks[:-1]]
        part = Selection(*[*arrays, picks.lengths[begin:end]]).with_errors(errors)
        part.certified = None if picks.certified is None else picks.certified[begin:end]
        parts.append(part)
        begin = end
    return parts


def answer(block: Block, num_threads: int | None = None, on_error: str = "skip") -> Selection:
    """Answer the queries of a block in one call of the kernels.

    Every query gets the bits of ``served.corpus.select`` of that query alone, or of the rule's function with its own
    vectors. ``errors`` of the result has the reasons of queries that could not be answered.
    """
    if block.given is None or (block.size == 1 and len(block.given.data)):
        return _answer(block, num_threads, on_error)
    assert block.candidates is not None
    counts = (block.candidates >= 0).sum(axis=1)
    begins = (np.cumsum(counts) - counts)[:, None]
    if not counts.any():
        return Selection.empty(len(block), block.most).with_errors({})
    lists = {name: each for name in _LISTS if (each := getattr(block, name)) is not None}
    moved: dict[str, Any] = {name: np.where(each >= 0, each + begins, -1) for name, each in lists.items()}
    picks = _answer(replace(block, **moved), num_threads, on_error)
    found = picks._replace(indices=np.where(picks.indices >= 0, picks.indices - begins, -1))
    if picks.errors:
        found.errors = {
            q: _ROW.sub(lambda row, begin=int(begins[q, 0]): str(int(row[0]) - begin), why)  # type: ignore[misc]
            for q, why in picks.errors.items()
        }
    return found


def _answer(block: Block, num_threads: int | None, on_error: str) -> Selection:
    corpus = block.served.corpus
    problem = plain(block)
    if problem is not None:
        backend = _dispatch.choose(block.method, "selection", "cpu", "auto")[1]
        try:
            plainly: Selection = getattr(backend, block.method)(problem, checks.threads(block.method, num_threads))
            return plainly
        except ValueError:  # of one of the queries
            if on_error == "raise":
                raise
    request, errors = _request(block, num_threads, on_error), None
    whole = block.pool is None and block.candidates is None
    if block.pool is not None:
        request, errors = retrieve.retrieve(corpus, request, block.pool)
    with muted(PoolSizeWarning):  # a short list of candidates is a request like any other
        picks = planned_run(_widened(request, block, len(corpus)))
    retrieve.add_errors(picks, errors)
    if whole and corpus.device == "cpu":
        certified.of_all_rows(picks)
    return picks if isinstance(picks.indices, np.ndarray) else Selection(*map(host, picks)).with_errors(picks.errors)


def _request(block: Block, num_threads: int | None, on_error: str) -> Request:
    """Return what the queries of a block ask for, with arrays where the rows are."""
    defaults = DEFAULTS[block.method]
    given = {name: placed(block.rows, x) for name in _COLUMNS if (x := getattr(block, name)) is not None}
    if "lambda_d" not in defaults:
        given |= {"lambda_d": 1.0, "lambda_b": 1.0}  # which a block has for every rule
    columns = {**defaults, **dict(block.options), **given}
    return Request(
        block.method, columns.pop("vectors", None), block.rows, columns.pop("k"), relevance_scale=block.relevance_scale,
        max_per_group=block.max_per_group, num_threads=num_threads, on_error=on_error, **columns,
    )  # fmt: skip


def _widened(request: Request, block: Block, num_rows: int) -> Request:
    """Return a request with more candidates than picks, so that a query reads the same rows alone and beside others."""
    candidates = request.candidates
    if candidates is None and num_rows <= block.most:
        candidates = np.tile(np.arange(num_rows), (len(block), 1))
    if candidates is None or candidates.shape[1] > block.most:
        return request
    lacking = ((0, 0), (0, block.most + 1 - candidates.shape[1]))
    changes = {
        name: placed(block.rows, np.pad(host(values), lacking, constant_values=PADDING[name]))
        for name, values in (("candidates", candidates), *((each, getattr(request, each)) for each in OF_CANDIDATES))
        if values is not None and not isinstance(values, str)
    }
    return request.changed(**changes)


def plain(block: Block) -> Problem | None:
    """Return the problem of queries over candidates alone, which is what most requests are; None: it is another.

    The library's validation takes as long as the kernel does for one such query, and has nothing to find here: `rules`
    has checked all that it checks, and what the kernels find as they read is the same.
    """
    rows, candidates, k = block.rows, block.candidates, block.k
    if (
        block.method not in _PLAIN
        or candidates is None
        or block.vectors is None
        or not isinstance(rows.data, np.ndarray)
    ):
        return None
    if block.relevance is not None or block.initial is not None or block.max_per_group is not None:
        return None
    if block.allowed is not None or block.exclude is not None:
        return None
    if block.budget is not None or block.max_similarity is not None:
        return None
    most = int(k.max()) if isinstance(k, np.ndarray) else k
    if candidates.shape[1] <= most:  # a pool of which nothing is left out
        return None
    mmr = block.method == "mmr"
    return Problem(
        block.method,
        rows,
        block.size,
        candidates.shape[1],
        most,
        0,
        block.vectors,
        not mmr or rows.metric == "cosine",
        _weights(block.lambda_d if mmr else 1.0, block.size),
        _weights(block.lambda_b if mmr else 1.0, block.size),
        candidates,
        None,
        rows.bias if mmr else None,
        k if isinstance(k, np.ndarray) else None,
    )


def cost_of(block: Block, picks: Selection) -> np.ndarray:
    """Return what the picks of each query cost, (Q,) float64: the sum in their order, as `Selection.cost` has it."""
    costs, indices, cost = block.served.corpus.costs, picks.indices, np.zeros(len(block))
    for step in range(indices.shape[1]):
        made = indices[:, step] >= 0
        cost[made] += np.asarray(_arrays.to_host(costs[placed(block.rows, indices[made, step])]))
    return cost


def _weights(weight: float | np.ndarray, size: int) -> np.ndarray:
    return weight if isinstance(weight, np.ndarray) else np.full(size, weight, np.float32)


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
