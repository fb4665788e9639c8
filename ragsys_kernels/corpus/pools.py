"""What `Corpus.select` checks before it retrieves pools and selects out of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base import arrays, checks
from ..selection import METHODS, filters

# Whoever compares a rule with MMR calls it with MMR's defaults, which are then no request.
_DEFAULTS = {"lambda_d": 0.75, "lambda_b": 0.95}


def of_rule(op: str, method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the rule takes and that were given; refuse what it does not take."""
    takes = METHODS[method].parameters
    for name, value in given.items():
        usual = value is None or (isinstance(value, (int, float)) and value == _DEFAULTS.get(name))
        if name not in takes and not usual:
            got = checks.shown(value)
            raise ValueError(f"{op}: {name} must be left out with method {method!r}, got {got}")
    return {name: value for name, value in given.items() if name in takes and value is not None}


def has_bias(method: str) -> bool:
    """Whether the rule's relevance has the bias in it, by which pools are then searched for too."""
    return "bias" in METHODS[method].parameters


def check_index(op: str, pool: int | None, others: dict[str, Any]) -> None:
    """Refuse what says otherwise than a FAISS index where pools come from."""
    for name in (name for name, value in others.items() if value is not None):
        raise ValueError(f"{op}: index must come without {name}, got both")
    if pool is None:
        raise ValueError(f"{op}: index must come with a pool, got pool=None")


def check_columns(op: str, given: dict[str, Any], num_rows: int) -> None:
    """Refuse values for each query's items: whoever gives them cannot know in which order a search finds the pool."""
    for name, values in given.items():
        shape = _shape(values)
        if len(shape) > 1:
            raise ValueError(
                f"{op}: {name} must have shape (N,) = ({num_rows},) where the pool is searched for, "
                f"got {checks.shape_text(shape)}; pool=None takes (Q, N)"
            )


def cut(rows: Any, pool: int, initial: Any) -> tuple[Any, Any]:
    """Return pools (Q, any) of ``pool`` rows and one more for each that their own query has shown, and these sizes.

    ``rows`` were found for the query that has shown most. Sizes are None where all pools are whole.
    """
    if initial is None:
        return rows, None
    shape, kind = _shape(initial), arrays.library_of(rows)
    if len(shape) != 2 or arrays.device_of(initial) != arrays.device_of(rows):
        return rows, None  # what is wrong is refused where it is read
    own = np.asarray(initial) if arrays.library_of(initial) == "numpy" else initial
    if shape[0] != len(rows) or (isinstance(own, np.ndarray) and (own.dtype.kind not in "iu" or (own >= 0).all())):
        return rows, None
    sizes = (arrays.to_library(own, kind) >= 0).sum(1) + pool
    library = filters.library_of_array(rows)
    return library.where(filters.arange(library, rows.shape[1], rows) < sizes[:, None], rows, -1), sizes


def width(ids: Any) -> int:
    """Return how many ids a query has."""
    shape = _shape(ids)
    return int(shape[-1]) if shape else 0


def _shape(x: Any) -> tuple[int, ...]:
    """Return the shape of an array; what is none is refused where it is read."""
    try:
        return np.shape(x)
    except Exception:  # rows of unequal length, an object that makes no array
        return ()
