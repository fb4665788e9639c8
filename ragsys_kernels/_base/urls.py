"""URLs that fsspec opens."""

from __future__ import annotations

from typing import Any

from .extras import missing, needed


def filesystem(op: str, argument: str, url: str) -> tuple[Any, str]:
    """Return the file system of fsspec that a URL names, and the path in it; refuse what it does not open."""
    by = f"{op}: {argument} {url}"
    with needed(by, "fsspec"):
        import fsspec.core
    try:
        found, inner = fsspec.core.url_to_fs(url)
    except ImportError as error:  # of the protocol's own package
        package = (getattr(error.__cause__ or error.__context__, "name", None) or "").partition(".")[0]
        if not package:
            raise ModuleNotFoundError(f"{by} needs {error}") from error
        raise missing(by, package, f"pip install {package}") from error
    except ValueError as error:
        raise ValueError(f"{op}: {argument} must be a URL that fsspec opens, got {url}: {error}") from error
    found.invalidate_cache()  # of listings: files may have come and gone since
    return found, str(inner)


def protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
