"""Errors for unknown arguments that name the one that is meant: a misspelt one, or what other libraries call it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Names of other libraries for our arguments: the first of ours that the function has is meant, and what it takes.
_SAME = {"lambda_d": "the same value"}
_COUNT = dict.fromkeys(("k", "n"), "the same number")
_ELSEWHERE: dict[str, dict[str, str]] = {
    "lambda_d": {"low": "the least weight; the largest is 'high'"},
    "lambda_mult": _SAME,
    "similarity": {"embeddings": "vectors; similarities are for mmr, msd, dpp and coverage"},
    "mmr_threshold": _SAME,
    "lambda_param": _SAME,
    "diversity": {"lambda_d": "1 - diversity"},
    "top_k": _COUNT,
    "top_n": _COUNT,
    "n_results": _COUNT,
    "similarity_top_k": _COUNT,
    "limit": _COUNT,
    "k": _COUNT,
    "n": _COUNT,
    "fetch_k": {"pool": "the same number", "candidates": "the ids of so many nearest rows"},
    "method": {"rule": "the name of a rule of `METHODS`"},
    "rule": {"method": "the name of a rule of `METHODS`"},
    "bias": {"quality": "the same values"},
    "quality": {"bias": "the same values"},
    "strategy": {"method": "the name of a rule of `METHODS`"},
    "filter": {"allowed": "a mask or rows"},
    "sel": {"allowed": "a mask or rows"},
    "exclude_ids": {"exclude": "rows, which `Corpus.rows_of` finds"},
}


def hinted(op: str, *called: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate the function ``op``: its error for an unknown argument says which one may be meant.

    Errors that name one of the functions ``called`` by it name the op instead, which is what the user called.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except (MemoryError, TypeError, ValueError, RuntimeError) as error:
                explain(op, function, kwargs, error)
                name, colon, rest = str(error).partition(": ")
                if colon and name in called:
                    error.args = (f"{op}: {rest}",)
                raise

        return call

    return decorate


def explain(op: str, function: Callable[..., object], kwargs: dict[str, Any], error: Exception) -> None:
    """Raise what says more than an error of a call: which argument was meant, or that memory was too little."""
    if isinstance(error, MemoryError):
        if ": memory must " not in str(error):  # else a function of ours that it calls has worded it
            raise MemoryError(f"{op}: memory must suffice for the call, got: {error or 'too little'}") from error
        return
    code = function.__code__
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if unknown := [name for name in kwargs if name not in own]:
        raise TypeError(f"{op}: got an unexpected keyword argument {unknown[0]!r}{_hint(unknown[0], own)}") from None


def _hint(name: str, own: tuple[str, ...]) -> str:
    for ours, value in _ELSEWHERE.get(name, {}).items():
        if ours in own:
            return f"; it is called {ours!r} here and takes {value}"
    near = difflib.get_close_matches(name, own, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
