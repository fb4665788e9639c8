"""What every scoring operation does around its own checks: backend, threads and the caller's library."""

from __future__ import annotations

from typing import Any

from .. import _arrays, _dispatch
from .._validate import same_device, threads
from .problem import Partials, ScoringProblem


class Call:
    """Backend, threads and the caller's library of one call."""

    def __init__(self, op: str, arrays: dict[str, Any], backend: str, num_threads: int | None) -> None:
        self.threads = threads(op, num_threads)
        self.library = _arrays.library_of(*arrays.values())
        _, self.backend = _dispatch.choose(op, "scoring", same_device(op, arrays), backend, self.library)

    def run(self, problem: ScoringProblem) -> Partials:
        """Partials of the problem; without a job or a column there is nothing to read."""
        if len(problem.rows) == 0 or problem.num_entering == 0:
            return Partials.nothing(problem)
        result: Partials = self.backend.partials(problem, self.threads)
        return result

    def result(self, x: Any) -> Any:
        """An array, or a named tuple of arrays and None, in the caller's library."""
        if self.library == "numpy" or x is None:
            return x
        if isinstance(x, tuple):
            return type(x)(*map(self.result, x))
        return _arrays.to_library(x, self.library)
