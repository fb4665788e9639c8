"""Kernels of csrc/cuda: their sources, compiled for the device in use and launched on the caller's stream.

The driver launches them (`driver.py`). Unless the package was built with RAGSYS_KERNELS_CUDA=1 (setup.py) and has them
compiled, CuPy does that by NVRTC, once for each architecture, and keeps the result on disk. torch is never linked: its
tensors come as pointers.
"""

from __future__ import annotations

import functools
import importlib
import struct
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._base import arrays
from .._base import sources as sources_of
from .._base.extras import absent, imported, install
from . import driver as _driver
from .driver import DriverError, driver

OPTIONS = sources_of.CUDA_OPTIONS

# The oldest architecture in the fatbins; an older device gets its kernels from NVRTC.
OLDEST_BUILT = 80

_PACKAGE = Path(__file__).parents[1]


# --- Sources.


def _folders() -> tuple[Path, Path]:
    """Return where sources are once installed, and where in a working tree (no folder is mapped in place)."""
    return _PACKAGE / "_cuda_src", _PACKAGE.parent / "csrc" / "cuda"


def sources() -> list[str]:
    """Return the names of all sources; none if neither folder exists."""
    return next((names for folder in _folders() if (names := sorted(path.stem for path in folder.glob("*.cu")))), [])


def source_path(name: str) -> Path:
    """Return the .cu file of a name."""
    places = [folder / f"{name}.cu" for folder in _folders()]
    for path in places:
        if path.is_file():
            return path
    raise FileNotFoundError(f"the CUDA source {name!r} is neither {' nor '.join(map(str, places))}; reinstall")


def source(name: str) -> str:
    """Return the text of a source with the text of its includes."""
    return sources_of.expanded(source_path(name))


def built_path(name: str) -> Path | None:
    """Return the binary in the package that was built from the current source; any binary if there is no source."""
    found = _built().get(name, [])
    if found and name in sources():
        found = [path for path in found if path.name == sources_of.binary_of(source_path(name))]
    return next(iter(found), None)


def _built() -> dict[str, list[Path]]:
    """Return the binaries in the package by the names of their sources, whether or not they are up to date."""
    found: dict[str, list[Path]] = {}
    for path in sorted((_PACKAGE / "_cuda_bin").glob("*.fatbin")):
        found.setdefault(path.stem.partition("-")[0], []).append(path)
    return found


def described() -> str:
    """Return for `show_config` how kernels are compiled, and which binaries are not used."""
    there = _built()
    names = sources() or list(there)
    own = [name for name in names if built_path(name) is not None]
    other = [name for name in names if name in there and name not in own]
    parts = [f"compiled ahead of time: {', '.join(own)}"] if own else []
    parts += [f"compiled ahead of time from other sources, so not used: {', '.join(other)}"] if other else []
    parts += [f"{'the others ' if own else ''}compiled when first used"] if len(own) < len(names) else []
    return "; ".join(parts) or "no sources"


# --- Whether anything can run.


@functools.cache
def why_not() -> str | None:
    """Return the reason that CUDA kernels cannot run here, or None if they can."""
    names = sources()
    if not names and not _built():
        return f"the CUDA sources are neither in {' nor in '.join(map(str, _folders()))}; reinstall"
    compiled = all(built_path(name) is not None for name in names)
    return (None if compiled else _why_no_compiler()) or _why_no_device()


def _why_no_compiler() -> str | None:
    try:
        cupy = imported("cupy")
    except Exception as error:  # whatever an import of a foreign library raises
        if isinstance(error, ImportError) and error.name == "cupy":
            return f"{absent('cupy', 'cuda')}, which compiles the CUDA sources"
        return f"cupy, which compiles the CUDA sources, is broken: {error}"
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        return f"NVRTC, which compiles the CUDA sources, cannot be loaded: {error}; {install('cuda')}"
    return None


