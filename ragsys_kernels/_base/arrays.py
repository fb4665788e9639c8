"""Arrays of other libraries as views, on the host or on a device, and results back in the caller's library.

torch and CuPy are looked up in ``sys.modules``: their arrays exist only once the caller has imported them. A call works
on arrays of one library in one place: NumPy's on the host, torch's or CuPy's on a device.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np

from . import tables

# Names of element types; bfloat16 is stored as its bits in uint16.
STORAGE = ("float32", "float16", "bfloat16")
# A Corpus also stores int8, with a scale for each row, and signs, eight to a byte.
CORPUS_STORAGE = (*STORAGE, "int8", "binary")
# Vectors that are quantised already, as a Corpus and queries take them: numbers like others, or to "binary" signs.
BYTES = ("int8", "uint8")
# The numbers of the types in the extension.
NUMBERS = {name: number for number, name in enumerate(CORPUS_STORAGE)}

# dtype.name takes a microsecond.
_NAMES = {np.dtype(name): name for name in ("float32", "float16", "float64", "int32", "int64")}


_Record = TypeVar("_Record")

_DLPACK_CUDA, _DLPACK_ROCM = 2, 10


def _torch_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _cupy_array(x: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def library_of(*arrays: Any) -> str:
    """Return ``"torch"`` if any array is a torch tensor, else ``"cupy"`` if any is a CuPy array, else ``"numpy"``."""
    if "torch" in sys.modules and any(map(_torch_tensor, arrays)):
        return "torch"
    return "cupy" if "cupy" in sys.modules and any(map(_cupy_array, arrays)) else "numpy"


def device_of(x: Any) -> str:
    """Return ``"cpu"``, or what the array's library calls its device."""
    if isinstance(x, np.ndarray):
        return "cpu"
    if _torch_tensor(x):
        return str(x.device)
    if hasattr(x, "__dlpack_device__") and not tables.of_table(x):
        kind, index = x.__dlpack_device__()
        if int(kind) == 1:
            return "cpu"
        # torch calls AMD's devices "cuda" as well.
        known = int(kind) in (_DLPACK_CUDA, _DLPACK_ROCM)
        return f"cuda:{index}" if known else f"{getattr(kind, 'name', kind)}:{index}".lower()
    return "cpu"


def host_view(op: str, name: str, x: Any) -> tuple[np.ndarray, str]:
    """Return ``x`` as a NumPy array, not copied if memory can be shared, and the name of its element type."""
    if isinstance(x, np.ndarray):
        if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
            raise TypeError(f"{op}: {name} must be an array without a mask, got a masked one; fill it with .filled()")
        array = tables.array(op, name, x) if x.dtype.kind == "O" and tables.is_nested(x) else x
        if type(array) is not np.ndarray:  # such as np.matrix, whose rows have two axes
            array = np.asarray(array)
    elif _torch_tensor(x):
        return _torch_view(op, name, x)
    elif tables.is_nested(x):
        array = tables.array(op, name, x)
    elif hasattr(x, "__dlpack__"):
        try:
            array = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{op}: {name} must be an array that NumPy can read, got {_kind(x)}: {error}") from error
    else:
        try:
            array = np.asarray(x)
        except ValueError as error:  # rows of unequal length
            tables.check_present(op, name, x)
            raise TypeError(f"{op}: {name} must be an array, got a ragged {type(x).__name__}; pad it first") from error
        except Exception as error:  # whatever an object's own conversion raises
            raise TypeError(f"{op}: {name} must be an array that NumPy can read, got {_kind(x)}: {error}") from error
    name_of_dtype = _NAMES.get(array.dtype)
    if name_of_dtype is not None:
        return array, name_of_dtype
    if array.dtype.name == "bfloat16":  # ml_dtypes
        return array.view(np.uint16), "bfloat16"
    if array.dtype.kind not in "fiub":
        tables.check_present(op, name, x)
        raise TypeError(f"{op}: {name} must be an array of numbers, got {type(x).__name__} of dtype {array.dtype}")
    return array, array.dtype.name


def _torch_view(op: str, name: str, x: Any) -> tuple[np.ndarray, str]:
    torch = sys.modules["torch"]
    if x.layout is not torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor, got layout {x.layout}")
    try:
        x = x.detach()
        if x.dtype is torch.bfloat16:
            return x.view(torch.int16).numpy().view(np.uint16), "bfloat16"
        array: np.ndarray = x.numpy()
    except (RuntimeError, TypeError) as error:  # quantised, on no device, of a type that NumPy lacks
        raise TypeError(f"{op}: {name} must be a tensor that NumPy can read, got {_kind(x)}") from error
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{op}: {name} must be a tensor of numbers, got {_kind(x)}")
    return array, _NAMES.get(array.dtype) or array.dtype.name


