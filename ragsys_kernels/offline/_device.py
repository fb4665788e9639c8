"""Jobs read and write arrays of the host; the corpus, and the selection, may be on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import ragsys_kernels as rk

from .._base import arrays
from .._base.tables import holds_text
from .._gpu.plans import planned
from ..selection.request import Request


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

    def select(self, request: Request, pool: int | str | None, index: Any = None) -> rk.Selection:
        """Select as `Corpus.select` does, out of this corpus; on a device values are looked at too."""
        request = request.changed(embeddings=self.corpus)
        queries = request.queries
        if self._place is None and not isinstance(queries, Placed):
            return _select(request, pool, index)
        placed = queries if isinstance(queries, Placed) else self.placed(queries)
        if placed.arrived is not None and self._place is not None:
            stream = self._place.torch.cuda.current_stream(self._place.device)
            stream.wait_event(placed.arrived)
            placed.queries.record_stream(stream)
        names = ["candidates", "relevance", *([] if holds_text(request.query_groups) else ["query_groups"])]
        moved = {name: self._moved(getattr(request, name)) for name in names}
        check = None if self._sound and request.candidates is None else True
        picks = _select(request.changed(queries=placed.queries, check_values=check, **moved), pool, index)
        reason = f"{request.op}: queries must be finite, got NaN or inf"
        errors = {**dict.fromkeys(placed.bad.tolist(), reason), **(picks.errors or {})}
        return picks.mapped(lambda array: np.asarray(arrays.to_host(array))).with_errors(errors)

    def _moved(self, array: Any) -> Any:
        return None if array is None or self._place is None else self._place.upload(array)


@planned("select")
def _select(request: Request, pool: int | str | None, index: Any) -> rk.Selection:
    picks: rk.Selection = request.embeddings._select(request, pool, index)
    return picks
