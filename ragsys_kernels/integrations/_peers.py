"""Peers as guests: imported where they are needed, and one line that says how to install a missing one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Around the imports of a peer that the extra ``extra`` installs."""
    try:
        yield
    except ModuleNotFoundError as error:
        peer = (error.name or "").partition(".")[0]
        if peer == "ragsys_kernels":
            raise
        raise ModuleNotFoundError(
            f"ragsys_kernels.integrations needs {peer}: pip install 'ragsys_kernels[{extra}]'", name=error.name
        ) from error


def later(module: str, extra: str, **homes: tuple[str, ...]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``module``, whose classes are in modules beside it that import the peer."""
    found = {name: home for home, names in homes.items() for name in names}

    def attribute(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        with needed(extra):
            return getattr(import_module(f"{__package__}.{found[name]}"), name)

    return attribute