def _kind(x: Any) -> str:
    return f"{type(x).__name__} of dtype {getattr(x, 'dtype', 'unknown')}"


def to_library(array: Any, library: str) -> Any:
    """Return an array in the caller's library, in the place where it is."""
    here = "numpy" if isinstance(array, np.ndarray) else library_of(array)
    if here == library:
        return array
    if here == "torch" and library == "numpy":  # the caller gave NumPy's arrays, or another library's on a device
        return array.numpy() if array.device.type == "cpu" else array
    if library == "torch" and here == "numpy":
        return sys.modules["torch"].from_numpy(array)
    if library == "numpy":
        return array
    return sys.modules[library].from_dlpack(array)


def to_host(x: Any) -> Any:
    """Return an array on a device as NumPy's, bfloat16 as its bits, which waits for the device; others as they are."""
    if _torch_tensor(x) and x.device.type != "cpu":
        x = x.detach().cpu()
        bits = x.dtype is sys.modules["torch"].bfloat16
        return x.view(sys.modules["torch"].int16).numpy().view(np.uint16) if bits else x.numpy()
    return x.get() if _cupy_array(x) else x


def widen(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return stored elements as float32, exactly; float32 itself is not copied."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if dtype == "binary":
        return np.unpackbits(array, axis=-1).astype(np.float32) * 2 - 1
    return array.astype(np.float32, copy=False)


def narrow(array: np.ndarray, dtype: str) -> np.ndarray:
    """Round float32 elements to the storage type, to nearest with ties to even; int8 in steps of max|row| / 127.

    "binary" keeps the signs, 1 for what is above 0.
    """
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    if dtype == "int8":
        largest = np.abs(array).max(axis=-1, keepdims=True)
        steps = np.divide(127 * array, largest, out=np.zeros_like(array), where=largest > 0)
        return np.asarray(np.rint(steps), np.int8)
    if dtype == "binary":
        return np.packbits(array > 0, axis=-1)
    return array.astype(dtype, copy=False)


def signs(array: np.ndarray) -> np.ndarray:
    """Return packed signs as uint8; int8 has them less 128, as sentence-transformers' "binary" does."""
    return array if array.dtype == np.uint8 else array.view(np.uint8) ^ np.uint8(0x80)


def dims_of(dtype: str, elements: int) -> int:
    """Return the dimensions of a stored row of so many elements."""
    return 8 * elements if dtype == "binary" else elements


def cache_aligned(num_rows: int, dims: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return an empty array that starts on a cache line: a vector load across two lines costs two loads."""
    size, line = num_rows * dims * dtype.itemsize, 64
    memory = np.empty(size + line, np.uint8)
    start = -memory.ctypes.data % line
    return memory[start : start + size].view(dtype).reshape(num_rows, dims)


_KEPT = 256


@functools.lru_cache(maxsize=64)
def _kept(size: int, value: float) -> np.ndarray:
    """Return an array filled with one weight; calls for a few queries share it."""
    same = np.full(size, value, np.float32)
    same.flags.writeable = False
    return same


def scaled(metric: str, dtype: str) -> bool:
    """Return whether rows of this type have scales in a Corpus."""
    return dtype == "int8" or (metric == "cosine" and dtype in ("float16", "bfloat16"))


class Host:
    """NumPy arrays."""

    view = staticmethod(host_view)

    @staticmethod
    def float32(array: np.ndarray, dtype: str) -> np.ndarray:
        if dtype == "bfloat16":
            return np.asarray(widen(array, dtype), order="C")
        with np.errstate(over="ignore"):  # inf is reported as not finite
            return np.asarray(array, np.float32, order="C")

    @staticmethod
    def float64(array: np.ndarray, dtype: str) -> np.ndarray:
        # An array of no dimensions stays one.
        return Host.packed(np.asarray(widen(array, dtype) if dtype == "bfloat16" else array, np.float64))

    @staticmethod
    def int64(array: np.ndarray) -> np.ndarray:
        return Host.packed(np.asarray(array, np.int64))

    @staticmethod
    def packed(array: np.ndarray) -> np.ndarray:
        """Return an array that is contiguous, aligned and in native byte order."""
        flags = array.flags
        if flags.c_contiguous and flags.aligned and array.dtype.isnative:
            return array
        return np.array(array, array.dtype.newbyteorder("="), order="C")

    @staticmethod
    def is_packed(array: np.ndarray) -> bool:
        return array.flags.c_contiguous

    @staticmethod
    def is_native(array: np.ndarray) -> bool:
        """Return whether elements are aligned and in native byte order."""
        return array.flags.aligned and array.dtype.isnative

    @staticmethod
    def strides(array: np.ndarray) -> tuple[int, ...]:
        """Return the strides in bytes."""
        return array.strides

    @staticmethod
    def upload(array: np.ndarray) -> np.ndarray:
        return array

    @staticmethod
    def filled(size: int, value: float) -> np.ndarray:
        return _kept(size, value) if size <= _KEPT else np.full(size, value, np.float32)


class Torch:
    """torch tensors on one device."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device = torch, torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())

    def view(self, op: str, name: str, x: Any) -> tuple[Any, str]:
        """Return the array as a tensor, not copied if it is on a device, and the name of its element type."""
        if not _torch_tensor(x):
            if device_of(x) == "cpu":  # numbers and lists
                x = self.torch.from_numpy(np.array(host_view(op, name, x)[0]))
            elif str(x.dtype) == "bfloat16":  # CuPy's travels as its bits
                x = self.torch.from_dlpack(x.view(np.int16)).view(self.torch.bfloat16)
            else:
                x = self.torch.from_dlpack(x)
        elif x.layout is not self.torch.strided:
            raise TypeError(f"{op}: {name} must be a dense tensor, got layout {x.layout}")
        return x.detach().to(self.device), str(x.dtype).removeprefix("torch.")

    def float32(self, tensor: Any, dtype: str) -> Any:
        return tensor.to(self.torch.float32).contiguous()

    def float64(self, tensor: Any, dtype: str) -> Any:
        return tensor.double().contiguous()

    def int64(self, tensor: Any) -> Any:
        return tensor.to(self.torch.int64).contiguous()

    def packed(self, tensor: Any) -> Any:
        return tensor.contiguous()

    def is_packed(self, tensor: Any) -> bool:
        return bool(tensor.is_contiguous())

    def is_native(self, tensor: Any) -> bool:
        return True

    def strides(self, tensor: Any) -> tuple[int, ...]:
        return tuple(n * tensor.element_size() for n in tensor.stride())

    def norms(self, tensor: Any, dtype: str) -> np.ndarray:
        """Return the norms of rows in float64 on the host; not finite where a row is not."""
        return np.concatenate(
            [part.double().square().sum(1).sqrt().cpu().numpy() for part in tensor.split(_block(tensor))]
        )

    def upload(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(array).to(self.device)

    def filled(self, size: int, value: float) -> Any:
        return self.torch.full((size,), value, dtype=self.torch.float32, device=self.device)


class Cupy:
    """CuPy arrays on one device; bfloat16 travels as its bits in uint16."""

    def __init__(self, device: str) -> None:
        import cupy

        self.cupy, self.device = cupy, cupy.cuda.Device(int(device.partition(":")[2] or 0))

    def view(self, op: str, name: str, x: Any) -> tuple[Any, str]:
        if not _cupy_array(x):
            with self.device:
                if device_of(x) == "cpu":  # numbers and lists
                    x = self.cupy.asarray(host_view(op, name, x)[0])
                else:
                    x = self.cupy.from_dlpack(x)
        name_of_dtype = x.dtype.name
        return (x.view(self.cupy.uint16) if name_of_dtype == "bfloat16" else x), name_of_dtype

    def float32(self, array: Any, dtype: str) -> Any:
        if dtype == "bfloat16":
            return (array.astype(self.cupy.uint32) << 16).view(self.cupy.float32)
        return self.cupy.ascontiguousarray(array, self.cupy.float32)

    def float64(self, array: Any, dtype: str) -> Any:
        array = self.float32(array, dtype) if dtype == "bfloat16" else array
        return self.cupy.ascontiguousarray(array, self.cupy.float64)

    def int64(self, array: Any) -> Any:
        return self.cupy.ascontiguousarray(array, self.cupy.int64)

    def packed(self, array: Any) -> Any:
        return self.cupy.ascontiguousarray(array)

    def is_packed(self, array: Any) -> bool:
        return bool(array.flags.c_contiguous)

    def is_native(self, array: Any) -> bool:
        return True

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(array.strides)

    def norms(self, array: Any, dtype: str) -> np.ndarray:
        """Return the norms of rows in float64 on the host; not finite where a row is not."""
        norms = np.empty(len(array))
        for begin in range(0, len(array), block := _block(array)):
            part = self.float32(array[begin : begin + block], dtype).astype(self.cupy.float64)
            norms[begin : begin + block] = self.cupy.sqrt((part * part).sum(1)).get()
        return norms

    def upload(self, array: np.ndarray) -> Any:
        with self.device:
            return self.cupy.asarray(array)

    def filled(self, size: int, value: float) -> Any:
        with self.device:
            return self.cupy.full(size, value, self.cupy.float32)


def _block(rows: Any) -> int:
    """Return how many rows take 64 MB in float64."""
    dims: int = rows.shape[1]
    return max(1, (1 << 26) // (8 * dims))


Place = Host | Torch | Cupy
HOST = Host()

# A block in which nothing is changed.
NOTHING: AbstractContextManager[Any] = nullcontext()


def place_of(device: str, backend: str, library: str) -> Place:
    """Return where a backend takes the arrays of a call, which are on ``device`` and mostly of ``library``."""
    if device == "cpu":
        return HOST
    return Cupy(device) if backend == "cuda" and library == "cupy" else Torch(device)


# What kernels of a device are launched with.


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return an array that is not yet written, in the library and on the device of ``like``."""
    if _torch_tensor(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if _cupy_array(like):
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype)
    return np.empty(shape, dtype)


def full(like: Any, shape: tuple[int, ...], value: float, dtype: str) -> Any:
    array = empty(like, shape, dtype)
    if _torch_tensor(like):
        return array.fill_(value)
    array.fill(value)
    return array


def pointer(array: Any) -> int:
    """Return the address of the first element."""
    if _torch_tensor(array):
        return int(array.data_ptr())
    return int(array.data.ptr if _cupy_array(array) else array.ctypes.data)


def on_stream(place: Place, library: str) -> AbstractContextManager[Any]:
    """Make CuPy's device and stream the current ones in a block, where the caller's arrays are CuPy's.

    A backend that takes them as they are makes others on CuPy's current device. For one that takes tensors CuPy's
    current stream becomes torch's: so the work comes after what that stream holds, what follows on it comes after the
    work, and memory that either library hands out again belongs to the same stream; a graph that CuPy captures there
    has the work in it.
    """
    if isinstance(place, Cupy):
        device: AbstractContextManager[Any] = place.device
        return device
    if library != "cupy" or not isinstance(place, Torch):
        return NOTHING
    handle = sys.modules["cupy"].cuda.get_current_stream(place.device.index).ptr
    cuda = place.torch.cuda
    context: AbstractContextManager[Any] = cuda.stream(cuda.ExternalStream(handle, device=place.device))
    return context


def on_device(array: Any) -> AbstractContextManager[Any]:
    """Make the array's device the current one in a block; nothing happens for an array on the host."""
    if _torch_tensor(array) and array.device.type == "cuda":
        context: AbstractContextManager[Any] = sys.modules["torch"].cuda.device(array.device)
        return context
    if _cupy_array(array):
        device: AbstractContextManager[Any] = array.device
        return device
    return NOTHING


def tensors(record: _Record) -> _Record:
    """Return a problem whose NumPy arrays have become torch tensors of the same memory; torch tensors stay as they are.

    An array tagged bfloat16 (by ``dtype`` for ``data``, ``x_dtype`` for ``x``) becomes a tensor of that type. Of arrays
    that begin at the same address, as queries that are the first embeddings, all but the first are copied: Triton's
    interpreter knows memory by where it begins.
    """
    begun: set[int] = set()

    def nested(record: Any) -> Any:
        def changed_field(name: str, value: Any) -> Any:
            if not isinstance(value, np.ndarray):
                return value
            begin = pointer(value)
            value = value.copy() if begin in begun else value
            begun.add(begin)
            return tensor(value, getattr(record, "dtype" if name == "data" else f"{name}_dtype", ""))

        return _mapped(record, changed_field, nested)

    mapped: _Record = nested(record)
    return mapped


def hosted(record: _Record) -> _Record:
    """Return a problem on a device with all its arrays but the embeddings and their codes brought to the host."""
    there = ("data", "codes")
    mapped: _Record = _mapped(record, lambda name, value: value if name in there else to_host(value), hosted)
    return mapped


def _mapped(record: Any, change: Callable[[str, Any], Any], nested: Callable[[Any], Any]) -> Any:
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return changed(record, **{
        name: nested(value) if dataclasses.is_dataclass(value) else change(name, value)
        for name, value in fields.items()
    })  # fmt: skip


def changed(record: _Record, **fields: Any) -> _Record:
    """Return a copy with other fields; `dataclasses.replace` would call the ``__init__`` of a Corpus."""
    other = copy.copy(record)
    for name, value in fields.items():
        object.__setattr__(other, name, value)
    return other


def tensor(array: np.ndarray, tag: str) -> Any:
    """Return a CPU tensor, of the same memory if torch can share it; ``tag`` tells bits of bfloat16."""
    import torch

    if not array.flags.writeable or any(stride < 0 for stride in array.strides):  # torch has no such tensors
        array = array.copy()
    tensor = torch.from_numpy(array.view(np.int16) if tag == "bfloat16" else array)
    return tensor.view(torch.bfloat16) if tag == "bfloat16" else tensor
