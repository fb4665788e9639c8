"""Kernels of csrc/cuda: their sources, compiled for the device in use and launched on the caller's stream.

CuPy compiles and launches; it is imported for the first kernel. torch is never linked: its tensors come as pointers.
NVRTC compiles a source once for each architecture and keeps the result on disk, unless the package was built with
RAGSYS_KERNELS_CUDA=1 (setup.py) and has it compiled.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import _arrays
from .._extras import absent, imported, install

# CuPy always gives NVRTC -ftz=true, so the ahead-of-time build must say it too, for the same bits.
OPTIONS = ("-std=c++17", "-ftz=true")

# The oldest architecture in the fatbins; an older device gets its kernels from NVRTC.
OLDEST_BUILT = 80

# Sources without kernels for older devices, by the compute capability that they need.
NEEDS = {"greedy_held": 90}

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
    """Return the text of a source, with the files that it includes put in.

    CuPy's cache knows a source by its text: the headers must be part of it, or a change in one would go unseen.
    """
    path, seen = source_path(name), set[str]()

    def expand(path: Path) -> str:
        lines = [f'#line 1 "{path.name}"']
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            included = re.fullmatch(r'\s*#\s*include\s+"([^"]+)"\s*', line)
            if included is None:
                lines.append("" if re.fullmatch(r"\s*#\s*pragma\s+once\s*", line) else line)
                continue
            if included[1] not in seen:
                seen.add(included[1])
                lines.append(expand(path.with_name(included[1])))
            lines.append(f'#line {number + 1} "{path.name}"')
        return "\n".join(lines)

    return expand(path) + "\n"


def built_path(name: str) -> Path | None:
    """Return the compiled form that the package carries; in a working tree only if no source is younger."""
    path = _PACKAGE / "_cuda_bin" / f"{name}.fatbin"
    if not path.is_file():
        return None
    installed, tree = _folders()
    if not (installed / f"{name}.cu").is_file() and (tree / f"{name}.cu").is_file():
        changed = max(file.stat().st_mtime for file in tree.glob("*.cu*"))
        if path.stat().st_mtime < changed:
            return None
    return path


# --- Whether anything can run.


@functools.cache
def why_not() -> str | None:
    """Return the reason that CUDA kernels cannot run here, or None if they can."""
    try:
        cupy = imported("cupy")
    except ImportError as error:
        if error.name == "cupy":
            return absent("cupy", "cuda")
        return f"cupy is broken: {error}"
    except Exception as error:  # whatever an import of a foreign library raises
        return f"cupy is broken: {error}"
    try:
        if cupy.cuda.runtime.is_hip:
            return "cupy is built for ROCm, and these kernels for CUDA"
        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "there is no CUDA device"
    except Exception as error:
        return f"there is no CUDA driver or device: {error}"
    names = sources()
    built = sorted(path.stem for path in (_PACKAGE / "_cuda_bin").glob("*.fatbin"))
    if not names and not built:
        return f"the CUDA sources are neither in {' nor in '.join(map(str, _folders()))}; reinstall"
    if not names or all(built_path(name) is not None for name in names):
        return None
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        return f"NVRTC, which compiles the CUDA sources, cannot be loaded: {error}; {install('cuda')}"
    return None


# --- Launching.


class Kernel(NamedTuple):
    """A kernel as the report of compiled resources describes it.

    The functions take the three sizes of its problem: (P, D, K) for selection, (T, V, D) for scoring.
    """

    name: str
    source: str
    fits: Callable[[int, int, int], bool]  # whether a problem of these sizes may launch it
    threads: Callable[[int, int, int], int]
    shared_bytes: Callable[[int, int, int], int]  # dynamic shared memory of a block
    bytes_read: Callable[[int, int, int], int]  # from device memory, each input once: for one query, or for the rows


class Struct:
    """Arguments that a kernel takes as one struct by value, in the order of its members."""

    def __init__(self, **members: Any) -> None:
        self.members = members


def pack(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments as scalars of the width that the kernel takes.

    An array becomes its pointer and None a null pointer, an int 64 bits and a float 32 bits; NumPy scalars, for other
    widths, stay what they are. A `Struct` is an array of one element, which CuPy passes by value.
    """
    packed: list[Any] = []
    for x in arguments:
        if isinstance(x, Struct):
            letters, values = zip(*map(_scalar, x.members.values()), strict=True)
            data = struct.pack(f"@{''.join(letters)}0q", *values)  # as C lays it out, up to the end of its alignment
            packed.append(np.frombuffer(data, (np.void, len(data))))
        else:
            letter, value = _scalar(x)
            packed.append(_WIDTHS[letter](value) if letter in _WIDTHS else value)
    return tuple(packed)


# What is no NumPy scalar, by the letter that Python's struct module and NumPy have for it.
_WIDTHS: dict[str, Any] = {"Q": np.uint64, "q": np.int64, "f": np.float32}


