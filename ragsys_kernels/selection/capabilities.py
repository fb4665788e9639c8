"""Which rules and constraints the kernels of each backend have: each backend's module says so itself."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from .. import _dispatch
from .parameters import NOT_EVERYWHERE
from .request import Request

# Among the constraints that a backend has; the second is looked at on a device.
BINARY, WHOLE = "rows of dtype 'binary'", "corpus without candidates"


_not_everywhere = attrgetter(*NOT_EVERYWHERE)


class Needs(NamedTuple):
    """What a call needs of a backend."""

    op: str
    kind: str | None = None  # of coverage
    constraints: tuple[str, ...] = ()  # of `NOT_EVERYWHERE`, `BINARY` and `WHOLE`
    call: tuple[Request, Mapping[str, Any]] | None = None  # and its arrays, on a device

    @classmethod
    def of(
        cls, request: Request, binary: bool = False, whole: bool = False, arrays: Mapping[str, Any] | None = None
    ) -> Needs:
        given = zip(NOT_EVERYWHERE, _not_everywhere(request), strict=True)
        asked = [name for name, value in given if value is not None]
        call = None if arrays is None else (request, arrays)
        return cls(request.op, request.kind, (*asked, *[BINARY] * binary, *[WHOLE] * whole), call)

    def lacking(self, backend: str) -> str | None:
        """Return the reason that a backend, which can run here, does not have the call, or None if it has."""
        if backend == "reference":
            return None
        module: Any = _dispatch.module_of("selection", backend)
        if not self.has_rule(backend):
            return f"its kernels have no {self.op if self.kind is None else self.kind}"
        lacks = next((name for name in self.constraints if name not in module.CONSTRAINTS), None)
        if lacks:
            return f"its kernels take no {lacks}"
        by_shape = getattr(module, "lacking", None)  # what a backend takes of some shapes only
        return None if by_shape is None or self.call is None else by_shape(*self.call)

    def has_rule(self, backend: str) -> bool:
        """Return whether a backend, which can run here, has the rule."""
        if backend == "reference":
            return True
        module: Any = _dispatch.module_of("selection", backend)
        rule = self.op if self.kind is None else self.kind
        return not isinstance(rule, str) or rule in module.RULES  # what is no word is refused where it is read


def are_usual(request: Request) -> bool:
    """Return whether every backend has the constraints of a request."""
    for value in _not_everywhere(request):  # noqa: SIM110 - `all` takes longer
        if value is not None:
            return False
    return True
