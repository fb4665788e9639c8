"""The types of public signatures; none of them needs torch or CuPy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt


class SupportsDLPack(Protocol):
    """An array of torch, CuPy or another library that shares its memory."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


# What functions take as an array: one of NumPy, torch or CuPy, anything with DLPack, a list of numbers.
ArrayLike: TypeAlias = npt.ArrayLike | SupportsDLPack
# What functions return: an array of the caller's library, NumPy, torch or CuPy, which static types cannot tell.
Array: TypeAlias = Any
# An array of NumPy, which the modules that work on the host have under the name of Array.
NDArray: TypeAlias = npt.NDArray[Any]

# Similarities in the place of vectors: (Q, P, P), a function of ids, or sparse rows of SciPy.
Similarity: TypeAlias = Any

# The most picks of a group: a number for all, or one for each group; of several levels also a sequence of these.
MaxPerGroup: TypeAlias = int | Mapping[Any, int] | Sequence[int | Mapping[Any, int] | None]
# The least picks of a group: a number for all, or one for each group.
MinPerGroup: TypeAlias = int | Mapping[Any, int]

# The path of a file or folder.
PathLike: TypeAlias = str | os.PathLike[str]

Metric: TypeAlias = Literal["cosine", "dot"]
Method: TypeAlias = Literal["mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage", "gist"]
Storage: TypeAlias = Literal["float32", "float16", "bfloat16", "int8", "binary"]
Backend: TypeAlias = Literal["auto", "cpu", "reference", "triton", "cuda"]
ScoringBackend: TypeAlias = Literal["auto", "cpu", "numpy", "reference", "triton"]
RelevanceScale: TypeAlias = Literal["as-is", "minmax", "zscore", "rank"]
# Lengths of time in seconds, and times in seconds since 1970; a datetime without a zone is in UTC.
Seconds: TypeAlias = float | timedelta | np.timedelta64
Moment: TypeAlias = float | datetime | np.datetime64
Decay: TypeAlias = Literal["exp", "gauss", "linear"]
OnError: TypeAlias = Literal["raise", "skip"]
BadRows: TypeAlias = Literal["raise", "skip"]
OnDuplicate: TypeAlias = Literal["error", "first", "last"]
OutOfRange: TypeAlias = Literal["raise", "nan"]
