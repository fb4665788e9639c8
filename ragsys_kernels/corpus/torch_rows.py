"""Rows of a `Corpus` on a device: what `rows.store` does in NumPy, in torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base import arrays
from .._base.arrays import Torch
from ..selection.torch_search import unit

# Bytes of a block of rows while they are normalised, in float64.
_BLOCK_BYTES = 1 << 28


def store(
    place: Torch, array: Any, given: str, metric: str, dtype: str, scaled: bool
) -> tuple[Any, Any, float, np.ndarray, np.ndarray]:
    """Return rows in their storage type, scales if ``scaled``, the largest norm, and two masks of bad rows.

    ``array`` (N, D) is on the host or on the device. The masks mark rows that are not finite, and rows that leave the
    range of ``dtype``.
    """
    torch = place.torch
    num_rows, dims = array.shape
    cosine = metric == "cosine"
    on_device = not isinstance(array, np.ndarray) and array.device == place.device
    shared = not cosine and given == dtype and on_device and array.is_contiguous()
    data = array if shared else torch.empty((num_rows, dims), dtype=getattr(torch, dtype), device=place.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=place.device) if scaled else None
    norms = torch.empty(num_rows, dtype=torch.float64, device=place.device)
    bad = torch.empty((2, num_rows), dtype=torch.bool, device=place.device)
    block = max(1, _BLOCK_BYTES // (8 * dims))
    for begin in range(0, num_rows, block):
        part = slice(begin, begin + block)
        rows = _upload(place, array[part], given)
        bad[0, part] = ~rows.isfinite().all(1)
        rows = place.float32(rows, given).double()
        vectors = unit(rows) if cosine else rows
        if not shared:
            narrow = vectors.float()
            if dtype == "int8":
                largest = narrow.abs().amax(1, keepdim=True)
                narrow = (127 * narrow / largest.where(largest > 0, 1)).round()
            data[part] = narrow
        stored = data[part].double()
        bad[1, part] = ~stored.isfinite().all(1)
        if scales is not None and cosine:
            lengths = stored.square().sum(1).sqrt()
            scales[part] = (1 / lengths).where(lengths > 0, 0)
        elif scales is not None:
            scales[part] = vectors.abs().amax(1) / 127
        norms[part] = (vectors if scales is not None else stored).square().sum(1).sqrt()
    largest_norm = 1.0 if cosine else float(norms.max())
    if dtype == "int8":  # as in `rows.store`
        largest_norm *= 1 + dims**0.5 / 254
    return data, scales, largest_norm, *bad.cpu().numpy()


def _upload(place: Torch, part: Any, given: str) -> Any:
    """Return rows on the device; given as bits, bfloat16 becomes torch's."""
    if not isinstance(part, np.ndarray):
        return part.to(place.device)
    return arrays.tensor(part, given).to(place.device)