def _why_no_device() -> str | None:
    try:
        return None if driver().device_count() else "there is no CUDA device"
    except (DriverError, AttributeError) as error:  # an old library lacks functions
        return f"there is no CUDA driver or device: {error}; a GPU needs NVIDIA's driver"


# --- Launching.


class Struct:
    """Arguments that a kernel takes as one struct by value, in the order of its members."""

    def __init__(self, **members: Any) -> None:
        self.members = members


def pack(arguments: Sequence[Any]) -> tuple[bytes, list[int], list[tuple[int, Any]]]:
    """Return arguments as a kernel takes them, where each begins, and where the pointers of which arrays belong.

    None is a null pointer, an int has 64 bits and a float 32 bits; NumPy scalars are for other widths. What is none of
    these is an array, whose pointer is left out. A `Struct` is laid out as C does it.
    """
    packed, begins, pointers = bytearray(), [], list[tuple[int, Any]]()
    for x in arguments:
        packed += bytes(-len(packed) % _ALIGNMENT)
        begins.append(len(packed))
        letters, values = "", list[Any]()
        for value in x.members.values() if isinstance(x, Struct) else (x,):
            letter, number = _scalar(value)
            letters += letter
            values.append(number)
            if number is None:
                pointers.append((len(packed) + struct.calcsize(f"@{letters}") - _POINTER.size, value))
        packed += struct.pack(f"@{letters}0q", *(0 if value is None else value for value in values))
    return bytes(packed), begins, pointers


_ALIGNMENT = 16
_POINTER = struct.Struct("@Q")


def _scalar(x: Any) -> tuple[str, Any]:
    """Return an argument's letter, as Python's struct module has it, and its value: None for that of an array."""
    if x is None:
        return "Q", 0
    if isinstance(x, (bool, np.bool_)):
        raise TypeError("a kernel takes no bool; give it an int")
    if isinstance(x, np.generic):
        return x.dtype.char, x.item()
    if isinstance(x, int):
        if not -(1 << 63) <= x < 1 << 63:
            raise OverflowError(f"a kernel takes integers of 64 bits, got {x}")
        return "q", x
    return ("f", x) if isinstance(x, float) else ("Q", None)


def row_stride(rows: Any) -> int:
    """Return the elements from one row of a matrix, or of matrices, to the next."""
    strides = getattr(rows, "stride", None)
    return int(strides(-2)) if strides is not None else int(rows.strides[-2] // rows.dtype.itemsize)


def _pointer(x: Any) -> int:
    device_of(x)
    return arrays.pointer(x)


def device_of(x: Any) -> int:
    """Return the number of the device that an array is on."""
    library = arrays.library_of(x)
    if library == "cupy":
        return int(x.device.id)
    if library == "torch" and x.device.type == "cuda":
        return int(x.device.index)
    where = f"a tensor on {str(x.device)!r}" if library == "torch" else type(x).__name__
    raise TypeError(f"CUDA kernels take numbers, None, and arrays of torch or CuPy on a CUDA device, got {where}")


def stream_of(like: Any) -> int:
    """Return the current stream of the array's library on the array's device."""
    if arrays.library_of(like) == "torch":
        return int(sys.modules["torch"].cuda.current_stream(like.device).cuda_stream)
    with like.device:
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)


@functools.cache
def _attribute(device: int, number: int) -> int:
    return driver().attribute(device, number)


class Launch:
    """A launch of a kernel, whose arrays may be other ones each time."""

    def __init__(
        self,
        module: Module,
        kernel: str,
        *,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int = 0,
        arguments: Sequence[Any],
        like: Any,
    ) -> None:
        self._module, self._kernel, self.like = module, kernel, like
        self._grid, self._block, self._shared = grid, block, shared
        self._packed, self._begins, places = pack(arguments)
        self._places = [place for place, _ in places]
        self.arrays = [x for _, x in places]

    def run(self, device: int, stream: int, pointers: Iterable[int]) -> None:
        """Launch on a stream of a device, with the pointers of what stands for ``arrays``."""
        packed = bytearray(self._packed)
        for place, pointer in zip(self._places, pointers, strict=True):
            _POINTER.pack_into(packed, place, pointer)
        function = self._module.function(device, self._kernel)
        try:
            driver().launch(device, function, self._grid, self._block, self._shared, stream, packed, self._begins)
        except DriverError as error:
            where = f"grid {self._grid}, block {self._block}, {self._shared} bytes of shared memory"
            raise RuntimeError(f"{self._kernel}: the launch failed ({where}): {error}") from error


