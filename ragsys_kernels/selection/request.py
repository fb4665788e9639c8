"""What is asked of a selection, whole: every entrance makes one, and nothing writes into it."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import Any

import numpy as np

from .._base import tables
from .parameters import TABLE


@dataclasses.dataclass(slots=True, eq=False)  # not frozen, which would take a fifth of the call of one query to make
class Request:
    """The arguments of a rule's function by their names, as they were given; those of one rule last."""

    op: str
    queries: Any
    embeddings: Any
    k: Any
    candidates: Any = None
    relevance: Any = None
    relevance_scale: Any = "as-is"
    groups: Any = None
    query_groups: Any = None
    max_per_group: Any = None
    min_per_group: Any = None
    initial: Any = None
    allowed: Any = None
    exclude: Any = None
    costs: Any = None
    budget: Any = None
    max_similarity: Any = None
    min_relevance: Any = None
    metric: Any = "cosine"
    check_values: Any = None
    backend: Any = "auto"
    num_threads: Any = None
    on_error: Any = "raise"
    similarity: Any = None
    bias: Any = None
    lambda_d: Any = 1.0
    lambda_b: Any = 1.0
    outside: Any = None
    quality: Any = None
    scale: Any = None
    gamma: Any = None
    window: Any = None
    noise: Any = None
    min_gain: Any = None
    kind: Any = None
    aspects: Any = None
    weights: Any = None
    density: Any = None
    eps: Any = None
    nearest: Any = False
    half_life: Any = None
    now: Any = None
    decay: Any = "exp"
    decay_floor: Any = 0.0
    graph: Any = None  # of coverage: `options.Graph`, which Corpus.subset makes

    def changed(self, **changes: Any) -> Request:
        """Return the request with other values."""
        made = Request(*_values(self))
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def take(self, queries: np.ndarray | slice) -> Request:
        """Return the request of some of its queries."""
        changes = {}
        dense = self.similarity is not None or np.ndim(self.embeddings) == 3
        for name, axes in OF_QUERIES.items():
            if (array := getattr(self, name)) is None:
                continue
            if tables.holds_text(array):  # not as NumPy's strings, which lose NULs
                array = tables.texts(array)
            per_query = dense if name == "groups" else np.ndim(array) == axes  # (N, L) has as many axes as (Q, P)
            if per_query:
                changes[name] = array[queries] if hasattr(array, "dtype") else np.asarray(array)[queries]
        return self.changed(**changes)

    def plan_arguments(self) -> tuple[Any, ...]:
        """Return all values, by which a plan knows calls that are alike: `_gpu/plans.py`."""
        values: tuple[Any, ...] = _values(self)
        return values


FIELDS = tuple(field.name for field in dataclasses.fields(Request))
_values = attrgetter(*FIELDS)

# Arguments with a value of each query, by how many axes they then have; with fewer, the value is that of all queries.
OF_QUERIES = {
    "queries": 2, "embeddings": 3, "k": 1, "similarity": 3, "outside": 1,
    **{parameter.name: parameter.axes for parameter in TABLE if parameter.axes},
}  # fmt: skip
