"""Optional packages: one text for each that is missing, which says who needs it and what to type."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from .loading import imports

_PACKAGE = __name__.partition(".")[0]


class MissingError(ModuleNotFoundError):
    """An optional package is missing, and the text says how to install it."""


def install(extra: str) -> str:
    """Return the command that installs what an extra of this package brings, from where the package itself came."""
    return f"pip install '{_origin().format(extra=extra)}'"


@functools.cache
def _origin() -> str:
    """Return what pip is given: a checkout, a wheel, a URL, or the name in an index; with a place for the extra."""
    import importlib.metadata

    try:  # what pip wrote down of the installation (PEP 610), nothing if it came from an index
        recorded = importlib.metadata.distribution(_PACKAGE).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        recorded = None
    return origin(recorded, Path(__file__).parents[2])


def origin(recorded: str | None, folder: Path) -> str:
    """Return the same from what pip wrote down, and the folder that holds the package."""
    import json
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    source = json.loads(recorded) if recorded else {}
    url = source.get("url", "")
    if url.startswith("file://"):
        return _braced(url2pathname(urlsplit(url).path)) + "[{extra}]"
    if url:
        system = source.get("vcs_info", {}).get("vcs")
        return "ragsys_kernels[{extra}] @ " + _braced(f"{system}+{url}" if system else url)
    if (folder / "pyproject.toml").is_file():  # a checkout that is on the path and was never installed
        return _braced(str(folder)) + "[{extra}]"
    return "ragsys_kernels[{extra}]"


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def installed(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    from importlib import metadata  # 30 ms that few need

    found = {}
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def absent(package: str, extra: str) -> str:
    """Return the reason that nothing which uses the package can run."""
    return f"{package} is not installed: {install(extra)}"


def missing(by: str, package: str, command: str, module: str | None = None) -> ModuleNotFoundError:
    """Return the error of ``by``, which cannot do without the package; ``module`` is what Python did not find."""
    return MissingError(f"{by} needs {package}: {command}", name=module or package)


@contextmanager
def needed(by: str, extra: str, package: str | None = None) -> Iterator[None]:
    """Import an optional package in this block, or raise the error that says how to install it.

    ``package`` is its name for pip, where that is not the name of the module that Python did not find.
    """
    try:
        yield
    except MissingError:  # of what is used in the block, which knows more
        raise
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module == _PACKAGE:  # a fault of this package
            raise
        raise missing(by, package or module, install(extra), error.name) from error


def imported(library: str) -> ModuleType:
    """Import a library of others. What it warns of is shown, never raised: a library that warns is not broken."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with imports():
            module = importlib.import_module(library)
    for warning in caught:
        with suppress(Warning):  # where the caller's filters make warnings errors
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return module
