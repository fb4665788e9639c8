"""Variants of GPU kernels that only a device can judge: which one runs.

The first of each kernel runs unless RAGSYS_KERNELS_VARIANTS names another; ``make gpu-check`` times all.
"""

from __future__ import annotations

import functools
from types import MappingProxyType

from .._base import env

# Kernel: its variants, the default first. All give the same picks; the same bits unless its file says otherwise.
VARIANTS: dict[str, tuple[str, ...]] = {
    # Triton on Hopper, MMR out of 65 to 128 float32 rows: each pick meets all rows in float32, or TF32 tells which have
    # to.
    "float32": ("rows", "estimates"),
    # Search: bits of the rows that may be among the best, or a value of each row and query.
    "search": ("bits", "values"),
    # Regime c of MMR: picks drafted from a search and proven by bits of the rows that may be better, or a read of all
    # rows a pick.
    "corpus": ("bits", "dense"),
}


def variant(kernel: str) -> str:
    """Return the variant of a kernel that is in force."""
    return chosen(env.variants())[kernel]


@functools.cache
def chosen(text: str) -> MappingProxyType[str, str]:
    """Return the variant of every kernel under a value of RAGSYS_KERNELS_VARIANTS."""
    variants = {kernel: names[0] for kernel, names in VARIANTS.items()}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kernel, _, name = part.partition("=")
        if name not in VARIANTS.get(kernel, ()):
            known = ", ".join(f"{kernel}={name}" for kernel, names in VARIANTS.items() for name in names)
            raise ValueError(f"RAGSYS_KERNELS_VARIANTS must be a list with commas of {known}, got {part!r}")
        variants[kernel] = name
    return MappingProxyType(variants)
