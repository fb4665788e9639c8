"""Imports of peers, made only where they are needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

from .._base import extras


def needed(extra: str) -> AbstractContextManager[None]:
    """Import a peer that the extra installs in this block."""
    return extras.needed("ragsys_kernels.integrations", extra)


def later(module: str, extra: str, **homes: tuple[str, ...]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``module``, whose classes are in modules beside it that import the peer."""
    found = {name: home for home, names in homes.items() for name in names}

    def attribute(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        with needed(extra):
            return getattr(import_module(f"{__package__}.{found[name]}"), name)

    return attribute


# An application may have put a drop-in of ours into the peer's module, or in its place: to find out there what the peer
# does would call the drop-in again, for ever. So a copy is made from the peer's files, which no application has seen.


def copy_of_module(name: str) -> ModuleType:
    """Return a copy of one module of a peer; what it imports is imported as usual."""
    parent = import_module(name.rpartition(".")[0])
    spec = PathFinder.find_spec(name, getattr(parent, "__path__", []))
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    copy = module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy
