"""Relevance that falls with the age of items."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base import arrays as _arrays
from .._base import checks
from .._base.hints import hinted
from .._base.types import Array, ArrayLike, Decay
from . import filters
from .parameters import DECAYS

_OP = "decayed"


@hinted(_OP)
def decayed(
    relevance: ArrayLike,
    age: ArrayLike,
    half_life: float,
    kind: Decay = "exp",
    floor: float = 0,
) -> Array:
    """Return relevance that falls with the age of the items, to half at an age of ``half_life``: for `mmr` and others.

    With t = age / half_life, the relevance is multiplied by the larger of ``floor`` and::

        exp      2^-t
        gauss    2^-(t^2)                   falls less before the half-life, and faster after it
        linear   max(0, 1 - t / 2)          0 from twice the half-life on

    Parameters
    ----------
    relevance : (Q, P) or (P,) floating point, at least 0
        What is not finite, such as the -inf of `Corpus.search` where there is no row, stays as it is.
    age : numbers of the shape of ``relevance``, or (P,), at least 0
        Age of each item, in the unit of ``half_life``; inf for items without a time. Of times in seconds,
        ``now - time[candidates]``; of NumPy's datetime64, ``(now - time[candidates]) / np.timedelta64(1, "D")`` are
        days. An age below 0 is an error, because it mostly comes from a wrong unit or clock: pass
        ``np.maximum(age, 0)`` if items may be of the future.
    half_life : float
        The age at which an item keeps half of its relevance, above 0: a number in the unit of ``age``, no timedelta.
    kind : {"exp", "gauss", "linear"}
    floor : float, in [0, 1]
        The least that the relevance is multiplied by, so that old items do not vanish.

    Returns
    -------
    float32 array of the shape of ``relevance``, in the caller's library and on its device

    Raises
    ------
    ValueError
        Relevance below 0, which would rise with the age; ages below 0 or NaN, shapes that do not fit, a ``half_life``
        or ``floor`` out of range.
    TypeError
        Relevance that is not floating point, ages that are no numbers.

    Notes
    -----
    O(Q P) time, in float64. Values on a device are not checked: those that would be an error become NaN. The decay
    belongs before ``relevance_scale``, which the rules apply to what they get.

    Examples
    --------
    >>> import ragsys_kernels as rk
    >>> rk.decayed([[0.8, 0.8, 0.8]], [0, 7, 14], half_life=7)
    array([[0.8, 0.4, 0.2]], dtype=float32)
    >>> rk.decayed([[0.8, 0.8, 0.8]], [0, 7, 14], half_life=7, kind="linear", floor=0.25)
    array([[0.8, 0.4, 0.2]], dtype=float32)
    """
    checks.choice(_OP, "kind", kind, DECAYS)
    half, least = checks.number(_OP, "half_life", half_life), checks.number(_OP, "floor", floor)
    if not 0 < half < np.inf:
        raise ValueError(f"{_OP}: half_life must be above 0 and finite, got {checks.shown(half_life)}")
    if not 0 <= least <= 1:
        raise ValueError(f"{_OP}: floor must be within [0, 1], got {checks.shown(floor)}")
    library, device = checks.library_and_device(_OP, {"relevance": relevance, "age": age})
    place = _arrays.place_of(device, "cuda", library)
    with _arrays.NOTHING if place is _arrays.HOST else _arrays.on_stream(place, library):
        values = checks.floats(_OP, "relevance", relevance, place)
        ages = checks.doubles(_OP, "age", age, place)
        if values.ndim not in (1, 2):
            raise ValueError(
                f"{_OP}: relevance must have shape (Q, P) or (P,), got {checks.shape_text(tuple(values.shape))}"
            )
        shape = tuple(values.shape)
        checks.expect_shape(_OP, "age", ages, (shape, "of relevance"), (shape[-1:], "(P,)"))
        xp, values = filters.module(place), place.float64(values, "float32")
        finite = xp.isfinite(values)
        good, dated = (values >= 0) | ~finite, (ages >= 0) | ~finite
        if place is _arrays.HOST:
            try:
                checks.good_values(_OP, "relevance", values, good, "at least 0", None)
            except ValueError as error:
                cure = "put it on a scale from 0 to 1 first, as relevance_scale='minmax' does"
                raise ValueError(f"{error}; {cure}") from None
            checks.good_values(_OP, "age", np.broadcast_to(ages, shape), dated, "at least 0", None)
        made = xp.where(good & dated, fallen(xp, values, ages, half, kind, least), np.nan)
        return _arrays.to_library(place.float32(made, "float64"), library)


def fallen(xp: Any, values: Any, ages: Any, half_life: float, kind: str, floor: float) -> Any:
    """Return relevance, float64 as the ages are, that has fallen with the age; what is not finite stays."""
    with np.errstate(over="ignore", invalid="ignore"):  # of the largest ages, and of what stays as it is
        times = ages / half_life
        if kind == "linear":
            factor = 1 - times / 2
        else:
            factor = xp.exp2(-times if kind == "exp" else -times * times)
        return xp.where(xp.isfinite(values), values * xp.where(factor > floor, factor, floor), values)
