"""Candidates that come with their vectors: no corpus is read, their ids are any, and lists of ids are among these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...selection.problem import Rows
from ..limits import shown
from .rules import Rules, padded, plain


class Given:
    """The candidates of some queries.

    Parameters
    ----------
    vectors : (sum of lengths, D) float32 | float16
        Those of all queries, end to end; the kernels look whether they are finite.
    lengths : list of int
        How many candidates each query has.
    ids : (sum of lengths,) int64, or list of str, optional
        Default: the places of the candidates.

    Raises
    ------
    RefusedError
        Another number of ids, or one twice in a query.
    """

    def __init__(
        self,
        rules: Rules,
        metric: str,
        vectors: np.ndarray,
        lengths: list[int],
        ids: np.ndarray | Sequence[Any] | None = None,
        lengths_of_ids: list[int] | None = None,
    ) -> None:
        self.rules, self.lengths = rules, lengths
        self.rows = Rows.of(vectors, str(vectors.dtype), metric, "computed" if metric == "cosine" else "as_given")
        rules.within("vectors", lengths)
        alone = len(lengths) == 1
        places = np.arange(lengths[0]) if alone else np.concatenate([np.arange(n) for n in lengths])
        self.candidates = padded(places, lengths, -1)
        self.named = isinstance(ids, list)
        self.names: np.ndarray | None = None
        if ids is None:
            return
        if lengths_of_ids != lengths:
            got = next(f"{n} for {m}" for n, m in zip(lengths_of_ids or (), lengths, strict=True) if n != m)
            raise rules.invalid("candidates", "have an id for each of the vectors", got)
        flat: np.ndarray = np.empty(len(ids), object) if self.named else np.asarray(ids)
        if self.named:
            flat[:] = ids
        self.names = padded(flat, lengths, None if self.named else -1)
        for row, n in zip(self.names, lengths, strict=True):
            own = row[:n].tolist()
            if len(set(own)) < n:
                twice = next(each for each, count in Counter(own).items() if count > 1)
                raise rules.invalid("candidates", "not repeat an id within a query", f"{shown(twice)} twice")

    def id_rows(
        self, name: str, ids: np.ndarray | list[Any], lengths: list[int], skipped: dict[int, dict[Any, None]] | None
    ) -> np.ndarray:
        """Return the places of ids among the candidates, as `Rules.id_rows` returns rows."""
        self.rules.within(name, lengths)
        if len(ids) and self.named != isinstance(ids, list):
            kind = "strings" if self.named else "integers"
            raise self.rules.invalid(name, f"be {kind} as the candidates", shown(plain(ids[0])))
        flat, places, end = list(ids), [], 0
        for q, n in enumerate(lengths):
            own = range(self.lengths[q]) if self.names is None else self.names[q, : self.lengths[q]].tolist()
            known = dict(zip(own, range(len(own)), strict=True))
            for each in map(plain, flat[end : end + n]):
                place = known.get(each, -1)
                if place < 0 and skipped is None:
                    raise self.rules.invalid(name, "be ids of the candidates", shown(each))
                if place < 0 and skipped is not None:
                    skipped.setdefault(q, {})[each] = None
                places.append(place)
            end += n
        return padded(np.array(places, np.int64), lengths, -1)
