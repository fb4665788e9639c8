"""CUDA kernels on the CPU: builds a source of csrc/cuda with g++ and ``cuda_on_cpu.hpp``, runs launches on host arrays.

`Module` stands in for what ``cuda_module.load`` returns, so that a test patches that in and calls the package's own
launchers with NumPy arrays or CPU tensors. With a sanitizer every launch is a process of its own, in which arrays end
where their allocations end.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ragsys_kernels._gpu import cuda_module

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "csrc" / "cuda"
BUILDS = HERE.parents[1] / "build" / "cuda_on_cpu"
# What a block of an H100 may have.
MAX_SHARED = 232_448
# Contraction of a * b + c depends on the compiler; nvcc's own choices can't be had here.
FLAGS = [
    "-std=c++17",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Wno-unused",
    "-Wno-sign-compare",
]
# Multiply-adds that are asked for by name take a call each without the instruction.
NATIVE = ["-march=native"] if os.uname().machine == "x86_64" else []
SANITIZERS = {
    "": ["-O1", "-shared", "-fPIC"],
    "address": ["-O0", "-g1", "-DEMU_MAIN", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-g1", "-DEMU_MAIN", "-fsanitize=thread"],
}


# How cuda_on_cpu.hpp has a kernel, with the blocks of its clusters.
_KERNEL = re.compile(
    r'extern "C"\s+__attribute__\(\(used\)\)\s+void\s+'
    r'(?:__attribute__\(\(section\("\.text\.cluster" "(\d+)"\)\)\)\s+)?(\w+)\s*\('
)


class LaunchError(RuntimeError):
    """A launch failed, or a sanitizer has something to say about it."""


def why_not() -> str | None:
    """The reason kernels cannot be run here, or None."""
    return None if shutil.which("g++") else "g++ is not installed"


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="cuda_on_cpu_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _run(command: list[str], what: str, given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode or "warning" in done.stderr:
        raise LaunchError(f"{what}:\n{done.stderr}")
    return done.stdout


@functools.cache
def _compiler() -> str:
    """The compiler and this processor, as its macros tell them."""
    return _run(["g++", *NATIVE, "-E", "-dM", "-x", "c++", os.devnull], "asking g++")


def _included(name: str, sources: Path) -> str:
    return f'#include "{HERE}/cuda_on_cpu.hpp"\n#include "{sources / name}.cu"\n'


def _command(sanitizer: str = "", defines: tuple[str, ...] = ()) -> list[str]:
    return ["g++", *FLAGS, *NATIVE, *SANITIZERS[sanitizer], *(f"-D{define}" for define in defines), "-x", "c++"]


def _preprocessed(name: str, command: list[str], sources: Path) -> str:
    return _run([*command, "-E", "-"], f"preprocessing {name}.cu", _included(name, sources))


@functools.cache
def kernels(name: str, sources: Path = SOURCES) -> list[str]:
    """The kernels of ``<name>.cu``, which is not compiled for that."""
    return [kernel for _, kernel in _KERNEL.findall(_preprocessed(name, _command(), sources))]


@functools.cache
def build(name: str, sanitizer: str = "", sources: Path = SOURCES, defines: tuple[str, ...] = ()) -> Path:
    """The shared library, or with a sanitizer the executable, of ``<name>.cu``: one build of all processes of tests."""
    command = _command(sanitizer, defines)
    preprocessed = _preprocessed(name, command, sources)
    launch = (HERE / "launch.hpp").read_text()
    digest = hashlib.sha256("\0".join([_compiler(), *command, preprocessed, launch]).encode()).hexdigest()[:16]
    folder = BUILDS if sources in (SOURCES, HERE) else _folder()  # a test's own sources are never the same
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / f"{name}-{sanitizer}-{digest}.so"
    with binary.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            table = ", ".join(
                f"EMU_KERNEL({kernel}, {blocks or 1})" for blocks, kernel in _KERNEL.findall(preprocessed)
            )
            wrapper, partial = binary.with_suffix(".cpp"), binary.with_suffix(".partial")
            include = _included(name, sources)
            wrapper.write_text(f'{include}#define RSK_KERNELS {table}\n#include "{HERE}/launch.hpp"\n')
            _run([*command, str(wrapper), "-o", str(partial)], f"compiling {name}.cu")
            partial.replace(binary)
    return binary


def _numpy(x: object) -> np.ndarray:
    """A host array's memory, whatever it is called."""
    if isinstance(x, np.ndarray):
        return x
    if type(x).__module__.partition(".")[0] == "torch":
        tensor = x.detach()
        return (tensor.view(_int16()) if tensor.dtype.itemsize == 2 else tensor).numpy()
    raise TypeError(f"an argument must be an array, a number or None, got {type(x).__name__}")


