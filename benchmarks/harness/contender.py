"""What is timed, and the names by which the ledgers know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

OURS = "ragsys_kernels"
FLOOR, COPY = "read floor", "copy of as many bytes"  # the least that must be done, on a processor and on a GPU
PRODUCT = "matrix product"


@dataclass(frozen=True)
class Contender:
    """A way to do the work of a problem: ``run()`` all of it or, where it has a ``unit``, ``run(n)`` of n queries."""

    name: str
    run: Callable[..., Any]
    unit: int = 0  # queries come in multiples of it; 0: the work is one call
    dtype: str = ""  # of the rows; empty: the problem's
    backend: str = ""  # of the library on a GPU; empty: what `auto` chooses
    threads: int = 1
    share: float = 1.0  # of the work that a run does, on a GPU: its times count as those of all of it
    on_host: bool = False  # on a machine with a GPU: it works on the processor
    note: str = ""
    # What `gate` checks of its results; none of these: they cannot be compared.
    picks: Callable[[Any], np.ndarray] | None = None  # turns its results into (n, K) rows of the corpus
    rule: str | None = None  # by which a peer picks: its redundancy, or "sum" for VRSD
    arguments: Callable[[int], dict[str, Any]] | None = None  # of the library's call for n queries
    error: float | None = None  # its results are log p, and may be off by so much
