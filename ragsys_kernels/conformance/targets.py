"""What a target's name stands for, and how it is to be called."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from .._base import checks
from .adapters import Adapter, Call, CallError
from .peers import HaystackRanker, LangChainStore, QdrantLocal

_CLASSES = {"langchain-store": LangChainStore, "haystack": HaystackRanker, "qdrant": QdrantLocal}
ADAPTERS = ("auto", "function", *_CLASSES)


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
    if kind in _CLASSES:
        return _CLASSES[kind](called, options)
    call = Call(called, arguments, options)
    if "strategy" in inspect.signature(called).parameters and "strategy" not in options:
        # One call for several rules.
        call.options = {**options, "strategy": "mmr"}
        call.name += ", strategy mmr"
    return call


def _kind(called: Any) -> str:
    if inspect.isclass(called):
        run = getattr(called, "run", None)
        if hasattr(called, "max_marginal_relevance_search_by_vector"):
            return "langchain-store"
        if run is not None and "documents" in inspect.signature(run).parameters:
            return "haystack"
        if called.__name__ == "QdrantClient":
            return "qdrant"
    return "function"
