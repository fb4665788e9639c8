"""Which rules and constraints the kernels of each backend have: each backend's module says so itself."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _dispatch
from .request import Request

# Among the constraints that a backend has.
BINARY = "rows of dtype 'binary'"


class Needs(NamedTuple):
    """What a call needs of a backend beyond MMR and VRSD with the constraints that all of them have."""

    op: str
    kind: str | None = None  # of coverage
    budget: bool = False
    ceiling: bool = False
    certificate: bool = False
    binary: bool = False  # rows of packed signs

    @classmethod
    def of(cls, request: Request, binary: bool = False) -> Needs:
        budget, ceiling, outside = request.budget, request.max_similarity, request.outside
        return cls(request.op, request.kind, budget is not None, ceiling is not None, outside is not None, binary)

    def lacking(self, backend: str) -> str | None:
        """Return the reason that a backend, which can run here, does not have the call, or None if it has."""
        if backend == "reference":
            return None
        module: Any = _dispatch.module_of("selection", backend)
        rule = self.kind or self.op
        if rule not in module.RULES:
            return f"its kernels have no {rule}"
        asked_for = {
            "budget": self.budget,
            "max_similarity": self.ceiling,
            "outside": self.certificate,
            BINARY: self.binary,
        }
        for name, asked in asked_for.items():
            if asked and name not in module.CONSTRAINTS:
                return f"its kernels take no {name}"
        return None