class Module:
    """The kernels of one source, for every device that asks for them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._compiled: Any = None  # by CuPy
        self._loaded: dict[int, int] = {}  # the binary of the package, by device
        self._functions: dict[tuple[int, str], int] = {}

    def max_shared(self, like: Any) -> int:
        """Return the most bytes of dynamic shared memory of a block on the array's device."""
        return _attribute(device_of(like), _driver.SHARED_OF_BLOCK)

    def capability(self, like: Any) -> int:
        """Return the compute capability of the array's device, 80 for 8.0."""
        return _capability(device_of(like))

    def prepare(self, kernel: str, **how: Any) -> Launch | None:
        """Return a launch that takes its arrays later; None of an empty grid."""
        return None if 0 in how["grid"] else Launch(self, kernel, **how)

    def launch(self, kernel: str, **how: Any) -> None:
        """Launch a kernel on the device of ``like``, on the current stream of its library.

        The other arguments are those of `Launch`: ``grid`` and ``block``, three numbers each, ``shared`` in bytes,
        ``arguments`` as `pack` has them. An empty grid does nothing.
        """
        launch = self.prepare(kernel, **how)
        if launch is not None:
            launch.run(device_of(launch.like), stream_of(launch.like), map(_pointer, launch.arrays))

    def function(self, device: int, kernel: str) -> int:
        """Return the kernel, loaded on a device, with all the shared memory that a block may have.

        All that a kernel needs of the driver but its launches is done here, once: a graph can then capture a launch of
        any shape, if the kernel has run before.
        """
        found = self._functions.get((device, kernel))
        if found is not None:
            return found
        with self._lock:
            if (device, kernel) not in self._functions:
                capability = _capability(device)
                built = built_path(self.name) if capability >= OLDEST_BUILT else None
                try:
                    function = self._built(device, kernel, built) if built else self._by_cupy(device, kernel)
                    driver().allow_shared(device, function, _attribute(device, _driver.SHARED_OF_BLOCK))
                except Exception as error:
                    what = f"loading {built}" if built else f"compiling {self.name}.cu"
                    what += f" for compute capability {capability}"
                    raise RuntimeError(f"{kernel}: {what} failed: {error}") from error
                self._functions[device, kernel] = function
            return self._functions[device, kernel]

    def _built(self, device: int, kernel: str, path: Path) -> int:
        if device not in self._loaded:
            self._loaded[device] = driver().load(device, path.read_bytes())
        return driver().function(device, self._loaded[device], kernel)

    def _by_cupy(self, device: int, kernel: str) -> int:
        cupy = importlib.import_module("cupy")
        with cupy.cuda.Device(device):
            if self._compiled is None:
                self._compiled = cupy.RawModule(code=source(self.name), options=OPTIONS, backend="nvrtc")
            return int(self._compiled.get_function(kernel).kernel.ptr)


def _capability(device: int) -> int:
    """Return the compute capability of a device, 80 for 8.0."""
    return 10 * _attribute(device, _driver.CAPABILITY_MAJOR) + _attribute(device, _driver.CAPABILITY_MINOR)


_loaded: dict[str, Module] = {}
_loading = threading.Lock()


def load(name: str) -> Module:
    """Return the kernels of csrc/cuda/<name>.cu; they are compiled when one is first launched."""
    module = _loaded.get(name)
    if module is None:
        with _loading:
            if name not in _loaded:
                if built_path(name) is None:
                    source_path(name)  # raises here, not at the first launch
                _loaded[name] = Module(name)
            module = _loaded[name]
    return module
