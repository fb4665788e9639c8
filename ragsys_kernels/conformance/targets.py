"""What a target's name stands for, and how it is to be called."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .._base import checks
from .adapters import Adapter, CallError, by_names
from .peers import HaystackRanker, LangChainStore, qdrant

ADAPTERS = ("auto", "function", "langchain-store", "haystack", "qdrant")


def resolved(target: str) -> Any:
    """Return what ``module:name`` stands for."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ValueError(f"conform: function must be module:name, got {target!r}")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise CallError(f"conform: function must be in a module that imports, got {target!r}: {error}") from error
    except (Exception, SystemExit) as error:  # a module may do anything, as a script does
        why = f"{type(error).__name__}: {error}"
        raise CallError(f"conform: function must be in a module that imports, got {target!r}: {why}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise CallError(f"conform: function must be in its module, got {target!r}, which has no {part!r}")
        found = getattr(found, part)
    return found


def name_of(function: Any) -> str:
    """Return ``module:name``; of an object that has no name, that of its class."""
    if isinstance(function, str):
        return function
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def adapter_of(
    called: Any,
    adapter: str = "auto",
    arguments: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Adapter:
    """Return the adapter of a function or a class."""
    kind = checks.choice("conform", "adapter", adapter, ADAPTERS)
    if kind == "auto":
        kind = _kind(called)
    if not callable(called):
        raise CallError(f"conform: function must be callable, got {checks.shown(called)}")
    if kind != "function" and arguments:
        raise ValueError(f"conform: arguments must be left out with the adapter {kind!r}, got {', '.join(arguments)}")
    options = dict(options or {})
    if kind == "langchain-store":
        return LangChainStore(called, options)
    if kind == "haystack":
        return HaystackRanker(called, options)
    return qdrant(called, options) if kind == "qdrant" else _function(called, arguments, options)


def _kind(called: Any) -> str:
    if inspect.isclass(called):
        if hasattr(called, "max_marginal_relevance_search_by_vector"):
            return "langchain-store"
        if "documents" in inspect.signature(getattr(called, "run", _nothing)).parameters:
            return "haystack"
        if called.__name__ == "QdrantClient":
            return "qdrant"
    return "function"


def _nothing() -> None: ...


def _function(called: Callable[..., Any], arguments: Mapping[str, str] | None, options: dict[str, Any]) -> Adapter:
    call = by_names(called, arguments, options)
    if "strategy" in inspect.signature(called).parameters and "strategy" not in options:
        # One call for several rules.
        call.options = {**options, "strategy": "mmr"}
        call.name += ", strategy mmr"
    return call
