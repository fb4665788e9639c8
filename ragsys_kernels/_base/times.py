"""Times as seconds since 1970, and lengths of time as seconds."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np

# Just beyond the year 9999, where Python's times end. Milliseconds are more from 1978 on.
MOST = 2.6e11
RULE = f"seconds since 1970, within [{-MOST:g}, {MOST:g}]"
_LENGTHS = ("W", "D", "h", "m", "s", "ms", "us", "ns")


def seconds(x: Any) -> Any:
    """Return times of NumPy's datetime64 as seconds since 1970 in float64, NaN for NaT; anything else as it is."""
    if getattr(getattr(x, "dtype", None), "kind", "") != "M":
        return x
    return (np.asarray(x, "datetime64[us]") - np.datetime64(0, "us")) / np.timedelta64(1, "s")


def scalar(op: str, name: str, value: Any) -> Any:
    """Return a ``now`` or a ``half_life`` that is a time or a timedelta as seconds; any other value as it is."""
    if name == "now":
        if isinstance(value, datetime):
            if value != value:  # NaT of pandas
                return math.nan
            return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
        return seconds(value)
    if name != "half_life":
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, np.timedelta64):
        if np.datetime_data(value.dtype)[0] not in _LENGTHS:
            raise ValueError(f"{op}: half_life must be seconds, or a timedelta of weeks or shorter units, got {value}")
        return float(value / np.timedelta64(1, "s"))
    return value


def likely_unit(value: float) -> str:
    """Return what an error adds of a time beyond `MOST`: the unit in which it would be a usual one."""
    units = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
    unit = next((unit for unit, per in units.items() if MOST < abs(value) <= MOST * per), None)
    return "" if unit is None else f", which looks like {unit}"
