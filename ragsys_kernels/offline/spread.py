"""Corpora in segments that lie in several processes, of which none has all rows.

Each `Holder` has some consecutive segments. A search asks all of them for the best rows of each query and keeps the
best of these, ties going to the lowest row: a row's score depends on nothing else, so that they are those of one
corpus. A selection then fetches the rows of the pools, and the ids of the picks; nothing else of the corpus travels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

import ragsys_kernels as rk

from .. import _info
from .._base.types import PathLike
from ..corpus import folder_index, part, segments, windows
from ..corpus.folder import ARRAYS
from ..corpus.folder_index import FolderIndex
from ..corpus.ids import Ids
from ..selection import validate
from ..selection.problem import SearchResult, Selection
from ..selection.request import Request

# Calls of holders, (holder, method, arguments), at the same time: their results in the order of the calls.
Ask = Callable[[Sequence[tuple[Any, str, tuple[Any, ...]]]], list[Any]]
_COPIED = tuple(name for name in (*ARRAYS, "live") if name != "codes")  # rows of pools are read whole


@dataclass(frozen=True)
class Share:
    """Consecutive segments of a version of a folder, the first of whose rows is row ``start`` of the corpus."""

    path: PathLike
    description: dict[str, Any]
    numbers: range
    start: int
    group_names: Any = None  # of the whole corpus

    @property
    def bytes(self) -> int:
        return sum(self.description["segments"][number]["bytes"] for number in self.numbers)


def check_spread(op: str, path: PathLike, memory: int) -> None:
    """Refuse to spread a corpus that is not in segments."""
    if not segments.is_segmented(path):
        raise ValueError(f"{op}: memory must come with a corpus in segments (corpus build), got {memory} and {path}")


def shares(op: str, path: PathLike, corpus: rk.Corpus, memory: int) -> list[Share]:
    """Return all segments of a folder, in shares of at most so many bytes; ``corpus`` is the folder, mapped."""
    check_spread(op, path, memory)
    description = segments.version_of(path)
    if description["shape"][0] != len(corpus):
        raise ValueError(f"{op}: corpus must not change when a job begins, got {path}")
    _check_each_fits(op, path, description, memory)
    found, first, start, end, held = [], 0, 0, 0, 0
    for number, segment in enumerate(description["segments"]):
        if held + segment["bytes"] > memory:
            found.append(Share(path, description, range(first, number), start, corpus.group_names))
            first, start, held = number, end, 0
        held += segment["bytes"]
        end += segment["rows"]
    return [*found, Share(path, description, range(first, len(description["segments"])), start, corpus.group_names)]


def _check_each_fits(op: str, path: PathLike, description: dict[str, Any], memory: int) -> None:
    most = max(segment["bytes"] for segment in description["segments"])
    if most > memory:
        raise ValueError(f"{op}: memory must be at least {most}, the bytes of a segment of {path}, got {memory}")


_opening = Lock()  # of the process: searches may run in one thread and the other calls in another


class Holder:
    """Some segments of a corpus in the memory of a process, mapped and verified at the first call."""

    def __init__(self, share: Share, threads: int | None, instruction_set: str | None, verify: bool = False) -> None:
        self._share, self._threads, self._instruction_set, self._verify = share, threads, instruction_set, verify
        self._opened: rk.Corpus | None = None

    @property
    def _corpus(self) -> rk.Corpus:
        with _opening:
            if self._opened is None:
                here = _info.active()[1]
                if self._instruction_set not in (None, here):
                    raise ValueError(
                        f"select: instruction_set must be that of the job, {self._instruction_set}, got {here}"
                    )
                self._opened = self._part(self._share.numbers)
            return self._opened

    def _part(self, numbers: range) -> rk.Corpus:
        share = self._share
        try:
            return part(share.path, share.description, numbers, share.group_names, self._verify)
        except ValueError as error:
            raise ValueError(f"select: corpus must be usable, got {share.path}: {error}") from error

    @property
    def bytes(self) -> int:
        return self._share.bytes

    def close(self) -> None:
        """Give the segments back, to be opened again at the next call."""
        self._opened = None

    def open(self) -> None:
        """Map the segments, and compare all their bytes with their checksums where this is to be done."""
        _ = self._corpus

    def probe(self, number: int) -> None:
        """Read one of the segments and search it, alone."""
        corpus = self._part(range(number, number + 1))
        corpus.search(np.zeros((1, corpus.dims), np.float32), 1, num_threads=self._threads, on_error="skip")

    def search(
        self, queries: Any, n: int, lambda_b: Any, query_groups: Any, backend: Any, index: Any
    ) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        """Return at most n rows of each query, their scores, and what is wrong with queries that have none."""
        corpus = self._corpus
        found = corpus.search(
            queries,
            min(n, max(1, corpus.num_live)),
            lambda_b=lambda_b,
            query_groups=query_groups,
            index=index,
            backend=backend,
            num_threads=self._threads,
            on_error="skip",
        )
        start = self._share.start
        return np.where(found.indices < 0, -1, found.indices + start), found.scores, dict(found.errors or {})

    def rows(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of some rows, given in ascending order, of each array by its name."""
        corpus, some = self._corpus, rows - self._share.start
        arrays = {name: getattr(corpus, name) for name in _COPIED}
        copies = {name: array[some] for name, array in arrays.items() if array is not None}
        return {"live": np.ones(len(some), bool), **copies}

    def live(self, rows: np.ndarray) -> np.ndarray:
        """Return which of some rows are not deleted."""
        live = self._corpus.live
        return np.ones(len(rows), bool) if live is None else np.asarray(live[rows - self._share.start])

    def ids(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids of some rows."""
        return np.asarray(self._corpus.ids[rows - self._share.start])

    def rows_of(self, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of ids, -1 for those that are not here, and whether each is here or stands for no row."""
        found, known = self._corpus.ids._rows_of(wanted)
        return np.where(found < 0, -1, found + self._share.start), known


@dataclass(frozen=True)
class _Holders:
    """The holders of all rows: the first row of each, and how to call them."""

    holders: tuple[Any, ...]
    starts: np.ndarray
    ask: Ask

    def all(self, method: str, *arguments: Any) -> list[Any]:
        return self.ask([(holder, method, arguments) for holder in self.holders])

    def of_rows(self, method: str, rows: np.ndarray) -> list[Any]:
        """Call those that have some of the rows, given in ascending order, with these."""
        ends = np.searchsorted(rows, [*self.starts[1:], np.iinfo(np.int64).max])
        some = np.split(rows, ends[:-1])
        return self.ask([(each, method, (own,)) for each, own in zip(self.holders, some, strict=True) if len(own)])


class _Ids(Ids):
    """The ids of rows that holders have."""

    def __init__(self, kind: str, num_rows: int, holders: _Holders) -> None:
        super().__init__(num_rows)
        self.kind, self._holders = kind, holders

    def take(self, rows: pa.Array) -> pa.Array:
        """Return the ids of rows as Arrow's."""
        kind = pa.large_string() if self.kind == "str" else pa.int64()
        return pa.array(self[np.asarray(rows)], kind)

    def _of(self, rows: np.ndarray) -> np.ndarray:
        if self.kind == "row":
            return super()._of(rows)
        found = np.full(rows.shape, None if self.kind == "str" else -1, object if self.kind == "str" else np.int64)
        there = rows >= 0
        some, places = np.unique(rows[there], return_inverse=True)
        if some.size:
            found[there] = np.concatenate(self._holders.of_rows("ids", some))[places]
        return found

    def _rows_of(self, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
        if self.kind == "row":
            return super()._rows_of(wanted)
        parts = self._holders.all("rows_of", wanted)
        return np.max([rows for rows, _ in parts], axis=0), np.any([known for _, known in parts], axis=0)


def held_by(holders: Sequence[Any], shares: Sequence[Share], corpus: rk.Corpus, ask: Ask) -> Spread:
    """Return a corpus, which is mapped here, whose shares the holders have."""
    names = ("dtype", "metric", "norm", "max_norm", "group_names", "_index")
    like = {name: getattr(corpus, name) for name in names} | {"_alive": corpus.num_live}
    arrays = {name: getattr(corpus, name) for name in _COPIED}
    kinds = {name: (array.dtype, array.shape) for name, array in arrays.items() if array is not None}
    starts = np.array([share.start for share in shares])
    return Spread(like, kinds, (corpus.ids.kind, len(corpus)), _Holders(tuple(holders), starts, ask))


class Turns:
    """Calls of holders of this process, one after the other, which together hold at most so many bytes.

    Searches go through all of them again and again; so the last one makes room for the next, and the first ones stay.
    """

    def __init__(self, memory: int) -> None:
        self._memory, self._lock = memory, Lock()
        self._open: list[Holder] = []  # which hold segments now

    def __call__(self, calls: Sequence[tuple[Holder, str, tuple[Any, ...]]]) -> list[Any]:
        with self._lock:
            return [self._answer(*call) for call in calls]

    def _answer(self, holder: Holder, method: str, arguments: tuple[Any, ...]) -> Any:
        if holder not in self._open:
            while self._open and holder.bytes + sum(each.bytes for each in self._open) > self._memory:
                self._open.pop().close()
            self._open.append(holder)
        return getattr(holder, method)(*arguments)


def in_turns(op: str, path: PathLike, memory: int, threads: int | None) -> Spread:
    """Return the corpus in segments at a URL; each segment is fetched when its turn comes, and `memory` bounds them."""
    description = segments.version_of(path)
    _check_each_fits(op, path, description, memory)
    names, counts = segments.group_names(path, description), [each["rows"] for each in description["segments"]]
    starts = np.cumsum([0, *counts])
    holders = [
        Holder(Share(path, description, range(number, number + 1), int(start), names), threads, None)
        for number, start in enumerate(starts[:-1])
    ]
    ask = Turns(memory)
    ask([(holders[0], "open", ())])
    first, total = holders[0]._corpus, int(starts[-1])
    gone = sum(each["deleted"]["rows"] for each in description["segments"] if each["deleted"])
    like = {name: getattr(first, name) for name in ("dtype", "metric", "norm", "group_names", "_index")}
    like |= {"max_norm": max(each["max_norm"] for each in description["segments"]), "_alive": total - gone}
    arrays = {name: getattr(first, name) for name in _COPIED}
    kinds = {name: (array.dtype, (total, *array.shape[1:])) for name, array in arrays.items() if array is not None}
    if gone:
        kinds["live"] = np.dtype(bool), (total,)
    return Spread(like, kinds, (first.ids.kind, total), _Holders(tuple(holders), starts[:-1], ask))


class Spread(rk.Corpus):
    """A corpus whose rows holders have: what a job asks of one, with the same answers.

    Its own arrays stand for theirs: they say which there are, and take no memory.
    """

    def __init__(self, like: dict[str, Any], kinds: dict[str, Any], ids: tuple[str, int], holders: _Holders) -> None:
        vars(self).update(like, **{
            name: np.broadcast_to(np.zeros((), dtype), shape) for name, (dtype, shape) in kinds.items()
        }, ids=_Ids(*ids, holders), _memory=1, _made=(like, kinds, ids, holders))  # fmt: skip

    def __reduce__(self) -> Any:  # arrays that stand for others would be written out
        return Spread, self._made

    _made: Any
    _alive: int

    @property
    def num_live(self) -> int:
        return self._alive

    def _search(self, request: Request, index: Any, route: Any = None) -> SearchResult:
        """Search as a corpus does, without filters and by no index but its own; bad queries are found nothing for."""
        n = request.k
        found_by = folder_index.chosen(self, index, request.backend)
        parameters = found_by.parameters if isinstance(found_by, FolderIndex) else False
        parts = self._made[-1].all(
            "search", request.queries, n, request.lambda_b, request.query_groups, request.backend, parameters
        )
        found = windows.padded(windows.merged([part[:2] for part in parts], n), n)
        return SearchResult(*found).with_errors(parts[0][2])

    def try_index(self, request: Request, parameters: Any) -> None:
        """Search the first segments by their index, which refuses parameters that it cannot take."""
        holders = self._made[-1]
        given = request.queries, 1, request.lambda_b, None, request.backend, parameters
        holders.ask([(holders.holders[0], "search", given)])

    def _select(self, request: Request, pool: Any, index: Any) -> Selection:
        """Select as a corpus does out of pools."""
        errors: dict[int, str] = {}
        candidates = request.candidates
        if candidates is not None and (bad := windows.unusable(candidates, len(self))).any():
            candidates, errors = self._usable(request.op, candidates, np.flatnonzero(bad))
            request = request.changed(candidates=candidates)
            if errors and request.on_error != "skip":
                raise ValueError(f"{errors[min(errors)]} for query {min(errors)}")
        picks = super()._select(request, pool, index)
        return picks.with_errors(dict(sorted({**(picks.errors or {}), **errors}.items()))) if errors else picks

    def _usable(self, op: str, candidates: np.ndarray, bad: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        """Return lists without deleted rows, and empty ones for what is wrong with the others of some queries."""
        errors: dict[int, str] = {}
        candidates = candidates.copy()
        rows = np.unique(candidates[bad])
        rows = rows[(rows >= 0) & (rows < len(self))]
        gone = rows[~np.concatenate([np.zeros(0, bool), *self._made[-1].of_rows("live", rows)])]
        for query in bad.tolist():
            own = candidates[query]
            own[np.isin(own, gone)] = -1
            try:
                validate.listed(op, "candidates", own, len(self))
            except ValueError as error:
                errors[query] = str(error)
                own[:] = -1
        return candidates, errors

    def _copied(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        parts = self._made[-1].of_rows("rows", rows)
        names = [name for name in _COPIED if getattr(self, name) is not None]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}
