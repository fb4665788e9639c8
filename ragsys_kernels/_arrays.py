"""Arrays of other libraries as NumPy views, and results back in the caller's library.

torch and CuPy are recognised through ``sys.modules`` and never imported: an array of theirs can only exist once the
caller has imported them.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

# How a stored element is named throughout; bfloat16 travels as its bits in uint16.
STORAGE = ("float32", "float16", "bfloat16")
# A Corpus also stores int8, with a scale for each row.
CORPUS_STORAGE = (*STORAGE, "int8")
# Their numbers in the extension.
NUMBERS = {name: number for number, name in enumerate(CORPUS_STORAGE)}

# dtype.name takes a microsecond to make up.
_NAMES = {np.dtype(name): name for name in ("float32", "float16", "float64", "int32", "int64")}


def _torch_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def library_of(*arrays: Any) -> str:
    """``"torch"`` if any array is a torch tensor, else ``"numpy"``."""
    torch = sys.modules.get("torch")
    return "torch" if torch is not None and any(isinstance(x, torch.Tensor) for x in arrays) else "numpy"


def device_of(x: Any) -> str:
    """``"cpu"``, or what the array's library calls its device."""
    if isinstance(x, np.ndarray):
        return "cpu"
    if _torch_tensor(x):
        return str(x.device)
    if hasattr(x, "__dlpack_device__"):
        kind, index = x.__dlpack_device__()
        return "cpu" if int(kind) == 1 else f"{getattr(kind, 'name', kind)}:{index}".lower()
    return "cpu"


def host_view(op: str, name: str, x: Any) -> tuple[np.ndarray, str]:
    """``x`` as a NumPy array without copying where its memory can be shared, and the name of its element type."""
    if isinstance(x, np.ndarray):
        array = x
    elif _torch_tensor(x):
        return _torch_view(op, name, x)
    elif hasattr(x, "__dlpack__"):
        array = np.from_dlpack(x)
    else:
        try:
            array = np.asarray(x)
        except ValueError as error:  # rows of unequal length
            raise TypeError(f"{op}: {name} must be an array, got a ragged {type(x).__name__}; pad it first") from error
    name_of_dtype = _NAMES.get(array.dtype)
    if name_of_dtype is not None:
        return array, name_of_dtype
    if array.dtype.name == "bfloat16":  # ml_dtypes
        return array.view(np.uint16), "bfloat16"
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{op}: {name} must be an array of numbers, got {type(x).__name__} of dtype {array.dtype}")
    return array, array.dtype.name


def _torch_view(op: str, name: str, x: Any) -> tuple[np.ndarray, str]:
    torch = sys.modules["torch"]
    if x.layout is not torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor, got layout {x.layout}")
    x = x.detach()
    if x.dtype is torch.bfloat16:
        return x.view(torch.int16).numpy().view(np.uint16), "bfloat16"
    array: np.ndarray = x.numpy()
    return array, array.dtype.name


def to_library(array: np.ndarray, library: str) -> Any:
    return sys.modules["torch"].from_numpy(array) if library == "torch" else array


def widen(array: np.ndarray, dtype: str) -> np.ndarray:
    """Stored elements as float32, exactly; float32 itself is returned as it is."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


def narrow(array: np.ndarray, dtype: str) -> np.ndarray:
    """float32 elements rounded to the storage type, to nearest with ties to even; int8 in steps of max|row| / 127."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    if dtype == "int8":
        largest = np.abs(array).max(axis=-1, keepdims=True)
        steps = np.divide(127 * array, largest, out=np.zeros_like(array), where=largest > 0)
        return np.asarray(np.rint(steps), np.int8)
    return array.astype(dtype, copy=False)
