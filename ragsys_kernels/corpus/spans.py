"""Arrays of several files, or in memory, as one array: they are mapped one after the other into one range of addresses.

A file is mapped in whole pages. The next array can follow in the middle of a page only if it begins as deep in a page
of its own file, for which segments are written (`offset`). The page that two arrays share is a copy of this process:
what lies before the second is written to it. So rows of segments are one array, as those of one file are, for the price
of a page a segment; what was not written to fit is copied.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

# Segments are written for pages of this size; where they are larger, all but the first are copied.
PAGE = 4096

_MAP_FIXED = 0x10  # of Linux and macOS
_FAILED = ctypes.c_void_p(-1).value


class MemoryFile:
    """A file without a name, in memory, which goes with this object."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("ragsys_kernels", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def fileno(self) -> int:
        return self._descriptor


@dataclass(frozen=True)
class Piece:
    """An array (n, ...), and where a file has the same bytes: a path or `MemoryFile`, and the offset in it."""

    array: np.ndarray
    file: Path | MemoryFile | None = None
    offset: int = 0

    def opened(self) -> int | None:
        """Return a descriptor of the file, to be closed, or None: it is gone, or there is none."""
        try:
            if isinstance(self.file, MemoryFile):
                return os.dup(self.file.fileno())
            return None if self.file is None else os.open(self.file, os.O_RDONLY)
        except OSError:
            return None


def offset(start: int, row_bytes: int, header: int) -> int:
    """Return where the array of a segment begins in its file, at ``header`` or in the page after it.

    It is as deep in a page as row number ``start`` of an array that begins at ``header``.
    """
    return header + start * row_bytes % PAGE


def joined(pieces: Sequence[Piece]) -> np.ndarray:
    """Return the rows of all pieces, at least one, as an array that is not writeable; a single one is returned as is.

    The arrays have the same element type and the same shape but for their number of rows, and are C-contiguous.
    """
    if len(pieces) == 1:
        return pieces[0].array
    if not _can_map():
        array = np.concatenate([piece.array for piece in pieces])
        array.flags.writeable = False
        return array
    like = pieces[0].array
    rows = sum(len(piece.array) for piece in pieces)
    lead = pieces[0].offset % mmap.PAGESIZE
    memory = Range(lead + sum(piece.array.nbytes for piece in pieces))
    begin = lead
    for piece in pieces:
        memory.put(begin, piece)
        begin += piece.array.nbytes
    found: np.ndarray = np.asarray(memory)[lead:begin].view(like.dtype).reshape(rows, *like.shape[1:])
    return found


class FileMap:
    """The bytes of a file, mapped. Python's own map keeps a descriptor, of which a process has some thousand."""

    def __init__(self, descriptor: int, size: int) -> None:
        libc = _libc()
        found = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if found is None or found == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, f"a file could not be mapped: {os.strerror(error)}")
        weakref.finalize(self, libc.munmap, found, size).atexit = False
        self._begin, self._size = found, size
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (found, True), "version": 3}

    def advise(self, first: int, last: int, advice: int) -> None:
        """Advise the system about the pages of some addresses."""
        low = self._begin + (first - self._begin) // mmap.PAGESIZE * mmap.PAGESIZE
        _libc().madvise(low, min(last, self._begin + self._size) - low, advice)


def mapped(descriptor: int, size: int) -> np.ndarray:
    """Return the bytes of a file as an array; the descriptor can be closed."""
    if not _can_map():
        return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.uint8)
    return np.asarray(FileMap(descriptor, size))


def _can_map() -> bool:
    return sys.platform in ("linux", "darwin") and ctypes.sizeof(ctypes.c_void_p) == 8


class Range:
    """A range of addresses, into which pieces are put from its beginning to its end."""

    def __init__(self, size: int) -> None:
        self._page = mmap.PAGESIZE
        size = max(1, -(-size // self._page)) * self._page
        self._libc = _libc()
        self._begin = self._map(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._filled = 0  # up to where there are pages
        self._files: list[tuple[int, int]] = []  # the pages that a file has as they are
        # Not at the end of the process, whose threads may still read.
        weakref.finalize(self, self._libc.munmap, self._begin, size).atexit = False
        # NumPy's arrays of this object keep it.
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (self._begin, True), "version": 3}

    def put(self, begin: int, piece: Piece) -> None:
        """Map a piece, or copy it, so that its array begins that far into the range."""
        size = piece.array.nbytes
        if not size:
            return
        first = begin // self._page * self._page
        last = -(-(begin + size) // self._page) * self._page
        before = b""
        if first < self._filled:  # the last page of the piece before, which is then no file's
            before = ctypes.string_at(self._begin + first, begin - first)
            while self._files and self._files[-1][1] > first:
                low, _ = self._files.pop()
                if low < first:
                    self._files.append((low, first))
        fits = (piece.offset - begin) % self._page == 0
        descriptor = piece.opened() if fits else None
        writeable, private = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
        if descriptor is None:
            self._map(first, last - first, writeable, private | mmap.MAP_ANONYMOUS)
            ctypes.memmove(self._begin + begin, piece.array.ctypes.data, size)
        else:
            at = piece.offset - (begin - first)
            try:
                self._map(first, last - first, mmap.PROT_READ, private, descriptor, at)
                if before:  # this page alone may be written to: the system counts what may be as memory
                    self._map(first, self._page, writeable, private, descriptor, at)
            finally:
                os.close(descriptor)
            self._files.append((first + self._page if before else first, last))
        if before:
            ctypes.memmove(self._begin + first, before, len(before))
        self._libc.mprotect(self._begin + first, last - first, mmap.PROT_READ)
        self._filled = last

    def advise(self, first: int, last: int, advice: int) -> None:
        """Advise the system about the pages of some addresses, but for those that are no longer as in their file."""
        for begin, end in self._files:
            low = max(begin, (first - self._begin) // self._page * self._page)
            high = min(end, last - self._begin)
            if low < high:
                self._libc.madvise(self._begin + low, high - low, advice)

    def _map(self, first: int | None, size: int, protection: int, flags: int, descriptor: int = -1, at: int = 0) -> int:
        address = None if first is None else self._begin + first
        found: int | None = self._libc.mmap(address, size, protection, flags, descriptor, at)
        if found is None or found == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, f"memory could not be mapped: {os.strerror(error)}")
        return found


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = ctypes.c_void_p, size, number, number, number, ctypes.c_int64
    libc.munmap.argtypes = ctypes.c_void_p, size
    libc.mprotect.argtypes = ctypes.c_void_p, size, number
    libc.madvise.argtypes = ctypes.c_void_p, size, number
    return libc


def in_memory(arrays: dict[str, np.ndarray], leads: dict[str, int]) -> dict[str, Piece]:
    """Return arrays as pieces that several ranges can share, each as deep in a page as its lead says.

    Where the system has no files in memory, they are as they are, to be copied.
    """
    if not hasattr(os, "memfd_create"):
        return {name: Piece(array) for name, array in arrays.items()}
    file, place, found = MemoryFile(), 0, {}
    with open(file.fileno(), "wb", buffering=0, closefd=False) as opened:
        for name, array in arrays.items():
            place = -(-place // mmap.PAGESIZE) * mmap.PAGESIZE + leads[name]
            found[name] = Piece(array, file, place)
            view = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            opened.seek(place)
            while view:
                view = view[opened.write(view) :]
            place += array.nbytes
    return found
