"""How good the pools of an index are that is not exact: on a sample of a job's queries, beside exact pools."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ragsys_kernels as rk

from .._base.checks import counted
from .._base.tables import texts
from ..corpus.retrieve import completed
from ..selection.request import Request

QUERIES = 100  # of a job, at least, if it has as many


@dataclass(frozen=True)
class Recall:
    """Sums over the queries of a sample.

    ``found`` of a query is the share of its exact pool that the index found; of ``picks`` picks, ``changed`` are other
    than those out of the exact pool. ``columns``: how many of the vectors the index has, 0 if all.
    """

    queries: int = 0
    found: float = 0.0
    squares: float = 0.0
    picks: int = 0
    changed: int = 0
    columns: int = 0

    @classmethod
    def of(cls, shares: np.ndarray, picks: int, changed: int, columns: int = 0) -> Recall:
        return cls(len(shares), float(shares.sum()), float(np.square(shares).sum()), picks, changed, columns)

    @classmethod
    def total(cls, parts: Iterable[Sequence[Any]]) -> Recall | None:
        """Return the sums of several samples, each given as its numbers; None without any."""
        found = [cls(*part) for part in parts]
        if not found:
            return None
        sums = {name: sum(getattr(part, name) for part in found) for name in vars(found[0])}
        return cls(**{**sums, "columns": found[0].columns})

    @property
    def mean(self) -> float:
        return self.found / self.queries

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of a 95 % interval of the mean, by the normal approximation."""
        n, mean = self.queries, self.mean
        half = 1.96 * math.sqrt(max(0.0, self.squares - n * mean * mean) / max(1, n - 1) / n)
        return max(0.0, mean - half), min(1.0, mean + half)

    def __str__(self) -> str:
        low, high = self.interval
        by = f" by the first {self.columns} columns" if self.columns else ""
        sampled = counted(self.queries, "query", "queries")
        return (
            f"pools{by} have {100 * self.mean:.1f} % of the exact ones ({100 * low:.1f} to {100 * high:.1f}), "
            f"{100 * self.changed / max(1, self.picks):.1f} % of picks are others ({sampled} sampled)"
        )


@dataclass
class Sample:
    """Queries of a shard that are selected for once more, out of exact pools, and what the job picked for them."""

    queries: list[np.ndarray] = field(default_factory=list)
    groups: list[np.ndarray] = field(default_factory=list)
    picks: list[np.ndarray] = field(default_factory=list)

    def add(self, rows: np.ndarray, queries: np.ndarray, groups: Any, picks: np.ndarray) -> None:
        if len(rows):
            self.queries.append(np.array(queries[rows]))
            self.picks.append(picks[rows])
            if groups is not None:
                self.groups.append((groups if isinstance(groups, np.ndarray) else texts(groups))[rows])

    def extend(self, other: Sample) -> None:
        for name, parts in vars(self).items():
            parts += getattr(other, name)

    def measured(self, corpus: rk.Corpus, request: Request, pool: Any, index: Any) -> Recall | None:
        """Return what an index found of the exact pools."""
        if not self.queries:
            return None
        queries = np.concatenate(self.queries)
        own = np.concatenate(self.groups) if self.groups else None
        asked = request.changed(queries=queries, embeddings=corpus, query_groups=own, on_error="skip")
        common = {name: getattr(asked, name) for name in ("query_groups", "backend", "num_threads", "on_error")}
        weight = completed(request).lambda_b
        exact, found = (corpus.search(queries, pool, lambda_b=weight, index=by, **common) for by in (False, index))
        shares = [_share(a, b) for a, b in zip(exact.indices, found.indices, strict=True)]
        picks = corpus._select(asked.changed(candidates=exact.indices), None, None).indices
        here = np.concatenate(self.picks)
        changed = sum(np.count_nonzero(~np.isin(b[b >= 0], a)) for a, b in zip(picks, here, strict=True))
        width = getattr(index, "dims" if isinstance(index, rk.Corpus) else "d", corpus.dims)
        columns = width if width < corpus.dims else 0
        return Recall.of(np.array(shares), int((here >= 0).sum()), int(changed), columns)


def sampled(first: int, count: int, total: int) -> np.ndarray:
    """Return which of some consecutive queries, from the one of that number on, are in the sample of all."""
    step = max(1, total // QUERIES)
    return np.arange(-first % step, count, step)


def _share(exact: np.ndarray, found: np.ndarray) -> float:
    exact = exact[exact >= 0]
    return float(np.isin(exact, found).mean()) if exact.size else 1.0
