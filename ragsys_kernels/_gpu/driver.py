"""NVIDIA's driver, ``libcuda``: loads compiled kernels and launches them.

Its functions are called by ctypes: no CUDA toolkit, no CuPy and no compiled part of this package is needed for them.
Devices are numbered as CUDA numbers them, and each is used in its primary context, as torch and CuPy do.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# As the system's loader knows it; on Windows it comes with the display driver.
LIBRARIES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")

# Numbers of cuda.h: CUdevice_attribute and CUfunction_attribute.
CAPABILITY_MAJOR, CAPABILITY_MINOR, SHARED_OF_BLOCK = 75, 76, 97
_STATIC_SHARED, _DYNAMIC_SHARED = 1, 8

_Int, _UInt, _Pointer, _Text = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_char_p
_Out = ctypes.POINTER
# What each takes; all return a status.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UInt,),
    "cuGetErrorName": (_Int, _Out(_Text)),
    "cuGetErrorString": (_Int, _Out(_Text)),
    "cuDeviceGetCount": (_Out(_Int),),
    "cuDeviceGet": (_Out(_Int), _Int),
    "cuDeviceGetAttribute": (_Out(_Int), _Int, _Int),
    "cuDevicePrimaryCtxRetain": (_Out(_Pointer), _Int),
    "cuCtxGetCurrent": (_Out(_Pointer),),
    "cuCtxPushCurrent_v2": (_Pointer,),
    "cuCtxPopCurrent_v2": (_Out(_Pointer),),
    "cuModuleLoadData": (_Out(_Pointer), _Text),
    "cuModuleGetFunction": (_Out(_Pointer), _Pointer, _Text),
    "cuFuncGetAttribute": (_Out(_Int), _Int, _Pointer),
    "cuFuncSetAttribute": (_Pointer, _Int, _Int),
    "cuLaunchKernel": (_Pointer, *6 * (_UInt,), _UInt, _Pointer, _Out(_Pointer), _Out(_Pointer)),
}


class DriverError(RuntimeError):
    """What the driver says of a call that failed."""


class Driver:
    """The functions of a library, each of which raises `DriverError` where it fails."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions: dict[str, Any] = {}
        for name, kinds in FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = kinds, _Int
            self._functions[name] = function
        self._launch = self._functions["cuLaunchKernel"]
        self._current = self._functions["cuCtxGetCurrent"]
        self._contexts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._call("cuInit", 0)

    def device_count(self) -> int:
        return self._number("cuDeviceGetCount")

    def attribute(self, device: int, attribute: int) -> int:
        """Return an attribute of a device, by its number in cuda.h."""
        return self._number("cuDeviceGetAttribute", attribute, self._number("cuDeviceGet", device))

    def load(self, device: int, image: bytes) -> int:
        """Return the handle of a cubin, a fatbin or PTX that is loaded on a device."""
        with self._on(device):
            return self._handle("cuModuleLoadData", image)

    def function(self, device: int, module: int, name: str) -> int:
        """Return the handle of a kernel of a loaded module."""
        with self._on(device):
            return self._handle("cuModuleGetFunction", module, name.encode())

    def allow_shared(self, device: int, function: int, size: int) -> None:
        """Let blocks of a kernel have ``size`` bytes of shared memory, with those that it declares."""
        with self._on(device):
            declared = self._number("cuFuncGetAttribute", _STATIC_SHARED, function)
            self._call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, size - declared)

    def launch(
        self,
        device: int,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: int,
        arguments: bytearray,
        places: Sequence[int],
    ) -> None:
        """Launch a kernel, whose arguments stand at these places; the driver copies them before it returns."""
        begin = ctypes.addressof(ctypes.c_char.from_buffer(arguments))
        pointers = (_Pointer * len(places))(*[begin + place for place in places])
        current = _Pointer()
        self._current(ctypes.byref(current))
        if current.value == self._context(device):  # as it nearly always is: torch has made it current
            self._check(self._launch(function, *grid, *block, shared, stream, pointers, None))
        else:
            with self._on(device):
                self._check(self._launch(function, *grid, *block, shared, stream, pointers, None))

    def _context(self, device: int) -> int:
        found = self._contexts.get(device)
        if found is None:
            with self._lock:
                if device not in self._contexts:
                    ordinal = self._number("cuDeviceGet", device)
                    self._contexts[device] = self._handle("cuDevicePrimaryCtxRetain", ordinal)
                found = self._contexts[device]
        return found

    @contextmanager
    def _on(self, device: int) -> Iterator[None]:
        """Make a device's primary context current in this thread, for a block."""
        self._call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self._handle("cuCtxPopCurrent_v2")

    def _number(self, name: str, *arguments: Any) -> int:
        found = _Int()
        self._call(name, ctypes.byref(found), *arguments)
        return found.value

    def _handle(self, name: str, *arguments: Any) -> int:
        found = _Pointer()
        self._call(name, ctypes.byref(found), *arguments)
        return found.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(self._functions[name](*arguments))

    def _check(self, status: int) -> None:
        if status:
            name, text = _Text(), _Text()
            self._functions["cuGetErrorName"](status, ctypes.byref(name))
            self._functions["cuGetErrorString"](status, ctypes.byref(text))
            words = [each.value.decode() for each in (name, text) if each.value]
            raise DriverError(": ".join(words) or f"error {status}")


@functools.cache
def driver() -> Driver:
    """Return the driver.

    Raises
    ------
    DriverError
        It is not installed, or has no device that works.
    """
    missing = []
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            missing.append(str(error))
        else:
            return Driver(library)
    raise DriverError(missing[0])
