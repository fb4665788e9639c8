"""Candidates of several retrievers, a file of each, fused while they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np

import ragsys_kernels as rk

from ..._base.types import NDArray as Array
from ...selection.validate import listed, suspicious
from ._column import Column
from ._lists import Lists
from ._rows import RowSource


class Fused(Column):
    """Columns of candidates, and of their scores or None, as pairs of `Lists`: the fused candidates, their relevance.

    An id of -1 among the candidates, which stands for none or for an unknown one, stays at the end of its query.
    """

    def __init__(self, columns: Sequence[Any], scores: Sequence[Column | None], method: Any, weights: Any) -> None:
        self._columns, self._scores, self._method, self._weights = columns, scores, method, weights
        self._files: list[Column] = list(columns)
        self.path, self.rows = columns[0].path, columns[0].rows
        for column in filter(None, (*columns, *scores)):
            if column.rows != self.rows:
                raise ValueError(
                    f"select: candidates must have as many rows in each file, got {self.rows} in {self.path} and "
                    f"{column.rows} in {column.path}"
                )
        none = np.zeros((0, 1), np.int64)
        try:
            rk.fuse([(none, none)] * len(columns), method, weights)
        except ValueError as error:
            given = {"fuse: method": "select: fusion", "fuse: weights": "select: fusion_weights"}
            raise ValueError(re.sub(r"^fuse: \w+", lambda name: given[name[0]], str(error))) from None
        if method != "rrf" and not all(scores):
            raise ValueError(f"select: fusion {method!r} must come with relevance_column, got none")

    def each(self, change: Callable[[Any], Any]) -> Fused:
        """Return the same with other columns of candidates, which are of the same files."""
        found = Fused(self._columns, self._scores, self._method, self._weights)
        found._columns = [change(column) for column in self._columns]
        return found

    def where(self, row: int) -> str:
        return " and ".join(file.where(row) for file in self._files)

    def identity(self, full: bool = False, known: dict[str, Any] | None = None) -> dict[str, Any]:
        found = [column.identity(full, known) for column in filter(None, (*self._files, *self._scores))]
        return {**found[0], "files": [file for each in found for file in each["files"]]}

    def chunks(
        self, size: int, start: int = 0, stop: int | None = None, bad: dict[int, str] | None = None
    ) -> Iterator[tuple[Lists, Lists]]:
        def read(column: Any) -> Iterator[Any]:
            return repeat(None) if column is None else column.chunks(size, start, stop, bad)

        first = start
        for ids, scores in zip(zip(*map(read, self._columns)), zip(*map(read, self._scores))):  # noqa: B905
            yield self._fused(ids, scores, first, bad)
            first += len(ids[0])

    def _fused(
        self, ids: Sequence[Lists], scores: Sequence[Lists | None], first: int, bad: dict[int, str] | None
    ) -> tuple[Lists, Lists]:
        lists = []
        for file, own, values in zip(self._files, ids, scores, strict=True):
            if values is not None and (wrong := own.lengths != values.lengths).any():
                rule = "have a number for each of the candidates"
                RowSource("relevance", first, file.where, bad).refuse(wrong, rule, "others")
                own, values = (each.without(np.flatnonzero(wrong)) for each in (own, values))
            lists.append((own, values))
        together = Lists.of(np.zeros(0), np.sum([own.lengths for own in ids], axis=0))
        parts = [self._of_run(lists, run, first + run.start, bad) for run in together.runs()]
        candidates, relevance, lengths = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Lists.of(candidates, lengths), Lists.of(relevance, lengths)

    def _of_run(
        self, lists: Sequence[tuple[Lists, Lists | None]], run: slice, first: int, bad: dict[int, str] | None
    ) -> tuple[Array, Array, Array]:
        """Return the candidates and the relevance of some queries end to end, and how many each has."""
        given, absent = [], np.zeros((run.stop - run.start, 1), np.int64)
        for file, (own, values) in zip(self._files, lists, strict=True):
            ids = own[run].padded()
            absent[:, 0] += own[run].lengths - (ids >= 0).sum(axis=1)
            for q in np.flatnonzero(suspicious(ids, None)).tolist():
                try:
                    listed("select", "candidates", ids[q], None)
                except ValueError as error:
                    if bad is None:
                        raise ValueError(f"{error} in {file.where(first + q)}") from None
                    bad.setdefault(first + q, str(error).partition(": ")[2])
                    ids[q] = -1
            scores = None if values is None else values[run].padded()
            if scores is not None and (wrong := ~np.isfinite(scores) & (ids >= 0)).any():
                RowSource("relevance", first, file.where, bad).refuse(wrong.sum(axis=1) > 0, "be finite", "NaN or inf")
                ids[wrong] = -1
            given.append((ids, scores))
        found = rk.fuse(given, self._method, self._weights)
        none = np.arange(absent.max(initial=0)) < absent
        real = np.concatenate([found.candidates >= 0, none], axis=1)
        candidates, relevance = (
            np.concatenate([array, np.full(none.shape, value, array.dtype)], axis=1)[real]
            for array, value in ((found.candidates, -1), (found.relevance, 0))
        )
        return candidates, relevance, real.sum(axis=1)
