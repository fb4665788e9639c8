"""Jobs read and write arrays of the host; the corpus, and the selection, may be on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import ragsys_kernels as rk

from .._base import arrays
from .._base.tables import holds_text


@dataclass(frozen=True)
class Placed:
    """Queries on a device, or on their way there, and those of them that hold NaN or inf, which are zeros there."""

    queries: Any
    bad: np.ndarray
    arrived: Any = None  # an event of the stream that copies

    def __len__(self) -> int:
        return len(self.queries)


class Selector:
    """A corpus moved to a device, None for the host, that takes arrays of the host and gives such."""

    def __init__(self, corpus: rk.Corpus, device: str | None) -> None:
        self.corpus = corpus if device is None else corpus.to(device)
        self._place = None if self.corpus.device == "cpu" else arrays.Torch(self.corpus.device)
        self._stream = None if self._place is None else self._place.torch.cuda.Stream(self._place.device)
        # Then the queries are all that can hold a bad value: the rows have been checked with the corpus.
        bias = None if self._place is None else arrays.to_host(self.corpus.bias)
        self._sound = corpus.metric == "cosine" and (bias is None or bool(np.isfinite(bias).all()))

    @property
    def places(self) -> bool:
        """Whether queries are worth moving ahead of their selection."""
        return self._place is not None

    def placed(self, queries: np.ndarray) -> Placed:
        """Return queries on the device; they are looked at here, and copied beside what kernels are at."""
        bad = np.flatnonzero(~np.isfinite(queries).all(axis=1))
        if bad.size:
            queries = queries.copy()
            queries[bad] = 0
        if self._place is None or self._stream is None:
            return Placed(self._moved(queries), bad)
        torch = self._place.torch
        pinned = torch.from_numpy(np.ascontiguousarray(queries)).pin_memory()  # kept until it is copied
        with torch.cuda.stream(self._stream):
            return Placed(pinned.to(self._place.device, non_blocking=True), bad, self._stream.record_event())

    def select(
        self,
        queries: Any,
        k: int,
        *,
        query_groups: Any = None,
        candidates: Any = None,
        relevance: Any = None,
        **options: Any,
    ) -> rk.Selection:
        """Select as `Corpus.select` does; on a device values are looked at too."""
        if self._place is None and not isinstance(queries, Placed):
            return self.corpus.select(
                queries, k, query_groups=query_groups, candidates=candidates, relevance=relevance, **options
            )
        placed = queries if isinstance(queries, Placed) else self.placed(queries)
        if placed.arrived is not None and self._place is not None:
            stream = self._place.torch.cuda.current_stream(self._place.device)
            stream.wait_event(placed.arrived)
            placed.queries.record_stream(stream)
        if not holds_text(query_groups):
            query_groups = self._moved(query_groups)
        options.update(query_groups=query_groups, candidates=self._moved(candidates), relevance=self._moved(relevance))
        options["check_values"] = None if self._sound and candidates is None else True
        picks = self.corpus.select(placed.queries, k, **options)
        reason = f"{options.get('method', 'mmr')}: queries must be finite, got NaN or inf"
        errors = {**dict.fromkeys(placed.bad.tolist(), reason), **(picks.errors or {})}
        return rk.Selection(*(np.asarray(arrays.to_host(column)) for column in picks)).with_errors(errors)

    def _moved(self, array: Any) -> Any:
        return None if array is None or self._place is None else self._place.upload(array)
