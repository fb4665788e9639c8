"""Jobs read and write arrays of the host; the corpus, and the selection, may be on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

import ragsys_kernels as rk

from .. import _arrays


class Selector:
    """A corpus moved to a device, None for the host, that takes arrays of the host and gives such."""

    def __init__(self, corpus: rk.Corpus, device: str | None) -> None:
        self.corpus = corpus if device is None else corpus.to(device)
        self._place = None if self.corpus.device == "cpu" else _arrays.Torch(self.corpus.device)

    def select(
        self, queries: Any, k: int, *, query_groups: Any = None, candidates: Any = None, **options: Any
    ) -> rk.Selection:
        """Select as `Corpus.select` does; on a device values are looked at too."""
        if self._place is None:
            return self.corpus.select(queries, k, query_groups=query_groups, candidates=candidates, **options)
        options.update(query_groups=self._moved(query_groups), candidates=self._moved(candidates), check_values=True)
        picks = self.corpus.select(self._moved(queries), k, **options)
        return rk.Selection(*(np.asarray(_arrays.to_host(column)) for column in picks)).with_errors(picks.errors)

    def _moved(self, array: Any) -> Any:
        return None if array is None or self._place is None else self._place.upload(array)
