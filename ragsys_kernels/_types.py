"""The types of public signatures, for which neither torch nor CuPy is imported."""

from __future__ import annotations

import os
from typing import Any, Literal, Protocol, TypeAlias

import numpy.typing as npt


class SupportsDLPack(Protocol):
    """An array of torch, CuPy or another library that shares its memory."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


# What is taken for an array: one of NumPy, torch or CuPy, anything with DLPack, a list of numbers.
ArrayLike: TypeAlias = npt.ArrayLike | SupportsDLPack
# What is given back: a NumPy array, a torch tensor or a CuPy array, as the caller's are; static types cannot tell.
Array: TypeAlias = Any

# The path of a file or folder.
PathLike: TypeAlias = str | os.PathLike[str]

Metric: TypeAlias = Literal["cosine", "dot"]
Method: TypeAlias = Literal["mmr", "vrsd"]
Storage: TypeAlias = Literal["float32", "float16", "bfloat16", "int8"]
Backend: TypeAlias = Literal["auto", "cpu", "reference", "triton", "cuda"]
ScoringBackend: TypeAlias = Literal["auto", "cpu", "numpy", "reference", "triton", "cuda"]
OnError: TypeAlias = Literal["raise", "skip"]
OutOfRange: TypeAlias = Literal["raise", "nan"]