def _scalar(x: Any) -> tuple[str, Any]:
    """Return an argument's letter, and its value."""
    if x is None:
        return "Q", 0
    if isinstance(x, (bool, np.bool_)):
        raise TypeError("a kernel takes no bool; give it an int")
    if isinstance(x, np.generic):
        return x.dtype.char, x
    if isinstance(x, int):
        return "q", x
    if isinstance(x, float):
        return "f", x
    return "Q", _pointer(x)


def row_stride(rows: Any) -> int:
    """Return the elements from one row of a matrix to the next."""
    strides = getattr(rows, "stride", None)
    return int(strides(0)) if strides is not None else int(rows.strides[0] // rows.dtype.itemsize)


def _pointer(x: Any) -> int:
    _device(x)
    return _arrays.pointer(x)


def _device(x: Any) -> int:
    """Return the number of the device that an array is on."""
    library = _arrays.library_of(x)
    if library == "cupy":
        return int(x.device.id)
    if library == "torch" and x.device.type == "cuda":
        return int(x.device.index)
    where = f"a tensor on {str(x.device)!r}" if library == "torch" else type(x).__name__
    raise TypeError(f"CUDA kernels take numbers, None, and arrays of torch or CuPy on a CUDA device, got {where}")


class _Handle:
    """A stream of another library, in the form that CuPy takes."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def _stream(cupy: Any, like: Any) -> Any:
    """Return a context in which CuPy launches on the current stream of the array's library."""
    if _arrays.library_of(like) != "torch":
        return contextlib.nullcontext()  # CuPy's own, of the device that is current
    handle = int(sys.modules["torch"].cuda.current_stream(like.device).cuda_stream)
    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14; it warns of the older name
        return cupy.cuda.Stream.from_external(_Handle(handle))
    return cupy.cuda.ExternalStream(handle)


@functools.cache
def _attribute(device: int, name: str) -> int:
    return int(importlib.import_module("cupy").cuda.Device(device).attributes[name])


@functools.cache
def _capability(device: int) -> int:
    return int(importlib.import_module("cupy").cuda.Device(device).compute_capability)


class Module:
    """The kernels of one source, for every device that asks for them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._modules: dict[bool, Any] = {}  # by whether it came compiled
        self._kernels: dict[tuple[int, str], Any] = {}

    def max_shared(self, like: Any) -> int:
        """Return the most bytes of dynamic shared memory of a block on the array's device."""
        return _attribute(_device(like), "MaxSharedMemoryPerBlockOptin")

    def capability(self, like: Any) -> int:
        """Return the compute capability of the array's device, 80 for 8.0."""
        return _capability(_device(like))

    def multiprocessors(self, like: Any) -> int:
        """Return the number of multiprocessors of the array's device."""
        return _attribute(_device(like), "MultiProcessorCount")

    def launch(
        self,
        kernel: str,
        *,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int = 0,
        arguments: Sequence[Any],
        like: Any,
    ) -> None:
        """Launch a kernel on the device of ``like``, on the current stream of its library.

        ``shared`` is in bytes; for ``arguments`` see `pack`. An empty grid does nothing.
        """
        if 0 in grid:  # CuPy would launch one block
            return
        cupy, device, packed = importlib.import_module("cupy"), _device(like), pack(arguments)
        with cupy.cuda.Device(device), _stream(cupy, like):
            function = self._function(cupy, device, kernel)
            try:
                function(grid, block, packed, shared_mem=shared)
            except Exception as error:
                where = f"grid {grid}, block {block}, {shared} bytes of shared memory"
                raise RuntimeError(f"{kernel}: the launch failed ({where}): {error}") from error

    def _function(self, cupy: Any, device: int, kernel: str) -> Any:
        """Return the kernel, loaded on the current device, with all the shared memory that a block may have.

        All that a kernel needs of the driver but its launches is done here, once: a graph can then capture a launch of
        any shape, if the kernel has run before.
        """
        found = self._kernels.get((device, kernel))
        if found is not None:
            return found
        with self._lock:
            if (device, kernel) not in self._kernels:
                capability = int(cupy.cuda.Device(device).compute_capability)
                built = built_path(self.name) if capability >= OLDEST_BUILT else None
                try:
                    module = self._modules.get(built is not None)
                    if module is None and built is not None:
                        module = cupy.RawModule(path=str(built))
                    elif module is None:
                        module = cupy.RawModule(code=source(self.name), options=OPTIONS, backend="nvrtc")
                    self._modules[built is not None] = module
                    function = module.get_function(kernel)
                    function.kernel  # noqa: B018  # compiles and loads, while no other thread does
                    most = _attribute(device, "MaxSharedMemoryPerBlockOptin")
                    function.max_dynamic_shared_size_bytes = most - int(function.shared_size_bytes)
                except Exception as error:
                    what = f"loading {built}" if built else f"compiling {self.name}.cu"
                    what += f" for compute capability {capability}"
                    raise RuntimeError(f"{kernel}: {what} failed: {error}") from error
                self._kernels[device, kernel] = function
            return self._kernels[device, kernel]


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