def _int16() -> object:
    import torch

    return torch.int16


def _bytes(array: np.ndarray) -> tuple[int, int]:
    """Address and size of the memory that the array's elements span."""
    if not array.size:
        return array.ctypes.data, 0
    reach = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
    return array.ctypes.data, reach + array.itemsize


class _Struct(NamedTuple):
    """A struct by value: its size, and the place, kind and value of each member."""

    size: int
    members: list[tuple[int, str, object]]


def _packed(arguments: tuple) -> tuple[list[str], list]:
    """What each argument is for the kernel, and its scalar, memory or struct."""
    kinds, values = [], []
    for x in arguments:
        if isinstance(x, (bool, np.bool_)):
            raise TypeError("a kernel takes no bool")
        if isinstance(x, cuda_module.Struct):
            its_kinds, its_values = _packed(tuple(x.members.values()))
            letters = "".join(_LETTERS[kind] for kind in its_kinds)
            places = [struct.calcsize(f"{letters[:i]}0{letters[i]}") for i in range(len(letters))]
            size = struct.calcsize(f"{letters}0q")
            kind, value = f"s{size}", _Struct(size, list(zip(places, its_kinds, its_values, strict=True)))
        elif x is None:
            kind, value = "p8", None
        elif isinstance(x, int):
            kind, value = "i8", ctypes.c_longlong(x)
        elif isinstance(x, float):
            kind, value = "f4", ctypes.c_float(x)
        elif isinstance(x, np.int32):
            kind, value = "i4", ctypes.c_int(int(x))
        elif isinstance(x, np.float32):
            kind, value = "f4", ctypes.c_float(float(x))
        else:
            kind, value = "p8", _bytes(_numpy(x))
        kinds.append(kind)
        values.append(value)
    return kinds, values


# The members of a struct, whose places are as C has them, as Python's module calls them.
_LETTERS = {"p8": "P", "i8": "q", "i4": "i", "f4": "f"}


def _scalar(value: object) -> object:
    """An argument as ctypes has it: a pointer for memory, the bytes of a struct."""
    if isinstance(value, _Struct):
        memory = ctypes.create_string_buffer(value.size)
        for place, _, member in value.members:
            scalar = _scalar(member)
            ctypes.memmove(ctypes.addressof(memory) + place, ctypes.addressof(scalar), ctypes.sizeof(scalar))
        return memory
    if value is None or isinstance(value, tuple):
        return ctypes.c_void_p(value[0] if value else None)
    return value


