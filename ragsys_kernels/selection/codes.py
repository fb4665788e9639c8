"""8-bit codes of a corpus's rows, which show the kernels the rows that they need not read.

A code row is the same on the host and on a device but for its first D bytes: the host's are unsigned (the code + 128),
as its instructions multiply unsigned bytes with signed ones, a device's are signed, as its matrix units take them.
"""

from __future__ import annotations

import numpy as np

from .. import _dispatch
from .._base import arrays, env
from .problem import Rows

_MOST_DIMS = 1 << 16  # products of more dimensions may leave the range of int32
_HEADER = 12  # bytes of a code row that hold its scale, its error and the sum of its codes


def row_bytes(dims: int) -> int:
    """Return the bytes of a code row, which fills whole cache lines (csrc/cpu/selection/args.h)."""
    return (dims + _HEADER + 63) // 64 * 64


def useful(dtype: str, metric: str, dims: int) -> bool:
    """Return whether rows get codes: unit rows of floats do."""
    return metric == "cosine" and dtype in arrays.STORAGE and dims <= _MOST_DIMS


def encode(data: np.ndarray, dtype: str, metric: str, scales: np.ndarray | None) -> tuple[np.ndarray | None, float]:
    """Return code rows (N, row_bytes(D)) uint8 of unit rows and their largest error, or None where codes are no use."""
    if not useful(dtype, metric, data.shape[1]) or _dispatch.why_not("cpu") is not None:
        return None, 0.0
    module = _dispatch.extension()
    codes = module.encode(data, dtype, scales, _dispatch.isa_index(), env.num_threads())
    return codes, module.code_error(codes)


def can_scan(rows: Rows, vectors: int) -> bool:
    """Return whether a scan of all rows for so many vectors is fastest by codes; for many it needs AVX512-VNNI.

    Unit rows of int8 are codes themselves (``rows_are_codes`` of csrc/cpu/selection/args.h).
    """
    if own := rows.codes is None:
        kind = rows.dtype, rows.metric, rows.norm
        if kind != ("int8", "cosine", "scaled") or rows.dims > _MOST_DIMS:
            return False
    return bool(_dispatch.extension().code_scan_supported(_dispatch.isa_index(), vectors, own))
