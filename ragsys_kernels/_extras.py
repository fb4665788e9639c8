"""Optional packages: one text for each that is missing, which says who needs it and what to type."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType


def install(extra: str) -> str:
    """Return the command that installs what an extra of this package brings."""
    return f"pip install 'ragsys_kernels[{extra}]'"


def absent(package: str, extra: str) -> str:
    """Return the reason that nothing which uses the package can run."""
    return f"{package} is not installed: {install(extra)}"


def missing(by: str, package: str, command: str, module: str | None = None) -> ModuleNotFoundError:
    """Return the error of ``by``, which cannot do without the package; ``module`` is what Python did not find."""
    return ModuleNotFoundError(f"{by} needs {package}: {command}", name=module or package)


@contextmanager
def needed(by: str, extra: str, package: str | None = None) -> Iterator[None]:
    """Import an optional package in this block, or raise the error that says how to install it.

    ``package`` is its name for pip, where that is not the name of the module that Python did not find.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module == __package__:  # a fault of this package
            raise
        raise missing(by, package or module, install(extra), error.name) from error


def imported(library: str) -> ModuleType:
    """Import a library of others. What it warns of is shown, never raised: a library that warns is not broken."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = importlib.import_module(library)
    for warning in caught:
        with suppress(Warning):  # where the caller's filters make warnings errors
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return module
