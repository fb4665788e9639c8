"""Which backend `auto` tries first for arrays on a device: by the shape of the call, not by the arrays' library.

`TABLE` is all there is to it: the pools whose selection CUDA C++ does first. All else is Triton's first. A backend that
cannot run is passed over, and one that is asked for by name is taken whatever stands here.

``python -m benchmarks.gpu.preference`` writes the table anew, by measured times once there are some and by computed
bounds until then: to be run after a change of what a kernel reads or multiplies.

Scoring is not in it: only Triton has its kernels for a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

BACKENDS = ("triton", "cuda")


class Pools(NamedTuple):
    """Pools of so many items and dimensions."""

    least: int
    most: int
    most_dims: int


# --- Written by benchmarks/gpu/preference.py.
SOURCE = "by times measured on NVIDIA H200"
TABLE: dict[tuple[str, str], tuple[Pools, ...]] = {}
# --- End of what is written.


def order(call: tuple[str, str, int, int] | None = None) -> tuple[str, ...]:
    """Return the backends for a call, which `of` describes."""
    if call is not None:
        op, dtype, items, dims = call
        for pools in TABLE.get((op, "float16" if dtype == "bfloat16" else dtype), ()):
            if pools.least <= items <= pools.most and dims <= pools.most_dims:
                return BACKENDS[::-1]
    return BACKENDS


def of(op: str, arrays: Mapping[str, Any]) -> tuple[str, str, int, int] | None:
    """Return op, dtype, P and D of a selection; None for a whole corpus, and for arrays that are refused later."""
    rows, shape, pools = arrays["embeddings"], _shape(arrays["embeddings"]), _shape(arrays["candidates"])
    dtype = str(getattr(rows, "dtype", "")).removeprefix("torch.")
    if len(shape) == 3:
        return op, dtype, shape[1], shape[2]
    return (op, dtype, pools[1], shape[1]) if len(shape) == len(pools) == 2 else None


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(getattr(x, "shape", ()))


def described() -> str:
    """Return the table in words, for `show_config`."""
    parts = []
    for (op, dtype), found in TABLE.items():
        sizes = ", ".join(f"P {pools.least}-{pools.most} D <= {pools.most_dims}" for pools in found)
        parts.append(f"cuda for {op} of {dtype.replace('float16', '16 bits')} ({sizes})")
    return "; ".join([*parts, f"else triton; {SOURCE}" if parts else f"triton; {SOURCE}"])