class Module:
    """The kernels of one source.

    Attributes
    ----------
    seed : int
        Of the schedule; 0 takes threads in their order.
    removed : int
        Number of the SYNC or FENCE that is left out, 0 for none.
    shared_limit : int
        Bytes of dynamic shared memory that a block may have.
    launches : list
        (kernel, grid, block, shared) of every launch so far.
    """

    def __init__(
        self, name: str, sanitizer: str = "", *, sources: Path = SOURCES, defines: tuple[str, ...] = ()
    ) -> None:
        self.sanitizer = sanitizer
        self._source = name, sanitizer, sources, defines
        self.seed = self.removed = 0
        self.shared_limit = MAX_SHARED
        self.launches: list[tuple] = []

    @functools.cached_property
    def binary(self) -> Path:
        return build(*self._source)

    def max_shared(self, like: object) -> int:
        return self.shared_limit

    def capability(self, like: object) -> int:
        return 90

    @contextlib.contextmanager
    def counted(self, array: object) -> Iterator[Callable[[], int]]:
        """Count the bytes of an array that launches in the block read; yields what says how many."""
        library = ctypes.CDLL(str(self.binary))
        library.emu_counted.restype = ctypes.c_longlong
        address, size = _bytes(_numpy(array))
        library.emu_count(ctypes.c_void_p(address), ctypes.c_longlong(size))
        try:
            yield library.emu_counted
        finally:
            library.emu_count(ctypes.c_void_p(None), ctypes.c_longlong(0))

    def launch(self, kernel: str, *, grid: tuple, block: tuple, shared: int, arguments: tuple, like: object) -> None:
        self.launches.append((kernel, grid, block, shared))
        kinds, values = _packed(arguments)
        numbers = [*grid, *block, shared, self.shared_limit, self.seed, self.removed]
        (self._launch_apart if self.sanitizer else self._launch)(kernel, kinds, numbers, values)

    def _launch(self, kernel: str, kinds: list[str], numbers: list, values: list) -> None:
        scalars = [_scalar(value) for value in values]
        pointers = (ctypes.c_void_p * len(scalars))(*(ctypes.addressof(x) for x in scalars))
        error = ctypes.create_string_buffer(1000)
        launch = ctypes.CDLL(str(self.binary)).emu_launch
        numbers = (ctypes.c_longlong * len(numbers))(*numbers)
        if launch(kernel.encode(), "".join(kinds).encode(), numbers, pointers, error, ctypes.c_longlong(len(error))):
            raise LaunchError(error.value.decode())

    def _launch_apart(self, kernel: str, kinds: list[str], numbers: list, values: list) -> None:
        content = bytearray(_text(kernel.encode()) + struct.pack(f"<{len(numbers)}q", *numbers))
        arrays = []  # address, size, where in the file

        def write(kind: str, value: object) -> None:
            nonlocal content
            content += _text(kind.encode())
            if isinstance(value, _Struct):
                content += struct.pack("<q", len(value.members))
                for place, its_kind, member in value.members:
                    content += struct.pack("<q", place)
                    write(its_kind, member)
            elif value is None:
                content += struct.pack("<q", -1)
            elif isinstance(value, tuple):
                content += struct.pack("<2q", value[0] % 16, value[1])
                arrays.append((*value, len(content)))
                content += ctypes.string_at(*value)
            else:
                content += _text(bytes(value))

        content += struct.pack("<q", len(values))
        for kind, value in zip(kinds, values, strict=True):
            write(kind, value)
        path = _folder() / "launch.bin"
        path.write_bytes(content)
        # Under ThreadSanitizer the address space must not be randomised too widely.
        apart = ["setarch", "-R"] if self.sanitizer == "thread" and shutil.which("setarch") else []
        options = {
            "TSAN_OPTIONS": "exitcode=66",
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        done = subprocess.run(
            [*apart, str(self.binary), str(path)], env={**os.environ, **options}, capture_output=True, text=True
        )
        if done.returncode or done.stderr:
            raise LaunchError(f"{kernel}: exit status {done.returncode}\n{done.stderr}")
        content = path.read_bytes()
        for address, size, where in arrays:
            ctypes.memmove(address, content[where : where + size], size)


def _text(data: bytes) -> bytes:
    return struct.pack("<q", len(data)) + data


def load(name: str) -> Module:
    """Stands in for ``cuda_module.load``."""
    return _loaded(name)


@functools.cache
def _loaded(name: str) -> Module:
    return Module(name)
